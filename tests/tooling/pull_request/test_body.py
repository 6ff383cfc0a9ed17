"""The text says what was measured, where the template wants it, and claims nothing else."""

import json
import os
import re

import pytest

from tooling.pull_request.body import harmless, sealed, untouched


def body(world, *words):
    world.git("fetch", "-q")
    ran = world.run("body", "--json", *words)
    assert ran.code == 0, ran.err
    return ran.json["body"]


def section(text, heading):
    """What stands below a heading."""
    found = re.search(rf"^#+ {re.escape(heading)}$\n(.*?)(?=^#+ |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, text
    return found[1].strip()


def test_every_section_of_our_own_template_is_filled(world):
    text = body(world)
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == [
        "Description",
        "What changed",
        "Risk",
        "Review",
        "Tests",
        "Breaking changes",
        "Dependencies",
        "Checklist",
    ]
    assert "package/two.txt" in section(text, "What changed")
    assert section(text, "Risk").startswith("**LOW**")
    assert section(text, "Tests").startswith("Nothing is claimed about tests: this repository declares no checks")
    assert "- [ ] tests pass" in text


def test_it_prints_without_a_network_and_writes_nothing(world):
    world.git("fetch", "-q")
    world.remote.rename(world.folder / "gone.git")
    before = world.git("for-each-ref"), sorted(os.listdir(world.root / ".git")), world.git("count-objects")
    ran = world.run("body")
    assert (ran.code, ran.out.startswith("## Description")) == (0, True)
    assert (world.git("for-each-ref"), sorted(os.listdir(world.root / ".git")), world.git("count-objects")) == before


@pytest.mark.exhaustive
def test_what_speaks_against_it_is_said_and_measured(world):
    text = "import subprocess\n\n\ndef load(path):\n    subprocess.run(f'cat {path}', shell=True)\n"
    world.commit("feat: load", {"package/load.py": text})
    ran = world.json("create", "--dry-run")
    assert any("package/load.py:5" in each for each in ran["warnings"])
    assert [each["path"] for each in ran["findings"]] == ["package/load.py"]
    assert ran["risk"] in {"HIGH", "CRITICAL"}
    found = section(ran["body"], "Review")
    assert "package/load.py:5" in found.replace("\\", "")
    assert re.search(r"\| (?:HIGH|CRITICAL|MEDIUM) \|", found)


@pytest.mark.exhaustive
def test_requirements_and_their_audit_are_told(world):
    world.commit("build: pin", {"constraints.txt": "torch==2.9.0\nnumpy==1.26\n"})
    world.git("switch", "-q", "-c", "second")
    world.git("push", "-q", "origin", "topic:main", "--force")
    world.commit("build: newer torch", {"constraints.txt": "torch==2.10.0\nnumpy==1.26\n"})
    assert section(body(world), "Dependencies").startswith(
        "- torch in constraints.txt: ==2.9.0 -\\> ==2.10.0".replace("-\\>", "->")
    )
    row = {
        "distribution": "torch",
        "old_version": "2.9.0",
        "new_version": "2.10.0",
        "worst": "breaking",
        "counts": {"breaking": 2, "info": 1},
        "unresolved": 3,
        "open": [{"count": 4}],
    }
    place = world.folder / "audit.json"
    place.write_text(json.dumps({"audits": [row]}))
    told = section(body(world, "--audit", os.fspath(place)), "Dependencies")
    assert "| torch | 2.9.0 | 2.10.0 | breaking | 3 | 7 |" in told
    place.write_text("[]")
    assert world.run("body", "--audit", os.fspath(place)).code == 2


def test_issues_and_breaking_changes_come_from_footers(world):
    world.commit(
        "fix!: x\n\nIt fixes #3.\n\nBREAKING CHANGE: call y\nCloses: #12\nRefs: owner/name#4", {"x.txt": "1\n"}
    )
    text = body(world)
    assert section(text, "Related issues").split("\n") == ["Closes #12", "Closes #3", "Refs owner/name#4"]
    assert section(text, "Breaking changes") == "- call y"


TEMPLATE = """<!-- Thank you! Read CONTRIBUTING first. -->

## Description

<!-- What and why? -->

## Related Issue

Fixes #(issue)

## Type of Change

- [ ] Bug fix (non-breaking change which fixes an issue)
- [ ] New feature
- [ ] Breaking change
- [ ] Documentation update

## Checklist

- [ ] I have read the contributing guide
- [ ] My commit messages follow the conventions
- [ ] I added tests for my change
- [ ] All tests pass
- [ ] Branch is up to date with main

## Screenshots

Drag them here.

```
## not a heading
```
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "place", [".github/PULL_REQUEST_TEMPLATE.md", "pull_request_template.md", "docs/Pull_Request_Template.md"]
)
def test_the_template_of_a_repository_is_filled_and_kept(world, place):
    world.advance("docs: template", {place: TEMPLATE})
    world.commit("test: two", {"tests/test_two.py": "def test_two():\n    assert True\n", "x.md": "x\n"})
    text = body(world)
    assert "- wip" in section(text, "Description")
    assert "What and why?" not in text
    assert section(text, "Related Issue") == "Fixes #(issue)"
    assert [line[3] for line in section(text, "Type of Change").split("\n")] == [" ", "x", " ", " "]
    assert [line[3] for line in section(text, "Checklist").split("\n")] == [" ", "x", "x", " ", "x"]
    assert "Drag them here." in text
    assert "Thank you!" in text
    assert text.index("## Screenshots") < text.index("## Risk")


def test_a_box_is_ticked_only_for_what_is_proven(world):
    boxes = [
        ("I have added tests that prove my fix is effective", True),
        ("New and existing unit tests pass locally with my changes", False),
        ("I have run the tests", False),
        ("I have not added tests", False),
        ("I added no tests, since it is a refactoring", False),
        ("My commits follow Conventional Commits", True),
        ("I have performed a self-review of my code", False),
        ("I have commented my code, particularly in hard-to-understand areas", False),
        ("The branch is rebased", True),
    ]
    empty = "".join(f"- [ ] {line}\n" for line, _ in boxes)
    world.advance("docs: template", {".github/PULL_REQUEST_TEMPLATE.md": f"## Checklist\n\n{empty}"})
    world.commit("test: two", {"tests/test_two.py": "def test_two():\n    assert True\n"})
    filled = "\n".join(f"- [{'x' if ticked else ' '}] {line}" for line, ticked in boxes)
    assert section(body(world), "Checklist") == filled


def test_the_base_decides_about_the_template_not_the_change(world):
    world.advance("docs: template", {".github/PULL_REQUEST_TEMPLATE.md": "## Summary\n\nFROM BASE\n"})
    world.commit("docs: mine", {"docs/pull_request_template.md": "## Summary\n\nFROM BRANCH\n"})
    text = body(world)
    assert "FROM BASE" in text
    assert "FROM BRANCH" not in text


def test_a_template_that_is_a_link_is_none(world):
    secret = world.folder / "secret.txt"
    secret.write_text("SECRET")
    (world.root / ".github").mkdir()
    (world.root / ".github/PULL_REQUEST_TEMPLATE.md").symlink_to(secret)
    world.git("add", "--all")
    world.git("commit", "-q", "-m", "docs: link")
    assert "SECRET" not in body(world)


def test_a_breaking_change_ticks_its_box(world):
    world.advance("docs: template", {".github/PULL_REQUEST_TEMPLATE.md": TEMPLATE})
    world.commit("feat!: x\n\nBREAKING CHANGE: y", {"x.txt": "1\n"})
    assert [line[3] for line in section(body(world), "Type of Change").split("\n")] == [" ", "x", "x", " "]


def test_a_text_knows_whether_it_was_edited():
    text = sealed("## A\n\nb")
    assert untouched(text)
    assert untouched(text.replace("\n", "\r\n"))
    assert untouched(text.strip())
    assert not untouched(text.replace("b", "c"))
    assert not untouched(text + "\nmore")
    assert not untouched("## A\n\nb\n")


def test_a_text_is_never_longer_than_a_service_takes():
    text = sealed("line\n" * 100_000)
    assert len(text) < 65_000
    assert untouched(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain *words*", "plain *words*"),
        ("# heading", "\\# heading"),
        ("a\n---", "a\n\\---"),
        ("see @somebody", "see &#64;somebody"),
        ("`@decorator <T>` stays", "`@decorator <T>` stays"),
        ("<img src=x>", "&lt;img src=x>"),
        ("```\n# code @x\n```", "```\n# code @x\n```"),
        ("```\nopen", "```\nopen\n```"),
    ],
)
def test_somebody_s_markdown_is_harmless(text, shown):
    assert harmless(text) == shown
