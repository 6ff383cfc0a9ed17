"""The repository is found from anywhere inside it, in every form git gives one, and nowhere else."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack

import pytest

from tooling.cli.errors import UsageError
from tooling.cli.git import Git, Repository, find_repository
from tooling.kit.change.plan import Plan
from tooling.kit.change.transaction import apply_plan, pending, transaction

IDENTITY = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "protocol.file.allow=always"]


def git(folder, *arguments):
    command = ["git", "-C", str(folder), *IDENTITY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def origin(tmp_path):
    """A repository with two commits."""
    folder = tmp_path / "origin"
    (folder / "package" / "deep").mkdir(parents=True)
    git(tmp_path, "init", "-q", str(folder))
    (folder / "package" / "a.py").write_text("a = 1\n")
    (folder / ".gitignore").write_text("ignored.txt\n")
    for number in (1, 2):
        (folder / "number.txt").write_text(f"{number}\n")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return folder


def test_it_is_found_from_the_root_a_sub_folder_a_file_and_through_a_link(origin, tmp_path):
    (tmp_path / "link").symlink_to(origin / "package")
    expected = Repository(origin, origin / ".git")
    for start in (origin, origin / "package" / "deep", origin / "package" / "a.py", tmp_path / "link"):
        assert find_repository(start) == expected
    assert expected.state == origin / ".git" / "areal-new"
    assert not expected.state.exists()


def test_head_and_history(origin, tmp_path):
    repository = find_repository(origin)
    assert repository.head() == git(origin, "rev-parse", "HEAD")
    assert not repository.is_shallow()
    git(tmp_path, "clone", "-q", "--depth", "1", origin.as_uri(), str(tmp_path / "shallow"))
    shallow = find_repository(tmp_path / "shallow")
    assert shallow.is_shallow()
    assert shallow.head() == repository.head()
    git(tmp_path, "init", "-q", str(tmp_path / "empty"))
    assert find_repository(tmp_path / "empty").head() is None


def test_files_are_the_tracked_and_the_new_ones_that_exist(origin):
    (origin / "new file\nwith newline").write_text("")
    (origin / "ümlaut.txt").write_text("")
    (origin / "ignored.txt").write_text("")
    (origin / "link").symlink_to("nowhere")
    (origin / "number.txt").unlink()
    repository = find_repository(origin)
    tracked = [".gitignore", "package/a.py"]
    assert repository.files(untracked=False) == tracked
    assert repository.files() == sorted([*tracked, "link", "new file\nwith newline", "ümlaut.txt"])


def test_a_linked_work_tree_has_its_own_state_and_shares_its_history(origin, tmp_path):
    git(origin, "worktree", "add", "-q", str(tmp_path / "tree"), "-b", "side")
    (tmp_path / "tree" / "only here.txt").write_text("")
    repository = find_repository(tmp_path / "tree" / "package")
    assert repository.root == tmp_path / "tree"
    assert repository.git_dir == origin / ".git" / "worktrees" / "tree"
    assert repository.common_dir == origin / ".git"
    assert repository.state != find_repository(origin).state
    assert "only here.txt" in repository.files()
    assert "only here.txt" not in find_repository(origin).files()
    assert repository.head() == find_repository(origin).head()


def test_a_work_tree_of_a_bare_repository_works_and_the_bare_one_is_refused(origin, tmp_path):
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(origin), str(bare))
    git(bare, "worktree", "add", "-q", str(tmp_path / "tree"))
    repository = find_repository(tmp_path / "tree")
    assert repository.files() == [".gitignore", "number.txt", "package/a.py"]
    for start in (bare, bare / "refs"):
        with pytest.raises(UsageError, match="without a work tree"):
            find_repository(start)
    with pytest.raises(UsageError, match="without a work tree"):
        find_repository(origin / ".git" / "objects")
    dotted = tmp_path / "dotted"
    dotted.mkdir()
    git(tmp_path, "clone", "-q", "--bare", str(origin), str(dotted / ".git"))
    with pytest.raises(UsageError, match="without a work tree"):
        find_repository(dotted)


def test_a_submodule_is_a_repository_of_its_own(origin, tmp_path):
    outer = tmp_path / "outer"
    git(tmp_path, "init", "-q", str(outer))
    git(outer, "submodule", "--quiet", "add", str(origin), "vendor/inner")
    inner = find_repository(outer / "vendor" / "inner" / "package")
    assert inner.root == outer / "vendor" / "inner"
    assert inner.git_dir == outer / ".git" / "modules" / "vendor" / "inner"
    assert "package/a.py" in inner.files()
    assert find_repository(outer).files() == [".gitmodules"]


@pytest.mark.exhaustive
def test_work_trees_submodules_and_shallow_clones_each_have_their_own_transactions(origin, tmp_path):
    """Interrupted in one of them, only that one has something to take back, and the others are free to go on."""
    outer = tmp_path / "outer"
    git(origin, "worktree", "add", "-q", str(tmp_path / "tree"))
    git(tmp_path, "init", "-q", str(outer))
    git(outer, "submodule", "--quiet", "add", str(origin), "inner")
    git(tmp_path, "clone", "-q", "--depth", "1", origin.as_uri(), str(tmp_path / "shallow"))
    roots = [origin, tmp_path / "tree", outer, outer / "inner", tmp_path / "shallow"]
    repositories = [find_repository(root) for root in roots]
    for interrupted in repositories:
        before = git(interrupted.root, "status", "--porcelain")
        apply_one_file(interrupted, "lost.txt", die_at="remove ")
        assert [pending(repository) for repository in repositories] == [each is interrupted for each in repositories]
        with ExitStack() as locks:
            for repository in repositories:
                if repository is not interrupted:
                    locks.enter_context(transaction(repository, wait_seconds=0, note=pytest.fail))
            with transaction(interrupted, wait_seconds=0, note=lambda line: None):
                assert git(interrupted.root, "status", "--porcelain") == before
        apply_one_file(interrupted, "kept.txt")
        assert "?? kept.txt" in git(interrupted.root, "status", "--porcelain").splitlines()


def apply_one_file(repository, name, die_at="never"):
    """Create a file in a child process, which kills itself before the step that begins with `die_at`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            plan = Plan(repository.root)
            plan.write(name, b"text", reason="")
            apply_plan(repository, plan, observe=lambda step: step.startswith(die_at) and os.kill(os.getpid(), 9))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if die_at == "never" else -9)


