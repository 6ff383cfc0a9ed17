"""Adding and then removing an entry gives the same bytes: random tables, comments, quotes, indentation and endings."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.kit.edits import add_entry, keys, remove_entry
from tooling.kit.kind import DocumentEntry, RegistryEntry

NAMES = st.text("abcXYZ019_.é-", min_size=1, max_size=6)
COMMENTS = st.text("ab ,]}\"'(#é", max_size=8).map(lambda text: f"# {text}".rstrip())
BRACKETS = {
    "mapping": [("{", "}"), ("OrderedDict({", "})"), ("OrderedDict([", "])"), ("dict(((", ")))")],
    "sequence": [("[", "]"), ("(", ")"), ("{", "}"), ("frozenset({", "})"), ("tuple([", "])"), ("set((", "))")],
}


@st.composite
def tables(draw) -> tuple[bytes, RegistryEntry]:
    """A module with a table of several lines, and an entry that it lacks."""
    shape = draw(st.sampled_from(["mapping", "sequence"]))
    opening, closing = draw(st.sampled_from(BRACKETS[shape]))
    names = draw(st.lists(NAMES, min_size=2, max_size=7, unique=True))
    key, present = names[0], names[1:]
    if draw(st.booleans()):
        present.sort()
    quote, indent = draw(st.sampled_from("\"'")), draw(st.sampled_from(["    ", "  ", "\t", "        "]))
    lines = [f"T{draw(st.sampled_from(['', ': object']))} = {opening}{draw(trailing())}"]
    for number, name in enumerate(present):
        lines += [f"{indent}{comment}" for comment in draw(st.lists(COMMENTS, max_size=2))]
        lines += [""] * draw(st.integers(0, 1))
        last = number == len(present) - 1
        comma = "" if last and (len(present) > 1 or "((" not in opening) and draw(st.booleans()) else ","
        if len(present) == 1 and opening.endswith("("):
            comma = ","
        element = rendered(shape, opening, f"{quote}{name}{quote}", f"{quote}m:{name}{quote}")
        lines.append(f"{indent}{element}{comma}{draw(trailing())}")
    lines += [f"{indent}{comment}" for comment in draw(st.lists(COMMENTS, max_size=2))]
    lines.append(f"{closing}{draw(trailing())}")
    module = ["# header", "", "import os", "", *lines, "", "OTHER = {", '    "a": 1,', "}", ""]
    ending, encoding = draw(st.sampled_from(["\n", "\r\n"])), draw(st.sampled_from(["utf-8", "utf-8-sig"]))
    entry = RegistryEntry("r.py", shape, "T", key, f"m:{key}" if shape == "mapping" else "")
    return ending.join(module).encode(encoding), entry


def trailing() -> st.SearchStrategy[str]:
    return st.one_of(st.just(""), COMMENTS.map(lambda comment: f"  {comment}"))


def rendered(shape: str, opening: str, key: str, value: str) -> str:
    if shape == "sequence":
        return key
    return f"{key}: {value}" if opening.endswith("{") else f"({key}, {value})"


def comments_of(source: bytes) -> list[str]:
    return [t.string for t in tokenize.tokenize(io.BytesIO(source).readline) if t.type == tokenize.COMMENT]


@pytest.mark.exhaustive
@settings(max_examples=80)
@given(tables())
def test_a_table_of_several_lines_comes_back_byte_for_byte(case):
    source, entry = case
    before = keys(source, entry)
    edit = add_entry(source, entry)
    assert sorted(keys(edit.source, entry)) == sorted([*before, entry.key])
    assert comments_of(edit.source) == comments_of(source)
    assert len(edit.source.splitlines()) == len(source.splitlines()) + 1
    assert ast.parse(edit.source)
    again = add_entry(edit.source, entry)
    assert (again.source, again.changed, again.line) == (edit.source, False, edit.line)
    assert remove_entry(edit.source, entry).source == source


@settings(max_examples=50)
@given(
    st.lists(NAMES, min_size=1, max_size=5, unique=True),
    st.sampled_from([("[", "]"), ("(", ")"), ("{", "}"), ("frozenset({", "})"), ("list((", "))")]),
    st.sampled_from(["", ","]),
    st.sampled_from([", ", ",", " ,  "]),
)
def test_a_literal_on_one_line_comes_back_byte_for_byte(names, brackets, last, comma):
    key, *present = names
    if not present and brackets[0].endswith("{"):
        present = ["other"] if key != "other" else ["another"]
    if len(present) < 2 and brackets[0].endswith("("):
        last = "," if present else ""
    listed = comma.join(f'"{name}"' for name in present) + (last if present else "")
    source = f"T = {brackets[0]}{listed}{brackets[1]}  # note\nX = 1\n".encode()
    entry = RegistryEntry("r.py", "sequence", "T", key)
    edit = add_entry(source, entry)
    assert sorted(keys(edit.source, entry)) == sorted([*present, key])
    assert remove_entry(edit.source, entry).source == source


@settings(max_examples=50)
@given(
    st.lists(NAMES.filter(lambda name: "`" not in name), min_size=1, max_size=6, unique=True),
    st.sampled_from(["| `{}` | what it does |", "- `{}`: what `it` does"]),
    st.sampled_from([[], ["| name | what |", "| --- | --- |"], ["Some prose.", ""], ["", ""]]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_a_line_of_a_document_comes_back_byte_for_byte(names, form, head, ending, ordered):
    key, *present = names
    rows = [form.format(name) for name in (sorted(present) if ordered else present)]
    lines = ["# Page", "<!-- areal-new:units -->", *head, *rows, "<!-- /areal-new:units -->", "", "`zzz` end", ""]
    source = ending.join(lines).encode()
    line = form.format(key)
    entry = DocumentEntry("docs/page.md", "units", key, line)
    edit = add_entry(source, entry)
    assert edit.source.split(ending.encode())[edit.line - 1].decode() == line
    assert edit.source.count(b"\n") == source.count(b"\n") + 1
    assert add_entry(edit.source, entry).changed is False
    assert remove_entry(edit.source, entry).source == source
