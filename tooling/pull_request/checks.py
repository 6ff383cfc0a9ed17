"""Runs the checks that a repository declares, and attests what came of them: the only proof that tests pass.

    [tool.areal.pr]                      # pyproject.toml
    checks = ["bash", "scripts/check.sh"]

An attestation names the command, the commit, the counts and the time, and is kept beside git's own files
(.git/areal-pr/checks.json). It is made by running the command, and by nothing else. It counts while exactly this commit
is checked out and no file differs from it. The counts are those of the last line in the form of pytest's summary:
"12 passed, 1 skipped in 3.4s".
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NonNegativeInt, StringConstraints, ValidationError

from tooling.cli.errors import ConflictError, FindingError, UsageError
from tooling.cli.git import inherited_variables
from tooling.cli.report import printable
from tooling.cli.settings import Settings, Strings, read_settings, section
from tooling.pull_request.backups import state_folder, write_state
from tooling.pull_request.branch import named, refuse_moved, uncommitted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tooling.pull_request.branch import CheckedOutBranch
    from tooling.pull_request.commits import Proposal
    from tooling.pull_request.git import WorkTree


_FILE: Final = "checks.json"
_LARGEST: Final = 64 * 1024
"""Bytes of an attestation that are read."""
_TAIL: Final = 64 * 1024
"""Characters of the output that are searched for counts."""
_DRAIN_SECONDS: Final = 1.0
"""For what the command has left running to close the output."""
_SUMMARY: Final = re.compile(r"^[= ]*(?P<counts>\d{1,9} [a-z]+(?:, \d{1,9} [a-z]+)*) in \d[\d.]*s\b.*$", re.MULTILINE)
_COUNTED: Final = {"passed": "passed", "failed": "failed", "error": "failed", "errors": "failed", "skipped": "skipped"}
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_HOW: Final = "`areal-pr create --run-checks` runs them"
_DECLARE: Final = 'add checks = ["PROGRAM", "ARGUMENT"]'
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}(?:[0-9a-f]{24})?$")]


class PullRequestSettings(Settings):
    """`[tool.areal.pr]`."""

    checks: Strings = ()
    """Words of the command that runs every check; no shell reads them."""


class ChecksError(FindingError):
    """The checks failed; nothing was pushed or moved."""

    code = "checks"


class Attestation(BaseModel):
    """What a run of the checks came to. Example: command=("bash", "scripts/check.sh"), commit="1f...", passed=12."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    command: tuple[str, ...]
    commit: Hash
    """What was checked out."""
    tree: Hash
    joined: Hash | None = None
    """The commit that `areal-pr create` made of it, with the same files."""
    status: int
    """Exit status; negative: ended by that signal."""
    passed: NonNegativeInt
    failed: NonNegativeInt
    skipped: NonNegativeInt
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    when: AwareDatetime
    """When it ended."""

    @property
    def failure(self) -> str:
        """Why the checks did not pass; "" where they did."""
        if self.status < 0:
            return f"was ended by signal {-self.status}"
        if self.status or self.failed:
            return f"failed with exit status {self.status}: {self.counts}"
        if not self.passed:
            return "counted no test that passed: a line such as `12 passed, 1 skipped in 3.4s` was not printed"
        return ""

    @property
    def counts(self) -> str:
        """Its counts in words."""
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksVerdict:
    """Whether the checks of a proposal are known to pass."""

    command: tuple[str, ...]
    """That the repository declares; empty for none."""
    attestation: Attestation | None
    """The newest one, whatever it is about."""
    why: str
    """Why nothing is proven; "" where it is."""

    @property
    def proven(self) -> bool:
        """Whether the declared command passed on exactly the files that are proposed."""
        return not self.why

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        made = self.attestation.model_dump(mode="json") if self.attestation else None
        return {"command": list(self.command), "proven": self.proven, "why": self.why, "attestation": made}


def declared_checks(root: Path) -> tuple[str, ...]:
    """Return the words of the command that the repository declares; empty for none."""
    return read_settings(PullRequestSettings, root, "pr").checks


def judge(git: WorkTree, proposal: Proposal) -> ChecksVerdict:
    """Compare the attestation with what is checked out and proposed now."""
    command = declared_checks(git.root)
    attestation, why = _load(git)
    return ChecksVerdict(
        command=command, attestation=attestation, why=why or _doubt(git, proposal, command, attestation)
    )


def _doubt(git: WorkTree, proposal: Proposal, command: tuple[str, ...], made: Attestation | None) -> str:
    """Say why an attestation proves nothing about a proposal; "" where it does."""
    if not command:
        return f"this repository declares no checks: {_DECLARE} to {section('pr')}"
    if made is None:
        return f"the checks were not run; {_HOW}"
    if made.command != command:
        return f"another command was run, `{shlex.join(made.command)}`; {_HOW}"
    if proposal.before not in {made.commit, made.joined}:
        return f"they ran on {made.commit[:12]}, and the branch is at {proposal.before[:12]}; {_HOW}"
    if made.failure:
        return f"`{shlex.join(command)}` {made.failure}"
    edited = _differing(git)
    if edited:
        return f"files differ from the commit that they ran on: {named(edited)}"
    if proposal.after_tree != made.tree:
        return "they ran before this was brought onto the newest base"
    return ""


