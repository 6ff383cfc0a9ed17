"""What was seen of one config, and how two of these compare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from areal.models.config_fields import TRAINING_NOISE
from areal.porting.bind.expressions import same
from areal.porting.bind.slots import ABSENT, LayerValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True)
class Observation:
    """The slots of one config. values: as `slots_of` gives them."""

    config: Mapping[str, Any]
    """Completed: defaults and rules filled in."""
    values: Mapping[str, Any]
    changes: Mapping[str, Any]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return int(self.values["num_layers"])


@dataclass(frozen=True)
class Sample:
    """What a slot was for one config. value: `LayerValues` for slots of layers."""

    config: Mapping[str, Any]
    value: Any
    depth: int
    """Number of layers."""


def one_cause(observation: Observation) -> bool:
    """Whether further changes are only lists that were resized, or left to the class to fill."""
    return sum(not isinstance(value, list | None) for value in observation.changes.values()) <= 1


def same_value(first: Any, second: Any) -> bool:
    """Whether two values of a slot are the same in the layers that both configs have."""
    if isinstance(first, LayerValues) and isinstance(second, LayerValues):
        shorter = min(len(first), len(second))
        return all(
            a is b or (ABSENT not in (a, b) and same(a, b))
            for a, b in zip(first[:shorter], second[:shorter], strict=True)
        )
    if first is ABSENT or second is ABSENT:
        return first is second
    return same(first, second)


def readable(names: Iterable[str], observations: Sequence[Observation]) -> list[str]:
    """The fields that expressions may read. observations: the base config's first.

    Noise of training (dropout, jitter) counts only once it was seen to change something alone: among many changes at
    once it would explain anything, and models would go wrong with it.
    """
    return [name for name in names if not TRAINING_NOISE.fullmatch(name) or _acts_alone(name, observations)]


def _acts_alone(name: str, observations: Sequence[Observation]) -> bool:
    base = observations[0]
    return any(
        not same_value(each.values.get(slot, ABSENT), base.values.get(slot, ABSENT))
        for each in observations
        if set(each.changes) == {name}
        for slot in each.values
    )
