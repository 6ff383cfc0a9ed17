"""A device whose memory several processes hold: who holds how much, in a file; more than there is ends who asks for it.

As on a real device, what a process held is free once it has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

LIMIT = 4_600_000
"""Bytes: enough for a server, or for the learner of examples/math with its moments (4.3 million), never for both."""
CACHE = 3_100_000
"""Bytes that a server sets aside for its cache."""


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def hold(path, who, num_bytes):
    """Hold so many bytes from now on, instead of what this process held. Raises MemoryError when there are none."""
    with Path(path).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        holders, log = json.loads(file.read() or "[{}, []]")
        holders = {pid: held for pid, held in holders.items() if is_alive(pid)}
        holders[str(os.getpid())] = [who, num_bytes]
        total = sum(held for _, held in holders.values())
        log.append([who, os.getpid(), num_bytes, total])
        file.truncate(0)
        file.write(json.dumps([holders, log]))
        file.flush()
    if total > LIMIT:
        raise MemoryError(f"{who} asks for {num_bytes} bytes, and {total} are more than {LIMIT}: {log[-8:]}")


def read(path):
    """Return who holds memory now, (pid, bytes) by name, and the log: (name, pid, bytes, sum of all) per change."""
    with Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        holders, log = json.loads(file.read() or "[{}, []]")
    return {who: (int(pid), held) for pid, (who, held) in holders.items() if held and is_alive(pid)}, log


def account_for_learner(path):
    """Have the learner of this process hold what it has on its device: its models from before they are built."""
    from areal.engine.train.lending import LentMemory
    from areal.trainer import policy_models, ppo

    build, give, take_back = policy_models.build_models, LentMemory.give, LentMemory.take_back

    def built(*arguments, **options):
        hold(path, "learner", 1_000_000)
        models = build(*arguments, **options)
        hold(path, "learner", sum(tensor.nbytes for tensor in models._device_tensors()))
        return models

    def given(self):
        give(self)
        hold(path, "learner", 0)

    def taken_back(self):
        hold(path, "learner", self.moved_bytes)
        take_back(self)

    ppo.build_models = built
    LentMemory.give, LentMemory.take_back = given, taken_back
