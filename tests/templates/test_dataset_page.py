"""What `areal-new dataset` refuses before anything is rendered, and what it tells about the data."""

from __future__ import annotations

import dataset_units as units
import pytest

from tooling.cli.errors import UsageError

HASHES = units.ROWS["hashes"]


def refused(snake, answers=None, **options):
    with pytest.raises(UsageError) as caught:
        units.prepared(snake, answers, **options)
    return caught.value


def test_rows_that_contradict_the_schema_are_named(tmp_path):
    rows = [
        *HASHES[:3],
        {"question": 7, "answer": "#### 1"},
        "{broken",
        *HASHES[3:],
        {"question": "q", "answer": "none"},
    ]
    path = units.write_lines(tmp_path / "rows.jsonl", rows)
    error = refused("digits", from_=path)
    assert error.message == (
        "3 rows contradict the schema: "
        "line 5: not JSON (Expecting property name enclosed in double quotes at column 2); "
        "line 4: question is int, expected a string; line 17: answer has no final line such as '#### 72'"
    )
    assert error.where == f"{path}:5"
    assert error.exit_code == 2


def test_at_most_five_bad_rows_are_spelled_out(tmp_path):
    path = units.write_lines(tmp_path / "rows.jsonl", [*HASHES, *[{"question": "", "answer": "#### 1"}] * 9])
    error = refused("digits", from_=path)
    assert error.message.startswith("9 rows contradict the schema: line 15: question is empty; ")
    assert error.message.endswith("; and 4 more")


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([{"a": "1", "b": "2"}], {}, "no column is known to hold the question; say which with --question-column"),
        (
            [{"prompt": "p", "query": "q", "answer": "a"}],
            {},
            "no column is known to hold the question: 'prompt', 'query' could; say which with --question-column",
        ),
        (units.ROWS["numbers"], {"kind": "both"}, "rows do not fit sft: the answers are numbers, and SFT learns text"),
        (HASHES, {"kind": "preference"}, "no column is known to hold the chosen answer"),
        (units.ROWS["pictures"], {"kind": "sft"}, "rows do not fit sft: images are for rl: SFT rows hold text only"),
        ([""], {}, "the split has no rows"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_the_reason(tmp_path, rows, options, message):
    error = refused("digits", from_=units.write_lines(tmp_path / "rows.jsonl", rows), **options)
    assert message in error.message


def test_errors_list_the_columns_with_their_types_and_an_example(tmp_path):
    rows = [{"a": f"first {number}", "b": number} for number in range(3)]
    path = units.write_lines(tmp_path / "rows.jsonl", rows)
    lines = refused("digits", from_=path).text.splitlines()
    assert lines[0] == "columns of the 3 rows that were read:"
    assert [line.split(None, 2) for line in lines[1:]] == [["a", "text", "first 0"], ["b", "number", "0"]]
    assert "  question" in refused("digits", from_=units.write_lines(tmp_path / "rows.jsonl", [*HASHES, "{"])).text
    many = units.write_lines(tmp_path / "rows.jsonl", [{f"c{number}": "x" for number in range(40)}])
    assert refused("digits", from_=many).text.endswith("  and 10 more")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"question": "\xff"}\n', "no row of 1 can be read: line 1: not UTF-8 (byte 0xff at column 15)"),
        (b"[1, 2]\n", "no row of 1 can be read: line 1: a JSON object expected, found list"),
        (b'{"a": ' + b"[" * 10_000 + b"\n", "no row of 1 can be read: line 1: lists or objects are nested too deeply"),
    ],
)
def test_rows_that_nobody_can_read_are_refused_with_the_true_reason(tmp_path, content, message):
    (tmp_path / "rows.jsonl").write_bytes(content)
    error = refused("digits", from_=str(tmp_path / "rows.jsonl"))
    assert message in error.message
    assert "areal[train]" not in str(error)


