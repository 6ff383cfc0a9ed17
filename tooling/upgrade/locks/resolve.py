"""Resolving each variant of a repository after a bump, in a temporary copy.

    lock(root, bumped.plan, policy, declarations, requests)

- A `uv.lock` is made anew with `uv lock`; its new content becomes part of the plan.
- Where the lock is a file of pins (constraints.txt), or there is none, `uv pip compile` tells whether the requirements
  can be satisfied together, and what they come to; nothing is written, since no tool made the file.

Nothing that is downloaded is built or run. A package that is published as source only cannot be looked into then: it is
left out of a check, with a note, and stops a lock.
"""

from __future__ import annotations

import functools
import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tooling.upgrade.declarations.find import project_table
from tooling.upgrade.declarations.lockfiles import Lock, read_lock
from tooling.upgrade.locks.conflicts import Attempted, parse_conflict, propose
from tooling.upgrade.locks.result import Conflict, LockAction, LockResult, compare_locks, versions
from tooling.upgrade.locks.uv import run_uv, stated_requirements, workspace
from tooling.upgrade.manifests.baseline import variants_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tooling.kit.change.plan import Plan
    from tooling.upgrade.declarations.declaration import Declarations
    from tooling.upgrade.manifests.requests import VersionRequest
    from tooling.upgrade.policy.watched import UpgradePolicy, Variant

_PINS = re.compile(r"\.(txt|in)$")
_UV_LOCK = re.compile(r"(^|/)uv(\.[\w-]+)?\.lock$")
_REQUESTED = "areal-requested.txt"
_EXCLUDED = "areal-excluded.txt"
_MOST_EXCLUDED = 8
"""Packages without wheels that are left out of one check before it is given up."""


@dataclass(frozen=True, slots=True)
class Job:
    """One variant to resolve."""

    root: Path
    plan: Plan
    policy: UpgradePolicy
    declarations: Declarations
    variant: Variant
    requests: tuple[VersionRequest, ...]
    offline: bool = False
    environment: Mapping[str, str] | None = None
    allow_builds: bool = False
    project: str = field(default="")


def lock(
    root: Path,
    plan: Plan,
    policy: UpgradePolicy,
    declarations: Declarations,
    requests: Sequence[VersionRequest],
    *,
    fix: bool = False,
    offline: bool = False,
    environment: Mapping[str, str] | None = None,
    allow_builds: bool = False,
) -> tuple[LockResult, ...]:
    """One result for each variant; new locks go into `plan`. fix: an own requirement that is the only obstacle is
    relaxed in the plan (otherwise it is proposed). environment: index settings for uv; None for pip's and uv's own.

    A conflict is a result, not an exception. Raises UsageError without uv, UpstreamError when the index is out of
    reach (OfflineError when `offline` and the resolver's cache lacks something), ResolutionError for other failures.
    """
    project = str(project_table(root).get("name", ""))
    results = []
    for variant in policy.variants:
        mine = tuple(each for each in requests if _concerns(each, variant, declarations, policy))
        job = Job(root, plan, policy, declarations, variant, mine, offline, environment, allow_builds, project)
        started = time.monotonic()
        result = _resolved(job, fix) if mine else _skipped(variant, "none of its packages is asked for")
        results.append(replace(result, seconds=time.monotonic() - started))
    return tuple(results)


def _concerns(request: VersionRequest, variant: Variant, declarations: Declarations, policy: UpgradePolicy) -> bool:
    if request.variant:
        return request.variant == variant.name
    package = policy.package(request.distribution)
    if package is not None and package.variants:
        return variant.name in package.variants
    declared = [each for each in declarations.of(request.distribution) if each.path in variant.manifests]
    if any(variant.name in variants_of(each, declarations, policy) for each in declared):
        return True
    return variant.lock.endswith(".lock") and not declared  # it may be there through other packages


def _skipped(variant: Variant, why: str) -> LockResult:
    return LockResult(variant=variant.name, made=LockAction.SKIPPED, versions={}, notes=(why,))


def _resolved(job: Job, fix: bool) -> LockResult:
    path = job.variant.lock
    if path and not _PINS.search(path) and not _UV_LOCK.search(path):
        return _skipped(job.variant, f"{path} is made by another tool: run it after the manifests have changed")
    locks = path.endswith(".lock")
    attempt = _lock if locks else _check
    result = LockResult(variant=job.variant.name, made=LockAction.LOCKED if locks else LockAction.CHECKED, versions={})
    attempted = attempt(job, {})
    if attempted.conflict is not None:
        found = propose(job.plan, attempted.conflict, job.declarations, job.requests, functools.partial(attempt, job))
        if found is not None and fix:
            found = found.written(job.plan)
            attempted = attempt(job, {})
        result = replace(result, proposal=found.record if found else None)
    result = replace(result, conflict=attempted.conflict, notes=attempted.notes)
    if attempted.lock is None:
        return result
    return _compared(job, result, attempted, attempted.lock)


