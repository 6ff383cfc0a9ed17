"""Changes a written version so that it allows a new one: as little as is honest, and with a reason in words.

    changed(">=0.11,<0.12", Style.PEP508, "0.18.0")  ->  ">=0.11,<0.19", "the upper bound moves: ..."

An exact pin becomes a pin of the new version. A range that allows the new version is kept; of others only the clauses
that forbid it change, at the precision they are written in. Blanks and order stay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tooling.cli.errors import UsageError
from tooling.upgrade.declarations.declaration import SpecifierStyle, as_pep508

if TYPE_CHECKING:
    from tooling.upgrade.policy.watched import RangeRule

CLAUSE = re.compile(r"(?P<operator>===|==|~=|!=|<=|>=|<|>)(?P<blank>\s*)(?P<version>[^\s,]+)")
_LOOSE = re.compile(r"(?P<operator>=(?!=)|\^|~(?!=)|)(?P<version>\d[\w.+!-]*?)(?:\.?\*)?$")
""""=1.2" of conda, "^1.2", "~1.2" and "1.2" of Poetry."""
_VARIABLE = re.compile(r"\$|\{|<[A-Za-z]|\bX\b")


@dataclass(frozen=True, slots=True)
class ChangedSpecifier:
    """The specifier to write, and why. Nothing changes if `specifier` is the old one."""

    specifier: str
    why: str
    problem: bool = False
    """It could not be changed although it should."""


def parse_version(text: str) -> Version:
    """Parse a version. Raises UsageError for anything else."""
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UsageError(f"{text!r} is not a version", fix="write one as 0.18.0, 2.10.0rc1 or 0.5.10.post1") from error


def changed(specifier: str, style: SpecifierStyle, version: str, rule: RangeRule = "keep") -> ChangedSpecifier:
    """How `specifier` has to read. Raises UsageError if `version` is none."""
    wanted = parse_version(version)
    if style is SpecifierStyle.OPAQUE:
        return ChangedSpecifier(
            specifier, "a commit or URL: which one holds the new version is not known", problem=True
        )
    if _VARIABLE.search(specifier):
        return ChangedSpecifier(specifier, "its version comes from a variable")
    if style is SpecifierStyle.PLAIN:
        return _plain(specifier, version)
    loose = _LOOSE.match(specifier.strip()) if style is not SpecifierStyle.PEP508 else None
    if loose is not None:
        return _loose(specifier, style, loose, wanted, version)
    return _range(specifier, wanted, version, rule)


def allows(specifier: str, version: Version) -> bool | None:
    """Whether a PEP 440 specifier allows a version; None if it is none."""
    versions = specifier_set(specifier)
    return versions.contains(version, prereleases=True) if versions is not None else None


def specifier_set(text: str) -> SpecifierSet | None:
    """Return the versions that a specifier allows; None for other texts."""
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


def _plain(specifier: str, version: str) -> ChangedSpecifier:
    local = f"+{specifier.partition('+')[2]}" if "+" in specifier and "+" not in version else ""
    if specifier == version + local:
        return ChangedSpecifier(specifier, "names the version already")
    return ChangedSpecifier(version + local, "names exactly one version")


def _loose(
    specifier: str, style: SpecifierStyle, hit: re.Match[str], wanted: Version, version: str
) -> ChangedSpecifier:
    written, operator = hit["version"], hit["operator"]
    if not operator:
        new = specifier.replace(written, version)
        return ChangedSpecifier(new, "exact pin" if new != specifier else "names the version already")
    meant = as_pep508(specifier, style)
    if meant is None:
        return ChangedSpecifier(specifier, f"{specifier!r} is not a specifier that can be read", problem=True)
    if allows(meant, wanted):
        return ChangedSpecifier(specifier, f"the {'prefix covers' if operator == '=' else 'range allows'} the version")
    why = "a prefix of the new version" if operator == "=" else f"{specifier.strip()} does not allow {version}"
    return ChangedSpecifier(specifier.replace(written, _at_precision(wanted, written, version)), why)


def _range(specifier: str, wanted: Version, version: str, rule: RangeRule) -> ChangedSpecifier:
    allowed = allows(specifier, wanted)
    if allowed is None:
        return ChangedSpecifier(specifier, f"{specifier!r} is not a specifier that can be read", problem=True)
    if not specifier.strip():
        return ChangedSpecifier(specifier, "any version is allowed")
    clauses = list(CLAUSE.finditer(specifier))
    if len(clauses) == 1 and clauses[0]["operator"] in {"==", "==="} and not clauses[0]["version"].endswith(".*"):
        clause = clauses[0]
        old = clause["version"]
        new = _plain(old, version)
        if new.specifier == old:
            return ChangedSpecifier(specifier, "pinned to the version already")
        start, end = clause.span("version")
        why = "exact pin"
        if "+" in new.specifier and "+" not in version:
            why = f"exact pin; whether a build +{new.specifier.partition('+')[2]} of {version} exists is not checked"
        return ChangedSpecifier(specifier[:start] + new.specifier + specifier[end:], why)
    if allowed:
        for clause in clauses if rule == "raise" else ():
            if clause["operator"] in {">=", ">"} and parse_version(clause["version"]) < wanted:
                text = f"{specifier[: clause.start()]}>={clause['blank']}{wanted.public}{specifier[clause.end() :]}"
                return ChangedSpecifier(text, "policy raises the lower bound to what was audited")
        return ChangedSpecifier(specifier, f"the range allows {version}")
    return _moved(specifier, clauses, wanted, version)


def _moved(specifier: str, clauses: list[re.Match[str]], wanted: Version, version: str) -> ChangedSpecifier:
    """Change the clauses that forbid the version, from the last to the first so that spans stay right."""
    new, reasons = specifier, []
    for clause in reversed(clauses):
        if allows(clause[0], wanted):
            continue
        operator, replacement, why = _clause(clause["operator"], clause["version"], wanted, version)
        reasons.append(why)
        before, after = new[: clause.start()], new[clause.end() :]
        if operator:
            new = before + operator + clause["blank"] + replacement + after
        elif after.lstrip().startswith(","):
            new = before + after.lstrip()[1:].lstrip()
        else:
            new = before.rstrip().rstrip(",") + after
    if not allows(new, wanted):
        return ChangedSpecifier(specifier, f"no small change of {specifier!r} allows {version}", problem=True)
    return ChangedSpecifier(new, "; ".join(reversed(reasons)))


def _clause(operator: str, written: str, wanted: Version, version: str) -> tuple[str, str, str]:
    """Return the clause's new operator ("" to leave it out) and version; and why."""
    public = version.partition("+")[0]  # only "==" may name a build, as in 2.0+cu12
    if operator == "!=":
        return "", "", f"!={written} excluded the version"
    if operator in {">=", ">"}:
        return ">=", public, f"the lower bound {operator}{written} was above it"
    if operator == "<=":
        return operator, public, f"the upper bound <={written} was below it"
    if operator == "<":
        # The smallest exclusive bound above a version, as precise as the one it replaces: 0.12 -> 0.19, 5 -> 6,
        # and
        # 5.0.0 -> 6.0.0, since zeros at the end say nothing.
        release = parse_version(written).release
        precise = max((index + 1 for index, part in enumerate(release) if part), default=1)
        parts = [*wanted.release, 0, 0, 0][:precise]
        parts[-1] += 1
        zeros = [0] * (len(release) - precise)
        bound = ".".join(str(part) for part in [*parts, *zeros])
        return operator, bound, f"the upper bound <{written} was below it: the next one written alike is <{bound}"
    if operator == "~=":
        # ~=1.0.0 means 1.0.x: a 2.0 in its place must say 2.0.0, for ~=2.0 means 2.x
        missing = max(2, len(parse_version(written).release)) - len(wanted.release)
        plain = not (wanted.is_prerelease or wanted.is_postrelease)
        near = _at_precision(wanted, written, public, least=2) + (".0" * missing if plain else "")
        return operator, near, f"~={written} covered another series"
    if written.endswith(".*"):
        series = _at_precision(wanted, written.removesuffix(".*"), public)
        return operator, f"{series}.*", f"=={written} covered another series"
    return operator, version, "exact pin"


def _at_precision(wanted: Version, written: str, version: str, *, least: int = 1) -> str:
    count = max(least, len(parse_version(written).release))
    if count >= len(wanted.release):
        return version
    return ".".join(str(part) for part in wanted.release[:count])
