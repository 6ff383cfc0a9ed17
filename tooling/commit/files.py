"""What part of a project a path belongs to, by the customs of most repositories, and how much it says of a commit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.commit.git import ChangedFile

Role = Literal["code", "test", "docs", "ci", "build", "agents", "example"]

_CI_FOLDERS: Final = frozenset({".buildkite", ".ci", ".circleci", ".github", ".gitlab"})
_CI_FILES: Final = frozenset({".gitlab-ci.yml", ".pre-commit-config.yaml", "azure-pipelines.yml", "jenkinsfile"})
_AGENTS: Final = frozenset({".agents", ".claude", ".codex", ".cursor", ".opencode"})
_BUILD: Final = frozenset(
    {
        "cargo.toml",
        "cmakelists.txt",
        "constraints.txt",
        "dockerfile",
        "makefile",
        "manifest.in",
        "package.json",
        "pyproject.toml",
        "requirements.txt",
        "setup.cfg",
        "setup.py",
    }
)
_DOCS: Final = (".gif", ".ipynb", ".jpg", ".md", ".png", ".rst", ".svg")
_WEIGHT: Final[dict[Role, float]] = {
    "code": 1.0,
    "example": 1.0,
    "ci": 1.0,
    "build": 0.6,
    "test": 0.35,
    "docs": 0.3,
    "agents": 0.25,
}
"""A commit is named after its code: tests and documents come along with it."""


def role_of(path: str) -> Role:
    """Example: role_of("tests/api/test_x.py") -> "test"."""
    parts = path.lower().split("/")
    name, folders = parts[-1], parts[:-1]
    rules: tuple[tuple[Role, bool], ...] = (
        ("ci", parts[0] in _CI_FOLDERS or name in _CI_FILES),
        ("agents", parts[0] in _AGENTS),
        ("test", name.startswith("test_") or name == "conftest.py" or bool({"tests", "test"} & set(folders))),
        ("docs", name.endswith(_DOCS) or parts[0] in {"blog", "doc", "docs"}),
        ("build", name in _BUILD or name.endswith(".lock") or name.startswith("requirements")),
        ("example", parts[0] == "examples"),
    )
    return next((role for role, holds in rules if holds), "code")


def shares(files: Sequence[ChangedFile]) -> list[tuple[str, float]]:
    """Each path with its share of the commit; they add up to 1. A long file counts more, but not by as much."""
    weights = [_WEIGHT[role_of(each.path)] * (1 + math.log1p(each.churn)) for each in files]
    total = sum(weights)
    return [(each.path, weight / total) for each, weight in zip(files, weights, strict=True)]
