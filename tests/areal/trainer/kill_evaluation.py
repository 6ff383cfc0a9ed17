"""Program run by test_evaluation: `areal eval` killed by SIGKILL between two samples, then run again.

    python kill_evaluation.py <target> <folder> <samples before the kill>

Prints the wait status of the killed process and the exit code of the second one; nothing is judged here.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from areal.cli.main import main as command_line
from areal.trainer.evaluation.store import SAMPLES, SampleStore


def evaluate_and_die(arguments: list[str], folder: str, samples: int) -> None:
    """Leave the last sample half written, as a kill inside a write does on some file systems."""
    add, count = SampleStore.add, 0

    def counted(self, name, sample):
        nonlocal count
        if count == samples:
            with open(os.path.join(folder, SAMPLES), "a") as file:
                file.write('{"set":"sampled","row":')
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1
        add(self, name, sample)

    SampleStore.add = counted
    os._exit(command_line(arguments))


def main() -> None:
    target, folder, samples = sys.argv[1:]
    arguments = ["eval", target, "--output", folder, "--log-level", "error"]
    child = os.fork()
    if child == 0:
        evaluate_and_die(arguments, folder, int(samples))
    status = os.waitpid(child, 0)[1]
    killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    with open(os.path.join(folder, SAMPLES), "rb") as file:
        left = len(file.read().splitlines())
    again = command_line([*arguments, "--json"])
    sys.stdout.write(json.dumps({"killed": killed, "lines": left, "exit_code": again}) + "\n")


if __name__ == "__main__":
    main()
