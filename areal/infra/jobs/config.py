"""The section `job` of a run: which processes, on what, started by whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class RoleConfig(Config):
    """Processes of one role, and what each of them needs."""

    count: int = number(1, at_least=1)
    """Processes of this role. Those of the trainer are ranks: as many as the sizes of archon.parallel multiply to."""
    per_node: int = number(1, at_least=1)
    """How many of them share a node; has to divide count."""
    gpus: int = number(0, at_least=0)
    """Devices of each process, dealt out in order from those that the scheduler gave; a rank takes one at most."""
    cpus: int = number(1, at_least=1)
    """Cores of each process; also its OMP_NUM_THREADS unless job.environment has one."""
    memory_gb: int = number(0, at_least=0)
    """Host memory of each process in GiB; 0 asks for none and takes what the scheduler gives."""
    nodes: str = ""
    """Nodes to choose from, as Slurm writes them (n[1-4]); empty leaves the choice to the scheduler. slurm only."""
    min_ready: int = number(0, at_least=0)
    """Processes of a role other than the trainer that have to be ready before ranks start, and for the run to go on; 0
    asks for all."""
    start: Literal["eager", "lazy"] = "eager"
    """Whether ranks wait for this role (eager), or start without it (lazy)."""
    max_restarts: int = number(3, at_least=0)
    """Further starts of one process after it ended; for the trainer, of all ranks together."""
    command: tuple[str, ...] = ()
    """Program and arguments in place of `areal train` or `areal serve`; the role reward has to have one."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """Where processes of a job meet."""

    interface: str = ""
    """Network interface whose address is announced, e.g. eth0; empty takes the one that leads to the other nodes."""
    master_ports: str = ""
    """Ports at which ranks may meet, LOW-HIGH, where a firewall asks for it; empty takes a free one."""
    meet_seconds: float = number(120.0, above=0)
    """How long the runners of an allocation wait for each other, once the first of them runs."""
    lease_seconds: float = number(30.0, at_least=1)
    """A node that was not heard of for this long counts as lost."""


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(Config):
    """What `sbatch` is asked for."""

    partition: str = ""
    """Partition; empty takes the cluster's default, as everywhere in this section."""
    account: str = ""
    """Account."""
    qos: str = ""
    """Quality of service."""
    time: str = "24:00:00"
    """Time limit as Slurm writes it: minutes, H:MM:SS or D-HH:MM:SS. A job that requeues goes on after it."""
    signal_seconds: int = number(240, at_least=1)
    """Notice before that limit; at least job.grace_seconds + 90, because Slurm looks at limits every half minute and
    sends notices up to a minute early."""
    gres: str = "gpu"
    """Name of devices, e.g. gpu or gpu:h100."""
    exclusive: bool = False
    """Take whole nodes."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch, each --name or --name=value."""


@dataclass(frozen=True, kw_only=True)
class RayConfig(Config):
    """Where in a Ray cluster a job is placed."""

    address: str = "auto"
    """auto joins the cluster of this machine; HOST:PORT another one; local starts one here for this job alone."""
    gpu_resource: str = "GPU"
    """Resource that counts devices: GPU, or a name of the cluster's own, e.g. NPU."""
    place_seconds: float = number(600.0, above=0)
    """How long to wait for nodes that are there and busy. What no node could ever hold is refused at once."""
    namespace: str = ""
    """Namespace of the actors; empty takes one of the job's own."""


@dataclass(frozen=True, kw_only=True)
class JobConfig(Config):
    """Processes of a run on one node or many. What belongs together is checked when it is compiled, all at once."""

    backend: Literal["local", "slurm", "ray"] = "local"
    """Who starts it; `areal launch --on` says otherwise."""
    name: str = "job"
    """Names the job and its folder: 1 to 64 letters, digits, '.', '_' and '-'."""
    directory: str = "runs/jobs"
    """Folder of jobs, each with a folder of its own; all nodes have to see it under this path."""
    max_restarts: int = number(3, at_least=0)
    """Further allocations after a node or its runner was lost. Preemptions and time limits do not count."""
    requeue: bool = True
    """Queue again when preempted, out of time, or after the loss of a node. slurm only."""
    grace_seconds: float = number(120.0, at_least=0)
    """Between the notice that it has to end and SIGKILL: time to finish a step and save."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of all processes, taken literally: nothing is expanded."""
    pass_environment: tuple[str, ...] = ()
    """Names of variables that are taken from whoever submits; all others are left behind."""
    secrets: tuple[str, ...] = ()
    """The same for values that nobody may see: they travel in a file of mode 0600, and are replaced by *** in every log
    line that is copied or shown."""
    image: str = ""
    """Container image, a path or a reference; empty runs without."""
    runtime: Literal["none", "apptainer", "docker", "pyxis"] = "none"
    """What starts the image: apptainer (local, slurm, ray), pyxis (slurm) or docker (local)."""
    mounts: tuple[str, ...] = ()
    """Folders of the host inside the container, HOST:CONTAINER or HOST:CONTAINER:ro. job.directory and the current
    folder are always mounted."""
    setup: tuple[tuple[str, ...], ...] = ()
    """Programs to run once per node before its roles, each a list of words: no shell reads them."""
    roles: dict[Literal["reward", "server", "trainer"], RoleConfig] = field(default_factory=dict)
    """Role to section; a trainer without one has one process."""
    colocate: tuple[Literal["server", "trainer"], ...] = ()
    """Roles that share their nodes and devices, [trainer, server] or none: devices count once, cores and memory add up.
    Servers and learner then take turns (servers.sleep_level), which needs max_head_offpolicyness 0."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """Addresses, ports and patience."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """Used with the backend slurm."""
    ray: RayConfig = field(default_factory=RayConfig)
    """Used with the backend ray."""
    keep_logs: int = number(5, at_least=1)
    """Starts whose logs are kept."""