def test_asking_git_inside_a_hook_still_asks_this_repository(origin, tmp_path, monkeypatch):
    git(tmp_path, "init", "-q", "-b", "another", str(tmp_path / "other"))
    (tmp_path / "other" / "other.txt").write_text("")
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "-m", "the other one")
    commit = git(tmp_path / "other", "rev-parse", "HEAD")
    for variable, value in {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index.lock", "GIT_WORK_TREE": "."}.items():
        monkeypatch.setenv(variable, str(origin / value))
    repository = find_repository(tmp_path / "other")
    assert repository.files() == ["other.txt"]
    assert repository.head() == commit


def test_asking_leaves_every_byte_of_the_git_folder_alone(origin):
    def snapshot():
        return {path: path.read_bytes() for path in sorted((origin / ".git").rglob("*")) if path.is_file()}

    os.utime(origin / "package" / "a.py", (1e9, 1e9))  # a stale index entry, which git would like to refresh
    before = snapshot()
    repository = find_repository(origin)
    assert repository.head()
    assert repository.files()
    Git(origin).run("status", "--porcelain")
    assert snapshot() == before


def test_outside_of_any_repository_the_folder_is_named(tmp_path):
    with pytest.raises(UsageError, match="not inside a git repository") as caught:
        find_repository(tmp_path)
    assert caught.value.where == str(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        find_repository(tmp_path / "missing")


def test_a_link_that_leads_nowhere_is_explained(tmp_path):
    (tmp_path / ".git").write_text("gitdir: ../gone/.git/worktrees/x\n")
    with pytest.raises(UsageError, match="does not lead to a git folder") as caught:
        find_repository(tmp_path)
    assert "git worktree repair" in caught.value.fix


def test_without_the_git_program_it_says_so(origin, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="`git` program was not found") as caught:
        find_repository(origin)
    assert "install git" in caught.value.fix


def test_a_folder_that_is_missing_is_not_taken_for_missing_git(tmp_path):
    with pytest.raises(UsageError, match="no such folder") as caught:
        Git(tmp_path / "gone").attempt("log")
    assert caught.value.where == str(tmp_path / "gone")


def test_what_git_refuses_is_told_in_its_words(origin):
    (origin / ".git" / "index").write_bytes(b"not an index at all, but long enough to be read")
    with pytest.raises(UsageError, match=r"`git ls-files` failed: .*bad signature") as caught:
        find_repository(origin).files()
    assert "git fsck" in caught.value.fix


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("log", "nobody..HEAD", "--"), "git branch --all"),
        (("add", "--", "gone.txt"), "git ls-files"),
        (("hash-object", "--frobnicate"), "git --version"),
        (("merge-base", "--octopus", "HEAD^{tree}"), "run `git merge-base --octopus 'HEAD^{tree}'` there"),
    ],
)
def test_each_refusal_has_a_fix(origin, arguments, fix):
    with pytest.raises(UsageError) as caught:
        Git(origin).run(*arguments)
    assert fix in caught.value.fix, caught.value


def test_a_lock_that_is_left_over_is_explained(origin):
    (origin / ".git" / "index.lock").touch()
    (origin / "new.txt").write_text("new\n")
    with pytest.raises(UsageError, match=r"index\.lock") as caught:
        Git(origin).run("add", "--all")
    assert "remove the lock file" in caught.value.fix
