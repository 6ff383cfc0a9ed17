"""The codemods on the pairs: a second audit is satisfied, and the mended client runs on the new package."""

from __future__ import annotations

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
auditing = _load("auditing")
fixed = auditing.fixed
PAIRS = [*corpus.read_pairs(), *corpus.read_pairs(corpus.HARD)]
BY_KIND = {
    "a class is deprecated": "New()",
    "a constant becomes a function": "LIMIT()",
    "a decorator that renames keywords by a table": "length=",
    "a default changes": "f(1, size=1)",
    "a hook of a base of a base drifts": "def hook(self, x, mask=None):",
    "a cached function loses a keyword": 'load("x")  # breaks',
    "a member of an enumeration by its name": 'Mode["QUICK"]',
    "a module that is imported by its path moves": "import up.fresh  #",
    "a submodule that only an import inside the package loaded": "import up.sub\n",
    "a thread passes a removed keyword": "kwargs={}",
    "an enum member is renamed and keeps its value": "Mode.QUICK",
    "keyword becomes positional-only": "f(1, 2)",
    "__all__ shrinks under a star import": "from up import b",
}
"""Pairs of the quick test, and what must be in the mended client: one of each kind of edit."""
ANSWERS = {
    "__getattr__ asks a function that a factory made": "up.x.Moved",
    "a callback is called with one argument more": "def ...(argument_1, argument_2)",
    "a callback that is awaited now": "async def ...",
    "a class becomes a named tuple": "old._replace(x=...)",
    "a class of attrs is frozen": "attrs.evolve(old, name=...)",
    "a context manager became asynchronous": "async with up.session",
    "a dataclass is frozen": "dataclasses.replace(old, size=...)",
    "a function calls what it is given with a keyword more": "def ...(step, logs)",
    "a module warns when it is imported": "up.layers.DropPath",
    "a pydantic model is frozen": 'old.model_copy(update={"text": ...})',
    "an iterator became asynchronous": "async for ... in up.Engine.stream",
}
"""What is to be written instead, by pair."""


def _fixed(pairs, root):
    """What became of each pair, and of its client on the new package, by name."""
    results, requests = {}, []
    for number, pair in enumerate(pairs):
        folder = root / str(number)
        folder.mkdir()
        results[pair.name] = fixed(pair, folder)
        for name, text in {**pair.new, **results[pair.name].client}.items():
            path = folder / "run" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        info = folder / "run" / f"up-{pair.new_version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: up\nVersion: {pair.new_version}\n")
        requests.append({"name": pair.name, "root": str(folder / "run"), "files": list(pair.client)})
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_client.py"))],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    return results, json.loads(child.stdout)


def test_each_kind_of_edit_holds_and_runs(tmp_path) -> None:
    chosen = [pair for pair in PAIRS if pair.name in BY_KIND]
    assert {pair.name for pair in chosen} == set(BY_KIND)
    results, ran = _fixed(chosen, tmp_path)
    for name, text in BY_KIND.items():
        assert results[name].done, name
        assert results[name].stubborn == [], name
        assert any(text in each for each in results[name].client.values()), (name, results[name].client)
        assert results[name].left or ran[name]["raised"] == [], name


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_says_what_to_write(name, tmp_path) -> None:
    (pair,) = [each for each in PAIRS if each.name == name]
    found = auditing.findings_of(pair, tmp_path)
    assert ANSWERS[name] in {each.replacement.text for each in found if each.replacement is not None}


@pytest.mark.exhaustive
def test_all_edits_hold_and_clients_mended_as_a_whole_run(tmp_path) -> None:
    results, ran = _fixed(PAIRS, tmp_path)
    assert {name: each.stubborn for name, each in results.items() if each.stubborn} == {}
    whole = {
        name: ran[name]["raised"]
        for name, each in results.items()
        if each.done and all(finding in each.done for finding in each.before if finding.severity != "info")
    }
    assert len(whole) >= 55
    assert {name: raised for name, raised in whole.items() if raised} == {}
    offered = [finding for each in results.values() for finding in each.before if finding.fixable]
    left = [reason for each in results.values() for _, reason in each.left]
    bound = [reason for reason in left if reason.startswith("what is around it is not asynchronous")]
    assert sum(len(each.done) for each in results.values()) >= 0.9 * (len(offered) - len(bound))
