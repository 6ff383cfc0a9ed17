"""Names, overrides and refused combinations: every message says what is wrong and what to do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from areal.algorithm import PRESETS, describe_presets, get_objective
from areal.algorithm.catalog import ADVANTAGES, AGGREGATIONS, CORRECTIONS, KL_KINDS, SURROGATES
from areal.api import ConfigError

REQUIRED = {
    "cispo",
    "dapo",
    "dppo",
    "drgrpo",
    "grpo",
    "gspo",
    "icepop",
    "kpop",
    "m2po",
    "maxrl",
    "opo",
    "ppo",
    "reinforce_pp",
    "rloo",
    "sapo",
}


def test_all_promised_presets_exist_and_describe_themselves():
    rows = describe_presets()

    assert {row["name"] for row in rows} >= REQUIRED
    assert [row["name"] for row in rows] == sorted(PRESETS)
    assert all(row["formula"] and row["paper"] and row["defaults"] for row in rows)
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.parametrize("table", [PRESETS, ADVANTAGES, AGGREGATIONS, CORRECTIONS, KL_KINDS, SURROGATES])
def test_tables_are_sorted_so_that_additions_do_not_collide(table):
    assert list(table) == sorted(table)


def test_presets_can_be_listed_without_loading_torch():
    program = "import sys, areal.algorithm as a; a.describe_presets(); sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_describe_reports_every_setting_that_has_an_effect():
    report = get_objective("grpo", clip_high=0.28, decoupled=True, correction="tis").describe()

    assert report["preset"] == "grpo"
    assert report["clip_high"] == 0.28
    assert report["correction_high"] == 2.0
    assert report["correction_level"] == "token"
    assert report["advantage_params"] == {"eps": 1e-6, "std": True, "unbiased": True}
    assert "sapo_tau_pos" not in report


@pytest.mark.parametrize(
    ("preset", "critic", "reference", "entropy"),
    [("ppo", True, False, False), ("grpo", False, False, False), ("rloo", False, True, True)],
)
def test_an_objective_says_which_models_it_needs(preset, critic, reference, entropy):
    coefficients = {"kl_coef": 0.1, "entropy_coef": 0.1} if reference else {}

    objective = get_objective(preset, **coefficients)

    assert (objective.needs_critic, objective.needs_reference, objective.needs_entropy) == (critic, reference, entropy)
    assert objective.advantage == {"ppo": "gae"}.get(preset, preset)


@pytest.mark.parametrize(
    ("preset", "overrides", "message"),
    [
        ("grop", {}, "did you mean 'grpo'"),
        ("grpo", {"clip_hihg": 0.3}, "did you mean 'clip_high'"),
        ("grpo", {"advantage": "rlo"}, "did you mean 'rloo'"),
        ("grpo", {"aggregation": "token_mean"}, "did you mean 'token-mean'"),
        ("grpo", {"correction": "ticks"}, "did you mean 'tis'"),
        ("grpo", {"kl": "abs"}, "known names are k1, k2, k3"),
        ("grpo", {"advantage_params": {"epz": 1.0}}, "did you mean 'eps'"),
        ("grpo", {"advantage_params": {"std": 1}}, "expected true or false"),
        ("grpo", {"advantage_params": 3}, "expected a mapping"),
        ("ppo", {"advantage_params": {"gamma": 1.5}}, "expected 0 <= gamma <= 1"),
        ("ppo", {"advantage_params": {"adaptive_lambda": 0.0}}, "expected > 0"),
        ("rloo", {"advantage_std": False}, "'std'"),
        ("grpo", {"clip_high": "1e-4"}, r"expected a number"),
        ("grpo", {"clip_high": True}, "expected a number"),
        ("grpo", {"kl_coef": float("nan")}, "expected a finite number"),
        ("grpo", {"decoupled": "yes"}, "expected true or false"),
        ("grpo", {"clip_low": 0.0}, "0 < clip_low <= 1"),
        ("grpo", {"clip_low": 1.1}, "0 < clip_low <= 1"),
        ("cispo", {"clip_high": 0.0}, "clip_high is 0.0"),
        ("grpo", {"dual_clip": 1.0}, "expected > 1"),
        ("grpo", {"kl_coef": -0.1}, "expected >= 0"),
        ("sapo", {"sapo_tau_neg": 0.0}, "expected > 0"),
        ("sapo", {"clip_high": 0.3}, "no effect with surrogate 'sapo'; it belongs to cispo, gspo, ppo"),
        ("cispo", {"dual_clip": 3.0}, "no effect with surrogate 'cispo'"),
        ("grpo", {"correction_high": 3.0}, "no effect with correction 'none'"),
        ("grpo", {"correction": "icepop", "correction_low": 1.5}, "must contain 1"),
        ("grpo", {"correction": "tis", "correction_high": 0.0}, "expected > 0"),
        ("grpo", {"denominator": "kept"}, "no effect with correction 'none'"),
        ("grpo", {"denominator": "kept", "correction": "opsm"}, "depends on the policy being trained"),
        ("cispo", {"anchor": "behave", "correction": "tis"}, "double importance sampling"),
        ("cispo", {"anchor": "behave", "decoupled": True}, "double importance sampling"),
        ("dppo", {"correction": "tis"}, "double importance sampling"),
        ("dppo", {"decoupled": True}, "double importance sampling"),
        ("dppo", {"anchor": "prox"}, "defined against the behaviour policy"),
        (
            "grpo",
            {"decoupled": True, "correction": "tis", "correction_level": "sequence"},
            "double importance sampling",
        ),
        ("grpo", {"decoupled": True, "correction": "mis"}, "double importance sampling"),
        ("sapo", {"decoupled": True}, "cannot be decoupled"),
        ("gspo", {"aggregation": "token-mean"}, "allow_length_weighting=True"),
        ("grpo", {"aggregation": "seq-mean-token-sum-norm"}, "needs length_norm"),
        ("grpo", {"length_norm": 10}, "no effect with aggregation"),
        ("grpo", {"kl": "k1"}, "zero expected gradient"),
        ("grpo", {"kl": "k3", "kl_place": "reward"}, "only k1 is unbiased"),
        ("rloo", {"kl_importance_weighted": True}, "no effect with kl_place 'reward'"),
    ],
)
def test_mistakes_are_refused_with_the_reason(preset, overrides, message):
    with pytest.raises(ConfigError, match=message):
        get_objective(preset, **overrides)


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("gspo", {"aggregation": "token-mean", "allow_length_weighting": True}),
        ("cispo", {"anchor": "behave"}),
        ("cispo", {"anchor": "behave", "correction": "geometric"}),
        ("grpo", {"decoupled": True, "correction": "tis"}),
        ("grpo", {"decoupled": True, "correction": "mis", "correction_level": "token"}),
        ("sapo", {"correction": "tis"}),
        ("grpo", {"kl": "k1", "kl_importance_weighted": True, "kl_coef": 0.1}),
        ("dapo", {"surrogate": "sapo"}),
        ("drgrpo", {"aggregation": "token-mean"}),
        ("ppo", {"advantage": "grpo", "advantage_std": False}),
        ("icepop", {"correction": "none"}),
        ("grpo", {"dual_clip": None}),
    ],
)
def test_sensible_combinations_are_accepted_and_settings_of_replaced_blocks_are_dropped(preset, overrides):
    objective = get_objective(preset, **overrides)

    assert {key: objective.describe().get(key) for key in overrides if not key.startswith("advantage_")} == {
        key: value for key, value in overrides.items() if not key.startswith("advantage_")
    }
