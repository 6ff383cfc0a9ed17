"""What each verdict means, in one line; `docs/upgrade.md` shows an example of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.upgrade.findings import Severity, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.upgrade.findings import Finding

MEANING: Final[dict[Verdict, str]] = {
    Verdict.REMOVED: "the name no longer exists",
    Verdict.MOVED: "the name lives in another module",
    Verdict.RENAMED: "the same thing has another name",
    Verdict.PARAM_REMOVED: "a parameter that is passed no longer exists",
    Verdict.PARAM_RENAMED: "a parameter that is passed has another name",
    Verdict.PARAM_REQUIRED: "a new parameter must be passed",
    Verdict.PARAM_KWONLY: "an argument must be passed by keyword",
    Verdict.PARAM_POSONLY: "an argument must be passed by position",
    Verdict.PARAM_REORDERED: "a positional argument lands on another parameter",
    Verdict.DEFAULT_CHANGED: "a default that this call relies on has another value",
    Verdict.RETURN_CHANGED: "what is returned no longer fits what is done with it",
    Verdict.OVERRIDE_DRIFT: "an override no longer fits how it is called",
    Verdict.KIND_CHANGED: "a method became a property, a class a function, or the other way round",
    Verdict.ASYNC_CHANGED: "a function became asynchronous, or no longer is",
    Verdict.DEPRECATED: "it works, and is announced to go",
    Verdict.PRIVATE: "a private name is touched, which may change without notice",
    Verdict.CLI_FLAG: "a command-line flag no longer exists",
    Verdict.HTTP_ROUTE: "an HTTP route no longer exists",
    Verdict.HTTP_FIELD: "a field of a request or answer no longer exists",
    Verdict.ENV_VAR: "nobody reads this environment variable any more",
    Verdict.GUARD_DEAD: "a version check has the same answer for every allowed version",
    Verdict.UNRESOLVED: "the old version does not have it either",
}


def counted(counts: Mapping[str, int]) -> str:
    """ "2 breaking, 1 warning", without zeros; "nothing" if all are."""
    parts = []
    for level in Severity:
        number = counts.get(str(level), 0)
        if number:
            plural = "s" if level is Severity.WARNING and number > 1 else ""
            parts.append(f"{number} {level}{plural}")
    return ", ".join(parts) or "nothing"


def by_path(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Findings of each file, in their order."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.path, []).append(finding)
    return groups
