"""Whole upgrades from the command line: bump, lock, audit, fix, checklists, summary."""

import re
import subprocess

import pytest


def changed(world):
    """Paths that differ from the last commit, new ones included."""
    return {line[3:] for line in world.git("status", "--porcelain", "-uall").splitlines()}


def places(document, severity="breaking"):
    found = document["findings"]
    return {(each["path"], each["line"], each["kind"]) for each in found if each["severity"] == severity}


BROKEN = {
    ("shop/app.py", 2, "moved"),
    ("shop/app.py", 7, "param-renamed"),
    ("shop/app.py", 7, "moved"),
    ("shop/end.py", 5, "removed"),
    ("shop/numbers.py", 5, "removed"),
}


def test_an_upgrade_bumps_locks_audits_and_keeps_the_checklists_true(world):
    done = world.json("engine==2.0", expect=10)
    assert places(done) == BROKEN
    assert changed(world) == {
        "pyproject.toml",
        "Dockerfile",
        "uv.lock",
        "upgrade-summary.md",
        "skills/upgrade-deps/checklists/engine.md",
        "skills/upgrade-deps/checklists/tensor.md",
    }
    assert '    "engine==2.0",  # what we run\n' in world.read("pyproject.toml")
    assert "pip install engine==2.0" in world.read("Dockerfile")
    assert 'name = "engine"\nversion = "2.0"' in world.read("uv.lock")
    assert {each["path"] for each in done["declarations"]} == {"pyproject.toml", "Dockerfile"}
    world.run("--check", program="audit")


def test_what_the_resolution_moves_besides_is_audited_too(world):
    done = world.json("engine==2.0", "--dry-run", expect=10)
    moves = {each["distribution"]: (each["old"], each["new"], each["why"]) for each in done["versions"]}
    assert moves["engine"] == ("1.0", "2.0", "asked for")
    assert moves["tensor"][:2] == ("1.0", "2.0")
    assert "resolves so" in moves["tensor"][2]
    assert [each["distribution"] for each in done["audits"]] == ["engine", "tensor"]


def test_a_dry_run_plans_what_the_real_run_writes_byte_for_byte(world):
    start = world.tree()
    planned = world.json("engine==2.0", "--fix", "--dry-run", "--diff", expect=10)
    assert world.tree() == start
    written = world.json("engine==2.0", "--fix", "--diff", expect=10)
    assert planned["plan"] == written["plan"]
    assert planned["dry_run"] is True
    after = world.tree()
    world.git("stash", "-q", "--include-untracked")
    assert world.tree() == start
    patch = "".join(change["diff"] for change in planned["plan"])
    subprocess.run(["git", "-C", str(world.root), "apply"], input=patch, text=True, check=True)
    assert world.tree() == after


def test_what_is_certain_is_fixed_proven_and_left_out_of_the_findings(world):
    done = world.json("engine==2.0", "--fix", expect=10)
    assert places(done) == {("shop/end.py", 5, "removed"), ("shop/numbers.py", 5, "removed")}
    assert world.read("shop/app.py") == (
        "from engine import LLM\nfrom engine.counting import Counter\n\n\ndef answer(text):\n"
        '    llm = LLM("small", seed=1)\n    return llm.generate(text, count=2), Counter()\n'
    )
    assert {each["kind"] for each in done["fixed"]} == {"moved", "param-renamed"}
    checklist = world.read("skills/upgrade-deps/checklists/engine.md")
    assert "engine.counting.Counter" in checklist
    assert "engine.utils.Counter" not in checklist
    world.run("--check", program="audit")


@pytest.mark.exhaustive
def test_what_could_not_be_fixed_is_told_with_the_reason_and_not_promised(world):
    source = (
        'from engine import LLM\n\nOPTIONS = {"n": 2}\n\n\ndef f():\n    return LLM("a").generate("b", **OPTIONS)\n'
    )
    world.write("shop/star.py", source)
    text = world.run("engine==2.0", "--fix", "--dry-run", expect=10).stdout
    assert "fixed and audited again: 3 places in 1 files\n" in text
    assert "not fixed: shop/star.py:3: param-renamed: " in text
    assert "--fix may write it" not in text


def test_a_second_run_changes_nothing(world):
    world.run("engine==2.0", "--fix", expect=10)
    first = world.tree()
    again = world.json("engine==2.0", "--fix", expect=0)
    assert again["plan"] == []
    assert world.tree() == first
    assert "nothing to do" in world.run("engine==2.0").stdout


