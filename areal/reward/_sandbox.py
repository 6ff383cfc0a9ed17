"""Gives up, in the running process, what an untrusted program must not have. Linux; elsewhere only the resource limits.

    active = confine(ProcessLimits(cpu_seconds=5, memory_megabytes=256, file_megabytes=1))
    -> ("resource limits", "no new privileges", "network namespace", "landlock")

Every step is tried and reported, none is required: kernels and containers differ in what an ordinary process may do.
It uses the kernel through ctypes, since Python wraps neither Landlock nor capabilities. It starts no process and knows
nothing of rewards; see `areal.reward.execution` for both.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import stat
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_NOBODY: Final = 65534
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_CLONE_NEWUSER, _CLONE_NEWNET, _CLONE_NEWPID, _CLONE_NEWIPC = 0x10000000, 0x40000000, 0x20000000, 0x08000000
_CLONE_NEWNS: Final = 0x00020000
_MS_NOSUID, _MS_NODEV = 2, 4
_CAPABILITY_VERSION_3: Final = 0x20080522

# Numbers of system calls that came after 5.0 are the same on every architecture.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION: Final = 1
_LANDLOCK_RULE_PATH_BENEATH: Final = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS_BY_ABI: Final = {1: 1 << 13, 2: 1 << 14, 3: 1 << 15, 5: 1 << 16}
"""Rights that exist from an ABI version on, as the first bit that does not."""
_EXECUTE: Final = 1 << 0
_RIGHTS_OF_FILES: Final = 0b111 | 1 << 14 | 1 << 15
_NO_DEVICES_IN_FOLDER: Final = ~((1 << 6) | (1 << 11) | (1 << 9) | (1 << 10) | _EXECUTE)
"""In its own folder a program may do anything but create devices, sockets and pipes, or execute files."""
_SYSTEM_FOLDERS: Final = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
_SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/dev/zero")


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """What one process may use."""

    cpu_seconds: int
    memory_megabytes: int
    """Address space, the interpreter's own 30 MB or so included."""
    file_megabytes: int
    """Largest file."""
    processes: int | None = 1
    """Processes and threads of this user in this user namespace; None sets no limit."""
    count_reserved: bool = True
    """Whether memory that is reserved but not writable counts; V8 reserves gigabytes that it never uses."""
    stack_megabytes: int | None = None
    """Largest stack of the main thread; None leaves it."""


@dataclass(frozen=True, slots=True)
class FileReach:
    """What of the file system stays in reach, beside the system's libraries and the current folder."""

    readable: tuple[str, ...] = ()
    executable: tuple[str, ...] = ()
    """Files and folders that may be read and executed."""


def confine(limits: ProcessLimits, reach: FileReach | None = None) -> tuple[str, ...]:
    """Confine this process for good; returns what is in force.

    The current folder is the only place that stays writable, and only the standard library can still be imported; reach
    adds to what may be read and executed. Never raises for what the kernel refuses.
    """
    memory = resource.RLIMIT_AS if limits.count_reserved else resource.RLIMIT_DATA
    wanted = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1),
        (resource.RLIMIT_FSIZE, limits.file_megabytes << 20, limits.file_megabytes << 20),
        (resource.RLIMIT_NOFILE, 64, 64),
        (memory, limits.memory_megabytes << 20, limits.memory_megabytes << 20),
    ]
    if limits.processes is not None:
        wanted.append((resource.RLIMIT_NPROC, limits.processes, limits.processes))
    if limits.stack_megabytes is not None:
        wanted.append((resource.RLIMIT_STACK, limits.stack_megabytes << 20, limits.stack_megabytes << 20))
    active = ["resource limits"]
    for which, soft, hard in wanted:
        _, ceiling = resource.getrlimit(which)
        bound = sys.maxsize if ceiling == resource.RLIM_INFINITY else ceiling  # never above what is in force already
        try:
            resource.setrlimit(which, (min(soft, bound), min(hard, bound)))
        except (OSError, ValueError):
            active = []
    if sys.platform != "linux":
        return tuple(active)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        active.append("no new privileges")
        if _landlock(libc, reach or FileReach()):
            active.append("landlock")
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) == 0:
        active.append("no capabilities")
    hide_memory()
    return tuple(active)


