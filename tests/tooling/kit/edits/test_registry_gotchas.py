"""The seventeen ways in which naive LibCST edits damage a registry, each on a registry that provokes it.

Numbers are those of the table that lists them: elements on one line, stolen comments, lost comments, ...
"""

from __future__ import annotations

import difflib

import pytest

from tooling.cli.errors import ConflictError, RegistryShapeError
from tooling.kit.edits import add_entry, find_entry, has_entry, keys, remove_entry
from tooling.kit.kind import RegistryEntry

NEW = RegistryEntry("pkg/registry.py", "mapping", "TABLE", "bb", "pkg.bb:bb")
ELEMENT = RegistryEntry("pkg/registry.py", "sequence", "TABLE", "bb")


def changed_lines(before: bytes, after: bytes) -> list[str]:
    """Lines of the difference, line endings shown."""
    old, new = (text.decode("latin-1").splitlines(keepends=True) for text in (before, after))
    return [line for line in difflib.ndiff(old, new) if line[0] in "+-"]


def assert_one_line_added(source: str, entry: RegistryEntry, line: str, number: int) -> None:
    """One `+` line at that place, nothing on a second run, the same bytes after removal."""
    before = source.encode()
    edit = add_entry(before, entry)
    assert changed_lines(before, edit.source) == [f"+ {line}"]
    assert edit.line == number
    assert edit.source.splitlines(keepends=True)[number - 1].decode() == line
    again = add_entry(edit.source, entry)
    assert (again.source, again.changed, again.line) == (edit.source, False, number)
    assert has_entry(edit.source, entry)
    removed = remove_entry(edit.source, entry)
    assert (removed.source, removed.changed, removed.line) == (before, True, number)


def refusal_of(source: bytes, entry: RegistryEntry = NEW) -> RegistryShapeError:
    with pytest.raises(RegistryShapeError) as caught:
        add_entry(source, entry)
    assert caught.value.fix.startswith("paste this line: ")
    return caught.value


def test_01_a_list_of_several_lines_gets_a_line_and_keeps_its_trailing_comma():
    assert_one_line_added('TABLE = [\n    "aa",\n    "cc",\n]\n', ELEMENT, '    "bb",\n', 3)


def test_02_the_trailing_comment_of_the_last_entry_stays_with_it():
    assert_one_line_added('TABLE = [\n    "aa",  # first\n    "ab",  # second\n]\n', ELEMENT, '    "bb",\n', 4)


def test_03_a_comment_on_its_own_line_at_the_end_stays_at_the_end():
    assert_one_line_added('TABLE = [\n    "aa",\n    # keep sorted\n]\n', ELEMENT, '    "bb",\n', 3)


def test_04_an_empty_list_of_two_lines_gets_one_line():
    source = b"TABLE = [\n]\n"
    assert changed_lines(source, add_entry(source, ELEMENT).source) == ['+     "bb",\n']


def test_04_an_empty_literal_with_a_comment_gets_one_line_indented_like_the_comment():
    assert_one_line_added("TABLE = {\n  # nothing yet\n}\n", NEW, '  "bb": "pkg.bb:bb",\n', 3)


def test_04_an_empty_literal_on_one_line_is_spread_and_closes_up_again():
    source = b"TABLE: dict[str, str] = {}  # filled by areal-new\nOTHER = 1\n"
    edit = add_entry(source, NEW)
    expected = b'TABLE: dict[str, str] = {\n    "bb": "pkg.bb:bb",\n}  # filled by areal-new\nOTHER = 1\n'
    assert (edit.source, edit.line) == (expected, 2)
    assert remove_entry(edit.source, NEW).source == source


def test_05_a_mapping_keeps_its_comments():
    source = 'TABLE = {\n    "aa": "m:aa",  # c1\n    "cc": "m:cc",  # c2\n}\n'
    assert_one_line_added(source, NEW, '    "bb": "pkg.bb:bb",\n', 3)


def test_06_an_annotated_table_is_found():
    source = 'from typing import Final\n\nTABLE: Final[dict[str, str]] = {\n    "aa": "m:aa",\n}\n'
    assert_one_line_added(source, NEW, '    "bb": "pkg.bb:bb",\n', 5)


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ('TABLE = ["a"]\nTABLE += ["b"]\n', 2, "more than once"),
        ('TABLE = ["a"]\nTABLE.append("b")\n', 2, "more than once"),
        ('TABLE = ["a"]\nif X:\n    TABLE = ["b"]\n', 3, "more than once"),
        ('TABLE = ["a"]\n\n\ndef f():\n    global TABLE\n    TABLE = []\n', 5, "more than once"),
        ('import other\n\nTABLE = ["a"] + other.TABLE\n', 3, "put together by an operator"),
        ("TABLE = [name for name in NAMES]\n", 1, "a comprehension"),
        ("TABLE = tuple()\n", 1, "without a single literal"),
        ('TABLE = "a", "b"\n', 1, "a tuple without parentheses"),
        ('if TYPE_CHECKING:\n    TABLE = ["a"]\n', 2, "at the top level"),
        ('TABLE = OTHER = ["a"]\n', 1, "one plain assignment"),
        ('OTHER = ["a"]\n', 1, "is not set"),
        ('TABLE = ["a", NAME]\n', 1, "not a string"),
        ('TABLE = [f"{x}"]\n', 1, "not a string"),
        ('TABLE = ["aa", "cc", "aa"]\n', 1, "twice"),
        ('TABLE = [\n    "aa", "cc",\n    "dd",\n]\n', 2, "share a line"),
        ('TABLE = ["aa",\n         "ab"]\n', 2, "share a line"),
    ],
)
def test_06_any_other_shape_of_sequence_is_refused_with_its_line(source, line, reason):
    error = refusal_of(source.encode(), ELEMENT)
    assert error.where == f"pkg/registry.py:{line}"
    assert reason in error.message
    assert error.fix == 'paste this line: "bb",'


