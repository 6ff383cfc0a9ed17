"""Pull requests through `gh`: opened once, updated afterwards, never against a person's words."""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tooling.pull_request.branch import CheckedOutBranch, Target
from tooling.pull_request.remote import HostedRepository, place_of
from tooling.pull_request.service import by_hand

REAL_GH = shutil.which("gh")
"""Looked up before a test takes PATH away."""


@pytest.fixture
def served(world):
    world.use_gh()
    return world


def test_a_request_is_opened_with_title_base_and_text(served):
    ran = served.json("create", "--draft")
    assert ran["url"] == "https://github.com/owner/name/pull/1"
    made = served.requests()[0]
    assert (made["title"], made["baseRefName"], made["headRefName"]) == ("feat: add two", "main", "topic")
    assert made["isDraft"] is True
    assert made["body"].replace("\r\n", "\n") == ran["body"]


def test_an_open_request_is_updated_instead_of_a_second_one(requested):
    requested.commit("fix: review", {"package/two.txt": "def two():\n    return 2.0\n"})
    ran = requested.json("create", "--yes")
    assert ran["url"] == "https://github.com/owner/name/pull/1"
    assert len(requested.requests()) == 1
    assert "fix: review" in requested.requests()[0]["body"]
    assert requested.gh()["calls"][-1]["words"][:3] == ["pr", "edit", "1"]


def test_nothing_is_sent_when_nothing_is_new(requested):
    requested.run("create")
    assert [call["words"][1] for call in requested.gh()["calls"]] == ["list", "create", "list"]


def edit(world, change):
    state = world.gh()
    change(state["requests"][0])
    world.state.write_text(json.dumps(state))


def test_a_text_that_somebody_edited_is_kept(requested):
    edit(requested, lambda request: request.update(body="Please look at line 3 first.\r\n\r\n" + request["body"]))
    requested.commit("fix: review", {"x.txt": "1\n"})
    ran = requested.json("create", "--yes")
    assert requested.requests()[0]["body"].startswith("Please look")
    assert any("--replace-body" in step for step in ran["next"])
    requested.run("create", "--replace-body")
    assert not requested.requests()[0]["body"].startswith("Please look")


@pytest.mark.exhaustive
def test_a_title_that_somebody_edited_is_kept(requested):
    edit(requested, lambda request: request.update(title="feat: counted differently"))
    requested.commit("fix: review", {"x.txt": "1\n"})
    requested.run("create", "--yes")
    assert requested.requests()[0]["title"] == "feat: counted differently"
    requested.run("create", "--yes", "--title", "feat: count to two")
    assert requested.requests()[0]["title"] == "feat: count to two"


@pytest.mark.exhaustive
def test_a_request_against_another_base_is_not_changed_by_the_way(served):
    served.git("push", "-q", "origin", "main:release")
    served.run("create", "--base", "release")
    ran = served.run("create")
    assert (ran.code, "--base release" in ran.err) == (2, True)
    assert served.run("create", "--base", "main", "--yes").code == 0
    assert served.requests()[0]["baseRefName"] == "main"


@pytest.mark.exhaustive
def test_closed_requests_and_those_of_forks_are_others(requested):
    edit(requested, lambda request: request.update(isCrossRepository=True))
    before = len(requested.requests())
    requested.commit("fix: more", {"x.txt": "1\n"})
    ran = requested.run("create", "--yes")
    assert ran.code == 12  # the service itself allows no second one of that name here
    edit(requested, lambda request: request.update(state="closed"))
    assert requested.run("create", "--yes").code == 0
    assert len(requested.requests()) == before + 1


@pytest.mark.exhaustive
def test_what_gh_refuses_is_quoted_and_the_next_run_goes_on(served):
    served.state.write_text('{"requests": [], "calls": [], "refuse": "create"}')
    ran = served.run("create")
    assert (ran.code, "was refused (createPullRequest)" in ran.err) == (12, True)
    assert served.there("topic") == served.tip()
    served.state.unlink()
    tip = served.tip()
    assert served.run("create").code == 0
    assert (served.tip(), len(served.requests())) == (tip, 1)


def test_a_gh_that_cannot_be_used_leaves_the_text_and_the_command(served):
    served.state.write_text('{"requests": [], "calls": [], "refuse": "list"}')
    ran = served.json("create")
    assert ran["ok"]
    assert "cannot be used" in next(step["effect"] for step in ran["steps"] if step["name"] == "pull-request")
    kept = served.root / ".git/areal-pr/body.md"
    assert kept.read_text() == ran["body"]
    assert any(os.fspath(kept) in step for step in ran["next"])


