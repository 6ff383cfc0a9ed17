"""Record numbers of your own from a reward, a workflow or a dataset, in whatever process it runs.

    from areal.utils import stats

    def my_reward(prompt, completions, prompt_ids, completion_ids, *, answer, **data):
        stats.record("answer_words", len(completions.split()))
        ...

Values belong to the sample being produced. Every step logs, over the samples of its batch that recorded a name,
`stats/<name>` (the mean), `stats/<name>/count`, `/min` and `/max`; rollouts.jsonl keeps the values of each sample.
Several values of one name in one sample count as their mean. From a reward's process they travel back with its result;
those of attempts that fail are left out.

Outside of a run nothing is recorded, at the price of looking up one context variable. Threads started by
`asyncio.to_thread` record into the sample of their caller, other threads do not.
"""

from __future__ import annotations

import math
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Values = dict[str, list[float]]

_NAME: Final = re.compile(r"[A-Za-z0-9_][\w.-]*(/[\w.-]+)*")
_SUFFIXES: Final = ("count", "max", "min")
_current: ContextVar[Values | None] = ContextVar("areal_stats", default=None)


def record(name: str, value: float) -> None:
    """Add `value` to what the current sample says about `name`; nothing happens where no sample is being produced.

    name: letters, digits and "_.-", with "/" between parts, e.g. "tools/calls". value: a finite number, also of NumPy
    or a tensor of one element.

    Raises ValueError for anything else, naming the line that called.
    """
    values = _current.get()
    if values is None:
        return
    if not (isinstance(name, str) and _NAME.fullmatch(name)) or name.rpartition("/")[2] in _SUFFIXES:
        expected = 'letters, digits and "_.-", parts joined by "/", the last not count, max or min'
        raise ValueError(f"stats.record({name!r:.80}, ...) at {_caller()}: expected a name of {expected}")
    number = _number(value)
    if number is None:
        raise ValueError(f"stats.record({name!r}, {value!r:.80}) at {_caller()}: expected a finite number")
    values.setdefault(name, []).append(number)


class scope:
    """Collect what is recorded inside, here and in the tasks started here, instead of giving it to an outer scope."""

    __slots__ = ("_token",)

    def __enter__(self) -> Values:
        """Return what will hold it."""
        values: Values = {}
        self._token = _current.set(values)
        return values

    def __exit__(self, *_: object) -> None:
        """Give to the outer scope again."""
        _current.reset(self._token)


def merge(values: Mapping[str, Sequence[float]]) -> None:
    """Add what another scope has collected, for example in another process, to the current one."""
    own = _current.get()
    if own is not None:
        for name, numbers in values.items():
            own.setdefault(name, []).extend(numbers)


def means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean of each name: what one sample says."""
    return {name: math.fsum(numbers) / len(numbers) for name, numbers in values.items() if numbers}


def reduce(samples: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return mean, count, minimum and maximum of each name over the samples that have it.

    Example: `reduce([{"a": 1.0}, {"a": 3.0}, {}])` is {"a": 2.0, "a/count": 2.0, "a/min": 1.0, "a/max": 3.0}.
    """
    columns: Values = {}
    for sample in samples:
        for name, value in sample.items():
            columns.setdefault(name, []).append(value)
    found: dict[str, float] = {}
    for name in sorted(columns):
        values = columns[name]
        found |= {
            name: math.fsum(values) / len(values),
            f"{name}/count": float(len(values)),
            f"{name}/min": min(values),
            f"{name}/max": max(values),
        }
    return found


def _number(value: Any) -> float | None:
    # Text has no __float__, although float() reads it.
    if not (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # an array of several elements, an integer too large
        return None
    return number if math.isfinite(number) else None


def _caller() -> str:
    """`file.py:12, in my_reward`: where `record` was called."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
