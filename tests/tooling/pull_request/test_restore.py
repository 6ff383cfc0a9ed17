"""A branch is brought back to what it was, and forth again."""

import pytest


def test_there_and_back_and_there_again(world):
    before, files = world.tip(), world.files()
    world.run("create")
    after, new_files = world.tip(), world.files()
    assert world.run("restore").code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (before, files, "")
    assert world.run("restore").code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (after, new_files, "")


def test_the_remote_is_left_alone(world):
    world.run("create")
    there = world.there("topic")
    world.run("restore")
    assert world.there("topic") == there


def test_a_dry_run_changes_nothing(world):
    world.run("create")
    before = (world.tip(), world.files(), world.backups())
    ran = world.json("restore", "--dry-run")
    assert [step["name"] for step in ran["steps"]] == ["backup", "move"]
    assert (world.tip(), world.files(), world.backups()) == before


def test_a_backup_is_named_by_id_or_reference(world):
    before = world.tip()
    world.run("create")
    found = world.json("backups")["backups"][0]
    assert found["reference"] == f"refs/areal-pr/backup/topic/{found['id']}"
    assert world.run("restore", found["reference"]).code == 0
    assert world.tip() == before
    assert "already" in world.run("restore", found["id"]).out


@pytest.mark.parametrize("wanted", ["20000101T000000.000000Z", "main", "HEAD~1", "--", "../../heads/main"])
def test_nothing_but_a_backup_is_restored(world, wanted):
    world.run("create")
    before = world.tip()
    ran = world.run("restore", *([wanted] if wanted != "--" else ["--", "-x"]))
    assert (ran.code, "areal-pr backups" in ran.err or "did you mean" in ran.err) == (2, True)
    assert world.tip() == before


def test_without_a_backup_that_is_said(world):
    ran = world.run("restore")
    assert (ran.code, "no backup of 'topic'" in ran.err) == (2, True)


def test_another_branch_has_its_own(world):
    world.run("create")
    kept = world.json("backups")["backups"][0]["id"]
    world.git("switch", "-q", "-c", "other")
    assert world.json("backups")["backups"] == []
    assert [each["branch"] for each in world.json("backups", "--all")["backups"]] == ["topic"]
    ran = world.run("restore", kept)
    assert (ran.code, "git switch topic" in ran.err) == (2, True)


def test_names_that_begin_alike_do_not_mix(world):
    world.run("create")
    world.git("branch", "-m", "topic", "group")
    world.git("switch", "-q", "-c", "group-2")
    world.commit("fix: x", {"x.txt": "1\n"})
    world.run("create", "--no-rebase")
    assert {each["branch"] for each in world.json("backups", "--all")["backups"]} == {"topic", "group-2"}
    assert world.json("backups")["backups"][0]["branch"] == "group-2"


def test_uncommitted_work_stays(world):
    world.run("create")
    world.write("README.md", "mine\n")
    ran = world.run("restore")
    assert (ran.code, "README.md" in ran.err) == (2, True)
    assert (world.root / "README.md").read_text() == "mine\n"


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


def test_backups_outlive_a_collection_of_garbage(world):
    before = world.tip()
    world.run("create")
    world.git("reflog", "expire", "--expire=now", "--all")
    world.git("gc", "-q", "--prune=now")
    assert world.run("restore").code == 0
    assert world.tip() == before


def test_no_push_sends_them(world):
    world.run("create")
    world.git("push", "-q", "--all", "--force", "origin")
    assert "areal-pr" not in world.git("ls-remote", "origin")
