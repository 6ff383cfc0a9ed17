"""The records that travel between rollout, algorithm and trainer. They hold values; they compute nothing.

One index convention everywhere: **the value belongs to the token**. `logprobs[t]` is log p(tokens[t] | tokens[:t]),
`loss_mask[t]` is 1 when tokens[t] was sampled by the policy, `versions[t]` is the policy version that sampled it.
The only shift (logits at t-1 predict token t) happens inside the training engine.

Shape letters: S sequences in a batch, T tokens of all sequences, L tokens of the longest sequence.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from areal.api.images import check_images

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance
    from torch import Tensor

    from areal.api.errors import FaultKind
    from areal.api.images import BatchImages, ImageRef

_T = TypeVar("_T", bound="DataclassInstance")

NO_VERSION = -1
"""Entry of `versions` and `turn_ids` on tokens that no policy sampled (prompt, tool output, padding)."""


class StopReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    """A stop token or stop string was produced: the answer is complete."""
    LENGTH = "length"
    """The token budget ran out: the answer is truncated."""
    ABORT = "abort"
    """Interrupted from outside: what was generated so far is returned and can be continued."""
    TOOL_CALLS = "tool_calls"
    """The model asked for a tool; the workflow continues after running it."""


@functools.cache
def _field_names(kind: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _changed_copy(record: _T, changes: dict[str, Any]) -> _T:
    """Return a dataclass anew, with other values for some fields, without running its checks again.

    A third of the time of `dataclasses.replace`, for what is done to every sample; only for fields without checks.
    """
    copy: _T = object.__new__(type(record))
    for name in _field_names(type(record)):
        object.__setattr__(copy, name, changes[name] if name in changes else getattr(record, name))
    return copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What went wrong in one attempt at one episode."""

    kind: FaultKind
    message: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a trajectory comes from: enough to find the row, the worker and the code again.

    Example: `Provenance(dataset="gsm8k", row=17, workflow="rlvr", engine="embedded", attempt=0)`.
    """

    dataset: str = ""
    row: int = -1
    """Row index in the dataset, -1 when unknown."""
    workflow: str = ""
    engine: str = ""
    attempt: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardUse:
    """How much one reward component was used; failed attempts included."""

    calls: int
    failures: int
    """Calls that gave no value."""
    seconds: float
    """Sum over the calls."""

    def __add__(self, other: RewardUse) -> RewardUse:
        """Return both together."""
        return RewardUse(
            calls=self.calls + other.calls,
            failures=self.failures + other.failures,
            seconds=self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode as the trainer sees it. All per-token lists have the length of `tokens`.

    Example, a 3-token prompt with a 2-token answer sampled at version 4:

        Trajectory(tokens=[5, 9, 2, 11, 1], loss_mask=[0, 0, 0, 1, 1], logprobs=[0, 0, 0, -0.7, -0.1],
                   versions=[-1, -1, -1, 4, 4], turn_ids=[-1, -1, -1, 0, 0], reward=1.0, stop_reason=StopReason.STOP)
    """

    tokens: list[int]
    loss_mask: list[int]
    """1 on tokens sampled by the policy, 0 on prompt, tool and observation tokens."""
    logprobs: list[float]
    """Behaviour log-probability under the *processed* sampling distribution (temperature, top-p, top-k); 0.0 where
    masked."""
    versions: list[int]
    """Policy version that sampled each token; NO_VERSION where masked."""
    turn_ids: list[int]
    """Turn that produced each token, from 0; NO_VERSION where masked."""
    reward: float
    """Of the whole sample, without what single turns earned. Trajectories of one sample (an episode that branched)
    carry it each."""
    stop_reason: StopReason
    turn_rewards: Mapping[int, float] = field(default_factory=dict)
    """Reward of single turns beside `reward`, by their number in `turn_ids`; of a turn that several trajectories of a
    sample contain, in the one where its tokens count as sampled."""
    group_id: int = -1
    """Prompt ordinal; all samples of one prompt share it. Stamped by the executor."""
    sample_index: int = 0
    """Index inside the group, from 0. Stamped by the executor."""
    source: str = ""
    """Name of the source that the prompt is from, where a run has several; "" for a single one. Stamped by the
    executor."""
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward. Those of the configured rewards are stamped by the executor."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """What was recorded while the sample was produced (`areal.utils.stats`). Stamped by the executor."""
    text: Mapping[str, str] = field(default_factory=dict)
    """Readable form for reports, e.g. {"prompt": "8*9=", "completion": "72"}; never used for training."""
    provenance: Provenance = field(default_factory=Provenance)
    images: tuple[ImageRef, ...] = ()
    """In order of their columns; never sampled, and never at the end."""
    routes: Tensor | None = field(default=None, compare=False, repr=False)
    """Experts that the routers of the model chose, uint8 or int16 [tokens it was given, M, K]
    (`areal.utils.routes`); the last token, which it was not given, has none. None unless they are recorded."""

    def __post_init__(self) -> None:
        """Reject records that would silently train on the wrong thing."""
        self._check_lengths()
        if not math.isfinite(self.reward):
            raise ValueError(f"trajectory: reward is {self.reward}, expected a finite number")
        for turn, reward in self.turn_rewards.items():
            if not math.isfinite(reward):
                raise ValueError(f"trajectory: the reward of turn {turn} is {reward}, expected a finite number")
        if self.turn_rewards:
            sampled_turns = {turn for turn, sampled in zip(self.turn_ids, self.loss_mask, strict=True) if sampled}
            if unknown := sorted(set(self.turn_rewards) - sampled_turns):
                raise ValueError(f"trajectory: turns {unknown[:8]} have a reward but no sampled token to carry it")
        for index, (sampled, logprob) in enumerate(zip(self.loss_mask, self.logprobs, strict=True)):
            if not sampled:
                continue
            # NaN is neither.
            if not -math.inf < logprob <= 1e-4:
                raise ValueError(f"trajectory: logprobs[{index}] is {logprob}, expected finite and <= 0")
            if self.versions[index] < 0:
                raise ValueError(f"trajectory: token {index} was sampled but has no policy version")
        check_images(self.images, len(self.tokens), where="trajectory")
        for ref in self.images:
            if any(self.loss_mask[ref.start : ref.end]):
                raise ValueError(f"trajectory: loss_mask is not 0 in the image of columns {ref.start} to {ref.end - 1}")

    def _check_lengths(self) -> None:
        length = len(self.tokens)
        for name in ("loss_mask", "logprobs", "versions", "turn_ids"):
            if len(values := getattr(self, name)) != length:
                raise ValueError(f"trajectory: {name} has {len(values)} entries for {length} tokens")

    @property
    def truncated(self) -> bool:
        """Whether the episode was cut by the token budget."""
        return self.stop_reason is StopReason.LENGTH

    @property
    def total_reward(self) -> float:
        """`reward` and those of all turns."""
        return self.reward + math.fsum(self.turn_rewards.values()) if self.turn_rewards else self.reward

    @property
    def head_version(self) -> int:
        """Version of the oldest sampled token (what the staleness bound is about); NO_VERSION without sampled
        tokens."""
        return min((v for v, m in zip(self.versions, self.loss_mask, strict=True) if m), default=NO_VERSION)

    @property
    def num_sampled(self) -> int:
        """Number of tokens the policy sampled."""
        return sum(self.loss_mask)

    def stamped(
        self,
        *,
        group_id: int,
        sample_index: int,
        provenance: Provenance,
        source: str = "",
        reward_components: Mapping[str, float] | None = None,
        stats: Mapping[str, float] | None = None,
    ) -> Trajectory:
        """Copy with what only the executor knows. Components that the workflow named itself stay as they are.

        Raises ValueError when a list was changed in place and has no entry for each token any more.
        """
        self._check_lengths()
        return _changed_copy(
            self,
            {
                "group_id": group_id,
                "sample_index": sample_index,
                "source": source,
                "provenance": provenance,
                "reward_components": {**(reward_components or {}), **self.reward_components},
                "stats": {**self.stats, **(stats or {})},
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """All surviving samples of one prompt, as the executor hands them to the trainer."""

    ordinal: int
    """Position of the prompt in the run's data order, from 0; equals `group_id` of its trajectories."""
    admitted_version: int
    """Policy version at which the prompt was admitted; no token of the group is older."""
    trajectories: tuple[Trajectory, ...]
    source: str = ""
    """Name of the source that the prompt is from; "" where a run has a single one."""
    faults: tuple[Fault, ...] = ()
    """Faults of samples that were retried or lost."""
    reward_uses: Mapping[str, RewardUse] = field(default_factory=dict)
    """By reward component: its calls for all samples of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Sequences padded on the right to a common length; what `areal.algorithm` works on.

    float tensors are float32, id tensors int64 unless said otherwise; padding has loss_mask 0.
    """

    rows_per_unit: ClassVar[int] = 1
    """This many consecutive rows belong together: whatever divides a batch keeps them in one part, in their order."""

    tokens: Tensor
    """int64 [S, L]."""
    lengths: Tensor
    """int64 [S], true length of each sequence."""
    loss_mask: Tensor
    """float32 [S, L], 1.0 on sampled tokens."""
    logp_behave: Tensor
    """float32 [S, L], log-probabilities at sampling time."""
    versions: Tensor
    """int64 [S, L], NO_VERSION off the mask."""
    turn_ids: Tensor
    """int64 [S, L], NO_VERSION off the mask."""
    rewards: Tensor
    """float32 [S]."""
    groups: Tensor
    """int64 [S], equal for samples of one prompt; any integers, not necessarily dense."""
    truncated: Tensor
    """bool [S], True when the episode was cut by its token budget."""
    turn_rewards: Tensor | None = None
    """float32 [S, L], reward of a turn on its last sampled token, 0 elsewhere; None where no turn has one."""
    samples: Tensor | None = None
    """int64 [S], equal for the trajectories of one sample, different between samples; None where every row is a
    sample."""
    logp_prox: Tensor | None = None
    """float32 [S, L], recomputed by the trainer before the first minibatch."""
    logp_ref: Tensor | None = None
    """float32 [S, L], under the reference model."""
    values: Tensor | None = None
    """float32 [S, L], critic values before the update."""
    advantages: Tensor | None = None
    """float32 [S, L]."""
    returns: Tensor | None = None
    """float32 [S, L], regression targets of the critic."""
    images: BatchImages | None = None
    """None where no row has one."""
    routes: Tensor | None = None
    """uint8 or int16 [S, L, M, K], experts that routers chose while the tokens were sampled; None where no row has
    any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedBatch(PaddedBatch):
    """Preference pairs: row 2k is the preferred answer of pair k, row 2k + 1 the other one, and nothing else exists.

    A part of a batch is a batch of the same type, so that a pair which was split or turned round is an error where it
    happened instead of a loss over strangers. `groups` is the number of the pair, `rewards` is 1 on the preferred
    answer and 0 on the other.
    """

    rows_per_unit: ClassVar[int] = 2

    reference: Tensor | None = None
    """float64 [S], log-probability of the whole answer under the reference model; None for losses without one."""
    margins: Tensor | None = None
    """float32 [S], by how much the first answer is better, the same on both rows; None when nobody said."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the rows are pairs."""
        number = self.groups.shape[0]
        wanted = [1.0, 0.0] * (number // 2)
        if number % 2 or self.rewards.tolist() != wanted or not bool((self.groups[::2] == self.groups[1::2]).all()):
            raise ValueError(
                f"pairs were split or reordered: rows have pairs {self.groups.tolist()[:8]} and preferences "
                f"{self.rewards.tolist()[:8]}, expected each pair twice in a row, first 1, then 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherScores:
    """What a teacher says about the sampled tokens of a batch, in float32, or in float64 if that is its own; 0 where
    loss_mask is 0."""

    logp: Tensor
    """[S, L], of each token."""
    candidates: Tensor | None = None
    """int64 [S, L, K], the likeliest tokens in its place, likeliest first; None when not asked for."""
    candidate_logp: Tensor | None = None
    """[S, L, K], of those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilledBatch(PaddedBatch):
    """Sequences that teachers have scored. A training engine that is given one also computes `candidate_logp`."""

    teachers: Tensor
    """int64 [S], number of each row's teacher, in the order of the configuration."""
    teacher_logp: Tensor
    """[S, L], of each sampled token under the teacher of its row."""
    candidates: Tensor | None = None
    """int64 [S, L, K], tokens that the teacher lists in place of each sampled one; None when it lists none."""
    candidate_teacher_logp: Tensor | None = None
    """[S, L, K], of those under the teacher."""
    candidate_logp: Tensor | None = None
    """float32 [S, L, K], of those under the trained model, with gradient; the engine sets it in the micro-batch that
    its loss function gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedTokens:
    """Model input without padding: sequences laid end to end.

    Example, sequences of 3 and 2 tokens: tokens [5, 9, 2, 7, 1], positions [0, 1, 2, 0, 1], cu_seqlens [0, 3, 5],
    max_seqlen 3.
    """

    tokens: Tensor
    """int64 [T]."""
    positions: Tensor
    """int64 [T], restarting at 0 in each sequence."""
    cu_seqlens: Tensor
    """int32 [S + 1], start offset of each sequence, then T."""
    max_seqlen: int
