"""A module that is run alone, on what a forward gave it, is captured as inside of the model, where that is the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from areal.porting.infer.capture import MatrixProduct, Projection, capture
from areal.porting.infer.layers import surroundings
from areal.porting.infer.replay import KnownCalls
from areal.porting.probe.instance import Instance
from areal.porting.probe.trace import record
from areal.porting.records import LayerRoles, ModelRoles
from tests.areal.porting.infer.attention_hosts import HIDDEN, WIDTH, Attention, Host

OTHERS = torch.arange(30).reshape(2, 15)


class Counting(Host):
    """Counts its forwards, and tells its mixer how loud to be, behind the back of its arguments."""

    def __init__(self, loudness: float, left: float | None) -> None:
        super().__init__(Loud())
        self.forwards = 0
        self.loudness, self.left = loudness, left

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        self.mixer.loudness = self.loudness
        try:
            return super().forward(input_ids)
        finally:
            self.mixer.loudness = self.left


class Loud(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.loudness = 1.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.loudness is None:
            raise AttributeError("its model has not said how loud it is")
        given = self.matrix(hidden)
        return given @ given.transpose(1, 2) @ hidden * self.loudness


class Given(Attention):
    """Gets its keys from its model, which calls a part of it for them."""

    def forward(self, hidden: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        self.keys = keys
        return super().forward(hidden)

    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wanted, content = self.wanted(hidden), self.content(hidden)
        return tuple(each.unflatten(-1, (-1, WIDTH)) for each in (wanted, self.keys, content))


class Giving(Host):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input_ids)
        return self.head(self.mixer(hidden, self.mixer.offered(hidden)))


@pytest.mark.parametrize("tokens", ["traced", "others"])
def test_what_is_known_of_a_call_gives_the_same_capture(installed, tokens) -> None:
    instance = installed("mixtral")
    trace = record(instance, OTHERS[:, :9] + 5)
    chosen = trace.tokens if tokens == "traced" else OTHERS
    names = [f"model.layers.{layer}.self_attn" for layer in range(2)]
    calls = KnownCalls(instance.model, trace, names).of

    for name in names:
        alone, inside = capture(instance.model, name, chosen, calls=calls), capture(instance.model, name, chosen)
        assert torch.equal(alone.input, inside.input)
        assert torch.equal(alone.output, inside.output)
        assert [type(event) for event in alone.events] == [type(event) for event in inside.events]
        for kind, part in ((Projection, "output"), (MatrixProduct, "right")):
            pairs = list(zip(alone.of(kind), inside.of(kind), strict=True))
            assert pairs
            assert all(torch.equal(getattr(ours, part), getattr(theirs, part)) for ours, theirs in pairs)


def test_one_forward_tells_how_all_modules_are_called(installed) -> None:
    instance = installed("mixtral")
    trace, counted = record(instance, OTHERS[:, :9]), []
    calls = KnownCalls(instance.model, trace, [f"model.layers.{layer}.self_attn" for layer in range(2)])
    handle = instance.model.register_forward_pre_hook(lambda *_: counted.append(1))
    found = [calls.of(f"model.layers.{layer}.self_attn", OTHERS) for layer in (1, 0, 1)]
    handle.remove()

    assert len(counted) == 1
    assert torch.equal(found[0].output, found[2].output)
    assert calls.of("model.layers.0.mlp", OTHERS) is None


@pytest.mark.parametrize(("loudness", "left", "forwards"), [(1.0, 1.0, 0), (2.0, 1.0, 1), (2.0, None, 1)])
def test_a_module_that_reads_more_than_its_arguments_runs_inside_of_its_model(loudness, left, forwards) -> None:
    model = Counting(loudness, left)
    calls = KnownCalls(model, None, ["mixer"]).of
    calls("mixer", OTHERS)
    before = model.forwards
    found = capture(model, "mixer", OTHERS, calls=calls)
    assert model.forwards - before == forwards
    assert torch.equal(found.output, capture(model, "mixer", OTHERS).output)


@pytest.mark.parametrize(("host", "alone"), [(Giving(Given()), False), (Host(Attention()), True)])
def test_a_module_whose_parts_its_model_calls_is_captured_with_these_calls(host, alone) -> None:
    trace = record(Instance(subject=None, config={}, hf_config=None, model=host), OTHERS)
    layer = LayerRoles(block="", attention="mixer", feed_forward=None, norms=())
    roles = ModelRoles(embedding="embed", layers=(layer,), final_norm=None, head="head")
    calls = surroundings(host, trace, {}, roles).calls

    found = capture(host, "mixer", OTHERS, calls=calls)
    names = [projection.name for projection in found.of(Projection)]
    assert sorted(names) == ["mixer.content", "mixer.merge", "mixer.offered", "mixer.wanted"]
    assert (calls("mixer", OTHERS) is not None) == alone
