"""Globs of paths as pages write them: a `*` stays on its level unless there is a `**`, and braces hold choices.

matches("app/sun/day.py", "app/{sky,sun}/*.py")      # True
matches("app/sun/day/noon.py", "app/sun/*.py")       # False
matches("app/sun/day/noon.py", "app/sun/**")         # True
precision("app/sun/*.py") > precision("app/**")      # True
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase


def choices(glob: str) -> list[str]:
    """Return the globs that one with braces stands for; one without is its own only choice."""
    braces = re.search(r"\{([^{}]*)\}", glob)
    return [glob.replace(braces[0], choice, 1) for choice in braces[1].split(",")] if braces else [glob]


def matches(path: str, glob: str) -> bool:
    """Say whether a glob, or one of its choices, means a path."""
    return any(
        fnmatchcase(path, option) and ("**" in option or path.count("/") == option.count("/"))
        for option in choices(glob)
    )


def precision(glob: str) -> tuple[int, int]:
    """Return how much a glob says, to compare it with others: its letters before the first wildcard, then all."""
    return len(re.split(r"[*{]", glob, maxsplit=1)[0]), len(re.sub(r"[*{}]", "", glob))
