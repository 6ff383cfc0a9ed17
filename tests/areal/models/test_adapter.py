"""Models of transformers in every on-disk layout: read by a table, run by a reference model, written back unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from areal.api import ModelError
from areal.models.adapter import (
    QueryKeyValue,
    Renamed,
    Reshaped,
    Rows,
    SeparateExperts,
    StackedExperts,
    TableAdapter,
    Transposed,
)
from areal.porting import reference
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
    RouterSpec,
)

VOCAB, HIDDEN, WIDTH, LAYERS, EPS = 96, 64, 80, 2, 2e-3
RMS, LN = NormSpec(kind="rms", eps=EPS), NormSpec(kind="layer", eps=EPS, bias=True)
LLAMA_SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": EPS, "max_position_embeddings": 64,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
GPT2_SIZES = {
    "vocab_size": VOCAB, "n_positions": 64, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4,
    "layer_norm_epsilon": EPS, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def attention(**changes):
    return replace(AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, value_dim=16, scale=0.25), **changes)


BIASES = dict.fromkeys(("query_bias", "key_bias", "value_bias", "output_bias"), True)
MHA = {"num_kv_heads": 4}
GLU = MlpSpec(gated=True, activation="silu", intermediate_size=WIDTH)
WIDE_MLP = MlpSpec(gated=False, activation="gelu", intermediate_size=4 * HIDDEN, bias=True, output_bias=True)
ROTARY = RotarySpec(dim=16, theta=10000.0)


def decoder(block="pre", norm=RMS, *, heads=None, feed_forward=GLU, rotary=ROTARY, layer=None, **changes):
    """A spec of two equal layers."""
    names = reference.BLOCK_NORMS[block]
    layer = LayerSpec(
        block=block,
        norms=dict.fromkeys(names, norm),
        attention=heads or attention(),
        feed_forward=feed_forward,
        rotary=0 if rotary else None,
        **(layer or {}),
    )
    settings = {"final_norm": norm, "tied": False, "rotaries": (rotary,) if rotary else (), **changes}
    return ArchitectureSpec(vocab_size=VOCAB, hidden_size=HIDDEN, layers=(layer,) * LAYERS, **settings)


def experts_spec(**changes):
    experts = MlpSpec(gated=True, activation="silu", intermediate_size=24)
    router = RouterSpec(num_experts=4, top_k=2, score="softmax", order="score_first", **changes)
    return MoeSpec(router=router, experts=experts)


ATTENTION = tuple(f"layers.*.self_attn.{name}_proj" for name in "qkv")
GATE_UP = ("layers.*.mlp.gate_proj", "layers.*.mlp.up_proj")
EXPERT_BIASES = ("layers.*.mlp.experts.gate_bias", "layers.*.mlp.experts.up_bias")
EXPERT_GATE_UP = ("layers.*.mlp.experts.gate_proj", "layers.*.mlp.experts.up_proj")


def gpt2_names(root="transformer"):
    """Names of GPT-2 and those who took them over, matrices left out."""
    return (
        Renamed("embed_tokens", f"{root}.wte"),
        Renamed("embed_positions", f"{root}.wpe"),
        Renamed("norm", f"{root}.ln_f"),
        Renamed("layers.*.input_layernorm", f"{root}.h.*.ln_1"),
        Renamed("layers.*.post_attention_layernorm", f"{root}.h.*.ln_2"),
    )


def gpt_names(kind, root="transformer"):
    """Their matrices, which GPT-2 stores as [in, out]."""
    return (
        kind("layers.*.self_attn.o_proj", f"{root}.h.*.attn.c_proj"),
        kind("layers.*.mlp.up_proj", f"{root}.h.*.mlp.c_fc"),
        kind("layers.*.mlp.down_proj", f"{root}.h.*.mlp.c_proj"),
    )


def bloom_like(root, arrangement):
    """Names of BLOOM, Falcon and GPT-NeoX inside a block."""
    return (
        QueryKeyValue(ATTENTION, f"{root}.query_key_value", arrangement),
        Renamed("layers.*.self_attn.o_proj", f"{root}.dense"),
    )


def falcon(arrangement, *norms):
    return (
        Renamed("embed_tokens", "transformer.word_embeddings"),
        Renamed("norm", "transformer.ln_f"),
        Renamed("layers.*.mlp.up_proj", "transformer.h.*.mlp.dense_h_to_4h"),
        Renamed("layers.*.mlp.down_proj", "transformer.h.*.mlp.dense_4h_to_h"),
        *bloom_like("transformer.h.*.self_attention", arrangement),
        *norms,
    )


@dataclass(frozen=True)
class Case:
    model_type: str
    config: dict
    spec: ArchitectureSpec
    table: tuple
    skipped: tuple = ()


LEARNED = PositionSpec(kind="learned", num_positions=64)
FALCON_SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "bias": False,
    "layer_norm_epsilon": EPS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
FALCON_MLP = replace(WIDE_MLP, bias=False, output_bias=False)
CASES = {
    "llama: nothing but the prefix": Case("llama", LLAMA_SIZES, decoder(), ()),
    "gemma2: sandwich, softcaps and multipliers, tied": Case(
        "gemma2",
        {**LLAMA_SIZES, "head_dim": 24, "query_pre_attn_scalar": 40, "attn_logit_softcapping": 4.0,
         "final_logit_softcapping": 3.0, "sliding_window": 5, "layer_types": ["sliding_attention"] * 2,
         "tie_word_embeddings": True},
        decoder(
            "sandwich", replace(RMS, offset=1.0), rotary=replace(ROTARY, dim=24), tied=True, embedding_multiplier=8.0,
            heads=attention(head_dim=24, value_dim=24, scale=40**-0.5, softcap=4.0), logit_softcap=3.0,
            feed_forward=replace(GLU, activation="gelu_pytorch_tanh"), layer={"window": 5},
        ),
        (),
    ),
    "granite: residual and logit multipliers": Case(
        "granite",
        {**LLAMA_SIZES, "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 2.0,
         "attention_multiplier": 0.3},
        decoder(
            heads=attention(scale=0.3), layer={"residual_multiplier": 0.4}, embedding_multiplier=3.0,
            logit_multiplier=0.5,
        ),
        (),
    ),
    "olmo2: norms after the branches, of full width in attention": Case(
        "olmo2", LLAMA_SIZES, decoder("post", heads=attention(query_norm=RMS, key_norm=RMS, norm_scope="full")), ()
    ),
    "phi3: concatenated attention, gate and up": Case(
        "phi3", LLAMA_SIZES, decoder(),
        (QueryKeyValue(ATTENTION, "model.layers.*.self_attn.qkv_proj", "concat"),
         Rows(GATE_UP, "model.layers.*.mlp.gate_up_proj")),
    ),
    "gpt2: concatenated and transposed, learned positions": Case(
        "gpt2", GPT2_SIZES,
        decoder("pre", LN, heads=attention(**MHA, **BIASES), feed_forward=replace(WIDE_MLP, activation="gelu_new"),
                rotary=None, positions=LEARNED, tied=True),
        (*gpt2_names(), *gpt_names(Transposed),
         QueryKeyValue(ATTENTION, "transformer.h.*.attn.c_attn", "concat", transposed=True)),
    ),
    "openai-gpt: the residual stream is normed": Case(
        "openai-gpt", {**GPT2_SIZES, "afn": "gelu"},
        decoder("post_residual", LN, heads=attention(**MHA, **BIASES), rotary=None, positions=LEARNED, tied=True,
                feed_forward=replace(WIDE_MLP, activation="gelu_new"), final_norm=None),
        (Renamed("embed_tokens", "transformer.tokens_embed"), Renamed("embed_positions", "transformer.positions_embed"),
         *gpt2_names()[3:], *gpt_names(Transposed),
         QueryKeyValue(ATTENTION, "transformer.h.*.attn.c_attn", "concat", transposed=True)),
    ),
    "gpt_bigcode: one key-value head": Case(
        "gpt_bigcode", {**GPT2_SIZES, "multi_query": True},
        decoder("pre", LN, heads=attention(num_kv_heads=1, **BIASES), rotary=None, positions=LEARNED, tied=True,
                feed_forward=replace(WIDE_MLP, activation="gelu_pytorch_tanh")),
        (*gpt2_names(), *gpt_names(Renamed), QueryKeyValue(ATTENTION, "transformer.h.*.attn.c_attn", "concat")),
    ),
    "gpt_bigcode: many heads": Case(
        "gpt_bigcode", {**GPT2_SIZES, "multi_query": False},
        decoder("pre", LN, heads=attention(**MHA, **BIASES), rotary=None, positions=LEARNED, tied=True,
                feed_forward=replace(WIDE_MLP, activation="gelu_pytorch_tanh")),
        (*gpt2_names(), *gpt_names(Renamed), QueryKeyValue(ATTENTION, "transformer.h.*.attn.c_attn", "per_head")),
    ),
    "codegen: four blocks of query, value, key": Case(
        "codegen", {**GPT2_SIZES, "rotary_dim": 8, "tie_word_embeddings": False},
        decoder("parallel", LN, heads=attention(**MHA), feed_forward=replace(WIDE_MLP, activation="gelu_new"),
                rotary=RotarySpec(dim=8, theta=10000.0, interleaved=True), head_bias=True),
        (gpt2_names()[0], *gpt2_names()[2:4],
         QueryKeyValue(tuple(ATTENTION[i] for i in (0, 2, 1)), "transformer.h.*.attn.qkv_proj", "4_blocks"),
         Renamed("layers.*.self_attn.o_proj", "transformer.h.*.attn.out_proj"),
         Renamed("layers.*.mlp.up_proj", "transformer.h.*.mlp.fc_in"),
         Renamed("layers.*.mlp.down_proj", "transformer.h.*.mlp.fc_out")),
        (r"\.attn\.causal_mask$",),
    ),
    "gpt_neox: per head, two norms, head of another name": Case(
        "gpt_neox",
        {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
         "intermediate_size": 4 * HIDDEN, "layer_norm_eps": EPS, "rotary_pct": 0.5, "tie_word_embeddings": False},
        decoder("parallel_two_norms", LN, heads=attention(**MHA, **BIASES), feed_forward=WIDE_MLP,
                rotary=replace(ROTARY, dim=8)),
        (Renamed("embed_tokens", "gpt_neox.embed_in"), Renamed("lm_head", "embed_out"),
         Renamed("norm", "gpt_neox.final_layer_norm"), Renamed("layers.*", "gpt_neox.layers.*"),
         *bloom_like("gpt_neox.layers.*.attention", "per_head"),
         Renamed("layers.*.mlp.up_proj", "gpt_neox.layers.*.mlp.dense_h_to_4h"),
         Renamed("layers.*.mlp.down_proj", "gpt_neox.layers.*.mlp.dense_4h_to_h")),
    ),
    "bloom: per head, normed embedding, biases by distance": Case(
        "bloom",
        {"vocab_size": VOCAB, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": 4, "layer_norm_epsilon": EPS},
        decoder("pre", LN, heads=attention(**MHA, **BIASES, alibi=True), rotary=None, embedding_norm=LN, tied=True,
                feed_forward=replace(WIDE_MLP, activation="gelu_pytorch_tanh")),
        (*falcon("per_head"), Renamed("embed_norm", "transformer.word_embeddings_layernorm"),
         Renamed("layers.*", "transformer.h.*")),
    ),
    "persimmon: per head, norms of heads": Case(
        "persimmon",
        {**LLAMA_SIZES, "layer_norm_eps": EPS, "hidden_act": "relu2", "rope_parameters": {
            "rope_type": "default", "rope_theta": 25000.0, "partial_rotary_factor": 0.5}},
        decoder("pre", LN, heads=attention(**MHA, **BIASES, query_norm=LN, key_norm=LN),
                rotary=RotarySpec(dim=8, theta=25000.0),
                feed_forward=replace(WIDE_MLP, activation="relu2", intermediate_size=WIDTH)),
        (*bloom_like("model.layers.*.self_attn", "per_head"),
         Renamed("layers.*.self_attn.q_norm", "model.layers.*.self_attn.q_layernorm"),
         Renamed("layers.*.self_attn.k_norm", "model.layers.*.self_attn.k_layernorm"),
         Renamed("layers.*.mlp.up_proj", "model.layers.*.mlp.dense_h_to_4h"),
         Renamed("layers.*.mlp.down_proj", "model.layers.*.mlp.dense_4h_to_h"),
         Renamed("norm", "model.final_layernorm")),
    ),
    "falcon: one key-value head": Case(
        "falcon", {**FALCON_SIZES, "multi_query": True, "new_decoder_architecture": False},
        decoder("parallel", LN, heads=attention(num_kv_heads=1), feed_forward=FALCON_MLP, tied=True),
        falcon("concat", Renamed("layers.*.input_layernorm", "transformer.h.*.input_layernorm")),
    ),
    "falcon: groups of heads, two norms": Case(
        "falcon", {**FALCON_SIZES, "new_decoder_architecture": True, "num_kv_heads": 2},
        decoder("parallel_two_norms", LN, feed_forward=FALCON_MLP, tied=True),
        falcon("per_group", Renamed("layers.*.input_layernorm", "transformer.h.*.ln_attn"),
               Renamed("layers.*.post_attention_layernorm", "transformer.h.*.ln_mlp")),
    ),
    "mixtral: a matrix per expert": Case(
        "mixtral", {**LLAMA_SIZES, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2},
        decoder(feed_forward=experts_spec(normalize=True), rotary=replace(ROTARY, theta=1e6)),
        (
            Renamed("layers.*.mlp.router", "model.layers.*.block_sparse_moe.gate",
                    alternative=Renamed("layers.*.mlp.router", "model.layers.*.mlp.gate")),
            *(SeparateExperts(f"layers.*.mlp.experts.{ours}",
                      f"model.layers.*.block_sparse_moe.experts.{{expert}}.{name}.weight",
                      alternative=StackedExperts(EXPERT_GATE_UP, "model.layers.*.mlp.experts.gate_up_proj"))
              for ours, name in (("gate_proj", "w1"), ("up_proj", "w3"))),
            SeparateExperts("layers.*.mlp.experts.down_proj",
                    "model.layers.*.block_sparse_moe.experts.{expert}.w2.weight",
                    alternative=StackedExperts("layers.*.mlp.experts.down_proj",
                                               "model.layers.*.mlp.experts.down_proj")),
        ),
    ),
    "gpt_oss: interleaved, transposed, with biases, sinks": Case(
        "gpt_oss",
        {**LLAMA_SIZES, "head_dim": 16, "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2,
         "sliding_window": 4, "layer_types": ["sliding_attention"] * 2, "swiglu_limit": 1.0,
         "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        decoder(
            heads=attention(**BIASES, sinks=True), layer={"window": 4},
            feed_forward=MoeSpec(
                router=RouterSpec(num_experts=4, top_k=2, score="softmax", order="select_first", bias=True),
                experts=MlpSpec(gated=True, activation="quick_gelu", intermediate_size=24, bias=True, output_bias=True,
                                clamp=1.0, up_offset=1.0),
            ),
        ),
        (
            StackedExperts(EXPERT_GATE_UP, "model.layers.*.mlp.experts.gate_up_proj", "interleaved", transposed=True),
            StackedExperts(("layers.*.mlp.experts.gate_bias", "layers.*.mlp.experts.up_bias"),
                           "model.layers.*.mlp.experts.gate_up_proj_bias", "interleaved"),
            StackedExperts("layers.*.mlp.experts.down_proj", "model.layers.*.mlp.experts.down_proj", transposed=True),
            Renamed("layers.*.mlp.experts.down_bias", "model.layers.*.mlp.experts.down_proj_bias"),
        ),
    ),
    "dbrx: experts in one matrix, one of them transposed": Case(
        "dbrx",
        {"vocab_size": VOCAB, "d_model": HIDDEN, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 64,
         "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 0.5},
         "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": HIDDEN},
         "tie_word_embeddings": False},
        decoder("pre", NormSpec(kind="layer", eps=1e-5), heads=attention(clip=0.5),
                feed_forward=experts_spec(normalize=True)),
        (
            Renamed("embed_tokens", "transformer.wte"), Renamed("norm", "transformer.norm_f"),
            Renamed("layers.*.input_layernorm", "transformer.blocks.*.norm_attn_norm.norm_1"),
            Renamed("layers.*.post_attention_layernorm", "transformer.blocks.*.norm_attn_norm.norm_2"),
            QueryKeyValue(ATTENTION, "transformer.blocks.*.norm_attn_norm.attn.Wqkv", "concat"),
            Renamed("layers.*.self_attn.o_proj", "transformer.blocks.*.norm_attn_norm.attn.out_proj"),
            Renamed("layers.*.mlp.router", "transformer.blocks.*.ffn.router.layer"),
            *(StackedExperts(f"layers.*.mlp.experts.{ours}", f"transformer.blocks.*.ffn.experts.mlp.{name}",
                             "flattened", transposed=name == "w2")
              for ours, name in (("gate_proj", "w1"), ("up_proj", "v1"), ("down_proj", "w2"))),
        ),
    ),
    "ernie4_5_moe: a vector stored as one row": Case(
        "ernie4_5_moe",
        {**LLAMA_SIZES, "head_dim": 16, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 24,
         "moe_num_shared_experts": 1, "moe_layer_start_index": 0, "moe_layer_end_index": LAYERS - 1,
         "moe_layer_interval": 1, "mlp_layer_types": ["sparse"] * LAYERS},
        decoder(
            feed_forward=replace(experts_spec(selection_bias=True, normalize=True),
                                 shared=replace(GLU, intermediate_size=24)),
            rotary=replace(ROTARY, theta=500000.0, interleaved=True),
        ),
        (Renamed("layers.*.mlp.router", "model.layers.*.mlp.gate"),
         Reshaped("layers.*.mlp.router.selection_bias", "model.layers.*.mlp.moe_statics.e_score_correction_bias",
                  shape=(1, -1)),
         *(SeparateExperts(f"layers.*.mlp.experts.{name}", f"model.layers.*.mlp.experts.{{expert}}.{name}.weight")
           for name in ("gate_proj", "up_proj", "down_proj"))),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """What an adapter needs of a family's arguments."""

    spec: ArchitectureSpec
    model_type: str = "test"


