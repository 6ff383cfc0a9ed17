"""How rows are divided among data ranks: every row once, groups whole when asked, balanced, the same on every rank."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from areal.api import PaddedBatch
from areal.engine.train.packing import cuts_of, divide_rows

ROWS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=20)


def batch_of(lengths, groups):
    """Zeros everywhere but in lengths and groups."""
    rows, width = len(lengths), max(lengths)
    zeros, ids = torch.zeros(rows, width), torch.zeros(rows, width, dtype=torch.int64)
    return PaddedBatch(
        tokens=ids,
        lengths=torch.tensor(lengths),
        loss_mask=zeros,
        logp_behave=zeros,
        versions=ids,
        turn_ids=ids,
        rewards=torch.zeros(rows),
        groups=torch.tensor(groups),
        truncated=torch.zeros(rows, dtype=torch.bool),
    )


@given(rows=ROWS, parts=st.integers(1, 6), keep_groups=st.booleans())
def test_every_row_is_on_one_rank_and_groups_stay_whole_when_asked(rows, parts, keep_groups):
    lengths, groups = zip(*rows, strict=True)
    divided = divide_rows(batch_of(lengths, groups), parts, keep_groups=keep_groups)
    assert len(divided) == parts
    assert sorted(row for rows in divided for row in rows) == list(range(len(lengths)))
    owners = {group: {rank for rank, rows in enumerate(divided) for row in rows if groups[row] == group}
              for group in groups}  # fmt: skip
    assert not keep_groups or all(len(ranks) == 1 for ranks in owners.values())
    loads = [sum(lengths[row] for row in rows) for rows in divided]
    units = [sum(length for length, other in rows if other == group) for group in set(groups)]
    assert max(loads) - min(loads) <= (max(units) if keep_groups else max(lengths))


def test_ties_go_to_the_lower_rank_and_the_earlier_row():
    assert divide_rows(batch_of([5, 5, 5, 5], [0, 1, 2, 3]), 2, keep_groups=False) == [[0, 2], [1, 3]]
    assert divide_rows(batch_of([1, 2, 3, 4], [9, 9, 7, 7]), 3, keep_groups=True) == [[2, 3], [0, 1], []]


@given(rows=ROWS, parts=st.integers(1, 4), budget=st.integers(1, 60))
def test_all_ranks_run_the_same_number_of_micro_batches_within_the_budget(rows, parts, budget):
    lengths, groups = zip(*rows, strict=True)
    batch = batch_of(lengths, groups)
    divided = divide_rows(batch, parts, keep_groups=True)
    micro = cuts_of(batch, divided, budget)
    assert len({len(parts_of_rank) for parts_of_rank in micro}) == 1
    for rows_of_rank, cut in zip(divided, micro, strict=True):
        assert sorted(row for part in cut for row in part) == rows_of_rank
        assert all(len(part) == 1 or sum(lengths[row] for row in part) <= budget for part in cut if part)
