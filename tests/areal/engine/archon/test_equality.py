"""Many gloo processes compute what one computes. One start of the processes per number of ranks; a line per case."""

import pytest

from areal.engine.archon.equality.cases import CONFIGS, cases
from areal.engine.archon.planning.shards import shards_of
from areal.models.registry import MODELS

WORKER = "areal.engine.archon.equality.worker"
SAMPLE = (
    "dense dp_shard=2 idle ranks",
    "dense dp_replicate=2",
    "dense tp=2 sequence_parallel",
    "dense cp=2",
    "dense pp=2 pp_schedule=ZBVZeroBubble",
    "tied pp=2",
    "transformers gpt2 dp_shard=2",
    "dense tp=2 lora",
    "mixture dp_shard=2 ep=2 optimizer=muon",
)
"""Every dimension once, and what shares or owns parameters otherwise."""
OTHERS = tuple(case.name for case in cases(2, quick=True) if case.name not in SAMPLE)


def _assert_all_equal(results, expected):
    assert [result["case"] for result in results] == [case.name for case in expected]
    wrong = {item["case"]: item.get("error") or item["differences"] for item in results if not item.get("equal", True)}
    assert wrong == {}
    compared = [result for result in results if "skipped" not in result]
    assert {name for result in compared for name in result["differences"]} == {
        "scores", "loss", "gradient norm", "metrics", "gradients", "parameters",
    }  # fmt: skip


@pytest.mark.fault(
    row=20,
    injected="two and four ranks with unequal work, rows without a trained token, and ranks without any row",
    seen="no deadlock; loss, gradients and parameters equal those of one process",
)
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("world_size", "names"),
    [
        pytest.param(2, SAMPLE, id="2"),
        pytest.param(2, OTHERS, id="2, others", marks=pytest.mark.exhaustive),
        pytest.param(4, ("",), id="4", marks=pytest.mark.exhaustive),
    ],
)
def test_every_way_of_splitting_computes_what_one_process_computes(world_size, names, fork_server):
    expected = [case for case in cases(world_size, quick=True) if any(name in case.name for name in names)]
    assert len(expected) >= len(names)
    only = [f"--only={name}" for name in names]
    results = fork_server.run_ranks(WORKER, world_size, ["--quick", *only], timeout_seconds=240)
    _assert_all_equal(results, expected)
    native = [case for case in expected if not case.is_foreign]
    present = [case for case in native if CONFIGS[case.kind]["model_type"] in MODELS]
    planned = {
        case.name: shards_of(
            case.config, case.dims, case.layout, lora=case.options.get("lora"), pipeline_rank=0
        ).trained
        for case in present
    }
    assert planned == {result["case"]: result["parameters_of_rank"] for result in results if result["case"] in planned}
