"""Remotes that refuse, move, hide or are somebody else's; nothing of anybody's is lost."""

import os
import subprocess

import pytest

from tooling.cli.git import find_repository
from tooling.pull_request.branch import ProposalOptions
from tooling.pull_request.create import create


def test_history_on_the_remote_is_replaced_only_with_consent(published):
    before = (published.git("for-each-ref", "refs/heads", "refs/areal-pr"), published.there("topic"))
    ran = published.run("create")
    assert (ran.code, "--yes" in ran.err) == (2, True)
    assert (published.git("for-each-ref", "refs/heads", "refs/areal-pr"), published.there("topic")) == before
    assert published.run("create", "--yes").code == 0
    assert published.there("topic") == published.tip() != before[1]


@pytest.mark.exhaustive
def test_nothing_is_forced_when_nothing_is_replaced(world):
    world.git("config", "push.default", "nothing")
    plan = world.json("create", "--dry-run")
    assert not any("force" in step["command"] for step in plan["steps"])
    world.git("push", "-q", "origin", "topic")
    plan = world.json("create", "--dry-run")
    assert plan["replaces_published"] is True
    push = next(step for step in plan["steps"] if step["name"] == "push")
    assert f"--force-with-lease=refs/heads/topic:{world.tip()}" in push["command"]


def test_commits_of_somebody_else_are_never_replaced(published):
    theirs = published.advance("fix: theirs", {"theirs.txt": "1\n"}, branch="topic")
    before = published.tip()
    ran = published.run("create", "--yes")
    assert (ran.code, "fix: theirs" in ran.err, "git pull --rebase origin topic" in ran.err) == (3, True, True)
    assert (published.tip(), published.there("topic")) == (before, theirs)


def test_a_push_that_comes_in_between_wins(published):
    """The lease refuses: somebody pushes after the plan was made."""
    world, theirs = published, []

    def somebody_pushes(step):
        if step == "push":
            theirs.append(world.advance("fix: theirs", {"theirs.txt": "1\n"}, branch="topic"))

    repository = find_repository(world.root)
    before = world.tip()
    with pytest.raises(Exception, match="somebody pushed to it meanwhile") as caught:
        create(repository, ProposalOptions(), dry_run=False, consent=lambda plan: True, observe=somebody_pushes)
    assert caught.value.exit_code == 3
    assert world.there("topic") == theirs[0]
    assert "areal-pr restore" in caught.value.fix
    assert world.run("restore").code == 0
    assert world.tip() == before


@pytest.mark.exhaustive
def test_own_commits_that_were_amended_are_known_from_the_reflog(published):
    published.git("commit", "-q", "--amend", "-m", "fix: better")
    assert published.run("create", "--yes").code == 0
    assert published.there("topic") == published.tip()


def test_work_that_goes_on_after_a_request_is_joined_again(created):
    created.commit("fix: review", {"package/two.txt": "def two():\n    return 2.0\n"})
    assert created.run("create").code == 2
    assert created.run("create", "--yes").code == 0
    assert created.git("rev-list", "--count", "origin/main..HEAD") == "1"
    assert created.there("topic") == created.tip()


def test_a_hook_that_rejects_is_quoted_and_the_branch_can_be_restored(world):
    world.hook("pre-receive", "echo 'policy: not on Sundays' >&2; exit 1")
    before = world.tip()
    ran = world.run("create")
    assert (ran.code, "policy: not on Sundays" in ran.err, "areal-pr restore" in ran.err) == (11, True, True)
    assert world.there("topic") == ""
    assert world.run("restore").code == 0
    assert world.tip() == before
    (world.remote / "hooks" / "pre-receive").unlink()
    assert world.run("create").code == 0
    assert world.there("topic") == world.tip()


def test_the_own_hook_before_a_push_runs(world):
    hook = world.root / ".git/hooks/pre-push"
    hook.write_text("#!/bin/sh\necho 'tests are red' >&2\nexit 1\n")
    hook.chmod(0o755)
    ran = world.run("create")
    assert (ran.code, "tests are red" in ran.err, world.there("topic")) == (11, True, "")


@pytest.mark.exhaustive
def test_the_own_hook_for_references_can_forbid_the_move(world):
    hook = world.root / ".git/hooks/reference-transaction"
    hook.write_text('#!/bin/sh\n[ "$1" = prepared ] || exit 0\n[ -z "$(sed -n /refs.heads/p)" ]\n')
    hook.chmod(0o755)
    before = (world.tip(), world.files())
    ran = world.run("create")
    assert (ran.code, (world.tip(), world.files()), world.git("status", "--porcelain")) == (3, before, "")


def test_a_remote_that_cannot_be_reached_changes_nothing(world):
    world.remote.rename(world.folder / "gone.git")
    before = (world.git("for-each-ref"), world.files())
    ran = world.run("create")
    assert (ran.code, "cannot be reached" in ran.err) == (11, True)
    assert (world.git("for-each-ref"), world.files()) == before


def test_passwords_in_addresses_are_not_shown(world):
    world.git("remote", "set-url", "origin", "https://ann:s3cret@localhost:1/owner/name.git")
    ran = world.run("create")
    assert ran.code == 11
    assert "s3cret" not in ran.out + ran.err


@pytest.mark.exhaustive
def test_a_default_branch_of_another_name_is_found(world):
    """Also when it was renamed after the clone was made."""
    world.git("update-ref", "refs/heads/trunk", "refs/heads/main", GIT_DIR=os.fspath(world.remote))
    world.git("symbolic-ref", "HEAD", "refs/heads/trunk", GIT_DIR=os.fspath(world.remote))
    world.git("update-ref", "-d", "refs/heads/main", GIT_DIR=os.fspath(world.remote))
    plan = world.json("create")
    assert (plan["ok"], plan["base"]) == (True, "origin/trunk")
    assert world.tip("HEAD^") == world.there("trunk")


