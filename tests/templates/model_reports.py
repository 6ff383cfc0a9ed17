"""Reports of architectures, written by hand as an analysis writes them: what the template of models is tested with.

report = REPORTS["llama"]()       # JSON of `areal.porting.family.ArchitectureReport`
"""

from __future__ import annotations

import copy

from areal.porting.bind.slots import ABSENT, LayerValues, slots_of
from areal.porting.spec import (
    ArchitectureSpec,
    AttentionSpec,
    LatentAttentionSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RotarySpec,
    RouterSpec,
)

# ------------------------------------------------------------------------------------------------------- expressions


def constant(value):
    return {"kind": "constant", "value": value}


def field(name):
    return {"kind": "field", "name": name}


def product(factor=1.0, integer=False, **powers):
    return {"kind": "product", "factor": factor, "powers": powers, "integer": integer}


def when_null(name, otherwise):
    return {"kind": "when_null", "field": name, "otherwise": otherwise}


def when_equal(name, value, then, otherwise):
    return {"kind": "when_equal", "field": name, "value": value, "then": then, "otherwise": otherwise}


def per_layer(condition, then, otherwise):
    return {"kind": "per_layer", "condition": condition, "then": then, "otherwise": otherwise}


def rotary(*types, layer_type=None, theta=None):
    return {"kind": "rotary", "layer_type": layer_type, "types": list(types), "theta": theta}


def listed(name, *values):
    return {"kind": "listed", "field": name, "values": list(values)}


def at_least(name):
    return {"kind": "at_least", "field": name}


def multiple(of, shift=0):
    return {"kind": "multiple", "of": of, "shift": shift}


def member(name):
    return {"kind": "member", "field": name}


def flag(name, value=True):
    return {"kind": "flag", "field": name, "value": value}


def negated(condition):
    return {"kind": "not", "condition": condition}


def every(*conditions):
    return {"kind": "all", "conditions": list(conditions)}


# ---------------------------------------------------------------------------------------------------------- fields


def used(name, kind, default=None, **more):
    return {"name": name, "status": "used", "type": kind, "default": default, **more}


def fixed(name, kind, default, *allowed):
    return {"name": name, "status": "fixed", "type": kind, "default": default, "allowed": list(allowed)}


def ignored(name, reason, default=None):
    return {"name": name, "status": "ignored", "type": "any", "default": default, "reason": reason}


# ----------------------------------------------------------------------------------------------------------- layout


def same(*names):
    return [renamed(name, name if name.startswith("lm_head") else f"model.{name}") for name in names]


def renamed(ours, on_disk):
    return {"kind": "renamed", "ours": [ours], "on_disk": on_disk, "arrangement": "", "transposed": False}


def in_layers(*names):
    return same(*(f"layers.*.{name}" for name in names))


ATTENTION = tuple(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")
GATED = tuple(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj"))
PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
TOP = ("embed_tokens", "norm", "lm_head")


def experts(on_disk):
    return [
        {
            "kind": "experts",
            "ours": [f"layers.*.mlp.experts.{name}"],
            "on_disk": f"model.layers.*.mlp.experts.{{expert}}.{name}.weight",
            "arrangement": "",
            "transposed": False,
            "alternative": {
                "kind": "stacked_experts",
                "ours": ours,
                "on_disk": f"model.layers.*.mlp.experts.{fused}",
                "arrangement": "concat" if len(ours) > 1 else "",
                "transposed": False,
                "alternative": None,
            },
        }
        for name, fused, ours in (
            ("gate_proj", "gate_up_proj", ["layers.*.mlp.experts.gate_proj", "layers.*.mlp.experts.up_proj"]),
            ("up_proj", "gate_up_proj", ["layers.*.mlp.experts.gate_proj", "layers.*.mlp.experts.up_proj"]),
            ("down_proj", "down_proj", ["layers.*.mlp.experts.down_proj"]),
        )
    ]


# ----------------------------------------------------------------------------------------------------------- report

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
}
TYPES = ("default", "linear", "llama3", "yarn")
RMS = NormSpec(kind="rms", eps=2e-3)
SWIGLU = MlpSpec(gated=True, activation="silu", intermediate_size=96)
SHARED_SLOTS = {
    "vocab_size": field("vocab_size"),
    "hidden_size": field("hidden_size"),
    "num_layers": field("num_hidden_layers"),
    "tied": field("tie_word_embeddings"),
    "layer.attention.num_heads": field("num_attention_heads"),
    "layer.attention.scale": product(head_dim=-0.5),
    "layer.rotary": rotary(*TYPES),
}
HALF_WIDTH = product(integer=True, hidden_size=1.0, num_attention_heads=-1.0)


def attention(**more):
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "value_dim": 16, "scale": 0.25}
    return AttentionSpec(**{**shape, **more})


