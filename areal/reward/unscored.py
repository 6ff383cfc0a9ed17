"""The reward of workflows that need none, since their episodes bring their own.

    workflow: environment
    reward: unscored

A run names a reward, so that none is forgotten by mistake; this one says that nothing is to be scored. It raises when a
workflow asks it all the same: a run that expected scores ends with a message instead of training on zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from areal.api import FaultError, FaultKind

if TYPE_CHECKING:
    from collections.abc import Sequence


def unscored_reward(
    prompt: str, completions: str, prompt_ids: Sequence[int], completion_ids: Sequence[int], **data: Any
) -> NoReturn:
    """Raise FaultError(REWARD_INVALID), which is not retried: a workflow asked for a score."""
    del prompt, completions, prompt_ids, completion_ids, data
    raise FaultError(
        FaultKind.REWARD_INVALID,
        "reward 'unscored' gives no scores: name another reward, or a workflow whose episodes bring their own, such as "
        "'environment' without with_reward",
    )
