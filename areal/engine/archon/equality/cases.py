"""What is compared: families, arrangements of ranks, and the batch, small enough for a processor and full of traps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from areal.api import Config
from areal.engine.config import LoraConfig
from areal.models.parallel.dims import ParallelDims
from areal.models.parallel.schedules import PipelineLayout, pipeline_layout

Kind = Literal[
    "dense",
    "tied",
    "mixture",
    "latent",
    "delta",
    "mamba",
    "convolution",
    "beside",
    "lightning",
    "transformers gpt2",
    "transformers llama",
    "transformers mistral",
    "transformers mixtral",
    "transformers qwen2",
    "transformers qwen3",
]

_SHARED: Final = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    # Larger than real models use, so that distributions are far from uniform and mistakes show.
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
_MIXTURE: Final = {"num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True}
CONFIGS: Final[dict[str, dict[str, Any]]] = {
    "dense": {**_SHARED, "model_type": "qwen3", "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8},
    "tied": {
        **_SHARED,
        "model_type": "qwen2",
        "intermediate_size": 48,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
    "mixture": {
        **_SHARED,
        **_MIXTURE,
        "model_type": "qwen3_moe",
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_experts": 4,
    },
    "latent": {
        **_SHARED,
        **_MIXTURE,
        "model_type": "deepseek_v3",
        "intermediate_size": 48,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 12,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "routed_scaling_factor": 1.5,
    },
    "delta": {
        **_SHARED,
        **_MIXTURE,
        "model_type": "qwen3_next",
        "layer_types": ["linear_attention", "full_attention"],
        "num_key_value_heads": 2,
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 12,
    },
    "mamba": {
        **_SHARED,
        "model_type": "granitemoehybrid",
        "layer_types": ["linear_attention", "full_attention"],
        "intermediate_size": 8,
        "num_key_value_heads": 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 6,
        "mamba_d_conv": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 12,
        "attention_multiplier": 0.35,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.8,
        "logits_scaling": 1.5,
    },
    "convolution": {
        **_SHARED,
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"],
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 3,
        "conv_bias": True,
        "tie_word_embeddings": True,
    },
    "beside": {
        **_SHARED,
        "model_type": "falcon_h1",
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 6,
        "mamba_d_conv": 4,
        "mamba_rms_norm": True,
        "mamba_norm_before_gate": False,
        "projectors_bias": True,
        "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 1.2,
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.7, 1.2, 0.9, 1.1, 0.6],
        "mlp_multipliers": [0.8, 1.3],
        "key_multiplier": 1.4,
        "embedding_multiplier": 3.0,
        "lm_head_multiplier": 0.8,
    },
    "lightning": {
        **_SHARED,
        "model_type": "minimax",
        "layer_types": ["linear_attention", "full_attention"],
        "intermediate_size": 8,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "block_size": 8,
        "full_attn_alpha_factor": 1.2,
        "full_attn_beta_factor": 0.8,
        "linear_attn_alpha_factor": 0.9,
        "linear_attn_beta_factor": 1.1,
        "mlp_alpha_factor": 1.1,
        "mlp_beta_factor": 0.7,
    },
    "transformers gpt2": {
        "model_type": "gpt2",
        "vocab_size": 64,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "initializer_range": 0.3,
    },
    "transformers llama": {
        **_SHARED,
        "model_type": "llama",
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "attention_bias": True,
    },
    "transformers mistral": {
        **_SHARED,
        "model_type": "mistral",
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "sliding_window": 5,
    },
    "transformers mixtral": {
        **_SHARED,
        "model_type": "mixtral",
        "intermediate_size": 16,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
    },
    "transformers qwen2": {
        **_SHARED,
        "model_type": "qwen2",
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "transformers qwen3": {
        **_SHARED,
        "model_type": "qwen3",
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
}
"""Content of config.json. dense: query and key norms, grouped heads; tied: biases, tied embeddings, one key-value head;
mixture: experts in every layer; latent: MLA, sigmoid router with groups, a shared expert, a dense layer; delta, mamba,
convolution: a mixer with a state and attention in turn, with experts but for the last, whose embeddings are tied;
beside: Mamba-2 beside attention; lightning: linear attention with norms in the residual stream, and experts;
"transformers ...": computed by `transformers`, gpt2 and qwen2 with tied embeddings, mistral with a window."""
_BY_LAYER: Final = "layer_types"
"""A list with an entry per layer, which is repeated in deeper models."""


@dataclass(frozen=True, kw_only=True)
class EqualityCase:
    """One comparison with one process."""

    kind: Kind
    dims: ParallelDims
    options: dict[str, Any] = field(default_factory=dict)
    """Of `ArchonConfig` and `TrainEngineConfig`."""
    is_critic: bool = False
    layers: int = 2
    """Of the model."""
    few_rows: bool = False
    """Fewer groups than ranks, so that some ranks have nothing to compute."""
    tier: Literal["quick", "full"] = "full"
    """quick: in every run of the tests, which have one case for each way of splitting."""

    @property
    def is_foreign(self) -> bool:
        """Whether the model is one of `transformers`, with no family of ours."""
        return self.kind.startswith("transformers ")

    @property
    def has_adapters(self) -> bool:
        """Whether adapters are trained and nothing else."""
        return "lora" in self.options

    @property
    def layout(self) -> PipelineLayout:
        """Of the pipeline."""
        options = {name: value for name, value in self.options.items() if name.startswith("pp_")}
        return pipeline_layout(options.get("pp_schedule", "1F1B"), self.dims.pp, options.get("pp_pieces", 2))

    @property
    def config(self) -> dict[str, Any]:
        """Content of config.json."""
        config = {**CONFIGS[self.kind], "num_hidden_layers": self.layers} if self.layers != 2 else CONFIGS[self.kind]
        kinds = config.get(_BY_LAYER)
        if not kinds:
            return config
        return {**config, _BY_LAYER: [kinds[layer % len(kinds)] for layer in range(self.layers)]}

    @property
    def name(self) -> str:
        """E.g. "mixture dp_shard=2 tp=2 sequence_parallel"."""
        options = [
            name if value is True or isinstance(value, Config) else f"{name}={value}"
            for name, value in self.options.items()
        ]
        extra = [*options, *(["critic"] if self.is_critic else []), *(["idle ranks"] if self.few_rows else [])]
        return " ".join([self.kind, self.dims.describe(), *extra])


def cases(world_size: int, *, quick: bool = False) -> list[EqualityCase]:
    """Cases for this number of processes."""
    fitting = [case for case in _CASES if case.dims.world_size == world_size]
    return [case for case in fitting if case.tier == "quick" or not quick]


def _case(kind: Kind, *, quick: bool = False, options: dict[str, Any] | None = None, **rest: Any) -> EqualityCase:
    known = {name: rest.pop(name) for name in ("is_critic", "few_rows", "layers") if name in rest}
    tier: Literal["quick", "full"] = "quick" if quick else "full"
    return EqualityCase(kind=kind, dims=ParallelDims(**rest), options=options or {}, tier=tier, **known)


def _adapters(kind: Kind, *, options: dict[str, Any] | None = None, **rest: Any) -> EqualityCase:
    return _case(kind, options={"lora": LoraConfig(rank=3, alpha=7), **(options or {})}, **rest)


_MUON: Final = {"optimizer": "muon"}
_CASES: Final[list[EqualityCase]] = [
    # Two processes: every dimension alone.
    _case("dense", dp_shard=2),
    _case("dense", dp_shard=2, few_rows=True, quick=True),
    _case("dense", dp_replicate=2, quick=True),
    _case("dense", tp=2),
    _case("dense", tp=2, options={"sequence_parallel": True}, quick=True),
    _case("dense", cp=2, quick=True),
    _case("tied", dp_shard=2),
    _case("tied", tp=2),
    _case("tied", tp=2, options={"sequence_parallel": True}),
    _case("tied", cp=2),
    _case("mixture", dp_shard=2),
    _case("mixture", tp=2),
    _case("mixture", cp=2),
    _case("mixture", dp_shard=2, ep=2, quick=True),
    _case("mixture", dp_shard=2, ep=2, few_rows=True),
    _case("mixture", tp=2, ep=2),
    _case("mixture", cp=2, ep=2),
    _case("mixture", dp_shard=2, ep=2, options={"router_replay": True, "gradient_checkpointing": True}, quick=True),
    _case("mixture", tp=2, options={"router_replay": True, "sequence_parallel": True}),
    _case("mixture", cp=2, options={"router_replay": True}),
    _case("mixture", pp=2, layers=4, options={"router_replay": True, "pp_schedule": "ZBVZeroBubble"}),
    _case("mixture", pp=2, options={"router_replay": True, "pp_schedule": "GPipe", "gradient_checkpointing": True}),
    _case("latent", dp_shard=2),
    _case("latent", tp=2, quick=True),
    _case("latent", tp=2, options={"sequence_parallel": True}),
    _case("latent", cp=2),
    _case("latent", dp_shard=2, ep=2),
    _case("dense", dp_shard=2, is_critic=True),
    _case("dense", tp=2, options={"sequence_parallel": True}, is_critic=True),
    _case("dense", dp_shard=2, options={"gradient_checkpointing": True}),
    _case("mixture", dp_shard=2, ep=2, options={"gradient_checkpointing": True}),
    _case("dense", dp_shard=2, options={"keep_groups": False, "reshard_after_forward": False}),
    _case("dense", pp=2),
    _case("dense", pp=2, options={"pp_schedule": "GPipe", "gradient_checkpointing": True}),
    _case("mixture", pp=2, few_rows=True),
    _case("latent", pp=2),
    _case("dense", pp=2, layers=4, options={"pp_schedule": "Interleaved1F1B"}),
    _case("dense", pp=2, layers=4, options={"pp_schedule": "InterleavedZeroBubble"}),
    _case("dense", pp=2, layers=5, options={"pp_schedule": "ZBVZeroBubble"}, quick=True),
    _case("tied", pp=2, quick=True),
    _case("tied", pp=2, layers=6, options={"pp_schedule": "InterleavedZeroBubble", "pp_pieces": 3}, few_rows=True),
    _case("tied", pp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    _case("mixture", pp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}, few_rows=True),
    _case("latent", pp=2, layers=4, options={"pp_schedule": "InterleavedZeroBubble"}),
    _case("latent", pp=2, layers=4, options={"pp_schedule": "Interleaved1F1B", "gradient_checkpointing": True}),
    _case("dense", pp=2, is_critic=True, quick=True),
    _case("tied", pp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}, is_critic=True),
    _case("transformers gpt2", dp_shard=2, quick=True),
    _case("transformers gpt2", dp_replicate=2, few_rows=True),
    _case("transformers llama", dp_shard=2, options={"gradient_checkpointing": True}),
    _case("transformers llama", dp_shard=2, few_rows=True, options={"keep_groups": False}),
    _case("transformers llama", dp_shard=2, is_critic=True),
    _case("transformers mixtral", dp_shard=2),
    _case("transformers mixtral", dp_shard=2, few_rows=True),
    _case("transformers llama", tp=2),
    _case("transformers llama", cp=2, few_rows=True, options={"gradient_checkpointing": True}),
    _case("transformers llama", pp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    _case("transformers llama", pp=2, is_critic=True),
    _case("transformers llama", tp=2, is_critic=True),
    _case("transformers mistral", tp=2, options=_MUON),
    _case("transformers mistral", cp=2),
    _case("transformers mistral", pp=2),
    _case("transformers qwen2", tp=2),
    _case("transformers qwen2", cp=2),
    _case("transformers qwen2", pp=2),
    _case("transformers qwen2", pp=2, layers=4, options={"pp_schedule": "Interleaved1F1B"}, few_rows=True),
    _case("transformers qwen3", tp=2, options={"gradient_checkpointing": True}),
    _case("transformers qwen3", cp=2),
    _case("transformers qwen3", pp=2, options={"pp_schedule": "GPipe", "gradient_checkpointing": True}),
    _adapters("dense", dp_shard=2),
    _adapters("dense", tp=2, quick=True),
    _adapters("dense", tp=2, options={"sequence_parallel": True, "gradient_checkpointing": True}),
    _adapters("dense", dp_shard=2, is_critic=True),
    _adapters("dense", cp=2, few_rows=True),
    _adapters("dense", pp=2),
    _adapters("tied", tp=2),
    _adapters("mixture", dp_shard=2, ep=2),
    _adapters("latent", tp=2),
    _adapters("transformers gpt2", dp_shard=2),
    _adapters("transformers llama", dp_shard=2, few_rows=True, options={"gradient_checkpointing": True}),
    _adapters("transformers llama", tp=2),
    _adapters("transformers qwen3", cp=2),
    _adapters("transformers qwen2", pp=2),
    # Four processes: the pairs that matter, and all together.
    _case("dense", dp_shard=2, tp=2, quick=True),
    _case("dense", dp_shard=2, tp=2, options={"sequence_parallel": True, "gradient_checkpointing": True}),
    _case("dense", dp_shard=4, few_rows=True),
    _case("dense", dp_replicate=2, dp_shard=2),
    _case("dense", dp_replicate=2, tp=2),
    _case("dense", dp_shard=2, cp=2),
    _case("dense", cp=2, tp=2, quick=True),
    _case("dense", tp=4),
    _case("dense", cp=4),
    _case("tied", dp_shard=2, tp=2),
    _case("tied", cp=2, tp=2, options={"sequence_parallel": True}),
    _case("mixture", dp_shard=4, ep=2),
    _case("mixture", dp_shard=2, tp=2, ep=2, etp=2, quick=True),
    _case("mixture", dp_shard=2, tp=2, ep=4),
    _case("mixture", dp_shard=2, cp=2, ep=4),
    _case("mixture", dp_replicate=2, dp_shard=2, ep=2),
    _case("mixture", cp=2, tp=2, ep=4, options={"sequence_parallel": True}),
    _case("latent", dp_shard=2, tp=2),
    _case("latent", dp_shard=2, tp=2, ep=4, options={"gradient_checkpointing": True}),
    _case("latent", cp=2, tp=2),
    _case("dense", pp=2, dp_shard=2, quick=True),
    _case("dense", pp=2, dp_shard=2, few_rows=True, options={"pp_schedule": "GPipe"}),
    _case("dense", pp=2, tp=2, options={"sequence_parallel": True}),
    _case("dense", pp=2, cp=2),
    _case("mixture", pp=2, dp_shard=2, ep=2),
    _case("dense", pp=4, layers=8, options={"pp_schedule": "Interleaved1F1B"}),
    _case("dense", pp=2, dp_shard=2, layers=4, options={"pp_schedule": "Interleaved1F1B"}),
    _case("dense", pp=2, dp_shard=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    _case("tied", pp=2, dp_shard=2),
    _case("tied", pp=2, tp=2, options={"sequence_parallel": True}),
    _case("tied", pp=2, tp=2, layers=4, options={"pp_schedule": "InterleavedZeroBubble"}),
    _case("latent", pp=2, tp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    _case("mixture", pp=2, dp_shard=2, ep=2, layers=4, options={"pp_schedule": "InterleavedZeroBubble"}),
    _case("dense", pp=2, dp_shard=2, is_critic=True),
    _case("dense", pp=2, tp=2, options={"sequence_parallel": True}, is_critic=True),
    _case("dense", dp_shard=2, tp=2, is_critic=True),
    _case("transformers llama", dp_replicate=2, dp_shard=2),
    _case("transformers mixtral", dp_shard=4),
    _case("transformers llama", pp=2, tp=2),
    _case("transformers mistral", dp_shard=2, tp=2),
    _case("transformers llama", pp=2, cp=2),
    _case("transformers qwen2", pp=2, cp=2),
    _case("transformers qwen3", cp=2, tp=2),
    _adapters("transformers qwen3", dp_shard=2, tp=2),
    _adapters("dense", dp_shard=2, tp=2, quick=True),
    _adapters("tied", dp_replicate=2, tp=2, options={"sequence_parallel": True}),
    _adapters("mixture", dp_shard=2, tp=2, ep=4),
    _adapters("latent", dp_shard=2, tp=2),
    # Mixers with a state, beside attention: by heads, by tokens, by layers, with experts, and all together.
    _case("delta", dp_shard=2),
    _case("delta", tp=2),
    _case("delta", tp=2, options={"sequence_parallel": True, "gradient_checkpointing": True}),
    _case("delta", cp=2),
    _case("delta", dp_shard=2, ep=2),
    _case("delta", dp_shard=2, ep=2, few_rows=True, options={"gradient_checkpointing": True}),
    _case("delta", tp=2, ep=2),
    _case("delta", cp=2, ep=2),
    _case("delta", pp=2),
    _case("delta", pp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    _case("delta", dp_shard=2, is_critic=True),
    _case("delta", dp_shard=2, ep=2, options=_MUON),
    _adapters("delta", tp=2),
    _case("mamba", dp_shard=2),
    _case("mamba", tp=2),
    _case("mamba", tp=2, options={"sequence_parallel": True}),
    _case("mamba", cp=2),
    _case("mamba", dp_shard=2, ep=2),
    _case("mamba", cp=2, ep=2, options={"gradient_checkpointing": True}),
    _case("mamba", pp=2),
    _case("mamba", pp=2, layers=4, options={"pp_schedule": "Interleaved1F1B"}, few_rows=True),
    _case("mamba", dp_shard=2, options=_MUON),
    _adapters("mamba", tp=2),
    _case("convolution", dp_shard=2),
    _case("convolution", tp=2),
    _case("convolution", tp=2, options={"sequence_parallel": True}),
    _case("convolution", cp=2),
    _case("convolution", pp=2),
    _case("convolution", tp=2, options=_MUON),
    _adapters("convolution", tp=2),
    _case("beside", dp_shard=2),
    _case("beside", tp=2),
    _case("beside", tp=2, options={"sequence_parallel": True, "gradient_checkpointing": True}),
    _case("beside", cp=2),
    _case("beside", pp=2),
    _adapters("beside", tp=2),
    _case("lightning", dp_shard=2, ep=2),
    _case("lightning", tp=2),
    _case("lightning", tp=2, options={"sequence_parallel": True}),
    _case("lightning", cp=2),
    _case("lightning", pp=2),
    _adapters("lightning", tp=2),
    _case("beside", cp=2, tp=2, options={"sequence_parallel": True}),
    _case("beside", pp=2, dp_shard=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    _case("lightning", dp_shard=2, tp=2, ep=4),
    _case("lightning", cp=2, tp=2),
    _case("delta", dp_shard=2, tp=2, ep=4),
    _case("delta", cp=2, tp=2, ep=4, options={"sequence_parallel": True}),
    _case("delta", pp=2, dp_shard=2, ep=2),
    _case("delta", dp_shard=2, tp=2, ep=2, etp=2, options=_MUON),
    _case("delta", cp=4),
    _case("mamba", cp=2, tp=2, options={"sequence_parallel": True}),
    _case("mamba", dp_shard=2, tp=2, ep=4),
    _case("mamba", pp=2, tp=2, options={"sequence_parallel": True}),
    _case("mamba", cp=4),
    _case("convolution", cp=2, tp=2),
    _case("convolution", pp=2, tp=2, layers=4, options={"pp_schedule": "ZBVZeroBubble"}),
    # Optimizers: matrices that no rank has, experts that one has, and those that all have.
    _case("dense", dp_shard=2, options=_MUON),
    _case("dense", tp=2, options=_MUON | {"sequence_parallel": True}),
    _case("dense", dp_replicate=2, options=_MUON),
    _case("dense", pp=2, options=_MUON),
    _case("tied", cp=2, options=_MUON),
    _case("tied", pp=2, options=_MUON),
    _adapters("dense", dp_shard=2, options=_MUON | {"offload_optimizer": True}),
    _case("transformers mixtral", dp_shard=2, options=_MUON),
    _case("mixture", dp_shard=2, ep=2, options=_MUON, quick=True),
    _case("mixture", tp=2, options=_MUON),
    _case("latent", dp_shard=2, ep=2, options=_MUON),
    _case("dense", dp_shard=2, options={"optimizer": "sgd"}),
    _case("mixture", dp_shard=2, ep=2, options={"optimizer": "sgd", "offload_optimizer": True}),
    _case("dense", dp_shard=2, options={"offload_optimizer": True}),
    _case("dense", dp_shard=2, tp=2, options=_MUON | {"offload_optimizer": True}),
    _case("dense", dp_replicate=2, dp_shard=2, options=_MUON),
    _case("dense", pp=2, dp_shard=2, options=_MUON),
    _case("mixture", dp_shard=2, tp=2, ep=2, etp=2, options=_MUON, quick=True),
    _case("mixture", dp_replicate=2, dp_shard=2, ep=2, options=_MUON),
    _case("mixture", dp_shard=2, cp=2, ep=4, options=_MUON),
    _case("latent", dp_shard=2, tp=2, ep=4, options=_MUON),
    _case("mixture", dp_shard=2, tp=2, ep=2, etp=2, options={"optimizer": "sgd"}),
]
