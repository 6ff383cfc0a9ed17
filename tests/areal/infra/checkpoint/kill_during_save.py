"""Program run by test_faults: kill -9 a process at every boundary of a save, and look at what is left each time.

    python kill_during_save.py <empty folder>

For k = 1, 2, ... a forked child saves checkpoint 3 next to checkpoints 1 and 2 and dies at its k-th file operation,
until one child gets through. Prints one JSON object; exits non-zero at the first violation.
"""

import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import safetensors.torch
import torch

from areal.infra.checkpoint.store import CheckpointStore

_AUDITED = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def states(step):
    return {"actor": {"weight": torch.full((50, 10), float(step)), "step": step}, "ledger": {"done": list(range(step))}}


class Killer:
    """Counts file operations of this process and kills it at the chosen one."""

    def __init__(self, at):
        self.at = at
        self.count = 0

    def pass_boundary(self):
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        sys.addaudithook(lambda event, _: self.pass_boundary() if event in _AUDITED else None)
        real_write, real_fsync, real_close, real_save = os.write, os.fsync, os.close, safetensors.torch.save_file

        def write(descriptor, data):
            # Half of the data gets out, then the process may die, then the rest.
            half = len(data) // 2
            done = real_write(descriptor, data[:half])
            self.pass_boundary()
            return done

        def save_file(tensors, path):
            real_save(tensors, path)
            whole = Path(path).read_bytes()
            with io.FileIO(str(path), "w") as stream:
                stream.write(whole[: len(whole) // 2])
                self.pass_boundary()
                stream.write(whole[len(whole) // 2 :])
            self.pass_boundary()

        os.write = lambda descriptor, data: write(descriptor, data) if len(data) > 1 else real_write(descriptor, data)
        os.fsync = lambda descriptor: (self.pass_boundary(), real_fsync(descriptor))[1]
        os.close = lambda descriptor: (self.pass_boundary(), real_close(descriptor))[1]
        safetensors.torch.save_file = save_file


def save_in_child(directory, kill_at):
    """Returns True when the child finished the save, False when it was killed."""
    child = os.fork()
    if child == 0:
        store = CheckpointStore(directory, keep=2)
        Killer(kill_at).install()
        store.save(3, states(3), {"note": "x" * 100})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0, status
    return True


def check(directory):
    """The previous checkpoint or the new one, complete, and nothing else."""
    had_leftovers = any(entry.name.startswith(".") for entry in directory.iterdir())
    store = CheckpointStore(directory, keep=2)
    assert not [entry for entry in directory.iterdir() if entry.name.startswith(".")]
    found = store.load_latest()
    assert found.step in (2, 3)
    assert found.skipped == (), found.skipped
    expected = states(found.step)
    actor = found.load("actor")
    assert torch.equal(actor["weight"], expected["actor"]["weight"])
    assert actor["step"] == found.step
    assert found.load("ledger") == expected["ledger"]
    return found.step, had_leftovers


def check_continuation(directory):
    """The run can go on from what it found."""
    store = CheckpointStore(directory, keep=2)
    store.save(4, states(4), {})
    assert store.load_latest().step == 4
    assert len(store.steps()) == 2


def main():
    root = Path(sys.argv[1])
    template = root / "template"
    store = CheckpointStore(template, keep=2)
    for step in (1, 2):
        store.save(step, states(step), {})
    outcomes, leftovers = [], 0
    for kill_at in range(1, 1000):
        directory = root / f"run{kill_at}"
        shutil.copytree(template, directory)
        finished = save_in_child(directory, kill_at)
        step, had_leftovers = check(directory)
        if kill_at % 5 == 0 or finished:
            check_continuation(directory)
        outcomes.append(step)
        leftovers += had_leftovers
        shutil.rmtree(directory)
        if finished:
            break
    sys.stdout.write(json.dumps({"outcomes": outcomes, "finished": finished, "leftovers": leftovers}))


main()
