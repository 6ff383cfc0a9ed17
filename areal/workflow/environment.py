"""Episodes in an environment: the policy acts, the environment answers, and each turn gets the reward it caused.

    workflow: environment
    workflow_options: {environment: my_package.maze:Maze, environment_options: {size: 5}, host: subprocess}
    reward: unscored

The episode is one list of tokens: prompt, turn 0, observation, turn 1, ... Prompt and observations are masked. A turn
that calls tools holds `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several for parallel calls; results
come back in the chat template's own format. What is wrong with a call is answered with an error the model can read, and
the environment does not see that turn. Environments: `areal.api.environment`; where they run: `areal.environment`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import (
    ActionCall,
    AssistantTurn,
    ConfigError,
    DataError,
    FaultError,
    FaultKind,
    ModelRequest,
    RolloutWorkflow,
    StepResult,
    StopReason,
    TurnObservation,
)
from areal.dataset.encoding import control_token_problem, encode_prompt, has_chat_template, render_chat
from areal.dataset.images import IMAGE_MARK, marked_text
from areal.dataset.pixels import ImageLimits
from areal.environment.config import host_config
from areal.environment.pool import EnvironmentPool
from areal.environment.wire import image_text
from areal.utils import stats
from areal.utils.seeding import episode_seeds
from areal.workflow.assembly import TrajectoryBuilder, completion_text, decode, reward_columns, score
from areal.workflow.feedback import after_answer, images_after_answer
from areal.workflow.pixels import PixelPrompts
from areal.workflow.tool_calls import ToolError, check_arguments, check_parameters, read_calls
from areal.workflow.tools import ObservationEncoder, instructions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import GenerationConfig, ImageRef, InferenceEngine, ModelResponse, Trajectory
    from areal.environment.config import HostConfig
    from areal.environment.pool import HostedEnvironment
    from areal.workflow.assembly import AwaitableReward

_THOUGHT_END: Final = "</think>"
_PROBE: Final = ({"role": "user", "content": "areal-probe-question"},)


class EnvironmentWorkflow(RolloutWorkflow):
    """Runs the policy in an environment until that is over, or turns, tokens or context run out."""

    def __init__(  # noqa: PLR0913 - the keys of a configuration, each by keyword
        self,
        reward: AwaitableReward,
        gconfig: GenerationConfig,
        tokenizer: Any,
        *,
        environment: str,
        environment_options: Mapping[str, Any] | None = None,
        host: str | Mapping[str, Any] | HostConfig = "process",
        max_turns: int = 8,
        max_observation_characters: int = 4000,
        credit: Literal["turn", "outcome"] = "turn",
        seeding: Literal["prompt", "sample"] = "prompt",
        with_reward: bool = False,
        processor: str | Mapping[str, Any] | None = None,
        max_pixels: int | None = None,
        enable_thinking: bool = False,
        strict_template: bool = True,
    ) -> None:
        """gconfig: `max_new_tokens` counts all that is sampled in an episode.

        environment: name in `areal.environment.registry`, or "module:Factory"; environment_options: its arguments.
        host: a kind, or fields of `areal.environment.config.HostConfig`. max_turns: at least 1.
        max_observation_characters: longer messages are cut, and say so. credit: "turn" gives each turn the reward of
        its step (`Trajectory.turn_rewards`), "outcome" their sum to the whole episode. seeding: "prompt" puts all
        samples of a prompt before the same task, "sample" gives each its own. with_reward: also await `reward` on the
        last turn, for environments that give none; it is the reward of the episode. processor: the checkpoint of a
        model that reads images, or the content of its config.json; None refuses images that the environment shows.
        max_pixels: of an image as the model gets it. strict_template: refuse chat
        templates that change earlier turns (see `areal.workflow.feedback`).
        """
        if max_turns < 1 or max_observation_characters < 1:
            raise ConfigError(
                f"max_turns is {max_turns}, max_observation_characters {max_observation_characters}: >= 1"
            )
        for name, value, choices in (
            ("credit", credit, ("turn", "outcome")),
            ("seeding", seeding, ("prompt", "sample")),
        ):
            if value not in choices:
                raise ConfigError(f"{name} is {value!r}, expected {' or '.join(choices)}")
        self.reward, self.gconfig, self.tokenizer = reward, gconfig, tokenizer
        self.max_turns = max_turns
        self.credit = credit
        self.with_reward = with_reward
        self._seeding = seeding
        self._max_characters = max_observation_characters
        self._enable_thinking = enable_thinking
        self.pool = EnvironmentPool(environment, environment_options or {}, host_config(host))
        self._prompts: PixelPrompts | None = None
        if processor is not None:
            self._prompts = PixelPrompts(
                tokenizer,
                processor=processor,
                limits=ImageLimits(),
                enable_thinking=enable_thinking,
                max_pixels=max_pixels,
            )
        self._observations = ObservationEncoder(
            tokenizer, enable_thinking=enable_thinking, strict_template=strict_template
        )

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> Trajectory:
        """Return one trajectory of up to `max_turns` turns.

        Stop reason LENGTH: tokens, turns or context ran out, or the environment cut the episode off. A turn whose
        tokens ran out is not shown to the environment. Raises FaultError for what goes wrong in the environment.
        Records (`areal.utils.stats`) num_turns, num_calls, num_failed_calls, those of `EnvironmentPool`, and numbers
        of `info` as environment/info/<name>.
        """
        seeds = episode_seeds()
        async with self.pool.episode() as environment:
            first = await environment.reset(data, seeds.prompt if self._seeding == "prompt" else seeds.sample)
            prompt_ids, prompt_images = await self._prompt(first)
            builder = TrajectoryBuilder()
            builder.add_prompt(prompt_ids, prompt_images)
            episode = _Episode(self, environment, first.tools)
            observation: list[int] = []
            images: tuple[ImageRef, ...] = ()
            for turn in range(self.max_turns):
                response = await self._generate(engine, builder, observation, images)
                if response is None:
                    break
                builder.add_observation(observation, images)
                builder.add_response(response, turn=turn)
                episode.last = response
                if response.stop_reason is StopReason.LENGTH:
                    break
                text = completion_text(response, self.gconfig, self.tokenizer)
                result = await episode.step(turn, text)
                if result.terminated or result.truncated:
                    break
                observation, images = await self._encoded(result.observation, response.output_tokens)
        return await self._finished(episode, builder, prompt_ids, data)

    async def _finished(
        self, episode: _Episode, builder: TrajectoryBuilder, prompt_ids: list[int], data: Mapping[str, Any]
    ) -> Trajectory:
        """Return the record of an episode that is over."""
        prompt, earned = decode(prompt_ids, self.tokenizer), sum(episode.rewards.values())
        outcome, components = 0.0, {"environment": float(earned)}
        if self.with_reward:
            assert episode.last is not None, "an episode has a turn, or ended as a fault"
            completion = completion_text(episode.last, self.gconfig, self.tokenizer)
            ids = episode.last.output_tokens
            outcome = await score(self.reward, prompt, completion, prompt_ids, ids, reward_columns(data))
        stats.record("num_turns", max(1, episode.num_turns))
        stats.record("num_calls", episode.num_calls)
        stats.record("num_failed_calls", episode.num_failed)
        built = builder.build(
            reward=outcome if self.credit == "turn" else outcome + earned,
            stop_reason=StopReason.STOP if episode.terminated else StopReason.LENGTH,
            text={"prompt": prompt, "completion": decode(builder.tokens[len(prompt_ids) :], self.tokenizer)},
            reward_components=components,
        )
        return replace(built, turn_rewards=dict(episode.rewards)) if self.credit == "turn" else built

    async def _prompt(self, first: TurnObservation) -> tuple[list[int], tuple[ImageRef, ...]]:
        """Token ids and images of the first observation. Raises FaultError(DATA_INVALID) for one that cannot be
        shown."""
        try:
            messages, tools = self._introduced(first)
            thinking = self._enable_thinking
            if first.images:
                text = marked_text(messages, self.tokenizer, tools=tools, enable_thinking=thinking)
                return await self._placed(text, first.images)
            ids = encode_prompt(messages, self.tokenizer, enable_thinking=thinking)  # also for its checks
            if tools is not None:
                options: dict[str, Any] = {"tools": tools, "add_generation_prompt": True, "return_dict": False}
                ids = list(render_chat(messages, self.tokenizer, enable_thinking=thinking, **options))
            return ids, ()
        except DataError as error:
            raise FaultError(FaultKind.DATA_INVALID, f"the first observation: {error}") from error

    def _introduced(self, first: TurnObservation) -> tuple[Any, list[dict[str, Any]] | None]:
        """Return the prompt, a chat or a text, and the tools for its chat template; None where there are none, or the
        prompt says itself what they are. Raises DataError."""
        messages = [dict(message) for message in first.messages]
        if not has_chat_template(self.tokenizer):
            return "".join(message["content"] for message in messages), None
        if not first.tools:
            return messages, None
        offered = [{"type": "function", "function": dict(tool)} for tool in first.tools]
        if problem := control_token_problem(json.dumps(offered, ensure_ascii=False), self.tokenizer):
            raise DataError(f"a tool {problem}")
        if self._shows(offered):
            return messages, offered
        texts = [message["content"] for message in messages if message["role"] == "system"]
        system = "\n\n".join([*texts, instructions(first.tools, parallel=True)])
        rest = [message for message in messages if message["role"] != "system"]
        return [{"role": "system", "content": system}, *rest], None

    async def _placed(self, text: str, images: Sequence[Any]) -> tuple[list[int], tuple[ImageRef, ...]]:
        """Return ids of a text with the placeholders of images in the places of its marks. Raises DataError."""
        if self._prompts is None:
            raise DataError(
                f"the environment shows {len(images)} images, and the model is not known to read any",
                fix="set workflow_options.processor to the checkpoint of an image-text model",
            )
        pieces = text.split(IMAGE_MARK)
        if len(pieces) - 1 != len(images):
            raise DataError(f"{len(pieces) - 1} {IMAGE_MARK} marks for {len(images)} images, expected one each")
        return await self._prompts.place(pieces, [image_text(image) for image in images])

    def _shows(self, offered: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the chat template writes tools into the prompt."""
        # Texts, since a tokenizer of a few characters cannot encode the probe.
        plain = render_chat(_PROBE, self.tokenizer, tokenize=False)
        return bool(plain != render_chat(_PROBE, self.tokenizer, tokenize=False, tools=offered))

    async def _encoded(
        self, observation: TurnObservation, answer: Sequence[int]
    ) -> tuple[list[int], tuple[ImageRef, ...]]:
        """Return the tokens and images that follow an answer."""
        if not observation.messages:
            raise FaultError(FaultKind.ENVIRONMENT_FAILED, "the episode goes on, but the environment showed nothing")
        most = self._max_characters
        messages = [dict(message) for message in observation.messages]
        for message in messages:
            if (left := len(message["content"]) - most) > 0:
                message["content"] = f"{message['content'][:most]}\n({left} more characters)"
        if not observation.images:
            return after_answer(self._observations.encode_messages(messages), answer), ()
        try:
            text = self._observations.text_of(messages, keep=IMAGE_MARK)
            ids, images = await self._placed(text, observation.images)
        except DataError as error:
            raise FaultError(FaultKind.DATA_INVALID, f"an observation: {error}") from error
        return images_after_answer(ids, images, answer)

    async def _generate(
        self,
        engine: InferenceEngine,
        builder: TrajectoryBuilder,
        observation: Sequence[int],
        images: Sequence[ImageRef],
    ) -> ModelResponse | None:
        """Return the next turn; None when no token is left for it, or a later turn does not fit the context."""
        left = self.gconfig.max_new_tokens - builder.num_sampled
        if left < 1:
            return None
        gconfig = replace(self.gconfig, max_new_tokens=left, min_new_tokens=min(self.gconfig.min_new_tokens, left))
        begin = len(builder.tokens)
        seen = (*builder.images, *(replace(ref, start=begin + ref.start) for ref in images))
        request = ModelRequest(input_ids=[*builder.tokens, *observation], gconfig=gconfig, images=seen)
        try:
            return await engine.agenerate(request)
        except FaultError as fault:
            # A later turn has a prompt and token ids that were accepted before: what no longer fits is the context.
            if not builder.num_sampled or fault.kind is not FaultKind.DATA_INVALID:
                raise
            return None


