"""Images of rows in every form that data hold them in, and what is no image."""

from __future__ import annotations

import base64
import io
import json

import datasets
import pytest
from PIL import Image

from areal.api import DataError
from areal.dataset.images import require_images, with_image_marks
from areal.dataset.reading import read_rows


def picture(form="PNG"):
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 30, 30)).save(stream, form)
    return stream.getvalue()


def images_of(folder, *values, column="image"):
    (folder / "train.jsonl").write_text("\n".join(json.dumps({column: value}) for value in values))
    return require_images(read_rows(str(folder), "train"), column)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP"])
def test_base64_data_urls_and_paths_give_the_same_file(tmp_path, form):
    content = picture(form)
    encoded = base64.b64encode(content).decode()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / f"one.{form.lower()}").write_bytes(content)
    values = [encoded, f"data:image/{form.lower()};base64,{encoded}", f"images/one.{form.lower()}", [encoded]]
    assert images_of(tmp_path, *values) == [[encoded]] * 4


def test_tables_hold_bytes_and_structs(tmp_path):
    content = picture()
    (tmp_path / "one.png").write_bytes(content)
    rows = [{"image": {"bytes": content, "path": "elsewhere.png"}}, {"image": {"bytes": None, "path": "one.png"}}]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "train.parquet"))
    encoded = base64.b64encode(content).decode()
    assert require_images(read_rows(str(tmp_path), "train"), "image") == [[encoded], [encoded]]


def test_a_saved_dataset_with_an_image_feature_is_read_without_decoding(tmp_path):
    features = datasets.Features({"image": datasets.Image()})
    made = datasets.Dataset.from_dict({"image": [{"bytes": picture(), "path": None}]}, features=features)
    made.save_to_disk(str(tmp_path))
    assert require_images(read_rows(str(tmp_path), "train"), "image") == [[base64.b64encode(picture()).decode()]]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no image!", "image: 'no image!' is neither base64 nor the path of an image"),
        ("missing.png", r"image: 'missing.png' cannot be read \(No such file or directory\)"),
        ("../secret.png", "image: '../secret.png' leads out of the folder of the data"),
        ("/etc/secret.png", "image: '/etc/secret.png' leads out of the folder of the data"),
        (base64.b64encode(b"%PDF-1.7").decode(), "image: starts with b'%PDF-1.7', expected a PNG"),
        (7, "image: expected an image, found int"),
        ([], "image is empty"),
        ({"bytes": None, "path": None}, "image: expected an image, found NoneType"),
    ],
)
def test_what_is_no_image_is_named_with_its_line(tmp_path, value, problem):
    with pytest.raises(DataError, match=rf"1 bad row: line 2: {problem}"):
        images_of(tmp_path, base64.b64encode(picture()).decode(), value)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (tmp_path / "secret.png").write_bytes(picture())
    (data / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="leads out of the folder"):
        images_of(data, "link.png")


@pytest.mark.parametrize(
    ("text", "count", "marked"),
    [
        ("What?", 1, "<image>\nWhat?"),
        ("What?", 2, "<image>\n<image>\nWhat?"),
        ("Left <image> or right?", 1, "Left <image> or right?"),
        ("Left <image> or right?", 2, "<image>\nLeft <image> or right?"),
    ],
)
def test_every_image_has_its_mark(text, count, marked):
    assert with_image_marks(text, count) == marked
