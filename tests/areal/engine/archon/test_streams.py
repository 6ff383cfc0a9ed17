"""Streams of weights from shards: what one process plans for ranks that do not exist is what real ranks agree on, and
the bytes and the memory are those that the plan says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.planning.parts import parts_by_rank
from areal.models import from_config
from areal.models.loading import blank_model
from areal.models.parallel import ParallelDims
from areal.models.parallel.schedules import pipeline_layout
from areal.trainer.shard_streams import stored_units, stream_model

BUCKET_BYTES = 8192
CASES = {
    "dp 4": ("dense", {"dp_shard": 4}),
    "dp 2, tp 2": ("dense", {"dp_shard": 2, "tp": 2}),
    "replicate 2, dp 2": ("dense", {"dp_replicate": 2, "dp_shard": 2}),
    "pp 2, dp 2, tied": ("tied", {"pp": 2, "dp_shard": 2}),
    "cp 2, tp 2": ("dense", {"cp": 2, "tp": 2}),
    "experts": ("mixture", {"dp_shard": 4, "ep": 2}),
}


def planned(kind, dims, bucket_bytes=BUCKET_BYTES):
    dims = ParallelDims(**dims)
    layout = pipeline_layout("1F1B", dims.pp, 1)
    held = parts_by_rank(CONFIGS[kind], dims, layout, held=torch.float32, handed_out=torch.bfloat16)
    model = from_config(CONFIGS[kind], dtype=torch.float32, seed=2)
    streamed, _ = stream_model(
        stored_units(model), held, served_dtype="bfloat16", bucket_bytes=bucket_bytes, max_collectors=3
    )
    return streamed.layout


@pytest.fixture(scope="module")
def found(fork_server, tmp_path_factory):
    """What four gloo processes saw."""
    folder = tmp_path_factory.mktemp("streams")
    cases = {
        name: {"kind": kind, "dims": dims, "planned": repr(planned(kind, dims))} for name, (kind, dims) in CASES.items()
    }
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    worker = str(Path(__file__).with_name("streams_worker.py"))
    return fork_server.run_ranks(worker, 4, ["--folder", str(folder)], timeout_seconds=250)[0]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_ranks_plan_and_send_what_was_planned_without_them(found, case):
    seen = found[case]
    assert seen["failure"] == ""
    assert seen["same"], "the worker has what the trainer would hand out"
    assert seen["planned"]
    assert all(peak == expected for peak, expected in seen["peaks"])
    assert all(sent == expected for sent, expected in seen["broadcast"])
    # Collectors also report digests to rank 0.
    assert all(0 <= sent - expected < 20_000 for sent, expected in seen["sent"])
    assert sum(sent > 0 for sent, _ in seen["broadcast"]) == 3


@pytest.mark.exhaustive
def test_a_thousand_ranks_share_the_work_evenly():
    """A dense model of 52 B parameters over 128 nodes of 8."""
    config = {
        "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 8192, "intermediate_size": 25600,
        "num_hidden_layers": 16, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
    }  # fmt: skip
    dims = ParallelDims(dp_replicate=4, dp_shard=32, tp=8)
    held = parts_by_rank(config, dims, pipeline_layout("1F1B", 1, 1), held=torch.float32, handed_out=torch.bfloat16)
    assert len(held) == 1024
    with torch.device("meta"):
        model = blank_model(config)
    streamed, _ = stream_model(
        stored_units(model), held, served_dtype="bfloat16", bucket_bytes=64 * 2**20, max_collectors=8
    )
    layout = streamed.layout
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total * 2 <= layout.stream_bytes < total * 2 * 1.001
    for unit, pieces in zip(layout.units, layout.pieces, strict=True):
        expected = sum(torch.Size(parameter.shape).numel() for parameter in unit.parameters)
        assert sum(piece.size for piece in pieces) == expected
        assert len({(piece.parameter, piece.bounds) for piece in pieces}) == len(pieces)
    broadcast = layout.sent_to_workers()
    assert set(broadcast) == {128 * index for index in range(8)}
    assert max(broadcast.values()) <= 1.1 * min(broadcast.values())
    nodes = [0] * 128
    for rank, sent in layout.sent_to_collectors().items():
        nodes[rank // 8] += sent
    assert max(nodes) <= 1.1 * sum(nodes) / len(nodes)
    largest = max(bucket.num_bytes for bucket in layout.buckets)
    assert max(map(layout.peak_bytes, layout.collectors)) < largest + 3 * 2**29
    assert layout.peak_bytes(5) < 32 * 2**20
