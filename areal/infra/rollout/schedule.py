"""Decide which row of which source each prompt of a run is. A pure function of seed and ledger: no clocks, no threads.

Sources take turns by weight (`interleaving`); a source's rows come in passes, or by difficulty (`pools`). A prompt
keeps its row for good: what was in flight when a run was killed is drawn again as it was.

What happened to a prompt counts from the end of the step in which it ended (`advance`), never earlier. So a synchronous
run draws the same rows in every play, although prompts are dropped and replaced while others are in flight; and an
asynchronous one goes on from its saved state as it would have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from areal.api import RolloutError, UsageError
from areal.infra.metrics import names
from areal.infra.rollout.pools import DifficultyPools

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from areal.api import PromptGroup, RolloutWorkflow
    from areal.infra.rollout.config import CurriculumConfig


class PromptSource(Protocol):
    """Rows of a run in training order. `row` must be pure: a resumed run asks for the same ordinals again."""

    def __len__(self) -> int:
        """Rows per epoch."""
        ...

    def row(self, ordinal: int, /) -> Mapping[str, Any]:
        """Row number `ordinal` of the source, from 0 without end: epochs follow each other. DataError for a bad row."""
        ...


@runtime_checkable
class IndexedPromptSource(PromptSource, Protocol):
    """A source that also knows where in the dataset a prompt came from; recorded in each trajectory's provenance."""

    def row_index(self, ordinal: int, /) -> int:
        """Index into the dataset."""
        ...


@runtime_checkable
class PlacedPromptSource(PromptSource, Protocol):
    """A source that can say where a prompt stands, for messages about it."""

    def place(self, ordinal: int, /) -> str:
        """Return e.g. "row 6 (data/train.jsonl, line 7)"."""
        ...


class SourceExhaustedError(RolloutError):
    """A source has no row left that may be visited again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSource:
    """One of the sources of a run."""

    rows: PromptSource
    name: str = ""
    """ "" only for a single one."""
    weight: float = 1.0
    workflow: RolloutWorkflow | None = None
    """None takes that of the executor."""
    pass_reward: float = 1.0
    """A sample passes when its reward is at least this."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A row of a source: `rows.row(number)`."""

    source: int
    number: int


@dataclass(slots=True)
class _Progress:
    """Where one source stands; `pools` when its rows are ordered by difficulty."""

    source: RolloutSource
    pools: DifficultyPools | None
    has_index: bool = field(init=False)
    has_place: bool = field(init=False)

    def __post_init__(self) -> None:
        # Asked once: testing an object against a protocol is slow.
        self.has_index = isinstance(self.source.rows, IndexedPromptSource)
        self.has_place = isinstance(self.source.rows, PlacedPromptSource)


