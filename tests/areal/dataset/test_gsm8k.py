"""GSM8K loaders on the packaged rows, and on the whole set where it lies beside the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from areal.api import DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.gsm8k import RL_INSTRUCTION, final_answer
from areal.dataset.loading import load_dataset

WHOLE = Path(__file__).parents[4] / "shared" / "data" / "gsm8k"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def chat_tokenizer():
    made = byte_tokenizer()
    made.chat_template = TEMPLATE
    return made


def load(tokenizer, kind, **config):
    return load_dataset(DatasetConfig(name="gsm8k", **config), tokenizer, kind=kind)


def test_packaged_rl_rows_hold_question_and_final_number(tokenizer):
    rows = load(tokenizer, "rl")
    assert len(rows) == 64
    assert rows.column_names == ["messages", "answer"]
    assert rows[0]["messages"].startswith("Natalia sold clips to 48 of her friends")
    assert rows[0]["messages"].endswith(f"\n{RL_INSTRUCTION}")
    assert rows[0]["answer"] == "72"
    assert len(load(tokenizer, "rl", split="test")) == 32


def test_prompts_are_chats_when_the_tokenizer_has_a_template(chat_tokenizer):
    (message,) = load(chat_tokenizer, "rl", options={"instruction": ""})[0]["messages"]
    assert message["role"] == "user"
    assert message["content"].endswith("altogether in April and May?")


def test_sft_learns_the_solution_without_marks_and_its_end(tokenizer):
    row = load(tokenizer, "sft")[0]
    learned = [token for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask]
    text = tokenizer.decode(learned)
    assert text.startswith("Natalia sold 48/2 = 24 clips in May.")
    assert text.endswith("#### 72<eos>")
    assert learned[-1] == tokenizer.eos_token_id
    assert "<<" not in tokenizer.decode(row["input_ids"])
    assert "<<48/2=24>>" in tokenizer.decode(load(tokenizer, "sft", options={"keep_annotations": True})[0]["input_ids"])


def test_sft_and_rl_share_the_prompt_tokens(chat_tokenizer):
    rl = load(chat_tokenizer, "rl", options={"instruction": "Think."})[3]
    sft = load(chat_tokenizer, "sft", options={"instruction": "Think."})[3]
    prompt = chat_tokenizer.apply_chat_template(rl["messages"], add_generation_prompt=True, return_dict=False)
    assert sft["input_ids"][: len(prompt)] == prompt
    assert sft["loss_mask"][: len(prompt)] == [0] * len(prompt)
    assert set(sft["loss_mask"][len(prompt) :]) == {1}


def test_long_rows_are_dropped_and_counted(tokenizer, caplog):
    everything = load(tokenizer, "rl")
    limit = sorted(len(tokenizer.encode(row["messages"])) for row in everything)[9]
    with caplog.at_level("WARNING", logger="areal"):
        short = load(tokenizer, "rl", max_length=limit)
    assert len(short) == 10
    assert "dropped 54 of 64 rows" in caplog.text


def test_zero_rows_left_is_an_error(tokenizer):
    with pytest.raises(DataError, match="0 rows left: all 64 are longer than max_length 3"):
        load(tokenizer, "rl", max_length=3)


def test_a_row_without_final_line_is_named(tokenizer, tmp_path):
    good = {"question": "1+1?", "answer": "2\n#### 2"}
    lines = [good, {"question": "2+2?", "answer": "four"}, good]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=r"1 bad row: line 2: answer has no final line such as '#### 72'"):
        load(tokenizer, "rl", path=str(tmp_path))


def test_a_renamed_column_is_reported_with_the_nearest_name(tokenizer, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"questions": "1+1?", "answer": "#### 2"}))
    with pytest.raises(DataError, match="no column 'question': did you mean 'questions'"):
        load(tokenizer, "rl", path=str(tmp_path))


@pytest.mark.exhaustive
@pytest.mark.skipif(not WHOLE.is_dir(), reason="the whole GSM8K is not beside the repository")
def test_the_whole_set_loads_and_starts_with_the_packaged_rows(tokenizer):
    train = load(tokenizer, "rl", path=str(WHOLE))
    assert len(train) == 7473
    assert len(load(tokenizer, "rl", path=str(WHOLE), split="test")) == 1319
    assert train[:64] == load(tokenizer, "rl")[:64]
    assert all(final_answer(f"#### {answer}") == answer for answer in train["answer"])
