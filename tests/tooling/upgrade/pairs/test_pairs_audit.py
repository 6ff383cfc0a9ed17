"""The auditor on the pairs: every marked line found, with its kind and severity, and nothing else said."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tooling.upgrade.replacements import explain_absence
from tooling.upgrade.sources.folder import memory_release
from tooling.upgrade.upstream import open_upstream
from tooling.upgrade.usage import index_repository
from tooling.upgrade.verdicts import Comparison, audit


def _load(name: str):
    spec = importlib.util.spec_from_file_location(f"pairs_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


corpus = _load("corpus")
PAIRS = corpus.read_pairs()




def audited(pair, folder: Path) -> set[tuple[str, int, str, str]]:
    """Findings of an audit."""
    for name, text in pair.client.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    index = index_repository(folder, sorted({name.partition("/")[0].removesuffix(".py") for name in pair.old}))
    comparison = Comparison(
        "up",
        open_upstream(memory_release(pair.old, "up", pair.old_version)),
        open_upstream(memory_release(pair.new, "up", pair.new_version)),
    )
    allowed = SpecifierSet(pair.allowed) if pair.allowed else None
    (result,) = audit(index, [comparison], allowed=allowed, explain=explain_absence)
    assert result.unreadable == ()
    return {(each.path, each.line, str(each.kind), str(each.severity)) for each in result.findings}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.category}: {pair.name}")
def test_the_audit_says_exactly_what_is_marked(pair, tmp_path) -> None:
    assert audited(pair, tmp_path) == pair.expected()
