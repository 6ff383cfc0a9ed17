"""Rewards of the tests of evaluations: they tell samples of an untrained model apart, and fail on purpose."""

from __future__ import annotations


def parity(prompt, completions, prompt_ids, completion_ids, **data):
    """Whether the sum of the sampled ids is odd: about every other sample of a model that knows nothing."""
    return float(sum(completion_ids) % 2)


def refuses_small_products(prompt, completions, prompt_ids, completion_ids, *, answer, **data):
    """Raise for some rows, as a judge would that is not there."""
    if int(answer) < 10:
        raise ValueError(f"no opinion on {answer}")
    return parity(prompt, completions, prompt_ids, completion_ids)
