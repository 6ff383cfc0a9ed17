"""Which batch decodes, and what is said where steps cannot stay on a device."""

from __future__ import annotations

import pytest
import torch

from areal.api import ConfigError
from areal.engine.embedded.batch import DecodeBatch
from areal.engine.embedded.device.choice import make_batch
from areal.models.blocks.rg_lru import RGLRU


def choose(model, *, device="cuda", cuda_graphs="on", record_routes=False):
    options = {"max_rows": 4, "max_length": 32, "guard": torch.inference_mode, "kernel": "torch"}
    return make_batch(
        model, device=torch.device(device), cuda_graphs=cuda_graphs, record_routes=record_routes, **options
    )


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_cpus_decode_token_by_token(world, mode):
    assert isinstance(choose(world.build_model(), device="cpu", cuda_graphs=mode), DecodeBatch)


def test_what_keeps_steps_from_staying_on_a_device_is_said(world):
    plain, chosen, apart = (world.build_model() for _ in range(3))
    chosen.layers[0].indexer = torch.nn.Identity()
    apart.layers[0].mixer = RGLRU.__new__(RGLRU)
    torch.nn.Module.__init__(apart.layers[0].mixer)
    cases = [
        (plain, {"record_routes": True}, "the experts that routers choose are recorded"),
        (plain, {"device": "cpu"}, "the engine computes on 'cpu'"),
        (chosen, {}, "choose the keys they attend to"),
        (apart, {}, "treat the first token of a sequence apart"),
    ]
    for model, options, reason in cases:
        with pytest.raises(ConfigError, match=f"cuda_graphs is 'on', but .*{reason}.*set it to 'auto'"):
            choose(model, **options)
