"""How rows are divided among data ranks and cut into micro-batches: every row once, groups whole when asked, balanced,
the same on every rank."""

from dataclasses import replace

import torch
from hypothesis import given
from hypothesis import strategies as st

from areal.algorithm.packing import select
from areal.api import PaddedBatch
from areal.engine.train.packing import Beginnings, Cutter, divide_rows, lay_out
from areal.engine.train.passes import predicted_tokens

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
    micro = Cutter(batch).cut_all(budget, divided)
    assert len({len(parts_of_rank) for parts_of_rank in micro}) == 1
    for rows_of_rank, cut in zip(divided, micro, strict=True):
        assert sorted(row for part in cut for row in part) == rows_of_rank
        assert all(len(part) == 1 or sum(lengths[row] for row in part) <= budget for part in cut if part)


# Rows of a prompt and an answer each: which prompt, whether it is the long one, the length of the answer.
ANSWERS = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 9)), min_size=1, max_size=16)


def answers_of(rows):
    """Prompts of 12 and of 3 tokens, which are equal in equal groups."""
    prompts = [[group] * (12 if long else 3) for group, long, _ in rows]
    batch = batch_of([len(prompt) + answer for prompt, (*_, answer) in zip(prompts, rows, strict=True)],
                     [group for group, *_ in rows])  # fmt: skip
    batch = replace(batch, tokens=batch.tokens.clone(), loss_mask=batch.loss_mask.clone())
    for row, (prompt, length) in enumerate(zip(prompts, batch.lengths.tolist(), strict=True)):
        batch.tokens[row, : len(prompt)] = torch.tensor(prompt)
        batch.loss_mask[row, len(prompt) : length] = 1
    return batch


@given(rows=ANSWERS, budget=st.integers(1, 120))
def test_a_micro_batch_holds_as_many_tokens_as_go_through_the_model(rows, budget):
    batch = answers_of(rows)
    cutter = Cutter(batch, Beginnings.of(batch))
    parts, alone = cutter.cut(budget), Cutter(batch).cut(budget)
    assert sorted(row for part in parts for row in part) == list(range(len(rows)))
    for part in parts:
        piece = select(batch, part)
        laid_out = lay_out(piece, predicted_tokens(piece, only_masked=False))
        # The last token of a row is not laid out. Where little can be shared nothing is, and a tenth is exceeded.
        assert len(laid_out.tokens) <= cutter.count(part) <= len(laid_out.tokens) + len(part)
        assert len(part) == 1 or cutter.count(part) <= budget / 0.9
    assert sum(map(cutter.count, parts)) <= sum(int(batch.lengths[part].sum()) for part in alone)


def test_a_prompt_counts_once_in_each_micro_batch_that_has_it():
    batch = answers_of([(0, True, 4)] * 8)
    cutter = Cutter(batch, Beginnings.of(batch))
    assert cutter.count(range(8)) == 12 + 8 * 4
    assert cutter.cut(44) == [list(range(8))]
    assert list(map(len, cutter.cut(12 + 3 * 4))) == [3, 3, 2]
    assert list(map(len, Cutter(batch).cut(12 + 3 * 4))) == [1] * 8


def test_only_rows_of_one_group_with_the_same_beginning_count_as_sharing_it():
    batch = answers_of([(0, True, 4), (0, False, 4), (1, True, 4), (1, True, 4)])
    assert Beginnings.of(batch).rows.tolist() == [0, 1, 2, 2]
    apart = replace(batch, groups=torch.arange(4))
    assert Beginnings.of(apart).rows.tolist() == [0, 1, 2, 3]
