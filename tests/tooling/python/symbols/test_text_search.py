"""Import statements and bases of classes read off text."""

from __future__ import annotations

import time

import pytest

from tooling.python.symbols.text_search import base_names, imports_in
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.sources.folder import memory_release


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from a import b, \\\n  c", [(0, "a", ("b", "c"))]),
        ("from a import b, \\\r\n  c\r\nx = 1", [(0, "a", ("b", "c"))]),
        ("from .a import (  # one (two)\n    b as d,  # three)\n    c,\n)", [(1, "a", ("b", "c"))]),
        ("from .. import b", [(2, "", ("b",))]),
        ("import os, \\\n    sys as s", [(0, "os", ()), (0, "sys", ())]),
        ("import os, \\\r\n    sys\r\n", [(0, "os", ()), (0, "sys", ())]),
        ("import a; b = 1", [(0, "a", ())]),
    ],
)
def test_names_on_further_lines_count(text, found):
    assert list(imports_in(text.encode())) == found


@pytest.mark.parametrize("text", ["from " + "." * 20_000, "from a import (" + "#x\n" * 20_000])
def test_damaged_statements_take_no_time(text):
    started = time.process_time()
    assert all("x" not in names for _, _, names in imports_in(text.encode()))
    assert time.process_time() - started < 1


def bases_in(text):
    return base_names(SymbolTree(memory_release({"pkg/__init__.py": text}, "pkg", "1")).store)


def test_bases_are_the_last_words_of_what_stands_between_commas():
    text = "class A(a.b . C, Generic[T],\n    D, metaclass=M): ...\nclass A(E): ...\n"
    assert bases_in(text) == {"A": ["C", "D", "E", "Generic"]}


@pytest.mark.parametrize("base", ["a" * 60_000, "a " * 60_000, "a." * 60_000])
def test_a_base_of_endless_words_takes_no_time(base):
    started = time.process_time()
    assert bases_in(f"class A({base}=1):\n") == {"A": []}
    assert time.process_time() - started < 1