def decoder(layer, *, layers=4, tied=False, dim=16, **more):
    return ArchitectureSpec(
        vocab_size=128,
        hidden_size=64,
        layers=(layer,) * layers if isinstance(layer, LayerSpec) else tuple(layer),
        **{"final_norm": RMS, **more},
        tied=tied,
        rotaries=(RotarySpec(dim=dim, theta=10000.0),),
    )


def slots_like(spec, **overrides):
    """Every slot of a spec as a constant, those in `overrides` as expressions over fields."""
    found = {}
    for name, value in slots_of(spec).items():
        of_layers = value if isinstance(value, LayerValues) else [value]
        found[name] = constant(next(each for each in of_layers if each is not ABSENT))
    return {**found, **overrides}


def report(model_type, architecture, spec, slots, fields, layout, config, variants=()):
    known = {use["name"] for use in fields}
    return {
        "status": "proven",
        "model_type": model_type,
        "architecture": architecture,
        "source": "transformers",
        "title": "",
        "tiny_config": {
            "model_type": model_type,
            "architectures": [architecture],
            **{name: value for name, value in SIZES.items() if name in known or name.endswith("token_id")},
            **config,
        },
        "spec": {},
        "slots": copy.deepcopy(slots_like(spec, **{**SHARED_SLOTS, **slots})),  # tests change reports
        "fields": copy.deepcopy(fields),
        "layout": sorted(layout, key=lambda entry: entry["on_disk"]),
        "skipped": [],
        "variants": [
            {"name": name, "overrides": overrides, "parity": 1e-6, "tolerance": 5e-5} for name, overrides in variants
        ],
        "evidence": [],
        "missing": [],
        "nearest": [],
        "reference": {},
        "seconds": {},
    }


def eps(name, *norms):
    return {f"{norm}.eps": field(name) for norm in norms}


PRE_EPS = ("final_norm", "layer.norms.input_layernorm", "layer.norms.post_attention_layernorm")
SIZE_FIELDS = [
    used("vocab_size", "int", 32000),
    used("hidden_size", "int", 4096),
    used("num_hidden_layers", "int", 32),
    used("num_attention_heads", "int", 32),
    used("max_position_embeddings", "int", 2048),
    used("tie_word_embeddings", "bool", False),
    used("rope_parameters", "dict", {"rope_theta": 10000.0, "rope_type": "default"}),
    used("initializer_range", "float", 0.02),
    ignored("use_cache", "caching", True),
    ignored("attention_dropout", "noise while training in transformers, never applied here", 0.0),
]


def sizes(**defaults):
    return [{**use, "default": defaults.get(use["name"], use["default"])} for use in SIZE_FIELDS]


LLAMA_FIELDS = [
    *sizes(),
    used("num_key_value_heads", "int", None, nullable=True, default_rule=field("num_attention_heads")),
    used("head_dim", "int", None, nullable=True, default_rule=HALF_WIDTH),
    used("intermediate_size", "int", 11008),
    used("hidden_act", "str", "silu"),
    used("rms_norm_eps", "float", 1e-6),
    used("attention_bias", "bool", False),
    used("mlp_bias", "bool", False),
    ignored("pretraining_tp", "splits matrices in transformers, same result", 1),
]


def llama():
    layer = LayerSpec(
        block="pre",
        norms=dict.fromkeys(PRE_NORMS, RMS),
        attention=attention(),
        feed_forward=SWIGLU,
        rotary=0,
    )
    return report(
        "llama",
        "LlamaForCausalLM",
        decoder(layer),
        {
            **eps("rms_norm_eps", *PRE_EPS),
            "layer.attention.num_kv_heads": when_null("num_key_value_heads", field("num_attention_heads")),
            "layer.attention.head_dim": when_null("head_dim", HALF_WIDTH),
            "layer.attention.value_dim": when_null("head_dim", HALF_WIDTH),
            "layer.rotary.dim": when_null("head_dim", HALF_WIDTH),
            "layer.feed_forward.intermediate_size": field("intermediate_size"),
            "layer.feed_forward.activation": field("hidden_act"),
            "layer.feed_forward.bias": field("mlp_bias"),
            "layer.feed_forward.output_bias": field("mlp_bias"),
            **{f"layer.attention.{name}_bias": field("attention_bias") for name in ("query", "key", "value", "output")},
        },
        LLAMA_FIELDS,
        [*same(*TOP), *in_layers(*ATTENTION, *GATED, *PRE_NORMS)],
        {"head_dim": 24, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False},
        [
            ("tied", {"tie_word_embeddings": True}),
            ("biases", {"attention_bias": True, "mlp_bias": True}),
            ("one key-value head", {"num_key_value_heads": 1}),
            ("gelu", {"hidden_act": "gelu"}),
        ],
    )


