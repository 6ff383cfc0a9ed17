"""Verdicts of a judge in every agreed form: what is a score, and what is an error."""

from __future__ import annotations

import pytest

from areal.api import ConfigError
from areal.reward.judge_verdict import UnreadableVerdictError, VerdictForm

YES = {"kind": "regex", "pattern": r"Verdict: (\w+)", "scale": 1, "labels": {"yes": 1.0, "no": 0.0}}


@pytest.mark.parametrize(
    ("form", "text", "score"),
    [
        ({"kind": "number"}, "I saw 3 errors, so: 7", 0.7),
        ({"kind": "number"}, "**7.5**.", 0.75),
        ({"kind": "number", "labels": {"Good": 10, "bad": 0}}, "Hm.\n**good**", 1.0),
        ({"kind": "json"}, 'x {"score": 2} {"why": {"a": 1}, "score": 7} y', 0.7),
        ({"kind": "json", "key": "n"}, '```json\n{"n": "7"}\n```', 0.7),
        ({"kind": "boxed"}, r"\boxed{3} no, \boxed{7}", 0.7),
        (YES, "Verdict: no\nVerdict: YES", 1.0),
        ({"kind": "regex", "pattern": r"= (\d+)", "scale": 4}, "= 3", 0.75),
    ],
)
def test_the_last_verdict_of_the_form_counts(form, text, score):
    assert VerdictForm(**form).read(text) == pytest.approx(score)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"kind": "number"}, "no idea"),
        ({"kind": "number"}, ""),
        ({"kind": "number"}, "11"),
        ({"kind": "number"}, "-3"),
        ({"kind": "number"}, "7 of 10 apples, 12"),
        ({"kind": "json"}, '{"score": true}'),
        ({"kind": "json"}, '{"score": null}'),
        ({"kind": "json"}, '{"score": 7'),
        ({"kind": "json"}, "{" * 10**5),
        ({"kind": "json"}, '{"rating": 7}'),
        ({"kind": "boxed"}, r"\boxed{seven}"),
        ({"kind": "boxed"}, r"\boxed{7"),
        (YES, "Verdict: perhaps"),
        (YES, "yes"),
    ],
)
def test_anything_else_is_an_error_and_no_zero(form, text):
    with pytest.raises(UnreadableVerdictError, match=r"expected a (number|verdict)"):
        VerdictForm(**form).read(text)


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"kind": "words"}, "parse is 'words'"),
        ({"scale": 0}, "scale is 0"),
        ({"kind": "regex"}, "a pattern belongs to"),
        ({"pattern": "(x)"}, "a pattern belongs to"),
        ({"kind": "regex", "pattern": "("}, "not a regular expression"),
        ({"kind": "regex", "pattern": "x"}, "has 0 groups"),
        ({"kind": "number", "labels": {"good": 11}}, "labels is"),
    ],
)
def test_forms_that_make_no_sense_are_refused(form, why):
    with pytest.raises(ConfigError, match=why):
        VerdictForm(**form)


def test_the_judge_is_told_how_to_end():
    assert "SCORE: n" in VerdictForm().ending
    assert '{"points": n}' in VerdictForm(kind="json", key="points").ending
    assert "good, or bad" in VerdictForm(kind="number", labels={"good": 1, "bad": 0}).ending
    assert VerdictForm(**YES).ending == ""
