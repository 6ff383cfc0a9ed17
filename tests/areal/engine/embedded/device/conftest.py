"""Engines whose steps stay on the device, on the CPU; and a double of torch's graphs that keeps the rules of CUDA."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.device.batch import DeviceBatch
from areal.utils.transfers import WHOLE_DEVICE

HOST_READS = ("aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select", "aten::is_nonzero")
"""Operations whose result the host has to wait for."""
FROM_HOST = ("aten::lift_fresh", "aten::_pin_memory", "aten::pin_memory")
"""Operations that begin with values of the host, which a replay would not see anew."""


class Recording(TorchDispatchMode):
    """Records operations, and undoes what they changed: a capture runs nothing."""

    def __init__(self):
        super().__init__()
        self.steps = []
        self.is_refused = False
        self._made = set()
        self._saved = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.name in (*HOST_READS, *FROM_HOST):
            self.refuse(func)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        for argument, value in [*zip(func._schema.arguments, args, strict=False), *self._named(func, kwargs)]:
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.Tensor):
                self._save(value)
        result = func(*args, **kwargs)
        self._made |= {address(each) for each in tensors(result)} - {address(each) for each in given}
        self.steps.append((func, args, kwargs, result))
        return result

    def refuse(self, what):
        self.is_refused = True
        raise RuntimeError(f"{what}: operation not permitted when stream is capturing")

    @staticmethod
    def _named(func, kwargs):
        return [(each, kwargs[each.name]) for each in func._schema.arguments if each.name in kwargs]

    def _save(self, value):
        if address(value) not in self._made and address(value) not in self._saved:
            whole = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
            self._saved[address(value)] = whole, whole.clone()

    def undo(self):
        for whole, before in self._saved.values():
            whole.copy_(before)


def address(tensor):
    return tensor.untyped_storage().data_ptr()


def tensors(result):
    return [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]


class RecordedGraph:
    """Stands in for `torch.cuda.CUDAGraph`: replays into the memory of the capture."""

    made = 0
    underway = 0
    """Captures that have begun; one that ends with an error stays among them, as in torch's allocator."""

    def __init__(self):
        RecordedGraph.made += 1
        self.steps, self._recording, self._patches = None, Recording(), pytest.MonkeyPatch()

    def capture_begin(self, pool=None, capture_error_mode="global"):
        assert capture_error_mode == "thread_local", "other threads may allocate while a capture runs"
        assert WHOLE_DEVICE.locked(), "others would wait for the device meanwhile, which fails"
        RecordedGraph.underway += 1

        def refuse(*arguments, **options):
            self._recording.refuse("a value of the host")

        for name in ("tolist", "numpy", "cpu"):
            self._patches.setattr(torch.Tensor, name, refuse)
        self._patches.setattr(torch, "from_numpy", refuse)
        self._recording.__enter__()

    def capture_end(self):
        self._recording.__exit__(None, None, None)
        self._patches.undo()
        self._recording.undo()
        if self._recording.is_refused:
            raise RuntimeError("operation failed due to a previous error during capture")
        RecordedGraph.underway -= 1
        self.steps = self._recording.steps

    def pool(self):
        return (0, 0)

    def replay(self):
        assert self.steps, "a graph that was not captured"
        for func, args, kwargs, result in self.steps:
            for old, new in zip(tensors(result), tensors(func(*args, **kwargs)), strict=True):
                assert old.shape == new.shape
                if address(old) != address(new):
                    old.copy_(new)


def empty_cache():
    assert not RecordedGraph.underway, "torch refuses this for as long as it believes that a capture runs"


@pytest.fixture
def graphs(monkeypatch):
    """The double in the place of torch's. Returns its class, which counts."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(RecordedGraph, "made", 0)
    monkeypatch.setattr(RecordedGraph, "underway", 0)
    return RecordedGraph


@pytest.fixture
def on_device(world):
    """Builds engines that decode as on an accelerator; options as of `World.build_engine`, and `mode` of graphs."""

    def build(model, *, mode="off", batch=8, **options):
        def make(model, *, guard, kernel, cuda_graphs, record_routes, **more):
            return DeviceBatch(model, graphs=cuda_graphs, **more)

        config = EmbeddedEngineConfig(max_batch_size=batch, cuda_graphs=mode)
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr("areal.engine.embedded.engine.make_batch", make)
            return world.build_engine(model, config=config, **options)

    return build
