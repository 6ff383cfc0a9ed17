"""An objective of classes outside the package: a user's surrogate, correction and advantage train a model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from areal.cli.main import main

_spec = importlib.util.spec_from_file_location("runs", Path(__file__).with_name("runs.py"))
runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runs)

MODULE = '''
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from areal.algorithm.advantages import Advantage, AdvantageEstimate, RewardBatch
from areal.algorithm.corrections import Correction
from areal.algorithm.surrogates import Surrogate, TokenLoss
from areal.algorithm.tokens import PolicyTokens


@dataclass(frozen=True, kw_only=True)
class Gentle(Surrogate):
    """PPO's ratio without clip, times a factor."""

    factor: float = 1.0
    """Scales the loss."""

    def token_loss(self, tokens: PolicyTokens) -> TokenLoss:
        return TokenLoss(loss=-self.factor * tokens.advantages * tokens.log_ratio.exp())


@dataclass(frozen=True, kw_only=True)
class Near(Correction):
    """Drops tokens on which sampler and trainer are further apart than the radius."""

    radius: float = 0.5
    """Nats; > 0."""

    def keep(self, tokens: PolicyTokens):
        return (tokens.logp_prox - tokens.logp_behave).abs() <= self.radius


@dataclass(frozen=True, kw_only=True)
class Shifted(Advantage):
    """Rewards above a constant."""

    baseline: float = 0.5
    """The constant."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        return AdvantageEstimate(advantages=batch.on_tokens(batch.rewards - self.baseline))
'''


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Train two steps with a module of the user's on the path; returns exit code and answer of `areal train`."""
    (tmp_path / "objective_of_a_user.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(name, objective):
        path = tmp_path / f"{name}.yaml"
        path.write_text(json.dumps({"objective": objective}), encoding="utf-8")
        values = {key: value for key, value in runs.BASE.items() if not key.startswith("objective.")}
        values |= {"total_train_steps": 2, "output_dir": str(tmp_path / name)}
        code = main(["train", str(path), "--json", *(f"{key}={json.dumps(value)}" for key, value in values.items())])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_own_blocks_train_and_take_their_fields_from_the_configuration(train, tmp_path):
    own = {
        "preset": "dapo",
        "surrogate": {"name": "objective_of_a_user:Gentle", "factor": 2},
        "correction": "objective_of_a_user:Near",
        "advantage": {"name": "objective_of_a_user:Shifted", "baseline": 0.25},
    }

    code, answer = train("own", own)

    assert code == 0, answer
    rows = [json.loads(line) for line in (tmp_path / "own" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "train/policy_loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        # With one minibatch the ratio is 1, and the loss is -factor times the mean of R - baseline over the tokens.
        assert row["train/policy_loss"] == pytest.approx(-2 * row["train/advantage"], abs=1e-5)
        assert row["train/advantage"] == pytest.approx(-0.25), "no sample was right yet"
        assert row["train/grad_norm"] > 0
        assert row["train/masked_fraction"] == 0


def test_a_mistake_in_an_own_block_is_refused_before_anything_is_loaded(train):
    code, answer = train("wrong", {"surrogate": {"name": "objective_of_a_user:Gentle", "factr": 2}})

    assert code == 2
    assert "surrogate.factr is an unknown key; did you mean 'factor'?" in answer["error"]
    assert "wrong.yaml:1" in answer["error"]