def test_the_summary_tells_versions_places_resolution_and_what_is_left(world):
    world.run("engine==2.0", "--fix", expect=10)
    text = world.read("upgrade-summary.md")
    assert text.startswith("# Upgrade to engine==2.0\n")
    headings = re.findall(r"^##? (.+)$", text, re.MULTILINE)
    assert headings[1:] == ["Version changes", "Declarations", "Resolution", "Fixes", "Audit"]
    assert "| engine | 1.0 | 2.0 | asked for |" in text
    assert "| `pyproject.toml:6` | `==1.0` | `==2.0` |" in text
    assert "- tensor 1.0 → 2.0" in text
    assert "`shop/end.py:5`" in text
    assert str(world.root) not in text


@pytest.mark.exhaustive
def test_a_downgrade_is_said_before_anything_else(world):
    world.run("engine==2.0", "--no-summary", expect=10)
    world.commit("up")
    first = "engine 2.0 -> 1.5 is a downgrade"
    assert world.run("impact", "engine==1.5", expect=10).stdout.splitlines()[0] == first
    assert world.run("engine==1.5", "--dry-run", "--diff", expect=10).stdout.splitlines()[0] == first
    done = world.json("engine==1.5", expect=10)
    assert [(each["distribution"], each["downgrade"]) for each in done["versions"]] == [("engine", True)]
    summary = world.read("upgrade-summary.md").replace("\\", "")
    assert summary.startswith(f"# Upgrade to engine==1.5\n\n**{first}.**\n")
    up = world.json("impact", "engine==3.0", expect=10)
    assert [each["downgrade"] for each in up["versions"]] == [False]
    assert "downgrade" not in world.run("impact", "engine==3.0", expect=10).stdout


@pytest.mark.exhaustive
def test_an_upgrade_that_changes_no_file_leaves_no_summary(world):
    """A range that allows the new version already stays; the audit is printed, and that is all."""
    text = world.read("pyproject.toml").replace('"engine==1.0"', '"engine>=1.0"').replace('lock = "uv.lock"\n', "")
    world.write("pyproject.toml", text.replace("repository", "tag = '{version}', repository"))
    world.write("Dockerfile", "FROM python:3.11\n")
    (world.root / "uv.lock").unlink()
    world.run("--write", program="audit")
    world.commit("ranges")
    done = world.json("engine==2.0", expect=10)
    assert done["plan"] == []
    assert changed(world) == set()


@pytest.mark.exhaustive
def test_the_summary_may_have_another_name_or_none(world):
    world.run("engine==1.5", "--no-summary")
    assert "upgrade-summary.md" not in changed(world)
    world.run("engine==2.0", "--summary", "notes/report.md", expect=10)
    assert world.read("notes/report.md").startswith("# Upgrade to engine==2.0")


def test_notes_of_people_in_checklists_outlive_an_upgrade(world):
    path = "skills/upgrade-deps/checklists/engine.md"
    note = "Watch the memory when this changes.\n"
    text = world.read(path)
    place = re.search(r"begin entry engine\.core\.LLM -->\n.*?<!-- areal-audit:end -->\n", text, re.DOTALL)
    world.write(path, text[: place.end()] + note + text[place.end() :])
    world.run("engine==2.0", "--fix", expect=10)
    after = world.read(path)
    assert after != text
    assert note in after
    assert after.index("begin entry engine.core.LLM -->") < after.index(note) < after.index("begin guarded")


def test_without_a_lock_only_what_was_asked_for_moves(world):
    done = world.json("engine==2.0", "--no-lock", expect=10)
    assert done["resolution"] == []
    assert [each["distribution"] for each in done["versions"]] == ["engine"]
    assert "uv.lock" not in changed(world)


def test_an_audit_writes_nothing(world):
    start = world.tree()
    done = world.json("impact", "engine==2.0", expect=10)
    assert places(done) == {place for place in BROKEN if place[0] != "shop/numbers.py"}
    assert done["plan"] == []
    assert world.tree() == start


def test_options_and_packages_may_stand_in_any_order(world):
    first = world.json("--no-lock", "engine==2.0", "--dry-run", "tensor==2.0", expect=10)
    assert {each["distribution"] for each in first["versions"]} == {"engine", "tensor"}
    second = world.json("--repo", world.root, "impact", "engine==2.0", expect=10, where=world.folder)
    assert second["command"] == "areal-upgrade-deps impact"


