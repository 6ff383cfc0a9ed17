"""Generation has all of its threads while nothing trains, and a quarter of them while something does."""

import threading

import pytest

from areal.utils.computing import threads_beside_training, training


def counts():
    return [threads_beside_training(wanted) for wanted in (1, 2, 4, 8, 33)]


def test_a_quarter_of_the_threads_and_at_least_one_while_a_batch_is_trained():
    assert counts() == [1, 2, 4, 8, 33]
    with training():
        assert counts() == [1, 1, 1, 2, 8]
    assert counts() == [1, 2, 4, 8, 33]


def test_other_threads_see_it_and_batches_may_overlap():
    found = []
    with training():
        with training():
            thread = threading.Thread(target=lambda: found.append(threads_beside_training(8)))
            thread.start()
            thread.join()
        found.append(threads_beside_training(8))
    assert found == [2, 2]


def test_a_batch_that_fails_gives_the_threads_back():
    with pytest.raises(MemoryError), training():
        raise MemoryError
    assert threads_beside_training(8) == 8
