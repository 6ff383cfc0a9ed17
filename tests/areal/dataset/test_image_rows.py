"""Supervised rows with images as loaders make them, and what is refused instead of leaving images out silently."""

from __future__ import annotations

import base64
import json

import pytest
from datasets import Dataset

from areal.api import ConfigError, DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.images import sft_image_row
from areal.dataset.limits import truncated_row
from areal.dataset.loading import load_dataset
from areal.dataset.origins import origins_of
from areal.dataset.schema import validate_dataset
from tests.support.vision import encoded, noise

TOKENIZER = byte_tokenizer()
FILE = base64.b64encode(encoded(noise(4, 4))).decode()


def load(folder, *rows, kind="sft", **options):
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DatasetConfig(name="jsonl", path=str(file), **options)
    return load_dataset(config, TOKENIZER, kind=kind, place_images=lambda dataset, _: dataset)


def test_an_image_belongs_where_its_mark_was():
    row = sft_image_row("ab<image><image>c", [FILE, FILE], "de", TOKENIZER)
    assert TOKENIZER.decode(row["input_ids"]) == "abcde<eos>"
    assert row["loss_mask"] == [0, 0, 0, 1, 1, 1]
    assert row["image_places"] == [2, 2]
    assert row["images"] == [FILE, FILE]


@pytest.mark.parametrize(
    ("prompt", "images", "words"),
    [("a<image>", [FILE], "the prompt ends with an image"), ("<image>a", [], "1 <image> marks for 0 images")],
)
def test_prompts_that_no_run_could_read_are_refused(prompt, images, words):
    with pytest.raises(DataError, match=words):
        sft_image_row(prompt, images, "b", TOKENIZER)


def test_rows_of_ones_own_have_images_as_files_or_none(tmp_path):
    (tmp_path / "one.png").write_bytes(encoded(noise(4, 4)))
    rows = load(tmp_path, {"prompt": "<image>a", "answer": "b", "images": ["one.png"]}, {"prompt": "c", "answer": "d"})
    assert rows["images"] == [[FILE], []]
    assert rows["image_places"] == [[0], []]


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        ({"prompt": "a", "answer": "b", "images": [FILE]}, "sft", "line 1: the prompt has 0 <image> marks for 1"),
        ({"prompt": "<image>a", "answer": "b", "images": ["no.png"]}, "sft", "line 1: images: 'no.png' cannot be read"),
        (
            {"prompt": "<image>a", "chosen": "b", "rejected": "c", "images": [FILE]},
            "preference",
            "line 1: preference pairs with images are not supported",
        ),
    ],
)
def test_images_are_never_left_out_silently(tmp_path, row, kind, words):
    with pytest.raises(DataError, match=words):
        load(tmp_path, row, kind=kind)


def test_a_model_of_text_refuses_rows_with_images():
    with pytest.raises(ConfigError, match="has rows with images, and the model reads text only"):
        load_dataset(DatasetConfig(name="geometry3k"), TOKENIZER, kind="sft")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_places": [[0, 1]]}, "1 images and 2 image_places"),
        ({"image_places": [[3]]}, r"image_places is \[3\], expected ascending numbers from 0 to 2"),
        ({"images": [[FILE] * 2], "image_places": [[1, 0]]}, "expected ascending numbers"),
        ({"images": None}, "column image_places without images"),
        ({"image_places": None}, "column images without image_places"),
    ],
)
def test_columns_of_images_fit_each_other(changes, words):
    row = {"input_ids": [[1, 2, 3]], "loss_mask": [[0, 0, 1]], "images": [[FILE]], "image_places": [[1]], **changes}
    with pytest.raises(DataError, match=words):
        validate_dataset(Dataset.from_dict({k: v for k, v in row.items() if v is not None}), "sft", "own")


def test_only_text_behind_the_last_image_is_cut():
    row = {"input_ids": list(range(10)), "loss_mask": [0, 1, *[0] * 5, 1, 1, 1], "images": [FILE] * 2}
    row |= {"image_starts": [2, 4], "image_lengths": [2, 2]}
    cut = [truncated_row(row, "sft", limit, TOKENIZER) for limit in range(1, 10)]
    # Up to 6 an image, or the token that follows the last one, would be missing; what is learned remains from 2 on.
    assert [None if found is None else len(found["input_ids"]) for found in cut] == [None] * 6 + [7, 8, 9]
    assert cut[6]["images"] == row["images"]


def test_marks_are_measured_as_nothing_also_where_they_name_a_control_token(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    row = {"messages": [{"role": "user", "content": "<image>ab"}], "images": [FILE]}
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(row) + "\n")
    config = DatasetConfig(name="jsonl", path=str(file))
    assert origins_of(load_dataset(config, tokenizer, kind="rl")).lengths == [2]
    file.write_text(json.dumps({**row, "images": []}) + "\n")
    with pytest.raises(DataError, match="contains the control token '<image>' as text"):
        load_dataset(config, tokenizer, kind="rl")


def test_prompts_with_images_are_not_shortened(tmp_path, caplog):
    long = {"prompt": "<image>" + "x" * 30, "images": [FILE], "answer": "1"}
    short = {"prompt": "<image>?", "images": [FILE], "answer": "2"}
    rows = load(tmp_path, long, short, kind="rl", max_length=20, overlong="truncate")
    assert rows["answer"] == ["2"]
    assert "1 of these were not shortened since that would cut images, e.g. row 0" in caplog.text