@pytest.mark.parametrize(
    ("source", "line", "reason"),
    [
        ('TABLE = dict(aa="m:aa")\n', 1, "without a single literal"),
        ('TABLE = {\n    "aa": "m:aa",\n    **OTHER,\n}\n', 3, "unpacks"),
        ('TABLE = {"aa": aa}\n', 1, "the value of 'aa' is not a string"),
        ('TABLE = {\n    "aa": "m:aa",\n    prefix + "cc": "m:cc",\n}\n', 3, "a key that is not a string"),
        ('TABLE = {b"aa": "m:aa"}\n', 1, "a key that is not a string"),
        ('TABLE = {"aa": "x"} | OTHER\n', 1, "put together by an operator"),
        ('TABLE = {}\nTABLE["aa"] = "x"\n', 2, "more than once"),
        ('TABLE = OrderedDict([["aa", "x"]])\n', 1, "pair"),
        ('TABLE = ["aa"]\n', 1, "is a list"),
    ],
)
def test_06_any_other_shape_of_mapping_is_refused_with_its_line(source, line, reason):
    error = refusal_of(source.encode())
    assert error.where == f"pkg/registry.py:{line}"
    assert reason in error.message
    assert error.fix == 'paste this line: "bb": "pkg.bb:bb",'


def test_07_star_elements_are_refused():
    assert "unpacks another collection" in refusal_of(b'TABLE = [*base, "a"]\n', ELEMENT).message


def test_08_nothing_inside_functions_or_classes_is_taken_for_the_table():
    inner = 'def build():\n    TABLE = {\n        "zz": "m:zz",\n    }\n    return TABLE\n\n\n'
    source = inner + 'class Holder:\n    TABLE = {\n        "yy": "m:yy",\n    }\n\n\nTABLE = {\n    "aa": "m:aa",\n}\n'
    assert_one_line_added(source, NEW, '    "bb": "pkg.bb:bb",\n', 16)


@pytest.mark.exhaustive
def test_08_a_chain_too_deep_to_be_walked_is_refused_instead_of_ending_the_process():
    branches = "".join(f'    elif name == "n{number}":\n        return {number}\n' for number in range(2000))
    source = f'TABLE = {{\n    "aa": "m:aa",\n}}\n\n\ndef f(name):\n    if name == "n":\n        return 0\n{branches}'
    assert "unreadable" in refusal_of(source.encode()).message


@pytest.mark.sample(1)
@pytest.mark.parametrize("levels", [90, 150, 190])
def test_08_a_value_too_deep_to_be_measured_is_refused_with_its_line(levels):
    error = refusal_of(f"\nTABLE = {{\n    'a': {'[' * levels}{']' * levels},\n}}\n".encode())
    assert error.where.startswith("pkg/registry.py:")


def test_10_removing_an_entry_keeps_the_comments_on_lines_of_their_own():
    source = b'TABLE = {\n    "aa": "m:aa",\n\n    # about bb, by hand\n    "bb": "pkg.bb:bb",  # own\n    # end\n}\n'
    expected = b'TABLE = {\n    "aa": "m:aa",\n\n    # about bb, by hand\n    # end\n}\n'
    assert remove_entry(source, NEW).source == expected


def test_11_notes_in_the_header_stay_above_the_first_statement():
    source = '# SPDX-License-Identifier: MIT\n\n# note\nimport a\n\nTABLE = {\n    "aa": "m:aa",\n}\n'
    assert_one_line_added(source, NEW, '    "bb": "pkg.bb:bb",\n', 8)


def test_12_windows_line_endings_stay():
    source = 'TABLE = {\r\n    "aa": "m:aa",\r\n    "cc": "m:cc",\r\n}\r\n'
    assert_one_line_added(source, NEW, '    "bb": "pkg.bb:bb",\r\n', 3)


