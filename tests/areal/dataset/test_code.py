"""Programming exercises in the shapes of APPS, TACO and LiveCodeBench become rows for the reward `code`."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib

import pytest

from areal.api import ConfigError, DataError
from areal.dataset.code import decode_private_cases, exercise
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.loading import load_dataset


def load(**config):
    return load_dataset(DatasetConfig(name="code_rl", **config), byte_tokenizer(), kind="rl")


def packed(value) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_packaged_rows_of_every_shape_become_prompts_with_cases():
    rows = load()
    assert (len(rows), len(load(split="test"))) == (6, 2)
    assert rows["fn_name"] == ["", "reverse_words", "", "two_sum", "", "countVowels"]
    assert [len(json.loads(cases)) for cases in rows["cases"]] == [3, 3, 2, 2, 3, 3]
    assert rows["time_limit"] == [None, None, 2.0, 1.0, None, None]
    assert rows["memory_limit"] == [None, None, 256.0, None, None, None]
    assert json.loads(rows[2]["cases"])[1] == {"input": "1\n7", "output": "7 1"}
    assert json.loads(rows[1]["cases"])[0]["results"] == [["blue is sky the"], "blue is sky the"]
    assert json.loads(rows[5]["cases"]) == [
        {"arguments": ["banana"], "result": 3}, {"arguments": ["rhythm"], "result": 0}, {"arguments": [""], "result": 0}
    ]  # fmt: skip
    assert "class Solution:" in rows[5]["messages"]
    assert (
        rows[5]["messages"]
        .rstrip()
        .endswith("Write Python that defines `countVowels`, in one block fenced as ```python.")
    )
    assert "reads standard input" in rows[0]["messages"]


def test_options_choose_language_cases_and_words():
    rows = load(options={"language": "cpp", "max_cases": 1, "private": False, "instruction": ""})
    assert {len(json.loads(cases)) for cases in rows["cases"]} == {1}
    assert set(rows["language"]) == {"cpp"}
    assert "Write" not in rows[0]["messages"]
    assert "Write C++ that" in load(options={"language": "cpp"})[0]["messages"]
    for options in ({"language": "rust"}, {"max_cases": -1}):
        with pytest.raises(ConfigError, match="expected"):
            load(options=options)


def test_hidden_cases_are_json_or_one_packed_text():
    cases = [{"input": "1", "output": "é", "testtype": "stdin"}]
    assert decode_private_cases(json.dumps(cases)) == cases
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        text = base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases), protocol))).decode()
        assert decode_private_cases(text) == cases


class _Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (packed(_Evil()), "may hold one text only: not loaded"),
        (packed(["[]", _Evil()]), "not loaded"),
        (packed(7), "not loaded"),
        (packed(b"[]"), "not loaded"),
        (packed("no json"), "not JSON"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "cannot be decoded"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]")[:-3])).decode(), "cannot be decoded"),
        (base64.b64encode(b"no zlib").decode(), "neither JSON nor base64 of zlib"),
        ("no base64!", "neither JSON nor base64 of zlib"),
    ],
)
def test_no_pickle_is_ever_loaded(text, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=why):
        decode_private_cases(text)
    assert list(tmp_path.iterdir()) == []


def test_a_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr("areal.dataset.code._MAX_DECODED_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="unpacks to more than 1 MB"):
        decode_private_cases(base64.b64encode(zlib.compress(bytes(2 << 20))).decode())


APPS = {"question": "Add.", "input_output": json.dumps({"inputs": ["1"], "outputs": ["1"]})}
LIVE = {
    "question_content": "Add.",
    "public_test_cases": json.dumps([{"input": "1", "output": "1", "testtype": "stdin"}]),
}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "x"}, "expected a column input_output"),
        ({**APPS, "question": " "}, "question is ' '"),
        ({**APPS, "input_output": "{"}, "not JSON"),
        ({**APPS, "input_output": "[]"}, "expected a mapping"),
        ({**APPS, "input_output": '{"inputs": ["1"], "outputs": []}'}, "not lists of one length"),
        ({**APPS, "input_output": '{"inputs": [{}], "outputs": ["1"]}'}, "neither a text"),
        ({**APPS, "input_output": '{"fn_name": "f", "inputs": [1], "outputs": [1]}'}, "expected a list"),
        ({**LIVE, "metadata": '{"func_name": "f"}'}, "func_name 'f'"),
        ({**LIVE, "public_test_cases": '[{"input": 1}]'}, "test case 1"),
        ({**LIVE, "private_test_cases": "?"}, "neither JSON"),
    ],
)
def test_rows_that_make_no_sense_say_what_is_wrong(row, why):
    with pytest.raises(ValueError, match=why):
        exercise(row)


def test_complaints_name_the_line_and_empty_rows_are_dropped(tmp_path, caplog):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in (APPS, {**APPS, "input_output": ""}, LIVE)))
    assert len(load(path=str(file))) == 2
    assert "dropped 1 of 3 rows, which have no cases" in caplog.text
    file.write_text(json.dumps(APPS) + "\n" + json.dumps({**APPS, "time_limit": "2 fortnights"}) + "\n")
    with pytest.raises(DataError, match="line 2: time_limit is '2 fortnights', expected a number and one of"):
        load(path=str(file))
