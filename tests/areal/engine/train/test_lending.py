"""A learner that gives its device away between steps: nothing stays there, and nothing is different afterwards."""

from __future__ import annotations

import pytest
import torch

from areal.api import EngineError
from areal.engine.train.lending import LentMemory
from areal.engine.train.runner import release
from areal.utils.transfers import WHOLE_DEVICE

CPU = torch.device("cpu")


class Ledger:
    """`DeviceMemory` that accounts for every byte, up to a limit."""

    def __init__(self, limit=2**40):
        self.limit, self.held_bytes, self.peak, self.settled = limit, 0, 0, 0

    def take(self, num_bytes):
        self.held_bytes += num_bytes
        self.peak = max(self.peak, self.held_bytes)
        assert self.held_bytes <= self.limit, "out of memory"

    def allocate(self, num_bytes):
        self.take(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    def freed(self, num_bytes):
        self.held_bytes -= num_bytes

    def settle(self):
        self.settled += 1

    def held(self):
        return self.held_bytes


def size_of(tensors):
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def lent(engine):
    ledger = Ledger()
    ledger.take(size_of(engine.device_tensors()))
    return LentMemory(CPU, engine.device_tensors, memory=ledger), ledger


def everything(state):
    """All tensors of a state by path."""
    if isinstance(state, torch.Tensor):
        return {"": state}
    if not isinstance(state, dict):
        return {}
    return {f"{key}/{name}": value for key, part in state.items() for name, value in everything(part).items()}


def assert_same(found, expected):
    one, other = everything(found), everything(expected)
    assert one.keys() == other.keys()
    assert one
    for name, value in other.items():
        assert torch.equal(one[name], value), name


@pytest.mark.sample(2)
@pytest.mark.parametrize("options", [
    {"dtype": "float32"},
    {"dtype": "bfloat16"},
    {"dtype": "bfloat16", "optimizer": "muon"},
    {"dtype": "float32", "offload_optimizer": True, "optimizer": "sgd"},
])  # fmt: skip
def test_steps_are_bit_for_bit_those_of_a_learner_that_keeps_its_device(make_engine, make_batch, policy_loss, options):
    engine, other = make_engine(**options), make_engine(**options)
    memory, ledger = lent(engine)
    for step in range(3):
        memory.give()
        assert ledger.held_bytes <= 0
        memory.take_back()
        batch = make_batch(seed=step)
        for each in (engine, other):
            each.train_batch(batch, policy_loss(batch))
    assert_same(engine.state_dict(), other.state_dict())


def test_every_byte_moves_once_and_comes_back_and_host_buffers_are_kept(make_engine, make_batch, policy_loss):
    engine = make_engine(dtype="bfloat16")
    batch = make_batch()
    engine.train_batch(batch, policy_loss(batch))  # so that there are moments
    memory, ledger = lent(engine)
    whole = ledger.held_bytes
    # bfloat16 parameters, float32 masters and two moments.
    count = sum(parameter.numel() for parameter in engine.model.parameters())
    assert whole >= count * (2 + 4 + 4 + 4)
    memory.give()
    assert (ledger.held_bytes, memory.moved_bytes, memory.staying_bytes) == (0, whole, 0)
    places = {tensor.untyped_storage().data_ptr() for tensor in engine.device_tensors()}
    memory.take_back()
    assert ledger.held_bytes == ledger.peak == whole
    assert places.isdisjoint({tensor.untyped_storage().data_ptr() for tensor in engine.device_tensors()})
    memory.give()
    assert {tensor.untyped_storage().data_ptr() for tensor in engine.device_tensors()} == places


def test_weights_and_states_are_read_from_host_memory(make_engine, make_batch, policy_loss, tmp_path):
    engine = make_engine(dtype="bfloat16")
    batch = make_batch()
    engine.train_batch(batch, policy_loss(batch))
    state, weights = engine.state_dict(), {name: value.clone() for name, value in engine.weights().items()}
    memory, _ = lent(engine)
    memory.give()
    assert_same(engine.state_dict(), state)
    assert_same(dict(engine.weights()), weights)
    engine.save_pretrained(tmp_path / "model")
    memory.take_back()
    assert_same(engine.state_dict(), state)


def test_what_shares_memory_goes_on_sharing_it(make_engine, make_model, make_batch, policy_loss):
    engine = make_engine(make_model(tied=True, dtype=torch.float64))
    memory, _ = lent(engine)
    for move in (memory.give, memory.take_back):
        move()
        first = next(iter(engine.optimizer.shards))
        parameter = engine.optimizer.parameters[first]
        assert engine.optimizer.shards[first].data_ptr() == parameter.data_ptr()
        assert size_of(engine.device_tensors()) == size_of(engine.model.parameters())


def test_wrong_orders_are_errors_that_change_nothing(make_engine):
    engine = make_engine()
    memory, ledger = lent(engine)
    before = ledger.held_bytes
    with pytest.raises(EngineError, match="nothing to take back"):
        memory.take_back()
    assert ledger.held_bytes == before
    memory.give()
    with pytest.raises(EngineError, match="lent already"):
        memory.give()
    assert ledger.held_bytes == 0


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: what is freed there is seen by nobody else"
)
def test_a_device_has_nothing_of_a_learner_that_sleeps(make_engine, make_batch, policy_loss):
    engine = make_engine(dtype="bfloat16", device="cuda")
    batch = make_batch()
    engine.train_batch(batch, policy_loss(batch))
    before, state = torch.cuda.memory_allocated(), engine.state_dict()
    memory = LentMemory(engine.device, engine.device_tensors)
    for _ in range(20):
        memory.give()
        assert memory.staying_bytes < before - memory.moved_bytes + 2**20
        assert all(tensor.is_pinned() for tensor in engine.device_tensors())
        memory.take_back()
        assert torch.cuda.memory_allocated() == before
    assert_same(engine.state_dict(), state)


def test_memory_is_not_given_back_while_a_graph_is_captured(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: seen.append(WHOLE_DEVICE.locked()))
    release()
    assert seen == [True]
    assert not WHOLE_DEVICE.locked()
