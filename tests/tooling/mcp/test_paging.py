"""An answer that does not fit is handed out in pages, which together are the whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tooling.cli.errors import UsageError
from tooling.mcp.paging import Shelf, assemble, paginate, size

KEYS = st.text(max_size=12) | st.sampled_from(["", "/", "~", "~1", "0", "a/b"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=900),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(KEYS, inner, max_size=30),
    max_leaves=60,
)


def whole(pages):
    return assemble(json.loads(json.dumps([part for page in pages for part in page])))


@settings(max_examples=15)
@given(document=st.dictionaries(KEYS, JSON))
@example(document={})
@example(document={"a": [["x" * 2_000]] * 3, "b": {"": ["é\n\x00😀" * 900]}})
@example(document={"long" * 500: 1, "b": {"k" * 3_000: ["v"] * 900}})
@example(document={"deep": json.loads('{"a":' * 60 + '"' + "x" * 3_000 + '"' + "}" * 60)})
@example(document={"number": int("7" * 3_000)})
def test_any_object_comes_back_whole_from_pages_that_fit(document):
    pages = paginate(document, 600)
    assert all(size(page) <= 600 for page in pages)
    assert whole(pages) == document


def test_entries_stay_together_where_they_fit():
    document = {"findings": [{"n": n, "text": "x" * 50} for n in range(30)], "ok": True}
    pages = paginate(document, 1_000)
    assert len(pages) < 4
    assert {part["path"] for page in pages for part in page} == {"", "/findings"}


def test_the_newest_answers_are_kept():
    shelf = Shelf(1_000)
    kept = [shelf.keep("review", {"rows": ["x" * 90] * 40, "n": n}) for n in range(10)]
    assert len({each["answer"] for each in kept}) == 10
    texts = [shelf.page({"answer": kept[-1]["answer"], "page": n + 1}) for n in range(kept[-1]["pages"])]
    assert all(len(text) <= 1_000 for text in texts)
    pages = [json.loads(text) for text in texts]
    assert [(page["tool"], page["page"]) for page in pages] == [("review", n + 1) for n in range(len(pages))]
    assert assemble(part for page in pages for part in page["parts"])["n"] == 9
    with pytest.raises(UsageError, match="call its tool again"):
        shelf.page({"answer": kept[0]["answer"]})


@pytest.mark.exhaustive
def test_one_huge_answer_is_kept_and_others_are_forgotten():
    shelf = Shelf(25_000)
    first = shelf.keep("audit", {"rows": ["x" * 1_000] * 1_000})
    huge = shelf.keep("audit", {"rows": ["x" * 10_000_000] * 4})
    assert shelf.page({"answer": huge["answer"], "page": huge["pages"]})
    with pytest.raises(UsageError):
        shelf.page({"answer": first["answer"]})


@pytest.mark.parametrize(
    "arguments",
    [{}, {"answer": 5}, {"answer": "x" * 9_000}, {"answer": ["x"]}, {"answer": "KEPT", "page": 0}]
    + [{"answer": "KEPT", "page": page} for page in (-1, 99, True, "1", 1.0, None)]
    + [{"answer": "KEPT", "cursor": 1}],
    ids=str,
)
def test_a_page_that_is_not_there_is_refused_shortly(arguments):
    shelf = Shelf(1_000)
    kept = shelf.keep("review", {"rows": ["x" * 90] * 40})["answer"]
    given = {name: kept if value == "KEPT" else value for name, value in arguments.items()}
    with pytest.raises(UsageError) as caught:
        shelf.page(given)
    assert caught.value.fix
    assert len(str(caught.value)) < 300
