"""Command lines: options in any order, near misses suggested, help without a traceback."""

from __future__ import annotations

import json
import sys
import types

import pytest

from tooling.cli.errors import UsageError
from tooling.cli.parser import Command, CommandProgram, Parser, add_changing, one_of, split
from tooling.cli.report import Report


@pytest.fixture
def program(monkeypatch):
    def configure(parser: Parser) -> None:
        parser.add_argument("target", nargs="?")
        parser.add_argument("--strict", action="store_true", help="no mercy")
        parser.add_argument("--form", type=one_of("plain", "fancy"))
        add_changing(parser)

    def run(arguments) -> Report:
        data = {"target": arguments.target, "strict": arguments.strict}
        return Report(command="tool check", changing=False, data=data)

    module = types.ModuleType("tool_check", "Checks a thing.")
    module.configure, module.run = configure, run
    monkeypatch.setitem(sys.modules, "tool_check", module)
    return CommandProgram(
        name="tool",
        purpose="Does things.",
        commands={"check": Command("tool_check", "check a thing"), "absent": Command("no_such_module", "never loaded")},
        exit_codes=(0, 2, 130),
    )


@pytest.mark.parametrize("words", ["check x --strict", "--json check --strict x", "--repo . check --strict -- x"])
def test_options_stand_anywhere(program, words, capsys):
    assert program.main([*words.split(), *([] if "--json" in words or "--" in words.split() else ["--json"])]) == 0
    out = capsys.readouterr().out
    if out:
        assert json.loads(out)["strict"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chek", "did you mean 'check'?"),
        ("check --strct", "did you mean '--strict'?"),
        ("check a b", "unexpected argument 'b'"),
        ("check --form fancyy", "did you mean 'fancy'?"),
        ("check --wait=-1", "not a number of seconds"),
        ("--jsno", "did you mean '--json'?"),
        ("", "no command was given"),
    ],
)
def test_bad_words_are_usage_errors_with_a_hint(program, words, said, capsys):
    assert program.main(words.split()) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err


def test_help_loads_no_command_and_explains_exit_codes(program, capsys):
    assert program.main(["--help"]) == 0
    page = capsys.readouterr().out
    assert "check   check a thing" in page
    assert "130  interrupted" in page
    assert program.main(["check", "--help", "--json"]) == 0
    assert "no mercy" in json.loads(capsys.readouterr().out)["help"]
    assert program.main(["--version"]) == 0


def test_words_after_two_dashes_are_no_options(program, capsys):
    assert program.main(["check", "--json", "--", "--help"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "--help"
    assert split(["check", "--", "--help"]).help is False


def test_an_option_before_the_command_keeps_its_value():
    call = split(["--repo", "x", "check", "--strict"])
    assert (call.word, call.rest, call.value("--repo")) == ("check", ("--repo", "x", "--strict"), "x")


def test_a_parser_never_exits():
    with pytest.raises(UsageError):
        Parser("tool", "Does things.").read(["--what"])
