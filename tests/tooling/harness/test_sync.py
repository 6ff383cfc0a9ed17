"""`areal-harness sync`: what is written, what is kept, and what `--check` says about it."""

from __future__ import annotations

import pytest

COPIES = {
    ".agents/skills/greet/SKILL.md",
    ".claude/agents/words.md",
    ".claude/skills/greet/SKILL.md",
    ".codex/agents/words.toml",
    ".opencode/agents/words.md",
}


def on_disk(project):
    folders = (".agents", ".claude", ".codex", ".opencode")
    files = [path for folder in folders for path in (project.root / folder).rglob("*") if path.is_file()]
    return {path.relative_to(project.root).as_posix(): path.read_bytes() for path in files}


def test_every_platform_gets_its_copies_and_a_second_run_changes_nothing(project):
    assert project.run("sync", "--dry-run")[0] == 0
    assert project.run("sync", "--check")[0] == 10
    assert on_disk(project) == {}
    code, document = project.run("sync")
    assert (code, {change["path"] for change in document["plan"]}) == (0, COPIES)
    before = on_disk(project)
    assert before.keys() == COPIES
    copies = [content for path, content in before.items() if path.endswith("SKILL.md")]
    assert copies == copies[:1] * 2, "skills are the same bytes on every platform"
    code, document = project.run("sync")
    assert (code, document["plan"], on_disk(project)) == (0, [], before)


def test_a_changed_source_makes_its_copies_outdated_and_sync_brings_them_along(project):
    project.run("sync")
    project.write("skills/greet/SKILL.md", project.read("skills/greet/SKILL.md") + "\nSay it twice.\n")
    outdated = {path: "outdated" for path in COPIES if path.endswith("SKILL.md")}
    assert project.states() == outdated
    assert project.run("sync")[0] == 0
    assert project.states() == {}
    assert "Say it twice." in project.read(".claude/skills/greet/SKILL.md")


def test_an_edited_copy_is_kept_named_and_shown_until_it_is_overwritten(project):
    project.run("sync")
    project.write(".codex/agents/words.toml", project.read(".codex/agents/words.toml") + "# mine\n")
    code, document = project.run("sync", "--check", "--diff")
    assert (code, document["code"]) == (4, "edited")
    assert ".codex/agents/words.toml" in document["where"]
    assert "agents/words.md" in document["fix"]
    assert [change["path"] for change in document["plan"] if "# mine" in change["diff"]] == [".codex/agents/words.toml"]
    assert project.states() == {".codex/agents/words.toml": "edited"}
    project.write("agents/words.md", project.read("agents/words.md") + "\nMore.\n")
    assert project.states()[".codex/agents/words.toml"] == "diverged"
    assert project.run("sync")[0] == 4
    assert "# mine" in project.read(".codex/agents/words.toml")
    assert project.run("sync", "--overwrite")[0] == 0
    assert "# mine" not in project.read(".codex/agents/words.toml")


def test_copies_of_a_source_that_is_gone_are_removed_unless_they_were_edited(project):
    project.run("sync")
    project.write(".claude/agents/words.md", project.read(".claude/agents/words.md") + "mine\n")
    (project.root / "agents/words.md").unlink()
    assert sorted(project.states().values()) == ["edited-orphan", "orphan", "orphan"]
    assert project.run("sync")[0] == 4
    assert project.states() == {".claude/agents/words.md": "edited-orphan"}
    assert not (project.root / ".codex").exists()


def test_files_of_others_in_the_platforms_folders_are_kept(project):
    own = project.write(".claude/skills/mine/SKILL.md", "---\nname: mine\ndescription: Mine.\n---\nHello\n")
    beside = project.write(".claude/skills/greet/notes.md", "mine\n")
    settings = project.write(".codex/config.toml", 'model = "x"\n')
    before = [path.read_bytes() for path in (own, beside, settings)]
    assert project.run("sync")[0] == 0
    assert [path.read_bytes() for path in (own, beside, settings)] == before
    role = project.write(".codex/agents/mine.toml", project.read(".codex/agents/words.toml"))
    assert project.states() == {}
    assert project.run("sync")[0] == 0
    assert role.exists(), "a copy under another name belongs to whoever made it"


