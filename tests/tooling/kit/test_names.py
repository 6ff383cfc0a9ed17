"""Names: every spelling, every reason to refuse one, and what they may not collide with."""

from __future__ import annotations

import keyword
import sys
from typing import TYPE_CHECKING

import pytest
from git import Repo
from hypothesis import given
from hypothesis import strategies as st

from tooling.cli.errors import ConflictError, NameRefusedError
from tooling.cli.git import find_repository
from tooling.kit.names import MAX_LENGTH, NAME_FIELDS, Names, check_free, find_symbols, fold, parse_name

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.cli.git import Repository


def refusal(raw: str, **options: object) -> NameRefusedError:
    with pytest.raises(NameRefusedError) as caught:
        parse_name(raw, **options)
    return caught.value


def suggestion(error: Exception) -> str:
    return error.fix.split("'")[1]


# ---------------------------------------------------------------------------------------------------------- spellings


def test_a_name_has_every_spelling():
    assert parse_name("Gsm8k-Hard") == Names(
        raw="Gsm8k-Hard",
        snake="gsm8k_hard",
        pascal="Gsm8kHard",
        const="GSM8K_HARD",
        kebab="gsm8k-hard",
        key="gsm8k_hard",
        words="gsm8k hard",
    )


def test_templates_know_every_field():
    assert tuple(parse_name("digits").as_data()) == NAME_FIELDS


@pytest.mark.parametrize(
    ("raw", "snake", "pascal"),
    [
        ("digits", "digits", "Digits"),
        ("Gsm8kHard", "gsm8k_hard", "Gsm8kHard"),
        ("GSM8K", "gsm8k", "Gsm8k"),
        ("GSM8Kv2", "gsm8k_v2", "Gsm8kV2"),
        ("RLHFv2", "rlhf_v2", "RlhfV2"),
        ("HTTPJudge", "http_judge", "HttpJudge"),
        ("Math500Hard", "math500_hard", "Math500Hard"),
        ("qwen3.5", "qwen3_5", "Qwen3_5"),
        ("qwen3.5-7b", "qwen3_5_7b", "Qwen3_5_7b"),
        ("a - b__c", "a_b_c", "ABC"),
        ("  spaced  ", "spaced", "Spaced"),
        ("ｇｓｍ８ｋ", "gsm8k", "Gsm8k"),  # noqa: RUF001 - full-width letters are the point
    ],
)
def test_words_are_found_at_separators_and_capitals(raw, snake, pascal):
    names = parse_name(raw)
    assert (names.snake, names.pascal) == (snake, pascal)


def test_numbers_stay_apart_in_pascal_case():
    assert parse_name("qwen3.5").pascal != parse_name("qwen35").pascal
    assert parse_name("qwen3.5").const == "QWEN3_5"
    assert parse_name("qwen3.5").kebab == "qwen3-5"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=80))