def _compared(job: Job, result: LockResult, attempted: Attempted, new: Lock) -> LockResult:
    before: Lock | None
    if result.made is LockAction.LOCKED:
        file = job.root / job.variant.lock
        before = read_lock(job.variant.lock, file.read_bytes()) if file.is_file() else Lock(job.variant.lock, ())
    else:
        before = _check(replace(job, requests=()), {}, planned=False).lock
    if attempted.content is not None:
        reason = ", ".join(f"{each.distribution} {each.version}" for each in job.requests)
        job.plan.write(job.variant.lock, attempted.content, reason=reason)
    result = replace(result, versions=versions(new))
    if before is None:
        note = "the requirements could not be satisfied before either: nothing to compare with"
        return replace(result, notes=(*result.notes, note))
    return replace(result, changes=compare_locks(before, new))


# --------------------------------------------------------------------------------------------------------------- locks


def _lock(job: Job, overlay: Mapping[str, bytes]) -> Attempted:
    arguments = ["lock"]
    for each in job.requests:
        arguments += ["--upgrade-package", f"{each.distribution}=={each.version}"]
    if not job.allow_builds:
        arguments.append("--no-build")
    with workspace(job.root, job.plan, job.variant, job.declarations, overlay) as folder:
        outcome = run_uv(arguments, folder, environment=job.environment, offline=job.offline)
        if not outcome.solved:
            return Attempted(conflict=_conflict(job, outcome.complaint))
        content = (folder / "uv.lock").read_bytes()
    return Attempted(read_lock(job.variant.lock, content), content=content)


def _conflict(job: Job, complaint: str) -> Conflict:
    return parse_conflict(complaint, job.project, job.declarations)


# -------------------------------------------------------------------------------------------------------------- checks


def _check(job: Job, overlay: Mapping[str, bytes], *, planned: bool = True) -> Attempted:
    excluded: list[str] = []
    while True:
        attempted = _compiled(job, overlay, excluded, planned)
        unbuilt = attempted.conflict.unbuilt if attempted.conflict else ()
        new = [
            name
            for name in unbuilt
            if name not in excluded and name not in {each.distribution for each in job.requests}
        ]
        if not new or len(excluded) >= _MOST_EXCLUDED or job.allow_builds:
            note = "published as source only, so it and what it asks for were left out, since nothing downloaded is run"
            notes = tuple(f"{name} is {note}" for name in excluded)
            return replace(attempted, notes=(*attempted.notes, *notes))
        excluded += new


def _compiled(job: Job, overlay: Mapping[str, bytes], excluded: Sequence[str], planned: bool) -> Attempted:
    plan = job.plan if planned else None
    with workspace(job.root, plan, job.variant, job.declarations, overlay) as folder:
        arguments = ["pip", "compile", "--no-header", "--no-annotate", "--quiet", *_inputs(job, folder)]
        (folder / _REQUESTED).write_text("".join(f"{each.distribution}=={each.version}\n" for each in job.requests))
        (folder / _EXCLUDED).write_text("".join(f"{name}\n" for name in excluded))
        arguments += ["--constraints", _REQUESTED]
        if excluded:
            arguments += ["--excludes", _EXCLUDED]
        if job.variant.lock:
            arguments += ["--constraints", job.variant.lock]
        if not job.allow_builds:
            arguments.append("--no-build")
        outcome = run_uv(arguments, folder, environment=job.environment, offline=job.offline)
    if not outcome.solved:
        return Attempted(conflict=_conflict(job, outcome.complaint))
    return Attempted(read_lock("requirements.txt", outcome.output.encode()))


def _inputs(job: Job, folder: Path) -> list[str]:
    """Return what to resolve, and for which interpreter and platform."""
    variant = job.variant
    manifest = variant.manifests[0]
    project = project_table(folder)
    is_static = "name" in project and not {"dependencies", "optional-dependencies"} & set(project.get("dynamic", ()))
    arguments = []
    if manifest.endswith(".toml") and is_static:
        arguments.append("pyproject.toml")
        if variant.extras:
            arguments += [part for extra in variant.extras for part in ("--extra", extra)]
        elif (folder / "pyproject.toml").is_file():
            arguments += ["--all-extras"]
        arguments += [part for group in variant.groups for part in ("--group", group)]
    elif manifest.endswith((".txt", ".in")):
        arguments.append(manifest)
    else:
        (folder / "areal-stated.in").write_text(stated_requirements(job.declarations, variant))
        arguments.append("areal-stated.in")
    lowest = re.search(r">=\s*(3\.\d+)", str(project.get("requires-python", "")))
    python = variant.python or (lowest[1] if lowest else "")
    arguments += ["--python-version", python] if python else []
    arguments += ["--python-platform", variant.platform] if variant.platform else []
    return arguments