def test_a_file_of_somebody_else_in_the_place_of_a_copy_is_kept_and_named(project):
    project.write(".opencode/agents/words.md", "mine\n")
    code, document = project.run("sync")
    assert (code, document["where"]) == (3, ".opencode/agents/words.md")
    assert project.read(".opencode/agents/words.md") == "mine\n"
    assert project.run("sync", "--overwrite")[0] == 3
    assert project.read(".opencode/agents/words.md") == "mine\n"


def test_line_endings_that_git_turned_are_no_edit(project):
    project.run("sync")
    for path, content in on_disk(project).items():
        (project.root / path).write_bytes(content.replace(b"\n", b"\r\n"))
    assert project.states() == {}
    project.write("agents/words.md", project.read("agents/words.md") + "\nMore.\n")
    assert set(project.states().values()) == {"outdated"}


def test_files_of_a_skill_travel_with_it_byte_by_byte(project):
    logo = project.root / "skills/greet/assets/logo.bin"
    logo.parent.mkdir()
    logo.write_bytes(b"\x00\r\n\xff")
    project.write("skills/greet/references/tones.md", "# Tones\n")
    project.run("sync")
    for place in (".agents", ".claude"):
        assert (project.root / place / "skills/greet/assets/logo.bin").read_bytes() == b"\x00\r\n\xff"
    project.write(".agents/skills/greet/references/tones.md", "edited\n")
    assert project.states() == {".agents/skills/greet/references/tones.md": "edited"}


def test_a_travelling_file_that_is_gone_from_the_source_is_an_orphan(project):
    tones = project.write("skills/greet/references/tones.md", "# Tones\n")
    project.run("sync")
    tones.unlink()
    assert project.states()[".claude/skills/greet/references/tones.md"] == "orphan"
    assert project.run("sync")[0] == 0
    assert not (project.root / ".claude/skills/greet/references").exists()


def test_folders_that_stay_behind_are_named_from_the_root(project):
    project.write("skills/greet/lists/names.md", "# Names\n")
    project.write("skills/greet/SKILL.md", project.read("skills/greet/SKILL.md") + "\nSee `lists/names.md`.\n")
    assert project.findings() == []
    project.run("sync")
    assert "`skills/greet/lists/names.md`" in project.read(".agents/skills/greet/SKILL.md")
    assert not (project.root / ".agents/skills/greet/lists").exists()


def test_a_source_that_no_platform_can_take_stops_everything(project):
    project.write("agents/broken.md", "---\nname: broken\n---\ntext\n")
    code, document = project.run("sync")
    assert (code, document["where"].split(":")[0]) == (2, "agents/broken.md")
    assert on_disk(project) == {}


def test_a_link_is_never_written_through(project, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project.root / ".claude").symlink_to(elsewhere)
    code, document = project.run("sync")
    assert (code, document["code"]) == (3, "conflict")
    assert list(elsewhere.iterdir()) == []


def test_an_edited_stamp_cannot_name_files_outside_of_the_skill(project):
    project.run("sync")
    entry = project.read(".agents/skills/greet/SKILL.md")
    victim = project.write("app/victim.txt", "mine\n")
    lines = entry.split("\n")
    lines.insert(2, "# with ../../../app/victim.txt sha256:" + "0" * 32)
    project.write(".agents/skills/greet/SKILL.md", "\n".join(lines))
    project.run("sync", "--overwrite")
    assert victim.read_text(encoding="utf-8") == "mine\n"


@pytest.mark.parametrize(
    "setting", ["skill_line = 3", "skill_lines = 0", 'platforms = ["cursed"]', "local_folders = 1"]
)
def test_a_setting_that_means_nothing_is_refused(project, setting):
    project.write("pyproject.toml", f"[tool.areal.harness]\n{setting}\n")
    code, document = project.run("sync")
    assert code == 2
    assert "[tool.areal.harness]" in document["where"]
    assert document["fix"]


def test_platforms_that_are_not_wanted_any_more_lose_their_copies(project):
    project.run("sync")
    settings = "[tool.areal.harness]\n"
    project.write(
        "pyproject.toml",
        project.read("pyproject.toml").replace(settings, f'{settings}platforms = ["agents", "codex"]\n'),
    )
    assert set(project.states().values()) == {"orphan"}
    project.run("sync")
    assert on_disk(project).keys() == {".agents/skills/greet/SKILL.md", ".codex/agents/words.toml"}
