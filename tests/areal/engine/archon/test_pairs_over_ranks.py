"""Learning from pairs over several ranks is what it is on one: pairs stay together, losses and updates are equal."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(fork_server):
    """What two gloo processes saw."""
    return fork_server.run_ranks(str(Path(__file__).with_name("pairs_worker.py")), 2, [], timeout_seconds=200)[0]


@pytest.mark.parametrize("way", ["dp_shard", "dp_shard, groups may part", "tp"])
@pytest.mark.parametrize("kind", ["preference", "reward model"])
def test_loss_update_and_metrics_equal_those_of_one_process(found, kind, way):
    assert max(found[kind][way].values()) < 1e-10


@pytest.mark.parametrize(("kind", "way"), [("preference", "tp"), ("reward model", "dp_shard")])
def test_adapters_learn_from_pairs_what_they_learn_on_one_process(found, kind, way):
    assert max(found[f"{kind} with adapters"][way].values()) < 1e-10
