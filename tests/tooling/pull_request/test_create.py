"""A branch becomes one commit on its base, is pushed and proposed; what it was is kept."""

import os
import stat

import pytest


def test_two_commits_become_one_on_the_newest_base(world):
    before = world.tip()
    ran = world.run("create", "--repo", os.fspath(world.root / "package"))  # a folder below
    assert ran.code == 0, ran.err
    assert world.tip("HEAD^") == world.there("main")
    assert world.git("log", "-1", "--format=%B").strip() == "feat: add two\n\n- wip"
    assert world.there("topic") == world.tip()
    assert world.backups() == [before]
    assert (world.root / "package/two.txt").read_text() == "def two():\n    return 1 + 1\n"
    assert (world.root / "new.txt").read_text() == "new\n"
    assert world.git("status", "--porcelain") == ""
    assert world.git("rev-parse", "--abbrev-ref", "topic@{upstream}") == "origin/topic"


def test_a_second_run_changes_nothing(created):
    before = (created.tip(), created.there("topic"), created.backups(), created.git("reflog"))
    again = created.json("create")
    assert again["ok"]
    assert [step["name"] for step in again["steps"]] == ["fetch", "pull-request"]
    assert (created.tip(), created.there("topic"), created.backups(), created.git("reflog")) == before


def everything(folder):
    """Names, sizes and times of all there is, git's own files included."""
    return {
        os.path.join(at, name): (os.lstat(os.path.join(at, name)).st_mtime_ns, os.lstat(os.path.join(at, name)).st_size)
        for at, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }


