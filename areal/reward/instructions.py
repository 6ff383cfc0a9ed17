r"""The 25 verifiable instructions of IFEval (Zhou et al. 2023, arXiv:2311.07911), by their public names and arguments.

    follows("punctuation:no_comma", "No, thanks.", {})                                           -> False
    follows("length_constraints:number_words", "Two words", {"relation": "at least", "num_words": 2})   -> True
    follows("punctuation:nocomma", ...)                                             -> ValueError: the nearest name

An own implementation of the published definitions. It differs from the original in three ways, none of which needs a
download: sentences are split by rules (below) and not by a trained splitter; keywords are texts and not regular
expressions; and the two instructions on English letters test for letters of the English alphabet (nine in ten) and not
for the detected language. `language:response_language` needs the package langdetect, and says so when it is absent.

A sentence ends at ".", "!" or "?", with any closing quotes and brackets, before a blank or the end; not after common
abbreviations, single capital letters, or where a lower-case letter follows a full stop.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_ABBREVIATIONS: Final = frozenset(
    {"a.m", "approx", "co", "corp", "dept", "dr", "e.g", "est", "etc", "fig", "gen", "gov", "hon", "i.e", "inc", "jr"}
    | {"ltd", "mr", "mrs", "ms", "no", "p.m", "p.p.s", "p.s", "ph.d", "pp", "prof", "rev", "sen", "sr", "st", "u.k"}
    | {"u.s", "vol", "vs"}
)
_SENTENCE_END: Final = re.compile(r"([.!?]+)[\"'\u201d\u2019)\]*]*(?=\s|$)")
_WORD: Final = re.compile(r"\w+")
_TOKEN: Final = re.compile(r"[^\W_]+(?:[-'\u2019.][^\W_]+)*")
_ANSWERS: Final = tuple(f"My answer is {word}." for word in ("yes", "no", "maybe"))
_ENGLISH_SHARE: Final = 0.9


def follows(name: str, text: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a text follows one instruction; arguments that are None count as absent.

    Raises ValueError for an unknown name and for arguments that are missing or make no sense.
    """
    if name not in INSTRUCTIONS:
        hint = did_you_mean(name, INSTRUCTIONS)
        raise ValueError(f"instruction {name!r} is unknown: {hint or 'expected one of the 25 names of IFEval'}")
    check, wanted = INSTRUCTIONS[name]
    given = {key: value for key, value in arguments.items() if value is not None}
    values = []
    for key, kind in wanted.items():
        value = given.get(key)
        if key == "nth_paragraph" and isinstance(value, int) and value < 1:
            raise ValueError(f"instruction {name!r}: nth_paragraph is {value}, expected at least 1")
        if isinstance(value, float) and value.is_integer() and kind is int:
            value = int(value)  # tables without a type for whole numbers make floats of them
        if not isinstance(value, kind) or isinstance(value, bool) or value in ("", []):
            raise ValueError(f"instruction {name!r}: {key} is {given.get(key)!r}, expected {kind.__name__}")
        values.append(value)
    return bool(check(text, *values))


def compare(count: int, relation: str, bound: int) -> bool:
    """Return whether a count is "at least" or "less than" a bound."""
    if relation not in ("at least", "less than"):
        raise ValueError(f"relation is {relation!r}, expected 'at least' or 'less than'")
    return count >= bound if relation == "at least" else count < bound


def count_sentences(text: str) -> int:
    """Return the number of sentences, by the rules at the top."""
    count, start = 0, 0
    for match in _SENTENCE_END.finditer(text):
        before = text[start : match.start()].split()
        rest = text[match.end() :].lstrip()
        if not match[1].strip(".") and before and rest:
            word = before[-1].lower().lstrip("(\"'")
            initial = len(word) == 1 and before[-1][-1].isupper() and word != "i"
            if word in _ABBREVIATIONS or initial or rest[0].islower():
                continue
        if _WORD.search(text[start : match.end()]):
            count += 1
        start = match.end()
    return count + bool(_WORD.search(text[start:]))


# ------------------------------------------------------------------------------------------------- keywords, language


def keywords_exist(text: str, keywords: list[str]) -> bool:
    return all(word.lower() in text.lower() for word in keywords)


def keyword_frequency(text: str, keyword: str, relation: str, frequency: int) -> bool:
    return compare(text.lower().count(keyword.lower()), relation, frequency)


def no_forbidden_words(text: str, forbidden: list[str]) -> bool:
    return not any(re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) for word in forbidden)


def letter_frequency(text: str, letter: str, relation: str, frequency: int) -> bool:
    if len(letter) != 1:
        raise ValueError(f"letter is {letter!r}, expected one character")
    return compare(text.lower().count(letter.lower()), relation, frequency)


def in_language(text: str, language: str) -> bool:
    try:
        from langdetect import DetectorFactory, LangDetectException, detect
    except ImportError as error:
        raise ConfigError(
            "the instruction language:response_language needs the package langdetect, which is not installed; "
            "install areal[ifeval], or leave rows with it out"
        ) from error
    DetectorFactory.seed = 0  # it draws samples of the text
    try:
        return bool(detect(text) == language)
    except LangDetectException:
        return True  # as in the original: nothing to detect, so nothing is violated


# ------------------------------------------------------------------------------------------------------------- length


