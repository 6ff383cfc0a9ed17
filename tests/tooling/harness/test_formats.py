"""The formats of skills and experts: what the specification allows, and what is refused with its line."""

from __future__ import annotations

import pytest

GOOD = """\
---
name: greet
description: Greet somebody.
license: MIT
compatibility: any
metadata: {author: me}
allowed-tools: Read Grep
---
Text.
"""


def test_everything_that_the_specification_allows_is_taken(project):
    project.write("skills/greet/SKILL.md", GOOD)
    assert project.run("check")[0] == 0


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("name: greet", "name: Greet", 2, "not a name"),
        ("name: greet", "name: -greet", 2, "not a name"),
        ("name: greet", "name: gr--eet", 2, "not a name"),
        ("name: greet", "name: other", 2, "not that of its place"),
        ("name: greet", "name: " + "g" * 65, 2, "65 characters"),
        ("name: greet\n", "", 1, "name is missing"),
        ("name: greet", "name: 12", 2, "no text"),
        ("description: Greet somebody.", "description:", 3, "description is missing"),
        ("description: Greet somebody.", "description: " + "d" * 1025, 3, "1025 characters"),
        ("description: Greet somebody.", "description: Greet: somebody", 3, "not valid YAML"),
        ("license: MIT", "licence: MIT", 4, "unknown key"),
        ("license: MIT", "name: greet", 4, "given twice"),
        ("compatibility: any", "compatibility: " + "c" * 501, 5, "501 characters"),
        ("metadata: {author: me}", "metadata: {author: 1}", 6, "not a mapping of text"),
        ("allowed-tools: Read Grep", "allowed-tools: [Read]", 7, "no text"),
        ("---\nname", "name", 1, "no head"),
    ],
)
def test_what_a_client_would_refuse_or_misread_is_found(project, before, after, line, said):
    assert before in GOOD
    project.write("skills/greet/SKILL.md", GOOD.replace(before, after, 1))
    code, document = project.run("check")
    about = [one for one in document["findings"] if one["rule"] == "skill-format"]
    assert code == 10
    assert any(said in one["message"] for one in about), about
    assert line in {one["line"] for one in about}


def test_a_folder_without_a_skill_is_found(project):
    project.write("skills/empty/notes.md", "nothing\n")
    assert ("skill-format", "has no SKILL.md") in project.findings()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("name: words\ndescription: x\nscope: all", "scope is 'all'"),
        ("name: words\ndescription: x\nscope: run", "contradict"),
        ("name: words\ndescription: x\ncommands: [ls]", "contradict"),
        ("name: words\ndescription: x\nowns: app", "not a list of texts"),
        ("name: words\ndescription: x\nhints: [1]", "not a mapping"),
        ("name: words\ndescription: x\ntools: Bash", "unknown key"),
        ("name: other\ndescription: x", "not that of its place"),
    ],
)
def test_an_expert_that_platforms_would_read_differently_is_found(project, head, said):
    project.write("agents/words.md", f"---\n{head}\n---\nText.\n")
    assert any(rule == "expert-format" and said in message for rule, message in project.findings())


def test_an_expert_without_text_is_found(project):
    project.write("agents/words.md", "---\nname: words\ndescription: x\n---\n\n")
    assert ("expert-format", "has no text") in project.findings()