def adapter_of(case):
    members = {
        "model_class": staticmethod(lambda args: reference.build(args.spec)),
        "table": case.table,
        "skipped": case.skipped,
    }
    return type("CaseAdapter", (TableAdapter,), members)(Args(case.spec, case.model_type))


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def written(request, tmp_path_factory):
    """A case, its model of transformers with random parameters, and the tensors that this saves."""
    case = request.param
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(case.model_type, **case.config)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point():
                noise = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(1 + 0.3 * noise if tensor.dim() == 1 and "weight" in name else 0.15 * noise)
    folder = tmp_path_factory.mktemp("written")
    model.save_pretrained(folder)
    return case, model, load_file(folder / "model.safetensors")


@pytest.mark.sample(4)
def test_the_table_and_the_blocks_give_the_logits_of_transformers(written):
    case, model, on_disk = written
    tokens = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens).logits
    found = reference.logits(case.spec, adapter_of(case).from_hf(on_disk), tokens)
    assert (found - expected).abs().max() <= 5e-5 * max(1.0, expected.std().item())


@pytest.mark.sample(8)
def test_writing_gives_every_byte_back(written):
    case, _, on_disk = written
    adapter = adapter_of(case)
    again = adapter.to_hf(adapter.from_hf(on_disk))
    stored = {name: tensor for name, tensor in on_disk.items() if not name.endswith("causal_mask")}
    assert again.keys() == stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(again[name], tensor), name


