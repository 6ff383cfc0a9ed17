"""The root of all errors that the harness raises on purpose, those that programs share, and the table of exit codes.

    ToolError                     exit  code
    +-- WriteError                1     write            the disk refused; everything was rolled back
    +-- UsageError                2     usage            wrong arguments, answers or project settings
    |   +-- NameRefusedError      2     name             a name that cannot be used, with a suggestion
    +-- ConflictError             3     conflict         exists already, or changed since the plan was made
    +-- EditedSinceError          4     edited           a generated file was edited since; kept
    +-- MergeConflictError        5     merge-conflict   conflict markers were left for a person
    +-- RegistryShapeError        6     registry-shape   a registry that cannot be edited safely; has the line to paste
    +-- ChecksFailedError         7     checks-failed    generated code failed its gates or tests
    +-- UnsupportedSourceError    8     unsupported      what was analysed needs a feature that cannot be generated
    +-- FindingError              10    finding          a check found something
    +-- BugError                  14    bug              an analysis failed by itself; nothing was written
    +-- UnreachableError          11    unreachable      something outside cannot be reached, or refused
    +-- LockedError               75    busy             another process holds the lock
    +-- InterruptedRunError       130   interrupted      Ctrl-C

Anything else that escapes is a bug: exit 1, code "internal". Only `tooling.cli.run` turns an error into an exit. An
error says what happened (`message`), where (`where`), and what to do (`fix`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

EXIT_CODES: Final[Mapping[int, str]] = {
    0: "done, or nothing to do; a check passed",
    1: "internal error, or the disk refused a write (everything was rolled back)",
    2: "wrong arguments, answers, settings or name",
    3: "conflict: exists already, or changed since the plan was made",
    4: "an edited file was kept",
    5: "a merge left conflict markers",
    6: "a registry was not recognised; the message holds the line to paste",
    7: "generated code failed its checks (nothing was written) or its tests (it is written, not proven)",
    8: "what was analysed needs a feature that cannot be generated; the report names it",
    9: "no set of versions satisfies all requirements, or the resolver failed",
    10: "a check found something",
    11: "something outside cannot be reached, or refused: network, source of a release, git remote",
    12: "the branch was pushed, but the pull request was not made",
    13: "an agent program failed",
    14: "a bug of areal: an analysis failed by itself; nothing was written, and the message says what to report",
    75: "another process is changing the repository",
    130: "interrupted (Ctrl-C); no file is half written, and the message says what is left",
    141: "nobody reads the output any more",
}
"""Every exit code of every program, with its only meaning. Those of `areal` (areal/api/errors.py) are others."""


def exit_codes_help(codes: Iterable[int]) -> str:
    """Return the part of a page of help that explains some exit codes."""
    return "\n".join(["exit codes:", *(f"  {code:<5}{EXIT_CODES[code]}" for code in codes)])


class ToolError(Exception):
    """Root of all errors raised on purpose by `tooling`."""

    exit_code: ClassVar[int] = 1
    code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        fix: str = "",
        checks: Sequence[Any] = (),
        text: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the error.

        where: "path", "path:line" or an option; fix: what to do next, as an instruction. Both may be empty.
        checks: what was run, for the report (`CheckResult`; this page is below all others and imports none of them).
        text, details: what is to be shown besides, for people and as further fields of the JSON object.
        """
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix
        self.checks = tuple(checks)
        self.text = text
        self.details = dict(details or {})

    def __str__(self) -> str:
        """Return `where: message; fix`, without the parts that are empty."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.fix}" if self.fix else text


class WriteError(ToolError, OSError):
    """The disk refused a write; what had been written was rolled back."""

    code = "write"


class UsageError(ToolError, ValueError):
    """The caller asked for something that makes no sense; `fix` names what would."""

    exit_code = 2
    code = "usage"


class NameRefusedError(UsageError):
    """The name cannot be used; `fix` suggests one that can."""

    code = "name"


class ConflictError(ToolError):
    """Something of that name or path exists already, or a file changed since the plan was made."""

    exit_code = 3
    code = "conflict"


class EditedSinceError(ToolError):
    """A generated file was edited since; it was kept."""

    exit_code = 4
    code = "edited"


class MergeConflictError(ToolError):
    """A merge left conflict markers for a person to resolve."""

    exit_code = 5
    code = "merge-conflict"


class RegistryShapeError(ToolError):
    """A registry that cannot be edited safely; `where` is file:line, `fix` holds the line to paste."""

    exit_code = 6
    code = "registry-shape"


class ChecksFailedError(ToolError):
    """Generated code failed its gates or its tests; `checks` holds every result, passed ones too."""

    exit_code = 7
    code = "checks-failed"


class UnsupportedSourceError(ToolError):
    """What was analysed needs a feature that cannot be generated; `text` and `details` say which and why."""

    exit_code = 8
    code = "unsupported"


class BugError(ToolError):
    """A step of ours failed on input that it should have judged; `details` say what was found until then."""

    exit_code = 14
    code = "bug"


class FindingError(ToolError):
    """A check found something; the report says what."""

    exit_code = 10
    code = "finding"


class UnreachableError(ToolError):
    """Something outside cannot be reached, or refused; nothing has changed there or here."""

    exit_code = 11
    code = "unreachable"


class LockedError(ToolError):
    """Another process holds the repository's lock; the message names it."""

    exit_code = 75
    code = "busy"


class InterruptedRunError(ToolError):
    """Ctrl-C."""

    exit_code = 130
    code = "interrupted"
