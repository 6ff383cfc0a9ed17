"""Ranks that are given their own rows only compute what they compute with the whole batch, to the last bit."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from areal.api import PaddedBatch
from areal.engine.archon.equality.comparison import make_batch
from areal.engine.train.divided import DividedBatch
from areal.engine.train.ranks import Ranks
from areal.trainer.wire import WireMessage

CPU = torch.device("cpu")
WAYS = {
    "data 4": 4,
    "data 2, tp 2": 2,
    "data 2, cp 2": 2,
    "data 2, pp 2": 2,
    "cp 2, tp 2": 1,
    "pp 2, tp 2": 1,
    "pp 2, cp 2": 1,
}
"""Data ranks of each arrangement of four."""


def ranks_of(shape):
    """Ranks of an arrangement (pp, dp_replicate, dp_shard_outer, dp_shard_inner, cp, tp), of which nobody sends."""
    mesh = torch.arange(torch.Size(shape).numel()).reshape(shape)
    data = SimpleNamespace(size=lambda: shape[1] * shape[2] * shape[3])
    return Ranks(CPU, SimpleNamespace(root=SimpleNamespace(mesh=mesh), group=lambda _: data))


def batch_of(rows, width):
    """Rows of equal length, each a group of its own."""
    ids, numbers = torch.arange(rows * width).reshape(rows, width), torch.rand(rows, width)
    return PaddedBatch(
        tokens=ids,
        lengths=torch.full((rows,), width),
        loss_mask=numbers,
        logp_behave=numbers,
        versions=ids,
        turn_ids=ids,
        rewards=numbers[:, 0].clone(),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
    )


def bytes_of(batch):
    values = (getattr(batch, item.name) for item in fields(batch))
    return sum(value.nbytes for value in values if value is not None)


@pytest.mark.parametrize(
    ("shape", "firsts"),
    [((1, 1, 1, 4, 1, 1), [0, 1, 2, 3]), ((2, 1, 1, 2, 1, 2), [0, 2]), ((1, 2, 1, 2, 2, 1), [0, 2, 4, 6])],
)
def test_the_first_rank_of_those_with_the_same_rows_is_given_them(shape, firsts):
    ranks = ranks_of(shape)
    divided = DividedBatch.of(make_batch(), ranks, keep_groups=False)
    assert [rank for rank, (_, is_first) in enumerate(divided.holders) if is_first] == firsts
    given = [divided.for_rank(rank) for rank in range(len(divided.holders))]
    assert [rank for rank, part in enumerate(given) if part.part is not None] == firsts
    for rank in firsts:
        rows = divided.divided[divided.holders[rank][0]]
        assert torch.equal(given[rank].select(rows).tokens, divided.select(rows).tokens)
    assert sorted(row for rank in firsts for row in given[rank].rows) == list(range(8))
    with pytest.raises(KeyError):
        given[firsts[0]].select([given[firsts[-1]].rows[0]])


def test_what_rank_0_sends_does_not_grow_with_the_number_of_ranks():
    batch, sent = batch_of(256, 512), {}
    for data, sharing in ((2, 1), (8, 1), (8, 8), (128, 8)):
        divided = DividedBatch.of(batch, ranks_of((1, 1, 1, data, 1, sharing)), keep_groups=False)
        # The outline of all rows goes to everybody, which is a few numbers for each.
        assert (
            WireMessage(divided.for_rank(1) if sharing > 1 else divided.limited_to([]).for_rank(1)).num_bytes < 16_000
        )
        firsts = [rank for rank, (_, is_first) in enumerate(divided.holders) if is_first]
        sent[data, sharing] = sum(WireMessage(divided.for_rank(rank).part).num_bytes for rank in firsts)
    assert max(sent.values()) < 1.01 * bytes_of(batch) + 128 * 2000


@pytest.fixture(scope="module")
def found(fork_server):
    """What four gloo processes saw."""
    return fork_server.run_ranks(str(Path(__file__).with_name("divided_worker.py")), 4, [], timeout_seconds=250)[0]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
def test_scores_and_updates_are_those_of_the_whole_batch(found, way):
    for seen in found[way]:
        assert seen["rows"]
        assert seen["stats"]
        assert seen["logp"] == seen["weights"] == 0
        assert seen["one row"] < 1e-12
    assert [seen["given"] for seen in found[way]] == [WAYS[way], 1]
