"""What audits keep is bounded by age and size; what may be in use stays."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tooling.upgrade.sources.cache import Cache, prune_kept, touch

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400


def keep(folder: Path, name: str, days: float, size: int = 10) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def test_what_nobody_used_for_long_goes(tmp_path: Path) -> None:
    old = [keep(tmp_path, name, 61) for name in ("usage/usage-1/ab/cd", "audits/x.json", "facts/y", "interfaces/i/z")]
    used = keep(tmp_path, "usage/usage-2/ab/cd", 59)
    assert prune_kept(tmp_path) == 40
    assert [path.exists() for path in (*old, used)] == [False] * 4 + [True]


def test_above_the_bound_the_oldest_go_and_what_was_used_today_stays(tmp_path: Path) -> None:
    oldest, older, today = (keep(tmp_path, f"usage/{days}", days, 100) for days in (5, 4, 0.5))
    assert prune_kept(tmp_path, most=50) == 200
    assert [path.exists() for path in (oldest, older, today)] == [False, False, True]


def test_the_newest_that_fit_stay(tmp_path: Path) -> None:
    paths = [keep(tmp_path, f"interfaces/{days}", days, 100) for days in (5, 4, 3, 2)]
    assert prune_kept(tmp_path, most=250) == 200
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_reading_counts_as_use(tmp_path: Path) -> None:
    path = keep(tmp_path, "usage/a", 100)
    touch(path)
    assert (prune_kept(tmp_path), path.exists()) == (0, True)


def test_it_looks_once_a_day(tmp_path: Path) -> None:
    assert prune_kept(tmp_path) == 0
    path = keep(tmp_path, "usage/a", 100)
    assert (prune_kept(tmp_path), path.exists()) == (0, True)
    assert prune_kept(tmp_path, now=time.time() + 1.1 * DAY) == 10


@pytest.mark.parametrize("name", ["a.zip", "releases/a/b.json", "pages/c.json"])
def test_nothing_else_in_the_folder_is_touched(tmp_path: Path, name: str) -> None:
    path = keep(tmp_path, name, 1000)
    outside = keep(tmp_path.parent / f"{tmp_path.name}-outside", "d", 1000)
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage" / "link").symlink_to(outside.parent)
    assert prune_kept(tmp_path) == 0
    assert [each.exists() for each in (path, outside)] == [True, True]
    assert Cache(tmp_path).read("pages/none.json") == {}
