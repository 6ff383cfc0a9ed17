"""Which rank makes which matrix orthogonal: everything once, work even, nothing sent that need not be."""

import pytest

from areal.engine.train import distributed_muon as matrices
from areal.engine.train.distributed_muon import divide_matrices, rounds_of


def rows_of(shape, ranks):
    """Boxes of a tensor that is split along its first dimension."""
    step = -(-shape[0] // ranks)
    bounds = [(min(rank * step, shape[0]), min((rank + 1) * step, shape[0])) for rank in range(ranks)]
    return [(bound, *((0, size) for size in shape[1:])) for bound in bounds]


def boxes_of(shapes, ranks):
    return [{name: rows_of(shape, ranks)[rank] for name, shape in shapes.items()} for rank in range(ranks)]


def test_every_matrix_has_one_owner_and_work_is_even():
    shapes = {f"layers.{number}.weight": (32, 16) for number in range(8)} | {"wide": (32, 128)}
    divided = divide_matrices(shapes, boxes_of(shapes, 4))
    assert [matrix.name for matrix in divided] == list(shapes)
    owned = [sum(matrix.owner == rank for matrix in divided if matrix.name != "wide") for rank in range(4)]
    wide = divided[-1].owner
    assert owned[wide] == min(owned)
    assert sum(owned) == 8
    assert max(owned) - min(count for rank, count in enumerate(owned) if rank != wide) <= 1
    for matrix in divided:
        assert sorted(part.rank for part in matrix.parts) == [0, 1, 2, 3]
        assert sum(part.num_values for part in matrix.parts if part.is_sender) == matrix.shape[0] * matrix.shape[1]


def test_experts_are_computed_where_they_are():
    shapes = {"mlp.experts.up_proj": (6, 8, 4)}
    divided = divide_matrices(shapes, boxes_of(shapes, 3))
    assert [(matrix.index, matrix.owner) for matrix in divided] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert not any(matrix.travels for matrix in divided)


def test_of_copies_one_is_sent_and_all_get_the_result():
    shapes = {"weight": (8, 4)}
    half, other = ((0, 4), (0, 4)), ((4, 8), (0, 4))
    (matrix,) = divide_matrices(shapes, [{"weight": box} for box in (half, other, half, other)])
    assert len(matrix.parts) == 4
    senders = [part for part in matrix.parts if part.is_sender]
    assert [(part.rows.start, part.rows.stop) for part in senders] == [(0, 4), (4, 8)]
    assert matrix.owner in {part.rank for part in senders}


def test_ranks_without_any_of_a_small_matrix_have_no_part_in_it():
    shapes = {"weight": (3, 5)}
    (matrix,) = divide_matrices(shapes, boxes_of(shapes, 8))
    assert [part.rank for part in matrix.parts] == [0, 1, 2]


@pytest.mark.parametrize("limit", [1, 600, 10**9])
def test_rounds_hold_a_few_matrices_of_each_owner(monkeypatch, limit):
    monkeypatch.setattr(matrices, "ROUND_SIZE", limit)
    shapes = {f"layers.{number}.weight": (16, 16) for number in range(9)}
    divided = divide_matrices(shapes, boxes_of(shapes, 2))
    rounds = rounds_of(divided)
    assert sorted(matrix.name for found in rounds for matrix in found) == sorted(shapes)
    for found in rounds:
        for rank in range(2):
            values = [matrix.shape[0] * matrix.shape[1] for matrix in found if matrix.owner == rank]
            assert len(values) <= 1 or sum(values) <= limit
    assert len(rounds) == {1: 5, 600: 3, 10**9: 1}[limit]
