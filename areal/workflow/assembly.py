"""Build the workflow a configuration names, and the steps that workflows share: prompt to ids, tokens to trajectory,
completion to text and score.

create_workflow("multi_turn", reward=reward, gconfig=gconfig, tokenizer=tokenizer, options={"max_turns": 3})

Token-in, token-out: an episode is a growing list of token ids. Nothing the model sampled is ever decoded and encoded
again, so the trainer sees exactly the tokens that were sampled, with their log-probabilities and versions.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from areal.api import (
    NO_VERSION,
    ArealError,
    ConfigError,
    DataError,
    FaultError,
    FaultKind,
    RegistryError,
    RolloutWorkflow,
    StopReason,
    Trajectory,
    load,
)
from areal.dataset.encoding import encode_prompt
from areal.dataset.loading import check_options
from areal.dataset.schema import RESERVED_COLUMNS
from areal.utils.routes import join_routes
from areal.workflow.registry import WORKFLOWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from areal.api import GenerationConfig, ImageRef, ModelResponse


_PROMPTS_KEPT = 1024

LOGPROB_SLACK = 1e-4
"""Rounding may lift a log-probability this far above 0."""


class AwaitableReward(Protocol):
    """A reward that is awaited, such as `areal.reward.AsyncRewardWrapper`."""

    async def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], /, **data: Any
    ) -> float:
        """Score one completion; raises FaultError when it cannot be scored."""
        ...


class TrajectoryBuilder:
    """Collects the tokens of one episode in order.

    Example: `builder.add_prompt([5, 9]); builder.add_response(response, turn=0); builder.build(reward=1.0, ...)`.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._loss_mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._turn_ids: list[int] = []
        self._routes: list[Tensor | None] = []
        self.images: list[ImageRef] = []

    @property
    def num_sampled(self) -> int:
        """Tokens that the policy sampled so far, in all turns."""
        return sum(self._loss_mask)

    def add_prompt(self, token_ids: Sequence[int], images: Sequence[ImageRef] = ()) -> None:
        """Append tokens that the policy did not sample. images: of these tokens, with columns counted in them."""
        first = len(self.tokens)
        self.images.extend(replace(ref, start=first + ref.start) for ref in images)
        self.tokens.extend(token_ids)
        self._loss_mask.extend([0] * len(token_ids))
        self._logprobs.extend([0.0] * len(token_ids))
        self._versions.extend([NO_VERSION] * len(token_ids))
        self._turn_ids.extend([NO_VERSION] * len(token_ids))

    def add_observation(self, token_ids: Sequence[int], images: Sequence[ImageRef] = ()) -> None:
        """Append what the environment answered (feedback, tool output): seen by the policy, never learned."""
        self.add_prompt(token_ids, images)

    def add_response(self, response: ModelResponse, *, turn: int) -> None:
        """Append what the policy sampled in answer to exactly the tokens collected so far.

        Raises FaultError(GENERATION_FAILED) when the response cannot be trained on: other input tokens, no output, an
        aborted request, log-probabilities that are not finite or above 0, or tokens without a version.
        """
        problem = self._problem(response)
        if problem:
            raise FaultError(FaultKind.GENERATION_FAILED, f"response of turn {turn}: {problem}")
        self.tokens.extend(response.output_tokens)
        self._loss_mask.extend([1] * len(response.output_tokens))
        self._logprobs.extend(response.output_logprobs)
        self._versions.extend(response.output_versions)
        self._turn_ids.extend([turn] * len(response.output_tokens))
        self._routes.append(response.routes)

    def build(
        self,
        *,
        reward: float,
        stop_reason: StopReason,
        text: Mapping[str, str],
        reward_components: Mapping[str, float] | None = None,
    ) -> Trajectory:
        """Return the finished record."""
        return Trajectory(
            tokens=list(self.tokens),
            loss_mask=list(self._loss_mask),
            logprobs=list(self._logprobs),
            versions=list(self._versions),
            turn_ids=list(self._turn_ids),
            reward=reward,
            stop_reason=stop_reason,
            reward_components=dict(reward_components or {}),
            text=dict(text),
            images=tuple(self.images),
            routes=join_routes(self._routes),
        )

    def _problem(self, response: ModelResponse) -> str:
        if response.stop_reason is StopReason.ABORT:
            return "the request was aborted and not continued"
        if not response.output_tokens:
            return "the engine returned no tokens"
        if list(response.input_tokens) != self.tokens:
            sent, answered = len(self.tokens), len(response.input_tokens)
            return f"the engine answered another prompt: {answered} input tokens, {sent} were sent"
        for index, logprob in enumerate(response.output_logprobs):
            if logprob is None or not math.isfinite(logprob) or logprob > LOGPROB_SLACK:
                return f"log-probability {index} is {logprob}, expected finite and <= 0"
        for index, version in enumerate(response.output_versions):
            if version is None or version < 0:
                return f"version of token {index} is {version}, expected >= 0"
        return ""