class _Episode:
    """What happened so far in one episode."""

    def __init__(
        self, workflow: EnvironmentWorkflow, environment: HostedEnvironment, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._environment = environment
        self._tools = {str(tool["name"]): tool["parameters"] for tool in tools}
        self._checked = {name: schema for name, schema in self._tools.items() if _is_understood(name, schema)}
        self.last: ModelResponse | None = None
        self.rewards: dict[int, float] = {}
        self.terminated = False
        self.num_turns = self.num_calls = self.num_failed = 0

    async def step(self, turn: int, text: str) -> StepResult:
        """Take a turn to the environment, or answer what is wrong with its calls."""
        self.num_turns += 1
        try:
            calls = self._read(turn, text) if self._tools else ()
        except ToolError as error:
            self.num_calls, self.num_failed = self.num_calls + 1, self.num_failed + 1
            message = {"role": "tool", "content": f"error: {error}"}
            return StepResult(observation=TurnObservation(messages=(message,)))
        self.num_calls += len(calls)
        head, mark, _ = text.partition(_THOUGHT_END)
        reasoning = head.removeprefix("<think>").strip() if mark else ""
        result = await self._environment.step(AssistantTurn(text=text, reasoning=reasoning, calls=calls))
        self.rewards[turn] = float(result.reward)
        self.terminated = result.terminated and not result.truncated
        for name, value in result.info.items():
            stats.record(f"environment/info/{name}", value)
        return result

    def _read(self, turn: int, text: str) -> tuple[ActionCall, ...]:
        """Return the calls of a turn. Raises ToolError, whose words are for the model, when any is wrong."""
        calls = read_calls(text)
        for call in calls:
            if call.name not in self._tools:
                raise ToolError(f"unknown tool {call.name!r:.60}; known tools are {', '.join(sorted(self._tools))}")
            if call.name in self._checked:
                check_arguments(self._checked[call.name], call.arguments)
        return tuple(
            ActionCall(name=call.name, arguments=call.arguments, id=f"call-{turn}-{index}")
            for index, call in enumerate(calls)
        )


def _is_understood(name: str, schema: Mapping[str, Any]) -> bool:
    """Whether we can check arguments ourselves; a richer schema is the environment's to check."""
    try:
        check_parameters(name, schema)
    except ConfigError:
        return False
    return True
