"""What many ranks decide together: skipped steps, states that either engine continues, masters, and refusals."""

from pathlib import Path

import pytest

WORKER = str(Path(__file__).with_name("behaviour_worker.py"))


@pytest.fixture(scope="module")
def found(fork_server):
    """What two gloo processes saw; one start for the tests of every run."""
    what = ["--what", "skips", "nothing", "states", "refusals", "order"]
    return fork_server.run_ranks(WORKER, 2, what, timeout_seconds=200)[0]


@pytest.fixture(scope="module")
def precise(fork_server):
    """What they saw of momenta and of bfloat16; another start, for exhaustive tests."""
    what = ["--what", "momenta", "low_precision", "apart"]
    return fork_server.run_ranks(WORKER, 2, what, timeout_seconds=200)[0]


pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_every_rank_sees_the_same(found):
    assert found["same on every rank"]


@pytest.mark.exhaustive
def test_every_rank_sees_the_same_momenta_and_masters(precise):
    assert precise["same on every rank"]


@pytest.mark.fault(
    row=22,
    injected="NaN in one row of a batch that several ranks share, so that only one of them computes it",
    seen="all ranks skip the step and name the row; no parameter changes; skips in a row have a budget",
)
def test_a_row_of_one_rank_that_is_not_finite_makes_all_ranks_skip_and_is_named(found):
    skips = found["skips"]
    assert (skips["stepped"], skips["rows"], skips["count"], skips["unchanged"]) == (False, [4], 1.0, 0.0)
    assert skips["recovers"]
    assert skips["skips"] == 3
    assert "skipped (2 in a row)" in skips["stopped"]
    assert "rows [0] of prompt groups [0]" in skips["stopped"]


@pytest.mark.fault(
    row=20,
    injected="a batch without any trained token, over several ranks",
    seen="no deadlock, no NaN, no parameter changes",
)
def test_a_batch_without_any_trained_token_changes_nothing(found):
    assert found["nothing"] == {"changed": 0.0, "norm": 0.0, "stepped": True}


def test_one_process_and_many_continue_each_others_states(found):
    states = found["states"]
    assert states["into one"] < 1e-12
    assert states["into many"] < 1e-12
    assert states["version"] == 3
    assert "do not fit this model" in states["refused"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("optimizer", ["muon", "sgd"])
def test_momenta_move_between_one_process_and_many_and_between_host_and_device(precise, optimizer):
    assert max(precise["momenta"][optimizer]) < 1e-12
    assert "saved with another optimizer" in precise["momenta"][f"{optimizer} refused"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["dp_shard", "tp"])
def test_bfloat16_keeps_float32_masters_and_stays_close_to_one_process(precise, way):
    low = precise["low_precision"][way]
    assert low["masters"] == ["torch.float32"]
    assert low["parameters"] == ["torch.bfloat16"]
    assert low["loss"] < 0.02
    assert low["reloaded"] == 0.0
    assert low["difference"] < 1e-3


@pytest.mark.exhaustive
def test_gradients_of_parameters_that_are_computed_apart_are_added_up_in_float32(precise):
    apart = precise["apart"]
    assert len(set(apart["losses"])) == 1
    # Sums of bfloat16 in bfloat16 would differ in the third digit.
    assert apart["largest"] > 0
    assert max(apart["gradients"]) < 1e-6 * apart["largest"]


def test_order_and_cutting_change_nothing(found):
    order = found["order"]
    assert order["contract"]
    assert order["losses"] < 1e-12
    assert order["parameters"] < 1e-12
    assert len(set(order["micro_batches"])) == 3


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("processes", "need 4 processes and there are 2"),
        ("too many pieces", "2 layers cannot be cut into 4 pieces; lower parallel.pp or pp_pieces"),
        ("backward apart", "gradient_checkpointing does not allow; switch it off, or use Interleaved1F1B"),
        ("no pieces", "pp_pieces is 0, expected at least 1"),
        ("role", "is_critic=True does not fit Qwen2Model"),
        ("values", "forward_values needs a value head"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(found, what, message):
    assert message in found["refusals"][what]
