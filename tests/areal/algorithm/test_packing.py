"""Batches keep every value through collate, select, pack and unpack, and are cut into fair parts."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal.algorithm import packing
from areal.api import NO_VERSION, DataError, StopReason, Trajectory


def trajectory(length: int, *, group: int = 0, stop: StopReason = StopReason.STOP) -> Trajectory:
    """One prompt token, then sampled tokens; every value is different."""
    return Trajectory(
        tokens=[100 * length + index for index in range(length)],
        loss_mask=[0] + [1] * (length - 1),
        logprobs=[0.0] + [-0.1 * index for index in range(1, length)],
        versions=[NO_VERSION] + [3] * (length - 1),
        turn_ids=[NO_VERSION] + [0] * (length - 1),
        reward=float(length),
        stop_reason=stop,
        group_id=group,
    )


def test_collate_pads_on_the_right_and_marks_padding():
    batch = packing.collate([trajectory(2, group=7), trajectory(4, group=9, stop=StopReason.LENGTH)], pad_token=55)

    assert batch.tokens.tolist() == [[200, 201, 55, 55], [400, 401, 402, 403]]
    assert batch.lengths.tolist() == [2, 4]
    assert batch.loss_mask.tolist() == [[0, 1, 0, 0], [0, 1, 1, 1]]
    assert batch.versions.tolist() == [[-1, 3, -1, -1], [-1, 3, 3, 3]]
    assert batch.turn_ids.tolist() == [[-1, 0, -1, -1], [-1, 0, 0, 0]]
    torch.testing.assert_close(batch.logp_behave, torch.tensor([[0, -0.1, 0, 0], [0, -0.1, -0.2, -0.3]]))
    assert batch.rewards.tolist() == [2, 4]
    assert batch.groups.tolist() == [7, 9]
    assert batch.truncated.tolist() == [False, True]
    assert {batch.tokens.dtype, batch.lengths.dtype, batch.groups.dtype} == {torch.int64}
    assert {batch.loss_mask.dtype, batch.logp_behave.dtype, batch.rewards.dtype} == {torch.float32}


def test_collate_refuses_nothing_and_empty_trajectories():
    with pytest.raises(DataError, match="at least one"):
        packing.collate([])
    with pytest.raises(DataError, match=r"\[1\] have no tokens"):
        packing.collate(
            [trajectory(2), replace(trajectory(1), tokens=[], loss_mask=[], logprobs=[], versions=[], turn_ids=[])]
        )


@pytest.mark.parametrize("name", ["loss_mask", "logprobs", "versions", "turn_ids"])
def test_collate_refuses_lists_that_were_changed_in_place_rather_than_shift_rows(name):
    rows = [trajectory(3), trajectory(4), trajectory(5)]
    getattr(rows[1], name).append(0)
    getattr(rows[2], name).pop()  # the total is as before

    with pytest.raises(DataError, match="trajectory 1 has 5 entries in a list per token for 4 tokens"):
        packing.collate(rows)


def test_select_trims_to_the_longest_row_and_keeps_every_optional_field():
    batch = packing.collate([trajectory(5), trajectory(2, group=1), trajectory(3, group=2)])
    numbers = torch.arange(15, dtype=torch.float32).view(3, 5)
    optional = {
        "logp_prox": numbers,
        "logp_ref": numbers + 1,
        "values": numbers + 2,
        "advantages": numbers + 3,
        "returns": numbers + 4,
        "turn_rewards": numbers + 5,
        "routes": numbers.to(torch.uint8)[..., None, None],
    }
    batch = replace(batch, samples=torch.tensor([0, 1, 1]))

    full = packing.select(replace(batch, **optional), [2, 1])
    bare = packing.select(batch, torch.tensor([2, 1]))

    assert full.tokens.tolist() == [[300, 301, 302], [200, 201, 0]]
    assert full.groups.tolist() == [2, 1]
    for name, tensor in optional.items():
        assert torch.equal(getattr(full, name), tensor[[2, 1], :3]), name
        assert getattr(bare, name) is None
    assert full.samples.tolist() == [1, 1]
    assert all(getattr(full, item.name).shape[0] == 2 for item in fields(full) if item.name != "images")


def test_pack_lays_sequences_end_to_end():
    packed = packing.pack(packing.collate([trajectory(3), trajectory(2)]))

    assert packed.tokens.tolist() == [300, 301, 302, 200, 201]
    assert packed.positions.tolist() == [0, 1, 2, 0, 1]
    assert packed.cu_seqlens.tolist() == [0, 3, 5]
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.max_seqlen == 3


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=8), extra=st.integers(0, 3))
def test_unpack_is_the_differentiable_inverse_of_pack(lengths, extra):
    sizes = torch.tensor(lengths)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).int()
    values = torch.arange(1.0, int(sizes.sum()) + 1).requires_grad_()
    width = max(lengths) + extra

    padded = packing.unpack(values, cu_seqlens, width)
    (padded * 2).sum().backward()

    assert padded.shape == (len(lengths), width)
    assert torch.equal(packing.pack_values(padded, sizes), values)
    assert (padded != 0).sum() == sizes.sum()
    assert torch.equal(values.grad, torch.full_like(values, 2.0))


def test_unpack_carries_further_dimensions_and_refuses_what_does_not_fit():
    values = torch.arange(6.0).view(3, 2)

    assert packing.unpack(values, torch.tensor([0, 1, 3]), fill=-1.0).tolist() == [[[0, 1], [-1, -1]], [[2, 3], [4, 5]]]
    with pytest.raises(DataError, match="width 1"):
        packing.unpack(values, torch.tensor([0, 1, 3]), 1)
    with pytest.raises(DataError, match="ending at 4"):
        packing.unpack(values, torch.tensor([0, 1, 4]))


@given(lengths=st.lists(st.integers(1, 40), max_size=40), max_tokens=st.integers(1, 60))
def test_micro_batches_hold_every_sequence_once_within_the_budget(lengths, max_tokens):
    parts = packing.micro_batches(lengths, max_tokens)

    assert sorted(index for part in parts for index in part) == list(range(len(lengths)))
    assert all(len(part) == 1 or sum(lengths[index] for index in part) <= max_tokens for part in parts)
    assert parts == packing.micro_batches(list(lengths), max_tokens)
    # No two parts could be one: first-fit-decreasing never leaves that, and balancing keeps the number of parts.
    assert len(parts) <= max(1, 2 * sum(lengths) // max_tokens + 1)


def test_micro_batches_are_balanced_when_the_budget_allows():
    lengths = [8, 7, 6, 5, 4, 2]

    parts = packing.micro_batches(lengths, 20)

    # First-fit-decreasing alone fills the first one to the brim: 20 and 12.
    assert sorted(sum(lengths[index] for index in part) for part in parts) == [15, 17]


def test_a_tight_budget_keeps_the_first_fit_where_balancing_would_overflow():
    lengths = [6, 5, 5, 4, 4]

    parts = packing.micro_batches(lengths, 14)

    assert [sum(lengths[index] for index in part) for part in parts] == [11, 13]
    assert packing.micro_batches([6, 4, 4, 3, 3], 10) == [[0, 1], [2, 3, 4]]


def test_a_sequence_longer_than_the_budget_is_alone():
    assert packing.micro_batches([3, 50, 2], 10) == [[0, 2], [1]]
    with pytest.raises(ValueError, match="at least 1"):
        packing.micro_batches([1], 0)


@given(groups=st.lists(st.integers(-3, 6), min_size=1, max_size=30), parts=st.integers(1, 5))
def test_split_groups_never_splits_a_group_and_is_fair(groups, parts):
    if parts > len(set(groups)):
        with pytest.raises(ValueError, match="at least one group"):
            packing.split_groups(torch.tensor(groups), parts)
        return

    split = packing.split_groups(torch.tensor(groups), parts)

    members = [{groups[index] for index in part} for part in split]
    assert sorted(index for part in split for index in part) == list(range(len(groups)))
    assert sum(len(part) for part in members) == len(set(groups))
    assert max(map(len, members)) - min(map(len, members)) <= 1
    assert split == packing.split_groups(groups, parts)


def branch(*masked: int, index: int = 0, group: int = 4, rewards: dict[int, float] | None = None) -> Trajectory:
    """Token 0 of a prompt, then one sampled token per turn; `masked` turns are another trajectory's."""
    turns = [NO_VERSION if turn in masked else turn for turn in range(3)]
    return Trajectory(
        tokens=[9, 10, 11, 12],
        loss_mask=[0] + [int(turn >= 0) for turn in turns],
        logprobs=[0.0] * 4,
        versions=[NO_VERSION] + [0 if turn >= 0 else NO_VERSION for turn in turns],
        turn_ids=[NO_VERSION, *turns],
        reward=1.0,
        turn_rewards=rewards or {},
        stop_reason=StopReason.STOP,
        group_id=group,
        sample_index=index,
    )


