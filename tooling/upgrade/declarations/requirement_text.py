"""One requirement as text: where its specifier stands in it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE = r"(?:===|==|~=|!=|<=|>=|<|>)\s*[^\s,;()<>=!~]+"
_REQUIREMENT = re.compile(
    rf"\s*(?P<name>{_NAME})(?P<extras>\s*\[[^\]]*\])?\s*"
    rf"(?:@\s*(?P<url>\S+)|\(?\s*(?P<specifier>(?:{_CLAUSE})(?:\s*,\s*{_CLAUSE})*\s*,?)?\s*\)?)"
    r"\s*(?:;(?P<marker>.*))?$",
    re.DOTALL,
)
_AFTER_NAME = re.compile(rf"\s*{_NAME}(?:\s*\[[^\]]*\])?")


@dataclass(frozen=True, slots=True)
class RequirementText:
    """The parts of "vllm[audio]>=0.11; marker"."""

    name: str
    """Normalised."""
    extras: tuple[str, ...]
    specifier: str
    start: int
    """Span of the specifier; where one would go if there is none."""
    end: int
    marker: str
    url: str


def normalised(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirement(text: str) -> RequirementText | None:
    """The parts of a requirement; None for text that is none."""
    matched = _REQUIREMENT.match(text)
    if matched is None:
        return None
    extras = tuple(part.strip() for part in (matched["extras"] or "").strip(" []\t").split(",") if part.strip())
    after = _AFTER_NAME.match(text)
    start = end = after.end() if after else len(matched["name"])
    if matched["specifier"]:
        start, end = matched.span("specifier")
        end = start + len(text[start:end].rstrip(" \t,"))
    return RequirementText(
        normalised(matched["name"]),
        extras,
        text[start:end],
        start,
        end,
        (matched["marker"] or "").strip(),
        matched["url"] or "",
    )