@pytest.mark.exhaustive
def test_the_version_to_compare_with_may_be_named(world):
    assert world.json("impact", "engine==2.0", "--from", "1.5", expect=10)["versions"][0]["old"] == "1.5"
    several = ["impact", "engine==2.0", "tensor==2.0", "--from", "engine==1.5", "--from", "tensor==1.0"]
    assert [each["old"] for each in world.json(*several, expect=10)["versions"]] == ["1.5", "1.0"]
    world.write("pyproject.toml", '[project]\nname = "shop"\nversion = "0"\n')
    (world.root / "uv.lock").unlink()
    (world.root / "Dockerfile").unlink()
    error = world.json("impact", "engine==2.0", expect=2)
    assert "--from engine==VERSION" in error["fix"]
    assert world.json("impact", "engine==2.0", "--from", "1.0", expect=10)["versions"][0]["old"] == "1.0"


def test_latest_says_what_audits_clean_and_what_does_not(world):
    start = world.tree()
    done = world.json("latest", expect=10)
    rows = {each["distribution"]: each for each in done["packages"]}
    assert (rows["engine"]["current"], rows["engine"]["newest"]) == ("1.0", "3.0")
    assert (rows["engine"]["clean"], rows["engine"]["breaking"]) == ("1.5", "2.0")
    assert (rows["tensor"]["clean"], rows["tensor"]["breaking"]) == ("1.0", "2.0")
    assert world.tree() == start
    text = world.run("latest", "engine", expect=10).stdout
    assert "shop/app.py:2" in text
    assert "tensor" not in text


@pytest.mark.exhaustive
def test_latest_never_calls_clean_what_the_next_command_refuses(world):
    """engine 1.5 needs nothing that the project excludes; 2.0 audits clean here and needs tensor 2."""
    world.write("shop/app.py", 'from engine import LLM\n\n\ndef answer():\n    return LLM("small")\n')
    world.write("shop/numbers.py", "import tensor\n\n\ndef table():\n    return tensor.ones(2)\n")
    (world.root / "shop/end.py").unlink()
    world.write("pyproject.toml", world.read("pyproject.toml").replace('"tensor"', '"tensor<2"'))
    world.commit("a limit")
    assert world.json("impact", "engine==2.0")["findings"] == []
    start = world.tree()
    done = world.json("latest", "engine", expect=10)
    (row,) = done["packages"]
    assert (row["clean"], row["breaking"]) == ("1.5", "2.0")
    assert "engine==2.0 requires tensor>=2,<3" in row["refused"]
    assert done["next"] == ["areal-upgrade-deps engine==1.5"]
    assert world.tree() == start
    assert world.json("engine==2.0", expect=9)["error"] in row["refused"]
    world.json("engine==1.5")


@pytest.mark.exhaustive
def test_latest_says_that_the_resolver_failed_instead_of_refusing_every_version(world):
    text = world.read("pyproject.toml")
    world.write("pyproject.toml", text.replace('requires-python = ">=3.11"', 'requires-python = ">=3.99"'))
    world.commit("an interpreter that nobody has")
    done = world.json("latest", "engine", expect=9)
    assert done["error"].startswith("uv failed: ")
    assert done["code"] == "resolver"
    assert "--no-lock" in done["fix"]
    (row,) = (done := world.json("latest", "engine", "--no-lock", expect=10))["packages"]
    assert (row["clean"], row["breaking"], row["refused"]) == ("1.5", "2.0", None)
    assert done["next"] == ["areal-upgrade-deps engine==1.5 --no-lock"]


@pytest.mark.exhaustive
def test_checklists_are_of_the_version_that_the_check_will_find(world):
    """A range that allows the new version stays, and what only a check of a variant came to is written nowhere."""
    text = world.read("pyproject.toml").replace('"engine==1.0"', '"engine>=1.0"').replace('lock = "uv.lock"\n', "")
    world.write("pyproject.toml", text)
    world.write("Dockerfile", "FROM python:3.11\n")
    (world.root / "uv.lock").unlink()
    world.run("--write", program="audit")
    world.commit("ranges")
    world.run("engine==2.0", expect=10)
    assert "version: 1.0" in world.read("skills/upgrade-deps/checklists/engine.md")
    world.run("--check", program="audit")


def test_a_manifest_that_cannot_be_read_is_told(world):
    (world.root / "requirements-old.txt").write_bytes(b"engine==1.0  # \xff\n")
    warnings = world.json("engine==2.0", "--no-lock", "--dry-run", expect=10)["warnings"]
    assert [each.partition(": ")[0] for each in warnings if "what it declares stays" in each] == [
        "requirements-old.txt"
    ]
