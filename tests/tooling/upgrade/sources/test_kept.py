"""What audits keep is bounded by age and size; what may be in use stays."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tooling.upgrade.interfaces.judge import judge_interfaces
from tooling.upgrade.sources.cache import KEPT, Cache, prune_kept, touch
from tooling.upgrade.sources.folder import memory_release

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400
HEX = "0123456789abcdef" * 2
OLD, NEW = (memory_release({"app/__init__.py": ""}, "app", version) for version in ("1", "2"))


def keep(folder: Path, name: str, days: float, size: int = 10) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - days * DAY,) * 2)
    return path


def test_what_nobody_used_for_long_goes(tmp_path: Path) -> None:
    old = [
        keep(tmp_path, name, 61)
        for name in (f"usage/usage-1/ab/{HEX}", f"audits/{HEX}.json", "facts/facts-6-311-ab", f"interfaces/{HEX}.json")
    ]
    used = keep(tmp_path, f"usage/usage-2/ab/{HEX}", 59)
    assert prune_kept(tmp_path) == 40
    assert [path.exists() for path in (*old, used)] == [False] * 4 + [True]


def test_above_the_bound_the_oldest_go_and_what_was_used_today_stays(tmp_path: Path) -> None:
    oldest, older, today = (keep(tmp_path, f"usage/{HEX}{days * 10:03.0f}", days, 100) for days in (5, 4, 0.5))
    assert prune_kept(tmp_path, most=50) == 200
    assert [path.exists() for path in (oldest, older, today)] == [False, False, True]


def test_the_newest_that_fit_stay(tmp_path: Path) -> None:
    paths = [keep(tmp_path, f"interfaces/{HEX}{days * 10:03.0f}", days, 100) for days in (5, 4, 3, 2)]
    assert prune_kept(tmp_path, most=250) == 200
    assert [path.exists() for path in paths] == [False, False, True, True]


def test_reading_counts_as_use(tmp_path: Path) -> None:
    path = keep(tmp_path, f"usage/{HEX}", 100)
    touch(path)
    assert (prune_kept(tmp_path), path.exists()) == (0, True)


def test_it_looks_once_a_day(tmp_path: Path) -> None:
    assert prune_kept(tmp_path) == 0
    path = keep(tmp_path, f"usage/{HEX}", 100)
    assert (prune_kept(tmp_path), path.exists()) == (0, True)
    assert prune_kept(tmp_path, now=time.time() + 1.1 * DAY) == 10


@pytest.mark.parametrize(
    "name", ["a.zip", "releases/a/b.json", "pages/c.json", "usage/guide.md", "facts/facts.md", "audits/1.json"]
)
def test_nothing_else_in_the_folder_is_touched(tmp_path: Path, name: str) -> None:
    path = keep(tmp_path, name, 1000)
    outside = keep(tmp_path.parent / f"{tmp_path.name}-outside", HEX, 1000)
    (tmp_path / "usage").mkdir(exist_ok=True)
    (tmp_path / "usage" / "link").symlink_to(outside.parent)
    assert prune_kept(tmp_path) == 0
    assert [each.exists() for each in (path, outside)] == [True, True]


def test_nothing_that_interfaces_leave_stays_for_ever(tmp_path: Path) -> None:
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    keep(repository, "run.sh", 0)
    (repository / "run.py").write_text("import app\nimport os\nos.environ['APP_MODE']\n")
    for home in (repository, tmp_path / "copy"):
        home.mkdir(exist_ok=True)
        judge_interfaces(home, OLD, NEW, "app", cache=cache, home=repository)
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert {path.relative_to(cache).parts[0] for path in files} <= set(KEPT)
    # commands, and what single files have: of a copy no other ones
    assert len([path for path in files if path.parent.name == "repositories"]) == 2
    prune_kept(cache, now=time.time() + 61 * DAY)
    assert not [path for path in files if path.exists()]


def test_zips_that_others_put_there_stay(tmp_path: Path) -> None:
    other, ours, newest = (
        keep(tmp_path, name, days) for name, days in (("a.zip", 3), (f"{HEX}.zip", 2), (f"{HEX}0.zip", 1))
    )
    Cache(tmp_path).prune(most=1)
    assert [path.exists() for path in (other, ours, newest)] == [True, False, True]
