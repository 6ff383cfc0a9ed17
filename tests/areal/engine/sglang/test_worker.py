"""What our loader does in a worker of SGLang: every request has an answer, and nothing ends the server."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from areal.engine.sglang import worker as module
from areal.engine.sglang.worker import load
from areal.infra.weights.files import FileCarrier


class Model(nn.Module):
    """Loads by the names of a checkpoint, some or all; `broken` after the first one."""

    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({"qkv_proj": nn.Linear(2, 4, bias=False)})
        self.mlp = nn.Linear(2, 2, bias=False)
        self.packed_modules_mapping = {"qkv_proj": ["q_proj", "k_proj"]}
        self.loaded, self.broken = [], False

    def load_weights(self, weights):
        self.loaded.append([])
        for name, tensor in weights:
            if self.broken:
                raise RuntimeError("out of memory")
            self.loaded[-1].append(name)
            joint = self.attn["qkv_proj"].weight.data
            target = {"attn.q_proj": joint[:2], "attn.k_proj": joint[2:], "mlp": self.mlp.weight.data}
            target[name.removesuffix(".weight")].copy_(tensor)


NAMES = ("attn.q_proj.weight", "attn.k_proj.weight", "mlp.weight")


class Line:
    """A trainer and the loader in one worker."""

    def __init__(self, folder):
        self.carrier, self.model, self.folder = FileCarrier(folder / "weights", deltas=True), Model(), folder
        self.tensors = {name: torch.zeros(2, 2) for name in NAMES}
        self.version = 0

    def ask(self, **request):
        answer = self.folder / "answer.json"
        load(self.model, [(json.dumps({"rank": 0, "answer": str(answer), **request}), torch.zeros(1))])
        return json.loads(answer.read_text())

    def send(self, *changed):
        self.version += 1
        self.tensors |= {name: self.tensors[name] + self.version for name in changed}
        published = self.carrier.publish(self.version, self.tensors)
        source = dict(self.carrier.routes(published, [None], [1])[0].source)
        manifest = (published.delta or published.manifest).to_json()
        staged = self.ask(action="stage", manifest=manifest, source=source)
        assert staged["ok"], staged
        return self.ask(action="switch", version=self.version)


@pytest.fixture
def line(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_workers", [])
    return Line(tmp_path)


def test_versions_are_loaded_whole_and_then_by_layers_that_changed(line):
    assert line.send(*NAMES)["version"] == 1
    assert line.send(NAMES[1])["version"] == 2
    assert line.model.loaded == [list(NAMES), [NAMES[0], NAMES[1]]]
    assert torch.equal(line.model.attn["qkv_proj"].weight.data, torch.cat([line.tensors[name] for name in NAMES[:2]]))
    assert line.send()["ok"]
    assert len(line.model.loaded) == 2


def test_what_is_wrong_is_an_answer_and_never_an_exception(line):
    assert line.ask(action="dance") == {"ok": False, "error": "unknown action 'dance'"}
    assert "none is staged" in line.ask(action="switch", version=4)["error"]
    assert "KeyError" in line.ask(action="stage")["error"]


def test_after_a_load_that_broke_everything_is_loaded(line):
    line.send(*NAMES)
    line.model.broken = True
    answer = line.send(NAMES[2])
    assert (answer["ok"], answer["broken"], answer["error"]) == (False, True, "RuntimeError: out of memory")
    line.model.broken = False
    assert line.send(NAMES[2])["ok"]
    assert line.model.loaded[-1] == list(NAMES)
