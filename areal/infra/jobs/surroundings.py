"""What a node has for its processes: variables that stay, devices that the scheduler gave, and free ports."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError, EngineError
from areal.infra.supervisor.process import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.infra.jobs.plan import PlannedRole

DEVICES_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
_KEPT: Final = frozenset({
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME",
    "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_VISIBLE_DEVICES", "PATH", "ROCR_VISIBLE_DEVICES", "SHELL", "TMPDIR", "TZ",
    "USER",
})  # fmt: skip
_KEPT_PREFIX: Final = "SLURM_"
_DEVICE_FILES: Final = re.compile(r"nvidia(\d+)")
_EPHEMERAL_PORTS: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def node_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what processes of a job keep of a node's own variables; everything else is left behind."""
    return {name: value for name, value in inherited.items() if name in _KEPT or name.startswith(_KEPT_PREFIX)}


def visible_devices(environment: Mapping[str, str]) -> list[str]:
    """Return the devices that are given to this process: those of CUDA_VISIBLE_DEVICES, or all of this machine."""
    if (text := environment.get(DEVICES_VARIABLE)) is not None:
        return [name for name in text.split(",") if name]
    files = (match[1] for path in Path("/dev").glob("nvidia*") if (match := _DEVICE_FILES.fullmatch(path.name)))
    return sorted(files, key=int)


def deal_devices(role: PlannedRole, devices: list[str]) -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each slot of a node.

    Ranks see all devices of their node's ranks, and take the one of LOCAL_RANK. Raises ConfigError when too few are
    there.
    """
    needed = role.gpus * role.per_node
    if len(devices) < needed:
        raise ConfigError(
            f"role {role.name} needs {needed} devices on this node ({role.per_node} processes with {role.gpus}), and "
            f"the scheduler gave {len(devices)}: {','.join(devices) or 'none'}",
            where=f"job.roles.{role.name}",
            fix=f"lower job.roles.{role.name}.gpus or per_node, or ask for other nodes",
        )
    if role.name == "trainer":
        return [",".join(devices[:needed])] * role.per_node
    return [",".join(devices[slot * role.gpus : (slot + 1) * role.gpus]) for slot in range(role.per_node)]


def choose_port(host: str, ports: str) -> int:
    """Return a port of `host` that is free now. ports: LOW-HIGH, or empty for any.

    Raises ConfigError for a range inside the kernel's own, EngineError when all of it is taken.
    """
    if not ports:
        return free_port(host)
    low, high = (int(word) for word in ports.split("-"))
    try:
        first, last = (int(word) for word in _EPHEMERAL_PORTS.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first, last = 0, -1
    if low <= last and first <= high:
        raise ConfigError(
            f"job.network.master_ports is {ports}, and the kernel hands out {first}-{last} to anybody who connects",
            where="job.network.master_ports",
            fix="choose ports outside of that range",
        )
    for port in range(low, high + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise EngineError(
        f"all ports of {host} in job.network.master_ports ({ports}) are taken",
        where="job.network.master_ports",
        fix="widen the range",
    )


def use_environment(environment: Mapping[str, str]) -> None:
    """Make this the environment of the process and of all that it starts."""
    os.environ.clear()
    os.environ.update(environment)
