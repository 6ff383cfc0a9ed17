"""The pairs prove themselves: each line of a client runs on the old version, and on the new one exactly the marked
lines raise."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest


def _load(name: str):
    spec = importlib.util.spec_from_file_location(f"pairs_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


corpus = _load("corpus")
PAIRS = [*corpus.read_pairs(), *corpus.read_pairs(corpus.HARD)]
SAMPLED = [
    pytest.param(pair, marks=() if number % 10 == 0 else pytest.mark.exhaustive, id=f"{pair.category}: {pair.name}")
    for number, pair in enumerate(PAIRS)
]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What happened to each client of the tests that were selected, by "case/side"."""
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    wanted = {item.callspec.params["pair"].name for item in items}
    root = tmp_path_factory.mktemp("pairs")
    requests = []
    for number, pair in enumerate(pair for pair in PAIRS if pair.name in wanted):
        for side, files, version in (("old", pair.old, pair.old_version), ("new", pair.new, pair.new_version)):
            folder = root / f"{number}-{side}"
            for name, text in {**files, **pair.client}.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            info = folder / f"up-{version}.dist-info"
            info.mkdir(parents=True)
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: up\nVersion: {version}\n")
            requests.append({"name": f"{pair.name}/{side}", "root": str(folder), "files": list(pair.client)})
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_client.py"))],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
    )
    return json.loads(child.stdout)


def test_names_of_cases_are_unique() -> None:
    names = [pair.name for pair in PAIRS]
    assert len(names) == len(set(names))


def test_there_are_pairs_for_a_bar() -> None:
    assert len(PAIRS) >= 150


@pytest.mark.parametrize("pair", SAMPLED)
def test_the_client_runs_on_the_old_version(pair, runs) -> None:
    result = runs[f"{pair.name}/old"]
    assert result["raised"] == []
    ran = {(file, line) for file, line in result["ran"]}
    # Lines under a guard may wait for the new version; what is said to break must have worked.
    for mark in pair.marks:
        raising = mark.mark in ("breaks", "likely") and not mark.label and mark.file.endswith(".py")
        if mark.mark in ("silent", "follows", "warns", "info") or raising:
            statement = _statement(pair.client[mark.file], mark.line)
            guarded = mark.kinds == ("removed",) and pair.category.startswith("guards")
            assert guarded or any((mark.file, line) in ran for line in statement), f"line {mark.line} never ran"


@pytest.mark.parametrize("pair", SAMPLED)
def test_exactly_the_marked_lines_raise_on_the_new_version(pair, runs) -> None:
    raised = {(file, line): text for file, line, text in runs[f"{pair.name}/new"]["raised"]}
    allowed: set[tuple[str, int]] = set()
    for mark in pair.marks:
        if not mark.file.endswith(".py"):
            continue  # nothing runs a configuration file here
        lines = _statement(pair.client[mark.file], mark.line)
        here = {(mark.file, line) for line in lines} & set(raised)
        if mark.mark == "raises" or (mark.mark in ("breaks", "likely") and not mark.label):
            assert here, f"line {mark.line} does not raise: {raised}"
        if mark.mark in ("breaks", "likely", "raises", "follows"):
            allowed |= here
        elif mark.mark == "silent":
            assert mark.why, f"line {mark.line}: why is nothing raised?"
    unexpected = {place: text for place, text in raised.items() if place not in allowed}
    # What follows a failure of this client may fail for want of the names that were not bound.
    assert {place: text for place, text in unexpected.items() if not text.startswith("NameError")} == {}


def _statement(text: str, line: int) -> range:
    """Lines of the innermost simple statement, or of the head of a compound one, around a line."""
    best = range(line, line + 1)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.stmt) or not node.lineno <= line <= (node.end_lineno or line):
            continue
        body = getattr(node, "body", None)
        if body is None and (len(best) == 1 or node.end_lineno - node.lineno < len(best)):
            best = range(node.lineno, node.end_lineno + 1)
    return best
