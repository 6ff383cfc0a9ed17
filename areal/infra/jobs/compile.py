"""Compile the description of a job to its plan. Pure: reads no file, asks no scheduler, loads no torch."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError
from areal.infra.jobs.checks import RunFacts, find_problems, message_of
from areal.infra.jobs.config import RoleConfig
from areal.infra.jobs.plan import CONFIG_FILE, Given, JobPlan, PlannedProcess, PlannedRole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.infra.jobs.config import JobConfig

TRAINER: Final = "trainer"
LOCK_FILE: Final = "device.lock"
"""In the folder of the job: of a device that servers and learner have in turn."""
_ORDER: Final = (TRAINER, "server", "reward")
_DIRECTORY: Final = (
    Given(prefix="servers.directory=", value="directory"),
    Given(prefix="servers.directory_key=", value="key_file"),
)
"""By which servers and trainer find each other while both come and go."""


def compile_plan(job: JobConfig, run: RunFacts, environment: Mapping[str, str], *, id: str = "") -> JobPlan:
    """Return the plan. environment: of whoever submits, for names only. id: of the submission; empty draws one.

    Raises ConfigError with every contradiction of the section, each with key, message and fix.
    """
    problems = find_problems(job, run, environment)
    if problems:
        raise ConfigError(
            f"the section job cannot be run:\n{message_of(problems)}",
            where=problems[0].key,
            fix=problems[0].fix,
            problems=[problem.as_mapping() for problem in problems],
        )
    roles = {TRAINER: RoleConfig()} | dict(job.roles)
    folder = str(Path(run.working_folder, job.directory, job.name))
    return JobPlan(
        id=id or secrets.token_hex(6),
        name=job.name,
        backend=job.backend,
        folder=folder,
        working_folder=run.working_folder,
        python=run.python,
        version=run.version,
        roles=tuple(_role(name, roles, run, str(Path(folder, CONFIG_FILE))) for name in _ORDER if name in roles),
        colocate=job.colocate,
        environment=dict(job.environment),
        passed=job.pass_environment,
        secrets=job.secrets,
        setup=job.setup,
        image=job.image,
        runtime=job.runtime,
        mounts=job.mounts,
        max_restarts=job.max_restarts,
        requeue=job.requeue,
        grace_seconds=job.grace_seconds,
        keep_logs=job.keep_logs,
        network=asdict(job.network),
        config=run.content,
        config_source=(run.config, *run.overrides) if run.content else (),
        slurm={**asdict(job.slurm), "extra": list(job.slurm.extra)} if job.backend == "slurm" else {},
        ray=asdict(job.ray) if job.backend == "ray" else {},
    )


def _role(name: str, roles: Mapping[str, RoleConfig], run: RunFacts, config: str) -> PlannedRole:
    """config: where its processes find the resolved configuration; the file it came from may change meanwhile."""
    role, num_servers = roles[name], roles["server"].count if "server" in roles else 0
    # Both are on one node: a learner that sleeps is one process.
    lock = (f"servers.device_lock={Path(config).parent / LOCK_FILE}",) if run.sleeps_learner and num_servers else ()
    given: tuple[Given, ...] = ()
    command = role.command
    if not command and name == TRAINER:
        command = (run.python, "-m", "areal", "train", config)
        if run.uses_servers and num_servers:
            command = (*command, f"servers.num_servers={num_servers}", *lock)
            given = _DIRECTORY
    elif not command:
        command = (run.python, "-m", "areal", "serve", config, *lock)
        options = {"--host=": "address", "--port=": "port", "--name=": "name", "--ready-file=": "ready_file",
                   "--folder=": "folder"}  # fmt: skip
        given = (*_DIRECTORY, *(Given(prefix=prefix, value=value) for prefix, value in options.items()))
    return PlannedRole(
        name=name,
        command=command,
        given=given,
        gpus=role.gpus,
        cpus=role.cpus,
        memory_gb=role.memory_gb,
        per_node=role.per_node,
        nodes=role.nodes,
        min_ready=0 if name == TRAINER or role.start == "lazy" else role.min_ready or role.count,
        eager=role.start == "eager",
        max_restarts=role.max_restarts,
        processes=tuple(
            PlannedProcess(index=index, node=index // role.per_node, slot=index % role.per_node)
            for index in range(role.count)
        ),
    )


def describe(plan: JobPlan) -> str:
    """Return the plan as a table for people: a row per node of a role, its processes, and the command of the role."""
    head = f"job {plan.name} with {plan.backend}: {plan.num_nodes} node{'s' * (plan.num_nodes != 1)}, in {plan.folder}"
    lines = [head, "", "role     node  processes  each"]
    for role in plan.roles:
        memory = f", {role.memory_gb} GiB" if role.memory_gb else ""
        each = f"{role.cpus} cpu{'s' * (role.cpus > 1)}, {role.gpus} gpu{'s' * (role.gpus != 1)}{memory}"
        for node in range(role.num_nodes):
            indices = [process.index for process in role.on_node(node)]
            span = str(indices[0]) if len(indices) == 1 else f"{indices[0]}-{indices[-1]}"
            lines.append(f"{role.name:<8} {node:>4}  {span:>9}  {each}")
    if plan.colocate:
        lines.append(f"{' and '.join(plan.colocate)} share nodes and devices, and take turns")
    lines.append("")
    if plan.config:
        path = str(Path(plan.folder, CONFIG_FILE))
        lines.append(f"configuration: {_quoted(path)}, resolved from {' '.join(map(_quoted, plan.config_source))}")
    for role in plan.roles:
        words = [*role.command, *(f"{one.prefix}<{one.value}>" for one in role.given)]
        lines.append(f"{role.name}: {' '.join(map(_quoted, words))}")
    names = sorted([*plan.environment, *plan.passed, *(f"{name} (secret)" for name in plan.secrets)])
    lines.append(f"environment: {', '.join(names) if names else 'none of its own'}")
    return "\n".join(lines)


def _quoted(word: str) -> str:
    """Return a word, in quotes where its ends would not be seen."""
    return word if word and word.isascii() and word.isprintable() and not set(word) & set(" \"'\\") else ascii(word)
