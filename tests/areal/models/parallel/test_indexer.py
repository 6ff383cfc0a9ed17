"""Attention to chosen tokens is split by heads, tokens, experts and layers without changing a number."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal.engine.archon.equality.launch import run_processes


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 4])
def test_models_with_indexers_are_split_without_changing_a_number(world_size):
    worker = str(Path(__file__).with_name("indexer_worker.py"))
    results = run_processes(worker, world_size, [], timeout_seconds=280)
    failed = {result["case"]: result for result in results if not result["equal"]}
    assert {case: result.get("error", result.get("differences")) for case, result in failed.items()} == {}
    assert len(results) == {2: 9, 4: 4}[world_size]
