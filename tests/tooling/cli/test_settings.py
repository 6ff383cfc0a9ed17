"""Settings: `[tool.areal.*]` as models, and errors that name the key, what was found, and what is expected."""

from __future__ import annotations

import pytest
from pydantic import Field, PositiveInt

from tooling.cli.errors import UsageError
from tooling.cli.settings import Settings, Strings, Text, read_settings


class Scope(Settings):
    paths: Strings = ()


class Example(Settings):
    length: PositiveInt = 72
    base: Text = "main"
    strict: bool = False
    names: Strings = ()
    scopes: dict[str, Scope] = Field(default_factory=dict)


def read(tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    return read_settings(Example, tmp_path, "example")


def test_everything_has_a_default(tmp_path):
    assert read_settings(Example, tmp_path, "example") == Example()
    assert read(tmp_path, "[project]\nname = 'x'\n") == Example()


def test_values_are_read(tmp_path):
    found = read(tmp_path, "[tool.areal.example]\nlength = 5\nnames = ['a']\nscopes.ci = { paths = ['x/**'] }\n")
    assert found == Example(length=5, names=("a",), scopes={"ci": Scope(paths=("x/**",))})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lenght = 5", ["unknown setting 'lenght'", "did you mean 'length'?"]),
        ("scopes.ci = { path = ['x'] }", ["unknown setting 'scopes.ci.path'", "did you mean 'paths'?"]),
        ("length = '5'", ['`length` is "5", expected a whole number', "write length = 72"]),
        ("length = 0", ["`length` is 0, expected greater than 0"]),
        ("length = true", ["`length` is true, expected a whole number"]),
        ("strict = 1", ["`strict` is 1, expected true or false"]),
        ("names = 'a'", ['`names` is "a", expected a list of texts']),
        ("names = [1]", ["`names` is 1, expected a text"]),
        ("base = ''", ['`base` is "", expected a text that is not empty']),
        ("scopes = 3", ["`scopes` is 3, expected a table"]),
        ("scopes.ci = 3", ["`scopes.ci` is 3, expected a table"]),
    ],
)
def test_an_error_says_what_was_found_and_what_is_expected(tmp_path, line, words):
    with pytest.raises(UsageError) as raised:
        read(tmp_path, f"[tool.areal.example]\n{line}\n")
    assert raised.value.where == "pyproject.toml: [tool.areal.example]"
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(("text", "word"), [("[tool", "not TOML"), ("tool = 3", "expected a table")])
def test_a_damaged_file_is_refused(tmp_path, text, word):
    with pytest.raises(UsageError, match=word):
        read(tmp_path, text)
