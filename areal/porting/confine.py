"""Confines this process before it runs modeling code of a stranger: no network, a scratch home, limits, no writes.

    with confined():
        main()

`--trust-source` says that somebody has read the code; this keeps a mistake in it, or in the reading, from reaching the
machine. Python's audit events refuse what code does through the standard library: connections, other programs, writes
outside of the scratch folder. Where the kernel allows it the process has no network device either. Not a sandbox
against code that is written to break out of one: such code must not be trusted.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU_SECONDS: Final = 1800
FILE_BYTES: Final = 4 * 1024**3
NO_NETWORK: Final = 0x40000000
"""CLONE_NEWNET of Linux."""
MEMORY: Final = "/dev/shm"
"""The scratch folder is made here where it exists: temporary checkpoints of tiny models stay in memory."""
NETWORK_EVENTS: Final = frozenset({"socket.bind", "socket.connect", "socket.getaddrinfo", "socket.sendto"})
PROGRAM_EVENTS: Final = frozenset({"os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})
CHANGE_EVENTS: Final = frozenset(
    {"os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"}
)
WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ConfinedError(PermissionError):
    """Modeling code did what no model does: it asked for the network, another program, or a file elsewhere."""


@contextlib.contextmanager
def confined() -> Iterator[Path]:
    """Confine this process for good, and yield its scratch folder, which is removed at the end."""
    memory = MEMORY if Path(MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="areal-analysis-", dir=memory) as folder:
        scratch = Path(folder).resolve()
        for name in ("HOME", "HF_HOME", "TMPDIR", "TORCH_HOME", "XDG_CACHE_HOME"):
            os.environ[name] = str(scratch)
        tempfile.tempdir, sys.dont_write_bytecode = str(scratch), True
        _limit(resource.RLIMIT_CPU, CPU_SECONDS)
        _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
        _limit(resource.RLIMIT_CORE, 0)
        with contextlib.suppress(OSError, AttributeError):  # the kernel may not allow it: audit events remain
            ctypes.CDLL(None, use_errno=True).unshare(NO_NETWORK)
        sys.addaudithook(Refusal(scratch))
        yield scratch


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


class Refusal:
    """An audit hook that refuses what modeling code has no need of."""

    def __init__(self, scratch: Path) -> None:
        self._place = f"{scratch}/"

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise ConfinedError for an event that is not allowed."""
        if event in NETWORK_EVENTS or event in PROGRAM_EVENTS:
            raise ConfinedError(
                f"modeling code asked for {event}{arguments[:1]!r}: an analysis has no network and starts nothing"
            )
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            _, mode, flags = arguments
            writes = set(mode) & set("wax+") if isinstance(mode, str) else bool((flags or 0) & WRITING)
            if writes:
                self._check(arguments[0])
        elif event in CHANGE_EVENTS:
            for path in arguments[: 2 if event in ("os.link", "os.rename") else 1]:
                if isinstance(path, str | bytes | os.PathLike):
                    self._check(path)

    def _check(self, path: Any) -> None:
        place = os.path.realpath(os.fsdecode(path))
        if not f"{place}/".startswith(self._place) and place != os.devnull:
            raise ConfinedError(f"modeling code writes {place}: an analysis writes in its scratch folder only")
