"""Everything that can be wrong with a description of a job, found at once and without starting anything.

Values that reach a script or an option of a scheduler must match a pattern here; all others travel as data in the plan.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from areal.infra.jobs.config import JobConfig, RoleConfig

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
PATH: Final = re.compile(r"[A-Za-z0-9._/+@=-]+")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GRES: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[A-Za-z0-9][A-Za-z0-9._-]*)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TIME: Final = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")
_HOSTS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,\[\]-]*")
_IMAGE: Final = re.compile(r"[A-Za-z0-9./][A-Za-z0-9._:/@#+-]*")
_MOUNT: Final = re.compile(r"/[A-Za-z0-9._/+@=-]*:/[A-Za-z0-9._/+@=-]*(:ro)?")
_OPTION: Final = re.compile(r"(?P<name>--[a-z][a-z0-9-]*)(=[A-Za-z0-9._:,/@%+=\[\]*-]+)?")
_INTERFACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,31}")
_PORTS: Final = re.compile(r"(?P<low>\d{1,5})-(?P<high>\d{1,5})")
_ADDRESS: Final = re.compile(r"auto|local|[A-Za-z0-9._\[\]:-]+:\d{1,5}")
OWNED_OPTIONS: Final = frozenset({
    "--array", "--chdir", "--cpus-per-task", "--error", "--exclusive", "--export", "--export-file", "--get-user-env",
    "--gres", "--input", "--job-name", "--mem", "--no-requeue", "--nodelist", "--nodes", "--ntasks",
    "--ntasks-per-node", "--open-mode", "--output", "--parsable", "--partition", "--requeue", "--signal", "--time",
    "--uid", "--wait", "--wrap",
})  # fmt: skip
"""Options of sbatch that the compiled script sets itself, or that would break it."""
_OWNED_VARIABLES: Final = frozenset({
    "CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE",
})  # fmt: skip
_OWNED_PREFIXES: Final = ("AREAL_JOB_", "AREAL_LAUNCH_", "AREAL_SERVER_INCARNATION", "SLURM_")
_RUNTIMES: Final = {
    "none": ("local", "slurm", "ray"), "apptainer": ("local", "slurm", "ray"), "docker": ("local",),
    "pyxis": ("slurm",),
}  # fmt: skip
_SHORTEST_SECRET: Final = 6
_SIGNAL_MARGIN_SECONDS: Final = 90
_LONGEST_TEXT: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What of a run matters to its job."""

    config: str
    """Absolute path of its configuration, and with which overrides it was resolved; for people."""
    overrides: tuple[str, ...] = ()
    content: str = ""
    """The resolved configuration as YAML, which the job's processes read; empty without one."""
    world_size: int | None = None
    """Ranks that archon.parallel asks for; None takes any number, 1 without archon."""
    uses_servers: bool = False
    """Whether rollout.engine is vllm, whose servers `areal serve` starts and servers.addresses names."""
    shares_memory: bool = False
    """Whether weights reach servers through memory of one machine (weights.carrier shared_memory)."""
    takes_turns: bool = False
    """Whether its servers free their devices while the learner works (servers.sleep_level)."""
    sleeps_learner: bool = False
    """Whether the learner frees its device as well (servers.sleep_learner)."""
    python: str
    working_folder: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProblem:
    """One contradiction."""

    key: str
    """Of the configuration, e.g. job.roles.trainer.count."""
    message: str
    fix: str

    def as_mapping(self) -> dict[str, str]:
        """Return it as errors list problems."""
        return {"key": self.key, "where": self.key, "message": self.message, "fix": self.fix}


def find_problems(job: JobConfig, run: RunFacts, environment: Mapping[str, str]) -> list[JobProblem]:
    """Return all contradictions, in the order of the section. environment: of whoever submits."""
    return [
        JobProblem(key=f"job.{key}", message=message, fix=fix)
        for part in (_names(job, run), _variables(job, environment), _container(job), _commands(job),
                     _roles(job, run), _sharing(job, run), _network(job), _slurm(job) if job.backend == "slurm" else (),
                     _ray(job) if job.backend == "ray" else ())
        for key, message, fix in part
    ]  # fmt: skip


def _names(job: JobConfig, run: RunFacts) -> Iterator[tuple[str, str, str]]:
    if not NAME.fullmatch(job.name):
        yield "name", f"is {_shown(job.name)}, expected 1 to 64 letters, digits, '.', '_' or '-'", "choose such a name"
    if not PATH.fullmatch(job.directory):
        yield (
            "directory", f"is {_shown(job.directory)}; it becomes part of scripts and options",
            "choose a path of letters, digits and ./_+@=- only",
        )  # fmt: skip
    for what, value in (("the interpreter", run.python), ("the current folder", run.working_folder)):
        if not PATH.fullmatch(value):
            yield "directory", f"{what} is at {_shown(value)}, which cannot be part of a script", "move it"


