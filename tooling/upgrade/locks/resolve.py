"""Resolving each variant of a repository after a bump, in a temporary copy.

    lock(root, bumped.plan, policy, declarations, requests, judge=audited)

- A `uv.lock` is made anew with `uv lock`; its new content becomes part of the plan.
- Where the lock is a file of pins (constraints.txt), or there is none, `uv pip compile` tells whether the requirements
  can be satisfied together, and what they come to; nothing is written, since no tool made the file.
- An environment that a script makes for itself is resolved on its own, once for each of its installs: the versions that
  a server runs with need not fit the project's.

Nothing that is downloaded is built or run. A package that is published as source only cannot be looked into then: it is
left out of a check, with a note, and stops a lock.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

from tooling.cli.errors import ToolError, UsageError
from tooling.kit.change.plan import Plan
from tooling.upgrade.declarations.commands import Install, script_environments
from tooling.upgrade.declarations.declaration import (
    DeclarationKind,
    SpecifierStyle,
    as_pep508,
    is_compiled,
    read_requirement,
)
from tooling.upgrade.declarations.find import manifest_table, read_declarations, repository_files
from tooling.upgrade.declarations.lockfiles import Lock, read_lock
from tooling.upgrade.errors import OfflineError, ResolverError, UpstreamError
from tooling.upgrade.locks.conflicts import Attempted, missing_local_builds, parse_conflict, propose
from tooling.upgrade.locks.result import LockAction, LockResult, compare_locks, versions
from tooling.upgrade.manifests.baseline import variants_of
from tooling.upgrade.manifests.specifiers import allows, parse_version
from tooling.upgrade.sources.index_config import read_pip_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tooling.upgrade.declarations.declaration import Declaration, Declarations
    from tooling.upgrade.locks.result import RelaxProposal
    from tooling.upgrade.manifests.requests import VersionRequest
    from tooling.upgrade.policy.watched import UpgradePolicy, Variant


_NAMES = frozenset({"pyproject.toml", "uv.toml", ".python-version", "setup.cfg"})
_LIMIT = 4_000_000


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
    project: str = ""
    install: Install | None = None
    """What the script of the variant's environment installs, after the plan and before it."""
    install_before: Install | None = None


