"""Hold the sampled answers of an evaluation, and compute the scores of a set of rows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from areal.infra.metrics import names
from areal.infra.metrics.samples import component_metrics, stats_metrics, use_metrics
from areal.infra.rollout.episode import derive_seed
from areal.trainer.evaluation_config import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.api import Fault, RewardUse, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSample:
    """One answer to one row. Its fields are the columns of samples.jsonl."""

    row: int
    """Index into the rows of the set."""
    sample: int
    """Index among the samples of the row."""
    seed: int
    """Of the first request of the episode: a function of the run's seed, the set, row, sample and attempt."""
    reward: float | None
    """None when the sample was lost: a failure is never a score."""
    answer: str | None = None
    """What it votes for; None abstains."""
    length: int = 0
    """Sampled tokens."""
    truncated: bool = False
    """Whether it ran into the token budget."""
    prompt: str = ""
    completion: str = ""
    components: Mapping[str, float] | None = None
    """Value of each reward component."""
    stats: Mapping[str, float] | None = None
    """What was recorded while it was produced (`areal.utils.stats`)."""
    fault: str | None = None
    """Why it was lost: kind of the fault and message, or "rejected" by the workflow."""
    uses: Mapping[str, Mapping[str, float]] | None = None
    """Fields of `areal.api.RewardUse` of each reward component, all attempts at the sample together."""

    @staticmethod
    def scored(
        trajectory: Trajectory, *, stream: str, seed: int, answer: Callable[[str], str | None] | None
    ) -> EvalSample:
        """Describe what an episode returned. stream and seed: as in `EpisodeRunner`. answer: finds what it votes with;
        None where nobody votes.
        """
        completion = str(trajectory.text.get("completion", ""))
        row, sample, attempt = trajectory.group_id, trajectory.sample_index, trajectory.provenance.attempt
        return EvalSample(
            row=row,
            sample=sample,
            seed=derive_seed(stream, seed, row, sample, attempt, 0),
            reward=float(trajectory.total_reward),
            answer=None if answer is None else answer(completion),
            length=trajectory.num_sampled,
            truncated=trajectory.truncated,
            prompt=str(trajectory.text.get("prompt", "")),
            completion=completion,
            components=dict(trajectory.reward_components) or None,
            stats=dict(trajectory.stats) or None,
        )

    @staticmethod
    def lost(row: int, sample: int, faults: Sequence[Fault], *, stream: str, seed: int) -> EvalSample:
        """Describe a sample that failed. faults: of its attempts; none when the workflow rejected it."""
        reason = f"{faults[-1].kind.value}: {faults[-1].message}" if faults else "rejected"
        first = derive_seed(stream, seed, row, sample, 0, 0)
        return EvalSample(row=row, sample=sample, seed=first, reward=None, fault=reason)

    def with_uses(self, uses: Mapping[str, RewardUse]) -> EvalSample:
        """Return it with the calls of each reward component."""
        return replace(self, uses={name: asdict(use) for name, use in uses.items()} or None)

    def to_mapping(self, name: str) -> dict[str, Any]:
        """Return one line of samples.jsonl. name: of the set."""
        fields = {field: getattr(self, field) for field in self.__dataclass_fields__}
        return {"set": name, **{field: value for field, value in fields.items() if value is not None}}


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """Results of one set."""

    name: str
    k: int
    """Samples per row that were asked for."""
    pass_reward: float
    """A sample passes with at least this reward."""
    rows: tuple[tuple[EvalSample, ...], ...]
    """Samples of each row, in order, lost ones included."""
    reward_uses: Mapping[str, RewardUse] = field(default_factory=dict)
    """Calls of each reward component, where they were counted."""

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Metric to its value in every row, NaN where the row has too few scored samples for it.

        avg@k is the mean reward; for the others see `pass_at_k` and `areal.trainer.evaluation.answers.majority_at_k`.
        """
        scored = [[item for item in row if item.reward is not None] for row in self.rows]
        found = {f"avg@{self.k}": [_mean([item.reward or 0.0 for item in row]) for row in scored]}
        for k in sizes(self.k):
            found[f"pass@{k}"] = [self._passes(row, k) for row in scored]
        for k in sizes(self.k):
            if k > 2:
                found[f"maj@{k}"] = [_votes(row, k) for row in scored]
        return found

    @property
    def lost(self) -> int:
        """Samples without a score."""
        return sum(item.reward is None for row in self.rows for item in row)

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Mean reward of each row; None where nothing could be scored."""
        means = self.values[f"avg@{self.k}"]
        return tuple(None if math.isnan(value) else value for value in means)

    @property
    def first_fault(self) -> str | None:
        """Return the first reason for a lost sample."""
        return next((item.fault for row in self.rows for item in row if item.fault is not None), None)

    def metrics(self) -> dict[str, float]:
        """Return means over rows, by the names that they have in metrics.jsonl.

        Nothing scored is not a score of 0: then only the counts are there.
        """
        scored = [item for row in self.rows for item in row if item.reward is not None]
        found = {"rows": float(sum(value is not None for value in self.rewards)), "faults": float(self.lost)}
        if scored:
            found |= {"length": _mean([item.length for item in scored])}
            found |= {"truncated_fraction": _mean([float(item.truncated) for item in scored])}
        means = {name: _mean([value for value in row if not math.isnan(value)]) for name, row in self.values.items()}
        found |= {name: value for name, value in means.items() if not math.isnan(value)}
        found |= component_metrics([item.components or {} for item in scored])
        found |= stats_metrics([item.stats or {} for item in scored])
        found |= use_metrics(self.reward_uses)
        return {f"{names.EVAL_PREFIX}{self.name}/{name}": value for name, value in found.items()}

    def _passes(self, row: Sequence[EvalSample], k: int) -> float:
        passed = sum((item.reward or 0.0) >= self.pass_reward for item in row if item.reward is not None)
        return pass_at_k(len(row), passed, k) if len(row) >= k else math.nan


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the chance that one of `k` samples passes: 1 - C(n - c, k) / C(n, k), without bias (Chen et al. 2021,
    arXiv 2107.03374, equation 1).

    Raises ValueError unless 1 <= k <= num_samples and 0 <= num_passed <= num_samples.
    """
    if not (1 <= k <= num_samples and 0 <= num_passed <= num_samples):
        raise ValueError(
            f"pass@{k} of {num_passed} passed in {num_samples} samples: expected 1 <= k <= samples and 0 <= passed "
            f"<= samples"
        )
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def _votes(row: Sequence[EvalSample], k: int) -> float:
    if len(row) < k:
        return math.nan
    from areal.trainer.evaluation.answers import majority_at_k

    return majority_at_k([item.answer for item in row], [item.reward or 0.0 for item in row], k)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
