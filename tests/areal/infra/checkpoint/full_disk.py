"""Program run by test_faults in a mount namespace: fill a real 4 MB file system, then make it read-only.

python full_disk.py <folder>     exit code 77 when mounting is not permitted here
"""

import json
import subprocess
import sys
from pathlib import Path

import torch

from areal.api import CheckpointError
from areal.infra.checkpoint.store import CheckpointStore


def fail(store, states, **options):
    try:
        store.save(2, states, {}, **options)
    except CheckpointError as error:
        return str(error)
    raise AssertionError("the save should have failed")


def main():
    directory = Path(sys.argv[1])
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(directory)], check=False).returncode:
        raise SystemExit(77)
    store = CheckpointStore(directory / "checkpoints", keep=2)
    store.save(1, {"a": torch.ones(1000)}, {})
    large = {"a": torch.ones(2_000_000)}
    messages = {"preflight": fail(store, large)}
    # Told that it needs no room, the save runs into the full disk, first in the tensors and then in the JSON.
    messages["tensors"] = fail(store, large, expected_bytes=0)
    messages["json"] = fail(store, {"a": "x" * 8_000_000}, expected_bytes=0)
    messages["callable"] = fail(store, lambda folder: (folder / "f").write_bytes(bytes(8_000_000)), expected_bytes=0)
    entries = [entry.name for entry in (directory / "checkpoints").iterdir()]
    intact = torch.equal(store.load_latest().load("a"), torch.ones(1000))
    store.save(2, {"a": torch.zeros(1000)}, {})
    subprocess.run(["mount", "-o", "remount,ro", str(directory)], check=True)
    read_only = fail(store, {"a": torch.ones(10)})
    store.load_latest()
    sys.stdout.write(
        json.dumps(
            {"messages": messages, "entries": entries, "intact": intact, "steps": store.steps(), "read_only": read_only}
        )
    )


main()
