"""Names, messages and paths are somebody's text: they reach git and `gh` as they are, and nothing else ever."""

import os
import shlex
import subprocess

import pytest


def sample(values, *telling):
    """All values as parameters; those that are not telling ones are exhaustive."""
    return [pytest.param(each, marks=() if each in telling else pytest.mark.exhaustive) for each in values]


BRANCHES = [
    "-rf",
    "--upload-pack=touch pwned",
    "$(touch pwned)",
    "a;touch${IFS}pwned",
    "`touch pwned`",
    "quote'double\"",
    "ünïcödé/分支",
    "topic@{0",
    "a@b/c.d",
    "%s%n",
    "x&y|z>w<v",
    "refs/heads/topic",
    "HEAD",
    "{a,b}",
    "#1",
    "\u202eevil",
]


def switch(world, name):
    """As git lets it be; what porcelain refuses goes by plumbing."""
    world.git("update-ref", f"refs/heads/{name}", world.tip())
    world.git("symbolic-ref", "HEAD", f"refs/heads/{name}")


def valid(name):
    return not subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=False).returncode


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sample(BRANCHES, "-rf", "$(touch pwned)", "\u202eevil"))
def test_branches_may_have_any_name_that_git_allows(world, name):
    if not valid(name):
        world.git("update-ref", f"refs/heads/{name}", world.tip(), ok=False)
        return
    world.use_gh()
    before = world.tip()
    switch(world, name)
    ran = world.run("create", "--yes", "--json")
    assert ran.code == 0, ran.err + ran.out
    assert ran.json["branch"] == name
    assert world.there(name) == world.tip()
    assert [each["headRefName"] for each in world.requests()] == [name]
    assert world.backups() == [before]
    assert world.run("restore").code == 0
    assert world.tip() == before
    assert not list(world.folder.rglob("pwned"))


def test_by_hand_the_command_is_quoted(world):
    switch(world, "$(touch${IFS}pwned)'\"")
    ran = world.json("create")
    assert ran["ok"]
    command = next(each for each in ran["next"] if each.startswith("gh "))
    assert "--head=$(touch${IFS}pwned)'\"" in shlex.split(command)


MESSAGES = [
    "feat: $(touch pwned) `touch pwned` ; touch pwned",
    "feat: a \x1b[31mred\x1b[0m bell\x07",
    "feat: quote\" and 'quote'\n\n-- \n--title=evil\n\n<!-- hidden --> <script>x</script> @everyone\n# Heading\n---\n",
    "--amend\n\n--all",
    "\u202efeat: reversed\u202c",
    "feat: " + "x" * 5000,
    "feat: tabs\tand\rreturns\r\n\r\nbody\r\n",
    "🙂" * 400,
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("message", sample(MESSAGES, MESSAGES[0], MESSAGES[-5]))
def test_messages_stay_text(world, message):
    world.use_gh()
    world.commit(message, {"x.txt": "1\n"})
    ran = world.run("create", "--json")
    assert ran.code == 0, ran.err + ran.out
    written = world.git("log", "-1", "--format=%B")
    assert not any(ord(letter) < 32 and letter != "\n" for letter in written)
    assert "\u202e" not in written
    body = world.requests()[0]["body"].replace("\r\n", "\n")
    assert "<script" not in body
    assert "@everyone" not in body
    assert "\n# Heading" not in body
    assert next(line for line in body.split("\n") if line.startswith("## ")) == "## Description"
    assert body.count("<!--") == 1
    assert not list(world.folder.rglob("pwned"))
    tip = world.tip()
    assert world.run("create").code == 0
    assert world.tip() == tip


@pytest.mark.exhaustive
def test_a_message_that_is_kept_is_kept_to_the_byte(world):
    message = "fix: keep it\n\n  indented \x07\n\ttabbed"
    world.git("switch", "-q", "-c", "single", "main")
    world.commit(message, {"x.txt": "1\n"})
    world.run("create")
    assert world.git("log", "-1", "--format=%B").rstrip("\n") == message


PATHS = [
    "new\nline.txt",
    "tab\there.txt",
    "-rf",
    "--help",
    "$(touch pwned).txt",
    "quote'\".txt",
    "ünï/分支.txt",
    ":(top)magic",
    "star*.txt",
    " lead and trail ",
    "back\\slash",
    "\x1b[31mred",
]


def test_paths_may_have_any_name(world):
    """Added on the branch, and on the base."""
    world.use_gh()
    world.commit("feat: more", dict.fromkeys(PATHS, "mine\n"))
    world.advance("feat: theirs", {f"theirs {path}": "theirs\n" for path in PATHS})
    before, files = world.tip(), world.files()
    ran = world.run("create", "--json")
    assert ran.code == 0, ran.err + ran.out
    for path in PATHS:
        assert (world.root / path).read_text() == "mine\n"
        assert (world.root / f"theirs {path}").read_text() == "theirs\n"
    assert "\x1b" not in world.requests()[0]["body"]
    assert world.run("restore").code == 0
    assert (world.tip(), world.files(), world.git("status", "--porcelain")) == (before, files, "")
    assert not list(world.folder.rglob("pwned"))


@pytest.mark.exhaustive
def test_odd_paths_conflict_and_block_like_others(world):
    paths = ["-rf", ":(top)magic", "new\nline.txt"]
    world.advance("feat: theirs", dict.fromkeys(paths, "theirs\n"))
    for path in paths:
        world.write(path, "untracked\n")
    ran = world.run("create", "--json")
    assert ran.code == 3
    assert all(repr(path) in ran.json["error"] or path in ran.json["error"] for path in paths)
    world.commit("feat: mine", dict.fromkeys(paths, "mine\n"))
    ran = world.run("create", "--json")
    assert (ran.code, sorted(ran.json["files"])) == (5, paths)


def test_names_that_are_no_text_survive(world):
    name = b"\xff\xfe.bin"
    place = os.fsencode(world.root) + b"/" + name
    with open(place, "wb") as stream:
        stream.write(b"1")
    world.git("add", "--all")
    world.git("commit", "-q", "-m", "feat: bytes")
    ran = world.run("create", "--json")
    assert ran.code == 0, ran.err
    with open(place, "rb") as stream:
        assert stream.read() == b"1"


def test_an_author_cannot_add_lines(world):
    world.commit("fix: x", {"x.txt": "1\n"}, author="E\u2028vil; touch pwned <e'vil@example.org>")
    assert world.run("create").code == 0
    message = world.git("log", "-1", "--format=%B")
    assert message.count("Co-authored-by: ") == 1
    assert "\u2028" not in message


def test_a_remote_s_name_is_no_option(world):
    world.git("config", "remote.--upload-pack=touch pwned.url", "../remote.git")
    ran = world.run("create", "--remote=--upload-pack=touch pwned", "--base=main")
    assert (ran.code, world.there("topic")) == (0, world.tip()), ran.err
    assert not list(world.folder.rglob("pwned"))
