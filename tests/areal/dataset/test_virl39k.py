"""Virl39k on the packaged rows: every value, what is learned, what is dropped and what is refused."""

from __future__ import annotations

import json
import re

import pytest

from areal.api import DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.loading import load_dataset
from areal.dataset.virl39k import PACKAGED_ROWS

MODULE = "areal.dataset.virl39k"
LOADER = "get_virl39k_{}_dataset"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
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
    config.setdefault("options", {"instruction": ""})
    chosen = DatasetConfig(name=f"{MODULE}:{LOADER.format(kind)}", **config)
    # Rows as the loader makes them: a run puts the tokens of its model's images into them.
    return load_dataset(chosen, tokenizer, kind=kind, place_images=lambda rows, _: rows)


def packaged(split):
    lines = (PACKAGED_ROWS / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write(folder, *rows):
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("split", ["train"])
def test_every_packaged_row_becomes_a_prompt_with_its_answer(tokenizer, split):
    rows, raw = load(tokenizer, "rl", split=split), packaged(split)
    assert len(rows) == len(raw) > 0
    for row, source in zip(rows, raw, strict=True):
        files = source["image"] if isinstance(source["image"], list) else [source["image"]]
        assert row["images"] == files
        assert row["messages"].endswith(source["question"] + "\n")
        assert row["messages"].count("<image>") == len(files)
    assert list(rows["answer"]) == [row["answer"].removeprefix("\\boxed{")[:-1] for row in raw]
    assert list(rows["source"]) == [row.get("source") for row in raw]


def test_rows_to_imitate_have_the_same_prompts_and_answers_that_score(tokenizer):
    rows, prompts, raw = load(tokenizer, "sft"), load(tokenizer, "rl"), packaged("train")
    assert len(rows) == len(raw) > 0
    for row, prompt, source in zip(rows, prompts, raw, strict=True):
        text = [token for token, learned in zip(row["input_ids"], row["loss_mask"], strict=True) if not learned]
        assert tokenizer.decode(text) == prompt["messages"].replace("<image>", "")
        assert row["images"] == prompt["images"]
        before = prompt["messages"].split("<image>")[:-1]
        assert row["image_places"] == [len("".join(before[: n + 1]).encode()) for n in range(len(before))]
        learned = [token for token, learned in zip(row["input_ids"], row["loss_mask"], strict=True) if learned]
        assert tokenizer.decode(learned) == source["answer"] + tokenizer.eos_token


def test_prompts_are_chats_when_the_tokenizer_has_a_template(chat_tokenizer):
    (message,) = load(chat_tokenizer, "rl", options={"instruction": "Think."})[0]["messages"]
    assert message["role"] == "user"
    assert message["content"].endswith(packaged("train")[0]["question"] + "\nThink.")


def test_long_prompts_are_dropped_and_counted(tokenizer, tmp_path, caplog):
    row = packaged("train")[0]
    path = write(tmp_path, row, {**row, "question": row["question"] * 3})
    limit = len(tokenizer.encode(load(tokenizer, "rl", path=path)[0]["messages"]))
    with caplog.at_level("WARNING", logger="areal"):
        assert len(load(tokenizer, "rl", path=path, max_length=limit)) == 1
    assert "dropped 1 of 2 rows" in caplog.text
    with pytest.raises(DataError, match="0 rows left: all 2 are longer than max_length 1"):
        load(tokenizer, "rl", path=path, max_length=1)


BAD_VALUES = [
    ("question", "", "question is empty"),
    ("question", " \n", "question is empty"),
    ("question", 7, "question is int, expected a string"),
    ("question", None, "question is NoneType, expected a string"),
    ("answer", "", "answer is empty"),
    ("answer", " \n", "answer is empty"),
    ("answer", 7, "answer is int, expected a string"),
    ("answer", None, "answer is NoneType, expected a string"),
    ("answer", "I do not know.", "answer has no final answer"),
    ("answer", "It is \boxed{7", "answer has no final answer"),
    ("image", "no image!", "image: 'no image!' is neither base64 nor the path of an image"),
    ("image", "../../image.png", "image: '../../image.png' leads out of the folder of the data"),
]


@pytest.mark.parametrize("kind", ["rl", "sft"])
@pytest.mark.parametrize(("column", "value", "problem"), BAD_VALUES)
def test_a_bad_row_is_refused_with_its_line(tokenizer, tmp_path, kind, column, value, problem):
    row = packaged("train")[0]
    path = write(tmp_path, row, {**row, column: value}, row)
    with pytest.raises(DataError, match=f"1 bad row: line 2: {re.escape(problem)}"):
        load(tokenizer, kind, path=path)


@pytest.mark.parametrize("column", sorted({column for column, _, _ in BAD_VALUES}))
def test_a_missing_column_is_refused_with_its_line(tokenizer, tmp_path, column):
    row = packaged("train")[0]
    path = write(tmp_path, row, {name: value for name, value in row.items() if name != column})
    with pytest.raises(DataError, match=f"line 2: .*no column {re.escape(repr(column))}"):
        load(tokenizer, "rl", path=path)


def test_lines_that_are_no_rows_are_all_named(tokenizer, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(packaged("train")[0]) + "\n{broken\n[1, 2]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"2 unreadable lines: line 2: not JSON .*line 3: a JSON object expected"):
        load(tokenizer, "rl", path=str(tmp_path))


def test_the_last_final_answer_counts(tokenizer, tmp_path):
    row = {**packaged("train")[0], "answer": "\\boxed{1} No: \\boxed{\\frac{2}{3}}."}
    assert list(load(tokenizer, "rl", path=write(tmp_path, row))["answer"]) == ["\\frac{2}{3}"]
