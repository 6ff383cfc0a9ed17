"""Estimate parameters and memory from configuration alone, before anything heavy is imported.

An estimate, not a promise.

Sums what is certain (weights, gradients, optimizer state, the engine's copy, a full KV cache) and says which part is a
rule of thumb (activations). Sizes are bytes; parameter counts follow from the fields of a Hugging Face config.json.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.engine.precision import concrete_dtype
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.validation import read_model_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.engine.config import LoraConfig, TrainEngineConfig
    from areal.trainer.config import RowsConfig

DTYPE_BYTES: Final = {"bfloat16": 2, "float32": 4, "float64": 8}

_FAMILIES: Final = frozenset({"llama", "qwen2", "qwen3", "qwen3_moe"})
_NEEDED: Final = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_QUERY_KEY_NORM: Final = frozenset({"qwen3", "qwen3_moe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that memory depends on."""

    model_type: str
    num_parameters: int
    num_layers: int
    hidden_size: int
    query_size: int
    """num_heads * head_dim."""
    key_value_size: int
    """num_kv_heads * head_dim."""
    mlp_size: int
    """Inner size of the MLP one token passes through (all active experts together)."""
    vocab_size: int
    max_position_embeddings: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryItem:
    """Consumer of memory."""

    name: str
    num_bytes: int
    formula: str
    """How the size came about, in words."""


def model_shape(config: Mapping[str, Any]) -> ModelShape | str:
    """Sizes of the decoder that a config.json describes, or a sentence saying why they are unknown."""
    model_type = config.get("model_type")
    if model_type not in _FAMILIES:
        return f"no parameter formula for model_type {model_type!r}"
    needed = [*_NEEDED, "moe_intermediate_size" if model_type == "qwen3_moe" else "intermediate_size"]
    if model_type == "qwen3_moe":
        needed += ["num_experts", "num_experts_per_tok"]
    missing = [name for name in needed if not isinstance(config.get(name), int)]
    if missing:
        return f"the model configuration has no {', '.join(missing)}"
    hidden, vocab, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
    # Qwen3 decouples the head size from hidden_size / heads, and its published default is 128.
    head_dim = config.get("head_dim") or (128 if model_type == "qwen3" else hidden // config["num_attention_heads"])
    query, key_value = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    attention = 2 * hidden * query + 2 * hidden * key_value
    if config.get("attention_bias", model_type == "qwen2"):
        attention += query + 2 * key_value + (0 if model_type == "qwen2" else hidden)
    if model_type in _QUERY_KEY_NORM:
        attention += 2 * head_dim
    dense = 3 * hidden * config.get("intermediate_size", 0)
    sparse, mlp_size, num_sparse = 0, config.get("intermediate_size", 0), 0
    if model_type == "qwen3_moe":
        sparse = config["num_experts"] * 3 * hidden * config["moe_intermediate_size"] + config["num_experts"] * hidden
        mlp_size = config["num_experts_per_tok"] * config["moe_intermediate_size"]
        step, dense_layers = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
        num_sparse = sum((layer + 1) % step == 0 and layer not in dense_layers for layer in range(layers))
    total = vocab * hidden * (1 if config.get("tie_word_embeddings", False) else 2) + hidden
    total += layers * (attention + 2 * hidden) + num_sparse * sparse + (layers - num_sparse) * dense
    return ModelShape(
        model_type=model_type,
        num_parameters=total,
        num_layers=layers,
        hidden_size=hidden,
        query_size=query,
        key_value_size=key_value,
        mlp_size=mlp_size,
        vocab_size=vocab,
        max_position_embeddings=config.get("max_position_embeddings"),
    )


def estimate(config: PPOConfig | RowsConfig, shape: ModelShape) -> list[MemoryItem]:
    """Return what the run holds at its peak, largest consumers of one kind in order of use."""
    items = _trained("actor", config.actor, shape)
    if isinstance(config, PPOConfig):
        items += _rollout_items(config, shape)
    weight_bytes = DTYPE_BYTES[concrete_dtype(config.actor)]
    chunk = min(config.actor.logprob_chunk_size, config.actor.max_tokens_per_micro_batch)
    items.append(
        MemoryItem(
            name="logits",
            num_bytes=2 * chunk * shape.vocab_size * 4,
            formula=f"{chunk} tokens x {shape.vocab_size} vocabulary x 4 bytes, and their gradient",
        )
    )
    items.append(_activations(config.actor, shape, weight_bytes))
    return items


def _trained(name: str, engine: TrainEngineConfig, shape: ModelShape) -> list[MemoryItem]:
    width = DTYPE_BYTES[concrete_dtype(engine)]
    count = shape.num_parameters if engine.lora is None else _adapter_parameters(engine.lora, shape)
    moments, state_width = _moments(engine, shape, count), max(width, 4)
    masters = count if width == 2 or engine.offload_optimizer else 0
    what = f"{moments} {engine.optimizer} moments" + (f" and {masters} masters" if masters else "")
    return [
        _weights(f"{name} weights", shape, concrete_dtype(engine)),
        MemoryItem(name=f"{name} gradients", num_bytes=count * width, formula=f"{count} x {width} bytes"),
        MemoryItem(
            name=f"{name} optimizer",
            num_bytes=(moments + masters) * state_width,
            formula=f"{what} x {state_width} bytes" + (" of host memory" if engine.offload_optimizer else ""),
        ),
    ]


def _adapter_parameters(lora: LoraConfig, shape: ModelShape) -> int:
    """Two thin matrices beside each linear layer; experts are no linear layers but stacks of them, and get none."""
    hidden = shape.hidden_size
    sizes = {
        "q_proj": hidden + shape.query_size,
        "k_proj": hidden + shape.key_value_size,
        "v_proj": hidden + shape.key_value_size,
        "o_proj": hidden + shape.query_size,
    }
    if not shape.model_type.endswith("_moe"):
        sizes |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden + shape.mlp_size)
    chosen = set(lora.targets) or set(sizes)
    return shape.num_layers * lora.rank * sum(size for name, size in sizes.items() if name in chosen)


