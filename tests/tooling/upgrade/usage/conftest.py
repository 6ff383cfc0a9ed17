"""Small repositories, written out in the tests that use them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from tooling.upgrade.usage import UsageIndex, index_repository

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def index(tmp_path: Path) -> Callable[..., UsageIndex]:
    """index(code) or index({"a.py": code, ...}): the usage index of a repository with these files, for package pkg."""

    def make(files: str | dict[str, str], *packages: str, **options) -> UsageIndex:
        named = {"client.py": files} if isinstance(files, str) else files
        for name, text in named.items():
            path = tmp_path / "repo" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return index_repository(tmp_path / "repo", packages or ("pkg",), **options)

    return make