def _variables(job: JobConfig, environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    lists = {"environment": tuple(job.environment), "pass_environment": job.pass_environment, "secrets": job.secrets}
    for section, names in lists.items():
        for name in names:
            if not _VARIABLE.fullmatch(name):
                yield section, f"has the name {_shown(name)}, which is not that of a variable", "rename it"
            elif name in _OWNED_VARIABLES or name.startswith(_OWNED_PREFIXES):
                yield section, f"has {name}, which every process is given by its runner", "remove it"
            elif section != "environment" and name not in environment:
                yield section, f"has {name}, which is not set here", f"export {name}, or remove it"
    for name, value in job.environment.items():
        if (reason := _unfit(value)) is not None:
            yield "environment", f"has a value of {_shown(name)} that {reason}", "change the value"
    for name in job.secrets:
        if name in environment and len(environment[name]) < _SHORTEST_SECRET:
            yield (
                "secrets", f"has {name}, whose value is shorter than {_SHORTEST_SECRET} characters: other text in logs "
                f"could not be distinguished from it", "use a longer value, or pass_environment",
            )  # fmt: skip
    twice = [name for name, count in Counter(name for names in lists.values() for name in names).items() if count > 1]
    for name in twice:
        yield "environment", f"names {_shown(name)} more than once (with pass_environment and secrets)", "keep one"


def _container(job: JobConfig) -> Iterator[tuple[str, str, str]]:
    if job.backend not in _RUNTIMES[job.runtime]:
        yield (
            "runtime", f"{job.runtime} does not work with backend {job.backend}, only with "
            f"{', '.join(_RUNTIMES[job.runtime])}", "choose apptainer",
        )  # fmt: skip
    if bool(job.image) != (job.runtime != "none"):
        yield "image", f"is {_shown(job.image)} and runtime is {job.runtime}", "set both, or neither"
    if job.image and not _IMAGE.fullmatch(job.image):
        yield "image", f"is {_shown(job.image)}", "use letters, digits and ._:/@#+- only"
    if job.mounts and not job.image:
        yield "mounts", "there is nothing to mount folders into without an image", "set image, or remove mounts"
    for mount in job.mounts:
        if not _MOUNT.fullmatch(mount):
            yield "mounts", f"has {_shown(mount)}", "write /HOST:/CONTAINER or /HOST:/CONTAINER:ro"


def _commands(job: JobConfig) -> Iterator[tuple[str, str, str]]:
    lists = {f"setup.{number}": words for number, words in enumerate(job.setup)}
    lists |= {f"roles.{name}.command": role.command for name, role in job.roles.items() if role.command}
    for key, words in lists.items():
        if not words or not words[0]:
            yield key, "names no program", "write [program, argument, ...]"
        for word in words:
            if (reason := _unfit(word)) is not None:
                yield key, f"has the word {_shown(word)}, which {reason}", "change the word"


def _roles(job: JobConfig, run: RunFacts) -> Iterator[tuple[str, str, str]]:
    for name, role in job.roles.items():
        key = f"roles.{name}"
        if role.count % role.per_node:
            yield f"{key}.per_node", f"is {role.per_node}, which does not divide count {role.count}", "change one"
        if role.min_ready > role.count:
            yield f"{key}.min_ready", f"is {role.min_ready}, more than count {role.count}", "lower it"
        if role.nodes and job.backend != "slurm":
            yield f"{key}.nodes", f"names nodes, which backend {job.backend} does not choose by name", "remove it"
        if role.nodes and not _HOSTS.fullmatch(role.nodes):
            yield f"{key}.nodes", f"is {_shown(role.nodes)}", "write node names, e.g. n[1-4],n7"
        if name == "trainer" and (role.start == "lazy" or role.min_ready):
            yield key, "has start or min_ready; the trainer waits for others, nobody for it", "remove them"
        if name == "trainer" and role.gpus > 1:
            yield f"{key}.gpus", f"is {role.gpus}, and a rank uses one device", "raise count instead"
    trainer = job.roles.get("trainer")
    count = 1 if trainer is None else trainer.count
    own = trainer is not None and bool(trainer.command)
    if not own and not run.content:
        yield "roles.trainer.command", "is needed without a configuration of a run", "name a program"
    if not own and run.world_size is not None and count != run.world_size:
        yield (
            "roles.trainer.count", f"is {count}, and archon.parallel asks for {run.world_size} processes",
            f"set it to {run.world_size}, or change archon.parallel",
        )  # fmt: skip
    if "reward" in job.roles and not job.roles["reward"].command:
        yield "roles.reward.command", "is missing: areal has no reward service of its own", "name a program"
    server = job.roles.get("server")
    if server is not None and not server.command and not run.uses_servers:
        yield (
            "roles.server", "starts vLLM servers (areal serve), and rollout.engine is not vllm",
            "set rollout.engine to vllm, or name a command",
        )  # fmt: skip
    on_others = job.backend != "local" and not (job.colocate and trainer and trainer.count == trainer.per_node)
    if server is not None and on_others and not (own or server.command) and run.shares_memory:
        yield (
            "roles.server", "has nodes of its own, which weights.carrier shared_memory does not reach: they take no "
            "weights", "set weights.carrier to broadcast, shards or disk",
        )  # fmt: skip


def _sharing(job: JobConfig, run: RunFacts) -> Iterator[tuple[str, str, str]]:
    if not job.colocate:
        if run.sleeps_learner and "server" in job.roles:
            yield (
                "colocate", "is empty, and servers.sleep_learner frees the learner's device for servers that have "
                "others", "write [trainer, server], or set servers.sleep_learner to false",
            )  # fmt: skip
        return
    if sorted(job.colocate) != ["server", "trainer"]:
        yield "colocate", f"is {list(job.colocate)}", "write [trainer, server], or nothing"
        return
    missing = [f"job.roles.{name}" for name in job.colocate if name not in job.roles]
    if missing:
        yield "colocate", f"names roles that are not described: {', '.join(missing)}", "describe them"
        return
    trainer, server = job.roles["trainer"], job.roles["server"]
    facts: dict[str, Callable[[RoleConfig], object]] = {
        "nodes (count / per_node)": lambda role: role.count // role.per_node,
        "devices of a node (gpus * per_node)": lambda role: role.gpus * role.per_node,
        "names of nodes (nodes)": lambda role: role.nodes or "any",
    }
    for what, of in facts.items():
        if of(trainer) != of(server):
            yield (
                "colocate", f"needs the same {what} for both roles, and has {of(trainer)} for trainer and {of(server)} "
                f"for server", "change one",
            )  # fmt: skip
    own = not (trainer.command or server.command)
    if trainer.gpus and own and run.uses_servers and not run.takes_turns:
        yield (
            "colocate", "puts servers and learner on the same devices, and servers.sleep_level is 0: both would hold "
            "them all the time", "set servers.sleep_level to 1 or 2",
        )  # fmt: skip


def _network(job: JobConfig) -> Iterator[tuple[str, str, str]]:
    network = job.network
    if network.interface and not _INTERFACE.fullmatch(network.interface):
        yield "network.interface", f"is {_shown(network.interface)}", "write the name of an interface, e.g. eth0"
    if network.master_ports:
        match = _PORTS.fullmatch(network.master_ports)
        if match is None or not 1024 <= int(match["low"]) <= int(match["high"]) <= 65535:
            yield "network.master_ports", f"is {_shown(network.master_ports)}", "write LOW-HIGH within 1024-65535"


def _slurm(job: JobConfig) -> Iterator[tuple[str, str, str]]:
    slurm = job.slurm
    for name in ("partition", "account", "qos"):
        if (value := getattr(slurm, name)) and not _WORD.fullmatch(value):
            yield f"slurm.{name}", f"is {_shown(value)}", "use letters, digits, '.', '_' and '-' only"
    if not _GRES.fullmatch(slurm.gres):
        yield "slurm.gres", f"is {_shown(slurm.gres)}", "write NAME or NAME:TYPE"
    if not _TIME.fullmatch(slurm.time):
        yield "slurm.time", f"is {_shown(slurm.time)}", "write minutes, H:MM:SS or D-HH:MM:SS"
    needed = int(job.grace_seconds) + _SIGNAL_MARGIN_SECONDS
    if slurm.signal_seconds < needed:
        yield (
            "slurm.signal_seconds", f"is {slurm.signal_seconds}, and grace_seconds is {job.grace_seconds:g}: Slurm may "
            f"send the notice late", f"set it to {needed} or more",
        )  # fmt: skip
    for option in slurm.extra:
        match = _OPTION.fullmatch(option)
        if match is None:
            yield "slurm.extra", f"has {_shown(option)}", "write --name or --name=value with a plain value"
        elif match["name"] in OWNED_OPTIONS:
            yield "slurm.extra", f"has {match['name']}, which the script sets itself", "use the job's own settings"


def _ray(job: JobConfig) -> Iterator[tuple[str, str, str]]:
    if not _ADDRESS.fullmatch(job.ray.address):
        yield "ray.address", f"is {_shown(job.ray.address)}", "write auto, local or HOST:PORT"
    if not _WORD.fullmatch(job.ray.gpu_resource):
        yield "ray.gpu_resource", f"is {_shown(job.ray.gpu_resource)}", "write the name of a resource"
    if job.ray.namespace and not NAME.fullmatch(job.ray.namespace):
        yield "ray.namespace", f"is {_shown(job.ray.namespace)}", "use letters, digits, '.', '_' and '-' only"


def _unfit(text: str) -> str | None:
    """Say why no process can be given this text; None when it can, whatever is in it."""
    if "\0" in text:
        return "contains a zero byte"
    if len(text) > _LONGEST_TEXT:
        return f"has more than {_LONGEST_TEXT} characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return None


def _shown(value: str) -> str:
    return ascii(value if len(value) <= 80 else f"{value[:77]}...")


def message_of(problems: Iterable[JobProblem]) -> str:
    """Return all problems as one text, a line for each with its fix."""
    return "\n".join(f"{problem.key} {problem.message}; {problem.fix}" for problem in problems)
