"""Rows that are too long: found when they are loaded, named by their line, and left out, shortened or refused."""

from __future__ import annotations

import json

import pytest

from areal.api import DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer, encode_prompt
from areal.dataset.loading import ShuffledRows, load_dataset
from areal.dataset.origins import LengthLimit, origins_of, place_of

TOKENIZER = byte_tokenizer()
CHATS = byte_tokenizer()
CHATS.chat_template = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LIMIT = LengthLimit(tokens=10, reason="engine.max_seq_len 14 - max_new_tokens 4")


def load(folder, *rows, kind="rl", tokenizer=TOKENIZER, limit=LIMIT, **fields):
    file = folder / "train.jsonl"
    # The blank line is skipped, and still counts as a line of the file.
    file.write_text("\n".join(["", *(json.dumps(row) for row in rows)]))
    return load_dataset(DatasetConfig(name="jsonl", path=str(file), **fields), tokenizer, kind=kind, limit=limit)


def prompts(*lengths):
    return [{"prompt": "x" * length, "answer": str(length)} for length in lengths]


def test_long_prompts_are_left_out_counted_and_named_by_line(tmp_path, caplog):
    rows = load(tmp_path, *prompts(3, 11, 10, 40))
    assert rows["answer"] == ["3", "10"]
    assert "dropped 2 of 4 rows with more than 10 tokens (engine.max_seq_len 14 - max_new_tokens 4)" in caplog.text
    assert "train.jsonl, line 3) has 11" in caplog.text
    fitting = origins_of(rows).fitting
    assert (fitting.num_read, fitting.num_overlong, fitting.num_truncated, fitting.longest) == (4, 2, 0, 40)
    assert place_of(rows, 1) == f"row 1 ({tmp_path / 'train.jsonl'}, line 4)"


def test_the_tighter_of_both_limits_counts(tmp_path):
    assert load(tmp_path, *prompts(3, 6, 10), max_length=5)["answer"] == ["3"]
    assert load(tmp_path, *prompts(3, 6, 10), max_length=50)["answer"] == ["3", "6", "10"]
    assert load(tmp_path, *prompts(3, 600), limit=None)["answer"] == ["3", "600"]


def test_they_are_refused_with_their_lines_when_asked(tmp_path):
    with pytest.raises(
        DataError, match=r"2 of 3 rows with more than 10 tokens .*line 3\) has 11; .*line 4\) has 12"
    ) as e:
        load(tmp_path, *prompts(3, 11, 12), overlong="error")
    assert "set overlong to filter or truncate" in e.value.fix


def test_no_row_left_says_how_short_they_would_have_to_be(tmp_path):
    with pytest.raises(
        DataError,
        match=r"0 rows left: all 2 are longer than engine.* - max_new_tokens 4 \(10 tokens\); the shortest has 11",
    ):
        load(tmp_path, *prompts(11, 12))


def test_a_long_prompt_keeps_its_end(tmp_path, caplog):
    rows = load(tmp_path, {"prompt": "abcdefghijklmno?"}, {"prompt": "short"}, overlong="truncate")
    assert rows["messages"] == ["ghijklmno?", "short"]
    assert "shortened 1 of 2 rows" in caplog.text


def test_of_a_long_chat_the_longest_turn_loses_its_beginning(tmp_path):
    chat = [{"role": "system", "content": "s" * 60}, {"role": "user", "content": "0123456789" * 5}]
    full = len(encode_prompt(chat, CHATS))
    limit = LengthLimit(tokens=full - 45, reason="test")
    rows = load(tmp_path, {"messages": chat}, tokenizer=CHATS, limit=limit, overlong="truncate")
    assert rows[0]["messages"] == [chat[0], {"role": "user", "content": "56789"}]
    assert len(encode_prompt(rows[0]["messages"], CHATS)) == limit.tokens
    # Nothing of the user's turn would fit beside the system's, which is not cut.
    with pytest.raises(DataError, match="0 rows left"):
        load(tmp_path, {"messages": chat}, tokenizer=CHATS, overlong="truncate")


def test_long_answers_lose_their_end_and_rows_that_are_all_prompt_go(tmp_path):
    rows = load(
        tmp_path, {"prompt": "12345", "answer": "abcdefgh"}, {"prompt": "1234567890", "answer": "a"}, kind="sft",
        overlong="truncate",
    )  # fmt: skip
    assert len(rows) == 1
    assert TOKENIZER.decode(rows[0]["input_ids"]) == "12345abcde"
    assert rows[0]["loss_mask"] == [0] * 5 + [1] * 5
    fitting = origins_of(rows).fitting
    assert (fitting.num_overlong, fitting.num_truncated) == (2, 1)


def test_both_sides_of_a_pair_are_cut(tmp_path):
    pair = {"prompt": "12345", "chosen": "abcdefgh", "rejected": "x"}
    row = load(tmp_path, pair, kind="preference", overlong="truncate")[0]
    assert TOKENIZER.decode(row["chosen_ids"]) == "12345abcde"
    assert TOKENIZER.decode(row["rejected_ids"]) == "12345x<eos>"
    assert len(row["chosen_ids"]) == len(row["chosen_loss_mask"])


def test_rows_in_training_order_know_their_lines(tmp_path):
    source = ShuffledRows(load(tmp_path, *prompts(3, 40, 5)), seed=1)
    places = {source.row(ordinal)["answer"]: source.place(ordinal) for ordinal in range(2)}
    assert places["3"].endswith("train.jsonl, line 2)")
    assert places["5"].endswith("train.jsonl, line 4)")
    assert ShuffledRows([{"a": 1}], seed=1).place(0) == "row 0"
