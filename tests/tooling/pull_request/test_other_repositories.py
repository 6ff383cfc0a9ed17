"""Repositories of other kinds: long hashes, only part of the files, objects that come when they are asked for."""

import os
import subprocess

import pytest


def clone_again(world, *options):
    """The work tree replaced by a clone with other options, with the topic on it."""
    world.git("push", "-q", "origin", "topic")
    world.git("config", "uploadpack.allowFilter", "true", GIT_DIR=os.fspath(world.remote))
    world.root = world.folder / "again"
    url = world.remote.as_uri()
    subprocess.run(["git", "clone", "-q", *options, "-b", "topic", url, os.fspath(world.root)], check=True)


@pytest.mark.exhaustive
def test_hashes_may_be_longer(world):
    for name in ("long.git", "long"):
        bare = ["--bare"] if name.endswith(".git") else []
        folder = os.fspath(world.folder / name)
        subprocess.run(["git", "init", "-q", "--object-format=sha256", *bare, folder], check=True)
    world.root, world.remote = world.folder / "long", world.folder / "long.git"
    world.git("remote", "add", "origin", "../long.git")
    world.commit("feat: begin", {"a.txt": "1\n"})
    world.git("push", "-q", "origin", "main")
    world.git("switch", "-q", "-c", "topic")
    world.commit("feat: one", {"b.txt": "1\n"})
    world.commit("feat: two", {"a.txt": "2\n"})
    world.git("switch", "-q", "main")
    world.commit("fix: x", {"c.txt": "1\n"})
    world.git("push", "-q", "origin", "main")
    world.git("switch", "-q", "topic")
    before, files = world.tip(), world.files()
    foretold = world.json("create", "--dry-run")
    assert foretold["ok"], foretold
    assert world.killed_before("branch")
    assert world.run("create").code == 0
    assert (len(world.tip()), world.tip("HEAD^")) == (64, world.there("main"))
    assert world.git("log", "-1", "--format=%B").strip() == foretold["message"].strip()
    kept = next(each["id"] for each in world.json("backups")["backups"] if each["commit"] == before)
    assert world.run("restore", kept).code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (before, files, "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("step", ["branch", "record removed"])
def test_files_that_are_not_checked_out_stay_away(world, step):
    world.advance("feat: elsewhere", {"elsewhere/one.txt": "1\n"})
    world.git("sparse-checkout", "set", "package")
    before, files = world.tip(), world.files()
    assert world.killed_before(step)
    assert world.json("create")["ok"]
    assert not (world.root / "elsewhere").exists()
    assert world.git("status", "--porcelain") == ""
    assert world.git("ls-tree", "--name-only", "HEAD", "elsewhere/one.txt") == "elsewhere/one.txt"
    kept = next(each["id"] for each in world.json("backups")["backups"] if each["commit"] == before)
    assert world.run("restore", kept).code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (before, files, "")


@pytest.mark.exhaustive
def test_objects_that_are_fetched_on_demand_are_enough(world):
    clone_again(world, "--filter=blob:none")
    assert world.run("create", "--dry-run").code == 0
    assert world.run("create", "--yes").code == 0
    assert world.tip("HEAD^") == world.there("main")
    assert world.git("status", "--porcelain") == ""


@pytest.mark.exhaustive
def test_an_index_in_two_parts_or_another_version_is_kept_in_step(world):
    world.git("update-index", "--split-index", "--index-version", "4")
    world.git("config", "core.untrackedCache", "true")
    assert world.run("create").code == 0
    assert world.git("status", "--porcelain") == ""
    assert world.run("restore").code == 0
    assert world.git("status", "--porcelain") == ""


@pytest.mark.exhaustive
def test_references_may_be_packed(created):
    created.git("pack-refs", "--all")
    created.commit("fix: more", {"x.txt": "1\n"})
    assert created.run("create", "--yes").code == 0
    assert len(created.backups()) == 2
    assert created.run("restore").code == 0