GEMMA2_FIELDS = [
    *sizes(
        vocab_size=256000,
        hidden_size=2304,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=8192,
    )[:5],
    used("tie_word_embeddings", "bool", True),
    *sizes()[6:],
    used("num_key_value_heads", "int", 4),
    used("head_dim", "int", 256),
    used("intermediate_size", "int", 9216),
    used("hidden_activation", "str", "gelu_pytorch_tanh"),
    used("rms_norm_eps", "float", 1e-6),
    used("attention_bias", "bool", False),
    used("query_pre_attn_scalar", "int", 256),
    used("sliding_window", "int", 4096, nullable=True),
    used("final_logit_softcapping", "float", 30.0, nullable=True),
    used("attn_logit_softcapping", "float", 50.0, nullable=True),
    used(
        "layer_types",
        "list",
        None,
        nullable=True,
        default_rule=per_layer(multiple(2, 1), constant("full_attention"), constant("sliding_attention")),
    ),
    ignored("use_bidirectional_attention", "only False is a decoder", None),
]


def gemma2():
    norm = NormSpec(kind="rms", eps=2e-3, offset=1.0)
    names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    layer = LayerSpec(
        block="sandwich",
        norms=dict.fromkeys(names, norm),
        attention=attention(softcap=4.0),
        feed_forward=MlpSpec(gated=True, activation="gelu_pytorch_tanh", intermediate_size=96),
        rotary=0,
    )
    return report(
        "gemma2",
        "Gemma2ForCausalLM",
        decoder(layer, final_norm=norm, embedding_multiplier=8.0, logit_softcap=4.0),
        {
            **eps("rms_norm_eps", "final_norm", *(f"layer.norms.{name}" for name in names)),
            "embedding_multiplier": product(hidden_size=0.5),
            "logit_softcap": field("final_logit_softcapping"),
            "layer.attention.num_kv_heads": field("num_key_value_heads"),
            "layer.attention.head_dim": field("head_dim"),
            "layer.attention.value_dim": field("head_dim"),
            "layer.rotary.dim": field("head_dim"),
            "layer.attention.scale": product(query_pre_attn_scalar=-0.5),
            "layer.attention.softcap": field("attn_logit_softcapping"),
            **{f"layer.attention.{name}_bias": field("attention_bias") for name in ("query", "key", "value", "output")},
            "layer.feed_forward.intermediate_size": field("intermediate_size"),
            "layer.feed_forward.activation": field("hidden_activation"),
            "layer.window": per_layer(
                listed("layer_types", "sliding_attention"), field("sliding_window"), constant(None)
            ),
        },
        GEMMA2_FIELDS,
        [*same(*TOP), *in_layers(*ATTENTION, *GATED, *names)],
        {
            "head_dim": 24,
            "query_pre_attn_scalar": 40,
            "sliding_window": 5,
            "final_logit_softcapping": 4.0,
            "attn_logit_softcapping": 4.0,
            "tie_word_embeddings": True,
            "hidden_activation": "gelu_pytorch_tanh",
        },
        [("untied", {"tie_word_embeddings": False}), ("no softcap", {"final_logit_softcapping": None})],
    )


GPT_NEOX_FIELDS = [
    *sizes(
        vocab_size=50432,
        hidden_size=6144,
        num_hidden_layers=44,
        num_attention_heads=64,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
    ),
    used("intermediate_size", "int", 24576),
    used("hidden_act", "str", "gelu"),
    used("layer_norm_eps", "float", 1e-5),
    used("use_parallel_residual", "bool", True),
    used("attention_bias", "bool", True),
    ignored("hidden_dropout", "dropout, which is off in evaluation", 0.0),
    ignored("classifier_dropout", "classification heads only", 0.1),
]


