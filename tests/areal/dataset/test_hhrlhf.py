"""Preference pairs: what is shared, what is compared, what is left out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from areal.api import DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.hhrlhf import split_pair
from areal.dataset.loading import load_dataset

WHOLE = Path(__file__).parents[4] / "shared" / "data" / "hh-rlhf" / "harmless-base-test.jsonl.gz"


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def load(tokenizer, **config):
    return load_dataset(DatasetConfig(name="hhrlhf", **config), tokenizer, kind="preference")


def parts(tokenizer, row, side):
    ids, mask = row[f"{side}_ids"], row[f"{side}_loss_mask"]
    start = mask.index(1)
    assert mask == [0] * start + [1] * (len(mask) - start)
    return tokenizer.decode(ids[:start]), tokenizer.decode(ids[start:])


def test_both_sides_share_the_prompt_and_differ_in_the_masked_answer(tokenizer):
    rows = load(tokenizer)
    assert len(rows) == 12
    for row in [*rows, *load(tokenizer, split="test")]:
        prompt, chosen = parts(tokenizer, row, "chosen")
        other_prompt, rejected = parts(tokenizer, row, "rejected")
        assert prompt == other_prompt
        assert prompt.startswith("\n\nHuman:")
        assert prompt.endswith("\n\nAssistant:")
        assert chosen != rejected
        assert chosen.endswith("<eos>")
        assert rejected.endswith("<eos>")


def test_pairs_that_part_before_the_last_turn_keep_their_turns_in_the_answer():
    shared = "\n\nHuman: a\n\nAssistant:"
    chosen, rejected = f"{shared} b\n\nHuman: c\n\nAssistant: d", f"{shared} e"
    assert split_pair(chosen, rejected) == (shared, " b\n\nHuman: c\n\nAssistant: d", " e")


def test_a_word_both_answers_start_with_belongs_to_the_answers():
    shared = "\n\nHuman: a\n\nAssistant:"
    assert split_pair(f"{shared} Yes, sir", f"{shared} Yes, no") == (shared, " Yes, sir", " Yes, no")


def test_pairs_without_preference_are_dropped_and_counted(tokenizer, tmp_path, caplog):
    shared = "\n\nHuman: a\n\nAssistant:"
    pairs = [(" b", " c"), (" b", " b"), (" ", " c")]
    lines = [json.dumps({"chosen": shared + c, "rejected": shared + r}) for c, r in pairs]
    with gzip.open(tmp_path / "train.jsonl.gz", "wt") as stream:
        stream.write("\n".join(lines))
    with caplog.at_level("WARNING", logger="areal"):
        assert len(load(tokenizer, path=str(tmp_path))) == 1
    assert "dropped 2 of 3 pairs" in caplog.text


def test_transcripts_without_common_prompt_are_refused(tokenizer, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"chosen": "Hello", "rejected": "Bye"}))
    with pytest.raises(DataError, match="line 1: chosen and rejected share no prompt"):
        load(tokenizer, path=str(tmp_path))


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE.is_file(), reason="the whole HH-RLHF test split is not beside the repository")
def test_the_whole_split_loads(tokenizer, caplog):
    with caplog.at_level("WARNING", logger="areal"):
        rows = load(tokenizer, path=str(WHOLE), max_length=4096)
    assert 2200 < len(rows) <= 2308
    assert "4 of 2312 pairs" in caplog.text