def test_columns_are_chosen_by_option(tmp_path):
    rows = [{"prompt": f"p{n}", "query": f"q{n}", "answer": "a", "gold": "b"} for n in range(3)]
    path = units.write_lines(tmp_path / "rows.jsonl", rows)
    answers = units.prepared("digits", {"question_column": "query", "answer_column": "gold"}, from_=path).answers
    assert (answers["question_column"], answers["answer_column"], answers["solution_column"]) == (
        "query",
        "gold",
        "gold",
    )
    error = refused("digits", {"question_column": "quary", "answer_column": "gold"}, from_=path)
    assert "there is no column 'quary' for question: did you mean 'query'?" in error.message


@pytest.mark.parametrize("name", ['q"', "q\\", "q\n", "{q}", "q'", "q" * 41, " q", "`q`"])
def test_a_column_name_that_could_become_code_is_refused(tmp_path, name):
    path = units.write_lines(tmp_path / "rows.jsonl", [{name: "text", "answer": "a"}] * 3)
    error = refused("digits", {"question_column": name}, from_=path)
    assert "has a name that cannot be written into source code" in error.message


@pytest.mark.parametrize(
    "name", ["question", "q_1", "Math-Problem", "data.question", "question text", "\u95ee\u9898", "q"]
)
def test_column_names_that_people_use_are_taken(tmp_path, name):
    path = units.write_lines(tmp_path / "rows.jsonl", [{name: "text", "answer": "a"}] * 3)
    assert units.prepared("digits", {"question_column": name}, from_=path).answers["question_column"] == name


def test_options_that_make_no_sense_are_refused(tmp_path):
    assert "'rll' is not a kind of dataset" in refused("digits", kind="rll").message
    assert refused("digits", split="test").fix == "add --from PATH"
    assert "no dataset at" in refused("digits", from_=tmp_path / "nothing").message
    error = refused("digits", {"messages_column": "chat"})
    assert (error.where, error.fix) == ("--messages-column", "inspect real data with --from PATH")
    assert "two columns have the same name" in refused("digits", {"question_column": "x", "answer_column": "x"}).message


def test_a_path_that_looks_like_an_option_or_a_command_is_only_a_path(tmp_path, monkeypatch, own_processes):
    monkeypatch.chdir(tmp_path)
    units.write_lines(tmp_path / "--json.jsonl", HASHES)
    assert units.prepared("digits", from_="--json.jsonl").answers["final"] == "hash"
    units.write_lines(tmp_path / "$(touch owned);.jsonl", HASHES)
    assert units.prepared("digits", from_="$(touch owned);.jsonl").answers["origin"] == "_(touch owned)_.jsonl"
    assert not (tmp_path / "owned").exists()


def test_what_is_left_out_is_said(tmp_path):
    rows = [{**row, "level": 3} for row in HASHES]
    rows[4]["id"] = rows[3]["id"]
    warnings = units.prepared("digits", from_=units.write_lines(tmp_path / "rows.jsonl", rows)).warnings
    assert warnings == (
        "columns that no loader reads: level",
        "1 note about the rows, the first: line 5: id 3 was already used at line 4",
    )


def test_a_second_preparation_without_options_changes_nothing(tmp_path):
    made = units.prepared("digits", from_=units.write_lines(tmp_path / "rows.jsonl", HASHES))
    assert units.prepared("digits", dict(made.answers)).answers == {}


def test_the_scaffold_takes_names_of_columns():
    answers = units.prepared("digits", {"question_column": "prompt", "answer_column": "gold"}).answers
    assert (answers["question_column"], answers["answer_column"], answers["loaders"]) == (
        "prompt",
        "gold",
        ["rl", "sft"],
    )
    assert all('"prompt"' in line and '"gold"' in line for line in answers["rows"]["train"])


def test_rows_that_all_ask_the_same_are_told(tmp_path):
    path = units.write_lines(tmp_path / "rows.jsonl", [{"question": "q", "answer": "a"}] * 9)
    assert units.prepared("digits", from_=path).warnings == (
        "all rows ask the same, so the packaged test row is the packaged train row",
    )
