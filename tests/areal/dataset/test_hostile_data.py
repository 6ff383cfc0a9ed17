"""What the inspection of a dataset says about files that are made to break or to exhaust it, and what that costs."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from areal.api import DataError
from areal.dataset.files import ReadLimits
from areal.dataset.inspection import report as inspection
from areal.dataset.inspection.__main__ import main
from areal.dataset.inspection.report import Request, inspect_split

if TYPE_CHECKING:
    from pathlib import Path

GOOD = '{"question": "1+1?", "answer": "2"}\n'
MEASURED = """
import re, sys
from areal.dataset.inspection.__main__ import limit_memory, main
limit_memory()
code = main(sys.argv[1:])
most = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
print(code, int(most[1]) // 1024, file=sys.stderr)
"""


def inspect(folder: Path, content: bytes | str, name: str = "rows.jsonl") -> dict[str, Any]:
    """Return the report on a file."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return inspect_split(path, "train", Request())


def first_problem(report: dict[str, Any]) -> str:
    """Return the place of the first row that cannot be read, and why."""
    return f"{report['problems'][0]['place']}: {report['problems'][0]['problem']}"


def measured(*arguments: object) -> tuple[dict[str, Any], int, int]:
    """Return the answer of the command, its exit code and the most memory it took in MiB."""
    if not sys.platform.startswith("linux"):
        pytest.skip("the most memory of a process is read from /proc")
    command = [sys.executable, "-c", MEASURED, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, mebibytes = done.stderr.split()[-2:]
    return json.loads(done.stdout), int(code), int(mebibytes)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"question": "\xff"}\n', "line 2: not UTF-8 (byte 0xff at column 15)"),
        (b'{"question": 1,,}\n', "line 2: not JSON (Expecting property name enclosed in double quotes at column 16)"),
        (b"[1, 2]\n", "line 2: a JSON object expected, found list"),
        (b"5\n", "line 2: a JSON object expected, found int"),
        (b"null\n", "line 2: a JSON object expected, found NoneType"),
        (b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b"}\n", "line 2: lists or objects are nested too deeply"),
        (b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}\n", "line 2: lists or objects are nested too deeply; at most 64"),
    ],
)
def test_each_kind_of_broken_row_has_its_own_message_with_the_line(tmp_path, line, problem):
    assert first_problem(inspect(tmp_path, GOOD.encode() + line)).startswith(problem)


def test_rows_within_the_limits_are_read(tmp_path):
    deep = '{"question": "a", "answer": "b", "x": ' + "[" * 62 + "]" * 62 + "}\n"
    assert inspect(tmp_path, "\ufeff" + GOOD + deep)["num_fatal"] == 0


@pytest.mark.parametrize("content", [b"[1, 2]\n5\n", b"\xff\n\xff\n"])
def test_when_no_row_can_be_read_that_is_the_reason(tmp_path, content):
    report = inspect(tmp_path, content)
    assert report["mapping"] is None
    assert report["reasons"] == [f"no row of 2 can be read: {first_problem(report)}"]


def test_a_file_without_rows_says_so(tmp_path):
    for name in ("rows.jsonl", "rows.json", "rows.csv"):
        assert inspect(tmp_path, "", name)["reasons"] == ["the split has no rows"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.json", b'[\n{"question": "\xff"}]', r"rows\.json:2: not UTF-8 \(byte 0xff at column 15\)"),
        ("rows.json", b"[" * 100_000, r"nested too deeply"),
        ("rows.json", b'[\n{"a": 1},\n]', r"rows\.json:3: not JSON"),
        ("rows.csv", b'question,answer\n"1+1?,2\n3,4\n', r"line 2: not CSV \(a quotation mark .* never closed"),
        ("rows.jsonl.gz", gzip.compress(b"x" * 100)[:-9], r"damaged gzip file"),
        ("rows.parquet", b"PAR1" + bytes(100), r"not a readable parquet file"),
    ],
)
def test_a_damaged_file_says_where(tmp_path, name, content, problem):
    with pytest.raises(DataError, match=problem):
        inspect(tmp_path, content, name)


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_more_columns_than_anybody_names_are_refused(tmp_path, form):
    row = {f"column_{number}": "1" for number in range(2_000)}
    path = tmp_path / f"rows.{form}"
    if form == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({name: ["1"] for name in row}), path)
    else:
        path.write_text(json.dumps(row) if form == "jsonl" else f"{','.join(row)}\n{','.join(row.values())}\n")
    with pytest.raises(DataError, match=r"columns \('column_0', 'column_1', .*Keep those that a loader needs"):
        inspect_split(path, "train", Request())


def test_columns_that_differ_from_row_to_row_are_counted_together(tmp_path):
    rows = "".join(json.dumps({f"column_{number}": 1}) + "\n" for number in range(1_001))
    with pytest.raises(DataError, match=r"line 1001: more than 1,000 columns"):
        inspect(tmp_path, rows)


def test_the_limits_hold_for_lines_fields_tables_and_whole_files(tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "LIMITS", ReadLimits(row_bytes=1_000, unpacked_bytes=5_000))
    with pytest.raises(DataError, match=r"line 2 is longer than 1000 bytes"):
        inspect(tmp_path, GOOD + "x" * 1_001)
    with pytest.raises(DataError, match=r"line 2 is longer than 1000 bytes|quotation mark"):
        inspect(tmp_path, 'question,answer\n"' + "x,\n" * 1_000, "rows.csv")
    with pytest.raises(DataError, match=r"unpacks to more than 5000 bytes \(line"):
        inspect(tmp_path, gzip.compress(GOOD.encode() * 1_000), "rows.jsonl.gz")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"question": ["x" * (2 << 20)]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"a row is longer than 1000 bytes"):
        inspect_split(tmp_path / "rows.parquet", "train", Request())


def test_what_takes_too_much_memory_all_the_same_is_said(tmp_path, monkeypatch, capsys):
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("areal.dataset.inspection.__main__.inspect_split", exhausted)
    assert main([str(tmp_path), "--json"]) == DataError.exit_code
    assert "takes more than 6 GiB of memory" in json.loads(capsys.readouterr().out)["error"]


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """A line of 256 MiB in a file of 256 KiB."""
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(256):
            stream.write(b"0" * (1 << 20))
    return path


@pytest.mark.exhaustive
def test_a_compressed_bomb_costs_little_memory(bomb):
    answer, code, mebibytes = measured(bomb)
    assert code == DataError.exit_code
    assert answer["error"].endswith("line 1 is longer than 32 MiB")
    assert mebibytes < 200


@pytest.mark.exhaustive
def test_a_table_of_few_bytes_that_stands_for_gigabytes_costs_little_memory(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 100, pyarrow.int32()), ["x" * (20 << 20)])
    parquet.write_table(pyarrow.table({"question": text}), tmp_path / "rows.parquet")
    answer, code, mebibytes = measured(tmp_path / "rows.parquet", "--rows", 2)
    assert (code, answer["rows"], answer["complete"]) == (0, 2, False)
    assert mebibytes < 600
