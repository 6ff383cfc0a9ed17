"""Ask a reward function for one score, and say what came of it in plain values, which may travel between processes.

An outcome is one of these, by its first entry; seconds are those that it took to read the row and to run the function:

    ("value", seconds, float, recorded)     ("invalid", seconds, text)
    ("raised", seconds, text)               ("fault", seconds, kind, text)

"recorded" is what the reward gave to `areal.utils.stats.record`: name to numbers.
"""

from __future__ import annotations

import functools
import math
import numbers
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from areal.api import FaultError, FaultKind
from areal.utils import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Outcome = tuple[Any, ...]

_LARGEST: Final = 3.4028234e38  # of float32, in which rewards are trained on
_POSITIONAL: Final = 4
"""Parameters of every reward that are no options: prompt, completions, prompt_ids and completion_ids."""
_FAULT_KINDS: Final = frozenset(map(str, FaultKind))


def with_options(function: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """Return a reward that has its options: a class is called with them, a function is given them in every call.

    Raises TypeError for an option that a function has no parameter for, and for what cannot be called.
    """
    if isinstance(function, type):
        function = function(**options)
    elif options:
        _check_options(function, options)
        function = functools.partial(function, **options)
    if not callable(function):
        raise TypeError(f"it is a {type(function).__name__}, expected a function")
    found: Callable[..., Any] = function
    return found


def ask(
    function: Callable[..., Any],
    read: Callable[[], tuple[Sequence[Any], Mapping[str, Any]]],
    *,
    caught: type[BaseException] = Exception,
) -> Outcome:
    """Call the reward with the arguments and the columns that `read` returns.

    Raises nothing that is `caught`: what ends a process (KeyboardInterrupt, SystemExit) is the caller's own, unless the
    process is the reward's.
    """
    started = time.perf_counter()
    try:
        with stats.scope() as recorded:
            arguments, data = read()
            outcome = _judge(function(*arguments, **data))
        if outcome[0] == "value":
            outcome = *outcome, recorded
    except caught as error:
        kind = getattr(error, "kind", None)
        if type(error).__name__ == "FaultError" and kind is not None:
            outcome = "fault", str(kind), str(getattr(error, "message", error))
        else:
            # The innermost frame of user code says more than the whole stack; our own frames say nothing.
            frames = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename != __file__]
            place = f" (at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
            outcome = "raised", f"{type(error).__name__}: {error}{place}"
    return outcome[0], time.perf_counter() - started, *outcome[1:]


def result_of(outcome: Outcome, name: str) -> float | FaultError:
    """Return the score of an outcome, or the fault that it is. name: of the reward, for messages."""
    match outcome:
        case ("value", _, value, _):
            return float(value)
        case ("fault", _, kind, text) if kind in _FAULT_KINDS:
            return FaultError(FaultKind(kind), text)
        case ("raised", _, text) | ("fault", _, _, text):
            # A "fault" of unknown kind is an exception of user code that happens to have our error's name.
            return FaultError(FaultKind.REWARD_RAISED, f"reward {name!r} raised {text}")
        case _:
            text = f"reward {name!r} returned {outcome[2]}, expected a finite number (int, float or bool)"
            return FaultError(FaultKind.REWARD_INVALID, text)


def recorded_in(outcome: Outcome) -> Mapping[str, Sequence[float]]:
    """Return what the reward recorded; nothing unless it gave a score."""
    recorded: Mapping[str, Sequence[float]] = outcome[3] if outcome[0] == "value" else {}
    return recorded


def _judge(value: Any) -> Outcome:
    # NumPy's bool is not a numbers.Real, yet comparisons of arrays return it. A tensor or array without dimensions is
    # what sums of them are.
    plain = isinstance(value, numbers.Real) or type(value).__name__ in {"bool_", "bool"}
    if plain or (getattr(value, "shape", None) == () and hasattr(value, "__float__")):
        try:
            number = float(value)
        except OverflowError:
            return "invalid", f"{type(value).__name__} too large for a float"
        if math.isfinite(number) and abs(number) <= _LARGEST:
            return "value", number
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 -- a broken __repr__ of user code must not hide what is reported here
        text = f"<repr raised {type(error).__name__}>"
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    return "invalid", f"{shown} of type {type(value).__name__}{_advice(value)}"


def _advice(value: Any) -> str:
    """Say how a reward would return a number instead; empty where that is obvious."""
    name = type(value).__name__
    if value is None:
        return " (does every path of it end in a return?)"
    if isinstance(value, str):
        return " (write float(...) around it)"
    if isinstance(value, (list, tuple, dict)) or getattr(value, "shape", None):
        return " (return the score alone; areal.utils.stats.record keeps other values as metrics)"
    if name == "coroutine":
        value.close()  # else Python warns that it was never awaited
        return " (define it with def, not async def: it runs in a process of its own)"
    if name == "generator":
        return " (it has a yield: write return)"
    if isinstance(value, float) and math.isfinite(value):
        return f" (larger than float32, {_LARGEST:.3g})"
    return ""


def _check_options(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raise TypeError for an option that the function has no parameter for: **data would take it for a column."""
    import inspect

    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind not in several][_POSITIONAL:]
    if unknown := sorted(options.keys() - set(known)):
        raise TypeError(f"unknown option {', '.join(unknown)}; it takes {', '.join(known) or 'none'}")
