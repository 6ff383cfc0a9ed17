"""The process in which a reward function runs; started by `areal.reward.isolation`, never imported by the framework.

It runs as a plain script (`python -P _worker.py FD PARENT_PID`), so that it starts as fast as a bare interpreter and
never touches the user's `__main__`. It talks over one Unix socket, in frames of a 4-byte little-endian length and a
pickle:

    in   first {"target" | "pickled", "options", "sys_path", "memory_limit_mb"}, then (args, data) per call
    out  first ("ready",) or ("failed", type, message), then an outcome of `areal.reward.answering` per call, in order

Two processes, in a session of their own: the first guards the other (`areal.utils.guard.fork_guarded`) and runs no user
code. When the parent is gone, or asks by SIGTERM, the worker and everything the reward started end, even if the reward
hangs in C.
"""

from __future__ import annotations

import functools
import os
import pickle
import resource
import runpy
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable

HEADER = struct.Struct("<I")


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
        from areal.reward.answering import ask  # found on the path that the set-up brought
    except BaseException as error:  # noqa: BLE001 -- whatever importing user code raises is reported to the parent
        name = type(error).__name__
        _send(channel, ("failed", name, _with_place(error).removeprefix(f"{name}: ")))
        return
    _send(channel, ("ready",))
    while (frame := _read(reader)) is not None:
        # SystemExit too: a reward's failure is an answer, not our end.
        _send(channel, ask(function, functools.partial(pickle.loads, frame), caught=BaseException))


def _with_place(error: BaseException) -> str:
    """Return what importing a reward or building it raised, with the line of the user's code."""
    try:
        from areal.utils.user_code import blame  # not there when the path that the set-up brought is broken

        found = None if type(error).__name__ == "RegistryError" else blame(error)
    except Exception:  # noqa: BLE001 -- the error itself says more than what is wrong with telling where it is
        found = None
    return str(error) if found is None else found.text


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
    from areal.reward.answering import with_options

    return with_options(function, setup["options"])


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