def test_any_text_is_a_usable_name_or_refused_with_a_suggestion_that_passes(raw):
    try:
        names = parse_name(raw, reserved=["registry"])
    except NameRefusedError as error:
        if "e.g." in error.fix:
            parse_name(suggestion(error), reserved=["registry"])
        return
    assert names.snake.isidentifier()
    assert names.snake.isascii()
    assert names.pascal.isidentifier()
    assert not keyword.iskeyword(names.pascal)
    assert names.snake not in sys.stdlib_module_names
    assert parse_name(names.snake) == Names(**{**names.as_data(), "raw": names.snake})
    assert parse_name(names.kebab).snake == names.snake


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("raw", "reason", "better"),
    [
        ("import", "a word of Python", "custom_import"),
        ("match", "a word of Python", "custom_match"),
        ("none", "a word of Python", "custom_none"),
        ("math", "standard library", "custom_math"),
        ("list", "built-in", "custom_list"),
        ("con", "Windows", "custom_con"),
        ("Registry", "needs for itself", "custom_registry"),
        ("2048", "begins with a digit", "n2048"),
        ("7b-chat", "begins with a digit", "chat_7b"),
        ("_private", "separator", "private"),
        ("late_", "separator", "late"),
        ("éclair", "LATIN SMALL LETTER E WITH ACUTE", "eclair"),
        ("straße", "SHARP S", "strasse"),
        ("gsm8к", "CYRILLIC SMALL LETTER KA", "gsm8k"),
        ("scоre", "CYRILLIC SMALL LETTER O", "score"),  # noqa: RUF001 - the look-alike is the point
        ("٣x", "ARABIC-INDIC DIGIT THREE", "n3x"),
        ("x\u200by", "ZERO WIDTH SPACE", "xy"),
        ("../up", "SOLIDUS", "up"),
        ("a/b", "SOLIDUS", "a_b"),
        ("a\nb", "no letter", "a_b"),
    ],
)
def test_a_refused_name_comes_with_the_reason_and_a_better_one(raw, reason, better):
    error = refusal(raw, reserved=["registry"])
    assert reason in error.message
    assert repr(raw) in error.message
    assert suggestion(error) == better
    parse_name(better, reserved=["registry"])


def test_the_suggestion_avoids_reserved_names_too():
    error = refusal("math", reserved=["custom_math"])
    assert suggestion(error) == "custom_math_v2"


def test_what_cannot_be_spelt_in_ascii_gets_the_rules():
    assert "a-z" in refusal("数学").fix
    assert "a-z" in refusal("").fix


def test_long_names_are_refused_at_the_limit():
    assert parse_name("a" * MAX_LENGTH).snake == "a" * MAX_LENGTH
    error = refusal("a" * (MAX_LENGTH + 1))
    assert len(suggestion(error)) == MAX_LENGTH


def test_folding_ignores_case_and_separators():
    assert fold("Qwen3.5") == fold("qwen3_5") == fold("QWEN-35") != fold("qwen36")


# ---------------------------------------------------------------------------------------------------------- collisions


def test_a_registered_key_is_taken():
    with pytest.raises(NameRefusedError, match="the registry has 'gsm8k'") as caught:
        check_free(parse_name("gsm8k"), keys=["boxed", "gsm8k"], kind="reward")
    assert suggestion(caught.value) == "gsm8k_v2"
    assert "areal-new update" in caught.value.fix


@pytest.mark.parametrize("existing", ["Gsm8k", "gsm-8k", "GSM_8K"])
def test_a_key_that_differs_in_case_or_separators_is_taken(existing):
    with pytest.raises(NameRefusedError, match=f"too like '{existing}'"):
        check_free(parse_name("gsm8k"), keys=[existing])


def test_derived_keys_count():
    check_free(parse_name("digits"), keys=["digits"], planned_keys=["digits_rl"])
    with pytest.raises(NameRefusedError, match="digits_sft"):
        check_free(parse_name("digits"), keys=["digits_sft"], planned_keys=["digits_rl", "digits_sft"])


def test_suggestions_skip_what_is_taken_as_well():
    with pytest.raises(NameRefusedError) as caught:
        check_free(
            parse_name("digits"),
            keys=["digits", "digits_v2"],
            planned_paths=["areal/reward/digits.py"],
            paths=["areal/reward/digits_v3.py"],
        )
    assert suggestion(caught.value) == "digits_v4"


def test_suggestions_are_not_mistaken_by_a_name_inside_another_word():
    taken = ["areal/reward/al.py", "areal/reward/al_v2.py"]
    with pytest.raises(ConflictError) as caught:
        check_free(parse_name("al"), paths=taken, planned_paths=["areal/reward/al.py"])
    assert "'al_v3'" in caught.value.fix


def test_a_file_in_the_way_is_a_conflict():
    with pytest.raises(ConflictError, match=r"areal/reward/digits\.py exists") as caught:
        check_free(
            parse_name("digits"), planned_paths=["areal/reward/digits.py"], paths=["areal/reward/digits.py", "x.py"]
        )
    assert suggestion(caught.value) == "digits_v2"