def gpt_neox():
    norm = NormSpec(kind="layer", eps=2e-3, bias=True)
    layer = LayerSpec(
        block="parallel_two_norms",
        norms=dict.fromkeys(PRE_NORMS, norm),
        attention=attention(num_kv_heads=4, query_bias=True, key_bias=True, value_bias=True, output_bias=True),
        feed_forward=MlpSpec(gated=False, activation="gelu", intermediate_size=96, bias=True, output_bias=True),
        rotary=0,
    )
    biases = {f"layer.attention.{name}_bias": field("attention_bias") for name in ("query", "key", "value", "output")}
    return report(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        decoder(layer, final_norm=norm, dim=4),
        {
            **eps("layer_norm_eps", *PRE_EPS),
            **biases,
            "layer.block": when_equal("use_parallel_residual", True, constant("parallel_two_norms"), constant("pre")),
            "layer.attention.num_kv_heads": field("num_attention_heads"),
            "layer.attention.head_dim": HALF_WIDTH,
            "layer.attention.value_dim": HALF_WIDTH,
            "layer.attention.scale": product(hidden_size=-0.5, num_attention_heads=0.5),
            "layer.rotary.dim": {
                **product(integer=True, hidden_size=1.0, num_attention_heads=-1.0),
                "powers": {
                    "hidden_size": 1.0,
                    "num_attention_heads": -1.0,
                    "rope_parameters.partial_rotary_factor": 1.0,
                },
            },
            "layer.feed_forward.intermediate_size": field("intermediate_size"),
            "layer.feed_forward.activation": field("hidden_act"),
        },
        GPT_NEOX_FIELDS,
        [
            renamed("embed_tokens", "gpt_neox.embed_in"),
            renamed("norm", "gpt_neox.final_layer_norm"),
            renamed("lm_head", "embed_out"),
            renamed("layers.*.input_layernorm", "gpt_neox.layers.*.input_layernorm"),
            renamed("layers.*.post_attention_layernorm", "gpt_neox.layers.*.post_attention_layernorm"),
            renamed("layers.*.self_attn.o_proj", "gpt_neox.layers.*.attention.dense"),
            {
                "kind": "query_key_value",
                "ours": [f"layers.*.self_attn.{name}_proj" for name in "qkv"],
                "on_disk": "gpt_neox.layers.*.attention.query_key_value",
                "arrangement": "per_head",
                "transposed": False,
            },
            renamed("layers.*.mlp.up_proj", "gpt_neox.layers.*.mlp.dense_h_to_4h"),
            renamed("layers.*.mlp.down_proj", "gpt_neox.layers.*.mlp.dense_4h_to_h"),
        ],
        {
            "layer_norm_eps": 2e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
        },
        [("sequential", {"use_parallel_residual": False}), ("no biases", {"attention_bias": False})],
    )


DEEPSEEK_V3_FIELDS = [
    *sizes(
        vocab_size=129280,
        hidden_size=7168,
        num_hidden_layers=61,
        num_attention_heads=128,
        max_position_embeddings=4096,
    ),
    fixed("num_key_value_heads", "int", 128, 128),
    used("intermediate_size", "int", 18432),
    used("moe_intermediate_size", "int", 2048),
    used("hidden_act", "str", "silu"),
    used("rms_norm_eps", "float", 1e-6),
    used("n_shared_experts", "int", 1),
    used("n_routed_experts", "int", 256, aliases=["num_local_experts"]),
    used("routed_scaling_factor", "float", 2.5),
    used("q_lora_rank", "int", 1536, nullable=True),
    used("kv_lora_rank", "int", 512),
    used("qk_rope_head_dim", "int", 64),
    used("v_head_dim", "int", 128),
    used("qk_nope_head_dim", "int", 128),
    used(
        "qk_head_dim",
        "int",
        None,
        default_rule={"kind": "sum", "terms": [field("qk_nope_head_dim"), field("qk_rope_head_dim")]},
    ),
    used("n_group", "int", 8),
    used("topk_group", "int", 4),
    used("num_experts_per_tok", "int", 8),
    used("first_k_dense_replace", "int", 3),
    used("norm_topk_prob", "bool", True),
    used("rope_interleave", "bool", True),
    fixed("attention_bias", "bool", False, False),
    ignored("head_dim", "not read where attention is latent"),
    ignored("num_nextn_predict_layers", "layers that predict further tokens are not part of the model", 1),
    ignored("pretraining_tp", "splits matrices in transformers, same result", 1),
]


