"""Instances to infer from: tiny models of installed types, and a foreign decoder whose parts are chosen by switches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from areal.porting.infer.infer import infer
from areal.porting.probe.instance import build
from areal.porting.probe.subject import Subject, resolve

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 2e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}


@pytest.fixture(scope="session")
def installed():
    """installed("llama", head_dim=24): a tiny eager instance of a type of the installed transformers."""

    def make(model_type: str, **fields: Any):
        subject = resolve(model_type)
        return build(subject, {"model_type": subject.model_type, **SIZES, **fields}, attention="eager")

    return make


@pytest.fixture(scope="session")
def inferred(installed):
    """inferred("llama"): a tiny instance and what was inferred of it; not to be changed."""
    made = {}

    def look_up(model_type, **fields):
        key = (model_type, *fields.items())
        if key not in made:
            instance = installed(model_type, **fields)
            made[key] = (instance, infer(instance))
        return made[key]

    return look_up


@pytest.fixture(scope="session")
def foreign():
    """foreign(wiring="sandwich", norms="functional"): an instance of a decoder that no library knows."""

    def make(**switches: Any):
        subject = Subject(
            model_type="foreign",
            architecture="ForeignModel",
            config_class=ForeignConfig,
            model_class=ForeignModel,
            source="tests",
            source_files=(),
            installed=False,
        )
        return build(subject, switches, attention="eager")

    return make


class ForeignConfig(PreTrainedConfig):
    model_type = "foreign"

    def __init__(self, **kwargs: Any) -> None:
        self.words = kwargs.pop("words", 101)
        self.width = kwargs.pop("width", 48)
        self.inner = kwargs.pop("inner", 80)
        self.depth = kwargs.pop("depth", 2)
        self.heads = kwargs.pop("heads", 4)
        self.tiny = kwargs.pop("tiny", 3e-3)
        self.wiring = kwargs.pop("wiring", "pre")
        self.norms = kwargs.pop("norms", "module")
        self.kind = kwargs.pop("kind", "rms")
        self.shift = kwargs.pop("shift", 0.0)
        self.mixer = kwargs.pop("mixer", "module")
        self.step = kwargs.pop("step", 1.0)
        self.spoiled = kwargs.pop("spoiled", "")
        self.places = kwargs.pop("places", "none")
        self.louder = kwargs.pop("louder", 1.0)
        self.quieter = kwargs.pop("quieter", 1.0)
        self.bound = kwargs.pop("bound", None)
        self.tied = kwargs.pop("tied", False)
        self.turned = kwargs.pop("turned", "")
        super().__init__(tie_word_embeddings=self.tied, **kwargs)


class Scaler(nn.Module):
    """A norm as its own module, or the parameters of one that the block applies."""

    def __init__(self, config: ForeignConfig) -> None:
        super().__init__()
        self.kind, self.shift, self.tiny = config.kind, config.shift, config.tiny
        self.g = nn.Parameter(torch.ones(config.width) - config.shift)
        self.h = nn.Parameter(torch.zeros(config.width)) if config.kind == "layer" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "layer":
            return functional.layer_norm(x, x.shape[-1:], self.g + self.shift, self.h, self.tiny)
        return x / (x.square().mean(-1, keepdim=True) + self.tiny).sqrt() * (self.g + self.shift)


class Looker(nn.Module):
    """Causal attention without positions."""

    def __init__(self, config: ForeignConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(config.width, config.width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class Thinker(nn.Module):
    """A gated layer with one matrix for both factors, row by row in turn."""

    def __init__(self, config: ForeignConfig) -> None:
        super().__init__()
        self.inward = nn.Linear(config.width, 2 * config.inner)
        self.outward = nn.Linear(config.inner, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = self.inward(x)
        return self.outward(functional.gelu(both[..., 1::2]) * both[..., ::2])


class Wrapped(nn.Module):
    """A part with its norm in one module."""

    def __init__(self, scaler: nn.Module, part: nn.Module) -> None:
        super().__init__()
        self.scaler, self.part = scaler, part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(self.scaler(x))


class Layer(nn.Module):
    def __init__(self, config: ForeignConfig, number: int) -> None:
        super().__init__()
        self.config, self.number = config, number
        if config.norms == "wrapped":
            self.first = Wrapped(Scaler(config), Looker(config))
            self.second = Wrapped(Scaler(config), Thinker(config))
            return
        self.s = nn.ModuleList(Scaler(config) for _ in range(4))
        self.look = Looker(config)
        if config.mixer == "loose":
            self.up, self.down = nn.Linear(config.width, config.inner), nn.Linear(config.inner, config.width)
        else:
            self.think = Thinker(config)
        if config.spoiled == "vector":
            self.leak = nn.Parameter(torch.zeros(config.width))

    def norm(self, place: int, x: torch.Tensor) -> torch.Tensor:
        scaler = self.s[place]
        return Scaler.forward(scaler, x) if self.config.norms == "functional" else scaler(x)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.mixer == "loose":
            return self.down(functional.relu(self.up(x)).square())
        return self.think(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c = self.config
        r = c.step / (self.number + 1) if c.spoiled == "depth" else c.step
        second = r * 0.5 if c.spoiled == "uneven" else r
        if c.norms == "wrapped":
            x = x + r * self.first(x)
            return x + r * self.second(x)
        if c.wiring == "pre":
            h = x + r * self.look(x if c.spoiled == "bare" and self.number == 0 else self.norm(0, x))
            out = h + second * self.mlp(self.norm(2, h))
        elif c.wiring == "post":
            h = x + r * self.norm(1, self.look(x))
            out = h + second * self.norm(3, self.mlp(h))
        elif c.wiring == "sandwich":
            h = x + r * self.norm(1, self.look(self.norm(0, x)))
            out = h + second * self.norm(3, self.mlp(self.norm(2, h)))
        elif c.wiring == "parallel":
            n = self.norm(0, x)
            out = x + r * self.look(n) + second * self.mlp(n)
        elif c.wiring == "parallel_two_norms":
            out = x + r * self.look(self.norm(0, x)) + second * self.mlp(self.norm(2, x))
        else:
            h = self.norm(0, x + self.look(x))
            out = self.norm(2, h + self.mlp(h))
        if c.spoiled == "vector":
            out = out + self.leak
        if c.spoiled == "stream":
            out = out + 0.1 * x.roll(1, 1)
        return 0.9 * out if c.spoiled == "scaled" else out


class Trunk(nn.Module):
    def __init__(self, config: ForeignConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(config.words, config.width)
        self.blocks = nn.ModuleDict({f"b{number}": Layer(config, number) for number in range(config.depth)})
        self.last = Scaler(config)


class ForeignModel(PreTrainedModel):
    config_class = ForeignConfig
    _tied_weights_keys = {"out.weight": "trunk.table.weight"}  # noqa: RUF012 - the library reads it from the class

    def __init__(self, config: ForeignConfig) -> None:
        super().__init__(config)
        self.trunk = Trunk(config)
        self.out = nn.Linear(config.width, config.words, bias=False)
        if config.turned:
            self.turn = nn.Linear(config.width, config.width, bias=config.turned == "biased")
            self.evened = Scaler(config)
        if config.places == "learned":
            self.places = nn.Parameter(torch.randn(70, config.width))
        if config.spoiled == "bigrams":
            self.pairs = nn.Embedding(37, config.width)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.trunk.table

    def get_output_embeddings(self) -> nn.Module:
        return self.out

    def forward(self, input_ids: torch.Tensor, **options: Any) -> CausalLMOutput:
        del options
        c = self.config
        x = self.trunk.table(input_ids) * c.louder
        if c.places == "learned":
            x = x + self.places[3 : 3 + input_ids.shape[1]]
        if c.places == "waves":
            x = x + waves(input_ids.shape[1], c.width)
        if c.spoiled == "bigrams":
            x = x + self.pairs((input_ids * 31 + input_ids.roll(1, 1)) % 37)
        for block in self.trunk.blocks.values():
            x = block(x)
        if c.spoiled == "first token":
            x = x - 0.2 * x[:, :1]
        x = self.trunk.last(x)
        if c.turned:
            bent = {"bent": torch.sin, "loose": lambda y: y}.get(c.turned, functional.gelu)
            x = bent(self.turn(x))
            x = x if c.turned == "loose" else self.evened(x)
        logits = self.out(x) * c.quieter
        return CausalLMOutput(logits=logits if c.bound is None else c.bound * (logits / c.bound).tanh())


def waves(length: int, width: int) -> torch.Tensor:
    """Sinusoids in turn, as in arXiv 1706.03762."""
    steps = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angles = torch.arange(length)[:, None] * steps
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)
