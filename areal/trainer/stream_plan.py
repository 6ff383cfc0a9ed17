"""Plan a stream of weights from shards before a run: the layout that its ranks will agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.engine.archon.planning.parts import parts_by_rank
from areal.engine.precision import concrete_dtype
from areal.models.loading import blank_model
from areal.trainer.shard_streams import stored_units, stream_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.infra.weights.layout import StreamLayout
    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.schedules import PipelineLayout
    from areal.trainer.config import PPOConfig


def planned_stream(
    config: PPOConfig, model: Mapping[str, Any], dims: ParallelDims, layout: PipelineLayout
) -> StreamLayout:
    """Return the layout. model: content of config.json; dims have to be resolved. Raises ConfigError for a model whose
    weights cannot be streamed."""
    handed_out: torch.dtype = getattr(torch, concrete_dtype(config.actor))
    # Shards are float32 where the engine's dtype is smaller; a process that is alone rounds its parameters.
    held = torch.promote_types(handed_out, torch.float32) if dims.world_size > 1 else handed_out
    everywhere = parts_by_rank(model, dims, layout, held=held, handed_out=handed_out)
    with torch.device("meta"):
        blank = blank_model(model)
    streamed, _ = stream_model(
        stored_units(blank),
        everywhere,
        served_dtype=config.servers.dtype,
        bucket_bytes=config.weights.bucket_mb * 2**20,
        max_collectors=config.weights.collectors,
    )
    return streamed.layout


def stream_numbers(layout: StreamLayout) -> dict[str, Any]:
    """Return what one version costs, in bytes: for `areal plan`."""
    sent, broadcast = layout.sent_to_collectors(), layout.sent_to_workers()
    others = [rank for rank in range(layout.num_ranks) if rank not in layout.collectors]
    return {
        "stream_bytes": layout.stream_bytes,
        "buckets": len(layout.buckets),
        "collectors": list(layout.collectors),
        "sent_by_rank_bytes": max(sent.values(), default=0),
        "sent_between_ranks_bytes": sum(sent.values()),
        "broadcast_by_collector_bytes": max(broadcast.values(), default=0),
        "collector_peak_bytes": max(layout.peak_bytes(rank) for rank in layout.collectors),
        "other_peak_bytes": max(map(layout.peak_bytes, others), default=0),
    }
