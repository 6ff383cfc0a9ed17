"""The reward of workflows that need none refuses to score."""

from __future__ import annotations

import pytest

from areal.api import FaultError, FaultKind
from areal.reward.unscored import unscored_reward


def test_a_workflow_that_asks_for_a_score_gets_a_fault_that_is_not_retried():
    with pytest.raises(FaultError, match="gives no scores") as caught:
        unscored_reward("1+1=", "2", [1], [2], answer="2")

    assert caught.value.kind is FaultKind.REWARD_INVALID
    assert not caught.value.kind.retryable