def number_of_sentences(text: str, relation: str, count: int) -> bool:
    return compare(count_sentences(text), relation, count)


def number_of_words(text: str, relation: str, count: int) -> bool:
    return compare(len(_WORD.findall(text)), relation, count)


def number_of_paragraphs(text: str, count: int) -> bool:
    parts = re.split(r"\s?\*\*\*\s?", text)
    inner = parts[1:-1]
    return all(part.strip() for part in inner) and sum(bool(part.strip()) for part in parts) == count


def first_word_of_paragraph(text: str, count: int, nth: int, first_word: str) -> bool:
    parts = text.split("\n\n")
    filled = sum(bool(part.strip()) for part in parts)
    if nth > filled or filled != count:
        return False
    words = parts[nth - 1].split()
    found = re.split(r"[.,?!'\"]", words[0].lstrip("'\""))[0] if words else ""
    return found.lower() == first_word.lower()


# ------------------------------------------------------------------------------------------------- content and format


def placeholders(text: str, count: int) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= count


def postscript(text: str, marker: str) -> bool:
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, re.escape(marker.lower())), text.lower()) is not None


def bullet_list(text: str, count: int) -> bool:
    stars = re.findall(r"^\s*\*[^*].*$", text, re.MULTILINE)
    return len(stars) + len(re.findall(r"^\s*-.*$", text, re.MULTILINE)) == count


def constrained_response(text: str) -> bool:
    return any(answer in text for answer in _ANSWERS)


def highlighted_sections(text: str, count: int) -> bool:
    single = re.findall(r"\*[^\n*]*\*", text)
    double = re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(part.strip("*").strip()) for part in [*single, *double]) >= count


def sections(text: str, splitter: str, count: int) -> bool:
    return len(re.split(rf"\s?{re.escape(splitter)}\s?\d+\s?", text)) - 1 >= count


def json_format(text: str) -> bool:
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    return any(found.lstrip("<").rstrip(">").strip() for found in re.findall(r"<<[^\n]+>>", text))


# ------------------------------------------------------------------------------------- combinations, ends, case, commas


def two_responses(text: str) -> bool:
    parts = text.split("******")
    filled = [part.strip() for part in parts if part.strip()]
    return all(part.strip() for part in parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def repeats_prompt(text: str, prompt: str) -> bool:
    return text.strip().lower().startswith(prompt.strip().lower())


def ends_with(text: str, phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(phrase.strip().lower())


def in_quotation_marks(text: str) -> bool:
    body = text.strip()
    return len(body) > 1 and body[0] == body[-1] == '"'


def capital_words(text: str, relation: str, count: int) -> bool:
    return compare(sum(word.isupper() for word in _TOKEN.findall(text)), relation, count)


def english_capitals(text: str) -> bool:
    return text.isupper() and _is_english_script(text)


def english_lowercase(text: str) -> bool:
    return text.islower() and _is_english_script(text)


def no_comma(text: str) -> bool:
    return "," not in text


def _is_english_script(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    return sum(map(str.isascii, letters)) >= _ENGLISH_SHARE * len(letters)


INSTRUCTIONS: Final[dict[str, tuple[Callable[..., bool], dict[str, type]]]] = {
    "change_case:capital_word_frequency": (capital_words, {"capital_relation": str, "capital_frequency": int}),
    "change_case:english_capital": (english_capitals, {}),
    "change_case:english_lowercase": (english_lowercase, {}),
    "combination:repeat_prompt": (repeats_prompt, {"prompt_to_repeat": str}),
    "combination:two_responses": (two_responses, {}),
    "detectable_content:number_placeholders": (placeholders, {"num_placeholders": int}),
    "detectable_content:postscript": (postscript, {"postscript_marker": str}),
    "detectable_format:constrained_response": (constrained_response, {}),
    "detectable_format:json_format": (json_format, {}),
    "detectable_format:multiple_sections": (sections, {"section_spliter": str, "num_sections": int}),
    "detectable_format:number_bullet_lists": (bullet_list, {"num_bullets": int}),
    "detectable_format:number_highlighted_sections": (highlighted_sections, {"num_highlights": int}),
    "detectable_format:title": (title, {}),
    "keywords:existence": (keywords_exist, {"keywords": list}),
    "keywords:forbidden_words": (no_forbidden_words, {"forbidden_words": list}),
    "keywords:frequency": (keyword_frequency, {"keyword": str, "relation": str, "frequency": int}),
    "keywords:letter_frequency": (letter_frequency, {"letter": str, "let_relation": str, "let_frequency": int}),
    "language:response_language": (in_language, {"language": str}),
    "length_constraints:nth_paragraph_first_word": (
        first_word_of_paragraph,
        {"num_paragraphs": int, "nth_paragraph": int, "first_word": str},
    ),
    "length_constraints:number_paragraphs": (number_of_paragraphs, {"num_paragraphs": int}),
    "length_constraints:number_sentences": (number_of_sentences, {"relation": str, "num_sentences": int}),
    "length_constraints:number_words": (number_of_words, {"relation": str, "num_words": int}),
    "punctuation:no_comma": (no_comma, {}),
    "startend:end_checker": (ends_with, {"end_phrase": str}),
    "startend:quotation": (in_quotation_marks, {}),
}
"""Name: what checks it, and its arguments in the order of that function, under their public names."""