def _moments(engine: TrainEngineConfig, shape: ModelShape, count: int) -> int:
    """Numbers the optimizer keeps for `count` trained parameters."""
    if engine.optimizer == "adamw":
        return 2 * count
    if engine.optimizer == "sgd":
        return count if engine.momentum else 0
    # One for what Muon turns; embedding and head, at most two matrices, are AdamW's, and adapters leave them alone.
    tokens = 0 if engine.lora is not None else 2 * shape.vocab_size * shape.hidden_size
    return count + min(count, tokens)


def _weights(name: str, shape: ModelShape, dtype: str) -> MemoryItem:
    width = DTYPE_BYTES[dtype]
    return MemoryItem(
        name=name, num_bytes=shape.num_parameters * width, formula=f"{shape.num_parameters} x {width} bytes"
    )


def _activations(engine: TrainEngineConfig, shape: ModelShape, width: int) -> MemoryItem:
    """Rule of thumb for a gated-MLP decoder with fused attention: what the backward pass reads, per token and layer.

    Four vectors of hidden_size (block inputs and norms), queries and attention output, keys and values, four of the
    MLP's inner size. Recomputation keeps one vector per layer, plus everything of the layer at work.
    """
    per_layer = 4 * shape.hidden_size + 2 * shape.query_size + 2 * shape.key_value_size + 4 * shape.mlp_size
    layers = shape.num_layers
    values = layers * shape.hidden_size + per_layer if engine.gradient_checkpointing else layers * per_layer
    tokens = engine.max_tokens_per_micro_batch
    return MemoryItem(
        name="activations",
        num_bytes=tokens * values * width,
        formula=f"roughly, for a full micro-batch of {tokens} tokens x {values} values x {width} bytes",
    )


