"""Names, blocks and refused combinations: every message says what is wrong and what to do."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import textwrap

import pytest

from areal.algorithm import PRESETS, Objective, describe_presets, get_objective
from areal.algorithm.corrections import TIS
from areal.algorithm.kl import KL
from areal.algorithm.surrogates import PPO, SAPO
from areal.api import UsageError

REQUIRED = {
    "cispo", "dapo", "dppo", "drgrpo", "grpo", "gspo", "icepop", "kpop", "m2po", "maxrl", "opo", "ppo", "reinforce_pp",
    "rloo", "sapo",
}  # fmt: skip


def test_all_promised_presets_exist_and_describe_themselves():
    rows = describe_presets()

    assert {row["name"] for row in rows} >= REQUIRED
    assert [row["name"] for row in rows] == list(PRESETS) == sorted(PRESETS)
    assert all(row["formula"] and row["paper"] and row["defaults"] for row in rows)
    assert json.loads(json.dumps(rows)) == rows


def test_presets_can_be_listed_without_loading_torch():
    program = "import sys, areal.algorithm as a; a.describe_presets(); sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_what_an_objective_says_of_itself_builds_it_again(preset):
    described = get_objective(preset, entropy_coef=0.1).describe()

    assert get_objective("grpo", **json.loads(json.dumps(described))).describe() == described


def test_a_block_is_itself_a_name_or_a_section():
    dapo = get_objective("dapo")

    assert dapo.surrogate == PPO(clip_high=0.28)
    assert get_objective("dapo", surrogate={"dual_clip": 3.0}).surrogate == PPO(clip_high=0.28, dual_clip=3.0)
    assert get_objective("dapo", surrogate={"name": "ppo", "dual_clip": 3.0}).surrogate == PPO(dual_clip=3.0)
    assert get_objective("dapo", surrogate="sapo").surrogate == SAPO()
    assert get_objective("grpo", correction=TIS(cap=3), decoupled=True).correction == TIS(cap=3.0)
    assert get_objective("grpo", kl={"coef": 0.1}).kl == KL(coef=0.1)
    assert Objective(surrogate=PPO(clip_high=0.28)) == dapo


@pytest.mark.parametrize(
    ("preset", "critic", "reference"), [("ppo", True, False), ("grpo", False, False), ("rloo", False, True)]
)
def test_an_objective_says_which_models_it_needs(preset, critic, reference):
    objective = get_objective(preset, **({"kl": {"coef": 0.1}} if reference else {}))

    assert (objective.needs_critic, objective.needs_reference) == (critic, reference)


@pytest.mark.parametrize(
    ("preset", "changes", "message"),
    [
        ("grop", {}, "did you mean 'grpo'"),
        ("grpo", {"clip_high": 0.3}, r"did you mean surrogate\.clip_high"),
        ("grpo", {"decuopled": True}, "did you mean 'decoupled'"),
        ("grpo", {"surrogate": {"clip_hihg": 0.3}}, "surrogate.clip_hihg is an unknown key; did you mean 'clip_high'"),
        ("grpo", {"advantage": "rlo"}, "did you mean 'rloo'"),
        ("grpo", {"aggregation": "token_mean"}, "did you mean 'token-mean'"),
        ("grpo", {"correction": {"name": "ticks"}}, "did you mean 'tis'"),
        ("grpo", {"kl": {"estimator": "abs"}}, "expected one of k1, k2, k3"),
        ("grpo", {"kl": {"estimator": "k3_straight"}}, "did you mean 'k3_straight_through'"),
        ("grpo", {"kl": "k2"}, r"kl is 'k2', expected a section such as \{'estimator'"),
        ("grpo", {"surrogate": 3}, "surrogate is 3, expected a name such as"),
        ("grpo", {"surrogate": {"name": 3}}, "surrogate.name is 3, expected text"),
        ("grpo", {"advantage": {"epz": 1.0}}, "did you mean 'eps'"),
        ("grpo", {"advantage": {"std": 1}}, "advantage.std is 1, expected true or false"),
        ("ppo", {"advantage": {"gamma": 1.5}}, "gamma is 1.5, expected >= 0 and <= 1"),
        ("ppo", {"advantage": {"adaptive_lambda": 0.0}}, "expected > 0"),
        ("grpo", {"advantage": {"eps": -1}}, "expected >= 0"),
        ("rloo", {"advantage": {"std": False}}, "has no effect with advantage 'rloo'; it belongs to grpo"),
        ("grpo", {"surrogate": {"clip_high": "1e-4"}}, "surrogate.clip_high is '1e-4', expected a number"),
        ("grpo", {"surrogate": {"clip_high": True}}, "expected a number"),
        ("grpo", {"kl": {"coef": math.nan}}, "expected a finite number"),
        ("grpo", {"decoupled": "yes"}, "expected true or false"),
        ("grpo", {"surrogate": {"clip_low": 0.0}}, "expected > 0 and <= 1 .the ratio is clipped at 1 - clip_low"),
        ("grpo", {"surrogate": {"clip_low": 1.1}}, "expected > 0 and <= 1 .the ratio is clipped at 1 - clip_low"),
        ("cispo", {"surrogate": {"clip_high": 0.0}}, "clip_high is 0.0"),
        ("grpo", {"surrogate": {"dual_clip": 1.0}}, "expected > 1"),
        ("grpo", {"kl": {"coef": -0.1}}, "kl.coef is -0.1, expected >= 0"),
        ("grpo", {"entropy_coef": -0.1}, "entropy_coef is -0.1, expected >= 0"),
        ("sapo", {"surrogate": {"tau_neg": 0.0}}, "surrogate.tau_neg is 0.0, expected > 0"),
        ("sapo", {"surrogate": {"clip_high": 0.3}}, "no effect with surrogate 'sapo'; it belongs to cispo, gspo, ppo"),
        ("cispo", {"surrogate": {"dual_clip": 3.0}}, "no effect with surrogate 'cispo'"),
        ("grpo", {"correction": {"cap": 3.0}}, "no effect with correction 'none'"),
        ("grpo", {"correction": {"name": "icepop", "low": 1.5}}, "must contain 1"),
        ("grpo", {"correction": {"name": "tis", "cap": 0.0}}, "expected > 0"),
        ("grpo", {"correction": {"name": "tis", "level": "tokens"}}, "did you mean 'token'"),
        ("grpo", {"denominator": "kept"}, "no effect with correction 'none'"),
        ("grpo", {"denominator": "kept", "correction": "opsm"}, "depends on the policy being trained"),
        ("cispo", {"anchor": "behave", "correction": "tis"}, "double importance sampling"),
        ("cispo", {"anchor": "behave", "decoupled": True}, "double importance sampling"),
        ("dppo", {"correction": "tis"}, "double importance sampling"),
        ("dppo", {"decoupled": True}, "double importance sampling"),
        ("dppo", {"anchor": "prox"}, "defined against the behaviour policy"),
        ("grpo", {"decoupled": True, "correction": TIS(level="sequence")}, "double importance sampling"),
        ("grpo", {"decoupled": True, "correction": "mis"}, "double importance sampling"),
        ("sapo", {"decoupled": True}, "cannot be decoupled"),
        ("gspo", {"aggregation": "token-mean"}, "surrogate.allow_length_weighting: true"),
        ("grpo", {"aggregation": "seq-mean-token-sum-norm"}, "needs aggregation.length_norm"),
        ("grpo", {"aggregation": {"length_norm": 10}}, "no effect with aggregation"),
        ("grpo", {"kl": {"estimator": "k1"}}, "zero expected gradient"),
        ("grpo", {"kl": {"estimator": "k3", "place": "reward"}}, "only k1 is unbiased"),
        ("rloo", {"kl": {"importance_weighted": True}}, "no effect with kl.place 'reward'"),
        ("grpo", {"surrogate": TIS()}, "surrogate is TIS.*expected Surrogate"),
    ],
)
def test_mistakes_are_refused_with_the_reason(preset, changes, message):
    with pytest.raises(UsageError, match=message):
        get_objective(preset, **changes)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("gspo", {"aggregation": "token-mean", "surrogate": {"allow_length_weighting": True}}),
        ("cispo", {"anchor": "behave"}),
        ("cispo", {"anchor": "behave", "correction": "geometric"}),
        ("grpo", {"decoupled": True, "correction": {"name": "mis", "level": "token"}}),
        ("sapo", {"correction": "tis"}),
        ("grpo", {"kl": {"estimator": "k1", "importance_weighted": True, "coef": 0.1}}),
        ("drgrpo", {"aggregation": "token-mean"}),
        ("icepop", {"correction": "none"}),
        ("grpo", {"surrogate": {"dual_clip": None}}),
    ],
)
def test_sensible_combinations_are_accepted(preset, changes):
    described = get_objective(preset, **changes).describe()

    for key, value in changes.items():
        shown = described[key]
        assert value.items() <= shown.items() if isinstance(value, dict) else value in (shown, block_name_of(shown))


def block_name_of(shown):
    return shown["name"] if isinstance(shown, dict) else shown


@pytest.fixture
def own_blocks(tmp_path, monkeypatch):
    """A module of a user's, outside of the package."""
    (tmp_path / "blocks_of_a_user.py").write_text(
        textwrap.dedent('''
            from __future__ import annotations

            from dataclasses import dataclass
            from typing import TYPE_CHECKING

            from areal.algorithm.surrogates import Surrogate, TokenLoss

            if TYPE_CHECKING:
                from torch import Tensor

            @dataclass(frozen=True, kw_only=True)
            class Tempered(Surrogate):
                temperature: float
                """Divides the loss."""

                def token_loss(self, tokens):
                    return TokenLoss(loss=-tokens.advantages * tokens.logp / self.temperature)

            @dataclass(frozen=True, kw_only=True)
            class Unfinished(Surrogate):
                pass

            class Undecorated(Tempered):
                scale: float = 1.0

            def function(tokens): ...
        '''),
        encoding="utf-8",
    )
    (tmp_path / "broken_blocks.py").write_text("x = 1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_class_of_the_users_is_named_by_its_path(own_blocks):
    objective = get_objective("dapo", surrogate={"name": "blocks_of_a_user:Tempered", "temperature": 2})

    assert objective.surrogate.temperature == 2
    assert objective.describe()["surrogate"] == {"name": "blocks_of_a_user:Tempered", "temperature": 2}


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("blocks_of_a_user:function", "is a function; expected a class derived from areal.algorithm.surrogates"),
        ("areal.algorithm.corrections:TIS", "is the class TIS; expected a class derived from areal.algorithm.surro"),
        ("blocks_of_a_user:Unfinished", r"class Unfinished does not define token_loss\(\)"),
        ("blocks_of_a_user:Undecorated", r"not a dataclass.*put @dataclass\(frozen=True, kw_only=True\) above it"),
        ("blocks_of_a_user:Missing", "has no object 'Missing'"),
        ("no_such_module:Loss", "no module 'no_such_module'"),
        ("broken_blocks:Loss", r"cannot be loaded: ZeroDivisionError: .*broken_blocks\.py:1: x = 1 / 0"),
        ("blocks_of_a_user:Tempered", "missing 1 required keyword-only argument: 'temperature'"),
        ({"name": "blocks_of_a_user:Tempered", "temperature": "hot"}, "surrogate.temperature is 'hot', expected a num"),
        ({"name": "blocks_of_a_user:Tempered", "temprature": 2}, "did you mean 'temperature'"),
    ],
)
def test_what_is_not_a_block_is_refused_with_what_is_missing(own_blocks, choice, message):
    with pytest.raises(UsageError, match=message):
        get_objective("dapo", surrogate=choice)
