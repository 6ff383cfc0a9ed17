"""Lines of documents between markers: sorted, below the head of a table, refused where the markers are not a pair."""

from __future__ import annotations

import pytest

from tooling.cli.errors import ConflictError, RegistryShapeError, UsageError
from tooling.kit.edits import add_entry, has_entry, keys, remove_entry
from tooling.kit.kind import DocumentEntry

PAGE = """# Extensions

| `outside` | not ours |

<!-- areal-new:rewards -->
| `name` | what it does |
| :--- | ---: |
| `exact` | compares `a` and `b` |
| `regex` | finds a pattern |
<!-- /areal-new:rewards -->

<!-- areal-new:datasets -->
<!-- /areal-new:datasets -->
"""
LINE = "| `math` | equal formulas |"


def add_document_line(source, *entry):
    return add_entry(source, DocumentEntry(*entry))


def remove_document_line(source, *entry):
    return remove_entry(source, DocumentEntry(*entry))


def test_a_line_goes_to_its_sorted_place_below_the_head_of_the_table():
    edit = add_document_line(PAGE.encode(), "docs/x.md", "rewards", "math", LINE)
    assert edit.source.decode() == PAGE.replace("| `regex`", f"{LINE}\n| `regex`")
    assert (edit.changed, edit.line) == (True, 9)
    first = add_document_line(PAGE.encode(), "docs/x.md", "rewards", "a", "| `a` | first |")
    assert first.source.decode() == PAGE.replace("| `exact`", "| `a` | first |\n| `exact`")
    last = add_document_line(PAGE.encode(), "docs/x.md", "rewards", "z", "| `z` | last |")
    assert last.line == 10
    assert keys(last.source, DocumentEntry("docs/x.md", "rewards", "", "")) == ["exact", "regex", "z"]


def test_an_empty_section_gets_its_first_line():
    edit = add_document_line(PAGE.encode(), "docs/x.md", "datasets", "gsm8k", "- `gsm8k`: sums")
    assert edit.line == 13
    assert has_entry(edit.source, DocumentEntry("docs/x.md", "datasets", "gsm8k", "- `gsm8k`: sums"))
    assert (
        remove_document_line(edit.source, "docs/x.md", "datasets", "gsm8k", "- `gsm8k`: sums").source == PAGE.encode()
    )


def test_an_unsorted_section_grows_at_its_end_and_says_so():
    page = "<!-- areal-new:s -->\n- `b`\n- `a`\n\n<!-- /areal-new:s -->\n"
    edit = add_document_line(page.encode(), "x.md", "s", "aa", "- `aa`")
    assert edit.source.decode() == page.replace("- `a`\n", "- `a`\n- `aa`\n")
    assert "not sorted" in edit.note


def test_another_line_for_the_key_is_a_conflict_in_both_directions():
    for edit in (add_document_line, remove_document_line):
        with pytest.raises(ConflictError) as caught:
            edit(PAGE.encode(), "docs/x.md", "rewards", "exact", "| `exact` | something else |")
        assert caught.value.where == "docs/x.md:8"
    assert not has_entry(PAGE.encode(), DocumentEntry("docs/x.md", "rewards", "exact", "| `exact` | something else |"))


def test_removing_an_absent_line_is_no_change():
    edit = remove_document_line(PAGE.encode(), "docs/x.md", "rewards", "math", LINE)
    assert (edit.source, edit.changed, edit.line) == (PAGE.encode(), False, 0)


@pytest.mark.parametrize(
    ("page", "line", "reason"),
    [
        ("nothing\n", 1, "0 opening, 0 closing"),
        ("<!-- areal-new:s -->\n", 1, "1 opening, 0 closing"),
        ("<!-- /areal-new:s -->\n<!-- areal-new:s -->\n", 2, "1 opening, 1 closing"),
        ("<!-- areal-new:s -->\n<!-- /areal-new:s -->\n" * 2, 4, "2 opening, 2 closing"),
        ("<!-- areal-new:s -->\n<!-- areal-new:t -->\n<!-- /areal-new:s -->\n", 2, "holds a marker of section t"),
        ("<!-- areal-new:s -->\n- `k` 1\n- `k` 2\n<!-- /areal-new:s -->\n", 3, "two lines"),
    ],
)
def test_markers_that_are_no_pair_are_refused_with_the_line_to_paste(page, line, reason):
    with pytest.raises(RegistryShapeError) as caught:
        add_document_line(page.encode(), "docs/x.md", "s", "k", "- `k` new")
    assert caught.value.where == f"docs/x.md:{line}"
    assert reason in caught.value.message
    assert "- `k` new" in caught.value.fix


def test_a_document_that_is_not_utf8_is_refused():
    with pytest.raises(RegistryShapeError) as caught:
        add_document_line(b"\n\xff\n", "docs/x.md", "s", "k", "- `k`")
    assert caught.value.where == "docs/x.md:2"


@pytest.mark.parametrize(
    ("section", "key", "line"),
    [
        ("s", "k", "- `k`\n- `l`"),
        ("s", "k", "- `other` `k`"),
        ("s", "k", "- k"),
        ("s", "k", "- `k` <!-- /areal-new:s -->"),
        ("s", "k", "- `k` \udcff"),
        ("s -->", "k", "- `k`"),
    ],
)
def test_what_is_not_one_line_of_that_key_is_wrong_usage(section, key, line):
    with pytest.raises(UsageError):
        add_document_line(PAGE.encode(), "docs/x.md", section, key, line)
