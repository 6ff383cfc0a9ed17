"""The process in which a reward function runs; started by `areal.reward.isolation`, never imported by the framework.

It runs as a plain script (`python -P _worker.py FD PARENT_PID`), so that it starts as fast as a bare interpreter and
never touches the user's `__main__`. It talks over one Unix socket, in frames of a 4-byte little-endian length and a
pickle:

    in   first {"target" | "pickled", "options", "sys_path", "memory_limit_mb"}, then (args, data) per call
    out  first ("ready",) or ("failed", type, message), then one of these per call, in order:
         ("value", seconds, float, recorded)    ("invalid", seconds, text)
         ("raised", seconds, text)              ("fault", seconds, kind, text)

"recorded" is what the reward gave to `areal.utils.stats.record`: name to numbers.

Two processes, in a session of their own: the first guards the other (`areal.utils.guard.fork_guarded`) and runs no user
code. When the parent is gone, or asks by SIGTERM, the worker and everything the reward started end, even if the reward
hangs in C.
"""

from __future__ import annotations

import functools
import math
import numbers
import os
import pickle
import resource
import runpy
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = struct.Struct("<I")
_LARGEST = 3.4028234e38  # of float32, in which rewards are trained on
_POSITIONAL = 4
"""Parameters of every reward that are no options: prompt, completions, prompt_ids and completion_ids."""


def main() -> None:
    """Split this process into a guard and one that serves calls; both end with the parent."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    os.dup2(2, 1)  # what a reward prints must not mix with the output of the program that called us
    guard = runpy.run_path(str(Path(__file__).parents[1] / "utils" / "guard.py"))
    guard["fork_guarded"](functools.partial(_serve, channel), channel.fileno(), parent=int(sys.argv[2]))


def _serve(channel: socket.socket) -> None:
    """Load the reward and answer calls until the parent closes the socket."""
    reader = channel.makefile("rb")
    setup = _read(reader)
    if setup is None:
        return
    try:
        function = _load(pickle.loads(setup))
        from areal.utils import stats  # found on the path that the set-up brought
    except BaseException as error:  # noqa: BLE001 -- whatever importing user code raises is reported to the parent
        name = type(error).__name__
        _send(channel, ("failed", name, _with_place(error).removeprefix(f"{name}: ")))
        return
    _send(channel, ("ready",))
    while (frame := _read(reader)) is not None:
        started = time.perf_counter()
        try:
            arguments, data = pickle.loads(frame)
            with stats.scope() as recorded:
                outcome = _judge(function(*arguments, **data))
            if outcome[0] == "value":
                outcome = *outcome, recorded
        except BaseException as error:  # noqa: BLE001 -- SystemExit too: a reward's failure is an answer, not our end
            kind = getattr(error, "kind", None)
            if type(error).__name__ == "FaultError" and kind is not None:
                outcome = "fault", str(kind), str(getattr(error, "message", error))
            else:
                # The innermost frame of user code says more than the whole stack; our own frames say nothing.
                frames = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename != __file__]
                place = f" (at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line})" if frames else ""
                outcome = "raised", f"{type(error).__name__}: {error}{place}"
        _send(channel, (outcome[0], time.perf_counter() - started, *outcome[1:]))


def _with_place(error: BaseException) -> str:
    """Return what importing a reward or building it raised, with the line of the user's code."""
    try:
        from areal.utils.user_code import blame  # not there when the path that the set-up brought is broken

        found = None if type(error).__name__ == "RegistryError" else blame(error)
    except Exception:  # noqa: BLE001 -- the error itself says more than what is wrong with telling where it is
        found = None
    return str(error) if found is None else found.text


def _judge(value: Any) -> tuple[Any, ...]:
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


def _load(setup: dict[str, Any]) -> Callable[..., Any]:
    sys.path[:] = setup["sys_path"]
    limit_mb = setup["memory_limit_mb"]
    if limit_mb is not None:
        resource.setrlimit(resource.RLIMIT_AS, (limit_mb << 20, limit_mb << 20))
    if "pickled" in setup:
        function = pickle.loads(setup["pickled"])
    else:
        from areal.api import load

        function = load("reward", setup["target"], {})
    if isinstance(function, type):
        function = function(**setup["options"])
    elif setup["options"]:
        _check_options(function, setup["options"])
        function = functools.partial(function, **setup["options"])
    if not callable(function):
        raise TypeError(f"it is a {type(function).__name__}, expected a function")
    return function


def _check_options(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raise TypeError for an option that the function has no parameter for: **data would take it for a column."""
    import inspect

    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind not in several][_POSITIONAL:]
    if unknown := sorted(options.keys() - set(known)):
        raise TypeError(f"unknown option {', '.join(unknown)}; it takes {', '.join(known) or 'none'}")


def _read(reader: BinaryIO) -> bytes | None:
    header = reader.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    body = reader.read(HEADER.unpack(header)[0])
    return body if len(body) == HEADER.unpack(header)[0] else None


def _send(channel: socket.socket, message: tuple[Any, ...]) -> None:
    body = pickle.dumps(message, protocol=5)
    channel.sendall(HEADER.pack(len(body)) + body)


if __name__ == "__main__":
    main()
