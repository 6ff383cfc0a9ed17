"""What one rank meets, all ranks answer together."""

from pathlib import Path

import pytest

from areal.engine.archon.equality.launch import run_processes

WORKER = str(Path(__file__).with_name("fault_worker.py"))


@pytest.fixture(scope="module")
def seen():
    """What each of two ranks saw."""
    return run_processes(WORKER, 2, [], timeout_seconds=100)[0]


@pytest.mark.timeout(150)
@pytest.mark.fault(
    row=22,
    injected="NaN in one row of a batch that two ranks share (FSDP over gloo), so that only one of them computes it",
    seen="both skip the step and name the row; no parameter changes; the next step equals that of one process",
)
def test_a_nan_on_one_rank_skips_the_step_on_all(seen):
    assert len(seen) == 2
    for found in seen:
        assert found["nan"]["stepped"] == [False, False, True, True]
        assert found["nan"]["rows"] == [[6], [6]]
        assert found["nan"]["unchanged"] == 0
        assert found["nan"]["after"] < 1e-9
