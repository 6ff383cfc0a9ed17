"""The proof is what stands between a wrong splice and a registry: it must refuse every near miss."""

from __future__ import annotations

import ast

import pytest

from tooling.cli.errors import RegistryShapeError
from tooling.kit.edits.text import comments, prove, read_source, same_tree, string_literal

BEFORE = b'# head\nT = [\n    "a",  # of a\n    # of c\n    "c",\n]\nU = 1  # unit\n'
RIGHT = BEFORE.replace(b"    # of c\n", b'    "b",\n    # of c\n')


def attempt(after: bytes) -> None:
    """Prove that `after` is `BEFORE` with "b" at index 1."""

    def change(tree: ast.Module) -> None:
        tree.body[0].value.elts.insert(1, ast.Constant("b"))

    prove(read_source(BEFORE, "r.py", ""), read_source(after, "r.py", ""), change, line=2, fix="paste")


def test_the_intended_edit_is_accepted():
    assert attempt(RIGHT) is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'"b"', b'"B"'),
        (b'"b",', b'"b", "b",'),
        (b'    "b",\n', b""),
        (b'"b",', b'"b"'),
        (b"U = 1", b"U = 2"),
        (b"U = 1", b"U = True"),
        (b'T = [\n    "a"', b'T = [\n    "b", "a"'),
        (b"# unit", b""),
        (b"# unit", b"# other"),
        (b'    "b",\n    # of c\n', b'    "b",  # of c\n'),
        (b'    "a",  # of a\n    "b",\n', b'    "a",\n    "b",  # of a\n'),
        (b"# head\n", b"# head\n# head\n"),
        (b"U = 1  # unit\n", b"U = 1  # unit\nV = 1\n"),
        (b"]", b")"),
    ],
)
def test_every_near_miss_is_refused(right, wrong):
    assert RIGHT.count(right) == 1
    with pytest.raises(RegistryShapeError, match="could not be proved") as caught:
        attempt(RIGHT.replace(right, wrong))
    assert caught.value.where == "r.py:2"


def test_comments_are_found_with_the_code_they_stand_behind():
    text = read_source('x = "é"  # one\r\n# two\r\ny = """\r\n""", # three'.encode(), "r.py", "")
    assert [(mark.anchor, mark.text) for mark in comments(text)] == [
        ('"é"', "# one"),
        ("", "# two"),
        ('"""\r\n"""', "# three"),
    ]
    assert [text.data[mark.offset : mark.offset + 4] for mark in comments(text)] == [b"# on", b"# tw", b"# th"]


def test_trees_are_compared_by_content_and_without_recursion():
    deep = "x = " + "(" * 50 + "0" + ")" * 50
    assert same_tree(ast.parse(deep), ast.parse("x=0"))
    assert not same_tree(ast.parse("x = 1"), ast.parse("x = 1.0"))
    assert not same_tree(ast.parse("x = 1"), ast.parse("x = 1; y = 2"))
    chain = ast.Name("x", ast.Load())
    for _ in range(5000):
        chain = ast.Attribute(chain, "a", ast.Load())
    assert same_tree(chain, chain)


@pytest.mark.parametrize(
    "text", ["", "plain", 'quo"te', "it's", "back\\slash", "new\nline", "tab\t", "é数", "\u2028", "\x00"]
)
@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_a_string_literal_has_the_value_and_fits_the_encoding(text, quote, encoding):
    literal = string_literal(text, quote, encoding)
    assert ast.literal_eval(literal) == text
    assert literal.encode(encoding).isascii() or encoding != "ascii"
    assert "\n" not in literal
