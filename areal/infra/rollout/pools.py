"""Order the rows of one source by difficulty: pools by running pass rate, replay of hard rows, most visits of a row.

A row is named by its position in the source's first pass. It is at rest or in flight; what happened to it counts when
it comes to rest, with a pass rate over its samples that forgets older ones:

    passes <- memory * passes + new passes,   samples <- memory * samples + new samples,   rate = passes / samples

The next row is a pure function of the source's seed and of what has come to rest: pools take turns by weight, and
within a pool the row comes that has waited longest. Rows never visited come in the source's own order.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from areal.infra.rollout.interleaving import falls_on, spread_choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from areal.infra.rollout.config import CurriculumConfig

UNSEEN: Final = "unseen"
"""Pool of the rows of which no outcome is known."""
SEEN: Final = "seen"
"""Pool of all others, where the configuration names none."""
_ROUNDING: Final = 1e-9


@dataclass(slots=True, kw_only=True)
class RowRecord:
    """What is known about a row that was visited."""

    visits: int = 0
    last: int = -1
    """Number of the draw that visited it last."""
    passes: float = 0.0
    samples: float = 0.0
    in_flight: int = 0
    pool: int = 0
    """Where it rests, or rested before its visit."""


class DifficultyPools:
    """Rows of one source under a curriculum."""

    def __init__(self, num_rows: int, config: CurriculumConfig, *, offset: int) -> None:
        """offset: where the turns of the pools begin, from the seed."""
        self._num_rows, self._config, self._offset = num_rows, config, offset
        pools = sorted(config.pools.items(), key=lambda item: item[1].up_to)
        self.names = (UNSEEN, *([name for name, _ in pools] or [SEEN]))
        self._tops = [pool.up_to for _, pool in pools] or [1.0]
        self._weights = [config.unseen, *([pool.weight for _, pool in pools] or [1.0])]
        self._passes_first = not pools
        self.draws = 0
        self._turns = 0
        """Draws that were not replays: the turns that pools take."""
        self._next_unseen = 0
        self._records: dict[int, RowRecord] = {}
        self._start_over()

    @property
    def num_seen(self) -> int:
        """Rows visited so far."""
        return self._next_unseen

    def sizes(self) -> dict[str, int]:
        """Return the rows at rest by pool."""
        return dict(zip(self.names, map(self._size, range(len(self.names))), strict=True))

    def draw(self) -> int | None:
        """Visit a row and return its position; None when every row has had its most visits."""
        position = self._pop(self._hard) if falls_on(self._config.replay, self.draws) else None
        if position is None:
            position = self._by_turn()
        if position is None:
            return None
        record = self._records.setdefault(position, RowRecord())
        if not record.in_flight and record.visits:
            self._sizes[record.pool] -= 1
        record.visits, record.last, record.in_flight = record.visits + 1, self.draws, record.in_flight + 1
        self.draws += 1
        return position

    def rest(self, position: int, outcome: tuple[int, int] | None) -> None:
        """End a visit. outcome: samples that passed, and all; None when nothing was learnt about the row."""
        record = self._records[position]
        if outcome is not None:
            memory = self._config.memory
            record.passes = memory * record.passes + outcome[0]
            record.samples = memory * record.samples + outcome[1]
        record.in_flight -= 1
        if not record.in_flight:
            self._lay(position, record)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able."""
        rows = [[p, r.visits, r.last, r.passes, r.samples, r.pool] for p, r in sorted(self._records.items())]
        return {"draws": self.draws, "turns": self._turns, "next_unseen": self._next_unseen, "rows": rows}

    def load_state_dict(self, state: Mapping[str, Any], in_flight: Iterable[int]) -> None:
        """Inverse of `state_dict`. in_flight: rows that are, one for each visit."""
        self.draws, self._turns, self._next_unseen = state["draws"], state["turns"], state["next_unseen"]
        self._records = {
            position: RowRecord(visits=visits, last=last, passes=passes, samples=samples, pool=pool)
            for position, visits, last, passes, samples, pool in state["rows"]
        }
        for position in in_flight:
            self._records[position].in_flight += 1
        self._start_over()
        for position, record in self._records.items():
            if not record.in_flight:
                self._lay(position, record)

    def _start_over(self) -> None:
        # An entry holds while its row rests and was not visited since: others are passed over when they come up.
        self._heaps: list[list[tuple[int, int]]] = [[] for _ in self.names]
        self._hard: list[tuple[int, int]] = []
        self._sizes = [0] * len(self.names)

    def _size(self, pool: int) -> int:
        return self._sizes[pool] + (0 if pool else self._num_rows - self._next_unseen)

    def _lay(self, position: int, record: RowRecord) -> None:
        """Put a row at rest into its pool, unless it had its most visits."""
        rate = None if not record.samples else record.passes / record.samples
        if rate is not None:
            record.pool = 1 + next(i for i, top in enumerate(self._tops) if rate <= top + _ROUNDING)
        most = self._config.max_reuse
        if most and record.visits >= most:
            return
        self._sizes[record.pool] += 1
        heappush(self._heaps[record.pool], (record.last, position))
        if self._config.replay and rate is not None and rate <= self._config.replay_up_to + _ROUNDING:
            heappush(self._hard, (record.last, position))

    def _by_turn(self) -> int | None:
        number, self._turns = self._turns, self._turns + 1
        filled = [pool for pool in range(len(self.names)) if self._size(pool)]
        if not filled:
            return self._busy()
        weights: Sequence[float] = [self._weights[pool] for pool in filled]
        if self._passes_first or not any(weights):
            pool = filled[0]
        else:
            pool = filled[spread_choice(weights, number, offset=self._offset)]
        if pool == 0 and self._next_unseen < self._num_rows:
            self._next_unseen += 1
            return self._next_unseen - 1
        return self._pop(self._heaps[pool])

    def _busy(self) -> int | None:
        """Return the row in flight that was visited longest ago: a source with fewer rows than prompts in flight."""
        most = self._config.max_reuse
        busy = [(r.last, p) for p, r in self._records.items() if r.in_flight and not (most and r.visits >= most)]
        return min(busy)[1] if busy else None

    def _pop(self, heap: list[tuple[int, int]]) -> int | None:
        while heap:
            last, position = heappop(heap)
            record = self._records[position]
            if not record.in_flight and record.last == last:
                return position
        return None
