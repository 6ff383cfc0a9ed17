"""Program run by test_faults: checkpoints against a file size limit, then on a real 4 MB file system, then read-only.

    python full_disk.py <folder>

Prints one JSON object; "mounted" says whether mounting was permitted here. Runs in a mount namespace of its own.
"""

import json
import resource
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


def hit_size_limit(directory):
    store = CheckpointStore(directory, keep=2)
    store.save(1, {"a": torch.ones(10)}, {})
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    message = fail(store, {"a": torch.ones(1_000_000)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return {"message": message, "entries": [entry.name for entry in directory.iterdir()]}


def main():
    report = {"limit": hit_size_limit(Path(sys.argv[1]) / "limited")}
    directory = Path(sys.argv[1]) / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(directory)]
    report["mounted"] = subprocess.run(mount, check=False).returncode == 0
    if report["mounted"]:
        report["disk"] = fill(directory)
    sys.stdout.write(json.dumps(report))


def fill(directory):
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
    return {
        "messages": messages,
        "entries": entries,
        "intact": intact,
        "steps": store.steps(),
        "read_only": read_only,
    }


main()
