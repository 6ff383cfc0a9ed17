"""The arithmetic task: what is taken from GSM8K, and that nothing leaks between splits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from areal.api import ConfigError, DataError
from areal.dataset.arithmetic import CHARACTERS, extract_facts, load_facts
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import load_tokenizer
from areal.dataset.loading import load_dataset
from areal.dataset.reading import FIXTURES

ROOT = Path(__file__).parents[3]
WHOLE = ROOT.parent / "shared" / "data" / "gsm8k"


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(f"characters:{CHARACTERS}")


def load(tokenizer, kind, **config):
    return load_dataset(DatasetConfig(name="arithmetic", **config), tokenizer, kind=kind)


def test_extraction_takes_single_operations_on_whole_numbers():
    solution = "a <<8*9=72>>72 b << 3 + 4 = 7 >>7 c <<48/2=24>> d <<2*3*4=24>> e <<.5*4=2>> f <<3/4=3/4>> g <<x*2=4>>"
    taken = [(fact.problem, fact.expression, fact.result) for fact in extract_facts(["nothing", solution])]
    assert taken == [(1, "8*9", "72"), (1, "3+4", "7"), (1, "48/2", "24"), (1, "3/4", "3/4")]


def test_one_digit_facts_have_the_known_counts():
    train, validation = load_facts("", "train"), load_facts("", "validation")
    assert len(train) + len(validation) == 3553
    assert len({fact.expression for fact in [*train, *validation]}) == 211
    test = load_facts("", "test")
    assert (len(test), len({fact.expression for fact in test})) == (687, 163)


def test_train_and_validation_come_from_different_problems():
    train = {fact.problem for fact in load_facts("", "train")}
    validation = {fact.problem for fact in load_facts("", "validation")}
    assert validation
    assert not train & validation


def test_every_result_is_right_and_within_the_limits():
    for fact in load_facts("", "train", max_operand_digits=2, max_result_digits=3, operators="*-"):
        left, right = (int(part) for part in fact.expression.replace("*", " ").replace("-", " ").split())
        assert int(fact.result) == (left * right if "*" in fact.expression else left - right)
        assert max(left, right) < 100
        assert len(fact.result) <= 3


def test_rl_rows_are_bare_prompts_with_the_answer_beside(tokenizer):
    row = load(tokenizer, "rl")[0]
    assert row["messages"] == f"{row['expression']}="
    assert set(row) == {"messages", "answer", "expression", "problem", "demonstrated"}
    assert tokenizer.decode(tokenizer.encode(row["messages"])) == row["messages"]


@pytest.mark.exhaustive
def test_demonstrations_are_a_seeded_sample_that_rl_rows_know_of(tokenizer):
    sft = load(tokenizer, "sft")
    assert len(sft) == 60
    shown = {tokenizer.decode(row["input_ids"]).partition("=")[0] for row in sft}
    rl = load(tokenizer, "rl", split="test")
    assert {row["expression"] for row in rl if row["demonstrated"]} <= shown
    assert {row["expression"] for row in rl if not row["demonstrated"]}.isdisjoint(shown)
    new = load(tokenizer, "rl", split="test", options={"new_only": True})
    assert 0 < len(new) < len(rl)
    assert shown.isdisjoint(new["expression"])
    assert load(tokenizer, "sft")["input_ids"] == sft["input_ids"]
    assert load(tokenizer, "sft", options={"seed": 1})["input_ids"] != sft["input_ids"]


def test_sft_rows_learn_answer_and_end(tokenizer):
    for row in load(tokenizer, "sft"):
        learned = [token for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask]
        expression, _, answer = tokenizer.decode(row["input_ids"][:-1]).partition("=")
        assert tokenizer.decode(learned) == f"{answer}<eos>"
        assert float(answer) == eval(expression)  # digits and one operator, checked by the loader


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"split": "dev"}, "expected train, validation or test"),
        ({"options": {"operators": "*^"}}, r"expected a choice of the characters"),
        ({"options": {"max_operand_digits": 3}}, "packaged annotations end at 2"),
        ({"options": {"max_operand_digits": 0}}, "must be at least 1"),
        ({"options": {"demonstrations": 99999}}, r"expected 0 \.\. "),
        ({"options": {"max_operands": 2}}, "unknown option 'max_operands': did you mean 'max_operand_digits'"),
    ],
)
def test_impossible_options_are_refused(tokenizer, config, message):
    with pytest.raises(ConfigError, match=message):
        load(tokenizer, "rl", **config)


def test_a_source_without_fitting_annotations_is_an_error(tokenizer, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "q", "answer": "<<100*200=20000>> #### 20000"}')
    with pytest.raises(DataError, match="no annotation of"):
        load(tokenizer, "rl", path=str(tmp_path))


@pytest.mark.skipif(not WHOLE.is_dir(), reason="the whole GSM8K is not beside the repository")
def test_packaged_annotations_equal_those_of_the_whole_set():
    for split in ("train", "validation", "test"):
        limits = {"max_operand_digits": 2, "max_result_digits": 4}
        assert load_facts("", split, **limits) == load_facts(str(WHOLE), split, **limits)


@pytest.mark.skipif(not WHOLE.is_dir(), reason="the whole GSM8K is not beside the repository")
def test_the_fixture_script_reproduces_the_packaged_files(tmp_path):
    spec = importlib.util.spec_from_file_location("make_gsm8k_fixture", ROOT / "scripts" / "make_gsm8k_fixture.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.write_fixture(WHOLE, tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_bytes() for path in (FIXTURES / "gsm8k").iterdir()}
