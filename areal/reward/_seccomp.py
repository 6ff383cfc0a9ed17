"""Refuses, for good, system calls that a program under test has no business with. Linux only.

    refuse_system_calls(start_programs=False)      -> True when the kernel took the filter

Refused with "operation not permitted": new processes (threads are allowed), signals to others, sockets, tracing and
reading other processes, mounts and namespaces, keys, shared memory and queues that outlive a process, kernel modules,
and interfaces known mostly for their bugs (io_uring, bpf, userfaultfd). Needs "no new privileges" beforehand. It knows
the numbers of x86-64 and 64-bit ARM; elsewhere it does nothing and says so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in what the kernel shows a filter; the low half of the argument comes first on both architectures."""
_CLONE_THREAD: Final = 0x00010000
_X32: Final = 0x40000000
"""From here on, numbers on x86-64 are those of another calling convention."""
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# (x86-64, ARM); numbers from 424 on are the same everywhere.
_CLONE, _CLONE3, _KILL, _TGKILL = (56, 220), (435, 435), (62, 129), (234, 131)
_STARTS_PROGRAMS: Final = {"execve": (59, 221), "execveat": (322, 281)}
_REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fork": (57, None),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "tkill": (200, 130),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, None),
}


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def refuse_system_calls(*, start_programs: bool) -> bool:
    """Install the filter in this thread and all that follow from it; return whether it is in force.

    start_programs: leave `execve` alone, for a process that is about to become another program. Signals to itself
    stay allowed, under the process number it has now.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or architecture is None:
        return False
    code = _instructions(*architecture, start_programs=start_programs)
    program = _Filter(len(code) // 8, code)
    return ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0


def _instructions(token: int, column: int, *, start_programs: bool) -> bytes:
    refuse, absent = _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS
    numbers = [numbers[column] for numbers in _REFUSED.values()]
    numbers += [] if start_programs else [numbers[column] for numbers in _STARTS_PROGRAMS.values()]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, token),
        (_RETURN, 0, 0, refuse),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_GREATER_EQUAL, 0, 1, _X32),
        (_RETURN, 0, 0, refuse),
    ]
    for number in sorted(number for number in numbers if number is not None):
        steps += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    # The C library falls back to `clone`, whose flags a filter can see, where `clone3` does not exist.
    steps += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, absent)]
    own = os.getpid()
    for call, test, wanted in (
        (_CLONE, _JUMP_ANY_BIT, _CLONE_THREAD),
        (_KILL, _JUMP_EQUAL, own),
        (_TGKILL, _JUMP_EQUAL, own),
    ):
        steps += [
            (_JUMP_EQUAL, 0, 4, call[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (test, 0, 1, wanted),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, refuse),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
