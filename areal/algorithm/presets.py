"""The named objectives: one literal table, sorted, one entry per name. Torch-free.

A preset changes defaults of `ObjectiveSpec` and nothing else; anything it says can be overridden. Every preset corrects
no train/rollout mismatch unless its paper does: asynchronous runs should set decoupled=True, correction="tis".

Adding a preset: add one entry with its paper, then a golden value to the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from areal.algorithm import catalog
from areal.algorithm.spec import ObjectiveSpec
from areal.api import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A name, what it stands for, and the settings that make it.

    Example: `Preset(paper="DAPO, arXiv 2503.14476", settings={"advantage": "grpo", "clip_high": 0.28})`.
    """

    paper: str
    settings: Mapping[str, Any]
    note: str = ""
    """What else the paper does that lies outside the loss."""


PRESETS: Final[dict[str, Preset]] = {
    "cispo": Preset(
        paper="MiniMax-M1, arXiv 2506.13585",
        settings={"advantage": "grpo", "surrogate": "cispo"},
        note="clip_high is relative: the weight is capped at 1 + clip_high",
    ),
    "dapo": Preset(
        paper="DAPO, arXiv 2503.14476",
        settings={"advantage": "grpo", "clip_low": 0.2, "clip_high": 0.28},
        note="dynamic sampling belongs to the rollout; overlong shaping to areal.algorithm.reward_shaping",
    ),
    "dppo": Preset(paper="DPPO, arXiv 2602.04879", settings={"advantage": "grpo", "surrogate": "dppo"}),
    "drgrpo": Preset(
        paper="Dr.GRPO, arXiv 2503.20783",
        settings={"advantage": "drgrpo", "aggregation": "seq-mean-token-sum-norm", "length_norm": 1024.0},
        note="length_norm only scales the loss; set it to the generation budget",
    ),
    "grpo": Preset(
        paper="GRPO, arXiv 2402.03300",
        settings={"advantage": "grpo", "aggregation": "seq-mean-token-mean"},
        note="the paper's kl is k3 in the loss with kl_coef 0.04; off here",
    ),
    "gspo": Preset(
        paper="GSPO, arXiv 2507.18071",
        settings={"advantage": "grpo", "surrogate": "gspo", "aggregation": "seq-mean-token-mean"},
    ),
    "icepop": Preset(paper="IcePop, arXiv 2510.18855", settings={"advantage": "grpo", "correction": "icepop"}),
    "kpop": Preset(paper="KPop", settings={"advantage": "grpo", "decoupled": True, "correction": "kpop"}),
    "m2po": Preset(
        paper="M2PO, arXiv 2510.01161",
        settings={"advantage": "grpo", "decoupled": True, "correction": "m2po"},
        note="the second moment is that of l_behave - l_prox over the whole step, so that it does not depend on "
        "micro-batches",
    ),
    "maxrl": Preset(paper="MaxRL", settings={"advantage": "maxrl"}),
    "opo": Preset(paper="OPO, arXiv 2505.23585", settings={"advantage": "opo"}),
    "ppo": Preset(
        paper="PPO, arXiv 1707.06347",
        settings={"advantage": "gae", "advantage_params": {"whiten": True}, "kl": "k1", "kl_place": "reward"},
    ),
    "reinforce_pp": Preset(
        paper="REINFORCE++, arXiv 2501.03262", settings={"advantage": "reinforce_pp", "kl": "k1", "kl_place": "reward"}
    ),
    "reinforce_pp_baseline": Preset(
        paper="REINFORCE++-baseline, arXiv 2501.03262", settings={"advantage": "reinforce_pp_baseline", "kl": "k2"}
    ),
    "rloo": Preset(
        paper="RLOO, arXiv 2402.14740",
        settings={"advantage": "rloo", "aggregation": "seq-mean-token-sum", "kl": "k1", "kl_place": "reward"},
        note="clipped so that several updates per batch stay near the sampled policy; the first update is the paper's",
    ),
    "sapo": Preset(
        paper="SAPO, arXiv 2511.20347",
        settings={"advantage": "grpo", "surrogate": "sapo", "aggregation": "seq-mean-token-mean"},
    ),
}


def resolve(preset: str, overrides: Mapping[str, Any]) -> ObjectiveSpec:
    """Settings of `preset` with `overrides` on top.

    `advantage_params` is merged into the preset's; `advantage_std` is short for its key "std". Overriding a block
    (advantage, surrogate, aggregation, correction) drops the preset's settings of the old block. Raises ConfigError.
    """
    if preset not in PRESETS:
        raise ConfigError(catalog.nearest("objective preset", preset, PRESETS))
    known = {item.name for item in fields(ObjectiveSpec)} | {"advantage_std"}
    for key in overrides:
        if key not in known:
            raise ConfigError(catalog.nearest(f"override of objective {preset!r},", key, frozenset(known)))
    settings = dict(PRESETS[preset].settings)
    changes = dict(overrides)
    _drop_settings_of_replaced_blocks(settings, changes)
    given = changes.pop("advantage_params", None)
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"objective: advantage_params is {given!r}, expected a mapping such as {{eps: 0.0001}}")
    params = {**settings.pop("advantage_params", {}), **(given or {})}
    if "advantage_std" in changes:
        params["std"] = changes.pop("advantage_std")
    return ObjectiveSpec(**{**settings, **changes, "advantage_params": params})


def _drop_settings_of_replaced_blocks(settings: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """What a preset says about its own block means nothing to another one (e.g. DAPO's clip_high to sapo)."""
    for kind, table in (("surrogate", catalog.SURROGATES), ("correction", catalog.CORRECTIONS)):
        if kind in changes and changes[kind] != settings.get(kind, "ppo" if kind == "surrogate" else "none"):
            owned = {name for entry in table.values() for name in entry.defaults}
            for name in owned & settings.keys():
                del settings[name]
    if changes.get("advantage", settings["advantage"]) != settings["advantage"]:
        settings.pop("advantage_params", None)
    if changes.get("aggregation", settings.get("aggregation")) != settings.get("aggregation"):
        settings.pop("length_norm", None)


def describe_presets() -> list[dict[str, Any]]:
    """One row per preset, sorted: name, formula, paper, note and all resolved defaults; docs and --help are made from
    it.

    Example row: `{"name": "dapo", "formula": "...", "paper": "DAPO, arXiv 2503.14476", "note": "...", "defaults":
    {...}}`.
    """
    rows = []
    for name, preset in sorted(PRESETS.items()):
        spec = resolve(name, {})
        correction = (
            "" if spec.correction == "none" else f"; correction: {catalog.CORRECTIONS[spec.correction].formula}"
        )
        formula = (
            f"{catalog.ADVANTAGES[spec.advantage].formula}; loss: {catalog.SURROGATES[spec.surrogate].formula}"
            f"{'; times sg[w]' if spec.decoupled else ''}{correction}; mean: "
            f"{catalog.AGGREGATIONS[spec.aggregation].formula}"
        )
        rows.append(
            {"name": name, "formula": formula, "paper": preset.paper, "note": preset.note, "defaults": spec.describe()}
        )
    return rows
