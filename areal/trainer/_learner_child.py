"""The process in which a run trains; started by `areal.trainer.learner_process`, never imported.

It runs as a plain script (`python -P _learner_child.py CHANNEL MEMORY PARENT_PID`), so that it never touches the user's
`__main__`. Two processes, in a session of their own: the first guards the other (`areal.utils.guard.fork_guarded`).
When the parent is gone, or closes the channel, training ends, even in the middle of a step.
"""

from __future__ import annotations

import functools
import os
import runpy
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def main() -> None:
    """Split this process into a guard and one that trains; both end with the parent."""
    channel, memory, parent = map(int, sys.argv[1:])
    for descriptor in (channel, memory):
        os.set_inheritable(descriptor, False)
    os.dup2(2, 1)  # what is printed here must not mix with the output of the program that called us
    # Who ends a job may ask all its processes at once: the trainer then finishes its step, for which it needs this one,
    # and saves. A handler and not SIG_IGN, which programs that this one starts would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    guard = runpy.run_path(str(Path(__file__).parents[1] / "utils" / "guard.py"))
    serve = functools.partial(_serve, channel, memory)
    guard["fork_guarded"](serve, channel, parent=parent, outlives_sigterm=True)


def _serve(channel: int, memory: int) -> None:
    leader: Connection[Any, Any] = Connection(channel)
    sys.path[:] = leader.recv()
    from areal.trainer.learner_process import serve

    serve(leader, memory)


if __name__ == "__main__":
    main()
