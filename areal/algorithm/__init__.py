"""The mathematics of RL post-training: pure functions on padded `[batch, seq]` tensors. No engines, no I/O, no
randomness.

    from areal.algorithm import get_objective
    from areal.algorithm.corrections import TIS

    objective = get_objective("grpo", surrogate={"clip_high": 0.28}, decoupled=True, correction=TIS(cap=2.0))
    advantages = objective.advantages(batch.rewards, batch.groups, mask=batch.loss_mask).advantages
    denominators = objective.denominators(mask=batch.loss_mask, groups=batch.groups)     # of the whole optimizer step
    output = objective.loss(logp, logp_prox=..., logp_behave=..., advantages=..., mask=..., denominators=denominators)

Conventions, everywhere: the value belongs to the token; mask is 1 only on tokens the policy sampled; masked positions
may hold anything, NaN included; every mean divides by counts of the *whole* step (`Denominators`), so that
micro-batches add up.

Read in this order: objective (composition), then its blocks, each a class with fields, formula, source and computation:
surrogates, corrections, advantages, aggregations, kl; registry (names), blocks (from a configuration), tokens (sums,
ratios and metrics on the mask). Beside them: supervised, preference, packing.

Importing this package does not import torch; computing does.
"""

from __future__ import annotations

from areal.algorithm.objective import PRESETS, Objective, describe_presets, get_objective

__all__ = ["PRESETS", "Objective", "describe_presets", "get_objective"]