@pytest.mark.parametrize(
    ("name", "planned", "existing"),
    [
        ("digits", "areal/reward/digits.py", "areal/reward/Digits.py"),
        ("digits", "areal/reward/digits.py", "Areal/reward/digits.py"),
        ("qwen3.5", "areal/models/qwen3_5.py", "areal/models/qwen35.py"),
        ("digits", "areal/reward/digits.py", "areal/reward/digits/__init__.py"),
    ],
)
def test_files_that_could_be_mistaken_for_each_other_are_refused(name, planned, existing):
    with pytest.raises(NameRefusedError, match="could be mistaken"):
        check_free(parse_name(name), planned_paths=[planned], paths=[existing])


def test_neighbours_of_another_name_are_no_collision():
    check_free(
        parse_name("digits"),
        planned_paths=["areal/reward/digits.py", "tests/areal/reward/test_digits.py"],
        paths=["areal/reward/digit.py", "areal/dataset/digits.py", "tests/areal/reward/test_digit_s2.py"],
        keys=["digit"],
    )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    Repo.init(tmp_path).close()
    (tmp_path / "areal").mkdir()
    (tmp_path / "areal" / "a.py").write_text(
        "import os\n\n\ndef digits_reward():\n    inner_reward = 1\n    return inner_reward\n\n\nDIGITS, OTHER = 1, 2\n"
    )
    (tmp_path / "areal" / "b.py").write_text("class DigitsWorkflow:\n    pass\n\n\nTABLE: dict[str, int] = {}\n")
    (tmp_path / "areal" / "broken.py").write_text("def broken_reward(:\n")
    (tmp_path / "areal" / "notes.md").write_text("def prose_reward(): ...\n")
    repo = Repo(tmp_path)
    repo.index.add(["areal/a.py"])  # one tracked, the others new
    repo.close()
    return find_repository(tmp_path)


def test_definitions_are_found_in_tracked_and_new_files(repository):
    wanted = ["digits_reward", "DigitsWorkflow", "DIGITS", "OTHER", "TABLE"]
    assert find_symbols(repository, wanted) == {
        "DIGITS": "areal/a.py:9",
        "DigitsWorkflow": "areal/b.py:1",
        "OTHER": "areal/a.py:9",
        "TABLE": "areal/b.py:5",
        "digits_reward": "areal/a.py:4",
    }


def test_mentions_locals_prose_and_broken_files_are_no_definitions(repository):
    assert find_symbols(repository, ["inner_reward", "prose_reward", "broken_reward", "os", "nothing"]) == {}
    assert find_symbols(repository, []) == {}


def test_definitions_elsewhere_do_not_count(repository):
    assert find_symbols(repository, ["digits_reward"], below="tests") == {}
    assert find_symbols(repository, ["digits_reward"], below="areal/") == {"digits_reward": "areal/a.py:4"}


def test_words_that_look_like_options_are_only_words(repository):
    assert find_symbols(repository, ["--help", "-O/bin/sh"]) == {}


def test_a_defined_symbol_is_taken(repository):
    with pytest.raises(NameRefusedError, match=r"'digits_reward' is defined at areal/a\.py:4"):
        check_free(parse_name("digits"), symbols=["digits_reward"], repository=repository)
    check_free(parse_name("letters"), symbols=["letters_reward"], repository=repository)


def test_suggestions_define_no_symbol_that_is_taken(repository):
    (repository.root / "areal/more.py").write_text("def digits_v2_reward(): ...\nclass DigitsV3: ...\n")
    (repository.root / "areal/digits.py").write_text("def digits_reward(): ...\n")
    with pytest.raises(NameRefusedError) as caught:
        check_free(parse_name("digits"), symbols=["digits_reward", "Digits"], repository=repository, below="areal")
    assert "'digits_v4'" in caught.value.fix
