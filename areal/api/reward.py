"""Contract of a reward function: plain, synchronous, picklable, and honest about failure."""

from __future__ import annotations

from typing import Any, Protocol


class RewardFunction(Protocol):
    """`(prompt, completions, prompt_ids, completion_ids, **data) -> float`.

    prompt: the prompt as text. completions: the model's answer as text. prompt_ids, completion_ids: their token ids.
    data: the remaining columns of the dataset row (e.g. answer="72").

    Returns a finite number (bool counts as 0/1). A failure raises: an exception is a fault that is counted and whose
    sample is left out, never a score of 0. It runs in a worker process that is killed at the time limit.

    Example: `def exact(prompt, completions, prompt_ids, completion_ids, *, answer, **data): return float(completions
    == answer)`
    """

    def __call__(
        self, prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], /, **data: Any
    ) -> float:
        """Score one completion."""
        ...
