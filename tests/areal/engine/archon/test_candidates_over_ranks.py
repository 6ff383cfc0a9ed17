"""A teacher over several ranks lists what it lists on one, and a student over several learns the same from it."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(fork_server):
    """What two gloo processes saw."""
    return fork_server.run_ranks(str(Path(__file__).with_name("candidates_worker.py")), 2, [], timeout_seconds=200)[0]


@pytest.mark.parametrize("way", ["dp_shard", "tp", "tp, in pieces", "cp", "pp"])
def test_lists_losses_and_updates_equal_those_of_one_process(found, way):
    assert max(found[way].values()) < 1e-10
