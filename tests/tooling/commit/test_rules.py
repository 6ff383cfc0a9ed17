"""What is wrong with a message, and how to put it right."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.commit.message import parse
from tooling.commit.rules import problems
from tooling.commit.settings import TYPES, CommitSettings, Scope

TABLE = CommitSettings(scopes={"tree-attn": Scope(aliases=("tree",)), "api": Scope()}, unknown_scope="error")


def rules(text, settings=CommitSettings(), **how):  # noqa: B008 - a frozen value
    return {(each.rule, each.severity) for each in problems(parse(text), settings, **how)}


def only(text, settings=CommitSettings()):  # noqa: B008 - a frozen value
    (found,) = problems(parse(text), settings)
    return found


@pytest.mark.parametrize("word", list(TYPES))
def test_every_type_of_the_project_is_accepted(word):
    assert rules(f"{word}(api): keep x\n\nRefs: 1") == set()


@pytest.mark.parametrize(
    "text",
    [
        "feat!: drop x",
        "feat(api)!: drop x\n\nBREAKING CHANGE: it is gone",
        "fix(v2/awex): keep y",
        "fix(api,utils): keep y",
        'Revert "feat: x"\n\nThis reverts commit 0123456789.',
        "Merge branch 'main' into topic",
        "fixup! anything",
        "fix: stop at ...",
        "fix: a parameter is renamed for sure only by evidence",
        "test: generated units train together",
        "docs: upgrading dependencies",
        "fix: reports that cannot be printed, nothing to watch",
        "feat: checks to run before a release",
        "test(models): tests of the parser",
    ],
)
def test_what_conforms_has_no_problem(text):
    assert rules(text) == set()


@pytest.mark.parametrize(
    ("text", "rule", "fix"),
    [
        ("fix:x", "header-format", "write `fix: x`"),
        ("feat (api): x", "header-format", "write `feat(api): x`"),
        ("[Feat] add x", "header-format", "write `feat: add x`"),
        ("Update README", "header-format", "begin with a type"),
        ("feature: x", "type-unknown", "write `feat`"),
        ("refacotr: x", "type-unknown", "write `refactor`"),
        ("fix(): x", "scope-empty", "name one"),
        ("fix(a b): x", "scope-format", "use letters"),
        ("fix: y.", "subject-full-stop", "remove"),
        ("fix: added a test", "imperative", "write 'add'"),
        ("fix: adds tests", "imperative", "write 'add'"),
        ("fix: fixing the parser", "imperative", "write 'fix'"),
        ("fix: wrote the parser", "imperative", "write 'write'"),
        ("fix: x\nbody", "body-blank-line", "insert"),
        ("fix: x\n\nbreaking change: y", "breaking-case", "BREAKING CHANGE"),
        ("fix: x\n\nbody\nBREAKING CHANGE: y", "footer-blank-line", "insert"),
        ("fix: x\n\nBREAKING CHANGE:", "breaking-empty", "say what breaks"),
        ("fix: x\x1b[31m", "header-characters", "remove"),
        ("", "empty", "say what"),
    ],
)
def test_each_error_says_how_to_put_it_right(text, rule, fix):
    found = only(text)
    assert (found.rule, found.severity) == (rule, "error")
    assert fix in found.fix


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Feat: x", "type-case"),
        ("feat: Add x", "subject-case"),
        ("fix: fix x", "subject-repeats-type"),
        ("revert: x", "revert-refs"),
        ("fix: x\n\nReviewed by: Z", "footer-token"),
        ("fix: x\n\n" + "word " * 20, "body-width"),
    ],
)
def test_matters_of_taste_are_warnings(text, rule):
    assert rules(text) == {(rule, "warning")}


def test_a_header_may_have_72_characters_and_the_number_of_a_squash_merge():
    header = "fix: " + "x" * 67
    assert rules(f"{header} (#1234)") == set()
    assert only(f"{header}x").fix.startswith("shorten it by 1")


@pytest.mark.parametrize("line", ["see https://example.org/" + "x" * 80, "    " + "code " * 20, "> " + "said " * 20])
def test_links_code_and_quotes_are_not_wrapped(line):
    assert rules(f"fix: x\n\n{line}") == set()


def test_code_between_fences_and_footers_are_not_wrapped():
    long = "word " * 20
    assert rules(f"fix: x\n\n```\n{long}\n```\n\nRefs: {long}") == set()


def test_a_scope_that_the_table_does_not_have_is_refused_with_the_nearest():
    assert only("fix(apis): x", TABLE).fix == "did you mean 'api'?"


@pytest.mark.parametrize("word", ["tree", "tree_attn", "Tree-Attn"])
def test_another_word_for_a_scope_is_mentioned(word):
    found = only(f"fix({word}): x", TABLE)
    assert (found.rule, found.fix) == ("scope-alias", "write `(tree-attn)`")


def test_a_forgotten_fixup_in_a_range_is_an_error():
    assert rules("fixup! fix: x", final=True) == {("fixup", "error")}


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_no_text_breaks_the_rules(text):
    found = problems(parse(text), TABLE)
    assert all(each.fix and each.message for each in found)
