"""Mixtures of experts are read off what they compute, whatever their parts are called and however they are stored."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from areal.porting import reference
from areal.porting.infer.moe import NotMoe, infer_moe
from areal.porting.probe.instance import make_tokens
from areal.porting.probe.trace import record
from areal.porting.records import LayerContext, ModuleCall, Trace, UnsupportedError
from areal.porting.spec import MlpSpec, MoeSpec, RouterSpec

HIDDEN, INNER, EXPERTS, TOP_K = 48, 20, 6, 3


def tanh_gelu(hidden: torch.Tensor) -> torch.Tensor:
    return functional.gelu(hidden, approximate="tanh")


class Glow(nn.Module):
    """A mixture with unusual names whose every part is chosen by a switch."""

    def __init__(self, **switches: Any) -> None:
        super().__init__()
        defaults = {
            "score": "softmax", "balance": False, "balance_logits": False, "offset": False, "groups": 1, "best": 1,
            "judge": "top2_sum", "normalize": False, "factor": 1.0, "storage": "list", "act": functional.silu,
            "gated": True, "limit": None, "shared": None, "biases": False, "softcap": None, "on_inputs": False,
            "through": False, "shared_factor": 1.0,
        }  # fmt: skip
        self.s = SimpleNamespace(**(defaults | switches))
        self.pick = nn.Parameter(torch.randn(EXPERTS, HIDDEN) * 0.2)
        self.tilt = nn.Buffer(torch.zeros(EXPERTS))
        self.lean = nn.Parameter(torch.randn(EXPERTS)) if self.s.offset else None
        generator = torch.Generator().manual_seed(5)
        self.a, self.b, self.c = (
            torch.randn(EXPERTS, rows, columns, generator=generator) * 0.2
            for rows, columns in ((INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER))
        )
        self.bias = torch.randn(EXPERTS, 2 * INNER, generator=generator)
        self._store(self.s.storage)
        if self.s.shared:
            if self.s.shared != "inline":
                self.always = Dense(INNER + 4)
            else:
                self.one, self.two, self.three = (
                    nn.Linear(*sizes, bias=False) for sizes in ((HIDDEN, 12), (HIDDEN, 12), (12, HIDDEN))
                )
            if self.s.shared == "gated":
                self.door = nn.Linear(HIDDEN, 1, bias=False)

    def _store(self, storage: str) -> None:
        parts = (self.a, self.b) if self.s.gated else (self.b,)
        if storage == "list":
            self.crowd = nn.ModuleList(nn.Module() for _ in range(EXPERTS))
            for number, member in enumerate(self.crowd):
                for name, matrix in zip(("first", "second", "third"), (*parts, self.c), strict=False):
                    setattr(member, name, nn.Parameter(matrix[number].clone()))
        elif storage == "concat":
            self.wide = nn.Parameter(torch.cat(parts, 1))
            self.narrow = nn.Parameter(self.c.clone())
        elif storage == "interleaved":
            self.wide = nn.Parameter(torch.stack(parts, 2).flatten(1, 2).transpose(1, 2).contiguous())
            self.narrow = nn.Parameter(self.c.transpose(1, 2).contiguous())
            if self.s.biases:
                self.wide_shift = nn.Parameter(self.bias.clone())
                self.narrow_shift = nn.Parameter(torch.zeros(EXPERTS, HIDDEN))
        elif storage == "flat":
            self.p, self.q = (nn.Parameter(matrix.flatten(0, 1)) for matrix in parts)
            self.r = nn.Parameter(self.c.transpose(1, 2).flatten(0, 1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, HIDDEN)
        weights, chosen = self.route(flat)
        dense = torch.zeros(len(flat), EXPERTS).scatter(1, chosen, weights)
        scale = dense if self.s.on_inputs else torch.ones_like(dense)
        each = torch.stack([self.expert(flat * scale[:, e : e + 1], e) for e in range(EXPERTS)], 1)
        mixed = ((dense != 0) if self.s.on_inputs else dense)[:, :, None] * each
        out = mixed.sum(1) + (0.25 * flat if self.s.through else 0)
        if self.s.shared == "inline":
            out = out + self.three(functional.silu(self.one(flat)) * self.two(flat))
        elif self.s.shared:
            door = self.door(flat).sigmoid() if self.s.shared == "gated" else self.s.shared_factor
            out = out + door * self.always(flat)
        return out.reshape(hidden.shape)

    def route(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = flat @ self.pick.T + (0 if self.lean is None else self.lean)
        if self.s.softcap:
            logits = self.s.softcap * (logits / self.s.softcap).tanh()
        scores = {
            "softmax": logits.softmax(-1),
            "sigmoid": logits.sigmoid(),
            "root": functional.softplus(logits).sqrt(),
        }
        score = scores[self.s.score]
        choice = (logits if self.s.balance_logits else score) + self.tilt * self.s.balance
        if self.s.groups > 1:
            grouped = choice.unflatten(1, (self.s.groups, -1))
            judged = grouped.amax(2) if self.s.judge == "max" else grouped.topk(2, 2).values.sum(2)
            kept = torch.zeros_like(judged, dtype=torch.bool).scatter(1, judged.topk(self.s.best, 1).indices, True)
            choice = grouped.masked_fill(~kept[:, :, None], -torch.inf).flatten(1)
        chosen = choice.topk(TOP_K, 1).indices
        weights = score.gather(1, chosen)
        if self.s.normalize:
            weights = weights / weights.sum(1, keepdim=True)
        return weights * self.s.factor, chosen

    def expert(self, flat: torch.Tensor, number: int) -> torch.Tensor:
        up, gate = flat @ self.b[number].T, flat @ self.a[number].T
        if self.s.biases:
            gate, up = gate + self.bias[number, 0::2], up + self.bias[number, 1::2]
        if self.s.limit:
            gate, up = gate.clamp(max=self.s.limit), up.clamp(-self.s.limit, self.s.limit)
        return (self.s.act(gate) * up if self.s.gated else self.s.act(up)) @ self.c[number].T


class Dense(nn.Module):
    """A feed-forward layer with a gate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.x, self.y = (nn.Linear(HIDDEN, size, bias=False) for _ in range(2))
        self.z = nn.Linear(size, HIDDEN, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.z(functional.silu(self.y(hidden)) * self.x(hidden))


def explain(module: nn.Module, **config: Any):
    """infer_moe for a module that is called with random hidden states."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"feed": module}).eval().requires_grad_(False)
    for buffer in module.buffers():
        buffer.normal_(std=0.05)
    calls: dict[str, tuple[ModuleCall, ...]] = {}

    def note(name: str):
        def hook(_, given, made):
            calls[name] = (ModuleCall(name, len(calls), given[0].clone(), made.clone()),)

        return hook

    handles = [part.register_forward_hook(note(name)) for name, part in model.named_modules() if name]
    hidden = torch.randn(2, 9, HIDDEN)
    with torch.no_grad():
        logits = module(hidden)
    for handle in handles:
        handle.remove()
    trace = Trace(torch.zeros(2, 9, dtype=torch.int64), logits, calls, ())
    context = LayerContext(model=model, module=module, name="feed", layer=0, num_layers=1, config=config, trace=trace)
    return infer_moe(context)


def router(**fields: Any) -> RouterSpec:
    return RouterSpec(**({"num_experts": EXPERTS, "top_k": TOP_K, "score": "softmax", "order": "score_first"} | fields))


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({}, {}),
        ({"normalize": True}, {"normalize": True}),
        ({"score": "sigmoid"}, {"score": "sigmoid"}),
        ({"score": "sigmoid", "normalize": True, "factor": 2.5}, {"score": "sigmoid", "normalize": True, "scale": 2.5}),
        ({"balance": True}, {"selection_bias": True}),
        ({"score": "sigmoid", "balance": True}, {"score": "sigmoid", "selection_bias": True}),
        (
            {"score": "sigmoid", "balance": True, "balance_logits": True},
            {"score": "sigmoid", "selection_bias": True, "order": "select_first"},
        ),
        ({"offset": True}, {"bias": True}),
        (
            {"offset": True, "score": "sigmoid", "balance": True},
            {"bias": True, "score": "sigmoid", "selection_bias": True},
        ),
        ({"groups": 3, "best": 2}, {"groups": 3, "top_groups": 2}),
        ({"groups": 2, "best": 1, "judge": "max"}, {"groups": 2, "top_groups": 1, "group_score": "max"}),
        (
            {"groups": 3, "best": 2, "score": "sigmoid", "balance": True, "normalize": True, "factor": 0.7},
            {"groups": 3, "top_groups": 2, "score": "sigmoid", "selection_bias": True, "normalize": True, "scale": 0.7},
        ),
    ],
)
def test_routing_is_told_from_its_close_relatives(switches, expected):
    assert explain(Glow(**switches)).spec.router == router(**expected)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"storage": "list"}, {}),
        ({"storage": "concat"}, {}),
        ({"storage": "interleaved"}, {}),
        ({"storage": "interleaved", "biases": True}, {"bias": True, "output_bias": True}),
        ({"storage": "flat"}, {}),
        ({"storage": "list", "gated": False, "act": functional.relu}, {"gated": False, "activation": "relu"}),
        ({"storage": "concat", "act": functional.gelu}, {"activation": "gelu"}),
        ({"storage": "concat", "act": tanh_gelu}, {"activation": "gelu_pytorch_tanh"}),
        ({"storage": "concat", "limit": 1.25}, {"clamp": 1.25}),
        ({"storage": "concat", "limit": 7.0}, {"clamp": 7.0}),
    ],
)
def test_experts_are_found_however_they_are_stored(switches, expected):
    module = Glow(**switches)
    inferred = explain(module, swiglu_limit=1.25)
    plain = {"gated": True, "activation": "silu", "intermediate_size": INNER}
    assert inferred.spec.experts == MlpSpec(**(plain | expected))
    assert torch.equal(inferred.tensors["experts.up_proj"], module.b)
    assert torch.equal(inferred.tensors["experts.down_proj"], module.c)
    assert inferred.spec.experts.gated == ("experts.gate_proj" in inferred.tensors)


@pytest.mark.parametrize(("shared", "size"), [("module", INNER + 4), ("inline", 12), ("gated", INNER + 4)])
def test_shared_experts_are_found_inside_and_outside_a_module_of_their_own(shared, size):
    inferred = explain(Glow(shared=shared))
    assert inferred.spec.shared == MlpSpec(gated=True, activation="silu", intermediate_size=size)
    assert inferred.spec.shared_gate == (shared == "gated")


def test_a_gate_of_nothing_is_no_layer():
    spec = explain(Glow(shared="gated")).spec
    with pytest.raises(UnsupportedError, match="a gate of shared experts that are not there"):
        reference.feed_forward(replace(spec, shared=None), HIDDEN)


@pytest.mark.parametrize("factor", [0.5, 1.75])
def test_a_factor_on_shared_experts_is_measured(factor):
    module = Glow(shared="module", shared_factor=factor)
    inferred = explain(module)
    assert (inferred.spec.shared_scale, inferred.spec.shared_gate) == (factor, False)
    ours = reference.feed_forward(inferred.spec, HIDDEN)
    ours.load_state_dict(dict(inferred.tensors))
    inputs = torch.randn(50, HIDDEN, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs), module(inputs[None])[0], rtol=1e-4, atol=1e-5)


def test_what_is_inferred_computes_the_same_on_other_inputs():
    module = Glow(storage="concat", shared="gated", score="sigmoid", balance=True, groups=3, best=2, factor=1.5)
    inferred = explain(module)
    layer = reference.feed_forward(inferred.spec, HIDDEN)
    layer.load_state_dict(dict(inferred.tensors), strict=True)
    hidden = torch.randn(500, HIDDEN) * 3
    expected = module(hidden)
    assert (layer(hidden) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert all(line.margin is None or line.margin > 3 for line in inferred.evidence)


def test_routing_weights_on_what_experts_get_are_found():
    assert explain(Glow(on_inputs=True, score="sigmoid")).spec.weigh_inputs
    assert not explain(Glow(score="sigmoid")).spec.weigh_inputs


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("switches", "feature"),
    [
        ({"score": "root"}, "routing weights that are no scaled softmax or sigmoid"),
        ({"score": "sigmoid", "softcap": 2.0}, "routing weights that are no scaled softmax or sigmoid"),
        ({"through": True}, "experts that compute nothing"),
        ({"act": lambda hidden: hidden.sin()}, "experts of an unknown form"),
        ({"storage": "concat", "limit": 9.37}, "experts of an unknown form"),
    ],
)
def test_what_no_spec_says_is_refused_by_name(switches, feature):
    with pytest.raises(UnsupportedError, match="feed") as caught:
        explain(Glow(**switches))
    assert feature in caught.value.feature


def test_probing_leaves_the_module_as_it_was():
    module = Glow(balance=True, score="sigmoid")
    torch.manual_seed(3)
    module.tilt.normal_(std=0.05)
    before = module.tilt.clone()
    explain(module)
    torch.manual_seed(3)
    assert torch.equal(module.tilt, torch.empty_like(before).normal_(std=0.05))
    assert not module._forward_hooks


def test_a_dense_layer_is_no_mixture():
    with pytest.raises(NotMoe, match="feed"):
        explain(Dense(32))


# ------------------------------------------------------------------------------------------------ installed types


def context_of(instance, name: str, shared: str | None = None) -> LayerContext:
    trace = record(instance, make_tokens(instance, batch=2, length=16, seed=0))
    return LayerContext(
        model=instance.model,
        module=instance.model.get_submodule(name),
        name=name,
        layer=int(name.split(".")[2]),
        num_layers=4,
        config=instance.hf_config.to_dict(),
        trace=trace,
        shared=shared,
    )


def test_deepseek_v3_routes_by_groups_with_a_selection_bias(installed):
    sizes = {"num_key_value_heads": 4, "n_routed_experts": 8, "moe_intermediate_size": 40, "first_k_dense_replace": 1}
    latent = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
    instance = installed("deepseek_v3", **sizes, **latent, n_group=4, topk_group=2, num_experts_per_tok=2)
    with pytest.raises(NotMoe):
        infer_moe(context_of(instance, "model.layers.0.mlp"))
    inferred = infer_moe(context_of(instance, "model.layers.1.mlp"))
    assert inferred.spec == MoeSpec(
        router=RouterSpec(
            num_experts=8,
            top_k=2,
            score="sigmoid",
            order="score_first",
            selection_bias=True,
            groups=4,
            top_groups=2,
            normalize=True,
            scale=2.5,
        ),
        experts=MlpSpec(gated=True, activation="silu", intermediate_size=40),
        shared=MlpSpec(gated=True, activation="silu", intermediate_size=40),
    )


def test_gpt_oss_has_clamped_experts_with_biases(installed):
    instance = installed("gpt_oss", num_local_experts=8, num_experts_per_tok=2, head_dim=16, swiglu_limit=1.0)
    inferred = infer_moe(context_of(instance, "model.layers.0.mlp"))
    assert inferred.spec.experts == MlpSpec(
        gated=True,
        activation="quick_gelu",
        intermediate_size=96,
        bias=True,
        output_bias=True,
        clamp=1.0,
        up_offset=1.0,
    )
    assert inferred.spec.router.bias


def test_qwen2_moe_gates_its_shared_expert(installed):
    sizes = {"num_experts": 8, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 24}
    instance = installed("qwen2_moe", **sizes, num_experts_per_tok=2)
    inferred = infer_moe(context_of(instance, "model.layers.0.mlp"))
    assert inferred.spec.shared == MlpSpec(gated=True, activation="silu", intermediate_size=24)
    assert inferred.spec.shared_gate
    assert not inferred.spec.router.normalize


@pytest.mark.parametrize("size", [24, 2])  # outputs of small ones hardly show beside those of others
def test_shared_experts_may_stand_beside_the_module_of_the_routed_ones(installed, size):
    sizes = {"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": size}
    instance = installed("granitemoeshared", **sizes)
    block = "model.layers.0"
    inferred = infer_moe(context_of(instance, f"{block}.block_sparse_moe", f"{block}.shared_mlp"))
    assert inferred.spec.shared == MlpSpec(gated=True, activation="silu", intermediate_size=size)


@pytest.mark.parametrize(
    ("model_type", "feature"),
    [
        ("jetmoe", "a bias on the mixture of experts"),
        pytest.param(
            "deepseek_v4",
            "feed-forward layers that need more than hidden states",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_mixtures_of_other_kinds_are_refused_by_name(installed, model_type, feature):
    instance = installed(model_type, num_local_experts=8, num_experts_per_tok=2)
    with pytest.raises(UnsupportedError) as caught:
        infer_moe(context_of(instance, "model.layers.1.mlp"))
    assert feature in caught.value.feature