@contextmanager
def workspace(job: Job, overlay: Mapping[str, bytes], *, planned: bool = True) -> Iterator[Path]:
    """Make the folder. overlay: contents on top of the plan's. planned: False for the tree as it is.

    A variant's manifest and lock stand in it under the names the resolver looks for."""
    root, variant = job.root, job.variant
    plan = job.plan if planned else Plan(root)
    with tempfile.TemporaryDirectory(prefix="areal-lock-") as name:
        folder = Path(name)
        wanted = {*variant.manifests, *job.declarations.files, *([variant.lock] if variant.lock else [])}
        wanted |= {*job.install.constraints, *job.install.overrides} if job.install is not None else set()
        for file in repository_files(root):
            base = file.rpartition("/")[2]
            if base in _NAMES or ("/" not in file and base.upper().startswith(("README", "LICENSE"))):
                wanted.add(file)
        for path in sorted(wanted):
            try:
                content = overlay[path] if path in overlay else plan.read(path)
            except (OSError, ToolError):
                continue
            if content is not None and len(content) <= _LIMIT:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
        links = manifest_table(root, "tool", "uv").get("find-links", [])
        for link in links:  # folders of wheels, which uv looks for beside the manifest
            source, target = root / link, folder / link
            if source.is_dir() and not target.exists() and target.resolve().is_relative_to(folder.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(source.resolve(), target_is_directory=True)
        manifest = variant.manifests[0]
        if manifest != "pyproject.toml" and manifest.endswith(".toml"):
            shutil.copyfile(folder / manifest, folder / "pyproject.toml")
        if variant.lock.endswith(".lock") and (folder / variant.lock).is_file():
            if variant.lock != "uv.lock":
                shutil.copyfile(folder / variant.lock, folder / "uv.lock")
        else:
            (folder / "uv.lock").unlink(missing_ok=True)  # another variant's
        yield folder


def stated_requirements(found: Iterable[Declaration], variant: Variant) -> tuple[str, tuple[str, ...]]:
    """Return the requirements of a manifest that the resolver does not read (setup.py, Poetry, conda), as far as they
    are written out; and notes on those that PEP 508 cannot express, which are resolved with any version."""
    lines, notes = [], []
    for each in found:
        if each.kind not in {DeclarationKind.REQUIREMENT, DeclarationKind.SOURCE}:
            continue
        if each.group and variant.extras and each.group not in {*variant.extras, *variant.groups}:
            continue
        if each.style is SpecifierStyle.PEP508:
            lines.append(each.text)
        elif each.style is not SpecifierStyle.OPAQUE and each.distribution != "python":
            marker = f"; {each.marker}" if each.marker else ""
            extras = f"[{','.join(each.extras)}]" if each.extras else ""
            specifier = as_pep508(each.specifier, each.style)
            line = f"{each.distribution}{extras}{specifier or ''}{marker}"
            try:
                Requirement(line)
            except InvalidRequirement:
                line, specifier = each.distribution, None
            if specifier is None:
                notes.append(
                    f"{each.where}: {each.text} cannot be expressed in PEP 508, so any version of it was accepted"
                )
            lines.append(line)
    return "\n".join([*lines, ""]), tuple(notes)


_OFFLINE = re.compile(r"network (?:was|is) disabled|not found in the cache", re.IGNORECASE)
_NETWORK = re.compile(r"error sending request|dns error|failed to (?:fetch|download|connect)|timed out", re.IGNORECASE)
_CONFLICT = re.compile(r"No solution found|requirements are unsatisfiable|cannot be used together", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CREDENTIALS = re.compile(r"(https?://)[^/\s@]+@")


def find_uv() -> str:
    """Path of the program. Raises UsageError when there is none."""
    beside = Path(sys.executable).parent / "uv"
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise UsageError("the `uv` program was not found", fix="`pip install uv`, or leave locks alone with --no-lock")
    return found


def pip_environment() -> dict[str, str]:
    """Return pip's index settings as uv's variables, without those that the environment sets for uv already."""
    pip = read_pip_config({"VIRTUAL_ENV": sys.prefix, **os.environ})
    variables = {
        "UV_FIND_LINKS": ",".join(pip.find_links),
        "UV_DEFAULT_INDEX": pip.default.url if pip.default else "",
        "UV_INDEX": " ".join(index.url for index in pip.indexes),
        "SSL_CERT_FILE": pip.certificates or "",
    }
    if pip.indexes:
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip's rule: the best version from any index
    return {name: value for name, value in variables.items() if value and name not in os.environ}


_LIMIT_SECONDS = 600


def run_uv(arguments: Sequence[str], folder: Path, *, offline: bool = False) -> tuple[str, str]:
    """Run uv in a folder; (what it printed, its words about a conflict: "" where it found a solution).

    Raises ResolverError for failures that are not conflicts, UpstreamError (OfflineError) when the index could not be
    reached, UsageError when there is no uv."""
    variables = {
        "UV_PYTHON_DOWNLOADS": "never",  # unless the user says otherwise: a question about versions installs nothing
        **os.environ,
        **pip_environment(),
        "NO_COLOR": "1",
        "UV_NO_PROGRESS": "1",
    }
    variables.pop("VIRTUAL_ENV", None)  # uv would warn that it is not the project's
    if offline:
        variables["UV_OFFLINE"] = "1"
    command = [find_uv(), *arguments]
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=_LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ResolverError(
            f"uv did not finish within {_LIMIT_SECONDS} s", fix="try again, or use --no-lock"
        ) from error
    complaint = _clean(done.stderr)
    if done.returncode == 0:
        return done.stdout, ""
    if offline and _OFFLINE.search(complaint):
        message = "the resolver's cache lacks something, and the network may not be used"
        raise OfflineError(message, fix="run once without --offline, or use --no-lock")
    if _CONFLICT.search(complaint):
        return "", complaint
    if _NETWORK.search(complaint):
        raise UpstreamError(f"the index cannot be reached: {_first(complaint)}", fix="try again, or use --no-lock")
    fix = "make `uv lock` work here (--json: all it said is in `raw`)"
    if "interpreter" in complaint:
        fix = "install the Python that the project requires, or let uv do so (UV_PYTHON_DOWNLOADS=automatic)"
    raise ResolverError(f"uv failed: {_first(complaint)}", fix=f"{fix}, or use --no-lock", details={"raw": complaint})


def _first(complaint: str) -> str:
    marks = ("error", "  cause", "  \u00d7", "  \u2570")
    lines = [line for line in complaint.splitlines() if line.startswith(marks)]
    return " ".join(line.strip() for line in lines[:3])[:500] or complaint.strip()[:500] or "it said nothing"


def _clean(text: str) -> str:
    return _CREDENTIALS.sub(r"\1", _COLOUR.sub("", text))


_PINS = re.compile(r"\.(txt|in)$")
_UV_LOCK = re.compile(r"(^|/)uv(\.[\w-]+)?\.lock$")
_REQUESTED = "areal-requested.txt"
_EXCLUDED = "areal-excluded.txt"
_REPLACED = "areal-replaced.txt"
_STATED = "areal-stated.in"
_MOST_EXCLUDED = 8
"""Packages without wheels that are left out of one check before it is given up."""


def lock(
    root: Path,
    plan: Plan,
    policy: UpgradePolicy,
    declarations: Declarations,
    requests: Sequence[VersionRequest],
    *,
    judge: Callable[[RelaxProposal], RelaxProposal],
    fix: bool = False,
    offline: bool = False,
) -> tuple[LockResult, ...]:
    """One result for each variant, for each install of one that a script makes; new locks go into `plan`. judge: fills
    in what a proposal would break. fix: an own requirement that is the only obstacle is relaxed in the plan, if that
    breaks nothing (otherwise it is proposed).

    A conflict is a result, not an exception. Raises UsageError without uv, UpstreamError when the index is out of
    reach (OfflineError when `offline` and the resolver's cache lacks something), ResolverError for other failures.
    """
    project = str(manifest_table(root, "project").get("name", ""))
    results = []
    for variant in policy.variants:
        whole = Job(root, plan, policy, declarations, variant, tuple(requests), offline)
        if variant.folder:
            jobs = list(_installs(whole))
        else:
            mine = tuple(each for each in requests if _concerns(each, variant, declarations, policy))
            jobs = [replace(whole, requests=mine, project=project)]
        for job in jobs:
            started = time.monotonic()
            result = (
                _resolved(job, fix, judge) if job.requests else _skipped(variant, "none of its packages is asked for")
            )
            results.append(replace(result, seconds=time.monotonic() - started))
    return tuple(results)


def _installs(job: Job) -> Iterator[Job]:
    """Yield one job for each install of a script's environment that the requests are about."""
    (path,) = job.variant.manifests
    texts = [job.plan.read(path) or b"", (job.root / path).read_bytes()]
    after, before = (
        next((each.installs for each in script_environments(text.decode()) if each.folder == job.variant.folder), ())
        for text in texts
    )
    for new, old in zip(after, before, strict=True):  # a bump changes versions, not commands
        pins = {parts.name: parts.specifier for each in new.requirements if (parts := read_requirement(each))}
        for file in (*new.constraints, *new.overrides):
            declared = read_declarations(file, (job.plan.read(file) or b"").decode(errors="replace"))
            pins.update({each.distribution: each.specifier for each in declared})
        mine = []
        for request in job.requests:
            builds = {each.distribution for each in job.declarations.of(request.distribution) if each.path == path}
            named = {pins[name] for name in (request.distribution, *builds) if name in pins}
            # A pin of another version was left alone on purpose: the request is not about it.
            if request.variant in {"", job.variant.name} and any(
                allows(pin, parse_version(request.version)) is not False for pin in named
            ):
                mine.append(request)
        if mine:
            yield replace(job, requests=tuple(mine), install=new, install_before=old)


def _concerns(request: VersionRequest, variant: Variant, declarations: Declarations, policy: UpgradePolicy) -> bool:
    if request.variant:
        return request.variant == variant.name
    package = policy.package(request.distribution)
    if package is not None and package.variants:
        return variant.name in package.variants
    declared = [each for each in declarations.of(request.distribution) if each.path in variant.manifests]
    if any(variant.name in variants_of(each, declarations, policy) for each in declared):
        return True
    elsewhere = {each.manifests[0] for each in policy.variants if each.folder}
    if any(each.path in elsewhere for each in declarations.of(request.distribution)):
        return False
    return variant.lock.endswith(".lock") and not declared  # it may be there through other packages


def _skipped(variant: Variant, why: str) -> LockResult:
    return LockResult(variant=variant.name, made=LockAction.SKIPPED, versions={}, notes=(why,))


def _resolved(job: Job, fix: bool, judge: Callable[[RelaxProposal], RelaxProposal]) -> LockResult:
    path = job.variant.lock
    if path and not _PINS.search(path) and not _UV_LOCK.search(path):
        return _skipped(job.variant, f"{path} is made by another tool: run it after the manifests have changed")
    locks = path.endswith(".lock")
    attempt = _lock if locks else _check
    made = LockAction.LOCKED if locks else LockAction.CHECKED
    result = LockResult(variant=job.variant.name, made=made, versions={})
    if job.install is not None:
        names = {parts.name for each in job.install.requirements if (parts := read_requirement(each))}
        places = [each for each in job.declarations.found if each.path in job.variant.manifests]
        where = next((each.where for each in places if each.distribution in names), job.variant.manifests[0])
        result = replace(result, installs=job.install.requirements, where=where)
    attempted = attempt(job, {})
    if attempted.conflict is not None:
        found = propose(job.plan, attempted.conflict, job.declarations, job.requests, functools.partial(attempt, job))
        if found is not None:
            proposal, content = judge(found[0]), found[1]
            if fix and proposal.breaking == 0:
                declared, proposal = proposal.declaration, replace(proposal, applied=True)
                job.plan.write(declared.path, content, reason=f"{declared.distribution} {proposal.version}")
                attempted = attempt(job, {})
            result = replace(result, proposal=proposal)
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
        before = _check(replace(job, requests=(), install=job.install_before), {}, planned=False).lock
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
    arguments = ["lock", "--no-build"]
    for each in job.requests:
        arguments += ["--upgrade-package", f"{each.distribution}=={each.version}"]
    with workspace(job, overlay) as folder:
        _, complaint = run_uv(arguments, folder, offline=job.offline)
        if complaint:
            return Attempted(conflict=parse_conflict(complaint, job.project, job.declarations))
        content = (folder / "uv.lock").read_bytes()
    return Attempted(read_lock(job.variant.lock, content), content=content)


# -------------------------------------------------------------------------------------------------------------- checks


def _check(job: Job, overlay: Mapping[str, bytes], *, planned: bool = True) -> Attempted:
    excluded: list[str] = []
    replaced: dict[str, str] = {}
    while True:
        attempted = _compiled(job, overlay, excluded, replaced, planned)
        local = missing_local_builds(attempted.conflict) if attempted.conflict else {}
        if local.keys() - replaced.keys():
            replaced |= local
            continue
        unbuilt = attempted.conflict.unbuilt if attempted.conflict else ()
        new = [
            name
            for name in unbuilt
            if name not in excluded and name not in {each.distribution for each in job.requests}
        ]
        if not new or len(excluded) >= _MOST_EXCLUDED:
            note = "published as source only, so it and what it asks for were left out, since nothing downloaded is run"
            notes = tuple(f"{name} is {note}" for name in excluded)
            for name, version in replaced.items():
                instead = f"the requirements were resolved with {name} {version.partition('+')[0]} in its place"
                notes += (f"no index configured here has {name} {version}: {instead}",)
            return replace(attempted, notes=(*attempted.notes, *notes))
        excluded += new


def _compiled(
    job: Job, overlay: Mapping[str, bytes], excluded: Sequence[str], replaced: Mapping[str, str], planned: bool
) -> Attempted:
    with workspace(job, overlay, planned=planned) as folder:
        inputs, notes = _inputs(job, folder)
        arguments = ["pip", "compile", "--no-header", "--no-annotate", "--no-build", "--quiet", *inputs]
        (folder / _REQUESTED).write_text("".join(f"{each.distribution}=={each.version}\n" for each in job.requests))
        (folder / _EXCLUDED).write_text("".join(f"{name}\n" for name in excluded))
        arguments += ["--constraints", _REQUESTED]
        if excluded:
            arguments += ["--excludes", _EXCLUDED]
        if replaced:
            lines = [f"{name}=={version.partition('+')[0]}\n" for name, version in replaced.items()]
            (folder / _REPLACED).write_text("".join(lines))
            arguments += ["--overrides", _REPLACED]
        if job.variant.lock:
            arguments += ["--constraints", job.variant.lock]
        output, complaint = run_uv(arguments, folder, offline=job.offline)
    if complaint:
        return Attempted(conflict=parse_conflict(complaint, job.project, job.declarations), notes=notes)
    return Attempted(read_lock("requirements.txt", output.encode()), notes=notes)


def _inputs(job: Job, folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return what to resolve, for which interpreter and platform, and notes on what could not be expressed."""
    variant = job.variant
    manifest = variant.manifests[0]
    project = manifest_table(folder, "project")
    is_static = "name" in project and not {"dependencies", "optional-dependencies"} & set(project.get("dynamic", ()))
    arguments = []
    notes: tuple[str, ...] = ()
    if job.install is not None:
        (folder / _STATED).write_text("".join(f"{each}\n" for each in job.install.requirements))
        arguments.append(_STATED)
        arguments += [part for file in job.install.constraints for part in ("--constraints", file)]
        arguments += [part for file in job.install.overrides for part in ("--overrides", file)]
    elif manifest.endswith(".toml") and is_static:
        arguments.append("pyproject.toml")
        if variant.extras:
            arguments += [part for extra in variant.extras for part in ("--extra", extra)]
        elif (folder / "pyproject.toml").is_file():
            arguments += ["--all-extras"]
        arguments += [part for group in variant.groups for part in ("--group", group)]
    elif manifest.endswith((".txt", ".in")):
        # What a tool compiled pins the old version: it is made from the file beside it
        source = f"{manifest.removesuffix('.txt')}.in"
        made = (folder / source).is_file() and is_compiled((folder / manifest).read_text(errors="replace"))
        arguments.append(source if made else manifest)
    else:
        manifests = [path for path in variant.manifests if (folder / path).is_file()]
        texts = {path: (folder / path).read_text(errors="replace") for path in manifests}
        found = [each for path, text in texts.items() for each in read_declarations(path, text)]
        text, notes = stated_requirements(found, variant)
        (folder / _STATED).write_text(text)
        arguments.append(_STATED)
    lowest = re.search(r">=\s*(3\.\d+)", str(project.get("requires-python", "")))
    python = variant.python or (lowest[1] if lowest else "")
    arguments += ["--python-version", python] if python else []
    arguments += ["--python-platform", variant.platform] if variant.platform else []
    return arguments, notes