DEEPSEEK_V3_SLOTS = {
    **eps("rms_norm_eps", *PRE_EPS),
    "layer.attention.query_rank": field("q_lora_rank"),
    "layer.attention.query_norm": when_equal("q_lora_rank", None, constant(False), constant(True)),
    "layer.attention.kv_rank": field("kv_lora_rank"),
    "layer.attention.nope_dim": field("qk_nope_head_dim"),
    "layer.attention.rope_dim": field("qk_rope_head_dim"),
    "layer.attention.value_dim": field("v_head_dim"),
    "layer.attention.scale": product(qk_head_dim=-0.5),
    "layer.rotary": rotary("default", "linear"),
    "layer.rotary.dim": field("qk_rope_head_dim"),
    "layer.rotary.interleaved": field("rope_interleave"),
    "layer.feed_forward": per_layer(at_least("first_k_dense_replace"), constant("moe"), constant("mlp")),
    "layer.feed_forward.intermediate_size": field("intermediate_size"),
    "layer.feed_forward.activation": field("hidden_act"),
    "layer.feed_forward.router.num_experts": field("n_routed_experts"),
    "layer.feed_forward.router.top_k": field("num_experts_per_tok"),
    "layer.feed_forward.router.normalize": field("norm_topk_prob"),
    "layer.feed_forward.router.scale": field("routed_scaling_factor"),
    "layer.feed_forward.router.groups": field("n_group"),
    "layer.feed_forward.router.top_groups": field("topk_group"),
    "layer.feed_forward.experts.intermediate_size": field("moe_intermediate_size"),
    "layer.feed_forward.experts.activation": field("hidden_act"),
    "layer.feed_forward.shared.intermediate_size": product(
        integer=True, moe_intermediate_size=1.0, n_shared_experts=1.0
    ),
    "layer.feed_forward.shared.activation": field("hidden_act"),
}


def deepseek_v3():
    moe = MoeSpec(
        router=RouterSpec(
            num_experts=8, top_k=2, score="sigmoid", order="score_first", selection_bias=True, groups=2, top_groups=1
        ),
        experts=MlpSpec(gated=True, activation="silu", intermediate_size=48),
        shared=MlpSpec(gated=True, activation="silu", intermediate_size=48),
    )
    latent = LatentAttentionSpec(
        num_heads=4,
        query_rank=16,
        kv_rank=16,
        nope_dim=16,
        rope_dim=8,
        value_dim=16,
        query_norm=NormSpec(kind="rms", eps=1e-6),
        kv_norm=NormSpec(kind="rms", eps=1e-6),
        scale=24**-0.5,
    )
    layer = {"block": "pre", "norms": dict.fromkeys(PRE_NORMS, RMS), "rotary": 0, "attention": latent}
    spec = decoder(
        [LayerSpec(**layer, feed_forward=SWIGLU), *(LayerSpec(**layer, feed_forward=moe) for _ in range(3))], dim=8
    )
    return report(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        spec,
        DEEPSEEK_V3_SLOTS,
        DEEPSEEK_V3_FIELDS,
        [
            *same(*TOP),
            *in_layers(*GATED, *PRE_NORMS, "self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.q_proj"),
            *in_layers(
                "self_attn.kv_b_proj",
                "self_attn.o_proj",
                *(f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")),
            ),
            renamed("layers.*.self_attn.q_a_norm", "model.layers.*.self_attn.q_a_layernorm"),
            renamed("layers.*.self_attn.kv_a_proj", "model.layers.*.self_attn.kv_a_proj_with_mqa"),
            renamed("layers.*.self_attn.kv_a_norm", "model.layers.*.self_attn.kv_a_layernorm"),
            renamed("layers.*.mlp.router.weight", "model.layers.*.mlp.gate.weight"),
            renamed("layers.*.mlp.router.selection_bias", "model.layers.*.mlp.gate.e_score_correction_bias"),
            *experts("mlp"),
        ],
        {
            "num_key_value_heads": 128,
            "moe_intermediate_size": 48,
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "qk_nope_head_dim": 16,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        [("plain queries", {"q_lora_rank": None}), ("not normalised", {"norm_topk_prob": False})],
    )


REPORTS = {function.__name__: function for function in (llama, gemma2, gpt_neox, deepseek_v3)}
