"""What a command's end becomes: its object, cut to fit, and a few lines of text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from tooling.mcp.answers import answer_of, shortened
from tooling.mcp.paging import Shelf, assemble, size
from tooling.mcp.processes import Finished
from tooling.mcp.tools.call import output_schema
from tooling.mcp.tools.table import offered

REVIEW = offered(writes=False).tools["review"]
GOOD = {"ok": True, "command": "areal-review", "exit_code": 0, "dry_run": False, "plan": [], "registered": []}
MORE = {"answer": "0123abcd", "pages": 3}
GOOD |= {"checks": [], "next": [], "warnings": [], "findings": []}


def answer(status=0, output=b"", stderr="", problem="", **changes):
    output = output or json.dumps(GOOD | {"exit_code": status} | changes).encode()
    finished = Finished(status, output, stderr, problem)
    found = answer_of(REVIEW, finished, shelf=Shelf(100_000), seconds=60)
    Draft202012Validator(output_schema(REVIEW)).validate(found.document)
    return found


def test_the_object_is_handed_on_as_it_is():
    assert answer(findings=[{"line": 3}]).document == GOOD | {"findings": [{"line": 3}]}


def test_a_verdict_is_no_failure_and_an_error_is():
    assert not answer(10, findings=[{"line": 3}]).failed
    failed = answer(2, error="no such revision", where="--base", fix="name another", code="usage")
    assert failed.failed
    assert failed.text.splitlines()[:4] == [
        "areal-review: exit code 2: failed", "error: no such revision", "where: --base", "fix: name another",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("finished", "code", "status"),
    [
        ({"problem": "timeout", "status": 130}, "timeout", 124),
        ({"problem": "output", "status": 130}, "output", 1),
        ({"status": -9, "output": b"{", "stderr": "Killed\n"}, "killed", 137),
        ({"status": 0, "output": b"usage: areal-review"}, "no-answer", 1),
        ({"status": 3, "output": b"[1, 2]"}, "no-answer", 3),
        ({"status": 1, "output": b"\xff", "stderr": "Traceback\nImportError: x\n"}, "no-answer", 1),
    ],
)
def test_a_command_without_an_answer_becomes_one(finished, code, status):
    found = answer(**finished)
    assert (found.failed, found.document["code"], found.document["exit_code"]) == (True, code, status)
    assert found.document["error"]
    assert found.document["fix"]
    if finished.get("stderr"):
        assert finished["stderr"].strip() in found.text


def test_the_text_is_short_and_harmless_on_a_terminal():
    found = answer(findings=[{"message": "\x1b[31m" + "x" * 5_000}] * 500, warnings=["\x1b[2J"])
    assert len(found.text) <= 4_000
    assert "\x1b" not in found.text
    assert "findings (500):" in found.text
    assert "... and 492 more" in found.text


def test_what_is_cut_is_named():
    document = {"plan": [{"path": "a", "diff": "x" * 50_000}], "findings": [{"n": n} for n in range(40_000)]}
    found = shortened(document, 20_000, MORE)
    assert size(found) <= 20_000
    assert found["more"] == MORE
    assert found["plan"][0]["path"] == "a"
    cuts = {cut["path"]: cut for cut in found["truncated"]}
    assert cuts["findings"]["of"] == 40_000
    assert cuts["findings"]["kept"] == len(found["findings"])
    assert cuts["plan[0].diff"]["of"] == 50_000
    assert found["plan"][0]["diff"].endswith(f"[{50_000 - cuts['plan[0].diff']['kept']} more characters]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=20), inner, max_size=40),
    max_leaves=60,
)


LONG = {
    "text": {"warnings": ["é\n" * 90_000]},
    "rows": {"findings": [{"message": "x" * 300, "n": n} for n in range(2_000)]},
    "wide": {"risk": {f"key{n}" * 20: n for n in range(20_000)}},
    "name": {"risk": {"k" * 9_000: "v" * 30_000}},
    "deep": {"findings": json.loads('[{"a long name of it":' * 300 + "1" + "}]" * 300)},
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("status", [0, 2])
@pytest.mark.parametrize("changes", LONG.values(), ids=LONG)
@pytest.mark.parametrize("most", [4_000, 25_000])
def test_text_and_object_together_fit_and_the_pages_hold_the_whole(changes, status, most):
    shelf = Shelf(most)
    printed = GOOD | {"exit_code": status} | changes
    finished = Finished(status, json.dumps(printed).encode(), "é\n" * 9_000)
    found = answer_of(REVIEW, finished, shelf=shelf, seconds=60)
    assert len(found.text) + size(found.document) <= most
    if found.document == printed:
        assert changes is LONG["deep"], "only this one fits as it is"
        return
    assert printed.keys() <= found.document.keys()
    more = found.document["more"]
    assert f"answer={more['answer']}" in found.text
    pages = [shelf.page({"answer": more["answer"], "page": page + 1}) for page in range(more["pages"])]
    assert all(len(page) <= most for page in pages)
    assert assemble(part for page in pages for part in json.loads(page)["parts"]) == printed


def test_the_limit_is_met_exactly():
    printed = GOOD | {"findings": [{"message": "x" * 5_000}]}
    answered = answer(**{"findings": printed["findings"]})
    length = len(answered.text) + size(printed)
    for most, cut in ((length, False), (length - 1, True)):
        finished = Finished(0, json.dumps(printed).encode(), "")
        assert ("more" in answer_of(REVIEW, finished, shelf=Shelf(most), seconds=60).document) is cut


@settings(max_examples=8)
@given(document=st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON))
def test_any_object_is_made_to_fit_and_keeps_its_keys(document):
    found = shortened(document, 3_000, MORE)
    assert size(found) <= 3_000
    assert document.keys() <= found.keys()