class PromptSchedule:
    """Rows of a run by ordinal, drawn in ascending order."""

    def __init__(
        self, sources: Sequence[RolloutSource], *, seed: int = 0, curriculum: CurriculumConfig | None = None
    ) -> None:
        """Refuse sources without names, with equal names, or with a weight that is not above 0: UsageError."""
        _check(sources)
        by_difficulty = curriculum if curriculum is not None and curriculum.orders_rows else None
        self._max_reuse = 0 if curriculum is None else curriculum.max_reuse
        self._weights: tuple[int, ...] = (1,)
        if len(sources) > 1:
            from areal.infra.rollout.interleaving import whole_weights

            self._weights = whole_weights([source.weight for source in sources])
        self._sources = [_Progress(source, _pools(source, seed, by_difficulty)) for source in sources]
        self._taken = [0] * len(sources)
        self._open: dict[int, Visit] = {}
        """Prompts that have not ended, or ended in this step."""
        self._ended: dict[int, tuple[int, int] | None] = {}
        """Prompts that ended in this step: (samples that passed, samples), None when they say nothing about the row."""

    def __len__(self) -> int:
        """Rows of all sources."""
        return sum(len(each.source.rows) for each in self._sources)

    @property
    def has_workflows(self) -> bool:
        """Whether every source has a workflow of its own."""
        return all(each.source.workflow is not None for each in self._sources)

    # -- the order ---------------------------------------------------------------------------------------------------

    def draw(self, ordinal: int) -> Visit:
        """Return the row of a prompt: a new one, or the same as ever where it was drawn before and has not ended.

        Raises SourceExhaustedError when the source whose turn it is has no row left; nothing is drawn then.
        """
        if ordinal in self._open:
            return self._open[ordinal]
        assert ordinal == sum(self._taken), f"prompt {ordinal} is drawn after {sum(self._taken)} others"
        index = 0
        if len(self._sources) > 1:
            from areal.infra.rollout.interleaving import next_turn

            index = next_turn(self._weights, self._taken)
        each = self._sources[index]
        number: int | None = self._taken[index]
        if each.pools is not None:
            number = each.pools.draw()
        elif self._max_reuse and self._taken[index] >= self._max_reuse * len(each.source.rows):
            number = None
        if number is None:
            raise self._exhausted(each, self._taken[index])
        self._taken[index] += 1
        self._open[ordinal] = Visit(index, number)
        return self._open[ordinal]

    def end(self, ordinal: int, group: PromptGroup | None) -> None:
        """Note that a prompt has been trained or dropped. group: what it says about its row; None when that is nothing,
        since samples were lost or it became too old. Counts from the next `advance`.
        """
        outcome = None
        if group is not None:
            best: dict[int, float] = {}
            for item in group.trajectories:
                total = item.total_reward
                best[item.sample_index] = max(total, best.get(item.sample_index, total))
            needed = self._sources[self._open[ordinal].source].source.pass_reward
            outcome = (sum(reward >= needed for reward in best.values()), len(best))
        self._ended[ordinal] = outcome

    def advance(self) -> None:
        """End a step: what ended in it counts from now on."""
        for ordinal, outcome in sorted(self._ended.items()):
            visit = self._open.pop(ordinal)
            if (pools := self._sources[visit.source].pools) is not None:
                pools.rest(visit.number, outcome)
        self._ended.clear()

    # -- what a visit stands for -------------------------------------------------------------------------------------

    def row(self, visit: Visit) -> Mapping[str, Any]:
        """Return the row. Raises DataError for a bad one."""
        return self._sources[visit.source].source.rows.row(visit.number)

    def row_index(self, visit: Visit) -> int:
        """Return the index of the row in its dataset; -1 when unknown."""
        each = self._sources[visit.source]
        rows: Any = each.source.rows
        return int(rows.row_index(visit.number)) if each.has_index else -1

    def place(self, visit: Visit) -> str:
        """Return where the row stands, in words; "" when unknown."""
        each = self._sources[visit.source]
        rows: Any = each.source.rows
        return str(rows.place(visit.number)) if each.has_place else ""

    def name(self, visit: Visit) -> str:
        """Return the name of the source; "" for a single one."""
        return self._sources[visit.source].source.name

    def workflow(self, visit: Visit) -> RolloutWorkflow | None:
        """Return the workflow of the source; None when it is that of the run."""
        return self._sources[visit.source].source.workflow

    # -- state and metrics -------------------------------------------------------------------------------------------

    def metrics(self, groups: Iterable[PromptGroup]) -> dict[str, float]:
        """Return numbers by source: of the groups of a step, and of all draws so far.

        "source/<name>/..." with share, reward_mean and pass_rate of the step, rows (distinct ones visited), epochs and,
        under a curriculum, pool/<pool> (rows at rest); "curriculum/..." for a single source that has one.
        """
        chosen = list(groups)
        found: dict[str, float] = {}
        for each, taken in zip(self._sources, self._taken, strict=True):
            source = each.source
            if not source.name and each.pools is None:
                continue
            prefix = f"{names.SOURCE_PREFIX}{source.name}/" if source.name else names.CURRICULUM_PREFIX
            own = [group for group in chosen if group.source == source.name]
            rewards = [item.total_reward for group in own for item in group.trajectories]
            found[f"{prefix}share"] = len(own) / len(chosen) if chosen else 0.0
            if rewards:
                found[f"{prefix}reward_mean"] = sum(rewards) / len(rewards)
                found[f"{prefix}pass_rate"] = sum(reward >= source.pass_reward for reward in rewards) / len(rewards)
            seen = min(taken, len(source.rows)) if each.pools is None else each.pools.num_seen
            found[f"{prefix}rows"] = float(seen)
            found[f"{prefix}epochs"] = taken / len(source.rows)
            for pool, size in ({} if each.pools is None else each.pools.sizes()).items():
                found[f"{prefix}pool/{pool}"] = float(size)
        return found

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "identity": self._identity(),
            "taken": list(self._taken),
            "open": [[ordinal, visit.source, visit.number] for ordinal, visit in sorted(self._open.items())],
            "ended": [[ordinal, outcome] for ordinal, outcome in sorted(self._ended.items())],
            "pools": [None if each.pools is None else each.pools.state_dict() for each in self._sources],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned. Raises UsageError when it is that of other sources."""
        if state["identity"] != self._identity():
            raise UsageError(
                f"the saved order is that of sources {state['identity']}, this run has {self._identity()} (name, rows, "
                f"share of the turns)",
                fix="resume with the sources of the saved run, or start a new one",
            )
        self._taken = list(state["taken"])
        self._open = {ordinal: Visit(source, number) for ordinal, source, number in state["open"]}
        self._ended = {ordinal: None if outcome is None else tuple(outcome) for ordinal, outcome in state["ended"]}
        for index, (each, saved) in enumerate(zip(self._sources, state["pools"], strict=True)):
            if each.pools is not None and saved is not None:
                in_flight = [visit.number for visit in self._open.values() if visit.source == index]
                each.pools.load_state_dict(saved, in_flight)

    def _identity(self) -> list[list[Any]]:
        return [
            [each.source.name, len(each.source.rows), weight]
            for each, weight in zip(self._sources, self._weights, strict=True)
        ]

    def _exhausted(self, each: _Progress, taken: int) -> SourceExhaustedError:
        name, rows = each.source.name, len(each.source.rows)
        what = f"source {name!r}" if name else "the dataset"
        return SourceExhaustedError(
            f"{what} is used up: {taken} prompts were drawn from its {rows} rows, each at most {self._max_reuse} times "
            f"(curriculum.max_reuse)",
            where=f"sources.{name}" if name else "curriculum.max_reuse",
            fix="train fewer steps (total_train_steps), raise curriculum.max_reuse (0 sets no limit), add rows"
            + (f", or lower the weight of {name!r}" if name else ""),
        )


def source_shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the share of the prompts that each source has, in the long run."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _pools(source: RolloutSource, seed: int, curriculum: CurriculumConfig | None) -> DifficultyPools | None:
    if curriculum is None:
        return None
    digest = blake2b(repr(("pools", seed, source.name)).encode(), digest_size=8).digest()
    return DifficultyPools(len(source.rows), curriculum, offset=int.from_bytes(digest, "little"))


def _check(sources: Sequence[RolloutSource]) -> None:
    if not sources:
        raise UsageError("there are no sources; give at least one")
    called = [source.name for source in sources]
    if len(called) > 1 and not all(called):
        raise UsageError("every one of several sources needs a name")
    if repeated := [name for name, count in Counter(called).items() if count > 1]:
        raise UsageError(f"two sources have the name {repeated[0]!r}; rename one")
    for source in sources:
        if not source.weight > 0:
            raise UsageError(f"source {source.name!r} has weight {source.weight}, expected above 0; remove the source")
