"""Attention layers compute what those of real models compute: same input, same weights, same output."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from areal.models.blocks.alibi import alibi_slopes
from areal.models.blocks.attention import PackedAttention, SelfAttention
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.norms import LayerNorm, RMSNorm
from areal.models.blocks.padded_attention import Visibility
from areal.models.blocks.rotary import Rotary
from areal.models.decoder_args import RotaryArgs

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH, LENGTH, EPS = 2, 21, 2e-3
LLAMA_LIKE = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": EPS,
    "pad_token_id": 0,
}
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer of a real model, and the same thing in our words."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    module: str
    """Qualified name of the attention module."""
    output: str = "o_proj"
    """Child whose output is that of the layer."""
    entry: str = "q_proj"
    """Child that gets the layer's input."""
    ours: Callable[[], torch.nn.Module]
    weights: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
    """The module's state dict to ours."""
    rotary: Rotary | None = None
    attention: str = "eager"


def same(**renamed):
    """Names as they are, but for some."""

    def convert(state):
        parts = {name: name.partition(".") for name in state}
        return {f"{renamed.get(first, first)}{dot}{rest}": state[name] for name, (first, dot, rest) in parts.items()}

    return convert


def fused(module, arrangement, *, heads, head_dim, output):
    """One matrix for queries, keys and values, to three."""

    def convert(state):
        found = {}
        for part in ("weight", "bias"):
            if f"{module}.{part}" in state:
                matrix = state[f"{module}.{part}"]
                if arrangement == "per_head":
                    split = matrix.unflatten(0, (heads, 3, head_dim)).unbind(1)
                    split = [each.flatten(0, 1) for each in split]
                else:
                    kv = (matrix.shape[0] - heads * head_dim) // 2
                    split = matrix.split((heads * head_dim, kv, kv))
                found |= {f"{name}.{part}": value for name, value in zip(NAMES, split, strict=False)}
            if f"{output}.{part}" in state:
                found[f"o_proj.{part}"] = state[f"{output}.{part}"]
        return found

    return convert


def args(num_heads=6, num_kv_heads=2, head_dim=8):
    return types.SimpleNamespace(hidden_size=48, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)


