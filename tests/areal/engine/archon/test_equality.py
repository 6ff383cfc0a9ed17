"""Many gloo processes compute what one computes. One start of the processes per number of ranks; a line per case."""

import pytest

from areal.engine.archon.equality.cases import CONFIGS, cases
from areal.engine.archon.planning.shards import shards_of
from areal.models.registry import MODELS

WORKER = "areal.engine.archon.equality.worker"


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
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_every_way_of_splitting_computes_what_one_process_computes(world_size, fork_server):
    results = fork_server.run_ranks(WORKER, world_size, ["--quick"], timeout_seconds=240)
    _assert_all_equal(results, cases(world_size, quick=True))
    native = [case for case in cases(world_size, quick=True) if not case.is_foreign]
    present = [case for case in native if CONFIGS[case.kind]["model_type"] in MODELS]
    planned = {
        case.name: shards_of(
            case.config, case.dims, case.layout, lora=case.options.get("lora"), pipeline_rank=0
        ).trained
        for case in present
    }
    assert planned == {result["case"]: result["parameters_of_rank"] for result in results if result["case"] in planned}
