"""A change of a repository's units: where it happens, what was asked, the plan, its run, and what became of it.

    project = open_project(Path.cwd())                       # from any folder inside the repository
    change = plan_unit(project, UnitRequest(kind="reward", name="digits"))       # commands plan; nothing is written yet
    apply_change(project, change)                            # writes it
    change.report("reward")                                  # what the command prints

One `Change` goes from the command through planning, writing and tests to the report; each step adds what it knows.
`tooling.new.run` does all of it for the commands. A dry run and `--plan-out` stop after the plan: they take no lock and
write nothing into the repository. Backups lie in the git directory, out of sight of git and of every tool that walks
the work tree.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tooling.cli.errors import (
    ChecksFailedError,
    ConflictError,
    EditedSinceError,
    MergeConflictError,
    ToolError,
    UsageError,
    WriteError,
)
from tooling.cli.git import Repository, find_repository
from tooling.cli.report import Registration, Report, progress, say
from tooling.cli.suggest import did_you_mean
from tooling.kit.change.disk import ignore
from tooling.kit.change.plan import Plan
from tooling.kit.change.plan_file import plan_document
from tooling.kit.change.transaction import apply_plan
from tooling.kit.edits import add_entry, remove_entry
from tooling.kit.names import parse_name
from tooling.kit.receipts import Receipt, read_receipt, read_receipts
from tooling.kit.template.kinds import KindSource, ProjectSettings, discover, find_kind, read_settings
from tooling.kit.template.tree import store_tree

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator, Mapping

    from tooling.kit.change.disk import Observe
    from tooling.kit.kind import CheckResult
    from tooling.kit.names import Names
    from tooling.kit.receipts import Proof
    from tooling.new.proof import Standing
    from tooling.new.warm import WarmPython

SHOWN_REFERENCES = 20
"""Most lines of other files that people are shown."""
LONGEST_SUBJECT = 72
"""Characters of the first line of a commit message."""


# ------------------------------------------------------------------------------------------------------- the project


@dataclass(frozen=True, slots=True)
class Project:
    """One repository as the commands see it: its settings, its kinds, its interpreter."""

    repository: Repository
    settings: ProjectSettings
    kinds: Mapping[str, KindSource]
    """Kinds with a folder; those of installed packages are looked up only when asked for (`kind`)."""
    python: Path
    """Interpreter that runs the repository's own code: its `.venv`, else the one that runs this program."""

    @property
    def root(self) -> Path:
        """Folder of the repository."""
        return self.repository.root

    def kind(self, name: str) -> KindSource:
        """Find a kind. Raises UsageError for an unknown one, with the nearest name."""
        return self.kinds.get(name) or find_kind(self.root, name)

    def change(self, request: UnitRequest) -> Change:
        """Begin a change of this repository."""
        return Change(root=self.root, python=self.python, request=request)


def open_project(start: Path) -> Project:
    """Open the project that a path lies in. Raises UsageError outside a repository and for wrong project settings."""
    repository = find_repository(start)
    own = repository.root / ".venv" / "bin" / "python"
    return Project(
        repository,
        read_settings(repository.root),
        discover(repository.root),
        own if own.exists() else Path(sys.executable),
    )


def find_unit(project: Project, kind: str, name: str) -> Receipt:
    """Return the receipt of a generated unit, in whatever spelling its name is given.

    Raises UsageError when it was not generated here, with the nearest unit of that kind; or for an unknown kind.
    """
    receipt = read_receipt(project.root, kind, name) if name.isidentifier() else None
    if receipt is None:
        try:
            receipt = read_receipt(project.root, kind, parse_name(name).snake)
        except UsageError:
            receipt = None  # a name that could not be generated was not
    if receipt is not None:
        return receipt
    units = [unit.name for unit in read_receipts(project.root) if unit.kind == kind]
    if not units:
        project.kind(kind)  # a misspelt kind is the better complaint
    known = f"generated here: {', '.join(units)}" if units else "none was generated here; see `areal-new list`"
    raise UsageError(
        f"no {kind} {name!r} was generated by areal-new in this repository",
        where=kind,
        fix=did_you_mean(name, units) or known,
    )


