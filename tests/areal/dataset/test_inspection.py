"""What the inspection of a dataset says, on real files of every format and on broken ones."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest

from areal.api import ConfigError, DataError
from areal.dataset.inspection.report import Request, inspect_split

SHARED = Path(__file__).parents[4] / "shared" / "data"
QUESTIONS = [
    {"question": f"What is {a} plus {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}", "id": f"sum-{a}-{b}"}
    for a in range(4)
    for b in range(5)
]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"Count to {n}."},
            {"role": "assistant", "content": "1 2 3 4"[: 2 * n - 1]},
        ]
    }
    for n in (1, 2, 3, 4)
]
PAIRS = [
    {
        "chosen": f"\n\nHuman: Is {n} even?\n\nAssistant: {'Yes' if n % 2 == 0 else 'No'}.",
        "rejected": f"\n\nHuman: Is {n} even?\n\nAssistant: I do not know.",
    }
    for n in range(6)
]


def write_lines(path, rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


def inspect(path, split="train", **request):
    return inspect_split(path, split, Request(**request))


def complaints(report):
    return [f"{problem['place']}: {problem['problem']}" for problem in report["problems"] if problem["fatal"]]


def save(folder, name, rows):
    """Write rows in one format; returns the path to inspect."""
    made = datasets.Dataset.from_list(rows)
    if name == "jsonl":
        return write_lines(folder / "train.jsonl", rows)
    if name == "jsonl.gz":
        with gzip.open(folder / "train.jsonl.gz", "wt") as stream:
            stream.write("\n".join(map(json.dumps, rows)))
    elif name == "json":
        (folder / "train.json").write_text(json.dumps(rows, indent=1))
    elif name == "csv":
        made.to_csv(str(folder / "train.csv"))
    elif name == "tsv":
        made.to_csv(str(folder / "train.tsv"), sep="\t")
    elif name == "parquet":
        made.to_parquet(str(folder / "train-00000-of-00001.parquet"))
    else:
        datasets.DatasetDict(train=made).save_to_disk(str(folder))
    return folder


FORMATS = ["jsonl", "jsonl.gz", "json", "csv", "tsv", "parquet", "saved"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_leads_to_the_same_mapping_of_questions(tmp_path, name):
    report = inspect(save(tmp_path, name, QUESTIONS))
    assert report["rows"] == 20
    assert report["complete"]
    assert report["mapping"] == {
        "form": "text", "kinds": ("rl", "sft"), "question": "question", "answer": "answer", "final": "hash",
        "solution": "answer", "messages": "", "chosen": "", "rejected": "", "image": "", "keep": ("id",),
    }  # fmt: skip
    assert report["num_fatal"] == report["num_notes"] == 0


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_holds_preference_pairs(tmp_path, name):
    report = inspect(save(tmp_path, name, PAIRS))
    assert (report["mapping"]["form"], report["mapping"]["kinds"]) == ("pair_transcripts", ("preference",))
    assert report["num_fatal"] == 0


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("csv", "tsv")])
def test_every_nested_format_holds_chats(tmp_path, name):
    report = inspect(save(tmp_path, name, CHATS))
    assert (report["mapping"]["form"], report["mapping"]["kinds"]) == ("chat", ("rl", "sft"))
    assert report["num_fatal"] == 0


def test_columns_are_counted_value_by_value(tmp_path):
    rows = [{"question": "ab", "answer": "x"}, {"question": "abcd", "answer": None}, {"question": " "}]
    columns = {column["name"]: column for column in inspect(write_lines(tmp_path / "train.jsonl", rows))["columns"]}
    assert columns["question"]["length"] == {"min": 1, "mean": 2.3, "max": 4}
    assert (columns["question"]["empty"], columns["question"]["missing"]) == (1, 0)
    assert columns["answer"]["types"] == {"null": 1, "text": 1}
    assert (columns["answer"]["null"], columns["answer"]["missing"]) == (1, 1)
    assert columns["question"]["examples"] == ["ab", "abcd", ""]


def test_every_contradiction_is_named_with_its_line(tmp_path):
    rows = [
        QUESTIONS[0],
        {"question": 7, "answer": "1\n#### 1", "id": "a"},
        "{broken",
        {"question": "q", "answer": "no mark", "id": "b"},
        {"answer": "#### 1", "id": "c"},
        {"question": "  ", "answer": "#### 1", "id": "d"},
        {"question": "q", "answer": None, "id": "d"},
        {"question": "\ud800", "answer": "#### 1", "id": "e"},
        *QUESTIONS[1:],
    ]
    report = inspect(write_lines(tmp_path / "train.jsonl", rows))
    assert complaints(report) == [
        "line 3: not JSON (Expecting property name enclosed in double quotes at column 2)",
        "line 2: question is int, expected a string",
        "line 4: answer has no final line such as '#### 72'",
        "line 5: no column 'question': found answer, id",
        "line 6: question is empty",
        "line 7: answer is NoneType, expected a string",
        "line 8: half of a surrogate pair ('\\ud800') at character 1",
    ]
    assert [(note["place"], note["problem"]) for note in report["problems"] if not note["fatal"]] == [
        ("line 7", "id 'd' was already used at line 6")
    ]


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ([], "messages: expected a list of turns, found an empty one"),
        ([{"role": "assistant", "content": "a"}], "messages: has no turn before the assistant's"),
        ([{"role": "user", "content": "a"}], "messages: ends with a turn of 'user', expected the assistant's"),
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}],
            "messages: the last assistant turn is empty",
        ),
        ([{"role": "user", "content": None}], "messages: turn 0: speaker and text must be strings"),
        ([{"from": "martian", "value": "a"}], "messages: turn 0: unknown speaker 'martian', expected one of"),
        ("text", "messages: expected a list of turns, found str"),
    ],
)
def test_a_chat_that_cannot_be_learned_is_named(tmp_path, turns, problem):
    (found,) = complaints(inspect(write_lines(tmp_path / "train.jsonl", [*CHATS, {"messages": turns}])))
    assert found.startswith(f"line 5: {problem}")


def test_conversations_with_from_and_value_are_chats(tmp_path):
    rows = [{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}] * 3
    report = inspect(write_lines(tmp_path / "train.jsonl", rows))
    assert report["mapping"]["messages"] == "conversations"
    assert report["num_fatal"] == 0


def test_chats_that_wait_for_an_answer_are_for_rl_only(tmp_path):
    rows = [{"messages": row["messages"][:1], "answer": "4"} for row in CHATS]
    path = write_lines(tmp_path / "train.jsonl", rows)
    assert inspect(path)["mapping"]["form"] == "prompt_chat"
    report = inspect(path, kind="sft")
    assert report["mapping"] is None
    assert report["reasons"] == ["rows do not fit sft: most chats do not end with an assistant turn to learn"]


def test_final_answers_in_boxes_and_numbers_are_told_apart(tmp_path):
    boxed = [{"problem": f"p{n}", "solution": rf"so \boxed{{\frac{{{n}}}{{2}}}} it is"} for n in range(3)]
    report = inspect(write_lines(tmp_path / "boxed.jsonl", boxed), excerpt=(2, 1))
    assert (report["mapping"]["answer"], report["mapping"]["final"]) == ("solution", "boxed")
    assert [row["final"] for row in report["excerpt"]["train"]] == [r"\frac{0}{2}", r"\frac{1}{2}"]
    numbers = [{"problem": "p", "answer": n} for n in range(3)]
    assert inspect(write_lines(tmp_path / "numbers.jsonl", numbers))["mapping"]["final"] == "number"


def test_equal_candidates_are_listed_and_the_caller_decides(tmp_path):
    rows = [{"prompt": "p", "question": "q", "answer": "a"}]
    path = write_lines(tmp_path / "train.jsonl", rows)
    report = inspect(path)
    assert report["mapping"] is None
    assert report["reasons"] == [
        "no column is known to hold the question: 'prompt', 'question' could; say which with --question-column"
    ]
    assert inspect(path, columns={"question": "prompt"})["mapping"]["question"] == "prompt"
    with pytest.raises(ConfigError, match="there is no column 'promt' for question: did you mean 'prompt'"):
        inspect(path, columns={"question": "promt"})


def test_columns_of_unknown_names_are_never_guessed(tmp_path):
    path = write_lines(tmp_path / "train.jsonl", [{"a": "one", "b": "two"}])
    assert inspect(path)["reasons"] == ["no column is known to hold the question; say which with --question-column"]
    mapping = inspect(path, columns={"question": "a", "answer": "b"})["mapping"]
    assert (mapping["question"], mapping["answer"], mapping["final"]) == ("a", "b", "plain")


def test_a_kept_column_of_two_types_is_fatal(tmp_path):
    rows = [{"question": "q", "answer": "a", "level": 1}, {"question": "q", "answer": "a", "level": "hard"}]
    path = write_lines(tmp_path / "train.jsonl", [*rows, rows[0]])
    assert complaints(inspect(path, keep=("level",))) == ["line 2: level is text in 1 rows and number in 2"]
    assert complaints(inspect(path)) == []


def test_pairs_without_preference_are_notes_and_never_in_an_excerpt(tmp_path):
    shared = PAIRS[0]["chosen"].partition(" Yes")[0]
    rows = [*PAIRS, {"chosen": PAIRS[0]["chosen"], "rejected": shared + " "}, {"chosen": shared, "rejected": shared}]
    report = inspect(write_lines(tmp_path / "train.jsonl", rows), excerpt=(8, 4))
    assert [(p["place"], p["problem"]) for p in report["problems"]] == [
        ("line 7", "the answer in rejected is empty; the loader drops this row"),
        ("line 8", "chosen and rejected are equal; the loader drops this row"),
    ]
    places = [row["place"] for part in report["excerpt"].values() for row in part]
    assert sorted(places) == [f"line {n}" for n in range(1, 7)]


def test_an_excerpt_holds_short_intact_rows_as_they_are(tmp_path):
    rows = [{**row, "embedding": [0.5] * 100, "question": row["question"] + "\u2028?"} for row in QUESTIONS]
    rows[3]["question"] = ""
    rows[5]["question"] = "long " * 20_000
    report = inspect(write_lines(tmp_path / "train.jsonl", rows), excerpt=(8, 4))
    chosen = [row for part in ("train", "test") for row in report["excerpt"][part]]
    assert [len(report["excerpt"][part]) for part in ("train", "test")] == [8, 4]
    assert not {"line 4", "line 6"} & {row["place"] for row in chosen}
    for row in chosen:
        assert "\u2028" not in row["line"]
        original = rows[int(row["place"].split()[1]) - 1]
        assert json.loads(row["line"]) == {name: original[name] for name in ("question", "answer", "id")}


def test_an_excerpt_of_huge_rows_is_small_in_number(tmp_path):
    rows = [{"question": f"{n} " + "long " * 10_000, "answer": "a"} for n in range(12)]
    excerpt = inspect(write_lines(tmp_path / "train.jsonl", rows), excerpt=(8, 4))["excerpt"]
    assert [len(excerpt[part]) for part in ("train", "test")] == [1, 1]


def test_no_question_is_in_both_parts_of_an_excerpt(tmp_path):
    rows = [{"id": n, "question": f"{n % 3}?", "answer": "yes" * n or "no"} for n in range(30)]
    excerpt = inspect(write_lines(tmp_path / "train.jsonl", rows), excerpt=(8, 4))["excerpt"]
    asked = [json.loads(row["line"])["question"] for part in ("train", "test") for row in excerpt[part]]
    assert sorted(asked) == ["0?", "1?", "2?"]


def test_the_test_rows_of_an_excerpt_come_from_the_test_split(tmp_path):
    write_lines(tmp_path / "train.jsonl", QUESTIONS)
    write_lines(
        tmp_path / "test.jsonl",
        [QUESTIONS[0], *({**row, "question": f"held-out {row['question']}"} for row in QUESTIONS)],
    )
    excerpt = inspect(tmp_path, excerpt=(8, 4))["excerpt"]
    assert len(excerpt["test"]) == 4
    assert all("held-out" in row["line"] for row in excerpt["test"])
    assert not any("held-out" in row["line"] for row in excerpt["train"])


def test_windows_line_ends_byte_order_marks_and_unicode_separators_are_no_problem(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = [json.dumps({**row, "question": "one\u2028two\x85three"}, ensure_ascii=False) for row in QUESTIONS]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    report = inspect(path)
    assert (report["rows"], report["num_fatal"]) == (20, 0)


def test_an_empty_file_has_no_rows(tmp_path):
    report = inspect(write_lines(tmp_path / "train.jsonl", [""]))
    assert (report["rows"], report["mapping"], report["reasons"]) == (0, None, ["the split has no rows"])


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "train.pkl").write_bytes(b"cos\nsystem\n(S'exit'\ntR.")
    with pytest.raises(DataError, match="expected a file named"):
        inspect(tmp_path / "train.pkl")


def test_only_the_first_rows_are_read_when_asked(tmp_path):
    path = write_lines(tmp_path / "train.jsonl", [*QUESTIONS, {"question": 1}])
    report = inspect(path, max_rows=10)
    assert (report["rows"], report["complete"], report["num_fatal"]) == (10, False, 0)
    report = inspect(path, max_rows=21)
    assert (report["rows"], report["complete"]) == (21, True)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "areal.dataset.inspection", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.exhaustive
def test_the_command_writes_one_object_also_on_failure(tmp_path):
    done = run(write_lines(tmp_path / "train.jsonl", QUESTIONS), "--json", "--excerpt", 2, 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["mapping"]["final"] == "hash"
    done = run(tmp_path / "nothing", "--json")
    assert done.returncode == 20
    assert json.loads(done.stdout)["ok"] is False
    done = run(tmp_path / "train.jsonl", "--question-column", "nope", "--json")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (2, 2)


def test_the_command_shows_people_no_control_characters(tmp_path):
    rows = [{"question": "\x1b[31mred\x07", "answer": "a"}]
    done = run(write_lines(tmp_path / "train.jsonl", rows))
    assert "\x1b" not in done.stdout
    assert "mapping: text, for rl and sft" in done.stdout


@pytest.mark.exhaustive
def test_twenty_thousand_rows_take_seconds(tmp_path):
    path = tmp_path / "train.jsonl"
    with path.open("w") as stream:
        for number in range(20_000):
            stream.write(f'{{"question": "What is {number} plus 1?", "answer": "#### {number + 1}", "id": {number}}}\n')
    started = time.process_time()
    report = inspect(path)
    assert (report["rows"], report["num_fatal"]) == (20_000, 0)
    assert time.process_time() - started < 20


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real datasets are not beside the repository")
def test_real_datasets_are_understood():
    gsm8k = inspect(SHARED / "gsm8k")
    assert (gsm8k["rows"], gsm8k["mapping"]["final"], gsm8k["num_fatal"]) == (7473, "hash", 0)
    hhrlhf = inspect(SHARED / "hh-rlhf" / "harmless-base-test.jsonl.gz")
    assert (hhrlhf["rows"], hhrlhf["mapping"]["form"], hhrlhf["num_fatal"]) == (2312, "pair_transcripts", 0)
    assert hhrlhf["num_notes"] == 4