def test_rewards_of_turns_lie_on_the_last_sampled_token_of_their_turn():
    long = replace(branch(), loss_mask=[0, 1, 1, 1], turn_ids=[NO_VERSION, 0, 0, 1], turn_rewards={0: 0.5, 1: -2.0})

    batch = packing.collate([long, branch(index=1)])

    assert batch.turn_rewards.tolist() == [[0.0, 0.0, 0.5, -2.0], [0.0] * 4]
    assert long.total_reward == -0.5
    assert packing.collate([branch()]).turn_rewards is None


def test_trajectories_of_one_sample_share_a_number_when_they_are_asked_for():
    rows = [branch(2), branch(0, 1), branch(index=1), branch(group=-1), branch(group=-1)]

    assert packing.collate(rows, with_samples=True).samples.tolist() == [0, 0, 1, 2, 3]
    assert packing.collate(rows).samples is None
    assert packing.collate(rows[1:], with_samples=True).samples is None, "every row is a sample"


@pytest.mark.parametrize("rewards", [{3: 1.0}, {0: float("nan")}])
def test_a_turn_reward_without_a_token_or_a_number_is_refused(rewards):
    with pytest.raises(ValueError, match="turn"):
        branch(rewards=rewards)


def test_a_turn_that_is_masked_context_carries_no_reward():
    with pytest.raises(ValueError, match="no sampled token"):
        branch(0, rewards={0: 1.0})
