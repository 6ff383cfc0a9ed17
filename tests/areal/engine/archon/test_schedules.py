"""Orders of passes in a pipeline: which pieces are where, how long ranks wait, and what they hold meanwhile."""

import pytest

from areal.api import ConfigError
from areal.engine.archon.planning.timeline import timeline
from areal.models.parallel.schedules import SCHEDULES, pipeline_layout


def test_every_piece_is_on_one_rank():
    for name in SCHEDULES:
        for ranks, pieces in ((1, 1), (2, 2), (4, 3)):
            layout = pipeline_layout(name, ranks, pieces)
            found = [piece for rank in range(ranks) for piece in layout.pieces_of(rank)]
            assert sorted(found) == list(range(layout.num_pieces))
            assert layout.num_pieces - 1 in layout.pieces_of(layout.last_rank)


def test_pieces_go_round_or_there_and_back():
    assert pipeline_layout("Interleaved1F1B", 2, 3).pieces_of(1) == (1, 3, 5)
    assert pipeline_layout("ZBVZeroBubble", 3, 5).pieces_of(0) == (0, 5)


@pytest.mark.parametrize(
    ("ranks", "micro_batches"), [(2, 2), (4, 8), pytest.param(8, 32, marks=pytest.mark.exhaustive)]
)
def test_ranks_wait_as_long_as_the_papers_say(ranks, micro_batches):
    def idle(name, pieces=2):
        return timeline(pipeline_layout(name, ranks, pieces), micro_batches).idle_share

    for name in ("1F1B", "GPipe"):
        assert idle(name) == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))
    for pieces in (2, 3):
        assert idle("Interleaved1F1B", pieces) == pytest.approx((ranks - 1) / (pieces * micro_batches + ranks - 1))
    # With as many micro-batches as twice the ranks, only starting up is left: a forward pass for each rank on the way.
    if micro_batches >= 2 * ranks:
        assert idle("ZBVZeroBubble") == pytest.approx((ranks - 1) / (6 * micro_batches + ranks - 1))
    assert idle("InterleavedZeroBubble") < idle("Interleaved1F1B") < idle("1F1B")


def test_activations_that_are_held_at_once():
    held = {name: timeline(pipeline_layout(name, 4, 2), 16).held for name in SCHEDULES}
    assert (held["1F1B"], held["GPipe"]) == (4, 16)
    # Of halves of what 1F1B holds: as much as that, with nearly no waiting.
    assert held["ZBVZeroBubble"] == 2 * held["1F1B"]


def test_blank_micro_batches_are_idle_time():
    one, two = (timeline(pipeline_layout("1F1B", 2, 1), number).idle_share for number in (1, 2))
    assert 1 - one == pytest.approx((1 - two) / 2)


def test_unknown_schedules_and_pieces_are_refused():
    with pytest.raises(ConfigError, match="expected one of 1F1B, GPipe"):
        pipeline_layout("2F2B", 2, 2)
    with pytest.raises(ConfigError, match="pp_pieces is 0"):
        pipeline_layout("1F1B", 2, 0)
