"""What a worker loads into its model: everything, or the layers that changed where the rest is known to be there.

A runner of a few layers stands in for vLLM's: it loads by the names of a checkpoint and notes them.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from areal.api import BASE_VERSION, LowRankChange
from areal.engine.vllm.worker import WorkerExtension
from areal.infra.weights.files import FileCarrier

NAMES = ("embed.weight", "layers.0.attn.q_proj.weight", "layers.0.attn.k_proj.weight", "layers.0.mlp.weight")


class Runner:
    """A model whose q and k are one layer, as vLLM has them."""

    def __init__(self):
        self.loaded, self.broken = [], False
        attention = nn.ModuleDict({"qkv_proj": nn.Linear(2, 4, bias=False)})
        layer = nn.ModuleDict({"attn": attention, "mlp": nn.Linear(2, 2, bias=False)})
        self.model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "layers": nn.ModuleList([layer])})
        self.model.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj"]}

    def get_model(self):
        return self.model

    def reload_weights(self, weights_iterator, is_checkpoint_format):
        assert is_checkpoint_format
        self.loaded.append([])
        for name, tensor in weights_iterator:
            self.loaded[-1].append(name)
            layer = self.model["layers"][0]
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                rows = slice(0, 2) if "q_proj" in name else slice(2, 4)
                layer["attn"]["qkv_proj"].weight.data[rows] = tensor
            else:
                (self.model["embed"] if "embed" in name else layer["mlp"]).weight.data.copy_(tensor)
            if self.broken:
                raise RuntimeError("out of memory")

    def state(self):
        layer = self.model["layers"][0]
        joint = layer["attn"]["qkv_proj"].weight.data
        values = (self.model["embed"].weight.data, joint[:2], joint[2:], layer["mlp"].weight.data)
        return dict(zip(NAMES, values, strict=True))


class Worker(WorkerExtension):
    """As vLLM mixes it in."""

    def __init__(self):
        self.model_runner, self.device, self.rank = Runner(), torch.device("cpu"), 0


class Line:
    """A trainer and one worker."""

    def __init__(self, folder, **options):
        self.carrier, self.worker = FileCarrier(folder / "weights", deltas=True, **options), Worker()
        self.tensors = {name: torch.zeros(3 if "embed" in name else 2, 2) for name in NAMES}
        self.version = 0

    def send(self, *changed, whole=False):
        """Change tensors and bring the worker the next version; returns what it loaded."""
        self.version += 1
        self.tensors |= {name: self.tensors[name] + self.version for name in changed}
        published = self.carrier.publish(self.version, self.tensors)
        manifest = published.manifest if whole or published.delta is None else published.delta
        source = dict(self.carrier.routes(published, [None], [1])[0].source)
        answer = self.worker.areal_stage(json.dumps({"manifest": manifest.to_json(), "source": source}))
        assert answer["ok"], answer
        before = len(self.worker.model_runner.loaded)
        self.answer = self.worker.areal_switch(str(self.version))
        loaded = self.worker.model_runner.loaded[before:]
        return loaded[0] if loaded else None

    def has_everything(self):
        state = self.worker.model_runner.state()
        return all(torch.equal(state[name], tensor) for name, tensor in self.tensors.items())


@pytest.fixture
def line(tmp_path):
    return Line(tmp_path)


def test_only_the_layers_that_changed_are_loaded_each_as_a_whole(line):
    assert line.send(*NAMES) == list(NAMES)
    assert line.send(NAMES[1]) == [NAMES[1], NAMES[2]]
    assert line.has_everything()
    assert line.send(NAMES[3], NAMES[0]) == [NAMES[0], NAMES[3]]
    assert line.has_everything()


def test_a_version_without_changes_loads_nothing_and_counts(line):
    line.send(*NAMES)
    assert line.send() is None
    assert line.answer["version"] == 2


def test_after_a_whole_version_everything_is_loaded(line):
    line.send(*NAMES)
    assert line.send(NAMES[1], whole=True) == list(NAMES)
    assert line.has_everything()


def test_after_a_load_that_broke_nothing_is_left_out(line):
    line.send(*NAMES)
    line.worker.model_runner.broken = True
    line.send(NAMES[1])
    assert line.answer["ok"] is False
    line.worker.model_runner.broken = False
    assert line.send(NAMES[3]) == list(NAMES)
    assert line.has_everything()


def test_after_adapters_on_a_base_of_the_same_tensors_everything_is_loaded(line):
    line.send(*NAMES)
    base = line.carrier.publish(BASE_VERSION, line.tensors)
    change = LowRankChange(target=NAMES[3], down="down", up="up", scale=1.0)
    factors = {"down": torch.ones(1, 2), "up": torch.ones(2, 1)}
    adapted = line.carrier.publish(7, factors, base=base, changes=[change])
    for published in (base, adapted):
        source = dict(line.carrier.routes(published, [None], [1])[0].source)
        request = json.dumps({"manifest": published.manifest.to_json(), "source": source})
        assert line.worker.areal_stage(request)["ok"]
    assert line.worker.areal_switch("7")["ok"]
    assert not line.has_everything()
    line.version = 7
    # The worker keeps no whole version any more.
    published = line.carrier.publish(8, line.tensors | {NAMES[0]: torch.ones(3, 2)})
    source = dict(line.carrier.routes(published, [None], [1])[0].source)
    refused = line.worker.areal_stage(json.dumps({"manifest": published.delta.to_json(), "source": source}))
    assert "nothing is kept here" in refused["error"]
    assert line.send(NAMES[0], whole=True) == list(NAMES)
    assert line.has_everything()


class PackedExperts(nn.Module):
    """Experts of vLLM's CPU build: their kernel wants packed matrices, and packs those it is set up with first."""

    def __init__(self):
        super().__init__()
        self.w13_weight = nn.Parameter(torch.zeros(2, 2))
        self.packed = False
        kernel = SimpleNamespace(fused_experts=SimpleNamespace(process_weights_after_loading=self.pack))
        self.quant_method = SimpleNamespace(moe_kernel=kernel, _setup_kernel=self.set_up)

    def set_up(self, layer, w13, w2):
        self.packed = False

    def pack(self, layer):
        assert layer is self
        assert not self.packed, "packed twice"
        self.packed = True


def test_matrices_of_experts_are_packed_with_every_version_that_loads_them(line):
    experts = PackedExperts()
    runner = line.worker.model_runner
    runner.model["layers"][0]["experts"] = experts
    load = runner.reload_weights

    def reload_weights(**options):
        load(**options)
        if "layers.0.mlp.weight" in runner.loaded[-1]:  # stands for the experts' own
            experts.quant_method._setup_kernel(layer=experts, w13=None, w2=None)

    runner.reload_weights = reload_weights
    for changed in (NAMES, NAMES[3:], NAMES[:1], NAMES[3:]):
        line.send(*changed)
        assert line.answer["ok"], line.answer
        assert experts.packed
