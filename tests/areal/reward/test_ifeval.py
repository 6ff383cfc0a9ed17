"""The 25 instructions of IFEval, each with texts that follow it and texts that do not; and the reward over a row."""

from __future__ import annotations

import importlib.util
import json

import pytest

from areal.api import ConfigError, FaultError, FaultKind
from areal.reward.ifeval import IFEvalReward
from areal.reward.instructions import INSTRUCTIONS, count_sentences, follows

AT_LEAST, LESS = "at least", "less than"
EXAMPLES = [
    (
        "change_case:capital_word_frequency",
        {"capital_relation": AT_LEAST, "capital_frequency": 2},
        "A BIG day",
        "A big day",
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_relation": LESS, "capital_frequency": 2},
        "ONE day",
        "ONE-TWO and A",
    ),
    ("change_case:english_capital", {}, "ALL LOUD, 1!", "All LOUD"),
    ("change_case:english_capital", {}, "LOUD", "ГРОМКО"),
    ("change_case:english_lowercase", {}, "all quiet, 1.", "All quiet"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, " say IT. Done.", "Done. Say it."),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("combination:two_responses", {}, "one******two******", "one******two******three"),
    ("combination:two_responses", {}, "******a******b", "a************b"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] of [place]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\np. s. More", "Bye. PS More"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S More", "Bye.\nP.S. More"),
    ("detectable_format:constrained_response", {}, "Well. My answer is maybe.", "My answer is perhaps."),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', '{"a": }'),
    ("detectable_format:json_format", {}, "[1]", "Here: [1]"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n  - b", "* a\n- b\n* c"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* a\n**bold**", "a"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b**", "*a* and ** **"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "<< >>\n<title>"),
    ("keywords:existence", {"keywords": ["Fog", "sea"]}, "Sea under fog", "Sea under clouds"),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "the seal", "The SEA"),
    ("keywords:frequency", {"keyword": "sea", "relation": AT_LEAST, "frequency": 2}, "Sea, sea", "sea"),
    ("keywords:frequency", {"keyword": "sea", "relation": LESS, "frequency": 2}, "sea", "sea sea"),
    ("keywords:letter_frequency", {"letter": "a", "let_relation": AT_LEAST, "let_frequency": 3}, "Aa a", "aa"),
    ("keywords:letter_frequency", {"letter": "#", "let_relation": LESS, "let_frequency": 1}, "x", "#"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "weekend"},
        'One.\n\n"Weekend, at last.',
        "One.\n\nA weekend.",
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "one"},
        "One.\n\nTwo.",
        "One.\n\nTwo.\n\nThree.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\na *** b\n***", "a *** *** b"),
    ("length_constraints:number_sentences", {"relation": AT_LEAST, "num_sentences": 2}, "One. Two!", "One, e.g. two."),
    ("length_constraints:number_sentences", {"relation": LESS, "num_sentences": 2}, "Just 3.5 of them", "One? Two"),
    ("length_constraints:number_words", {"relation": AT_LEAST, "num_words": 3}, "it's me", "two words"),
    ("length_constraints:number_words", {"relation": LESS, "num_words": 3}, "two words", "now three words"),
    ("punctuation:no_comma", {}, "No. Thanks.", "No, thanks."),
    ("startend:end_checker", {"end_phrase": "That is all."}, 'So. THAT IS ALL."', "That is all. Bye"),
    ("startend:quotation", {}, ' "quoted" ', '"'),
]


@pytest.mark.parametrize(("name", "arguments", "right", "wrong"), EXAMPLES)
def test_each_instruction_knows_what_follows_it(name, arguments, right, wrong):
    unused = {"language": None, "num_words": None, **arguments}
    assert follows(name, right, unused if "num_words" not in arguments else arguments)
    assert not follows(name, wrong, arguments)


