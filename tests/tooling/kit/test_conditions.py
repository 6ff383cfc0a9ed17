"""When a question is asked, in words; and answers that nobody asked for."""

from __future__ import annotations

import pytest

from tooling.cli.errors import UsageError
from tooling.kit.template.questions import Question, condition, json_schema, occasion, refuse_unasked


@pytest.mark.parametrize(
    ("when", "short"),
    [
        ("{{ style == 'regex' }}", "style regex"),
        ("style == 'regex'", "style regex"),
        ("{{ count == 3 }}", "count 3"),
        ("{{ style in ['a', 'b'] }}", "style a or b"),
        ("{{ style != 'a' }}", "style other than a"),
        ("{{ style not in ('a', 'b') }}", "style other than a or b"),
        ("{{ style == '' }}", "depends on other answers"),
        ("{{ style == other }}", "depends on other answers"),
        ("{{ style | length > 3 }}", "depends on other answers"),
        ("{% if style %}yes{% endif %}", "depends on other answers"),
        ("{{ a }}{{ b }}", "depends on other answers"),
        (True, ""),
        (False, ""),
    ],
)
def test_a_condition_has_a_short_form_or_says_that_it_depends(when, short):
    assert occasion(when) == short


def test_the_whole_condition_is_the_expression_without_braces():
    assert condition("{{ style | length > 3 }}") == "style | length > 3"
    assert condition("{{ a }}{{ b }}") == "{{ a }}{{ b }}"


QUESTIONS = [
    Question("style", default="exact"),
    Question("pattern", default=".", when="{{ style == 'regex' }}"),
    Question("literal", default="", when=False),
]


def test_an_answer_that_is_not_asked_for_is_refused_with_the_condition():
    refuse_unasked(QUESTIONS, ["style", "pattern"], {"style": "regex"})
    refuse_unasked(QUESTIONS, [], {"style": "exact"})
    with pytest.raises(UsageError, match="is asked only when style == 'regex'") as caught:
        refuse_unasked(QUESTIONS, ["pattern"], {"style": "exact"})
    assert (caught.value.where, bool(caught.value.fix)) == ("pattern", True)


def test_an_answer_that_the_template_works_out_is_refused():
    with pytest.raises(UsageError, match="never asked") as caught:
        refuse_unasked(QUESTIONS, ["literal"], {"style": "regex"})
    assert caught.value.where == "literal"


def test_the_schema_says_when_a_question_is_asked():
    properties = json_schema("rule", QUESTIONS)["properties"]
    assert properties["pattern"]["description"] == "(asked only when style == 'regex')"
    assert "literal" not in properties
