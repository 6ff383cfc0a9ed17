"""Runs on preference pairs as a user starts them: they learn what is true, go on bit by bit, refuse what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pair_runs as runs
import pytest
import runs as rl_runs
import torch

from areal.algorithm.preference import PREFERENCES, PreferenceConfig, preference_loss, sequence_logp
from areal.api import ConfigError, DataError
from areal.engine.train.engine import TrainingEngine
from areal.infra.metrics.logger import read_metrics
from areal.models import from_pretrained
from areal.trainer.assembly import load_model, load_rows, tokenizer_of
from areal.trainer.configuration.report import build_report
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import validate_run
from areal.trainer.rows import collate_pairs

KINDS = ("dpo", "reward_model")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return runs.write_pairs(tmp_path_factory.mktemp("pairs"))


def assert_equal_bits(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case", rl_runs.sample_of([("dpo", 20, 6e-3), ("reward_model", 15, 1e-2)], ("reward_model", 15, 1e-2))
)
def test_a_run_learns_preferences_that_hold_on_prompts_it_never_saw(tmp_path, case):
    kind, steps, lr = case
    changes = {"total_train_steps": steps, "batch_size": 32, "actor__lr": lr, "eval_rows": 120}
    true = runs.write_pairs(tmp_path / "true", train=400, test=120)
    summary, _ = runs.train(runs.tiny(kind, tmp_path / "run", true, **changes))
    before, after = summary["eval_before"], summary["eval_after"]
    assert before["eval/accuracy"] == pytest.approx(0.5, abs=0.02), "nobody is ahead before the first step"
    assert after["eval/accuracy"] > 0.9
    assert after["eval/margin"] > before["eval/margin"] + 0.1
    assert after["eval/loss"] < before["eval/loss"] - 0.1

    turned = runs.write_pairs(tmp_path / "turned", train=400, test=120, turn_labels=True)
    control, _ = runs.train(runs.tiny(kind, tmp_path / "control", turned, **changes))
    assert control["eval_after"]["eval/accuracy"] < 0.1, "it is the labels that are learnt, whatever they say"


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", rl_runs.sample_of(KINDS, "dpo"))
def test_a_run_that_broke_off_goes_on_bit_by_bit(tmp_path, pairs, kind):
    changes = {"checkpoint__every_steps": 1, "eval_every_steps": 2}
    _, straight = runs.train(runs.tiny(kind, tmp_path / "straight", pairs, **changes))
    broken = runs.tiny(kind, tmp_path / "broken", pairs, **changes)
    with pytest.raises(KeyboardInterrupt):
        runs.train(broken, fail_at=2)
    summary, continued = runs.train(broken)
    assert summary["steps"] == 4
    assert_equal_bits(continued.engine.weights(), straight.engine.weights())
    torch.testing.assert_close(continued.engine.state_dict(), straight.engine.state_dict(), rtol=0, atol=0)
    logs = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("straight", "broken")]
    timed = ("time", "throughput/")
    first, second = (
        {step: {key: value for key, value in row.items() if not key.startswith(timed)} for step, row in log.items()}
        for log in logs
    )
    assert first == second


@pytest.mark.exhaustive
def test_a_longer_run_asks_the_reference_again_about_the_pairs_it_has_not_seen(tmp_path, pairs):
    _, straight = runs.train(runs.tiny("dpo", tmp_path / "straight", pairs))
    first = runs.tiny("dpo", tmp_path / "longer", pairs, total_train_steps=2)
    runs.train(first)
    # By now the trained model is another one; the reference is loaded anew, for the 16 new pairs only.
    _, longer = runs.train(replace(first, total_train_steps=4))
    assert_equal_bits(longer.engine.weights(), straight.engine.weights())


@pytest.mark.exhaustive
def test_a_stop_while_the_reference_is_asked_loses_nothing(tmp_path, pairs):
    config = runs.tiny("dpo", tmp_path / "run", pairs)
    with runs.open_session(config) as session:
        trainer = runs.load("trainer", "dpo", runs.ROW_TRAINERS)(config, session)
        asked = []
        forward = trainer.engine.forward_logp

        def stop_after_two(batch, **options):
            asked.append(batch)
            if len(asked) == 2:
                session.stop.request()
            return forward(batch, **options)

        trainer.engine.forward_logp = stop_after_two
        summary = trainer.train()
    assert (summary["finished"], summary["steps"], len(asked)) == (False, 0, 2)
    _, continued = runs.train(config)
    _, straight = runs.train(runs.tiny("dpo", tmp_path / "straight", pairs))
    assert_equal_bits(continued.engine.weights(), straight.engine.weights())


def test_the_first_step_is_that_of_the_formula_with_a_live_reference(tmp_path, pairs):
    config = runs.tiny("dpo", tmp_path / "run", pairs, total_train_steps=1, actor__dtype="float64")
    summary, trainer = runs.train(config)
    tokenizer = tokenizer_of(config.model)
    rows = load_rows(config.train_dataset, tokenizer, kind="preference", seed=config.seed)
    model, reference = load_model(config, tokenizer).double(), load_model(config, tokenizer).double()
    loss = torch.zeros(())
    for ordinal in range(config.batch_size):
        row = rows.row(ordinal)
        ratios = []
        for side in ("chosen", "rejected"):
            ids = torch.tensor(row[f"{side}_ids"])
            mask = torch.tensor(row[f"{side}_loss_mask"])[1:]
            bounds = torch.tensor([0, len(ids)], dtype=torch.int32)
            logps = [
                part(ids, torch.arange(len(ids)), bounds, len(ids)).log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
                for part in (model, reference)
            ]
            ratios.append(((logps[0] - logps[1].detach()) * mask).sum())
        loss = loss - torch.nn.functional.logsigmoid(0.1 * (ratios[0] - ratios[1])) / config.batch_size
    loss.backward()
    metrics = read_metrics(tmp_path / "run" / "metrics.jsonl")[1]
    assert summary["loss"] == pytest.approx(loss.item(), abs=1e-12)
    norm = torch.stack([parameter.grad.norm() for parameter in model.parameters()]).norm().item()
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-9)
    assert metrics["train/accuracy"] == pytest.approx(0.5, abs=0.51)
    assert trainer.engine.num_steps == 1


@pytest.mark.exhaustive
def test_a_reference_of_its_own_is_what_the_numbers_come_from(tmp_path, pairs):
    other = tmp_path / "other"
    seeded = runs.tiny("dpo", tmp_path / "seeded", pairs, seed=9)
    model = load_model(seeded, tokenizer_of(seeded.model))
    model.save_pretrained(other)
    config = runs.tiny("dpo", tmp_path / "run", pairs, total_train_steps=1, reference_path=str(other))
    summary, _ = runs.train(config)

    tokenizer = tokenizer_of(config.model)
    rows = load_rows(config.train_dataset, tokenizer, kind="preference", seed=config.seed)
    batch = collate_pairs([rows.row(ordinal) for ordinal in range(8)])
    policy, theirs = (
        TrainingEngine(part, config=config.actor).forward_logp(batch)
        for part in (load_model(config, tokenizer), from_pretrained(other))
    )
    expected = preference_loss(
        policy, batch=replace(batch, reference=sequence_logp(theirs, batch.loss_mask)), settings=PreferenceConfig()
    )
    assert summary["loss"] == pytest.approx(expected.loss.item(), abs=1e-5)
    assert abs(summary["loss"] - 0.693147) > 1e-4, "the reference is not the trained model"


def test_rows_that_changed_since_the_reference_scored_them_are_refused(tmp_path):
    own = runs.write_pairs(tmp_path / "pairs", train=16, test=8)
    config = runs.tiny("dpo", tmp_path / "run", own, checkpoint__every_steps=1)
    with pytest.raises(KeyboardInterrupt):
        runs.train(config, fail_at=1)
    rows = [json.loads(line) for line in (own / "train.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "chosen": row["rejected"], "rejected": row["chosen"]}) for row in rows]
    (own / "train.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="train_dataset has other rows"):
        runs.train(config)
    with pytest.raises(DataError, match="not the one that the reference model scored"):
        runs.train(replace(config, checkpoint=replace(config.checkpoint, allow_config_change=True)))


@pytest.mark.parametrize("loss", rl_runs.sample_of(sorted(PREFERENCES), "simpo"))
def test_every_loss_trains(tmp_path, pairs, loss):
    config = runs.tiny("dpo", tmp_path / "run", pairs, preference__loss=loss, total_train_steps=2)
    summary, trainer = runs.train(config)
    assert summary["finished"]
    assert all(torch.isfinite(tensor).all() for tensor in trainer.engine.weights().values())
    assert bool(trainer.states()["reference"]) == PREFERENCES[loss].uses_reference


@pytest.mark.exhaustive
def test_margins_of_rows_are_asked_for_and_scores_are_kept_around_zero(tmp_path, pairs):
    margin = {"train_dataset__options": {"margin_column": "margin"}, "valid_dataset": None}
    plain, _ = runs.train(runs.tiny("reward_model", tmp_path / "plain", pairs, valid_dataset=None, total_train_steps=1))
    asked, _ = runs.train(
        runs.tiny("reward_model", tmp_path / "margin", pairs, **margin, use_margins=True, total_train_steps=1)
    )
    # Scores start at 0, so the first loss is log 2 without margins and more with them.
    assert plain["loss"] == pytest.approx(0.693147, abs=1e-6)
    assert asked["loss"] > 0.75
    _, free = runs.train(runs.tiny("reward_model", tmp_path / "free", pairs, total_train_steps=20, actor__lr=0.02))
    _, held = runs.train(
        runs.tiny("reward_model", tmp_path / "held", pairs, total_train_steps=20, actor__lr=0.02, center_coef=0.1)
    )
    sums = [
        abs(trainer.evaluate(64)["eval/score_chosen"] + trainer.evaluate(64)["eval/score_rejected"])
        for trainer in (free, held)
    ]
    assert sums[1] < 0.5 * sums[0]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("dpo", {"preference.loss": "dpoo"}, "did you mean 'dpo'"),
        (
            "dpo",
            {"preference.loss": "ipo", "preference.margin": 1.0},
            "margin has no effect with preference loss 'ipo'",
        ),
        ("dpo", {"preference.beta": 0}, "expected > 0"),
        ("dpo", {"preference.loss": "simpo", "reference_path": "x"}, "uses no reference"),
        ("dpo", {"reference_path": "no/such/folder"}, "reference_path"),
        ("dpo", {"center_coef": 0.1}, "it exists only with kind: reward_model"),
        ("dpo", {"batch_size": 0}, "batch_size is 0"),
        ("dpo", {"train_dataset.name": "gsm8k_rl"}, "has rows for another kind of training than 'preference'"),
        ("reward_model", {"center_coef": -1}, "center_coef is -1"),
        ("reward_model", {"preference.loss": "dpo"}, "it exists only with kind: dpo"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_loaded(tmp_path, pairs, kind, changes, message):
    settings = {**runs.BASE, "kind": kind, "train_dataset.name": "jsonl", "train_dataset.path": str(pairs), **changes}
    with pytest.raises(ConfigError, match=message):
        validate_run(load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]).config)


def test_margins_that_the_rows_do_not_have_are_refused(tmp_path, pairs):
    with pytest.raises(ConfigError, match="no column 'margin'"):
        runs.train(runs.tiny("reward_model", tmp_path / "run", pairs, use_margins=True))


def test_the_dry_run_says_what_a_step_is_and_how_answers_of_different_length_compare(tmp_path, pairs):
    settings = {**runs.BASE, "kind": "dpo", "train_dataset.name": "jsonl", "train_dataset.path": str(pairs)}
    settings |= {"preference.loss": "ipo", "total_train_steps": None, "total_train_epochs": 2}
    report = build_report(load_config(None, [f"{key}={json.dumps(value)}" for key, value in settings.items()]))
    assert report["derived"]["pairs_per_step"] == 8
    assert report["derived"]["sequences_per_step"] == 16
    assert report["derived"]["total_steps"] == 16
    assert any("averaged over the tokens" in note for note in report["notes"])
    assert any("scores every pair of the run once" in note for note in report["notes"])
