"""The datasets with images on their packaged rows: all values, what is learned, what is dropped and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from areal.api import DataError
from areal.dataset import clevr_count_70k, geometry3k, virl39k
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.loading import load_dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """What differs between the datasets."""

    folder: Path
    text: str = "problem"
    images: str = "images"
    answer: Callable[[str], str] = str
    """What the reward gets, of the raw answer."""
    learned: Callable[[str], str]
    """What is imitated, of the raw answer."""
    kept: tuple[str, ...] = ()
    """Columns that the reward gets besides."""
    splits: tuple[str, ...] = ("train", "test")
    bad_answers: tuple[tuple[str, str], ...] = ()


SETS = {
    "clevr_count_70k": ImageSet(folder=clevr_count_70k.PACKAGED_ROWS, learned="[{}]".format),
    "geometry3k": ImageSet(
        folder=geometry3k.PACKAGED_ROWS, learned=lambda answer: f"\\boxed{{{answer}}}", kept=("id",)
    ),
    "virl39k": ImageSet(
        folder=virl39k.PACKAGED_ROWS, text="question", images="image", kept=("source",), splits=("train",),
        answer=lambda answer: answer.removeprefix("\\boxed{")[:-1], learned=str,
        bad_answers=(("I do not know.", "answer has no final answer"),
                     ("It is \\boxed{7", "answer has no final answer")),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def chat_tokenizer():
    made = byte_tokenizer()
    made.chat_template = TEMPLATE
    return made


@pytest.fixture(scope="module", params=SETS)
def name(request):
    return request.param


def load(tokenizer, name, kind, **config):
    config.setdefault("options", {"instruction": ""})
    # Rows as the loader makes them: a run puts the tokens of its model's images into them.
    return load_dataset(DatasetConfig(name=name, **config), tokenizer, kind=kind, place_images=lambda rows, _: rows)


def packaged(name, split="train"):
    lines = (SETS[name].folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write(folder, *rows):
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize(("name", "split"), [(name, split) for name, each in SETS.items() for split in each.splits])
def test_every_packaged_row_becomes_a_prompt_with_its_answer(tokenizer, name, split):
    rows, raw, each = load(tokenizer, name, "rl", split=split), packaged(name, split), SETS[name]
    assert len(rows) == len(raw) > 0
    for row, source in zip(rows, raw, strict=True):
        files = source[each.images] if isinstance(source[each.images], list) else [source[each.images]]
        assert row["images"] == files
        assert row["messages"].endswith(source[each.text] + "\n")
        assert row["messages"].count("<image>") == len(files)
    assert list(rows["answer"]) == [each.answer(row["answer"]) for row in raw]
    for column in each.kept:
        assert list(rows[column]) == [row.get(column) for row in raw]


def test_rows_to_imitate_have_the_same_prompts_and_answers_that_score(tokenizer, name):
    rows, prompts, raw = load(tokenizer, name, "sft"), load(tokenizer, name, "rl"), packaged(name)
    assert len(rows) == len(raw) > 0
    for row, prompt, source in zip(rows, prompts, raw, strict=True):
        text = [token for token, learned in zip(row["input_ids"], row["loss_mask"], strict=True) if not learned]
        assert tokenizer.decode(text) == prompt["messages"].replace("<image>", "")
        assert row["images"] == prompt["images"]
        before = prompt["messages"].split("<image>")[:-1]
        assert row["image_places"] == [len("".join(before[: n + 1]).encode()) for n in range(len(before))]
        learned = [token for token, learned in zip(row["input_ids"], row["loss_mask"], strict=True) if learned]
        assert tokenizer.decode(learned) == SETS[name].learned(source["answer"]) + tokenizer.eos_token


def test_prompts_are_chats_when_the_tokenizer_has_a_template(chat_tokenizer, name):
    (message,) = load(chat_tokenizer, name, "rl", options={"instruction": "Think."})[0]["messages"]
    assert message["role"] == "user"
    assert message["content"].endswith(packaged(name)[0][SETS[name].text] + "\nThink.")


def test_long_prompts_are_dropped_and_counted(tokenizer, name, tmp_path, caplog):
    row, text = packaged(name)[0], SETS[name].text
    path = write(tmp_path, row, {**row, text: row[text] * 3})
    limit = len(tokenizer.encode(load(tokenizer, name, "rl", path=path)[0]["messages"]))
    with caplog.at_level("WARNING", logger="areal"):
        assert len(load(tokenizer, name, "rl", path=path, max_length=limit)) == 1
    assert "dropped 1 of 2 rows" in caplog.text
    with pytest.raises(DataError, match="0 rows left: all 2 are longer than max_length 1"):
        load(tokenizer, name, "rl", path=path, max_length=1)


NOT_TEXTS = (
    ("", "is empty"),
    (" \n", "is empty"),
    (7, "is int, expected a string"),
    (None, "is NoneType, expected a string"),
)
NOT_IMAGES = (
    ("no image!", "'no image!' is neither base64 nor the path of an image"),
    ("../../image.png", "'../../image.png' leads out of the folder of the data"),
)
BAD_VALUES = [
    (name, column, value, problem)
    for name, each in SETS.items()
    for column, value, problem in (
        *((column, value, f"{column} {what}") for column in (each.text, "answer") for value, what in NOT_TEXTS),
        *(("answer", value, what) for value, what in each.bad_answers),
        *((each.images, value, f"{each.images}: {what}") for value, what in NOT_IMAGES),
    )
]


@pytest.mark.sample(20)
@pytest.mark.parametrize("kind", ["rl", "sft"])
@pytest.mark.parametrize(("name", "column", "value", "problem"), BAD_VALUES)
def test_a_bad_row_is_refused_with_its_line(tokenizer, tmp_path, kind, name, column, value, problem):
    row = packaged(name)[0]
    path = write(tmp_path, row, {**row, column: value}, row)
    with pytest.raises(DataError, match=f"1 bad row: line 2: {re.escape(problem)}"):
        load(tokenizer, name, kind, path=path)


@pytest.mark.parametrize(("name", "column"), sorted({(name, column) for name, column, _, _ in BAD_VALUES}))
def test_a_missing_column_is_refused_with_its_line(tokenizer, tmp_path, name, column):
    row = packaged(name)[0]
    path = write(tmp_path, row, {key: value for key, value in row.items() if key != column})
    with pytest.raises(DataError, match=f"line 2: .*no column {re.escape(repr(column))}"):
        load(tokenizer, name, "rl", path=path)


def test_lines_that_are_no_rows_are_all_named(tokenizer, name, tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(packaged(name)[0]) + "\n{broken\n[1, 2]\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"2 unreadable lines: line 2: not JSON .*line 3: a JSON object expected"):
        load(tokenizer, name, "rl", path=str(tmp_path))


def test_the_last_final_answer_counts(tokenizer, tmp_path):
    row = {**packaged("virl39k")[0], "answer": "\\boxed{1} No: \\boxed{\\frac{2}{3}}."}
    assert list(load(tokenizer, "virl39k", "rl", path=write(tmp_path, row))["answer"]) == ["\\frac{2}{3}"]
