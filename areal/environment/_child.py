"""The process in which an environment runs; started by `areal.environment.subprocess_host`, never imported.

It runs as a plain script (`python -P _child.py`) and talks over its standard input and output, in frames of a 4-byte
little-endian length and JSON in UTF-8:

    in    {"op": "load", "name", "options", "sys_path", "foreign", "memory_limit_mb", "reuse"}, then any number of
          {"op": "reset", "row", "seed"}, {"op": "step", "answer"}, {"op": "close"}
    out   one {"ok": value} or {"error": text, "usage": bool} per frame, in order

"reset" creates an environment first where there is none; with "reuse" it has to say that it resets fully. What the
environment prints goes to standard error.

Two processes, in a session of their own: the first is a guard that runs no code of users and can therefore always act.
When its standard input is closed, it kills all that runs below it, also what moved to a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import sys
import threading
import time
from typing import Any, BinaryIO

HEADER = struct.Struct("<I")
_PR_SET_CHILD_SUBREAPER = 36
_HUNT_SECONDS = 2.0
_HANGUP = select.POLLHUP | select.POLLERR | select.POLLNVAL


def main() -> None:
    """Fork the process that serves, and guard it: kill everything below when nobody listens any more."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    worker = os.fork()
    if worker == 0:
        _serve()
        os._exit(0)
    # Its own end of the answers must not keep the pipe open when the worker has ended.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)

    def wait_for_hangup() -> None:
        poll = select.poll()
        poll.register(0, 0)
        while not any(event & _HANGUP for _, event in poll.poll()):
            pass
        _kill_descendants()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait_for_hangup, daemon=True).start()
    pid, ending = os.waitpid(-1, 0)
    while pid != worker:  # an adopted process has ended
        pid, ending = os.waitpid(-1, 0)
    _kill_descendants()
    status = os.waitstatus_to_exitcode(ending)
    os._exit(status if status >= 0 else 128 - status)


def _kill_descendants() -> None:
    """Kill until none is left: those of a killed one become ours. Bounded, since a fork bomb may be faster."""
    deadline = time.monotonic() + _HUNT_SECONDS
    while (found := _descendants()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """Return living processes below this one; none where there is no /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/stat", encoding="utf-8", errors="replace") as file:
                # "pid (name) state parent ...": the name may hold blanks and parentheses.
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(name)] = int(parent)
    found, own = [], {os.getpid()}
    while level := [pid for pid, parent in parents.items() if parent in own]:
        found += level
        own = set(level)
    return found


def _serve() -> None:
    """Answer frames until standard input ends."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    import asyncio

    asyncio.run(_answer_all(reader, writer))


async def _answer_all(reader: BinaryIO, writer: BinaryIO) -> None:
    """Answer one frame after the other. Between two, the loop runs: connections of an environment stay alive."""
    import asyncio

    factory: Any = None
    environment: Any = None
    reuse = False
    while (frame := await asyncio.to_thread(_read, reader)) is not None:
        try:
            if frame["op"] == "load":
                factory, reuse = _load(frame), frame["reuse"]
                answer: Any = None
            elif frame["op"] == "close":
                ending, environment = environment, None
                if ending is not None:
                    await ending.close()
                answer = None
            else:
                from areal.environment import wire

                if frame["op"] == "reset":
                    environment = _created(factory, reuse=reuse) if environment is None else environment
                    found = wire.checked_observation(await environment.reset(frame["row"], frame["seed"]))
                    answer = wire.observation_to_plain(found)
                else:
                    result = await environment.step(wire.turn_from_plain(frame["answer"]))
                    answer = wire.result_to_plain(wire.checked_result(result))
            message: dict[str, Any] = {"ok": answer}
        except Exception as error:  # noqa: BLE001 - whatever an environment raises is reported to the parent
            usage = getattr(error, "exit_code", 0) == 2
            message = {"error": f"{type(error).__name__}: {error}", "usage": usage}
        _write(writer, message)


def _created(factory: Any, *, reuse: bool) -> Any:
    """Return a new environment. Raises ConfigError for one to be reused that does not say that it resets fully."""
    from areal.api import ConfigError

    made = factory.create()
    if reuse and getattr(made, "resets_fully", False) is not True:
        raise ConfigError(
            f"host.reuse is set, but {type(made).__name__} does not say that it resets fully",
            fix="leave out host.reuse, or set resets_fully = True where it is true",
        )
    return made


def _load(frame: dict[str, Any]) -> Any:
    # With the trainer's interpreter, its modules are found where it finds them, wherever areal was installed from.
    first, then = (sys.path, frame["sys_path"]) if frame["foreign"] else (frame["sys_path"], sys.path)
    sys.path[:] = dict.fromkeys([*first, *then])
    if limit := frame["memory_limit_mb"]:
        resource.setrlimit(resource.RLIMIT_AS, (limit << 20, limit << 20))
    from areal.environment.registry import create_factory

    return create_factory(frame["name"], frame["options"])


def _read(reader: BinaryIO) -> Any:
    header = reader.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return json.loads(reader.read(HEADER.unpack(header)[0]))


def _write(writer: BinaryIO, message: dict[str, Any]) -> None:
    try:
        body = json.dumps(message).encode()
    except (TypeError, ValueError) as error:
        body = json.dumps({"error": f"the answer is not JSON: {error}", "usage": False}).encode()
    writer.write(HEADER.pack(len(body)) + body)
    writer.flush()


if __name__ == "__main__":
    main()
