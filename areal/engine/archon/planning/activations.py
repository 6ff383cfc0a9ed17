"""Values that the backward pass of a decoder reads, per token: a rule of thumb, from the sizes of the model alone."""

from __future__ import annotations

from typing import Any


def activation_values(
    args: Any, num_layers: int, *, tp: int = 1, sequence_parallel: bool = False, recomputed: bool = False
) -> int:
    """Of `num_layers` layers on a rank of tp, with one layer at work where they are recomputed.

    Four vectors of hidden_size (block inputs and norms), queries and attention output, keys and values, and four of the
    inner size of the feed-forward layer, as `areal.trainer.configuration.memory` counts them.
    """
    between = args.hidden_size // (tp if sequence_parallel else 1)
    query, key_value = args.num_heads * args.head_dim // tp, max(1, args.num_kv_heads // tp) * args.head_dim
    per_layer = 4 * between + 2 * query + 2 * key_value + 4 * (feed_forward_width(args) // tp)
    return int(num_layers * between + per_layer if recomputed else num_layers * per_layer)


def feed_forward_width(args: Any) -> int:
    """Inner values of the feed-forward layer that a token passes through, all of its experts together."""
    expert = getattr(args, "moe_intermediate_size", None)
    if expert is None:
        return int(getattr(args, "intermediate_size", 4 * args.hidden_size))
    return int(expert) * (int(getattr(args, "num_experts_per_tok", 1)) + int(getattr(args, "n_shared_experts", 0) or 0))
