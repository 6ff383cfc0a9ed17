"""Which files are looked at, what is kept between runs, and what a foreign checkout may not do."""

from __future__ import annotations

import os
import subprocess

import pytest

from tooling.python.access_paths import Name
from tooling.upgrade.usage import index_repository
from tooling.upgrade.uses import Action

CLIENT = "import pkg\npkg.f()\n"


def write(root, files: dict[str, str]):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def paths(found) -> list[str]:
    return [file.path for file in found.files]


def git(root, *arguments: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, env=environment)


def test_without_git_a_walk_leaves_out_what_is_not_the_projects(tmp_path):
    names = [
        "a.py",
        "src/b.py",
        ".venv/lib/c.py",
        "node_modules/d.py",
        "build/lib/e.py",
        ".cache/g.py",
        ".eggs/h.py",
        ".pixi/i.py",
        ".direnv/j.py",
        "env/conda-meta/history",
        "env/lib/k.py",
        "x.egg-info/f.py",
        "notes.txt",
    ]
    assert paths(index_repository(write(tmp_path, dict.fromkeys(names, CLIENT)), ["pkg"])) == ["a.py", "src/b.py"]


def test_with_git_new_files_count_and_ignored_ones_do_not(tmp_path):
    git(tmp_path, "init", "-q")
    write(tmp_path, {"a.py": CLIENT, "new.py": CLIENT, "ignored.py": CLIENT, ".gitignore": "ignored.py\n"})
    git(tmp_path, "add", "a.py")
    assert paths(index_repository(tmp_path, ["pkg"])) == ["a.py", "new.py"]


def test_a_tracked_file_that_is_gone_is_no_problem(tmp_path):
    git(tmp_path, "init", "-q")
    write(tmp_path, {"a.py": CLIENT, "gone.py": CLIENT})
    git(tmp_path, "add", ".")
    (tmp_path / "gone.py").unlink()
    assert paths(index_repository(tmp_path, ["pkg"])) == ["a.py"]


def test_nothing_that_a_checkouts_git_configuration_names_is_started(tmp_path):
    git(tmp_path, "init", "-q")
    write(tmp_path, {"a.py": CLIENT, "evil.sh": "#!/bin/sh\ntouch started\n"})
    (tmp_path / "evil.sh").chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(tmp_path / "evil.sh"))
    assert paths(index_repository(tmp_path, ["pkg"])) == ["a.py"]
    assert not (tmp_path / "started").exists()


def test_links_out_of_the_checkout_are_not_followed(tmp_path):
    write(tmp_path, {"outside.py": CLIENT, "repo/a.py": CLIENT})
    (tmp_path / "repo" / "link.py").symlink_to(tmp_path / "outside.py")
    assert paths(index_repository(tmp_path / "repo", ["pkg"])) == ["a.py"]


def test_a_scope_limits_what_is_reported_not_what_is_known(tmp_path):
    write(tmp_path, {"lib/__init__.py": "from pkg import f\n", "app/main.py": "from lib import f\nf()\n"})
    found = index_repository(tmp_path, ["pkg"], scope=["app/"])
    assert [(use.place.path, use.target) for use in found.uses() if use.action is Action.CALL] == [
        ("app/main.py", Name("pkg.f"))
    ]
    assert paths(found) == ["app/main.py"]
    assert found.looked_at == 1


def test_files_that_have_nothing_to_do_with_the_package_are_not_parsed(tmp_path):
    found = index_repository(write(tmp_path, {"a.py": CLIENT, "b.py": "this is no Python"}), ["pkg"])
    assert (found.scanned, paths(found)) == (1, ["a.py"])


def test_facts_are_kept_by_content(tmp_path):
    root = write(tmp_path / "repo", {"a.py": CLIENT, "b.py": "import pkg\npkg.g()\n"})
    first = index_repository(root, ["pkg"], cache=tmp_path / "cache")
    second = index_repository(root, ["pkg"], cache=tmp_path / "cache")
    assert (first.scanned, second.scanned) == (2, 0)
    assert second.files == first.files
    (root / "b.py").write_text(CLIENT)  # the same content as a.py: nothing new to parse
    assert index_repository(root, ["pkg"], cache=tmp_path / "cache").scanned == 0
    (root / "b.py").write_text("import pkg\npkg.h()\n")
    third = index_repository(root, ["pkg"], cache=tmp_path / "cache")
    assert third.scanned == 1
    assert [use.target for use in third.uses() if use.place.path == "b.py"] == [Name("pkg"), Name("pkg.h")]


def test_facts_serve_any_package(tmp_path):
    root = write(tmp_path / "repo", {"a.py": "import pkg, other\npkg.f()\nother.g()\n"})
    index_repository(root, ["pkg"], cache=tmp_path / "cache")
    found = index_repository(root, ["other"], cache=tmp_path / "cache")
    assert found.scanned == 0
    assert [use.target for use in found.uses()] == [Name("other"), Name("other.g")]


@pytest.mark.parametrize("damage", [b"", b"areal usage", b"\x00" * 200])
def test_a_damaged_cache_is_as_good_as_none(tmp_path, damage):
    root = write(tmp_path / "repo", {"a.py": CLIENT})
    first = index_repository(root, ["pkg"], cache=tmp_path / "cache")
    for entry in (tmp_path / "cache").rglob("*"):
        if entry.is_file():
            entry.write_bytes(damage or entry.read_bytes()[:-20])
    again = index_repository(root, ["pkg"], cache=tmp_path / "cache")
    assert again.scanned == 1
    assert again.files == first.files


def test_bad_files_are_problems_and_the_rest_goes_on(tmp_path):
    write(tmp_path, {"old.py": "import pkg\nprint 'x'\n", "good.py": CLIENT})
    (tmp_path / "binary.py").write_bytes(b"import pkg\n\xff\xfe\x00")
    (tmp_path / "coding.py").write_bytes(b"# -*- coding: no-such -*-\nimport pkg\n")
    found = index_repository(tmp_path, ["pkg"])
    assert {file.path: bool(file.problem) for file in found.files} == {
        "binary.py": True,
        "coding.py": True,
        "good.py": False,
        "old.py": True,
    }


def test_deeply_nested_code_is_read(tmp_path):
    write(tmp_path, {"a.py": "import pkg\nx = " + " + ".join(["'x'"] * 900) + "\npkg.f()\n"})
    found = index_repository(tmp_path, ["pkg"])
    assert [use.target for use in found.uses()] == [Name("pkg"), Name("pkg.f")]


def test_packages_win_over_folders_of_the_same_name(tmp_path):
    write(tmp_path, {"app/pkg/__init__.py": "def f(): ...\n", "app/__init__.py": "", "app/a.py": CLIENT})
    found = index_repository(tmp_path, ["pkg"])
    assert [use.target for use in found.uses()] == [Name("pkg"), Name("pkg.f")]
