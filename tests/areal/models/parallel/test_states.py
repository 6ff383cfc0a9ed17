"""Mixers with a state are split by heads, by tokens and by layers without changing a number, or refused by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from areal.api import ModelError
from areal.engine.archon.equality.launch import run_processes
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.parallel import ParallelDims
from areal.models.parallel.checks import check_model

ARGS = SimpleNamespace(hidden_size=24)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 4])
def test_hybrids_are_split_without_changing_a_number(world_size):
    worker = str(Path(__file__).with_name("states_worker.py"))
    results = run_processes(worker, world_size, [], timeout_seconds=280)
    failed = {result["case"]: result for result in results if not result["equal"]}
    assert {case: result.get("error", result.get("differences")) for case, result in failed.items()} == {}
    assert len(results) == 8 * {2: 9, 4: 3}[world_size]


def delta(**changes):
    sizes = {"num_key_heads": 2, "num_value_heads": 4, "key_dim": 3, "value_dim": 3, "kernel_size": 4, "norm_eps": 1e-6}
    return GatedDelta(0, ARGS, **sizes | changes)


def mamba1(**changes):
    sizes = {"inner_size": 30, "state_size": 4, "step_rank": 3, "kernel_size": 4}
    return Mamba1(0, ARGS, **sizes | changes)


def lightning():
    return LightningAttention(0, ARGS, num_heads=6, head_dim=4, num_layers=2, table_size=8, norm_eps=1e-6)


def rg_lru(**sizes):
    return RGLRU(0, ARGS, **sizes, kernel_size=4, activation="gelu_pytorch_tanh")


def mamba(**changes):
    sizes = {"num_heads": 4, "head_dim": 3, "num_groups": 2, "state_size": 4, "kernel_size": 4, "norm_eps": 1e-6}
    return Mamba2(0, ARGS, **sizes | changes)


@pytest.mark.parametrize(
    ("mixer", "dims", "message"),
    [
        (delta, {"tp": 4}, "tp=4: layers.*.self_attn has 2 key heads, which ranks cannot share"),
        (delta, {"cp": 8}, "tp=1 cp=8: layers.*.self_attn has 4 heads; tp * cp has to divide them"),
        (mamba1, {"tp": 2, "cp": 2}, "tp=2 cp=2: layers.*.self_attn convolves 30 channels; tp * cp has to divide"),
        (mamba, {"tp": 4}, "tp=4: layers.*.self_attn has 2 groups of heads, which ranks cannot share"),
        (lightning, {"cp": 4}, "tp=1 cp=4: layers.*.self_attn has 6 heads; tp * cp has to divide them"),
        (lambda: rg_lru(width=12, num_blocks=3), {"tp": 2}, "has 3 blocks of gates, which ranks cannot share"),
        (lambda: rg_lru(width=12, num_blocks=2), {"tp": 2, "cp": 4}, "tp=2 cp=4: layers.*.self_attn convolves 12"),
        (lambda: mamba(norm_groups=1), {"tp": 2}, "has 1 groups of its norm, which ranks cannot share"),
        (lambda: mamba(num_heads=6), {"cp": 4}, "has 6 heads; tp * cp has to divide them"),
        (lambda: delta(key_dim=1, value_dim=1, num_key_heads=1), {"cp": 4}, "convolves 6 channels"),
        (lambda: ShortConvolution(0, ARGS, kernel_size=3, bias=True), {"tp": 5}, "convolves 24 channels"),
    ],
)
def test_states_that_do_not_divide_are_refused_by_name(mixer, dims, message):
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Module()])
    with torch.device("meta"):
        model.layers[0].self_attn = mixer()
    with pytest.raises(ModelError) as error:
        check_model(model, ParallelDims(**dims), {})
    assert message in str(error.value)
