"""Compiled blocks compute what blocks that are not compiled compute on one process, in float32."""

from pathlib import Path

import pytest

from areal.engine.archon.equality.launch import run_processes

WORKER = str(Path(__file__).with_name("compile_worker.py"))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_blocks_give_equal_losses_gradients_and_parameters_with_tp_and_with_dp_shard():
    results = run_processes(WORKER, 2, [], timeout_seconds=500)
    assert [result["case"] for result in results] == ["dense tp=2 compile", "dense dp_shard=2 compile"]
    assert {result["case"]: result["differences"] for result in results if not result["equal"]} == {}
    # Something was compiled: forward passes of scoring and of training, at least.
    assert all(result["compiled"] >= 2 for result in results), [result["compiled"] for result in results]