# -------------------------------------------------------------------------------------------------------- the change


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitRequest:
    """What a command asks for."""

    kind: str
    name: str
    """As the user wrote it."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Given answers, typed; questions that were not answered get their defaults."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Given options of the manifest, without dashes ("from-examples"); "" for one without a value."""
    register: bool = True


class KeptFile(NamedTuple):
    """Something of the user's that a command left alone although it was asked to change it."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What a generator page found out, in place of a unit."""

    text: str
    """For people."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """For programs: further fields of the JSON object."""


@dataclass(slots=True, kw_only=True)
class Change:
    """One change of a repository's units. Planning fills it in; `apply_change` writes its plan."""

    root: Path
    python: Path
    """Interpreter of the repository, for child processes."""
    request: UnitRequest
    names: Names | None = None
    """Spellings of the unit's name; set before a generator page sees the change."""

    warnings: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    findings: Findings | None = None
    """What the page found out; then nothing is generated."""
    checks: list[CheckResult] = field(default_factory=list)
    registered: list[Registration] = field(default_factory=list)
    """Registry entries and document lines that the plan makes or removes."""
    tests: tuple[str, ...] = ()
    """Files that prove the unit, relative to the repository root."""
    commit: str = ""
    """Subject for a commit of the change; empty when the template suggests none."""

    plan: Plan = field(init=False)
    receipt: Receipt | None = None
    """As it will be; None when the unit goes."""
    units: list[Receipt] = field(default_factory=list)
    """Receipts, as they will be, of the units whose tests should pass afterwards."""
    kept: list[KeptFile] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Files that will hold conflict markers."""
    references: tuple[str, ...] = ()
    """Places elsewhere that name the unit, "path:line: text"."""
    backups: list[str] = field(default_factory=list)
    """Files that are copied into the git directory before the plan changes them."""
    templates: dict[str, str] = field(default_factory=dict)
    """Kind -> tree hash of the templates to store in git, so that a later update finds its base."""
    fix_kept: str = ""
    """What to do about what was kept."""
    take_back: str = ""
    """Command that takes everything back, for when the tests fail."""

    must_prove: bool = False
    """Whether the change is undone when the tests fail."""
    further_proof: Callable[[], CheckResult] | None = None
    """What has to hold besides the tests of the unit, once they have passed."""

    warm: WarmPython | None = None
    """Process that child modules and tests of this change run in, where they need the same imports; `run_change` ends
    it."""
    applied: bool = False
    stopped: ToolError | None = None
    """What kept the tests of what was written from ending, or their result from being noted."""
    standings: list[Standing] = field(default_factory=list)
    """What is known of `units` now; those that are not there are left out."""
    backup: Path | None = None
    """Folder that holds the files a forced undo took away, at their paths."""
    plan_file: str | None = None
    """Where the plan was saved instead of being applied."""

    def __post_init__(self) -> None:
        self.plan = Plan(self.root)

    def cool(self) -> None:
        """End the warm process, if there is one."""
        if self.warm is not None:
            self.warm.close()

    def plan_receipt(self, receipt: Receipt) -> None:
        """Make this the unit's receipt, and have those entries stand that tell whether it is proven."""
        self.receipt, made = with_proof(self.plan, receipt, receipt.proof)
        self.units.append(self.receipt)
        for row in made:
            self.add_registration(row)

    def add_registration(self, row: Registration) -> None:
        """Report an entry; earlier ones are one line lower once another one was put above them."""
        if row.action == "add":
            self.registered = [
                replace(item, line=item.line + 1) if item.file == row.file and item.line >= row.line else item
                for item in self.registered
            ]
        self.registered.append(row)

    @property
    def problem(self) -> ToolError | None:
        """Why the exit code is not 0 although everything that could be done was."""
        if self.stopped is not None:
            return self.stopped
        if not all(check.ok for check in self.checks):
            if not self.applied and self.must_prove:
                return ChecksFailedError(
                    "the unit's tests failed; nothing is left of it",
                    fix="see the output above; --keep leaves the files, to look at them",
                )
            if not self.applied:
                return ChecksFailedError("the unit's tests failed; nothing was written", fix="see the output above")
            again = " and ".join(f"`{unit.command}`" for unit in self.standings if not unit.proven)
            undo = f", or take everything back with `{self.take_back}`" if self.take_back else ""
            return ChecksFailedError(
                "the unit's tests failed; the files stay, not proven",
                fix=f"see the output above; correct the unit and run {again}{undo}",
            )
        if self.conflicts:
            return MergeConflictError(
                "edits and the new template changed the same lines",
                where=", ".join(self.conflicts),
                fix="resolve the conflict markers in the files",
            )
        if self.kept:
            return EditedSinceError(
                "changed since it was generated, so it was kept",
                where=", ".join(dict.fromkeys(item.path for item in self.kept)),
                fix=self.fix_kept,
            )
        return None

    @property
    def exit_code(self) -> int:
        """0 or that of the problem."""
        return self.problem.exit_code if self.problem else 0

    def report(self, command: str, *, dry_run: bool = False, show_diff: bool = False) -> Report:
        """Return what the command prints."""
        warnings = tuple(self.warnings)
        if self.findings is not None:
            text, data = self.findings.text, self.findings.data
            return Report(command=command, changing=False, warnings=warnings, text=text, data=data)
        steps = list(self.next_steps)
        if self.plan_file is not None:
            steps = [f"areal-new apply {shlex.quote(self.plan_file)}"]
        elif self.plan and self.commit:
            steps += self._commit_steps()
        name = self.receipt.name if self.receipt is not None else self.request.name
        lines = [f"kept      {item.path}: {item.reason}" for item in self.kept]
        lines += [f"conflict  {path}" for path in self.conflicts]
        for unit in self.standings:
            if self.checks or not unit.proven:
                lines.append(f"{unit.receipt.kind} {unit.receipt.name}: {unit}{unit.advice}")
        if self.references:
            lines += ["named elsewhere:", *(f"  {reference}" for reference in self.references[:SHOWN_REFERENCES])]
        if len(self.references) > SHOWN_REFERENCES:
            lines.append(f"  ... and {len(self.references) - SHOWN_REFERENCES} more; --json has all")
        if self.backup is not None:
            lines.append(f"backup of edited files: {self.backup}")
        if self.plan_file:
            lines.append(f"plan saved in {self.plan_file}; nothing was applied")
        return Report(
            command=command,
            problem=self.problem,
            dry_run=dry_run,
            changes=self.plan.changes,
            changing=not self.checks and all(unit.proven for unit in self.standings),
            show_diff=show_diff,
            registered=tuple(self.registered),
            checks=tuple(self.checks),
            next_steps=tuple(steps),
            warnings=warnings,
            text="\n".join(lines),
            data={
                "applied": self.applied,
                "unit": {"kind": self.request.kind, "name": name} if name else None,
                "tests": list(self.tests),
                "proofs": [unit.as_data() for unit in self.standings],
                "kept": [item._asdict() for item in self.kept],
                "conflicts": list(self.conflicts),
                "references": list(self.references),
                "commit": self.commit,
                "backup": None if self.backup is None else os.fspath(self.backup),
                "plan_file": self.plan_file,
            },
        )

    def _commit_steps(self) -> list[str]:
        """Return the commands that commit exactly what the plan writes; a name too long for the subject goes below."""
        message = [self.commit]
        if len(self.commit) > LONGEST_SUBJECT:
            message = [f"{self.commit.partition(':')[0]}: add a new {self.request.kind}", self.request.name]
        words = [word for part in message for word in ("-m", part)]
        paths = [item.path for item in self.plan.changes]
        return [shlex.join(["git", "add", *paths]), shlex.join(["git", "commit", *words])]

    def save(self, command: str, file: str, *, force: bool) -> None:
        """Write the plan into a file, whole or not at all. Raises ConflictError when the file exists and `force` is not
        given, WriteError when the disk refuses."""
        extra = {
            "command": command,
            "kind": self.request.kind,
            "name": self.receipt.name if self.receipt is not None else self.request.name,
            "commit": self.commit,
            "tests": list(self.tests),
            "next": self.next_steps,
            "warnings": self.warnings,
            "conflicts": self.conflicts,
            "references": list(self.references),
            "backups": self.backups,
            "kept": [item._asdict() for item in self.kept],
            "registered": [asdict(item) for item in self.registered],
            "templates": [{"kind": kind, "tree": tree} for kind, tree in sorted(self.templates.items())],
        }
        text = json.dumps(plan_document(self.plan, extra=extra), indent=2, ensure_ascii=False) + "\n"
        path = Path(file)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # so that the file is never seen half written
        try:
            with temporary.open("xb") as stream:
                stream.write(text.encode("utf-8", errors="surrogatepass"))
                stream.flush()
                os.fsync(stream.fileno())
            if force:
                temporary.replace(path)
            else:
                os.link(temporary, path)  # unlike a rename, refuses to replace a file that appeared meanwhile
        except FileExistsError as error:
            raise ConflictError("exists already", where=file, fix="choose another FILE, or add --force") from error
        except OSError as error:
            raise WriteError(
                f"the plan cannot be saved: {error.strerror}", where=file, fix="choose another FILE"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        self.plan_file = file


# ----------------------------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class Invocation:
    """What a command is called with. The project is opened when it is first needed."""

    command: str
    """The command or kind, as in `areal-new reward`."""
    arguments: Namespace
    kind: KindSource | None = None
    """The kind to generate, or whose questions the command takes."""

    @property
    def repo(self) -> str | None:
        """Value of `--repo`; None without it."""
        return None if self.arguments.repo == Path() else str(self.arguments.repo)

    @cached_property
    def project(self) -> Project:
        """The repository of `--repo`, else of the current folder, with its settings and kinds."""
        return open_project(self.arguments.repo)

    def option(self, name: str) -> Any:
        """Return an option that not every command has; None where it is missing."""
        return getattr(self.arguments, name, None)

    @contextmanager
    def phase(self, what: str) -> Iterator[None]:
        """Show a part of the work on a terminal while it lasts, and its seconds with `--verbose`."""
        started = time.perf_counter()
        with progress(what):
            yield
        if self.arguments.verbose:
            say(f"{what}: {time.perf_counter() - started:.3f} s")


def apply_change(project: Project, change: Change, *, observe: Observe = ignore) -> None:
    """Write a change: the template into git, backups, then the files as one transaction. The caller holds the
    repository's lock.

    Raises what `apply_plan` raises; then nothing of the plan is on disk. `observe` is handed on to it.
    """
    for kind, tree in change.templates.items():
        problem = "changed since the plan was made; `areal-new update` will bring its units up to date"
        try:
            if store_tree(project.repository, project.kind(kind).folder) == tree:
                continue
        except ToolError as error:  # the unit is complete without it
            problem = f"was not stored in git, a later update may miss its base: {error}"
        change.warnings.append(f"the template of {kind} {problem}")
    folder = _back_up(project, change) if change.backups else None
    try:
        apply_plan(project.repository, change.plan, observe=observe)
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    change.applied, change.backup = True, folder


def _back_up(project: Project, change: Change) -> Path:
    """Copy what the plan takes away to "20260131T120000Z" or, within the same second, "20260131T120000Z-2"."""
    before = {item.path: item.before for item in change.plan.changes}
    parent = project.repository.state / "backup"
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    names = (stamp if number == 1 else f"{stamp}-{number}" for number in itertools.count(1))
    folder = next(path for path in map(parent.joinpath, names) if not path.exists())
    try:
        folder.mkdir(parents=True)
        for path in change.backups:
            content = before.get(path)
            if content is None:
                raise ConflictError("the plan does not change it, so it cannot be backed up", where=path)
            copy = folder / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            with copy.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
    except ToolError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise WriteError(f"no backup could be written: {error.strerror}", where=os.fspath(folder)) from error
    return folder


def with_proof(plan: Plan, receipt: Receipt, proof: Proof) -> tuple[Receipt, list[Registration]]:
    """Plan the unit's receipt with a proof, and the registry entries that stand as long as there is none. Return the
    receipt and what becomes of the entries. Raises RegistryShapeError for a registry that cannot be edited."""
    made: list[Registration] = []
    stands = proof.state != "proven"
    for entry in receipt.unproven:
        source = plan.read(entry.file)
        if source is None:
            continue
        edit = (add_entry if stands else remove_entry)(source, entry)
        if edit.changed:
            what = "not proven" if stands else "proven"
            plan.write(entry.file, edit.source, reason=f"{entry.key} is {what}: {entry.table}")
            action = "add" if stands else "remove"
            made.append(Registration(entry.file, entry.table, entry.key, entry.value, edit.line, action))
    after = replace(receipt, proof=proof)
    plan.write(after.path, after.to_bytes(), reason="receipt")
    return after, made