def _travelling(config: PPOConfig, shape: ModelShape) -> Iterator[MemoryItem]:
    """Yield what carriers hold for servers: two versions while one replaces the other, and the base of adapters."""
    count, width = shape.num_parameters, DTYPE_BYTES[config.servers.dtype]
    if config.adapters_travel_alone and config.actor.lora is not None:
        # Adapted layers, which are most of a model, travel as the trainer has them; factors in float32.
        base = DTYPE_BYTES[concrete_dtype(config.actor)]
        yield MemoryItem(
            name="base for servers",
            num_bytes=count * base,
            formula=f"{count} x {base} bytes of host memory, {config.weights.carrier}",
        )
        count, width = _adapter_parameters(config.actor.lora, shape), DTYPE_BYTES["float32"]
    if config.weights.carrier == "shards":
        largest = shape.vocab_size * shape.hidden_size * width
        bucket = config.weights.bucket_mb * 2**20
        yield MemoryItem(
            name="weights on their way",
            num_bytes=max(bucket, largest) + bucket,
            formula="roughly two buckets, of which one has the embedding, on ranks that collect; `areal plan` is exact",
        )
        return
    yield MemoryItem(
        name="weights on their way",
        num_bytes=2 * count * width,
        formula=f"2 versions x {count} x {width} bytes of host memory, {config.weights.carrier}",
    )


def _kept(config: PPOConfig, shape: ModelShape) -> Iterator[MemoryItem]:
    """Yield the versions that workers of servers keep, where this run starts them and so knows how many there are."""
    if not config.weights.deltas or config.adapters_travel_alone or config.servers.are_given:
        return
    split = (config.vllm if config.rollout.engine == "vllm" else config.sglang).tensor_parallel_size
    workers, width = config.servers.num_servers * split, DTYPE_BYTES[config.servers.dtype]
    yield MemoryItem(
        name="versions kept by servers",
        num_bytes=workers * shape.num_parameters * width,
        formula=f"{workers} workers x {shape.num_parameters} x {width} bytes of host memory (weights.deltas)",
    )


def _asleep(config: PPOConfig, learner: list[MemoryItem]) -> Iterator[MemoryItem]:
    """Yield what of the learner is in host memory while servers have the device. learner: what it holds."""
    moved = [item.num_bytes for item in learner if item.name.endswith(("weights", "optimizer"))]
    if config.servers.sleep_learner:
        yield MemoryItem(
            name="learner asleep",
            num_bytes=sum(moved),
            formula="weights, masters and moments of the learner in host memory (servers.sleep_learner)",
        )


def _teachers(config: PPOConfig) -> Iterator[MemoryItem]:
    """Yield the weights of teachers that are loaded here."""
    teachers = {} if config.distillation is None else config.distillation.teachers
    for name, teacher in teachers.items():
        try:
            shape = model_shape(read_model_config(replace(config.model, path=teacher.path))) if teacher.path else ""
        except ConfigError:
            continue  # reported where it is checked
        if not isinstance(shape, str):
            yield _weights(f"weights of teacher {name}", shape, concrete_dtype(config.actor))


def _rollout_items(config: PPOConfig, shape: ModelShape) -> list[MemoryItem]:
    """Yield what only RL holds: critic, reference, and the engine's weights and cache."""
    items: list[MemoryItem] = []
    if config.critic is not None:
        items += _trained("critic", config.critic, shape)
    if config.objective.build().needs_reference:
        items.append(_weights("reference weights", shape, concrete_dtype(config.actor)))
    items += _teachers(config)
    if config.rollout.engine != "embedded":
        # Weights and cache of servers are in processes and on devices of their own.
        learner = [*_trained("actor", config.actor, shape), *items]
        return [*items, *_travelling(config, shape), *_kept(config, shape), *_asleep(config, learner)]
    engine_dtype = concrete_dtype(config.actor) if config.engine.dtype == "auto" else config.engine.dtype
    if not config.shares_weights:
        items.append(_weights("engine weights", shape, engine_dtype))
    length = min(config.engine.max_seq_len, shape.max_position_embeddings or config.engine.max_seq_len)
    per_token = 2 * shape.num_layers * shape.key_value_size * DTYPE_BYTES[engine_dtype]
    items.append(
        MemoryItem(
            name="engine KV cache",
            num_bytes=config.engine.max_batch_size * length * per_token,
            formula=f"at most {config.engine.max_batch_size} sequences x {length} tokens x {per_token} bytes",
        )
    )
    return items
