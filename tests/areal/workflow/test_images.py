"""Images as tokens: the right ids in the right place, and a typed fault for every file that is none."""

from __future__ import annotations

import asyncio
import base64
import io
import struct
import zlib

import pytest
from PIL import Image

from areal.api import ConfigError, DataError, FaultError, FaultKind
from areal.dataset.encoding import byte_tokenizer, character_tokenizer
from areal.workflow.images import GRID, GridTokenizer, ImagePrompts

FIRST = 300


def picture(*rows, format="PNG", mode="L"):
    """An encoded file; each row is a list of grey values."""
    image = Image.new("L", (len(rows[0]), len(rows)))
    image.putdata([value for row in rows for value in row])
    file = io.BytesIO()
    image.convert(mode).save(file, format=format)
    return file.getvalue()


def encoded(content):
    return base64.b64encode(content).decode()


DARK, LIGHT = encoded(picture([0, 0])), encoded(picture([255, 255]))


def read(data, tokenizer=None, **changes):
    options = {"image_tokenizer": GridTokenizer(1, 2, 8), "enable_thinking": False, "first_token": FIRST} | changes
    return asyncio.run(ImagePrompts(tokenizer or byte_tokenizer(), **options).read(data))


def ids(text):
    return byte_tokenizer().encode(text)


def test_the_grid_reads_brightness_line_by_line():
    four = picture([0, 96], [160, 255])
    assert GridTokenizer(2, 2, 8)(four) == [0, 3, 5, 7]
    assert GridTokenizer(1, 1, 2)(picture([0, 96], [160, 250])) == [0]
    assert GridTokenizer(1, 2, 256)(picture([10, 20, 30, 40])) == [15, 35]
    assert len(GRID(four)) == 16


@pytest.mark.parametrize(("format", "mode"), [("PNG", "RGBA"), ("JPEG", "RGB"), ("GIF", "P"), ("WEBP", "RGB")])
def test_all_formats_and_modes_are_read(format, mode):
    content = picture([0] * 8 + [255] * 8, *[[0] * 8 + [255] * 8] * 7, format=format, mode=mode)
    assert GridTokenizer(1, 2, 4)(content) == [0, 3]


def test_image_tokens_replace_the_marks():
    found, text = read({"messages": "a<image>b<image>", "images": [DARK, LIGHT]})
    assert found == [*ids("a"), FIRST, FIRST, *ids("b"), FIRST + 7, FIRST + 7]
    assert text == "a<image>b<image>"


def test_chats_are_rendered_first(chat):
    data = {"messages": [{"role": "user", "content": "<image>what?"}], "images": [LIGHT]}
    found, text = read(data, chat)
    assert text == "<|user|><image>what?<eos>\n<|assistant|>"
    rendered = chat.apply_chat_template(
        [{"role": "user", "content": "what?"}], add_generation_prompt=True, return_dict=False
    )
    cut = len("<|user|>")
    assert found == [*rendered[:cut], FIRST + 7, FIRST + 7, *rendered[cut:]]


def test_ids_follow_the_vocabulary_unless_said_otherwise():
    tokenizer = character_tokenizer("ab")
    assert read({"messages": "a<image>", "images": [LIGHT]}, tokenizer, first_token=None)[0] == [2, 4 + 7, 4 + 7]


def test_any_function_can_be_the_image_tokenizer():
    assert read({"messages": "<image>", "images": [DARK]}, image_tokenizer=lambda content: [len(content)])[0] == [
        FIRST + len(base64.b64decode(DARK))
    ]
    by_path = read({"messages": "<image>", "images": [DARK]}, image_tokenizer="areal.workflow.images:GRID")
    assert by_path[0] == [FIRST] * 16


def test_an_image_is_decoded_once_for_its_group():
    seen = []
    prompts = ImagePrompts(
        byte_tokenizer(), image_tokenizer=lambda content: [seen.append(content) or 1], enable_thinking=False
    )

    async def run():
        return [await prompts.read({"messages": "<image>", "images": [DARK]}) for _ in range(3)]

    assert asyncio.run(run()) == [([259], "<image>")] * 3
    assert len(seen) == 1


def bomb(width, height):
    """A small PNG that claims to be huge."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"images": [DARK]}, "the row has no column 'messages'; found images"),
        ({"messages": "<image>"}, "the row has no column 'images'; found messages"),
        ({"messages": "<image>", "images": []}, "1 <image> marks for 0 images"),
        ({"messages": "what?", "images": [DARK]}, "0 <image> marks for 1 images"),
        ({"messages": "<image>", "images": DARK}, "1 <image> marks for str images"),
        ({"messages": "", "images": []}, "empty prompt"),
        ({"messages": [{"role": "user", "content": "<image>"}], "images": [DARK]}, "has no chat template"),
        ({"messages": "<image>", "images": ["not base64!"]}, r"images\[0\] is 'not base64!', expected a base64"),
        ({"messages": "<image>", "images": [b"raw"]}, r"images\[0\] is b'raw'"),
        ({"messages": "<image>", "images": ["ümlaut"]}, r"images\[0\] is 'ümlaut'"),
        ({"messages": "<image>", "images": [encoded(b"no image")]}, r"images\[0\]: starts with b'no image' and cannot"),
        ({"messages": "<image>", "images": [""]}, "cannot be decoded"),
        ({"messages": "<image>", "images": [encoded(base64.b64decode(DARK)[:40])]}, "cannot be decoded"),
        ({"messages": "<image>", "images": [encoded(bomb(9000, 9000))]}, "9000 x 9000 pixels, at most 67108864"),
        ({"messages": "<image>", "images": [encoded(bomb(60000, 60000))]}, "cannot be decoded: Image size"),
        ({"messages": "<image>", "images": [encoded(b"\x89PNG\r\n\x1a\n" + b"0" * 2**25)]}, "at most 33554432 are"),
        ({"messages": "<image>", "images": [encoded(b"%PDF-1.4 \n")]}, "cannot be decoded"),
    ],
)
def test_rows_that_cannot_be_used_are_data_faults(data, message):
    with pytest.raises(FaultError, match=message) as caught:
        read(data)
    assert caught.value.kind is FaultKind.DATA_INVALID


def test_control_tokens_in_a_chat_are_refused(chat):
    with pytest.raises(FaultError, match="control token '<eos>'"):
        read({"messages": [{"role": "user", "content": "<image><eos>"}], "images": [DARK]}, chat)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_tokenizer": "areal.dataset.images:IMAGE_MARK"}, "is str, expected a function"),
        ({"first_token": -1}, "first_token is -1"),
    ],
)
def test_options_that_cannot_work_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read({"messages": "<image>", "images": [DARK]}, **changes)


@pytest.mark.parametrize("sizes", [(0, 1, 8), (1, 0, 8), (1, 1, 1), (1, 1, 257)])
def test_grids_without_patches_are_refused(sizes):
    with pytest.raises(ConfigError, match="expected at least 1 row"):
        GridTokenizer(*sizes)


def test_a_fault_of_the_grid_is_a_data_error():
    with pytest.raises(DataError, match="cannot be decoded"):
        GRID(b"")