def test_every_public_name_has_an_example():
    assert {name for name, *_ in EXAMPLES} | {"language:response_language"} == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("One", 1),
        ("One. Two.", 2),
        ("Dr. Who met J. R. Tolkien, i.e. once.", 1),
        ('He said "Go!" She went.', 2),
        ("What?! No... yes.", 2),
        ("It costs 3.50 dollars. Really", 2),
        ("So did I. Then it ended.", 2),
        ("...", 0),
    ],
)
def test_sentences_are_counted_by_rules(text, count):
    assert count_sentences(text) == count


@pytest.mark.skipif(importlib.util.find_spec("langdetect") is None, reason="no langdetect: pip install areal[ifeval]")
def test_languages_are_detected():
    assert follows("language:response_language", "Das ist ein kurzer deutscher Satz.", {"language": "de"})
    assert not follows("language:response_language", "This is a short English sentence.", {"language": "de"})


def test_without_a_detector_the_language_is_refused_with_the_way_to_get_one(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "langdetect", None)
    row = {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "de"}]}
    with pytest.raises(ConfigError, match=r"install areal\[ifeval\]"):
        IFEvalReward()("", "Ja.", [], [], **row)


ROW = {
    "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
    "kwargs": [{"num_words": None}, {"relation": "at least", "num_words": 2.0}],
    "key": 1000,
}


@pytest.mark.parametrize(
    ("completion", "all_of_them", "share"),
    [("Two words.", 1.0, 1.0), ("One, two", 0.0, 0.5), ("One,", 0.0, 0.0), ("", 0.0, 0.0), (" \n", 0.0, 0.0)],
)
def test_a_row_is_scored_as_a_whole_or_by_share(completion, all_of_them, share):
    for row in (ROW, {**ROW, "kwargs": json.dumps(ROW["kwargs"])}):
        assert IFEvalReward()("", completion, [], [], **row) == all_of_them
        assert IFEvalReward(scoring="fraction")("", completion, [], [], **row) == share


@pytest.mark.parametrize("completion", ["Sure, here:\nno comma", "no comma\nThat's it, bye", 'a,\n"x"\nb,', "*[x]*"])
def test_loose_forgives_a_first_line_a_last_line_and_asterisks(completion):
    name = "startend:quotation" if '"' in completion else "punctuation:no_comma"
    row = {"instruction_id_list": [name], "kwargs": [{}]}
    assert IFEvalReward(mode="loose")("", completion, [], [], **row) == 1.0
    assert IFEvalReward()("", completion, [], [], **row) == float(completion == "*[x]*")


@pytest.mark.parametrize(
    ("names", "arguments", "why"),
    [
        (["punctuation:nocomma"], [{}], "did you mean 'punctuation:no_comma'"),
        (["keywords:existence"], [{}], "keywords is None, expected list"),
        (["length_constraints:number_words"], [{"num_words": 3, "relation": "around"}], "expected 'at least'"),
        (["length_constraints:number_words"], [{"num_words": "3", "relation": "at least"}], "expected int"),
        (["punctuation:no_comma"], [], "equal length"),
        ([], [], "equal length"),
        (None, None, "equal length"),
        (["punctuation:no_comma"], "[{", "Expecting"),
        (
            ["length_constraints:nth_paragraph_first_word"],
            [{"num_paragraphs": 1, "nth_paragraph": 0, "first_word": "a"}],
            "nth_paragraph is 0",
        ),
    ],
)
def test_a_row_that_makes_no_sense_is_a_fault_of_the_row(names, arguments, why):
    for completion in ("Some text", ""):
        with pytest.raises(FaultError, match=why) as caught:
            IFEvalReward()("", completion, [], [], instruction_id_list=names, kwargs=arguments)
        assert caught.value.kind is FaultKind.DATA_INVALID


@pytest.mark.parametrize("options", [{"scoring": "some"}, {"mode": "relaxed"}])
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError, match="expected one of"):
        IFEvalReward(**options)