MIXTRAL = next(case for case in CASES.values() if case.model_type == "mixtral")
PHI3 = next(case for case in CASES.values() if case.model_type == "phi3")


def random_weights(case):
    generator = torch.Generator().manual_seed(2)
    with torch.device("meta"):
        expected = reference.build(case.spec).state_dict()
    return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in expected.items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_an_alternative_layout_is_read_and_the_primary_one_is_written():
    adapter, ours = adapter_of(MIXTRAL), random_weights(MIXTRAL)
    on_disk = adapter.to_hf(ours)
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in on_disk
    in_memory = {name: tensor for name, tensor in on_disk.items() if "block_sparse_moe" not in name}
    for layer in range(LAYERS):
        mlp, theirs = f"layers.{layer}.mlp", f"model.layers.{layer}.mlp"
        gate_up = torch.cat((ours[f"{mlp}.experts.gate_proj"], ours[f"{mlp}.experts.up_proj"]), 1)
        in_memory[f"{theirs}.experts.gate_up_proj"] = gate_up
        in_memory[f"{theirs}.experts.down_proj"] = ours[f"{mlp}.experts.down_proj"]
        in_memory[f"{theirs}.gate.weight"] = ours[f"{mlp}.router.weight"]
    assert_equal(adapter.from_hf(in_memory), ours)
    assert_equal(adapter.from_hf(on_disk), ours)


