"""Program run by test_faults: saves a checkpoint again and again, hit at every system call that changes files.

    python save_under_faults.py <empty folder> SIGKILL | ENOSPC | EIO

For k = 1, 2, ... a fork saves checkpoint 3 next to checkpoints 1 and 2 and is killed at its k-th such call, until a
fork meets nothing any more; with the name of an error, the call fails instead. Prints one JSON object; exits non-zero
at the first violation.
"""

import errno
import importlib.util
import json
import shutil
import sys
from pathlib import Path

import torch

from areal.api import CheckpointError
from areal.infra.checkpoint.store import CheckpointStore

_spec = importlib.util.spec_from_file_location("syscalls", Path(__file__).with_name("syscalls.py"))
syscalls = importlib.util.module_from_spec(_spec)
# Dataclasses look their module up.
sys.modules["syscalls"] = syscalls
_spec.loader.exec_module(syscalls)


def states(step):
    return {"actor": {"weight": torch.full((50, 10), float(step)), "step": step}, "ledger": {"done": list(range(step))}}


def save(directory):
    store = CheckpointStore(directory, keep=2)
    try:
        store.save(3, states(3), {})
    except CheckpointError as error:  # what a training run sees, and survives
        if str(directory) not in str(error):
            raise AssertionError(f"the folder is not named: {error}") from error
        store.load_latest()


def check(directory, outcome):
    """The previous checkpoint or the new one, complete, and a store that goes on from there."""
    assert outcome.killed or outcome.exit_code == 0, outcome
    store = CheckpointStore(directory, keep=2)
    found = store.load_latest()
    assert found.step in (2, 3), outcome.calls
    assert found.skipped == (), (found.skipped, outcome.calls)
    actor, expected = found.load("actor"), states(found.step)
    assert torch.equal(actor["weight"], expected["actor"]["weight"])
    assert found.load("ledger") == expected["ledger"]
    assert not list(directory.glob(".*")), outcome.calls
    store.save(4, states(4), {})
    assert store.load_latest().step == 4
    assert len(store.steps()) == 2, (store.steps(), outcome.calls)
    return found.step


def run_all(root, error):
    """Steps found after each hit, and the calls of the last save, which was not hit."""
    template = root / "template"
    store = CheckpointStore(template, keep=2)
    for step in (1, 2):
        store.save(step, states(step), {})
    steps = []
    for call in range(1, 1000):
        directory = root / f"run{call}"
        shutil.copytree(template, directory)
        outcome = syscalls.run_at(lambda directory=directory: save(directory), call=call, error=error)
        steps.append(check(directory, outcome))
        shutil.rmtree(directory)
        if len(outcome.calls) < call:
            break
    return {"calls": outcome.calls, "steps": steps}


def main():
    report = {"unsupported": syscalls.supported()}
    if not report["unsupported"]:
        error = 0 if sys.argv[2] == "SIGKILL" else getattr(errno, sys.argv[2])
        report |= run_all(Path(sys.argv[1]), error)
    sys.stdout.write(json.dumps(report))


main()
