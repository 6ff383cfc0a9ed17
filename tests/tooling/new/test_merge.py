"""Merging three versions of a file: edits of both sides survive, and what cannot be merged stays the user's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.cli.errors import UsageError
from tooling.kit.edits.text import conflict_lines
from tooling.new.merging import Labels, three_way

BASE = b"one\ntwo\nthree\nfour\nfive\nsix\n"


def test_changes_in_different_places_are_both_kept():
    ours, theirs = BASE.replace(b"one", b"ONE"), BASE.replace(b"six", b"SIX")
    assert three_way(BASE, ours, theirs) == (b"ONE\ntwo\nthree\nfour\nfive\nSIX\n", 0)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_markers_are_found_where_a_merge_left_them_and_only_there(end):
    base, ours, theirs = (text.replace(b"\n", end) for text in (BASE, BASE.replace(b"two", b"2"), b"x\ny\n"))
    merged = three_way(base, ours, theirs)
    assert merged.conflicts
    assert conflict_lines(merged.content)
    assert not any(map(conflict_lines, (base, ours, theirs, b"", b"=======\n>>>>>>> x\n<<<<<<< y\n", b"a <<<<<<< b\n")))


def test_the_same_change_on_both_sides_is_no_conflict():
    changed = BASE.replace(b"two", b"2")
    assert three_way(BASE, changed, changed) == (changed, 0)


def test_lines_changed_on_both_sides_stand_between_labelled_markers():
    merged = three_way(BASE, BASE.replace(b"two", b"mine"), BASE.replace(b"two", b"new"), Labels("me", "old", "it"))
    assert merged.conflicts == 1
    assert merged.content == (
        b"one\n<<<<<<< me\nmine\n||||||| old\ntwo\n=======\nnew\n>>>>>>> it\nthree\nfour\nfive\nsix\n"
    )


def test_each_conflicting_place_is_counted():
    base = b"".join(b"line %d\n" % number for number in range(40))
    ours = base.replace(b"line 3\n", b"a\n").replace(b"line 30\n", b"b\n")
    theirs = base.replace(b"line 3\n", b"c\n").replace(b"line 30\n", b"d\n")
    assert three_way(base, ours, theirs).conflicts == 2


def test_converted_line_ends_are_kept_and_are_no_conflict():
    ours = BASE.replace(b"one", b"ONE").replace(b"\n", b"\r\n")
    merged = three_way(BASE, ours, BASE.replace(b"six", b"SIX"))
    assert merged == (b"ONE\r\ntwo\r\nthree\r\nfour\r\nfive\r\nSIX\r\n", 0)
    only_converted = BASE.replace(b"\n", b"\r\n")
    assert three_way(BASE, only_converted, BASE + b"seven\n") == (only_converted + b"seven\r\n", 0)


def test_a_binary_file_changed_on_both_sides_stays_ours_and_is_a_conflict():
    assert three_way(b"\0base", b"\0ours", b"\0theirs") == (b"\0ours", 1)
    assert three_way(b"\0base", b"\0base", b"\0theirs") == (b"\0theirs", 0)


def test_a_missing_last_line_feed_survives():
    assert three_way(b"a\nb\nc\nd", b"A\nb\nc\nd", b"a\nb\nc\nd") == (b"A\nb\nc\nd", 0)
    assert three_way(b"a\nb\nc\nd", b"A\nb\nc\nd", b"a\nb\nc\nD") == (b"A\nb\nc\nD", 0)


def test_user_settings_of_git_do_not_change_the_markers(tmp_path, monkeypatch):
    (tmp_path / ".gitconfig").write_text("[merge]\n\tconflictstyle = merge\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert b"|||||||" in three_way(BASE, BASE.replace(b"two", b"x"), BASE.replace(b"two", b"y")).content


def test_without_git_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="`git` program was not found"):
        three_way(BASE, BASE.replace(b"two", b"x"), BASE.replace(b"two", b"y"))


lines = st.lists(st.sampled_from([b"a", b"b", b"", b"\xc3\xa9", b"<<<<<<<"]), max_size=6).map(
    lambda parts: b"".join(part + b"\n" for part in parts)
)


@given(base=lines, change=lines)
def test_a_change_of_one_side_alone_is_taken_as_it_is(base, change):
    assert three_way(base, change, base) == (change, 0)
    assert three_way(base, base, change) == (change, 0)
