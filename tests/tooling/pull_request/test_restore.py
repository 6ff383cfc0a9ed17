"""A branch is brought back to what it was, and forth again."""

import pytest


def test_there_and_back_and_there_again(world):
    before, files = world.tip(), world.files()
    world.run("create")
    after, new_files, there = world.tip(), world.files(), world.there("topic")
    assert world.run("restore").code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (before, files, "")
    assert world.there("topic") == there  # the remote is left alone
    assert world.run("restore").code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (after, new_files, "")


def test_a_dry_run_changes_nothing(created):
    before = (created.tip(), created.files(), created.backups())
    ran = created.json("restore", "--dry-run")
    assert [step["name"] for step in ran["steps"]] == ["backup", "move"]
    assert (created.tip(), created.files(), created.backups()) == before


@pytest.mark.exhaustive
def test_a_backup_is_named_by_id_or_reference(world):
    before = world.tip()
    world.run("create")
    found = world.json("backups")["backups"][0]
    assert found["reference"] == f"refs/areal-pr/backup/topic/{found['id']}"
    assert world.run("restore", found["reference"]).code == 0
    assert world.tip() == before
    assert "already" in world.run("restore", found["id"]).out


def test_nothing_but_a_backup_is_restored(created):
    before = created.tip()
    for words in (["20000101T000000.000000Z"], ["main"], ["HEAD~1"], ["--", "-x"], ["../../heads/main"]):
        ran = created.run("restore", *words)
        assert (ran.code, "areal-pr backups" in ran.err or "did you mean" in ran.err) == (2, True)
        assert created.tip() == before


def test_without_a_backup_that_is_said(world):
    ran = world.run("restore")
    assert (ran.code, "no backup of 'topic'" in ran.err) == (2, True)


def test_another_branch_has_its_own(created):
    kept = created.json("backups")["backups"][0]["id"]
    created.git("switch", "-q", "-c", "other")
    assert created.json("backups")["backups"] == []
    assert [each["branch"] for each in created.json("backups", "--all")["backups"]] == ["topic"]
    ran = created.run("restore", kept)
    assert (ran.code, "git switch topic" in ran.err) == (2, True)


@pytest.mark.exhaustive
def test_names_that_begin_alike_do_not_mix(created):
    created.git("branch", "-m", "topic", "group")
    created.git("switch", "-q", "-c", "group-2")
    created.commit("fix: x", {"x.txt": "1\n"})
    created.run("create", "--no-rebase")
    assert {each["branch"] for each in created.json("backups", "--all")["backups"]} == {"topic", "group-2"}
    assert created.json("backups")["backups"][0]["branch"] == "group-2"


def test_uncommitted_work_stays(created):
    created.write("README.md", "mine\n")
    ran = created.run("restore")
    assert (ran.code, "README.md" in ran.err) == (2, True)
    assert (created.root / "README.md").read_text() == "mine\n"


def test_a_file_in_the_way_stays_and_no_backup_is_made(world):
    world.commit("feat: a file", {"log.txt": "committed\n"})
    world.run("create")
    world.git("rm", "-q", "log.txt")
    world.git("commit", "-q", "-m", "fix: without it")
    world.write("log.txt", "mine\n")
    before = world.backups()
    ran = world.run("restore")
    assert (ran.code, "log.txt" in ran.err) == (3, True)
    assert ((world.root / "log.txt").read_text(), world.backups()) == ("mine\n", before)


@pytest.mark.exhaustive
def test_backups_outlive_a_collection_of_garbage(world):
    before = world.tip()
    world.run("create")
    world.git("reflog", "expire", "--expire=now", "--all")
    world.git("gc", "-q", "--prune=now")
    assert world.run("restore").code == 0
    assert world.tip() == before


def test_no_push_sends_them(created):
    created.git("push", "-q", "--all", "--force", "origin")
    assert "areal-pr" not in created.git("ls-remote", "origin")
