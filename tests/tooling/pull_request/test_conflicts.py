"""Conflicts are an answer: the files are named, and nothing has changed."""

import pytest


@pytest.fixture
def conflicting(world):
    world.commit("fix: mine", {"package/one.txt": "def one():\n    return 'mine'\n", "package/two.txt": None})
    world.advance("fix: theirs", {"package/one.txt": "def one():\n    return 'theirs'\n"})
    return world


def state(world):
    return world.git("for-each-ref", "refs/heads", "refs/areal-pr"), world.files(), world.git("status", "--porcelain")


@pytest.mark.sample(1)
@pytest.mark.parametrize("words", [(), ("--no-squash",), ("--dry-run",)])
def test_files_are_named_and_nothing_has_changed(conflicting, words):
    before = state(conflicting)
    ran = conflicting.run("create", "--json", *words)
    assert (ran.code, ran.json["code"], ran.json["files"]) == (5, "merge-conflict", ["package/one.txt"])
    assert "git rebase origin/main" in ran.json["fix"]
    assert ("(fix: mine)" in ran.json["error"]) is ("--no-squash" in words)
    assert state(conflicting) == before
    assert not (conflicting.root / ".git/rebase-merge").exists()


def test_a_resolved_branch_goes_on(conflicting):
    conflicting.run("create")
    conflicting.git("rebase", "-q", "origin/main", ok=False)
    conflicting.write("package/one.txt", "def one():\n    return 'both'\n")
    conflicting.git("add", ".")
    conflicting.git("rebase", "--continue", GIT_EDITOR=":")
    assert conflicting.run("create").code == 0
    assert (conflicting.root / "package/one.txt").read_text() == "def one():\n    return 'both'\n"


@pytest.mark.exhaustive
def test_without_rebase_there_is_no_conflict(conflicting):
    assert conflicting.run("create", "--no-rebase").code == 0


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ({"README.md": None}, {"README.md": "changed\n"}),
        ({"README.md": "changed\n"}, {"README.md": None}),
        ({"fresh.txt": "mine\n"}, {"fresh.txt": "theirs\n"}),
        ({"fresh": "a file\n"}, {"fresh/inner.txt": "a folder\n"}),
    ],
    ids=["removed here", "removed there", "added twice", "file and folder"],
)
def test_every_kind_of_conflict_is_one(world, mine, theirs):
    world.commit("fix: mine", mine)
    world.advance("fix: theirs", theirs)
    before = state(world)
    ran = world.run("create", "--json")
    assert ran.code == 5
    assert any(path.split("~")[0] in {*mine, *theirs} for path in ran.json["files"])
    assert state(world) == before


@pytest.mark.exhaustive
def test_a_rename_there_and_a_change_here_meet(world):
    world.commit("fix: mine", {"README.md": "A project.\nAnd more.\n" * 20})
    world.run("create")
    world.git("switch", "-q", "-c", "second", "origin/main")
    world.commit("docs: more", {"package/one.txt": "def one():\n    return 1.0\n\n\nLAST = 1\n"})
    other = world.somebody()
    other.git("checkout", "-q", "main")
    other.git("mv", "package/one.txt", "package/first.txt")
    other.git("commit", "-q", "-m", "refactor: rename")
    other.git("push", "-q", "origin", "main")
    assert world.run("create").code == 0
    assert (world.root / "package/first.txt").read_text().endswith("LAST = 1\n")
    assert not (world.root / "package/one.txt").exists()