def test_an_incomplete_alternative_is_reported_under_the_primary_names():
    adapter = adapter_of(MIXTRAL)
    on_disk = adapter.to_hf(random_weights(MIXTRAL))
    del on_disk["model.layers.1.block_sparse_moe.experts.2.w1.weight"]
    on_disk["model.layers.7.extra"] = torch.ones(1)
    with pytest.raises(ModelError) as caught:
        adapter.from_hf(on_disk)
    assert "missing model.layers.1.block_sparse_moe.experts.2.w1.weight; unexpected model.layers.7.extra" in str(
        caught.value
    )


def test_a_fused_tensor_of_the_wrong_size_is_named_with_what_it_holds():
    adapter = adapter_of(PHI3)
    on_disk = adapter.to_hf(random_weights(PHI3))
    name = "model.layers.1.self_attn.qkv_proj.weight"
    on_disk[name] = on_disk[name][:-16]
    with pytest.raises(ModelError, match=r"self_attn\.v_proj\.weight \(model.* is \[112, 64\], expected \[128, 64\]"):
        adapter.from_hf(on_disk)


def test_parameters_that_are_stored_together_are_written_together():
    adapter, ours = adapter_of(PHI3), random_weights(PHI3)
    part = {name: tensor for name, tensor in ours.items() if name.startswith("layers.1.mlp.")}
    assert list(adapter.to_hf(part)) == [
        "model.layers.1.mlp.gate_up_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    ]
    with pytest.raises(ModelError, match=r"gate_proj.weight is stored in one tensor with layers.1.mlp.up_proj.weight"):
        adapter.to_hf({"layers.1.mlp.gate_proj.weight": ours["layers.1.mlp.gate_proj.weight"]})


def test_names_that_are_declared_as_skipped_are_left_out_and_only_those():
    case = replace(PHI3, skipped=(r"^model\.mtp\.",))
    on_disk = adapter_of(case).to_hf(random_weights(case))
    more = {
        **on_disk,
        "model.mtp.0.weight": torch.ones(1),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    assert_equal(adapter_of(case).from_hf(more), adapter_of(case).from_hf(on_disk))
    with pytest.raises(ModelError, match=r"unexpected model\.mtp\.0\.weight"):
        adapter_of(PHI3).from_hf(more)


def test_a_tied_head_of_another_name_may_be_there_but_not_differ():
    case = replace(PHI3, spec=replace(PHI3.spec, tied=True), table=(*PHI3.table, Renamed("lm_head", "embed_out")))
    adapter = adapter_of(case)
    on_disk = adapter.to_hf(random_weights(case))
    assert "embed_out.weight" not in on_disk
    embedding = on_disk["model.embed_tokens.weight"]
    adapter.from_hf({**on_disk, "embed_out.weight": embedding.clone()})
    with pytest.raises(ModelError, match=r"tie_word_embeddings, but embed_out\.weight .* differs"):
        adapter.from_hf({**on_disk, "embed_out.weight": embedding + 1})


def test_the_bias_of_a_tied_head_is_stored():
    case = replace(PHI3, spec=replace(PHI3.spec, tied=True, head_bias=True))
    on_disk = adapter_of(case).to_hf(random_weights(case))
    assert {name for name in on_disk if name.startswith("lm_head")} == {"lm_head.bias"}


ROUND_TRIPS = {
    "attention, interleaved": (QueryKeyValue(ATTENTION, "fused", "interleaved"), {"num_kv_heads": 4}),
    "attention, interleaved and transposed": (
        QueryKeyValue(ATTENTION, "fused", "interleaved", transposed=True), {"num_kv_heads": 4},
    ),
    "attention, values of another width in groups": (
        QueryKeyValue(ATTENTION, "fused", "per_group"), {"value_dim": 8, **BIASES},
    ),
    "gate and up, interleaved": (Rows(GATE_UP, "fused", "interleaved"), {}),
    "up before gate, transposed": (Rows(GATE_UP[::-1], "fused", transposed=True), {}),
}  # fmt: skip


@pytest.mark.parametrize(("row", "changes"), ROUND_TRIPS.values(), ids=ROUND_TRIPS)
def test_fused_rows_are_exactly_invertible(row, changes):
    row = replace(row, on_disk=f"model.layers.*.{row.on_disk}")
    case = Case("test", {}, decoder(heads=attention(**changes)), (row,))
    ours = random_weights(case)
    on_disk = adapter_of(case).to_hf(ours)
    assert sum("fused" in name for name in on_disk) == LAYERS * (2 if "query_bias" in changes else 1)
    assert_equal(adapter_of(case).from_hf(on_disk), ours)


EXPERT_ROUND_TRIPS = {
    "gate and up in one matrix per expert": (
        SeparateExperts(EXPERT_GATE_UP, "model.layers.*.experts.{expert}.gate_up.weight"),
        SeparateExperts(EXPERT_BIASES, "model.layers.*.experts.{expert}.gate_up.bias"),
    ),
    "interleaved and transposed, per expert": (
        SeparateExperts(
            EXPERT_GATE_UP, "model.layers.*.experts.{expert}.gate_up.weight", "interleaved", transposed=True
        ),
        SeparateExperts(EXPERT_BIASES, "model.layers.*.experts.{expert}.gate_up.bias", "interleaved"),
    ),
    "up before gate, stacked": (
        StackedExperts(EXPERT_GATE_UP[::-1], "model.layers.*.up_gate"),
        StackedExperts(EXPERT_BIASES[::-1], "model.layers.*.up_gate_bias"),
    ),
    "flattened with biases": (
        *(StackedExperts(name, f"model.layers.*.w{part}", "flattened", transposed=part == 1)
          for part, name in enumerate(EXPERT_GATE_UP)),
        *(StackedExperts(name, f"model.layers.*.b{part}", "flattened") for part, name in enumerate(EXPERT_BIASES)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("table", EXPERT_ROUND_TRIPS.values(), ids=EXPERT_ROUND_TRIPS)
def test_rows_of_experts_are_exactly_invertible(table):
    mixture = experts_spec()
    biased = replace(mixture, experts=replace(mixture.experts, bias=True, output_bias=True))
    case = Case("test", {}, decoder(feed_forward=biased), table)
    ours = random_weights(case)
    on_disk = adapter_of(case).to_hf(ours)
    assert not [name for name in on_disk if "mlp.experts.gate" in name or "mlp.experts.up" in name]
    assert_equal(adapter_of(case).from_hf(on_disk), ours)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ((Rows(GATE_UP, "model.layers.*.fused", "diagonal"),), "unknown arrangement 'diagonal'"),
        (
            (Rows((GATE_UP[0], "layers.*.mlp.side_proj"), "model.layers.*.fused"),),
            "side_proj.weight, which this model lacks",
        ),
    ],
)
def test_a_table_that_does_not_fit_the_model_is_refused(table, message):
    case = replace(PHI3, table=table)
    with pytest.raises(ModelError, match=message):
        adapter_of(case).to_hf(random_weights(case))


def test_a_row_of_whole_layers_goes_on_with_the_place_of_a_mixer_with_a_state():
    mixer = torch.nn.Module()
    mixer.place, mixer.A_log = "delta", torch.nn.Parameter(torch.zeros(4))
    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({"self_attn": mixer})])})
    table = (Renamed("layers.*", "model.language_model.layers.*"),)
    members = {"model_class": staticmethod(lambda args: model), "table": table}
    adapter = type("CaseAdapter", (TableAdapter,), members)(Args(PHI3.spec))
    assert adapter.names_on_disk() == ["model.language_model.layers.0.delta.A_log"]
