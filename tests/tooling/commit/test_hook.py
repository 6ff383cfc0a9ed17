"""The hook is found by git, does no harm to other hooks, and goes without a trace."""

import os
import shutil

import pytest


def hook(repo):
    return repo.root / ".git/hooks/commit-msg"


def foreign(path, text="#!/bin/sh\necho foreign >> ran\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_git_refuses_a_message_that_does_not_conform_and_keeps_it(repo):
    assert repo.run("hook", "install").code == 0
    said = repo.commit("added x", "a.txt", ok=False)
    assert "header-format" in said
    assert f"git commit -e -F {repo.root}/.git/COMMIT_EDITMSG" in said
    repo.commit("feat: add x", "a.txt")
    assert "feat: add x" in repo.git("log", "--format=%s")


@pytest.mark.exhaustive
def test_merges_reverts_and_fixups_pass_the_hook(repo):
    repo.run("hook", "install")
    repo.commit("feat: add x", "a.txt")
    repo.git("revert", "--no-edit", "HEAD")
    repo.git("commit", "-q", "--allow-empty", "--fixup=HEAD~1")
    assert len(repo.git("log", "--format=%s").splitlines()) == 3


def test_installing_twice_changes_nothing_the_second_time(repo):
    repo.run("hook", "install")
    before = hook(repo).stat()
    assert repo.json("hook", "install")["plan"] == []
    assert hook(repo).stat().st_mtime_ns == before.st_mtime_ns


def test_a_dry_run_writes_nothing(repo):
    report = repo.json("hook", "install", "--dry-run")
    assert [(each["path"], each["action"]) for each in report["plan"]] == [(".git/hooks/commit-msg", "create")]
    assert not hook(repo).exists()


def test_a_foreign_hook_runs_first_and_comes_back(repo):
    there = foreign(hook(repo))
    before = there.read_bytes()
    repo.run("hook", "install")
    repo.commit("feat: add x", "a.txt")
    assert (repo.root / "ran").exists()
    repo.run("hook", "uninstall")
    assert (hook(repo).read_bytes(), os.access(hook(repo), os.X_OK)) == (before, True)
    assert sorted(path.name for path in hook(repo).parent.glob("commit-msg*")) == ["commit-msg"]


def test_a_foreign_hook_still_refuses(repo):
    foreign(hook(repo), "#!/bin/sh\nexit 3\n")
    assert repo.run("hook", "install").code == 0
    repo.commit("feat: add x", "a.txt", ok=False)


def test_a_foreign_hook_that_is_a_link_stays_one(repo):
    target = foreign(repo.root / "tools/check")
    hook(repo).symlink_to("../../tools/check")
    repo.run("hook", "install")
    assert not hook(repo).is_symlink()
    repo.run("hook", "uninstall")
    assert hook(repo).is_symlink()
    assert hook(repo).resolve() == target


def test_two_foreign_hooks_are_too_many(repo):
    foreign(hook(repo))
    foreign(hook(repo).with_name("commit-msg.before-areal"), "#!/bin/sh\n# another\n")
    done = repo.run("hook", "install")
    assert done.code == 3
    assert "run it again" in done.stderr
    assert "foreign" in hook(repo).read_text()


def test_an_installation_that_was_killed_halfway_can_be_repeated(repo):
    there = foreign(hook(repo))
    os.link(there, there.with_name("commit-msg.before-areal"))
    assert repo.run("hook", "install").code == 0
    repo.commit("nonsense", ok=False)
    repo.run("hook", "uninstall")
    assert "foreign" in hook(repo).read_text()


def test_uninstalling_keeps_what_is_not_ours(repo):
    there = foreign(hook(repo))
    assert repo.json("hook", "uninstall")["plan"] == []
    assert there.exists()


def test_uninstalling_takes_the_hook_out(repo):
    repo.run("hook", "install")
    repo.run("hook", "uninstall")
    assert not hook(repo).exists()
    repo.commit("nonsense")
    assert repo.git("log", "--format=%s").strip() == "nonsense"


def test_the_hook_goes_where_git_looks_for_hooks(repo):
    repo.git("config", "core.hooksPath", "my hooks")
    report = repo.json("hook", "install")
    assert report["hook"] == str(repo.root / "my hooks/commit-msg")
    assert report["warnings"]
    repo.commit("nonsense", ok=False)


@pytest.mark.exhaustive
def test_a_folder_of_hooks_for_many_repositories_is_left_alone(repo, tmp_path):
    repo.git("config", "core.hooksPath", str(tmp_path / "everywhere"))
    done = repo.run("hook", "install")
    assert done.code == 3
    assert "--shared" in done.stderr
    assert not (tmp_path / "everywhere").exists()
    assert repo.run("hook", "install", "--shared").code == 0
    repo.commit("nonsense", ok=False)


def test_hooks_that_are_switched_off_stay_off(repo):
    repo.git("config", "core.hooksPath", "/dev/null")
    assert repo.run("hook", "install").code == 2


def test_linked_work_trees_share_the_hook(repo, tmp_path):
    repo.commit("feat: add x", "a.txt")
    repo.git("worktree", "add", "-q", str(tmp_path / "linked"), "-b", "side")
    done = repo.run("hook", "install", "--repo", str(tmp_path / "linked"))
    assert (done.code, hook(repo).exists()) == (0, True)


def test_a_folder_named_tooling_in_the_repository_is_not_run(repo):
    """Committing to a repository runs nothing of it."""
    repo.run("hook", "install")
    repo.write("tooling/__init__.py", "open('stolen', 'w')\n")
    repo.write("tooling/commit/__main__.py", "open('stolen', 'w')\n")
    repo.commit("feat: add x", "a.txt")
    assert not (repo.root / "stolen").exists()


@pytest.mark.skipif(shutil.which("sh") is None, reason="git runs hooks by a POSIX shell")
def test_a_hook_whose_python_is_gone_lets_commits_pass_and_says_so(repo):
    repo.run("hook", "install")
    text = hook(repo).read_text()
    python = text.split("if [ -x ")[2].split(" ]")[0]
    hook(repo).write_text(text.replace(python, "/nowhere/python").replace("areal-commit >", "areal-commit-nowhere >"))
    assert "was not checked" in repo.commit("nonsense")
