"""Builds `kernel.c` with the machine's C compiler, keeps the result in the user's cache folder, and loads it.

The file is named by a digest of everything that it depends on: source, compiler, flags and processor. It is written
beside its place and moved there, so that processes that build at the same time do not disturb each other, and it ends
in a digest of itself, so that a damaged one is built anew. A machine without a compiler goes without the kernel.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.utils.logging import getLogger
from areal.utils.scratch import scratch_folder

if TYPE_CHECKING:
    from concurrent.futures import Future

_logger = getLogger(__name__)

_SOURCE: Final = Path(__file__).with_name("kernel.c")
_FLAGS: Final = (
    *("-std=gnu11", "-O3", "-march=native", "-shared", "-fPIC"),
    # Loops marked as such become vectors; without OpenMP's threads.
    "-fopenmp-simd",
    # Neither changes a result: nothing here reads errno or traps.
    *("-fno-math-errno", "-fno-trapping-math"),
    "-ffp-contract=fast",
)
_BUILD_SECONDS: Final = 60
_DIGEST_BYTES: Final = 32


def cache_folder() -> Path:
    """Return where kernels are kept: areal/kernels in $XDG_CACHE_HOME, ~/.cache without it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "areal" / "kernels"


@functools.cache
def kernel_in_background() -> Future[ctypes.CDLL | str]:
    """Begin to build, or just load, the kernel; once per process. The result is the library, or why there is none."""
    starter = ThreadPoolExecutor(1, thread_name_prefix="kernel")
    future = starter.submit(load_kernel)
    starter.shutdown(wait=False)
    return future


# The thread that builds is not in a process that was forked meanwhile, which would wait for it forever.
os.register_at_fork(after_in_child=kernel_in_background.cache_clear)


def load_kernel() -> ctypes.CDLL | str:
    """Return the kernel, built if that has not happened yet, or why there is none."""
    problems: list[str] = []
    # Two of the names often stand for one program.
    programs = {Path(found).resolve(): found for found in map(shutil.which, ("cc", "gcc", "clang")) if found}
    for compiler in programs.values():
        try:
            kept = cache_folder() / f"kernel-{_key(Path(compiler))}.so"
            return _load_kept(kept) or _build(compiler, kept)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", None) or b""
            problems.append(f"the kernel could not be built by {compiler}: {error}")
            problems += detail.decode("utf-8", "replace").splitlines()[:3]
    if not problems:
        return "there is no C compiler (cc, gcc or clang)"
    _logger.warning("no compiled kernel, so tokens take about three times as long")
    return " ".join(problems)


def _key(compiler: Path) -> str:
    """Digest of what a library depends on. Size and date stand for the compiler: asking its version takes longer."""
    program = compiler.resolve()
    status = program.stat()
    parts = (*_FLAGS, str(program), str(status.st_size), str(status.st_mtime_ns), _processor())
    digest = hashlib.sha256(_SOURCE.read_bytes())
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:32]


def _processor() -> str:
    """Return what -march=native looks at: model and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU part")
    found = {name.strip(): value for name, _, value in (line.partition(":") for line in lines)}
    return platform.machine() + platform.processor() + "".join(found.get(name, "") for name in wanted)


def _load_kept(path: Path) -> ctypes.CDLL | None:
    """Return the library that was kept, None unless it is there, whole, and nobody else can have written it."""
    try:
        with path.open("rb") as file:
            status, content, folder = os.fstat(file.fileno()), file.read(), path.parent.stat()
    except OSError:
        return None
    whole = hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]
    if not (whole and _is_ours(status) and _is_ours(folder)):
        _logger.warning("%s is damaged or not ours alone; the kernel is built anew", path)
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _build(compiler: str, kept: Path) -> ctypes.CDLL:
    """Compile and load; keep the result where that can be written."""
    with scratch_folder("areal-kernel-") as folder:
        built = folder / "kernel.so"
        command = [compiler, *_FLAGS, "-o", str(built), str(_SOURCE), "-lm"]
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=_BUILD_SECONDS)
        content = built.read_bytes()
        content += hashlib.sha256(content).digest()
        try:
            kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_ours(kept.parent.stat()):
                raise PermissionError(f"others may write to {kept.parent}; remove it, or chmod go-w")
            descriptor, beside = tempfile.mkstemp(prefix=kept.stem, suffix=".part", dir=kept.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            Path(beside).replace(kept)
        except OSError as error:
            _logger.info("the kernel is not kept for later runs: %s", error)
        else:
            # Rather than the new one, which may lie where programs cannot be run.
            library = _load_kept(kept)
            if library is not None:
                return library
        # A loaded library stays when its file is gone.
        return ctypes.CDLL(str(built))
