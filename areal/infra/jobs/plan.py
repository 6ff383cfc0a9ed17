"""The plan of a job: what a description was compiled to, as plain data that every node reads. It holds no secrets.

plan.json    {"schema": 1, "name": "gsm8k", "roles": [{"name": "trainer", "processes": [...]}], ...}
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from areal.api import ConfigError

SCHEMA: Final = 1
FILE: Final = "plan.json"
CONFIG_FILE: Final = "run.yaml"
"""What processes of areal read: the configuration as it was resolved when the job was submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A word that only the node knows: it is appended to a command as prefix + value."""

    prefix: str
    """For example --host=."""
    value: str
    """directory or key_file (of the job); for services also address, port, name, ready_file or folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProcess:
    """One process: of a role, on a node of that role, in a slot of that node."""

    index: int
    """Within the role, from 0; the rank of a trainer."""
    node: int
    """Within the role, from 0."""
    slot: int
    """Within the node, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRole:
    """Processes of one role, which run the same command."""

    name: str
    command: tuple[str, ...]
    given: tuple[Given, ...]
    gpus: int
    """Of each process, as cpus and memory_gb."""
    cpus: int
    memory_gb: int
    per_node: int
    nodes: str
    min_ready: int
    eager: bool
    max_restarts: int
    processes: tuple[PlannedProcess, ...]

    @property
    def num_nodes(self) -> int:
        """Nodes of this role alone."""
        return len(self.processes) // self.per_node

    def on_node(self, node: int) -> tuple[PlannedProcess, ...]:
        """Return the processes of one node, by slot."""
        return self.processes[node * self.per_node : (node + 1) * self.per_node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Nodes, as many and as large as one role needs, or several that share them."""

    roles: tuple[PlannedRole, ...]

    @property
    def name(self) -> str:
        """For people and schedulers."""
        return "+".join(role.name for role in self.roles)

    @property
    def num_nodes(self) -> int:
        """The same for all of its roles."""
        return self.roles[0].num_nodes

    @property
    def shape(self) -> tuple[int, int, int, str]:
        """What one node has to have: devices, which its roles share, cores and GiB, and which nodes may be chosen."""
        gpus, cpus, memory_gb = (
            [getattr(role, what) * role.per_node for role in self.roles] for what in ("gpus", "cpus", "memory_gb")
        )
        return (max(gpus), sum(cpus), sum(memory_gb), self.roles[0].nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """Everything about a job but values of secrets and passed variables, which are in its private file."""

    id: str
    """Random; one per submission."""
    name: str
    backend: str
    folder: str
    """Absolute folder of the job."""
    working_folder: str
    """Where commands run."""
    python: str
    """Interpreter of runners."""
    version: str
    """Of areal, the same on all nodes."""
    roles: tuple[PlannedRole, ...]
    """The trainer first: its first runner leads."""
    colocate: tuple[str, ...] = ()
    """Names of roles on the same nodes and devices."""
    environment: dict[str, str]
    passed: tuple[str, ...]
    """Names of variables in the private file, and of secrets there."""
    secrets: tuple[str, ...]
    setup: tuple[tuple[str, ...], ...]
    image: str
    runtime: str
    mounts: tuple[str, ...]
    max_restarts: int
    requeue: bool
    grace_seconds: float
    keep_logs: int
    network: dict[str, Any]
    config: str = ""
    """Content of run.yaml: the whole configuration of the run, overrides included; empty without one."""
    config_source: tuple[str, ...] = ()
    """The file it was resolved from and the overrides, for people; no process of the job reads them."""
    slurm: dict[str, Any] = field(default_factory=dict)
    ray: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def sites(self) -> list[Site]:
        """All nodes of the job, in the order of its roles: those of one role, or of the roles that share theirs."""
        shared = tuple(role for role in self.roles if role.name in self.colocate)
        groups = [shared if role in shared else (role,) for role in self.roles]
        return [Site(roles=roles) for roles in dict.fromkeys(groups)]

    @property
    def num_nodes(self) -> int:
        """Nodes of the job, counted as if no two sites shared one."""
        return sum(site.num_nodes for site in self.sites)

    @property
    def runners(self) -> list[tuple[str, int]]:
        """(role, node) of every node runner."""
        return [(role.name, node) for role in self.roles for node in range(role.num_nodes)]

    def role(self, name: str) -> PlannedRole:
        """Return a role by name. Raises ConfigError for another one."""
        for role in self.roles:
            if role.name == name:
                return role
        known = ", ".join(role.name for role in self.roles)
        raise ConfigError(
            f"the plan has no role {name!r}; it has {known}",
            where=str(Path(self.folder, FILE)),
            fix=f"name one of {known}",
        )

    def to_json(self) -> str:
        """Return the content of plan.json."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @property
    def digest(self) -> str:
        """Which plan this is; runners compare it."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def read_plan(path: Path) -> JobPlan:
    """Read plan.json. Raises ConfigError when it is missing, damaged or of another version of its format."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ConfigError(
                f"{path} has schema {data['schema']}, expected {SCHEMA}",
                where=str(path),
                fix="submit the job with this version of areal",
            )
        roles = tuple(
            PlannedRole(
                **{
                    **role,
                    "command": tuple(role["command"]),
                    "given": tuple(Given(**one) for one in role["given"]),
                    "processes": tuple(PlannedProcess(**one) for one in role["processes"]),
                }
            )
            for role in data["roles"]
        )
        setup = tuple(tuple(words) for words in data["setup"])
        names = ("passed", "secrets", "mounts", "config_source", "colocate")
        lists = {name: tuple(data[name]) for name in names if name in data}
        return JobPlan(**{**data, **lists, "roles": roles, "setup": setup})
    except OSError as error:
        raise ConfigError(
            f"cannot read the plan {path}: {error}",
            where=str(path),
            fix="see that this node sees the folder of the job",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not a plan of a job: {error!r}", where=str(path), fix="submit the job again"
        ) from error
