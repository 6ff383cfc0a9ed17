"""Out of memory on one of many ranks: what is found out before a step, and what cannot be."""

from pathlib import Path

import pytest
import torch

from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig, TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.processes import connected
from areal.engine.train.runner import Expectation, can_reserve
from areal.models import from_config
from areal.models.parallel.plan import ParallelPlan

WORKER = Path(__file__).with_name("memory_worker.py")


@pytest.fixture(scope="module")
def found(fork_server, request):
    """What two gloo processes saw, in the cases of those tests that were asked for."""
    own = [item for item in request.session.items if item.path == Path(__file__)]
    quick = [] if any(item.get_closest_marker("exhaustive") for item in own) else ["--quick"]
    return fork_server.run_ranks(WORKER, 2, quick, timeout_seconds=200)[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestOneOfTwoRanks:
    """The second rank has less room than the first, or runs out."""

    @pytest.mark.fault(
        row=35,
        injected="one of two ranks may map less memory than its micro-batches need (its allocator fails)",
        seen="all ranks run smaller micro-batches, equal to 1e-12 to an undisturbed step; where one sequence is too "
        "long, the same error on all ranks, and the engine goes on afterwards",
    )
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("way", ["dp_shard", "tp"])
    def test_all_ranks_run_smaller_micro_batches_when_one_has_no_room(self, found, way):
        tight = found[way]
        assert tight["megabytes"][0] > 100
        plain, halved = tight["micro_batches"]
        assert halved == 2 * plain
        assert tight["loss"] < 1e-12
        assert tight["parameters"] < 1e-12
        assert "rank 1 has no 0." in tight["messages"][0]
        assert "run again with at most 512" in tight["messages"][0]

    def test_what_cannot_be_made_smaller_is_the_same_error_on_all_ranks(self, found):
        first, second = found["nothing fits"]
        assert first == second
        assert "micro-batches of 1024 tokens, which cannot be cut further: rank 1" in first["refused"]
        assert "the longest of this batch has 1024 tokens" in first["refused"]
        assert first["after"] < 1e-12

    def test_running_out_in_the_middle_ends_the_run_with_the_reason_and_nobody_waits(self, found):
        assert "rank 1 ran out of memory in the middle of micro-batches of 1024 tokens" in found["middle"]
        assert "Lower max_tokens_per_micro_batch" in found["middle"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_parameters_that_live_in_host_memory_are_updated_alike(found):
    for way, seen in found["on host"].items():
        assert seen["policies"] == ["CPUOffloadPolicy"], way
        assert seen["difference"] < 1e-12, way


@pytest.fixture
def alone():
    """This process as a group of its own."""
    with connected("auto" if torch.cuda.is_available() else "cpu", alone=True) as device:
        yield device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator beside the host")
@pytest.mark.parametrize("options", [{"offload_parameters": True}, {"offload_optimizer": True}, {}])
def test_on_an_accelerator_memory_is_measured_and_given_to_the_host(alone, options):
    archon = ArchonConfig(offload_parameters=options.get("offload_parameters", False))
    config = TrainEngineConfig(lr=1e-2, offload_optimizer=options.get("offload_optimizer", False))
    engine = TrainingEngine(from_config(CONFIGS["dense"]).to(alone), config=config, archon=archon)
    batch = make_batch()
    for _ in range(2):
        engine.train_batch(batch, loss_of(batch), with_entropy=True)
    where = {parameter.device.type for parameter in engine.model.parameters()}
    assert where == {"cpu" if archon.offload_parameters else alone.type}
    moments = {value.device.type for value in engine.optimizer.moments("norm.weight").values()}
    assert moments == {"cpu" if options else alone.type}
    assert engine._runner._micro_batches._expectation.bytes_for("training", 80) > 0
    assert all(torch.isfinite(tensor).all() for tensor in engine.weights().values())


@pytest.mark.slow
def test_a_process_that_is_alone_runs_the_batch_again_with_half_the_tokens(fork_server):
    (found,) = fork_server.run_ranks(WORKER, 1, [], timeout_seconds=100)
    # Three, since a prompt is computed in each of the micro-batches that its group is divided over.
    assert found["micro_batches"] == [1, 3]
    assert found["loss"] < 1e-12
    assert found["parameters"] < 1e-12
    assert "out of memory with micro-batches of 17 tokens" in found["refused"]
    assert "on the host already" in found["offload"]


class TestExpectation:
    @pytest.fixture
    def build(self):
        def make(model=None, **plan):
            config = TrainEngineConfig(dtype="float32", device="cpu")
            return Expectation(model or torch.nn.Linear(2, 2), config, ParallelPlan(**plan), num_gradients=1000)

        return make

    def test_before_the_first_step_it_is_the_estimate_from_the_sizes_of_the_model(self, build):
        model = from_config(CONFIGS["dense"])
        few, many = (build(model).bytes_for("training", tokens) for tokens in (100, 10100))
        assert many - few > 10000 * 2 * 4 * 4 * model.args.intermediate_size
        assert build(model).bytes_for("forward", 10100) < many / 1.5
        assert build(model, activation_checkpointing=True).bytes_for("training", 10100) < many

    def test_a_model_without_such_sizes_is_measured_only(self, build):
        expectation = build()
        assert expectation.bytes_for("training", 10**6) == 0
        expectation.record("training", 100, 5000)
        assert expectation.bytes_for("training", 200) == 10000
        assert expectation.bytes_for("forward", 200) == 0

    def test_two_measurements_tell_what_grows_from_what_does_not(self, build):
        expectation = build()
        expectation.record("training", 100, 5000)
        expectation.record("training", 300, 9000)
        assert expectation.bytes_for("training", 400) == 11000
        assert expectation.bytes_for("training", 200) == 7000
        # The largest that was ever seen counts.
        expectation.record("training", 300, 8000)
        assert expectation.bytes_for("training", 300) == 9000


def test_a_reservation_fails_where_the_allocation_would():
    assert can_reserve(1 << 20, torch.device("cpu"))
    assert can_reserve(0, torch.device("cpu"))
    assert not can_reserve(1 << 60, torch.device("cpu"))