@pytest.mark.exhaustive
def test_a_fork_is_named_as_the_head(served):
    subprocess.run(["git", "init", "-q", "--bare", os.fspath(served.folder / "fork.git")], check=True)
    served.git("remote", "rename", "origin", "upstream")
    served.git("remote", "add", "fork", "git@github.com:ann/name.git")
    served.git("config", f"url.{served.folder}/fork.git.insteadOf", "git@github.com:ann/name.git")
    ran = served.run("create", "--base", "upstream/main", "--remote", "fork", "--dry-run", "--json")
    command = next(step["command"] for step in ran.json["steps"] if step["name"] == "pull-request")
    assert "--base=main" in command


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://github.com/owner/name.git", HostedRepository("github.com", "owner", "name")),
        ("https://ann:secret@github.com/owner/name", HostedRepository("github.com", "owner", "name")),
        ("git@github.com:owner/name.git", HostedRepository("github.com", "owner", "name")),
        ("ssh://git@git.example.org:2222/owner/name.git/", HostedRepository("git.example.org", "owner", "name")),
        ("https://gitlab.com/group/sub/name.git", HostedRepository("gitlab.com", "group/sub", "name")),
        ("../remote.git", None),
        ("/srv/git/name.git", None),
        ("file:///srv/git/name.git", None),
        ("C:/git/name.git", None),
    ],
)
def test_addresses_are_read(url, place):
    assert place_of(url) == place


def test_without_gh_there_is_an_address_to_open():
    goal = Target(
        remote="fork",
        base_remote="origin",
        base="main",
        base_tip="0" * 40,
        theirs="",
        url="git@github.com:ann/name.git",
        base_url="https://github.com/owner/name.git",
    )
    branch = CheckedOutBranch(name="a&b #1", tip="1" * 40)
    steps = by_hand(branch, goal, "feat: x & y", Path("/tmp/body.md"), draft=True)
    address = "https://github.com/owner/name/compare/main...ann:a%26b%20%231?expand=1&title=feat%3A%20x%20%26%20y"
    assert steps[0] == f"open {address}"
    assert "--repo=github.com/owner/name" in steps[1]
    assert "--draft" in steps[1]


def module(name):
    """A helper beside this file; tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def github(world, monkeypatch):
    """The real `gh`, and a service on this machine that it takes for GitHub."""
    if REAL_GH is None:
        pytest.skip("`gh` is not installed")
    (world.folder / "bin" / "gh").symlink_to(REAL_GH)
    with tempfile.TemporaryDirectory(prefix="gh-") as folder:  # a socket's path may have 100 characters
        socket = Path(folder) / "socket"
        (Path(folder) / "config.yml").write_text(f"http_unix_socket: {socket}\n")
        monkeypatch.setenv("GH_CONFIG_DIR", folder)
        monkeypatch.setenv("GH_TOKEN", "none")
        world.git("remote", "set-url", "origin", "https://github.com/owner/name.git")
        world.git("config", "url.../remote.git.insteadOf", "https://github.com/owner/name.git")
        with module("served_github").GitHub(socket) as service:
            yield service
            service.shutdown()


def test_the_real_one_opens_and_updates_a_request(world, github):
    ran = world.json("create", "--draft")
    assert ran["url"] == "https://github.com/owner/name/pull/1", ran
    made = github.requests[0]
    assert (made["title"], made["baseRefName"], made["headRefName"]) == ("feat: add two", "main", "topic")
    assert (made["isDraft"], made["body"]) == (True, ran["body"])
    world.commit("fix: review $(x) `y`", {"x.txt": "1\n"})
    ran = world.json("create", "--yes", "--title", "feat: count to two")
    assert (len(github.requests), made["title"], made["body"]) == (1, "feat: count to two", ran["body"])
    assert world.run("create", "--title", "feat: count to two").code == 0
    assert len(github.mutations) == 2
    assert world.json("status")["pull_request"]["number"] == 1


@pytest.mark.skipif(REAL_GH is None, reason="`gh` is not installed: its options cannot be compared with the stand-in's")
@pytest.mark.parametrize("verb", ["list", "create", "edit"])
def test_the_stand_in_has_only_options_that_the_real_one_has(verb):
    page = subprocess.run([REAL_GH, "pr", verb, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][\w-]*", page)) | {"--repo", "--help"}
    whole = module("recorded_gh").parser()
    pr = next(each for each in whole._actions if isinstance(each, argparse._SubParsersAction)).choices["pr"]
    verbs = next(each for each in pr._actions if isinstance(each, argparse._SubParsersAction)).choices
    ours = {option for action in verbs[verb]._actions for option in action.option_strings if option.startswith("--")}
    assert len(ours) > 3
    assert ours <= known


@pytest.mark.skipif(REAL_GH is None, reason="`gh` is not installed: it cannot be asked whether it takes these words")
def test_the_real_one_takes_every_word(served):
    """It fails for want of a network only, and not over an option."""
    served.run("create")
    served.commit("fix: more", {"x.txt": "1\n"})
    served.run("create", "--yes", "--title", "feat: count", "--replace-body")
    calls = served.gh()["calls"]
    assert {call["words"][1] for call in calls} == {"list", "create", "edit"}
    for call in calls:
        words = [*call["words"], "--repo=localhost:1/owner/name"]
        environment = {**os.environ, "GH_TOKEN": "none", "GH_ENTERPRISE_TOKEN": "none", "GH_CONFIG_DIR": "/nonexistent"}
        done = subprocess.run(
            [REAL_GH, *words],
            cwd=served.root,
            env=environment,
            check=False,
            input=call["stdin"] or "",
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert not re.search(r"unknown (?:flag|shorthand|json field)|accepts \d|usage:", done.stderr, re.IGNORECASE)
        assert re.search(r"connect|dial|network|resolv", done.stderr), done.stderr