def hide_memory(*, hidden: bool = True) -> None:
    """Prevent other processes of the same user from tracing this one and from opening its memory."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(not hidden), 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. A second line of defence: a program can take it back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, however it moved away from its group."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """Return processes whose parent is this one, as far as /proc says."""
    try:
        tasks = os.listdir("/proc/self/task")
        texts = [Path(f"/proc/self/task/{task}/children").read_text(encoding="ascii") for task in tasks]
    except OSError:
        return []
    return [int(word) for text in texts for word in text.split()]


def leave_root(folder: str) -> bool:
    """Become `nobody` when started as root, if the standard library stays readable; the folder goes along.

    Limits on the number of processes do not hold for root, which is why it matters.
    """
    library = Path(os.__file__).resolve()
    readable = library.stat().st_mode & 0o004 and all(part.stat().st_mode & 0o001 for part in library.parents)
    if os.geteuid() != 0 or not readable:
        return False
    try:
        os.chown(folder, _NOBODY, _NOBODY)
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    except OSError:
        return False
    if sys.platform == "linux":
        # Changing the user made it non-dumpable, and a namespace cannot be entered like that.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    return True


def enter_namespaces(*, processes: bool, mounts: bool = False) -> tuple[str, ...]:
    """Cut the network off, and with `processes` let the next child be the first of a process namespace of its own:
    it sees no other process, and all of its children end with it. With `mounts` (which implies `processes`), what is
    mounted from here on is seen by this process and its children only. Returns what is in force."""
    if sys.platform != "linux":
        return ()
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC
    user, group = os.geteuid(), os.getegid()
    if mounts and libc.unshare(flags | _CLONE_NEWPID | _CLONE_NEWNS) == 0:
        with contextlib.suppress(OSError):  # then nothing can be mounted, which `mount_folder` finds out
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
            Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
        return "network namespace", "process namespace", "user namespace"
    if processes and libc.unshare(flags | _CLONE_NEWPID) == 0:
        return "network namespace", "process namespace"
    return ("network namespace",) if libc.unshare(flags) == 0 else ()


def mount_folder(folder: str, megabytes: int, files: int) -> bool:
    """Mount an empty folder in memory over `folder`, for this process and its children, and enter it.

    It holds at most so many megabytes and files, and vanishes with the last process that sees it. False when the kernel
    refuses, after `enter_namespaces(processes=True, mounts=True)`.
    """
    options = f"size={megabytes}m,nr_inodes={files},mode=700".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    path = ctypes.c_char_p(os.fsencode(folder))
    mounted = sys.platform == "linux" and libc.mount(b"tmpfs", path, b"tmpfs", _MS_NOSUID | _MS_NODEV, options) == 0
    os.chdir(folder)
    return mounted


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _landlock(libc: ctypes.CDLL, reach: FileReach) -> bool:
    """Forbid every file outside the current folder, the standard library and `reach`, execution outside `reach`, TCP,
    and signals to others."""
    abi = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION)
    if abi < 1:
        return False
    every_right = max(bit for version, bit in _FILE_RIGHTS_BY_ABI.items() if version <= abi) - 1
    network = 0b11 if abi >= 4 else 0
    scopes = 0b11 if abi >= 6 else 0
    attributes = (ctypes.c_uint64 * 3)(every_right, network, scopes)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        allowed = _allow(libc, ruleset, [os.curdir], every_right & _NO_DEVICES_IN_FOLDER)
        python = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__)}
        _allow(libc, ruleset, [*_SYSTEM_FOLDERS, *python], _READ_FILE | _READ_DIR)
        _allow(libc, ruleset, _SYSTEM_FILES, _READ_FILE)
        _allow(libc, ruleset, reach.readable, _READ_FILE | _READ_DIR)
        _allow(libc, ruleset, reach.executable, _READ_FILE | _READ_DIR | _EXECUTE)
        return bool(allowed and libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, paths: Iterable[str], rights: int) -> bool:
    """Return whether every path that exists was allowed."""
    complete = True
    for path in paths:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        # A rule for a file must name rights of files only.
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = _PathBeneath(rights if folder else rights & _RIGHTS_OF_FILES, descriptor)
        done = libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(descriptor)
        complete = complete and done == 0
    return complete