class PromptReader:
    """Token ids and text of prompts. The samples of a group share their prompt, so recent ones are kept: rendering and
    encoding it once per sample would cost more than everything else a workflow does.
    """

    def __init__(self, tokenizer: Any, *, enable_thinking: bool) -> None:
        self._tokenizer = tokenizer
        self._enable_thinking = enable_thinking
        self._recent: OrderedDict[str, tuple[tuple[int, ...], str]] = OrderedDict()

    def read(self, data: Mapping[str, Any]) -> tuple[list[int], str]:
        """Token ids and text of the row's `messages`. Raises FaultError(DATA_INVALID) when it has no usable prompt."""
        if "messages" not in data:
            found = ", ".join(sorted(data))
            raise FaultError(FaultKind.DATA_INVALID, f"the row has no column 'messages'; found {found}")
        messages = data["messages"]
        # The type is part of the key: a string prompt may well look like a rendered chat.
        key = f"{type(messages).__name__}:{messages!r}"
        if key not in self._recent:
            try:
                encoded = encode_prompt(messages, self._tokenizer, enable_thinking=self._enable_thinking)
            except DataError as error:
                raise FaultError(FaultKind.DATA_INVALID, str(error)) from error
            if not encoded:
                raise FaultError(FaultKind.DATA_INVALID, "the prompt has no tokens")
            self._recent[key] = tuple(encoded), decode(encoded, self._tokenizer)
            if len(self._recent) > _PROMPTS_KEPT:
                self._recent.popitem(last=False)
        ids, text = self._recent[key]
        return list(ids), text


def reward_columns(data: Mapping[str, Any], *, with_images: bool = False) -> dict[str, Any]:
    """Return the columns that go to the reward: all but `messages` and, unless it asks for them, `images`, which every
    sample of a prompt would send once more. Raises FaultError(DATA_INVALID) for a reserved name.
    """
    clash = sorted(RESERVED_COLUMNS & set(data))
    if clash:
        raise FaultError(
            FaultKind.DATA_INVALID, f"columns {', '.join(clash)} are parameters of every reward; rename them"
        )
    left_out = {"messages"} if with_images else {"messages", "images"}
    return {name: value for name, value in data.items() if name not in left_out}


def decode(token_ids: Sequence[int], tokenizer: Any) -> str:
    """Text of tokens, special tokens included: a padding token inside a number must not vanish before the reward sees
    it.
    """
    text: str = tokenizer.decode(list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def completion_text(response: ModelResponse, gconfig: GenerationConfig, tokenizer: Any) -> str:
    """Text of a response without the stop token that ended it; stop *strings* stay, they are part of the answer."""
    ids = response.output_tokens
    ended = (
        ids and response.stop_reason is StopReason.STOP and ids[-1] in {tokenizer.eos_token_id, *gconfig.stop_token_ids}
    )
    return decode(ids[:-1] if ended else ids, tokenizer)


async def score(
    reward: AwaitableReward,
    prompt: str,
    completion: str,
    prompt_ids: Sequence[int],
    completion_ids: Sequence[int],
    columns: Mapping[str, Any],
) -> float:
    """Await the reward; raises FaultError(REWARD_INVALID) for anything but a finite number."""
    value = await reward(prompt, completion, list(prompt_ids), list(completion_ids), **columns)
    if not isinstance(value, (bool, int, float)) or not math.isfinite(value):
        raise FaultError(FaultKind.REWARD_INVALID, f"the reward returned {value!r:.80}, expected a finite number")
    return float(value)


_FRAMEWORK_PARAMETERS: Final = ("gconfig", "reward", "tokenizer")


def find_workflow(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what builds the workflow `name` (registry name or importable path) with the options of the configuration.

    Raises RegistryError for an unknown name and a module that cannot be imported, ConfigError for an option it does not
    take (with the nearest one).
    """
    try:
        factory = load("workflow", name, WORKFLOWS)
    except ArealError:
        raise
    except (Exception, SystemExit) as error:
        from areal.utils.user_code import blame

        if (found := blame(error)) is None:
            raise
        raise RegistryError(
            f"workflow {name!r} cannot be loaded: {found.text}", where=found.place, fix=found.fix_of_import
        ) from error
    if not callable(factory):
        raise ConfigError(
            f"workflow {name!r} is {type(factory).__name__}, expected a class or function that builds a workflow"
        )
    check_options(f"workflow {name!r}", factory, options, _FRAMEWORK_PARAMETERS)
    return factory


def create_workflow(
    name: str, *, reward: AwaitableReward, gconfig: GenerationConfig, tokenizer: Any, options: Mapping[str, Any]
) -> RolloutWorkflow:
    """Build the workflow that `find_workflow` finds.

    Raises what that does, and ConfigError when the target raises, and when it does not build a RolloutWorkflow.
    """
    factory = find_workflow(name, options)
    try:
        workflow = factory(reward=reward, gconfig=gconfig, tokenizer=tokenizer, **options)
    except ArealError:
        raise
    except (Exception, SystemExit) as error:
        from areal.utils.user_code import blame

        if (found := blame(error, factory)) is None:
            raise
        raise ConfigError(
            f"workflow {name!r} cannot be built: {found.text}",
            where=found.place,
            fix="mend its constructor, or the options it is given (workflow_options)",
        ) from error
    if not isinstance(workflow, RolloutWorkflow):
        raise ConfigError(f"workflow {name!r} built {type(workflow).__name__}, expected a RolloutWorkflow")
    return workflow
