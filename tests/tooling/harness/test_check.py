"""`areal-harness check`: what a page says has to exist, and what cannot be judged is counted, not guessed."""

from __future__ import annotations

import pytest

from tooling.harness.checks.commands import command_lines
from tooling.harness.checks.references import mentions


def test_a_project_whose_pages_are_true_has_no_findings(project):
    code, document = project.run("check")
    assert (code, document["findings"]) == (0, [])
    assert document["judged"]["command"] == 1
    assert document["judged"]["symbol"] == 1
    assert document["judged"]["path"] == 2


WRONG = [
    ("`app/gone.py`", "path", "app/gone.py does not exist"),
    ("`app/*.txt`", "path", "does not exist"),
    ("`gone.py`", "path", "gone.py does not exist"),
    ("[words](words.md)", "link", "words.md does not exist"),
    ("[words](../../app/words.py)", "link", "leads out of the skill's folder"),
    ("`Greetings`, `WrongName`", "symbol", "nothing is called WrongName"),
    ("`Greeting.texts`", "symbol", "Greeting has no texts"),
    ("`app.words.Greetin`", "symbol", "app.words has no Greetin"),
    ("`app.word`", "symbol", "app has no word"),
    ("`greet_all()`", "symbol", "nothing is called greet_all"),
    ("`greeting.words`", "symbol", "greeting (Greeting) has no words"),
    ("`hello --quiet`", "option", "`hello` has no option --quiet"),
    ("`hello --tone rude`", "option", "`hello --tone` does not take 'rude'"),
    ("`hello --tone=rude`", "option", "`hello --tone` does not take 'rude'"),
    ("`bash scripts/gone.sh`", "command", "scripts/gone.sh does not exist"),
    ("`make gone`", "command", "make has no target 'gone'"),
    ("`python -m app.gone`", "command", "there is no module app.gone"),
    ("`python app/words.py --shout`", "option", "app/words.py does not read --shout"),
]
RIGHT = [
    "`app/words.py:12`",
    "`app/*.py`",
    "`skills/NAME/SKILL.md`",
    "`skills/<name>/SKILL.md`",
    "`words.py`",
    "`app.words.Greeting.text`",
    "`app.words:LANGUAGES`",
    "`greeting.text`",
    "`Greeting(text)`",
    "`argparse.ArgumentParser`",
    "`pathlib.Path`",
    "`hello --loud --tone stern NAME`",
    "`python app/words.py --loud`",
    "`git status`",
    "`1/2`",
    "`exact`",
    "[a site](https://example.org/gone.md)",
]


def test_what_does_not_exist_is_found_with_its_line(project):
    lines = "".join(f"\nSee {mention}.\n" for mention, _, _ in WRONG)
    project.write("skills/greet/SKILL.md", project.read("skills/greet/SKILL.md") + lines)
    code, document = project.run("check")
    assert code == 10
    assert [(one["line"], one["rule"]) for one in document["findings"]] == [
        (10 + 2 * number, rule) for number, (_, rule, _) in enumerate(WRONG)
    ]
    for finding, (_, _, said) in zip(document["findings"], WRONG, strict=True):
        assert said in finding["message"]


def test_what_exists_or_belongs_to_others_is_not_a_finding(project):
    lines = "".join(f"\nSee {mention}.\n" for mention in RIGHT)
    project.write("skills/greet/SKILL.md", project.read("skills/greet/SKILL.md") + lines)
    assert project.findings() == []


def test_commands_in_blocks_are_judged_part_by_part(project):
    block = "```text\nhello --quiet\n```\n"  # no command
    block += "```bash\nX=1 hello --loud a | hello --quiet b  # --nothing here\nhello \\\n  --sotto c\n```\n"
    project.write("skills/greet/SKILL.md", project.read("skills/greet/SKILL.md") + block)
    _, document = project.run("check")
    assert [(one["line"], one["message"]) for one in document["findings"]] == [
        (13, "`hello` has no option --quiet"),
        (14, "`hello` has no option --sotto"),
    ]


def test_a_command_whose_help_fails_is_a_finding(project):
    project.write("app/words.py", "raise RuntimeError('broken')\n\n\nclass Greeting:\n    text = ''\n")
    found = [message for rule, message in project.findings() if rule == "command"]
    assert found == ["`hello --help` fails: exit 1: RuntimeError: broken"]


def test_without_processes_commands_are_left_alone(project):
    project.write("skills/greet/SKILL.md", project.read("skills/greet/SKILL.md") + "\n`hello --quiet`\n")
    code, document = project.run("check", "--no-run")
    assert (code, document["findings"]) == (0, [])


def test_the_map_and_the_owners_name_what_is_there_and_nothing_else(project):
    project.write("agents/words.md", project.read("agents/words.md").replace("app/*.py", "lib/*.py"))
    assert ("path", "owns lib/*.py, which is not a file") in project.findings()
    project.write("AGENTS.md", project.read("AGENTS.md").replace("app/ ", "gone/"))
    assert sorted(message for rule, message in project.findings() if rule == "map") == [
        "app/ is not on the map",
        "gone/ does not exist",
    ]


def test_a_level_that_the_map_shows_is_shown_whole(project):
    project.write("app/shown/__init__.py", "")
    project.write("app/left_out/__init__.py", "")
    assert project.findings() == []
    project.write("AGENTS.md", project.read("AGENTS.md").replace("skills/ ", "  shown/  a part\nskills/ "))
    assert project.findings() == [("map", "app/left_out/ is not on the map")]


def test_pages_that_grow_too_long_are_found(project):
    skill = project.read("skills/greet/SKILL.md")
    project.write("skills/greet/SKILL.md", skill + "word " * 1500)
    assert [rule for rule, _ in project.findings()] == ["size"], "of its tokens"
    project.write("AGENTS.md", project.read("AGENTS.md") + "more\n" * 120)
    project.write("skills/greet/SKILL.md", skill + "more\n" * 80)
    project.write("agents/words.md", project.read("agents/words.md") + "more\n" * 110)
    assert [rule for rule, _ in project.findings()] == ["size"] * 3


def test_a_claude_page_that_says_something_of_its_own_is_found(project):
    project.write("CLAUDE.md", "@AGENTS.md\n")
    assert project.findings() == []
    project.write("CLAUDE.md", "@AGENTS.md\nAnd more.\n")
    assert [rule for rule, _ in project.findings()] == ["size"]


def test_single_pages_can_be_checked(project):
    project.write("agents/words.md", project.read("agents/words.md") + "\n`app/gone.py`\n")
    assert project.run("check", "skills/greet/SKILL.md")[0] == 0
    assert project.run("check", "agents/words.md")[0] == 10
    assert project.run("check", "app/words.py")[0] == 2


def test_spans_and_blocks_are_found_as_markdown_says():
    text = "a `b` ``c ` d`` `e\nf`\n\n~~~~sh\n~~~\n`g`\n~~~~\n`open [l](x.md) `h`"
    found = [(one.kind, one.text, one.line) for one in mentions(text, 1)]
    assert found == [
        ("span", "b", 1),
        ("span", "c ` d", 1),
        ("span", "e f", 1),
        ("code", "~~~", 5),
        ("code", "`g`", 6),
        ("span", "open [l](x.md)", 8),
    ]


def test_a_line_is_cut_into_the_commands_a_shell_would_run():
    assert command_lines("A=1 B=2 run --x 'a b' > out && next | last  # why") == [
        ["run", "--x", "a b"],
        ["next"],
        ["last"],
    ]
    with pytest.raises(ValueError, match="quotation"):
        command_lines("run 'a")
