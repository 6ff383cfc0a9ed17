"""Builds megatron-core's decoder for a model of ours: groups of processes, settings, layers. Imports megatron inside.

megatron keeps its groups in globals of a module: all engines of a process share one arrangement of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.api import EngineError
from areal.engine.megatron.names import padded_vocabulary

if TYPE_CHECKING:
    from torch import nn

    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.engine.train.ranks import Ranks
    from areal.models.parallel.dims import ParallelDims


def device_of_megatron() -> torch.device:
    """Return the device that megatron computes on, which it asks of torch. Raises EngineError where there is none."""
    try:
        found: Any = torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        raise EngineError(
            f"megatron-core computes on CUDA devices, and this process has none: {error}",
            where="archon.engine",
            fix="set archon.engine to native, which trains on any device",
        ) from error
    return found if isinstance(found, torch.device) else torch.device("cuda", found)


def arrange(dims: ParallelDims, ranks: Ranks, *, seed: int = 0) -> None:
    """Make megatron's groups of processes, or keep those that there are. Every rank calls it.

    Raises EngineError when another engine of this process has arranged the ranks differently.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=dims.tp,
            pipeline_model_parallel_size=dims.pp,
            create_gloo_process_groups=False,
        )
        # Dropout is off, but megatron asks for the generators of its ranks all the same.
        model_parallel_cuda_manual_seed(seed)
    expected = {way: (ranks.place(way), ranks.count(way)) for way in ("tp", "pp", "data")}
    groups = {
        "tp": parallel_state.get_tensor_model_parallel_group(),
        "pp": parallel_state.get_pipeline_model_parallel_group(),
        "data": parallel_state.get_data_parallel_group(),
    }
    found = {way: (group.rank(), group.size()) for way, group in groups.items()}
    if found != expected:
        raise EngineError(
            f"megatron-core has arranged the ranks as (place, ranks) {found} and this engine needs {expected}; all "
            f"engines of a process share one arrangement",
            where="archon.parallel",
            fix="give all engines of the process the same archon.parallel",
        )


def build_decoder(model: nn.Module, config: TrainEngineConfig, archon: ArchonConfig, ranks: Ranks) -> Any:
    """Return this stage of megatron's decoder for `model` (a DecoderModel that `checks.check_model` accepts), with
    gradients that are summed over the data ranks; parameters are not filled."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    from areal.engine.megatron.states_model import StatesModel, layer_spec

    decoder: Any = model
    args = decoder.args
    settings = _settings(decoder, config, archon, ranks)
    stage, stages = ranks.place("pp"), ranks.count("pp")
    built = StatesModel(
        config=settings,
        transformer_layer_spec=layer_spec(settings, transformer_engine=archon.megatron.transformer_engine),
        vocab_size=padded_vocabulary(args.vocab_size, ranks.count("tp")),
        max_sequence_length=args.max_position_embeddings,
        pre_process=stage == 0,
        post_process=stage == stages - 1,
        share_embeddings_and_output_weights=decoder.lm_head is None,
        position_embedding_type="rope",
    )
    # All of it: norms of torch come in float32 whatever the settings are.
    built.to(ranks.device, settings.params_dtype)
    # Ours whatever the type of rotary positions is: megatron knows some of them, with other numbers.
    built.rotary_pos_emb.inv_freq = decoder.rotaries[0].frequencies().to(ranks.device)
    return DistributedDataParallel(
        config=settings,
        ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=config.dtype == "bfloat16"),
        module=built,
    )


def _settings(decoder: Any, config: TrainEngineConfig, archon: ArchonConfig, ranks: Ranks) -> Any:
    from megatron.core.transformer import TransformerConfig
    from torch.nn import functional

    args, attention = decoder.args, decoder.layers[0].self_attn
    dtype: torch.dtype = getattr(torch, config.dtype)
    recomputed: dict[str, Any] = {}
    if config.gradient_checkpointing:
        recomputed = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_heads,
        num_query_groups=args.num_kv_heads,
        kv_channels=args.head_dim,
        ffn_hidden_size=args.intermediate_size,
        gated_linear_unit=True,
        activation_func=functional.silu,
        normalization="RMSNorm",
        layernorm_epsilon=decoder.norm.eps,
        add_bias_linear=False,
        add_qkv_bias=attention.q_proj.bias is not None,
        qk_layernorm=attention.q_norm is not None,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=ranks.count("tp"),
        pipeline_model_parallel_size=ranks.count("pp"),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype is torch.bfloat16,
        # Only 16-bit scores are turned into float32 for it.
        attention_softmax_in_fp32=dtype is torch.bfloat16,
        use_cpu_initialization=ranks.device.type == "cpu",
        perform_initialization=False,
        # Fused kernels need apex or Transformer Engine.
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        # Micro-batches are padded to their own longest row.
        variable_seq_lengths=True,
        # There are no experts; the default does not go with the line above.
        moe_token_dispatcher_type="alltoall",
        # Losses are divided by the denominators of the whole step already: nothing else may divide.
        calculate_per_token_loss=True,
        **recomputed,
    )
