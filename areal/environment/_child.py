"""The process in which an environment runs; started by `areal.environment.subprocess_host`, never imported.

It runs as a plain script (`python -P _child.py FOLDER`) and talks over its standard input and output, in frames of a
4-byte little-endian length and JSON in UTF-8:

    in    {"op": "load", "name", "options", "sys_path", "foreign", "memory_limit_mb", "reuse"}, then any number of
          {"op": "reset", "row", "seed"}, {"op": "step", "answer"}, {"op": "close"}
    out   one {"ok": value} or {"error": text, "usage": bool} per frame, in order

"reset" creates an environment first where there is none; with "reuse" it has to say that it resets fully. What the
environment prints goes to standard error.

Two processes, in a session of their own: the first guards the other (`areal.utils.guard.fork_guarded`), runs no code
of users, and removes FOLDER when its trainer ends or gives it up.
"""

from __future__ import annotations

import json
import os
import resource
import runpy
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

HEADER = struct.Struct("<I")


def main() -> None:
    """Split this process into a guard and one that serves; both end when nobody listens any more."""
    folder = sys.argv.pop(1)  # an environment sees no argument of ours
    guard = runpy.run_path(str(Path(__file__).parents[1] / "utils" / "guard.py"))
    guard["fork_guarded"](_serve, 0, folder=folder)


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
            # Of a wrong setting the kind says nothing that the message does not, and there is a way to mend it.
            said = str(error) if usage else f"{type(error).__name__}: {error}"
            message = {"error": said, "usage": usage, "fix": getattr(error, "fix", "")}
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
