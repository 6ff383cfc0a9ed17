"""Start ruff once for what it has seen already: most tests of generation write the same few units.

A run is known by its arguments and by everything in the folder that ruff sees: the bytes of files, and of links to
neighbours their names and whether they are packages. What ruff itself answers is what tests/tooling/kit asks it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tooling.kit.template import rendering

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

known: dict[tuple, tuple] = {}
"""By what ruff was asked: its outcome, and the files as it left them."""


def seen_by_ruff(stage: Path) -> tuple:
    """Return what decides over ruff's answer about files in a folder."""
    found = []
    for folder, folders, files in os.walk(stage):
        for entry in map(stage.joinpath(folder).joinpath, sorted([*folders, *files])):
            place = str(entry.relative_to(stage))
            if entry.is_symlink():
                found.append((place, entry.is_dir(), (entry / "__init__.py").exists()))
            else:
                found.append((place, entry.read_bytes() if entry.is_file() else None))
    return tuple(found)


@contextmanager
def remembered() -> Iterator[None]:
    """Within it, ruff is started only for what no earlier test of this process has asked."""
    start = rendering._ruff

    def answer(stage, command, files):
        asked = (tuple(command), tuple(sorted(files)), seen_by_ruff(stage))
        if asked not in known:
            outcome = start(stage, command, files)
            known[asked] = (outcome, {path: (stage / path).read_bytes() for path in files})
        outcome, contents = known[asked]
        for path, content in contents.items():
            (stage / path).write_bytes(content)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "_ruff", answer)
        yield


@pytest.fixture(scope="module", autouse=True)
def ruff_is_remembered():
    with remembered():
        yield
