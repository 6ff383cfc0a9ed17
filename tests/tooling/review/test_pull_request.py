"""--pr: against a real remote, a bare repository that holds requests as servers do."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tooling.cli.errors import UsageError
from tooling.review.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

BAD = "import yaml\n\n\ndef read(text):\n    return yaml.unsafe_load(text)\n"


@pytest.fixture
def remote(world, tmp_path, monkeypatch):
    """A clone that knows `main` as it was; the remote moved on, and holds request 7, based on the new one."""
    monkeypatch.setenv("PATH", str(without_gh(tmp_path)))
    bare = tmp_path / "server.git"
    world.git("clone", "-q", "--bare", ".", str(bare))
    world.git("remote", "add", "origin", str(bare))
    old = world.git("rev-parse", "HEAD").strip()
    world.commit({"others.py": BAD})
    world.git("push", "-q", "origin", "main")
    world.commit({"topic.py": BAD})
    world.git("push", "-q", "origin", "HEAD:refs/pull/7/head", "HEAD~1:refs/heads/release")
    world.git("reset", "-q", "--hard", old)
    return bare


def without_gh(tmp_path) -> Path:
    """A folder with git and what it needs, so that a `gh` of this machine plays no part."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("git", "sh", "cat"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def gh(tmp_path, base: str) -> None:
    program = tmp_path / "bin" / "gh"
    said = json.dumps({"baseRefName": base})
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'pr view 7 --json baseRefName' ] && cat <<'END'\n{said}\nEND\n")
    program.chmod(0o755)


def tracked_state(world) -> tuple[str, str, str, bool]:
    branches = world.git("for-each-ref", "refs/heads", "refs/tags", "refs/remotes")
    return world.git("status", "--porcelain"), branches, world.git("ls-files", "-s"), fetch_head(world)


def fetch_head(world) -> bool:
    return (world.root / ".git" / "FETCH_HEAD").exists()


@pytest.mark.usefixtures("remote")
def test_a_request_is_compared_with_where_it_left_the_remotes_base(world):
    before = tracked_state(world)
    assert world.found("--pr", "7") == [("unsafe-yaml", "topic.py", 5)]
    assert tracked_state(world) == before
    kept = world.git("for-each-ref", "--format=%(refname)", "refs/areal-review").split()
    assert kept == ["refs/areal-review/7/base", "refs/areal-review/7/head"]


def test_requests_of_gitlab_are_found_too(world, remote):
    world.git("push", "-q", str(remote), "main:refs/merge-requests/8/head")
    assert world.found("--pr", "8") == []


@pytest.mark.exhaustive
@pytest.mark.usefixtures("remote")
def test_the_base_is_that_of_the_option_then_what_gh_says_then_the_default(world, tmp_path):
    title = "pull request 7 onto"
    assert world.review("--pr", "7").comparison.title.startswith(f"{title} main (the remote's default branch")
    gh(tmp_path, "release")
    assert world.review("--pr", "7").comparison.title == f"{title} release"
    assert world.review("--pr", "7", "--base", "main").comparison.title == f"{title} main"


@pytest.mark.sample(1)
@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize("name", ["--upload-pack=touch trap", "../../x", "release\nmain", "+release:refs/heads/main"])
def test_a_hostile_name_of_a_base_is_no_branch_of_the_remote(world, tmp_path, name):
    gh(tmp_path, name)
    assert "onto main (the remote's default" in world.review("--pr", "7").comparison.title
    with pytest.raises(UsageError, match="has no branch"):
        world.review("--pr", "7", f"--base={name}")
    assert not (world.root / "trap").exists()


@pytest.mark.usefixtures("remote")
def test_the_policy_is_that_of_the_remotes_base(world):
    world.commit({"pyproject.toml": '[tool.areal.review]\ndisable = ["unsafe-yaml"]\n'})
    assert world.found("--pr", "7") == [("unsafe-yaml", "topic.py", 5)]


@pytest.mark.sample(3)
@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["--pr", "9"], "--pr 9"),
        (["--pr", "0"], ""),
        (["--pr", "7", "--head", "main"], "--head"),
        (["--pr", "7", "--staged"], ""),
        (["--remote", "origin"], "--remote"),
        (["--pr", "7", "--remote=--upload-pack=x"], "--remote --upload-pack=x"),
        (["--pr", "7", "--remote", "ext::sh -c true"], None),
        (["--pr", "7", "--remote", "gone"], None),
    ],
)
def test_what_cannot_be_fetched_is_refused_with_what_to_do(world, capsys, options, where):
    assert main(["--repo", str(world.root), *options, "--json"]) == (11 if where is None else 2)
    report = json.loads(capsys.readouterr().out)
    assert report["where"] == (str(world.root) if where is None else where)
    assert report["fix"]


def test_a_repository_without_a_remote_says_so(world, capsys):
    assert main(["--repo", str(world.root), "--pr", "7", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "this repository has no remote"


def test_a_remote_that_is_down_says_so(world, remote, capsys):
    remote.rename(remote.with_name("elsewhere"))
    assert main(["--repo", str(world.root), "--pr", "7"]) == 11
    assert "check the network" in capsys.readouterr().err