@pytest.mark.parametrize(
    "source",
    [
        '\ufeffNAME = "é"; TABLE = {\n    "aa": "é",\n}\n'.encode(),
        '# -*- coding: latin-1 -*-\nNAME = "é"\nTABLE = {  # ü\n    "aa": "é",  # ö\n}\n'.encode("latin-1"),
    ],
    ids=["byte order mark", "latin-1"],
)
def test_12_encodings_and_byte_order_marks_stay(source):
    edit = add_entry(source, NEW)
    assert changed_lines(source, edit.source) == ['+     "bb": "pkg.bb:bb",\n']
    assert remove_entry(edit.source, NEW).source == source


def test_12_a_name_that_the_encoding_lacks_is_escaped():
    source = b'# coding: latin-1\nTABLE = [\n    "aa",\n]\n'
    entry = RegistryEntry("r.py", "sequence", "TABLE", "数")
    edit = add_entry(source, entry)
    assert b'    "\\u6570",\n' in edit.source
    assert keys(edit.source, entry) == ["aa", "数"]


def test_12_an_encoding_that_would_write_other_lines_anew_is_refused():
    """Decoded and encoded again, "\\u0041" is "A": a line that the edit has nothing to do with."""
    source = b"# coding: raw_unicode_escape\nOTHER = '\\u0041'\nTABLE = {\n}\n"
    assert "bytes elsewhere" in refusal_of(source).message
    assert add_entry(source.replace(b"\\u0041", b"A"), NEW).changed


def test_13_what_libcst_does_not_give_back_is_refused():
    error = refusal_of(b'X = 1\n\x0cY = 2\nTABLE = {\n    "aa": "m:aa",\n}\n')
    assert error.where == "pkg/registry.py:2"
    assert "form feed" in error.message


def test_13_a_lone_carriage_return_is_refused():
    assert refusal_of(b'X = 1\rTABLE = {\n    "aa": "m:aa",\n}\n').where == "pkg/registry.py:1"


def test_14_entries_are_compared_by_their_value_not_by_their_spelling():
    source = b"TABLE = {\n    'a' 'a': 'm:aa',\n    'b\\x62': (\n        'pkg.'\n        'bb:bb'\n    ),\n}\n"
    assert add_entry(source, NEW).changed is False
    assert find_entry(source, NEW) == ("pkg.bb:bb", 3)


def test_15_two_entries_one_after_the_other_are_two_entries():
    other = RegistryEntry("pkg/registry.py", "mapping", "TABLE", "ba", "pkg.ba:ba")
    source = b'TABLE = {\n    "aa": "m:aa",\n}\n'
    both = add_entry(add_entry(source, NEW).source, other).source
    assert both == add_entry(add_entry(source, other).source, NEW).source
    assert keys(both, NEW) == ["aa", "ba", "bb"]
    assert remove_entry(remove_entry(both, other).source, NEW).source == source


def test_16_both_lists_of_a_lazy_package_change_or_neither():
    entry = RegistryEntry("pkg/__init__.py", "lazy", "_LAZY", "bb", "pkg.bb")
    source = b'__all__ = [\n    "aa",\n]\n_LAZY = {\n    "aa": "pkg.aa",\n}\n'
    edit = add_entry(source, entry)
    assert changed_lines(source, edit.source) == ['+     "bb",\n', '+     "bb": "pkg.bb",\n']
    assert edit.source.splitlines()[edit.line - 1] == b'    "bb": "pkg.bb",'
    assert remove_entry(edit.source, entry).source == source
    broken = source.replace(b'__all__ = [\n    "aa",\n]', b'__all__ = ["aa"] + base.__all__')
    assert "__all__ is put together by an operator" in refusal_of(broken, entry).message


@pytest.mark.parametrize(
    ("source", "line"),
    [(b'X = 1\nTABLE = = {\n    "aa": "m:aa",\n}\n', 2), (b"X = (\n", 1), (b"X = 1\nY = \x00\n", 1)],
)
def test_17_a_file_that_is_no_python_is_unreadable(source, line):
    error = refusal_of(source)
    assert "unreadable" in error.message
    assert error.where == f"pkg/registry.py:{line}"


@pytest.mark.parametrize("source", [b"# coding: nonsense\n", b"TABLE = '\xff'\n", "# coding: ascii\n# é\n".encode()])
def test_17_a_file_in_an_unknown_or_wrong_encoding_is_unreadable(source):
    assert "unreadable" in refusal_of(source).message


def test_a_key_with_another_value_is_a_conflict_in_both_directions():
    source = b'TABLE = {\n    "aa": "m:aa",\n    "bb": "somebody.else:bb",\n}\n'
    for edit in (add_entry, remove_entry):
        with pytest.raises(ConflictError) as caught:
            edit(source, NEW)
        assert caught.value.where == "pkg/registry.py:3"
        assert "'somebody.else:bb'" in caught.value.message
    assert not has_entry(source, NEW)
    assert find_entry(source, NEW) == ("somebody.else:bb", 3)
    assert keys(source, NEW) == ["aa", "bb"]


def test_removing_what_is_not_there_is_no_change():
    source = b'TABLE = {\n    "aa": "m:aa",\n}\n'
    edit = remove_entry(source, NEW)
    assert (edit.source, edit.changed, edit.line) == (source, False, 0)
