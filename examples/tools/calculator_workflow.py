"""The episode of calculator_grpo.yaml: the model calls tools before it answers.

`areal-new workflow NAME --style tool_use` writes such a file with its tests; this one is used from where it lies.

The episode is one list of tokens: prompt, call, result, call, result, ..., answer. Prompt and results are masked; calls
and answer are learned, with the reward of the last one. A call is `<tool_call>{"name": ..., "arguments": {...}}
</tool_call>` and ends a turn; `areal.workflow.tools` says what a tool is and what happens when one fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from areal.api import ConfigError, FaultError, FaultKind, ModelRequest, RolloutWorkflow, StopReason
from areal.dataset.pixels import ImageLimits
from areal.utils import stats
from areal.workflow.assembly import PromptReader, TrajectoryBuilder, completion_text, decode, reward_columns, score
from areal.workflow.pixels import PixelPrompts, read_prompt
from areal.workflow.tools import CALL_END, ObservationEncoder, ToolBox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import GenerationConfig, ImageRef, InferenceEngine, ModelResponse, Trajectory
    from areal.workflow.assembly import AwaitableReward
    from areal.workflow.tools import Tool

TOOLS = ("areal.workflow.calculator:CALCULATOR",)


class CalculatorWorkflow(RolloutWorkflow):
    """Runs the calls of the model until it answers, calls or tokens run out, or the context is full."""

    def __init__(  # noqa: PLR0913 - the keys of a configuration, each by keyword
        self,
        reward: AwaitableReward,
        gconfig: GenerationConfig,
        tokenizer: Any,
        *,
        tools: Sequence[str | Tool] = TOOLS,
        max_calls: int = 2,
        seconds_per_call: float = 10.0,
        max_output_characters: int = 2000,
        on_crash: Literal["fault", "observe"] = "fault",
        processor: str | Mapping[str, Any] | None = None,
        max_pixels: int | None = None,
        enable_thinking: bool = False,
        strict_template: bool = True,
    ) -> None:
        """reward: awaited with prompt, last turn, their token ids and every column of the row but `messages`.

        gconfig: `max_new_tokens` counts all that is sampled in an episode. tools: instances, or "module:object".
        max_calls: per episode; the turn after the last one is the answer, whatever it says. seconds_per_call,
        max_output_characters, on_crash: see `areal.workflow.tools.ToolBox`. processor: the checkpoint of a model that
        reads images, or the content of its config.json; None refuses images of rows and of tools. max_pixels: of an
        image as the model gets it. strict_template: refuse chat templates that change earlier turns (see
        `areal.workflow.feedback`).
        """
        if max_calls < 0:
            raise ConfigError(f"max_calls is {max_calls}, expected at least 0")
        self.reward = reward
        self.gconfig = replace(gconfig, stop=(*gconfig.stop, CALL_END))
        self.tokenizer = tokenizer
        self.max_calls = max_calls
        self._toolbox = ToolBox(
            tools, seconds_per_call=seconds_per_call, max_output_characters=max_output_characters, on_crash=on_crash
        )
        self._prompts = PromptReader(tokenizer, enable_thinking=enable_thinking)
        self._pixels: PixelPrompts | None = None
        if processor is not None:
            limits = ImageLimits()
            self._pixels = PixelPrompts(
                tokenizer, processor=processor, limits=limits, enable_thinking=enable_thinking, max_pixels=max_pixels
            )
        self._observations = ObservationEncoder(
            tokenizer, enable_thinking=enable_thinking, strict_template=strict_template
        )

    async def arun_episode(self, engine: InferenceEngine, data: Mapping[str, Any]) -> Trajectory:
        """Return one trajectory of up to `max_calls` calls and an answer.

        The reward sees the original prompt and the last turn. An episode that ends because tokens or context run out
        has stop reason LENGTH. The calls, and those among them that
        failed, are recorded (`areal.utils.stats`).
        """
        columns = reward_columns(data)
        prompt_ids, images, prompt = await read_prompt(self._toolbox.introduce(data), self._prompts, self._pixels)
        builder = TrajectoryBuilder()
        builder.add_prompt(prompt_ids, images)
        observation: list[int] = []
        images = ()
        completion, completion_ids, stop_reason = "", [], StopReason.STOP
        num_calls, num_failed = 0, 0
        for turn in range(self.max_calls + 1):
            response = await self._generate(engine, builder, observation, images)
            if response is None:
                stop_reason = StopReason.LENGTH
                break
            builder.add_observation(observation, images)
            builder.add_response(response, turn=turn)
            completion_ids, stop_reason = response.output_tokens, response.stop_reason
            completion = completion_text(response, self.gconfig, self.tokenizer)
            if stop_reason is StopReason.LENGTH or turn == self.max_calls:
                break
            result = await self._toolbox.answer(completion)
            if result is None:
                break
            num_calls, num_failed = num_calls + 1, num_failed + result.failed
            observation, images = await self._observations.encode_result(result, self._pixels, completion_ids)
        value = await score(self.reward, prompt, completion, prompt_ids, completion_ids, columns)
        stats.record("num_calls", num_calls)
        stats.record("num_failed_calls", num_failed)
        return builder.build(
            reward=value,
            stop_reason=stop_reason,
            text={"prompt": prompt, "completion": decode(builder.tokens[len(prompt_ids) :], self.tokenizer)},
        )

    async def _generate(
        self,
        engine: InferenceEngine,
        builder: TrajectoryBuilder,
        observation: list[int],
        images: tuple[ImageRef, ...],
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
