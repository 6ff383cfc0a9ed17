"""Small releases for the tests of this folder: real source text, read from memory."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tooling.python.symbols.symbol import (
    Absent,
    Builtin,
    Container,
    Definite,
    Found,
    Gone,
    Instance,
    Open,
    Signature,
    Values,
)
from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.sources.folder import memory_release


class Package:
    """The package `pkg` as symbols, with short ways to ask."""

    def __init__(self, files, cache=None):
        self.release = memory_release(files, "pkg", "1.0")
        self.upstream = SymbolTree(self.release, cache=cache)

    def found(self, dotted):
        resolution = self.upstream.resolve(dotted)
        assert isinstance(resolution, Found), resolution
        return resolution.symbol

    def way(self, dotted):
        resolution = self.upstream.resolve(dotted)
        assert isinstance(resolution, Found), resolution
        return resolution

    def absent(self, dotted):
        resolution = self.upstream.resolve(dotted)
        assert isinstance(resolution, Absent), resolution
        return resolution

    def is_open(self, dotted):
        return isinstance(self.upstream.resolve(dotted), Open)

    def signature(self, dotted):
        answer = self.upstream.signature(self.found(dotted))
        assert isinstance(answer, Signature), answer
        return answer

    def text(self, dotted):
        return self.signature(dotted).text("f")

    def keyword(self, dotted, name):
        return self.upstream.keyword(self.found(dotted), name).value

    def follow(self, access_path):
        """The outcome in words: "LLM" for an instance, "<f>" for the thing itself, "list[LLM]", "?" for open."""
        outcome = self.upstream.follow(access_path)
        if isinstance(outcome, Gone):
            return f"gone: {outcome.absent.container}.{outcome.absent.name}" + (" partly" if outcome.partly else "")
        return "?" if isinstance(outcome, Open) else words(outcome)


def words(values: Values) -> str:
    parts = sorted(_word(kind) for kind in values.types)
    return " | ".join([*parts, "?"] if values.open else parts)


def _word(kind):
    if isinstance(kind, Instance):
        return kind.symbol.dotted.rpartition(".")[2]
    if isinstance(kind, Definite):
        return f"<{kind.symbol.dotted.rpartition('.')[2]}>"
    if isinstance(kind, Container):
        return f"{kind.name}[{', '.join(map(words, kind.items))}]"
    assert isinstance(kind, Builtin)
    return kind.name


@pytest.fixture
def package():
    """`package(root="...", a__b="...")`: `root` is pkg/__init__.py, `a__b` pkg/a/b.py, `a__` pkg/a/__init__.py, and a
    key that ends in `_pyi` a stub."""

    def make(cache=None, **files):
        contents = {"pkg/__init__.py": ""}
        for key, text in files.items():
            contents[_path_of(key)] = dedent(text)
        return Package(contents, cache)

    return make


def _path_of(key):
    if key == "root":
        return "pkg/__init__.py"
    ending = ".pyi" if key.endswith("_pyi") else ".py"
    path = key.removesuffix("_pyi").replace("__", "/")
    return f"pkg/{path}__init__{ending}" if path.endswith("/") else f"pkg/{path}{ending}"