@pytest.mark.exhaustive
def test_a_fork_is_pushed_to_and_compared_with_its_origin(world):
    subprocess.run(["git", "init", "-q", "--bare", os.fspath(world.folder / "fork.git")], check=True)
    world.git("remote", "rename", "origin", "upstream")
    world.git("remote", "add", "fork", "../fork.git")
    world.git("config", "remote.team/fork.url", "../fork.git")
    plan = world.json("create", "--base", "team/fork/main", "--remote", "upstream", "--dry-run")
    assert "no branch 'main'" in plan["error"]
    plan = world.json("create", "--base", "upstream/main", "--remote", "fork")
    assert (plan["ok"], plan["base"], plan["remote"]) == (True, "upstream/main", "fork")
    assert world.git("ls-remote", "fork", "refs/heads/topic").split("\t")[0] == world.tip()
    assert world.there("topic") == ""


@pytest.mark.exhaustive
def test_a_shallow_clone_works_as_far_as_its_history_goes(world):
    url = (world.folder / "remote.git").as_uri()
    world.git("push", "-q", "origin", "topic")
    shallow = world.folder / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", "--no-single-branch", "-b", "topic", url, shallow], check=True)
    world.root = shallow
    ran = world.run("create", "--yes")
    assert (ran.code, "git fetch --unshallow" in ran.err) == (2, True)
    world.git("fetch", "-q", "--unshallow")
    assert world.run("create", "--yes").code == 0
    assert world.tip("HEAD^") == world.there("main")


@pytest.mark.exhaustive
def test_a_linked_work_tree_is_a_place_like_any_other(world):
    world.git("switch", "-q", "main")
    world.git("worktree", "add", "-q", "../linked", "topic")
    main_tree = world.files()
    first, world.root = world.root, world.folder / "linked"
    before = world.tip()
    assert world.run("create").code == 0
    assert world.there("topic") == world.tip()
    assert world.git("status", "--porcelain") == ""
    assert world.run("restore").code == 0
    assert world.tip() == before
    world.root = first
    assert world.files() == main_tree


@pytest.mark.exhaustive
def test_submodules_are_carried_along_and_never_entered(world):
    library = world.folder / "library"
    subprocess.run(["git", "init", "-q", os.fspath(library)], check=True)
    (library / "code.txt").write_text("1\n")
    subprocess.run(["git", "add", "."], cwd=library, check=True)
    subprocess.run(["git", "commit", "-q", "-m", "one"], cwd=library, check=True)
    world.git("config", "submodule.recurse", "true")
    world.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", os.fspath(library), "vendor")
    world.git("commit", "-q", "-m", "build: vendor the library")
    (world.root / "vendor/scratch.txt").write_text("mine\n")
    assert world.run("create").code == 0
    assert world.git("ls-tree", "HEAD", "vendor").startswith("160000 commit")
    assert (world.root / "vendor/scratch.txt").read_text() == "mine\n"
    assert (world.root / "vendor/code.txt").read_text() == "1\n"
    assert world.tip("HEAD^") == world.there("main")
    (library / "code.txt").write_text("2\n")
    subprocess.run(["git", "commit", "-q", "-am", "two"], cwd=library, check=True)
    newer = subprocess.run(["git", "rev-parse", "HEAD"], cwd=library, check=True, capture_output=True).stdout.decode()
    before = world.tip()
    world.git("update-index", "--cacheinfo", f"160000,{newer.strip()},vendor")
    world.git("commit", "-q", "-m", "build: newer library")
    world.git("-c", "protocol.file.allow=always", "submodule", "update", "-q")
    assert world.run("create", "--yes").code == 0
    world.git("update-ref", "refs/areal-pr/backup/topic/20000101T000000.000000Z", before)
    assert world.run("restore", "20000101T000000.000000Z").code == 0
    assert (world.root / "vendor/code.txt").read_text() == "2\n"
    assert world.git("status", "--porcelain", "--ignore-submodules=untracked") == " M vendor"


@pytest.mark.exhaustive
def test_variables_of_a_git_hook_do_not_lead_elsewhere(world, monkeypatch):
    elsewhere = world.folder / "elsewhere"
    subprocess.run(["git", "init", "-q", os.fspath(elsewhere)], check=True)
    monkeypatch.setenv("GIT_DIR", os.fspath(elsewhere / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", os.fspath(elsewhere / ".git/index"))
    ran = world.run("create")
    monkeypatch.delenv("GIT_DIR")
    monkeypatch.delenv("GIT_INDEX_FILE")
    assert ran.code == 0, ran.err
    assert world.there("topic") == world.tip()
    assert list((elsewhere / ".git/refs/heads").iterdir()) == []


@pytest.mark.exhaustive
def test_settings_of_a_person_do_not_change_what_is_done(world):
    for name, value in {
        "diff.noprefix": "true",
        "diff.external": "false",
        "diff.mnemonicPrefix": "true",
        "log.showSignature": "true",
        "color.ui": "always",
        "core.quotePath": "true",
        "status.showUntrackedFiles": "no",
        "status.relativePaths": "true",
        "push.followTags": "true",
        "merge.conflictStyle": "diff3",
        "log.date": "relative",
        "format.pretty": "oneline",
        "rebase.autoStash": "true",
        "fetch.prune": "true",
    }.items():
        world.git("config", name, value)
    ran = world.run("create")
    assert ran.code == 0, ran.err
    assert world.git("log", "-1", "--format=%s") == "feat: add two"
    assert world.there("topic") == world.tip()