def test_a_dry_run_touches_no_file_at_all(world):
    before = everything(world.folder)
    ran = world.run("create", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    assert everything(world.folder) == before
    plan = ran.json
    assert plan["dry_run"] is True
    assert [step["name"] for step in plan["steps"]] == ["fetch", "backup", "move", "push", "pull-request"]
    assert all(step["requires"] and step["undo"] and step["effect"] for step in plan["steps"])


def test_a_dry_run_foretells_the_message_and_the_text(world):
    foretold = world.json("create", "--dry-run")
    done = world.json("create")
    assert (foretold["message"], foretold["title"]) == (done["message"], done["title"])
    assert world.git("log", "-1", "--format=%B").strip() == foretold["message"].strip()
    assert foretold["body"] == done["body"]


def test_the_only_commit_keeps_its_words_author_and_date(world):
    world.git("switch", "-q", "-c", "single", "main")
    world.commit("fix(core): keep the order\n\nSee the issue.\n\nRefs: #7", {"a.txt": "a\n"}, author="Bob <bob@b.org>")
    date = world.git("log", "-1", "--format=%ad", "--date=raw")
    assert world.run("create").code == 0
    assert world.tip("HEAD^") == world.there("main")
    shown = world.git("log", "-1", "--format=%an <%ae>|%ad|%B", "--date=raw").strip()
    assert shown == f"Bob <bob@b.org>|{date}|fix(core): keep the order\n\nSee the issue.\n\nRefs: #7"


@pytest.mark.exhaustive
def test_a_commit_that_stands_on_the_base_already_is_not_rewritten(world):
    world.git("switch", "-q", "-c", "single", "main")
    world.git("pull", "-q", "origin", "main")
    tip = world.commit("fix: keep the order", {"a.txt": "a\n"})
    plan = world.json("create")
    assert plan["ok"]
    assert (plan["rewritten"], world.tip(), world.backups()) == (False, tip, [])


def test_a_message_that_does_not_conform_gives_way_and_is_kept_below(world):
    world.git("switch", "-q", "-c", "single", "main")
    world.commit("Repaired the thing!!", {"package/one.txt": "def one():\n    return 2\n"})
    assert world.run("create", "--no-rebase").code == 0
    header, _, rest = world.git("log", "-1", "--format=%B").partition("\n")
    assert header.startswith(("feat: ", "fix: "))
    assert "Repaired the thing!!" in rest
    tip = world.tip()
    assert world.run("create", "--no-rebase").code == 0
    assert world.tip() == tip


@pytest.mark.exhaustive
def test_everybody_who_wrote_is_named(world):
    world.commit("fix: x", {"x.txt": "1\n"}, author="Bob <bob@b.org>")
    world.commit("fix: y\n\nCo-authored-by: Eve <eve@e.org>", {"x.txt": "2\n"}, author="BOB <BOB@b.org>")
    world.run("create")
    message = world.git("log", "-1", "--format=%B")
    assert world.git("log", "-1", "--format=%ae") == "ann@example.org"
    assert message.count("Co-authored-by: Bob <bob@b.org>") + message.count("Co-authored-by: BOB <BOB@b.org>") == 1
    assert message.count("Co-authored-by: Eve <eve@e.org>") == 1


def test_what_the_commits_say_is_kept(world):
    world.commit("fix: more\n\nIt was wrong before.\n\n- one\n- two\n\nRefs: #7", {"x.txt": "1\n"})
    world.commit("feat: and more", {"x.txt": "2\n"})
    world.run("create")
    said = world.git("log", "-1", "--format=%B").strip().split("\n")
    below = [
        "- wip",
        "- fix: more",
        "  It was wrong before.",
        "",
        "  - one",
        "  - two",
        "- feat: and more",
        "",
        "Refs: #7",
    ]
    assert said == ["feat: add two", "", *below]
    world.commit("fix: review", {"x.txt": "3\n"})
    world.run("create", "--yes")
    said = world.git("log", "-1", "--format=%B").strip().split("\n")
    assert said == ["feat: add two", "", *below[:-2], "- fix: review", *below[-2:]]


@pytest.mark.exhaustive
def test_breaking_changes_stay_announced_and_fixups_say_nothing(world):
    world.commit("refactor!: drop it\n\nBREAKING CHANGE: use the other", {"x.txt": "1\n"})
    world.commit("fixup! feat: add two", {"x.txt": "2\n"})
    message = world.json("create", "--no-push")["message"]
    assert message.startswith("feat!: add two\n")
    assert "BREAKING CHANGE: use the other" in message
    assert "fixup!" not in message


def test_a_title_is_the_header_of_the_commit(world):
    assert world.run("create", "--title", "feat(package): count to two").code == 0
    assert world.git("log", "-1", "--format=%s") == "feat(package): count to two"


def test_a_title_that_does_not_conform_is_refused(world):
    before = everything(world.root / ".git/refs")
    for title in ("Count to two", "feat: counted.", "feat: " + "long " * 20):
        ran = world.run("create", "--title", title)
        assert (ran.code, "--title" in ran.err) == (10, True)
    assert everything(world.root / ".git/refs/heads") == {
        name: value for name, value in before.items() if "/heads/" in name
    }


def test_commits_can_stay_as_they_are(world):
    tip = world.tip()
    plan = world.json("create", "--no-squash", "--no-rebase")
    assert plan["ok"]
    assert (world.tip(), world.there("topic"), plan["rewritten"]) == (tip, tip, False)


@pytest.mark.exhaustive
def test_commits_are_replayed_one_by_one(world):
    dates = world.git("log", "-2", "--format=%an %ad %s")
    plan = world.json("create", "--no-squash")
    assert plan["ok"]
    assert world.git("log", "-2", "--format=%an %ad %s") == dates
    assert world.tip("HEAD~2") == world.there("main")
    assert plan["title"] == "feat: add two"


def test_a_branch_can_stay_where_it_began(world):
    began = world.tip("main")
    assert world.run("create", "--no-rebase").code == 0
    assert world.tip("HEAD^") == began
    assert not (world.root / "new.txt").exists()


def test_merges_of_the_base_are_joined_without_its_commits(world):
    world.git("fetch", "-q")
    world.git("merge", "-q", "--no-edit", "origin/main")
    world.commit("fix: more", {"x.txt": "1\n"})
    assert world.run("create").code == 0
    assert world.tip("HEAD^") == world.there("main")
    message = world.git("log", "-1", "--format=%B")
    assert "Merge" not in message
    assert world.git("diff", "--name-only", "HEAD^", "HEAD").split() == ["package/two.txt", "x.txt"]


@pytest.mark.exhaustive
def test_a_resolution_made_in_a_merge_is_not_lost(world):
    world.commit("fix: mine", {"package/one.txt": "def one():\n    return 11\n"})
    world.git("fetch", "-q")
    world.git("merge", "-q", "origin/main", ok=False)
    world.write("package/one.txt", "def one():\n    return 11.0\n")
    world.git("add", ".")
    world.git("commit", "-q", "--no-edit")
    world.advance("fix: newer", {"newer.txt": "1\n"})
    refused = world.run("create", "--no-squash")
    assert (refused.code, "--no-squash" in refused.err) == (2, True)
    assert world.run("create").code == 0
    assert (world.root / "package/one.txt").read_text() == "def one():\n    return 11.0\n"


def test_no_push_leaves_the_remote_alone_and_says_how_to_push(world):
    ran = world.json("create", "--no-push")
    command = f"git push --porcelain -- origin {world.tip()}:refs/heads/topic"
    assert (world.there("topic"), ran["next"]) == ("", [command])
    assert world.tip("HEAD^") == world.there("main")


def test_modes_links_and_removals_survive(world):
    world.write("run.sh", "#!/bin/sh\n")
    (world.root / "run.sh").chmod(0o755)
    (world.root / "link").symlink_to("README.md")
    world.git("add", "--all")
    world.commit("feat: more", {"package/two.txt": None})
    world.run("create")
    assert stat.S_IMODE((world.root / "run.sh").stat().st_mode) & 0o100
    assert (world.root / "link").readlink().as_posix() == "README.md"
    assert not (world.root / "package/two.txt").exists()
    assert world.git("status", "--porcelain") == ""


@pytest.mark.exhaustive
def test_a_commit_is_signed_where_the_settings_ask_for_it(world):
    program = world.folder / "sign"
    program.write_text(
        "#!/bin/sh\ncat >/dev/null\nprintf '\\n[GNUPG:] SIG_CREATED ' >&2\n"
        "printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nabc\\n-----END PGP SIGNATURE-----\\n'\n"
    )
    program.chmod(0o755)
    world.git("config", "commit.gpgSign", "true")
    world.git("config", "gpg.program", os.fspath(program))
    assert world.run("create").code == 0
    assert "BEGIN PGP SIGNATURE" in world.git("cat-file", "commit", "HEAD")
    program.write_text("#!/bin/sh\necho 'no secret key' >&2\nexit 1\n")
    world.run("restore")
    before = world.tip()
    ran = world.run("create", "--title", "feat: count to two", "--yes")
    assert (ran.code, world.tip()) == (2, before)


@pytest.mark.exhaustive
def test_words_in_another_encoding_are_not_garbled(world):
    world.git("switch", "-q", "-c", "latin", "main")
    world.write("x.txt", "1\n")
    world.git("add", "x.txt")
    message = world.folder / "message.txt"
    message.write_bytes("fix: größe".encode("latin-1"))
    world.git("-c", "i18n.commitEncoding=ISO-8859-1", "commit", "-q", "-F", os.fspath(message))
    assert world.run("create").code == 0
    assert world.git("log", "-1", "--format=%s") == "fix: größe"
    assert world.tip("HEAD^") == world.there("main")


@pytest.mark.exhaustive
def test_filters_of_text_do_not_make_files_look_edited(world):
    """Files on disk differ from what git stores; the move, and its undo, have to know."""
    world.git("config", "core.autocrlf", "true")
    world.git("rm", "-q", "--cached", "-r", ".")
    world.git("reset", "-q", "--hard")
    assert (world.root / "package/one.txt").read_bytes().count(b"\r\n") == 2
    before = world.files()
    assert world.run("create").code == 0
    assert (world.root / "new.txt").read_bytes() == b"new\r\n"
    assert world.git("status", "--porcelain") == ""
    assert world.run("restore").code == 0
    assert (world.files(), world.git("status", "--porcelain")) == (before, "")


def test_status_says_where_the_branch_stands(world):
    world.git("fetch", "-q")
    found = world.json("status")
    assert (found["ahead"], found["behind"], found["ready"], found["remote"]["state"]) == (2, 1, True, "not pushed yet")
    world.run("create")
    found = world.json("status")
    assert (found["ahead"], found["behind"], found["remote"]["state"]) == (1, 0, "the same")
    assert len(found["backups"]) == 1
