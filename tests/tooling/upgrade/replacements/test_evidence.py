"""The pieces of evidence by themselves: advice in texts, imports by pattern, bodies compared."""

from __future__ import annotations

import pytest

from tooling.python.symbols.tree import SymbolTree
from tooling.upgrade.advice import advised, texts_about
from tooling.upgrade.replacements.candidates import (
    Candidate,
    Reason,
    best,
    is_similar_name,
    similarity,
    tokens,
    took_places,
)
from tooling.upgrade.replacements.homes import importers, votes
from tooling.upgrade.sources.folder import memory_release


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`torch_dtype` is deprecated! Use `dtype` instead!", ["dtype"]),
        ("Please use the new method `LLM.chat()` instead.", ["LLM.chat"]),
        ("X is deprecated in favor of `pkg.sub.Y`.", ["pkg.sub.Y"]),
        ("moved to pkg.sub.y. It will go in v5.", ["pkg.sub.y"]),
        ("was renamed to 'y'", ["y"]),
        ("f has been replaced by\n    ``better``", ["better"]),
        ("use `from pkg.b import f` now", ["pkg.b.f"]),
        ("use enable_caching() or disable_caching() instead", ["enable_caching", "disable_caching"]),
        ("It will be removed in version 5.", []),
        ("because of this", []),
    ],
)
def test_names_that_a_text_tells_to_use(text, names):
    assert [name for name in advised(text) if name != "from"] == names


def test_texts_are_found_whole_in_a_body_and_only_those_about_the_name():
    body = """
def f(a, old=None):
    warnings.warn(
        "The argument `old` "
        f"is deprecated in {VERSION}, " + "use `new` instead."
    )
    log("use `other` instead")
    log("`old` does not sort; use `sorter` for sorting")
    return "old: use `nothing`"
"""
    assert [list(advised(text)) for text in texts_about(body, "old")] == [["new"]]
    assert list(texts_about("def f(:", "old")) == []


def test_imports_are_read_in_every_form():
    files = {
        "pkg/__init__.py": "from . import a\nfrom .a import one as first, two\n",
        "pkg/sub/b.py": "if x:\n  from ..a import (\n    one,  # why\n    three as t,\n  )\nfrom os import path",
        "pkg/sub/__init__.py": "from .b import x; from ....beyond import y\n",
        "pkg/c.py": "import os\nfrom pkg.a import one, \\\n    four\n",
    }
    upstream = SymbolTree(memory_release(files, "pkg", "1"))
    assert {name: [importer for importer, _ in rows] for name, rows in importers(upstream).items()} == {
        "a": ["pkg"],
        "one": ["pkg", "pkg.c", "pkg.sub.b"],
        "two": ["pkg"],
        "three": ["pkg.sub.b"],
        "path": ["pkg.sub.b"],
        "x": ["pkg.sub"],
        "four": ["pkg.c"],
    }
    assert {module for _, module in importers(upstream)["one"]} == {"pkg.a"}


def test_importers_vote_only_where_they_dropped_the_old_import():
    old = {"pkg/u.py": "from pkg.a import f", "pkg/v.py": "from pkg.a import f", "pkg/gone.py": "from pkg.a import f"}
    new = {"pkg/u.py": "from pkg.b import f", "pkg/v.py": "from pkg.a import f\nfrom pkg.c import f"}
    counted = votes(
        *(SymbolTree(memory_release(files, "pkg", "1")) for files in (old, new)),
        "f",
        frozenset({"pkg.a"}),
    )
    assert counted == {("pkg.b", "f"): 1}


def test_documentation_comments_and_the_own_name_do_not_count_in_a_body():
    plain = "def f(a):\n    return sum(x * 2 for x in a if x is not None and x > 3)"
    told = 'def g(a):\n    """Much text."""\n    # more\n    return sum(x * 2 for x in a if x is not None and x > 3)'
    assert similarity(tokens(plain, "f"), tokens(told, "g")) == 1.0
    assert similarity(tokens("def f(): return 1", "f"), tokens("def g(): return 1", "g")) == 0.0


def test_a_name_takes_the_place_of_one_other_only():
    old = "run(a)\nrun(b)\nstay(c)"
    assert took_places(old, "run(x)\nrun(y)", ["a"], ["x", "y"]) == {}
    assert took_places("run(a)\ngo(a)", "run(x)\ngo(x)", ["a", "b"], ["x", "y"]) == {"a": "x"}
    assert took_places(old, "run(x)", ["a", "b"], ["x"]) == {}
    assert took_places("a: int = 1", "x: int = 1", ["a"], ["x"]) == {}


def test_names_are_similar_up_to_an_ending_or_a_word():
    assert is_similar_name("normalize_advantage", "normalize_advantages")
    assert is_similar_name("ImageProcessor", "imageprocessor")
    assert not is_similar_name("whiten_rewards", "use_transformers_paged")


def test_of_two_candidates_that_are_as_good_none_is_the_best():
    left, right = Candidate("a", {Reason.SAME_NAME}), Candidate("b", {Reason.SAME_NAME})
    assert best([left, right], 1) is None
    right.reasons.add(Reason.COMPATIBLE)
    assert best([left, right], 1) is right
    assert best([left], 6) is None
    assert len({reason.words or reason.name for reason in Reason}) == len(Reason), "equal values would be one reason"
