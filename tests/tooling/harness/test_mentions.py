"""Every command and every section of a run configuration is somewhere on a page that somebody wrote.

The blocks that `areal-harness sync` writes list all of them and do not count: a list says that something exists, not
when to use it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from areal.infra.metrics import names
from tooling.harness.checks.references import mentions
from tooling.harness.context import open_context
from tooling.harness.ownership.block import read_code, without_block

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def pages():
    context = open_context(ROOT)
    code = read_code(ROOT, context.files, context.sources.experts)
    written = [without_block(one.page.body) for one in (*context.sources.skills, *context.sources.experts)]
    spans = [mention.text for body in written for mention in mentions(body, 1) if mention.kind != "link"]
    return code, spans


def left_out(names, spans, pattern):
    """The names that no span mentions; pattern: where a name may stand, with `NAME` for it."""
    searched = {name: re.compile(pattern.replace("NAME", re.escape(name))) for name in names}
    return sorted(name for name, place in searched.items() if not any(place.search(span) for span in spans))


def test_no_command_is_left_out(pages):
    code, spans = pages
    lines = {one.line.removesuffix(".__main__") for one in code.programs}
    assert {"areal launch", "areal plan", "areal serve", "areal-new"} <= lines
    same = {"areal", "python -m areal", "python -m tooling.new"}  # what other lines begin with, and other spellings
    assert left_out(lines - same, spans, r"(?<![\w-])NAME(?![\w-])") == []


def test_no_section_of_a_configuration_is_left_out(pages):
    code, spans = pages
    keys = {key for section in code.sections.values() for key in section.keys if key and not key.startswith("kind: ")}
    assert {"archon.parallel", "rollout", "servers", "supervisor", "weights"} <= keys
    assert left_out(keys, spans, r"(?<![\w.-])NAME(?:$|[.:=]|(?= ))") == []


def test_every_metric_that_an_expert_reads_is_one_that_the_report_knows():
    context = open_context(ROOT)
    written = [without_block(expert.page.body) for expert in context.sources.experts]
    spans = {mention.text for body in written for mention in mentions(body, 1) if mention.kind == "span"}
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    groups = {value.partition("/")[0] for value in known}
    metrics = {span for span in spans if span.count("/") == 1 and span.partition("/")[0] in groups and "." not in span}
    assert len(metrics) >= 8
    assert metrics <= known


def test_what_no_page_mentions_is_listed():
    assert left_out({"archon", "rollout"}, ["archon.parallel.tp", "areal rollouts"], r"(?<![\w.-])NAME(?:$|[.:=])") == [
        "rollout"
    ]
