"""What limits of other styles mean in the words of PEP 508: Poetry's and conda's specifiers, Poetry's `python`."""

from __future__ import annotations

import re

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tooling.upgrade.declarations.declaration import SpecifierStyle

_LOOSE = re.compile(r"(?P<operator>\^|~(?!=)|==?|)(?P<version>\d[\w.+!-]*?)(?P<any>\.?\*)?(?P<build>=[\w.*]+)?$")
"""A clause of Poetry or conda: "^1.2", "~1.2", "1.2.*", "=1.2=py38_0" (the last part names a build)."""


def as_pep508(specifier: str, style: SpecifierStyle) -> str | None:
    """Return what a specifier of another style means: Poetry's "^1.2" is ">=1.2,<2", conda's "=1.2" is "==1.2.*".

    Unchanged where it is PEP 440 already; "" for any version; None where PEP 440 cannot express it, as with
    alternatives ("^1.2 || ^2.0")."""
    joined = re.sub(r"(?<=[<>=!~^])\s+", "", specifier)
    try:
        clauses = [_clause_as_pep508(each, style) for each in re.split(r"[,\s]+", joined) if each not in ("", "*")]
        SpecifierSet(",".join(clauses))
    except (InvalidSpecifier, InvalidVersion):
        return None
    return ",".join(clauses)


def _clause_as_pep508(clause: str, style: SpecifierStyle) -> str:
    hit = _LOOSE.match(clause) if style is not SpecifierStyle.PEP508 else None
    if hit is None:
        return clause
    version = hit["version"]
    if hit["operator"] in ("", "=", "=="):
        prefix = hit["any"] or (style is SpecifierStyle.CONDA and hit["operator"] == "=" and not hit["build"])
        return f"=={version}.*" if prefix else f"=={version}"
    parts = list(Version(version).release)
    significant = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
    last = significant if hit["operator"] == "^" else min(1, len(parts) - 1)
    bound = ".".join(str(part) for part in [*parts[:last], parts[last] + 1])
    return f">={version},<{bound}"


def python_marker(python: str) -> str:
    """Return the marker of Poetry's `python = ">=3.9,<3.11 || 3.12"`; "" for one that cannot be read.

    "^3.9"  ->  "python_version >= '3.9' and python_version < '4'"
    """
    alternatives = []
    for each in python.split("||"):
        clauses = []
        for clause in filter(None, (as_pep508(each, SpecifierStyle.POETRY) or "").split(",")):
            version = clause.lstrip("<>=!~")
            precise = len(version.removesuffix(".*").split(".")) > 2
            name = "python_full_version" if precise else "python_version"
            clauses.append(f"{name} {clause.removesuffix(version)} '{version}'")
        alternatives.append(" and ".join(clauses))
    return "" if "" in alternatives else " or ".join(alternatives)
