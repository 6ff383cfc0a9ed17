"""Keeps all processes of this machine together below a server's limits: requests per second, and requests at a time.

    limits = SharedLimits(name="http://127.0.0.1:8000/v1 judge-7b", per_second=5.0, at_a_time=8)
    with limits.place(deadline=time.monotonic() + 30):       # waits for its turn
        ...
    limits.pause(7.0)                                        # the server asked for it: nobody starts before then

Processes meet in a folder of the temporary directory, named by a digest of `name`. The places are locked files, which
the kernel unlocks when a process dies, however it dies. Machines know nothing of each other: divide the limits by hand.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_SECONDS: Final = 3600.0
"""A turn further away was written by a clock that has been set back."""
_LOOK_SECONDS: Final = 0.02


class NoTurnError(TimeoutError):
    """The turn would come after the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLimits:
    """Limits that processes of one user share."""

    name: str
    per_second: float = 0.0
    """Requests started per second, evenly spaced; 0 sets no limit."""
    at_a_time: int = 0
    """Requests under way; 0 sets no limit."""

    @contextlib.contextmanager
    def place(self, deadline: float) -> Iterator[None]:
        """Wait for a place and a turn, and hold the place. deadline: as of `time.monotonic`.

        Raises NoTurnError when that would take too long; nothing is used up then.
        """
        with self._free_place(deadline):
            wait = self._take_turn(deadline - time.monotonic())
            if wait > 0:
                time.sleep(wait)
            yield

    def pause(self, seconds: float) -> None:
        """Let nobody start within so many seconds."""
        with self._schedule() as file:
            _write(file, max(_read(file), time.time() + min(seconds, _LONGEST_SECONDS)))

    def _take_turn(self, patience: float) -> float:
        """Take the next turn and return how long to wait for it."""
        with self._schedule() as file:
            now = time.time()
            turn = max(now, _read(file))
            if turn - now > patience:
                raise NoTurnError(f"the next turn is {turn - now:.1f} s away, and {max(0.0, patience):.1f} s are left")
            if self.per_second or turn > now:
                _write(file, turn + (1 / self.per_second if self.per_second else 0.0))
        return turn - now

    @contextlib.contextmanager
    def _free_place(self, deadline: float) -> Iterator[None]:
        if not self.at_a_time:
            yield
            return
        folder = self._folder()
        while True:
            for number in range(self.at_a_time):
                with (folder / f"place-{number}").open("ab") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError:
                        continue
                    yield
                    return
            if time.monotonic() > deadline:
                raise NoTurnError(f"all {self.at_a_time} places stayed taken")
            time.sleep(_LOOK_SECONDS * (0.5 + random.random()))  # waiting processes must not look in step

    @contextlib.contextmanager
    def _schedule(self) -> Iterator[IO[bytes]]:
        with (self._folder() / "next").open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _folder(self) -> Path:
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:24]
        folder = Path(tempfile.gettempdir()) / f"areal-limits-{os.getuid()}" / digest
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.parent.lstat().st_uid != os.getuid():
            raise PermissionError(f"{folder.parent} belongs to somebody else; remove it, or set TMPDIR")
        return folder


def _read(file: IO[bytes]) -> float:
    file.seek(0)
    try:
        turn = float(file.read(64))
    except ValueError:
        return 0.0
    return turn if turn < time.time() + _LONGEST_SECONDS else 0.0


def _write(file: IO[bytes], turn: float) -> None:
    # Opened for appending, which would put the text at the end of the old one.
    file.truncate(0)
    file.write(f"{turn:.6f}".encode())
    file.flush()
