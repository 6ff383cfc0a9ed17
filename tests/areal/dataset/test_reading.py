"""Files and folders as people have them, intact and broken."""

from __future__ import annotations

import gzip
import json

import datasets
import pytest

from areal.api import DataError
from areal.dataset.reading import read_rows

ROWS = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]


def test_the_same_rows_come_from_every_format(tmp_path):
    text = "\n".join(map(json.dumps, ROWS))
    made = datasets.Dataset.from_list(ROWS)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "train.jsonl").write_text(text)
    (tmp_path / "packed").mkdir()
    with gzip.open(tmp_path / "packed" / "train.jsonl.gz", "wt") as stream:
        stream.write(text)
    (tmp_path / "table").mkdir()
    made.to_parquet(str(tmp_path / "table" / "train-00000-of-00001.parquet"))
    made.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict(train=made).save_to_disk(str(tmp_path / "splits"))
    for name in ("plain", "packed", "table", "saved", "splits", "plain/train.jsonl"):
        assert read_rows(str(tmp_path / name), "train").rows == ROWS, name


def test_blank_lines_count_as_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{json.dumps(ROWS[0])}\n\n{json.dumps(ROWS[1])}\n")
    raw = read_rows(str(path), "train")
    assert [raw.where(index) for index in range(2)] == ["line 2", "line 4"]


def test_broken_lines_are_all_reported_at_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": "\xff"}\n{"a": \n[1, 2]\n')
    with pytest.raises(DataError) as caught:
        read_rows(str(path), "train")
    message = str(caught.value)
    assert "3 unreadable lines" in message
    assert "line 2: not UTF-8 (byte 0xff at column 8)" in message
    assert "line 3: not JSON" in message
    assert "line 4: a JSON object expected, found list" in message


def test_a_byte_order_mark_is_no_error(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n')
    assert read_rows(str(path), "train").rows == [{"a": 1}]


def test_a_cut_gzip_file_is_named(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 100)[:-12])
    with pytest.raises(DataError, match="damaged gzip"):
        read_rows(str(path), "train")


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "train.parquet"
    path.write_bytes(b"not a table")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read_rows(str(path), "train")


@pytest.mark.parametrize(("pattern", "content"), [("*.arrow", b""), ("state.json", b"{"), ("*.arrow", None)])
def test_a_damaged_saved_dataset_is_named(tmp_path, pattern, content):
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    damaged = next((tmp_path / "saved").glob(pattern))
    damaged.unlink() if content is None else damaged.write_bytes(content)
    with pytest.raises(DataError, match="saved is not a readable saved dataset"):
        read_rows(str(tmp_path / "saved"), "train")


def test_a_parquet_file_with_damaged_pages_is_named(tmp_path):
    path = tmp_path / "train.parquet"
    datasets.Dataset.from_list([{"prompt": str(number)} for number in range(10_000)]).to_parquet(str(path))
    content = bytearray(path.read_bytes())
    content[100:3000] = bytes(2900)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.parquet is not a readable parquet file"):
        read_rows(str(path), "train")


def test_a_missing_split_lists_what_is_there(tmp_path):
    (tmp_path / "test.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"has no split 'train'.*found test\.jsonl"):
        read_rows(str(tmp_path), "train")
    datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS)).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="has no split 'train'; it has test"):
        read_rows(str(tmp_path / "saved"), "train")


def test_a_path_that_does_not_exist_never_reaches_the_network(tmp_path):
    with pytest.raises(DataError, match="no dataset at"):
        read_rows(str(tmp_path / "nothing"), "train")


def test_csv_tsv_and_json_arrays_give_the_same_rows(tmp_path):
    (tmp_path / "train.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\na,1\r\n\r\nb,2\r\n")
    (tmp_path / "test.tsv").write_text("question\tanswer\na\t1\nb\t2\n")
    (tmp_path / "validation.json").write_text(json.dumps(ROWS, indent=2))
    for split in ("train", "test", "validation"):
        assert read_rows(str(tmp_path), split).rows == ROWS, split


def test_a_csv_row_is_named_by_its_first_line(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('question,answer\n"two\nlines",1\nb,2\nc,3,4\n')
    with pytest.raises(DataError, match=r"1 unreadable lines: line 5: 3 fields, expected 2 \(question, answer\)"):
        read_rows(str(path), "train")
    path.write_text('question,answer\n"two\nlines",1\nb,2\n')
    raw = read_rows(str(path), "train")
    assert [raw.where(index) for index in range(2)] == ["line 2", "line 4"]
    assert raw.rows[0] == {"question": "two\nlines", "answer": "1"}


def test_a_csv_field_may_be_longer_than_the_module_allows_by_default(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text(f"question,answer\n{'x' * 300_000},1\n")
    assert len(read_rows(str(path), "train").rows[0]["question"]) == 300_000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"question;answer\na;1\n", "one column 'question;answer': expected columns separated by ','"),
        (b"a,a\n1,2\n", "column names are empty or repeated: 'a', 'a'"),
        (b'a,b\n1,"2\n', r"line 2: not CSV \(a quotation mark .* never closed"),
        (b"a,b\n1,\xff\n", r"line 2: not UTF-8 \(byte 0xff\)"),
    ],
)
def test_a_broken_csv_file_says_where(tmp_path, content, problem):
    path = tmp_path / "train.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_rows(str(path), "train")


def test_hostile_json_is_a_broken_line(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"a": ' + "[" * 100_000 + "\n" + '{"a": ' + "9" * 5000 + "}\n")
    with pytest.raises(DataError, match=r"2 unreadable lines: line 1: .*nested too deeply; line 2: not readable"):
        read_rows(str(path), "train")


def test_a_downloaded_hub_folder_is_read(tmp_path):
    (tmp_path / "data").mkdir()
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "data" / "train-00000-of-00001.parquet"))
    assert read_rows(str(tmp_path), "train").rows == ROWS
