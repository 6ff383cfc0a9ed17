"""The mathematics of RL post-training: pure functions on padded `[batch, seq]` tensors. No engines, no I/O, no
randomness.

    from areal.algorithm import get_objective

    objective = get_objective("grpo", clip_high=0.28, decoupled=True, correction="tis")
    advantages = objective.advantages(batch.rewards, batch.groups, mask=batch.loss_mask)
    denominators = objective.denominators(mask=batch.loss_mask, groups=batch.groups)     # of the whole optimizer step
    output = objective.loss(logp, logp_prox=..., logp_behave=..., advantages=..., mask=..., denominators=denominators)

Conventions, everywhere: the value belongs to the token; mask is 1 only on tokens the policy sampled; masked positions
may hold anything, NaN included; every mean divides by counts of the *whole* step (`Denominators`), so that
micro-batches add up.

Read in this order: catalog (names, defaults, formulas), presets, spec (what may be combined), aggregate, surrogates,
corrections, kl, objective (composition), advantages, gae. Beside them: critic, sft, preference_spec and preference,
reward_shaping, packing, metrics.

Importing this package does not import torch; `get_objective` does when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.algorithm.presets import PRESETS, describe_presets

if TYPE_CHECKING:
    from areal.algorithm.objective import Objective

__all__ = ["PRESETS", "describe_presets", "get_objective"]


def get_objective(preset: str, **overrides: Any) -> Objective:
    """Build the objective that `preset` names, with flat overrides.

    preset: a key of `PRESETS`, e.g. "grpo". overrides: fields of `areal.algorithm.spec.ObjectiveSpec`, plus
    `advantage_std`.

    Raises ConfigError for an unknown preset or override (naming the nearest) and for combinations that train on the
    wrong thing (naming the reason).

    Example: `get_objective("ppo", decoupled=True, correction="tis", correction_high=2.0)`.
    """
    # Not at the top: the tables above are read by `areal list objectives` and the docs, where torch would cost seconds.
    from areal.algorithm.objective import Objective
    from areal.algorithm.presets import resolve

    return Objective(preset=preset, spec=resolve(preset, overrides))