def _differing(git: WorkTree) -> list[str]:
    """Return the paths where checks see something else than the commit: edited, unknown to git, inside a submodule."""
    return [path for paths in uncommitted(git, submodules="none") for path in paths]


def refuse_unfit(git: WorkTree, proposal: Proposal) -> None:
    """Raise UsageError where running the checks would prove nothing about a proposal."""
    where = "--run-checks"
    if not declared_checks(git.root):
        raise UsageError("this repository declares no checks", where=section("pr"), fix=_DECLARE)
    differing = _differing(git)
    if differing:
        fix = "commit them, or name them in .gitignore"
        raise UsageError(
            f"the checks would see what the commit does not hold: {named(differing)}", where=where, fix=fix
        )
    if proposal.after_tree != proposal.before_tree:
        fix = "bring the branch there with `areal-pr create --no-push`, then run this again; or add --no-rebase"
        raise UsageError("the base has changes that the checks would not see", where=where, fix=fix)


def run_checks(git: WorkTree, branch: CheckedOutBranch) -> None:
    """Run the declared checks on what is checked out, and attest what came of them.

    The output is shown on standard error. Raises ChecksError where they fail, ConflictError where commit or files
    changed meanwhile. An interrupted run leaves no attestation, and no process.
    """
    command, started = declared_checks(git.root), time.monotonic()
    write_state(git.repository, _FILE, None)
    status, tail = _run(command, git.root)
    refuse_moved(git, branch)
    changed = _differing(git)
    if changed:
        fix = "commit them, or name in .gitignore what the checks write; then run it again"
        message = f"files changed while the checks ran, so they prove nothing: {named(changed)}"
        raise ConflictError(message, where=os.fspath(git.root), fix=fix)
    counts = _counts(tail)
    made = Attestation(
        command=command,
        commit=branch.tip,
        tree=git.tree(branch.tip),
        status=status,
        passed=counts["passed"],
        failed=counts["failed"],
        skipped=counts["skipped"],
        seconds=round(time.monotonic() - started, 1),
        when=datetime.now(UTC).replace(microsecond=0),
    )
    _save(git, made)
    if made.failure:
        raise ChecksError(
            f"`{shlex.join(command)}` {made.failure}",
            where=branch.name,
            fix="mend what the output above names, commit, and run it again; where it names messages of commits, join "
            "these first with `areal-pr create --no-push`; nothing was moved or pushed",
            details={"checks": made.model_dump(mode="json")},
        )


def follow(git: WorkTree, verdict: ChecksVerdict, joined: str) -> None:
    """Let an attestation hold for the commit that the checked one becomes; its files are the same."""
    if verdict.proven and verdict.attestation is not None:
        _save(git, verdict.attestation.model_copy(update={"joined": joined}))


def _save(git: WorkTree, attestation: Attestation) -> None:
    write_state(git.repository, _FILE, attestation.model_dump_json().encode())


def _load(git: WorkTree) -> tuple[Attestation | None, str]:
    """Read the attestation: anybody may have written the file. Also return why what is there was ignored."""
    place = state_folder(git.repository) / _FILE
    try:
        # Neither a link nor a pipe, which would never end, is what this command wrote.
        handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"the attestation was ignored: {error.strerror}"
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None, "the attestation was ignored: it is not a file"
        content = stream.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        return None, f"the attestation was ignored: it is larger than {_LARGEST} bytes"
    try:
        return Attestation.model_validate_json(content), ""
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place_in = ".".join(map(str, first["loc"]))
        said = printable(f"{place_in}: {first['msg']}" if place_in else first["msg"])
        return None, f"the attestation was ignored: {said[:200]}; {_HOW}"


def _counts(tail: str) -> Counter[str]:
    """Return the counts of the last summary.

    Example: "2 failed, 10 passed, 1 error in 3.21s" -> {"passed": 10, "failed": 3}.
    """
    found = Counter[str]()
    summaries = [match["counts"] for match in _SUMMARY.finditer(_COLOUR.sub("", tail))]
    for part in summaries[-1].split(", ") if summaries else ():
        number, word = part.split(" ")
        if word in _COUNTED:
            found[_COUNTED[word]] += int(number)
    return found


@contextmanager
def _ending_like_ctrl_c() -> Iterator[None]:
    """Let what asks this process to end interrupt it, so that it can end what it has started."""
    numbers = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(command: tuple[str, ...], root: Path) -> tuple[int, str]:
    """Run a command in a session of its own, show its output, and return its status and the end of the output. However
    this ends, nothing that it started in its session goes on."""
    try:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=inherited_variables(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        fix = f"install {command[0]}, or name another program in `checks`"
        raise UsageError(f"`{shlex.join(command)}` cannot be started: {said}", where=section("pr"), fix=fix) from error
    decoder, tail, ended = getincrementaldecoder("utf-8")("replace"), "", None
    with _ending_like_ctrl_c(), process, selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        try:
            while ended is None or time.monotonic() < ended + _DRAIN_SECONDS:
                if selector.select(0.1):
                    part = os.read(process.stdout.fileno(), 1 << 16)
                    if not part:
                        break
                    text = decoder.decode(part)
                    tail = (tail + text)[-_TAIL:]
                    with suppress(BrokenPipeError):
                        sys.stderr.write(printable(text))
                        sys.stderr.flush()
                elif ended is None and process.poll() is not None:
                    ended = time.monotonic()
            return process.wait(), tail
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
