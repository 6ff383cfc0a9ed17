"""The named objectives: one literal table, sorted, one entry per name. Torch-free.

Every preset corrects no train/rollout mismatch unless its paper does: asynchronous runs should set decoupled=True,
correction="tis". Adding a preset: add one entry with its paper, then a golden value to the tests.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

from areal.algorithm import advantages, aggregations, blocks, corrections, surrogates
from areal.algorithm.kl import KL
from areal.algorithm.objective import Objective
from areal.api import ConfigError
from areal.utils.suggest import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A named objective and where it comes from.

    Example: `Preset(paper="DAPO, arXiv 2503.14476", objective=Objective(surrogate=PPO(clip_high=0.28)))`.
    """

    paper: str
    objective: Objective
    note: str = ""
    """What else the paper does that lies outside the loss."""


PRESETS: Final[dict[str, Preset]] = {
    "cispo": Preset(
        paper="MiniMax-M1, arXiv 2506.13585",
        objective=Objective(surrogate=surrogates.CISPO()),
        note="clip_high is relative: the weight is capped at 1 + clip_high",
    ),
    "dapo": Preset(
        paper="DAPO, arXiv 2503.14476",
        objective=Objective(surrogate=surrogates.PPO(clip_low=0.2, clip_high=0.28)),
        note="dynamic sampling belongs to the rollout; overlong shaping to objective.overlong_buffer",
    ),
    "dppo": Preset(paper="DPPO, arXiv 2602.04879", objective=Objective(surrogate=surrogates.DPPO())),
    "drgrpo": Preset(
        paper="Dr.GRPO, arXiv 2503.20783",
        objective=Objective(
            advantage=advantages.DrGRPO(), aggregation=aggregations.SequenceTokenSumNorm(length_norm=1024.0)
        ),
        note="length_norm only scales the loss; set it to the generation budget",
    ),
    "grpo": Preset(
        paper="GRPO, arXiv 2402.03300",
        objective=Objective(aggregation=aggregations.SequenceTokenMean()),
        note="the paper's kl is k3 in the loss with coef 0.04; off here",
    ),
    "gspo": Preset(
        paper="GSPO, arXiv 2507.18071",
        objective=Objective(surrogate=surrogates.GSPO(), aggregation=aggregations.SequenceTokenMean()),
    ),
    "icepop": Preset(paper="IcePop, arXiv 2510.18855", objective=Objective(correction=corrections.IcePop())),
    "kpop": Preset(paper="KPop", objective=Objective(decoupled=True, correction=corrections.KPop())),
    "m2po": Preset(
        paper="M2PO, arXiv 2510.01161",
        objective=Objective(decoupled=True, correction=corrections.M2PO()),
        note="the second moment is that of l_behave - l_prox over the whole step, so that it does not depend on "
        "micro-batches",
    ),
    "maxrl": Preset(paper="MaxRL", objective=Objective(advantage=advantages.MaxRL())),
    "opo": Preset(paper="OPO, arXiv 2505.23585", objective=Objective(advantage=advantages.OPO())),
    "ppo": Preset(
        paper="PPO, arXiv 1707.06347",
        objective=Objective(advantage=advantages.GAE(whiten=True), kl=KL(estimator="k1", place="reward")),
    ),
    "reinforce_pp": Preset(
        paper="REINFORCE++, arXiv 2501.03262",
        objective=Objective(advantage=advantages.ReinforcePP(), kl=KL(estimator="k1", place="reward")),
    ),
    "reinforce_pp_baseline": Preset(
        paper="REINFORCE++-baseline, arXiv 2501.03262",
        objective=Objective(advantage=advantages.ReinforcePPBaseline(), kl=KL(estimator="k2")),
    ),
    "rloo": Preset(
        paper="RLOO, arXiv 2402.14740",
        objective=Objective(
            advantage=advantages.RLOO(),
            aggregation=aggregations.SequenceTokenSum(),
            kl=KL(estimator="k1", place="reward"),
        ),
        note="clipped so that several updates per batch stay near the sampled policy; the first update is the paper's",
    ),
    "sapo": Preset(
        paper="SAPO, arXiv 2511.20347",
        objective=Objective(surrogate=surrogates.SAPO(), aggregation=aggregations.SequenceTokenMean()),
    ),
}


def get_objective(preset: str, **changes: Any) -> Objective:
    """Build the objective that `preset` names, with changes.

    preset: a key of `PRESETS`, e.g. "grpo". changes: fields of `Objective`. A block is given as itself, as a name or
    path, or as a mapping: with a name that class with its defaults and these changes, without a name the preset's block
    with these changes (see `areal.algorithm.blocks`).

    Raises ConfigError (or RegistryError) for an unknown name or field, naming the nearest, and for combinations that
    train on the wrong thing, naming the reason.

    Example: `get_objective("dapo", surrogate={"clip_high": 0.3}, correction=TIS(cap=3.0), decoupled=True)`.
    """
    if preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS)
        raise ConfigError(
            f"unknown objective preset {preset!r}: {f'{hint} ' if hint else ''}known presets are {', '.join(PRESETS)}"
        )
    base = PRESETS[preset].objective
    known = [item.name for item in fields(Objective)]
    for key in changes:
        if key not in known:
            kinds = [kind for kind in blocks.KINDS if key in {item.name for item in fields(getattr(base, kind))}]
            hint = f"did you mean {kinds[0]}.{key}?" if kinds else did_you_mean(key, known)
            raise ConfigError(
                f"{key} is an unknown setting of objective {preset!r}; {f'{hint} ' if hint else ''}known settings are "
                f"{', '.join(known)}"
            )
    settings: dict[str, Any] = {
        key: blocks.make_block(key, value, getattr(base, key)) if key in blocks.KINDS else value
        for key, value in changes.items()
    }
    return replace(base, **settings)


def describe_presets() -> list[dict[str, Any]]:
    """One row per preset, sorted: name, formula, paper, note and all settings; docs and --help are made from it.

    Example row: `{"name": "dapo", "formula": "...", "paper": "DAPO, arXiv 2503.14476", "note": "...", "defaults":
    {"surrogate": {"name": "ppo", "clip_low": 0.2, ...}, ...}}`.
    """
    rows = []
    for name, preset in PRESETS.items():
        objective = preset.objective
        correction = (
            f"; correction: {objective.correction.formula}"
            if not isinstance(objective.correction, corrections.NoCorrection)
            else ""
        )
        formula = (
            f"{objective.advantage.formula}; loss: {objective.surrogate.formula}"
            f"{'; times sg[w]' if objective.decoupled else ''}{correction}; mean: {objective.aggregation.formula}"
        )
        rows.append(
            {
                "name": name,
                "formula": formula,
                "paper": preset.paper,
                "note": preset.note,
                "defaults": objective.describe(),
            }
        )
    return rows
