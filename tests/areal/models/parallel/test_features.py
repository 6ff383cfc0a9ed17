"""Every feature that generated families can have is split without changing a number, by the generated table."""

from pathlib import Path

import pytest

from areal.engine.archon.equality.launch import run_processes


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_block_is_split_by_the_generated_table_without_changing_a_number():
    worker = str(Path(__file__).with_name("features_worker.py"))
    results = run_processes(worker, 2, [], timeout_seconds=200)
    assert {result["case"]: result["differences"] for result in results if not result["equal"]} == {}
    assert {result["case"].partition(":")[0] for result in results} == {
        "sinks, windows, biases, gates", "norms over all heads and of each", "vocabulary that does not divide",
        "shared head, linear biases, head transform", "mixtures with biases, latent attention",
        "norms before last matrices, gates with biases, growth", "mixtures whose inputs are weighted",
        "keys as values, norms of values",
    }  # fmt: skip
    assert sum("ep=2" in result["case"] for result in results) == 6
    assert sum("lora" in result["case"] for result in results) == 10
