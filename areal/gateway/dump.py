"""Writes what clients asked and were answered into files, for people who look for what an agent does.

    dump = RequestDump(Path("requests"), most_bytes=10**9)
    dump.write("3f2a", {"path": "/v1/messages", "request": {...}})
    dump.close()

One JSON line per request, in a file per session. The folder and its files are for their owner alone: they hold all
content, though no keys. Writing happens in a thread, ends at a limit, and never fails a request.
"""

from __future__ import annotations

import json
import os
import queue
import stat
import threading
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

logger = getLogger(__name__)

_WAITING: Final = 256
"""Lines that may wait for a slow disk; further ones are left out."""


class RequestDump:
    """See the module. `write` is called from one thread."""

    def __init__(self, folder: Path, *, most_bytes: int) -> None:
        """Make the folder. Raises ConfigError for one that others may read, or that cannot be written."""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = folder.stat().st_mode
        except OSError as error:
            raise ConfigError(f"dump_folder {folder} cannot be made: {error.strerror}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"dump_folder {folder} is open to others (mode {stat.S_IMODE(mode):o}), and would hold all content",
                fix=f"chmod 700 {folder}, or name a folder that does not exist yet",
            )
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"dump_folder {folder} cannot be written")
        self._folder, self._left = folder, most_bytes
        self._lines: queue.Queue[tuple[str, Mapping[str, Any]] | None] = queue.Queue(_WAITING)
        self._named: set[str] = set()
        self._thread = threading.Thread(target=self._work, name="areal-gateway-dump", daemon=True)
        self._thread.start()

    def write(self, session: str, record: Mapping[str, Any]) -> None:
        """Note a request of a session. Does not wait: what comes faster than the disk takes it is left out, with a
        warning.
        """
        try:
            self._lines.put_nowait((session, record))
        except queue.Full:
            self._warn("the disk is too slow: some requests are left out")

    def close(self) -> None:
        """Wait until all is written."""
        self._lines.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (item := self._lines.get()) is not None:
            session, record = item
            data = json.dumps(record, ensure_ascii=False, default=str).encode(errors="replace") + b"\n"
            if len(data) > self._left:
                self._left = 0
                self._warn("its limit dump_bytes is reached: nothing more is written")
                continue
            place = self._folder / f"{session}.jsonl"
            try:
                with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
                    file.write(data)
            except OSError as error:
                self._warn(f"{place} cannot be written: {error.strerror}")
            else:
                self._left -= len(data)

    def _warn(self, what: str) -> None:
        if what not in self._named:
            self._named.add(what)
            logger.warning("dump of requests in %s: %s", self._folder, what)