def yarn():
    parameters = {"factor": 32.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
    parameters["truncate"] = False
    return parameters


def latent(query_rank):
    return LatentAttention(
        1,
        args(),
        query_rank=query_rank,
        kv_rank=16,
        nope_dim=6,
        rope_dim=4,
        value_dim=10,
        query_norm=None if query_rank is None else RMSNorm(query_rank, 1e-6),
        kv_norm=RMSNorm(16, 1e-6),
        query_bias=query_rank is not None,
        kv_bias=True,
        output_bias=True,
        scale=10**-0.5,
    )


def deepseek(query_rank):
    config = LLAMA_LIKE | {
        "num_key_value_heads": 6,
        "q_lora_rank": query_rank,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 10,
        "attention_bias": True,
        "first_k_dense_replace": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    }
    return Case(
        model_type="deepseek_v3",
        config=config,
        module="model.layers.1.self_attn",
        entry="kv_a_proj_with_mqa",
        ours=lambda: latent(query_rank),
        weights=same(kv_a_proj_with_mqa="kv_a_proj", kv_a_layernorm="kv_a_norm", q_a_layernorm="q_a_norm"),
        rotary=Rotary(RotaryArgs(), 4, interleaved=True),
    )


CASES = {
    "gemma2 window and softcap": Case(
        model_type="gemma2",
        config=LLAMA_LIKE
        | {"head_dim": 12, "sliding_window": 5, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 20},
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(0, args(head_dim=12), scale=20**-0.5, window=5, softcap=1.5),
        weights=same(),
        rotary=Rotary(RotaryArgs(), 12),
    ),
    "gpt_oss sinks, window and yarn": Case(
        model_type="gpt_oss",
        config=LLAMA_LIKE
        | {
            "head_dim": 12,
            "sliding_window": 5,
            "num_local_experts": 4,
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, **yarn()},
        },
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(0, args(head_dim=12), qkv_bias=True, output_bias=True, window=5, sinks=True),
        weights=same(),
        rotary=Rotary(RotaryArgs(theta=150000.0, rotary_type="yarn", parameters=yarn()), 12),
    ),
    "bloom alibi": Case(
        model_type="bloom",
        config={"vocab_size": 64, "hidden_size": 48, "n_layer": 1, "n_head": 6},
        module="transformer.h.0.self_attention",
        entry="query_key_value",
        output="dense",
        ours=lambda: SelfAttention(0, args(), num_kv_heads=6, qkv_bias=True, output_bias=True, alibi=1.0),
        weights=fused("query_key_value", "per_head", heads=6, head_dim=8, output="dense"),
    ),
    "mpt alibi and clip": Case(
        model_type="mpt",
        config={
            "vocab_size": 64,
            "d_model": 48,
            "n_layers": 1,
            "n_heads": 6,
            "max_seq_len": 64,
            "attn_config": {"clip_qkv": 0.5, "alibi": True, "softmax_scale": 0.4},
        },
        module="transformer.blocks.0.attn",
        entry="Wqkv",
        output="out_proj",
        ours=lambda: SelfAttention(0, args(), num_kv_heads=6, clip=0.5, scale=0.4, alibi=1.0),
        weights=fused("Wqkv", "concat", heads=6, head_dim=8, output="out_proj"),
    ),
    "falcon scaled alibi": Case(
        model_type="falcon",
        config={"vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 6, "alibi": True}
        | {"multi_query": True, "new_decoder_architecture": False, "bias": True},
        module="transformer.h.0.self_attention",
        entry="query_key_value",
        output="dense",
        ours=lambda: SelfAttention(0, args(), num_kv_heads=1, qkv_bias=True, output_bias=True, alibi=8**-0.5),
        weights=fused("query_key_value", "concat", heads=6, head_dim=8, output="dense"),
        # Its eager attention adds the biases twice.
        attention="sdpa",
    ),
    "olmoe full norms, then clip": Case(
        model_type="olmoe",
        config=LLAMA_LIKE | {"clip_qkv": 0.6, "num_experts": 4, "num_experts_per_tok": 2},
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(
            0, args(), query_norm=RMSNorm(48, EPS), key_norm=RMSNorm(16, EPS), full_width_norms=True, clip=0.6
        ),
        weights=same(),
        rotary=Rotary(RotaryArgs(), 8),
    ),
    "hunyuan norms after the rotation": Case(
        model_type="hunyuan_v1_dense",
        config=LLAMA_LIKE | {"head_dim": 8},
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(
            0, args(), query_norm=RMSNorm(8, EPS), key_norm=RMSNorm(8, EPS), norm_after_rotary=True
        ),
        weights=same(query_layernorm="q_norm", key_layernorm="k_norm"),
        rotary=Rotary(RotaryArgs(), 8),
    ),
    "stablelm norm of each head, partial": Case(
        model_type="stablelm",
        config=LLAMA_LIKE
        | {"qk_layernorm": True, "layer_norm_eps": EPS, "use_qkv_bias": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(
            0,
            args(),
            qkv_bias=True,
            query_norm=LayerNorm((6, 8), EPS, bias=False),
            key_norm=LayerNorm((2, 8), EPS, bias=False),
        ),
        weights=lambda state: {
            **{name: value for name, value in state.items() if "layernorm" not in name},
            "q_norm.weight": torch.stack([state[f"q_layernorm.norms.{head}.weight"] for head in range(6)]),
            "k_norm.weight": torch.stack([state[f"k_layernorm.norms.{head}.weight"] for head in range(2)]),
        },
        rotary=Rotary(RotaryArgs(), 4),
    ),
    "gptj interleaved and partial": Case(
        model_type="gptj",
        config={"vocab_size": 64, "n_embd": 48, "n_layer": 1, "n_head": 6, "rotary_dim": 4, "n_positions": 64},
        module="transformer.h.0.attn",
        output="out_proj",
        ours=lambda: SelfAttention(0, args(), num_kv_heads=6),
        weights=same(out_proj="o_proj"),
        rotary=Rotary(RotaryArgs(), 4, interleaved=True),
    ),
    "afmoe elementwise gate": Case(
        model_type="afmoe",
        config=LLAMA_LIKE
        | {
            "head_dim": 8,
            "sliding_window": 5,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "global_attn_every_n_layers": 2,
        },
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(
            0,
            args(),
            query_norm=RMSNorm(8, EPS),
            key_norm=RMSNorm(8, EPS),
            window=5,
            gate="elementwise",
        ),
        weights=same(),
        rotary=Rotary(RotaryArgs(), 8),
    ),
    "ministral3 growing queries": Case(
        model_type="ministral3",
        config=LLAMA_LIKE
        | {
            "head_dim": 8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "llama_4_scaling_beta": 0.4}
            | {"original_max_position_embeddings": 6},
        },
        module="model.layers.0.self_attn",
        ours=lambda: SelfAttention(0, args()),
        weights=same(),
        rotary=Rotary(RotaryArgs(theta=500.0), 8, query_growth=0.4, growth_length=6),
    ),
    "deepseek compressed queries": deepseek(12),
    "deepseek plain queries": deepseek(None),
}


@torch.no_grad()
def observed(case):
    """Input and output [B, T, hidden] of the layer in the real model, and its weights under our names."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(case.model_type, **case.config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=case.attention).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_vector = parameter.dim() == 1
        centre = 1.0 if is_vector and name.endswith("norm.weight") else 0.0
        parameter.copy_(centre + noise * (0.3 if is_vector else parameter.shape[-1] ** -0.5))
    module = model.get_submodule(case.module)
    seen = {}
    module.get_submodule(case.entry).register_forward_hook(lambda _, inputs, __: seen.update(input=inputs[0]))
    module.get_submodule(case.output).register_forward_hook(lambda _, __, output: seen.update(output=output))
    tokens = torch.randint(3, config.vocab_size, (BATCH, LENGTH), generator=generator)
    model(tokens)
    return seen["input"].flatten(0, 1), seen["output"].flatten(0, 1), case.weights(module.state_dict())


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_a_layer_of_a_real_model_is_reproduced(name):
    case = CASES[name]
    hidden, expected, weights = observed(case)
    layer = case.ours()
    layer.load_state_dict(weights, strict=True)
    bounds = torch.tensor([0, LENGTH, 2 * LENGTH])
    positions = torch.arange(LENGTH).repeat(BATCH)
    rotation = None if case.rotary is None else case.rotary(positions, torch.float32, bounds)
    with torch.no_grad():
        found = layer(hidden, rotation, PackedAttention(bounds, BATCH * LENGTH, torch.device("cpu")))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert expected.std() > 1e-2  # or nothing was compared


@pytest.mark.parametrize("num_heads", [1, 2, 4, 6, 8, 12, 13, 32])
def test_slopes_are_those_of_bloom_and_mpt(num_heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    found = alibi_slopes(num_heads, 1.0, torch.device("cpu"))
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)
    mpt = build_mpt_alibi_tensor(num_heads, 2)
    torch.testing.assert_close(found, bloom[:, 0, 1], rtol=1e-6, atol=0)
    torch.testing.assert_close(found, -mpt[:, 0, 0], rtol=1e-6, atol=0)
    assert alibi_slopes(num_heads, 1.0, torch.device("cpu")) is found
    torch.testing.assert_close(alibi_slopes(num_heads, 0.3, torch.device("cpu")), 0.3 * found)


def test_slopes_can_be_made_first_where_nothing_is_computed():
    with torch.device("meta"), torch.inference_mode():
        slopes = alibi_slopes(7, 0.123, torch.device("cpu"))
    assert not slopes.is_meta
    assert not slopes.is_inference()


@pytest.mark.parametrize(("window", "chunk"), [(None, None), (4, None), (1, None), (None, 4), (None, 1), (3, 5)])
def test_what_is_visible_is_what_transformers_masks_leave(window, chunk):
    from transformers import masking_utils

    masks = [masking_utils.causal_mask_function]
    if window is not None:
        masks.append(masking_utils.sliding_window_causal_mask_function(window))
    if chunk is not None:
        masks.append(masking_utils.chunked_causal_mask_function(chunk, torch.zeros(1, dtype=torch.int64)))
    mask = masking_utils.and_masks(*masks)
    place = torch.arange(13)
    expected = mask(torch.tensor(0), torch.tensor(0), place[:, None], place)
    assert torch.equal(Visibility(13, 0, torch.device("cpu")).mask(window, chunk), expected)
    assert torch.equal(Visibility(4, 9, torch.device("cpu")).mask(window, chunk), expected[9:])


def documents(lengths, seed=3):
    """Hidden states, rotation positions and bounds of packed documents."""
    hidden = torch.randn(sum(lengths), 48, generator=torch.Generator().manual_seed(seed))
    return hidden, torch.cat([torch.arange(length) for length in lengths]), torch.tensor([0, *lengths]).cumsum(0)


EVERYTHING = {
    "plain": {},
    "biases on some": {"qkv_bias": True, "key_bias": False, "value_bias": False, "output_bias": True},
    "narrow values": {"value_dim": 4, "gate": "elementwise"},
    "wide values, a gate per head": {"value_dim": 12, "gate": "headwise"},
    "chunks": {"chunk": 4},
    "all at once": {"window": 5, "chunk": 7, "softcap": 2.0, "sinks": True, "alibi": 0.5, "clip": 0.7},
}


def layer_of(options):
    torch.manual_seed(5)
    layer = SelfAttention(0, args(), **options)
    if layer.sinks is not None:
        torch.nn.init.normal_(layer.sinks)
    return layer


@pytest.mark.parametrize("options", EVERYTHING.values(), ids=EVERYTHING)
def test_packed_documents_and_their_gradients_are_those_of_separate_runs(options):
    layer, rotary, cpu = layer_of(options), Rotary(RotaryArgs(), 4), torch.device("cpu")
    lengths = [5, 13, 1, 12]
    hidden, positions, bounds = documents(lengths)

    def run(hidden, positions, bounds):
        layer.zero_grad()
        output = layer(hidden, rotary(positions, hidden.dtype), PackedAttention(bounds, len(hidden), cpu))
        return output

    packed = run(hidden, positions, bounds)
    packed.square().sum().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}
    parts = zip(hidden.split(lengths), positions.split(lengths), lengths, strict=True)
    separate = torch.cat([run(*part, torch.tensor([0, length])) for *part, length in parts])
    layer.zero_grad()
    separate.square().sum().backward()
    torch.testing.assert_close(packed, separate, rtol=1e-5, atol=1e-6)
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_queries_of_latent_attention_grow_as_wholes():
    layer, seen = latent(12), []
    hidden, positions, _ = documents([9, 4])

    def attention(_, query, key, value, **options):
        seen.append((query, key, options["scale"]))
        return value

    for growth in (0.0, 0.5):
        rotary = Rotary(RotaryArgs(), 4, interleaved=True, query_growth=growth, growth_length=3)
        layer(hidden, rotary(positions, hidden.dtype), attention)
    (plain, key, scale), (grown, same_key, same_scale) = seen
    factor = 1 + 0.5 * torch.log(1 + torch.floor(positions / 3))
    torch.testing.assert_close(grown, plain * factor[:, None, None])
    assert torch.equal(key, same_key)
    assert scale == same_scale


def test_gates_are_one_per_head_or_one_per_element():
    hidden, *_ = documents([6])
    attended = {}

    def backend(layer, query, key, value, **options):
        assert options == {"scale": 8**-0.5, **dict.fromkeys(("window", "chunk", "softcap", "sinks", "alibi"))}
        return attended.setdefault("heads", torch.randn(6, 6, 8))

    for gate, size in (("headwise", 6), ("elementwise", 48)):
        layer = layer_of({"gate": gate})
        found = layer(hidden, None, backend)
        gates = (hidden @ layer.gate_proj.weight.T).sigmoid()
        assert gates.shape == (6, size)
        gated = attended["heads"] * gates.view(6, 6, -1)
        torch.testing.assert_close(found, gated.flatten(1) @ layer.o_proj.weight.T)


def test_a_rank_that_holds_some_heads_computes_those():
    layer = layer_of({})
    hidden, positions, bounds = documents([9])
    rotation = Rotary(RotaryArgs(), 8)(positions, torch.float32)
    backend = PackedAttention(bounds, 9, torch.device("cpu"))
    whole = layer(hidden, rotation, backend)
    partial = []
    for rank in range(2):
        part = layer_of({})
        for name, heads in (("q_proj", 24), ("k_proj", 8), ("v_proj", 8)):
            rows = slice(rank * heads, (rank + 1) * heads)
            getattr(part, name).weight = torch.nn.Parameter(getattr(layer, name).weight[rows])
        part.o_proj.weight = torch.nn.Parameter(layer.o_proj.weight[:, rank * 24 : (rank + 1) * 24])
        partial.append(part(hidden, rotation, backend))
    torch.testing.assert_close(sum(partial), whole)


@pytest.mark.sample(1)
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_linear_biases_of_long_distances_survive_bfloat16(softcap):
    generator = torch.Generator().manual_seed(0)
    length, slopes = 900, torch.tensor([0.01, 0.003])
    query, key = (torch.randn(length, 2, 8, generator=generator).bfloat16() / 8 for _ in range(2))
    value = torch.randn(length, 2, 1, generator=generator).bfloat16()
    backend = PackedAttention(torch.tensor([0, length]), length, torch.device("cpu"))
    found = backend(0, query, key, value, scale=1.0, softcap=softcap, alibi=slopes)
    wide = (tensor.double() for tensor in (query, key, value))
    expected = backend(0, *wide, scale=1.0, softcap=softcap, alibi=slopes.double())
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=4e-3)
