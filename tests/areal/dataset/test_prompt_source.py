"""Data order: a pure function of the ordinal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal.dataset.loading import ShuffledRows

ROWS = [{"id": index} for index in range(7)]


def test_each_epoch_visits_every_row_once_in_its_own_order():
    source = ShuffledRows(ROWS, seed=1)
    epochs = [[source.row(epoch * 7 + position)["id"] for position in range(7)] for epoch in range(6)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 6


@given(st.lists(st.integers(0, 200), max_size=40), st.integers(0, 5))
def test_a_row_does_not_depend_on_what_was_asked_before(ordinals, seed):
    used = ShuffledRows(ROWS, seed=seed)
    assert [used.row(n) for n in ordinals] == [ShuffledRows(ROWS, seed=seed).row(n) for n in ordinals]


def test_the_order_is_the_same_on_every_machine():
    source = ShuffledRows(ROWS, seed=3)
    assert [source.row_index(ordinal) for ordinal in range(14)] == [6, 0, 5, 4, 2, 1, 3, 1, 6, 4, 5, 0, 2, 3]


def test_seeds_differ_and_unshuffled_rows_repeat_in_file_order():
    orders = {tuple(ShuffledRows(ROWS, seed=seed).row_index(n) for n in range(7)) for seed in range(8)}
    assert len(orders) == 8
    plain = ShuffledRows(ROWS, seed=1, shuffle=False)
    assert [plain.row_index(n) for n in range(9)] == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert len(plain) == 7


def test_nothing_to_visit_and_negative_ordinals_are_errors():
    with pytest.raises(ValueError, match="no rows to visit"):
        ShuffledRows([], seed=1)
    with pytest.raises(IndexError, match="expected >= 0"):
        ShuffledRows(ROWS, seed=1).row(-1)
