"""How experts are written on each platform: whatever their text holds, a parser gives it back."""

from __future__ import annotations

import tomllib

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tooling.harness.compile import read_stamp, stamped
from tooling.harness.platforms import PLATFORMS, hint_problems, instructions
from tooling.harness.sources import READ, RUN, Expert, SourcePage

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x85\u2028\u2029"), min_size=1)


def expert(body="Text.\n", *, description="Asked.", scope=READ, commands=(), hints=None):
    page = SourcePage("agents/some.md", "", {}, body, 1)
    return Expert(page, "some", description, scope, commands, (), hints or {})


def head_of(text):
    return yaml.safe_load(text.split("---\n", 2)[1])


@given(body=TEXT, description=TEXT)
def test_a_codex_role_gives_back_any_text(body, description):
    one = expert(body, description=description)
    content = stamped(PLATFORMS["codex"].render(one), one.page.path)
    role = tomllib.loads(content.decode())
    assert role["name"] == "some"
    assert role["description"] == description
    assert role["developer_instructions"] == instructions(one)


@given(description=TEXT)
def test_a_head_of_yaml_gives_back_any_description(description):
    text = PLATFORMS["opencode"].render(expert(description=description))
    assert head_of(text)["description"] == description


@pytest.mark.parametrize("name", ["claude", "opencode"])
def test_a_reader_gets_no_tool_that_writes_or_runs(name):
    head = head_of(PLATFORMS[name].render(expert()))
    if name == "claude":
        assert head["tools"] == "Read, Grep, Glob"
    else:
        assert head["permission"] == {"*": "deny", "read": "allow", "grep": "allow", "glob": "allow"}


def test_a_runner_may_run_its_commands_only():
    head = head_of(PLATFORMS["opencode"].render(expert(scope=RUN, commands=("make test", "git diff*"))))
    assert head["permission"]["bash"] == {"*": "deny", "make test": "allow", "git diff*": "allow"}
    assert [next(iter(table)) for table in (head["permission"], head["permission"]["bash"])] == ["*", "*"]  # last wins
    assert "edit" not in head["permission"]


@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_every_platform_says_in_words_what_an_expert_may_do(name):
    assert "Edit nothing, run nothing" in PLATFORMS[name].render(expert())
    assert "`make test`" in PLATFORMS[name].render(expert(scope=RUN, commands=("make test",)))


def test_hints_reach_their_platform_alone():
    one = expert(hints={"claude": {"model": "opus"}})
    assert head_of(PLATFORMS["claude"].render(one))["model"] == "opus"
    assert "opus" not in PLATFORMS["opencode"].render(one) + PLATFORMS["codex"].render(one)


def test_hints_that_nobody_reads_are_problems():
    found = [str(problem) for problem in hint_problems([expert(hints={"claud": {}, "opencode": {"mode": "all"}})])]
    assert len(found) == 2
    assert "did you mean 'claude'?" in found[0]
    assert "opencode takes no hint 'mode'" in found[1]


@given(text=TEXT)
def test_a_stamp_knows_any_change_but_line_endings(text):
    content = stamped("---\nname: x\n---\n" + text, "skills/x/SKILL.md")
    stamp = read_stamp(content)
    assert stamp is not None
    assert (stamp.source, stamp.intact) == ("skills/x/SKILL.md", True)
    edited = read_stamp(content + b"!")
    assert edited is not None
    assert not edited.intact


def test_a_file_without_a_stamp_belongs_to_somebody_else():
    assert read_stamp(b"---\nname: x\n---\n") is None
    assert read_stamp(b"\xff\xfe") is None
