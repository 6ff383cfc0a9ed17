"""Which requirements a change moves, and what an audit said of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.commit.changes import role_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.pull_request.git import Git

_REQUIREMENT: Final = re.compile(
    r"""^(?P<sign>[+-])\s*["']?(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(?:\[[^\]]*\])?\s*
    (?P<range>(?:===|[<>=!~]=|[<>])\s*[^"'#;\s]+(?:\s*,\s*(?:[<>=!~]=|[<>])\s*[^"'#;\s,]+)*)""",
    re.VERBOSE,
)
_FIX: Final = "make it with `areal-upgrade-deps impact PACKAGE==VERSION --json > FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One that changed. Example: Requirement(file="constraints.txt", name="torch", before="==2.9", after="==2.10")."""

    file: str
    name: str
    before: str
    """"" for a new one."""
    after: str
    """"" for one that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One package of an audit."""

    distribution: str
    before: str
    after: str
    worst: str
    """The worst severity, "" for none."""
    findings: int
    unjudged: int
    """Uses that the audit could not judge."""


def changed_requirements(git: Git, before: str, after: str, paths: Sequence[str]) -> tuple[Requirement, ...]:
    """Lines of manifests and locks that name another range than before."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for path in [each for each in paths if role_of(each) == "build"]:
        arguments = (
            "--no-ext-diff",
            "--no-textconv",
            "--no-color",
            "-U0",
            before,
            after,
            "--",
            f":(top,literal){path}",
        )
        for line in git.run("diff", *arguments).decode(errors="replace").splitlines():
            match = _REQUIREMENT.match(line)
            if match is not None and not line.startswith(("+++", "---")):
                sides = found.setdefault((path, match["name"].lower()), {})
                sides[match["sign"]] = match["range"].strip()
    rows = [
        Requirement(file=path, name=name, before=sides.get("-", ""), after=sides.get("+", ""))
        for (path, name), sides in found.items()
    ]
    return tuple(each for each in rows if each.before != each.after)


def read_audit(path: Path) -> tuple[AuditRow, ...]:
    """The packages of a report of `areal-upgrade-deps`. Raises UsageError for anything else."""
    where = f"--audit {path}"
    try:
        audits = json.loads(path.read_bytes())["audits"]
        return tuple(_row(each) for each in audits)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=where, fix=_FIX) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"is no report of an audit ({error})", where=where, fix=_FIX) from error


def _row(audit: dict[str, Any]) -> AuditRow:
    return AuditRow(
        distribution=str(audit["distribution"]),
        before=str(audit["old_version"] or ""),
        after=str(audit["new_version"] or ""),
        worst=str(audit["worst"] or ""),
        findings=sum(int(number) for number in audit["counts"].values()),
        unjudged=int(audit["unresolved"]) + sum(int(each["count"]) for each in audit["open"]),
    )
