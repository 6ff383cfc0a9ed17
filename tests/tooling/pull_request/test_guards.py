"""What forbids to begin is said before anything happens: what, where, and what to do."""

import os

import pytest


def expect_refused(world, said, *words, code=2):
    """The command refuses, and nothing has changed but what is known of the remote."""
    before = state(world)
    ran = world.run("create", *words)
    assert (ran.code, said in ran.err, "; " in ran.err) == (code, True, True), ran.err
    assert state(world) == before


def state(world):
    own = world.git("for-each-ref", "refs/heads", "refs/areal-pr", "refs/tags")
    return own, world.files(), world.git("status", "--porcelain"), world.there("topic")


SITUATIONS = {
    "on the base": (["switch", "main"], "the base itself"),
    "on a default branch of another name": (["switch", "-c", "master"], "others build on"),
    "without a branch": (["switch", "--detach"], "no branch is checked out"),
    "before the first commit": (["switch", "--orphan", "fresh"], "no commits yet"),
    "without a remote": (["remote", "remove", "origin"], "there is no remote"),
    "with nothing to propose": (["switch", "-c", "empty", "main"], "no commit that origin/main lacks"),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_not_in_these_situations(world, situation):
    command, said = SITUATIONS[situation]
    world.git(*command)
    expect_refused(world, said)


def test_not_when_it_is_merged_already(world):
    world.advance("feat: add two (#1)", {"package/two.txt": "def two():\n    return 1 + 1\n"})
    expect_refused(world, "has everything")


def test_not_on_the_remote_s_default_under_another_base(world):
    world.git("push", "-q", "origin", "main:release")
    world.git("switch", "-q", "-c", "trunk")
    world.git("push", "-q", "origin", "trunk")
    world.git("symbolic-ref", "HEAD", "refs/heads/trunk", GIT_DIR=os.fspath(world.remote))
    expect_refused(world, "others build on", "--base", "release")


def test_not_with_uncommitted_work(world):
    world.write("README.md", "changed\n")
    expect_refused(world, "not committed: README.md")
    world.git("add", "README.md")
    expect_refused(world, "not committed: README.md")
    ran = world.run("create", "--json")
    assert ran.json["code"] == "usage"
    assert ran.json["exit_code"] == ran.code == 2
    assert "git stash" in ran.json["fix"]


def test_new_files_are_named_and_refused_only_when_asked(world):
    world.write("forgotten.py", "x = 1\n")
    expect_refused(world, "forgotten.py", "--untracked", "refuse")
    ran = world.json("create")
    assert ran["ok"]
    assert any("forgotten.py" in each for each in ran["warnings"])


def test_not_in_the_middle_of_something(world):
    for name in ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD", "BISECT_LOG"):
        marker = world.root / ".git" / name
        marker.write_text(world.tip() + "\n")
        ran = world.run("create")
        assert (ran.code, "in progress" in ran.err, "--abort" in ran.err or "reset" in ran.err) == (2, True, True)
        marker.unlink()


def test_a_remote_or_base_with_a_typing_error_is_named(world):
    expect_refused(world, "origin", "--remote", "orign")
    expect_refused(world, "main", "--base", "mian")


@pytest.mark.exhaustive
def test_not_without_a_choice_among_remotes(world):
    world.git("remote", "rename", "origin", "one")
    world.git("config", "--unset", "branch.topic.remote", ok=False)
    world.git("remote", "add", "two", "../remote.git")
    expect_refused(world, "several remotes")
    assert world.run("create", "--remote", "one").code == 0


def test_not_over_files_that_git_does_not_follow(world):
    world.write("new.txt", "mine\n")
    expect_refused(world, "new.txt", code=3)
    (world.root / ".git/info/exclude").write_text("new.txt\n")
    expect_refused(world, "new.txt", code=3)


def test_not_over_an_ignored_folder_in_the_place_of_a_file(world):
    (world.root / ".git/info/exclude").write_text("new.txt/\n")
    world.write("new.txt/inner", "mine\n")
    expect_refused(world, "new.txt/inner", code=3)


@pytest.mark.exhaustive
def test_not_through_a_link_in_the_place_of_a_folder(world):
    world.advance("feat: deep", {"deep/er/file.txt": "x\n"})
    (world.folder / "outside").mkdir()
    (world.root / ".git/info/exclude").write_text("deep\n")
    (world.root / "deep").symlink_to("../outside")
    expect_refused(world, "deep", code=3)
    assert list((world.folder / "outside").iterdir()) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_not_over_edits_that_git_was_told_to_overlook(world, flag):
    world.git("update-index", flag, "package/one.txt")
    world.write("package/one.txt", "mine\n")
    expect_refused(world, "package/one.txt", code=3)


def test_not_while_another_work_tree_has_the_branch(world):
    world.git("worktree", "add", "-q", "--force", "../twin", "topic")
    expect_refused(world, "another work tree")
    ran = world.run("restore")
    assert (ran.code, "twin" in ran.err) == (2, True)


def test_not_while_another_git_holds_the_index(world, monkeypatch):
    monkeypatch.setattr("tooling.pull_request.move._PATIENCE", 0.1)
    before = world.tip(), world.files()
    (world.root / ".git/index.lock").touch()
    ran = world.run("create")
    assert (ran.code, "index.lock" in ran.err, "remove that file" in ran.err) == (3, True, True)
    assert (world.tip(), world.files()) == before
    (world.root / ".git/index.lock").unlink()
    assert world.run("create").code == 0


@pytest.mark.exhaustive
def test_not_while_another_git_holds_the_branch(world):
    before = world.tip(), world.files(), world.there("topic")
    lock = world.root / ".git/refs/heads/topic.lock"
    lock.touch()
    ran = world.run("create")
    assert (ran.code, "topic.lock" in ran.err) == (3, True)
    assert (world.tip(), world.files(), world.there("topic")) == before
    assert world.git("status", "--porcelain") == ""
    lock.unlink()
    assert world.run("create").code == 0


def test_not_without_a_work_tree(world):
    for folder, said in ((world.folder, "git init"), (world.remote, "without a work tree")):
        ran = world.run("create", "--repo", os.fspath(folder))
        assert (ran.code, said in ran.err) == (2, True)


def test_unknown_options_are_errors_and_help_lists_the_exit_codes(world):
    assert world.run("create", "--forc").code == 2
    ran = world.run("--help")
    assert ran.code == 0
    assert all(code in ran.out for code in ("10", "11", "12", "75", "130"))


def test_who_commits_has_to_be_known(world):
    (world.folder / "gitconfig").write_text("[user]\n\tuseConfigOnly = true\n")
    expect_refused(world, "user.name")
