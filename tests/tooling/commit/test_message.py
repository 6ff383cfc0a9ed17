"""A message is taken apart as Conventional Commits 1.0 says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.commit.message import cleaned, parse


def test_a_header_has_type_scope_mark_and_subject():
    message = parse("feat(api,utils)!: drop the old field (#12)")
    assert (message.type, message.scopes, message.marked) == ("feat", ("api", "utils"), True)
    assert message.subject == "drop the old field (#12)"


@pytest.mark.parametrize("token", ["BREAKING CHANGE", "BREAKING-CHANGE"])
def test_a_breaking_change_is_announced_by_either_footer(token):
    assert parse(f"fix: x\n\nbody\n\n{token}: the field is gone").breaking


@pytest.mark.parametrize("text", ["feat: x", "feat: x\n\nbreaking change: y", "feat: x\n\nBREAKING CHANGES: y"])
def test_nothing_else_announces_one(text):
    assert not parse(text).breaking


def test_footers_are_the_last_paragraphs_and_may_have_several_lines():
    message = parse("fix: x\n\nNote: this is body.\n\nmore body\n\nRefs: 1\n  and 2\nCloses #3\nReviewed-by: Z")
    found = [(footer.token, footer.value, footer.line) for footer in message.footers]
    assert found == [("Refs", "1\nand 2", 7), ("Closes", "#3", 9), ("Reviewed-by", "Z", 10)]
    assert [text for _, text in message.body if text] == ["Note: this is body.", "more body"]


def test_the_text_of_a_breaking_change_may_have_paragraphs():
    message = parse("feat: x\n\nBREAKING CHANGE: one\n\ntwo\n\nRefs: 3")
    assert [(footer.token, footer.value) for footer in message.footers] == [
        ("BREAKING CHANGE", "one\n\ntwo"),
        ("Refs", "3"),
    ]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("feat: x", "conventional"),
        ('Revert "feat: x"', "revert"),
        ("Merge branch 'a' into b", "merge"),
        ("Merge pull request #3 from a/b", "merge"),
        ("fixup! feat: x", "fixup"),
        ("squash! feat: x", "fixup"),
        ("amend! feat: x", "fixup"),
        ("Merge sort is faster", "other"),
        ("fix:x", "other"),
        ("feat (api): x", "other"),
        ("", "empty"),
        ("\n\n", "empty"),
    ],
)
def test_every_message_is_of_one_kind(text, kind):
    assert parse(text).kind == kind


def test_a_commit_with_two_parents_is_a_merge_whatever_it_says():
    assert parse("my words", merge=True).kind == "merge"


def test_comments_and_what_git_shows_below_the_scissors_are_no_part_of_a_message():
    text = "feat: x\n# comment\n\nbody\n# ------------------------ >8 ------------------------\ndiff --git a b\n+ y\n"
    assert parse(cleaned(text)).lines == ("feat: x", "", "body")


def test_the_scissors_line_says_which_character_comments_begin_with():
    text = "feat: x\n\n#12 is closed\n; comment\n; ------------------------ >8 ------------------------\ndiff\n"
    assert parse(cleaned(text)).lines == ("feat: x", "", "#12 is closed")


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_no_text_breaks_the_parser(text):
    message = parse(cleaned(text))
    assert all(1 <= footer.line <= len(message.lines) for footer in message.footers)
