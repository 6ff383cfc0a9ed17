"""The RL loop as a user runs it: determinism, staleness, recovery, every kind of objective."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from itertools import product

import pytest
import runs
import torch

from areal.algorithm import PRESETS, get_objective
from areal.api import ConfigError, GenerationConfig, Trajectory, WeightUpdateMeta
from areal.dataset.config import DatasetConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.train.engine import TrainingEngine
from areal.infra.metrics.logger import read_metrics
from areal.infra.rollout.episode import EpisodeJob, EpisodeRunner
from areal.trainer.assembly import load_model, load_rows, tokenizer_of
from areal.trainer.evaluation.samples import EvalSample, SetResult
from areal.trainer.evaluation_config import EvalSetConfig
from areal.trainer.learner import PolicyLearner
from areal.trainer.policy_models import PolicyModels
from areal.trainer.ppo import PPOTrainer
from areal.trainer.rank_group import RankGroup
from areal.workflow.assembly import create_workflow


def assert_equal_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, f"differ: {different}"


def plain_synchronous_loop(config) -> dict[str, torch.Tensor]:
    """The oracle: generate a batch, score it, train on it, copy the weights, repeat. No threads, no executor, no
    ledger."""
    tokenizer = tokenizer_of(config.model)
    rows = load_rows(config.train_dataset, tokenizer, kind="rl", seed=config.seed)
    actor = TrainingEngine(load_model(config, tokenizer), config=config.actor, total_steps=config.total_train_steps)
    objective = config.objective.build()
    models = RankGroup().create(PolicyModels, config=config, objective=objective, actor=actor)
    learner = PolicyLearner(models)
    engine = EmbeddedEngine(actor.model, config=config.engine, eos_token_id=tokenizer.eos_token_id, tokenizer=tokenizer)

    async def reward(prompt, completion, prompt_ids, completion_ids, *, answer, **_):
        return float(completion == answer)

    workflow = create_workflow("rlvr", reward=reward, gconfig=config.gconfig, tokenizer=tokenizer, options={})
    runner = EpisodeRunner(engine, seed=config.seed, max_retries=0)

    async def sample(step: int) -> list[Trajectory]:
        size = config.rollout.batch_size
        jobs = [
            EpisodeJob(
                stream="train", ordinal=ordinal, sample_index=index, data=rows.row(ordinal), admitted_version=step
            )
            for ordinal in range(step * size, (step + 1) * size)
            for index in range(config.rollout.group_size)
        ]
        outcomes = await asyncio.gather(*(runner.run(workflow, job) for job in jobs))
        return [item for outcome in outcomes for item in outcome.trajectories]

    async def loop() -> None:
        for step in range(config.total_train_steps):
            learner.update(learner.prepare(await sample(step)))
            actor.set_version(step + 1)
            engine.update_weights(WeightUpdateMeta(kind="memory", version=step + 1, state_dict=actor.weights()))

    asyncio.run(loop())
    engine.close()
    return {name: tensor.clone() for name, tensor in actor.weights().items()}


def test_zero_staleness_equals_a_plain_synchronous_loop_bit_by_bit(tmp_path):
    config = runs.tiny(tmp_path / "run")
    thresholds = gc.get_threshold()
    _, weights = runs.train(config)
    assert_equal_bits(weights, plain_synchronous_loop(config))
    assert gc.get_threshold() == thresholds


@pytest.mark.sample(1)
@pytest.mark.parametrize("kernel", ["auto", "torch"])
def test_an_engine_that_shares_the_learners_weights_gives_the_same_bits(tmp_path, monkeypatch, kernel):
    changes = {"engine__kernel": kernel, "total_train_steps": 3}
    _, copied = runs.train(runs.tiny(tmp_path / "copied", **changes))
    learn, engines = PolicyLearner.update, []

    def update(learner, batch):
        (engine,) = engines
        assert engine._model is learner.actor.model
        assert engine._paused, "it would sample with weights of two versions"
        return learn(learner, batch)

    made = EmbeddedEngine.__init__

    def make(engine, *arguments, **options):
        made(engine, *arguments, **options)
        engines.append(engine)

    monkeypatch.setattr(EmbeddedEngine, "__init__", make)
    monkeypatch.setattr(PolicyLearner, "update", update)
    _, shared = runs.train(runs.tiny(tmp_path / "shared", engine__share_weights=True, **changes))
    assert_equal_bits(copied, shared)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout__max_head_offpolicyness": 1}, "above 0 it samples while they change"),
        ({"separate_learner": True}, "has them in another process"),
        ({"actor__compile": True}, "for training"),
        ({"engine__dtype": "bfloat16"}, "needs a copy"),
    ],
)
def test_weights_that_cannot_be_shared_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        runs.tiny(tmp_path / "run", engine__share_weights=True, **changes)


@pytest.mark.parametrize(("chosen", "used"), [(0, 0), (700, 100_000), (10**6, 10**6)])
def test_rare_garbage_collections_of_a_user_stay_as_they_are(chosen, used):
    before = gc.get_threshold()
    trainer = object.__new__(PPOTrainer)
    try:
        gc.set_threshold(chosen, *before[1:])
        with contextlib.suppress(AttributeError), trainer:  # it has nothing to close
            assert gc.get_threshold() == (used, *before[1:])
        assert gc.get_threshold() == (chosen, *before[1:])
    finally:
        gc.set_threshold(*before)


@pytest.mark.exhaustive
def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    _, first = runs.train(runs.tiny(tmp_path / "a", total_train_steps=2))
    _, second = runs.train(runs.tiny(tmp_path / "b", total_train_steps=2))
    _, other = runs.train(runs.tiny(tmp_path / "c", total_train_steps=2, seed=4))
    assert_equal_bits(first, second)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.fault(
    row=11,
    injected="asynchronous runs under every policy",
    seen="the oldest trained token is within the bound in every step",
)
@pytest.mark.parametrize("case", runs.sample_of(product(["fifo", "deadline", "drop"], [1, 2]), ("deadline", 1)))
def test_no_token_is_older_than_the_staleness_bound(tmp_path, case):
    consume, bound = case
    config = runs.tiny(
        tmp_path / "run", rollout__max_head_offpolicyness=bound, rollout__consume=consume, total_train_steps=8
    )
    summary, _ = runs.train(config)
    ages = [row["staleness/max"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl").values()]
    assert summary["finished"]
    assert len(ages) == 8
    assert max(ages) <= bound


@pytest.mark.parametrize("preset", runs.sample_of(sorted(PRESETS), "gspo", "ppo"))
def test_every_preset_trains(tmp_path, preset):
    needs_critic = get_objective(preset).needs_critic
    changes = {"critic": {"lr": 1e-3}} if needs_critic else {}
    config = runs.tiny(
        tmp_path / "run", objective__preset=preset, objective__entropy_coef=None, total_train_steps=2, **changes
    )
    start = load_model(config, tokenizer_of(config.model)).state_dict()
    summary, weights = runs.train(config, transform_rewards=alternate_rewards)
    assert summary["finished"]
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())
    assert any(not torch.equal(start[name], weights[name]) for name in weights), "nothing was trained"


def alternate_rewards(step: int, trajectories: list[Trajectory]) -> list[Trajectory]:
    """An untrained model earns nothing, and equal rewards have no gradient: give every other sample a point."""
    from dataclasses import replace

    return [replace(item, reward=float(index % 2)) for index, item in enumerate(trajectories)]


@pytest.mark.exhaustive
def test_a_reference_model_keeps_the_policy_near_its_start(tmp_path):
    distance = {}
    for coef in (1e-9, 10.0):
        config = runs.tiny(
            tmp_path / str(coef),
            objective__kl={"coef": coef, "estimator": "k2"},
            objective__num_minibatches=2,
            actor__lr=1e-2,
            total_train_steps=8,
        )
        runs.train(config, transform_rewards=alternate_rewards)
        distance[coef] = read_metrics(tmp_path / str(coef) / "metrics.jsonl")[8]["train/kl_ref"]
    assert distance[10.0] < 0.5 * distance[1e-9]


@pytest.mark.exhaustive
def test_decoupled_objectives_recompute_the_proximal_policy_and_agree_with_the_sampler(tmp_path):
    config = runs.tiny(
        tmp_path / "run",
        objective__decoupled=True,
        objective__correction="tis",
        rollout__max_head_offpolicyness=0,
    )
    runs.train(config)
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl").values():
        assert row["train/behave_abs_diff_max"] < 1e-5
        assert row["train/behave_weight"] == pytest.approx(1.0, abs=1e-5)
        assert row["mismatch/effective_sample_size"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", runs.sample_of(product(["behave", "recompute"], [1, 2]), ("behave", 2)))
def test_every_step_says_how_sampler_and_trainer_differ(tmp_path, case):
    prox_logp, minibatches = case
    config = runs.tiny(tmp_path / "run", objective__prox_logp=prox_logp, objective__num_minibatches=minibatches)
    runs.train(config)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for step in range(1, 5):
        assert rows[step]["mismatch/abs_max"] < 1e-5
        assert rows[step]["mismatch/fresh_fraction"] == pytest.approx(1.0)
        assert rows[step]["mismatch/effective_sample_size"] == pytest.approx(1.0, abs=1e-4)
        assert not [key for key in rows[step] if key.startswith("train/sampler_")]


def test_resume_after_a_stop_continues_bit_by_bit(tmp_path):
    _, straight = runs.train(runs.tiny(tmp_path / "straight"))
    interrupted = runs.tiny(tmp_path / "interrupted")

    def stop_after_two(step: int, trajectories: list[Trajectory]) -> list[Trajectory]:
        if step == 1:
            trainer_session.stop.request()
        return list(trajectories)

    from areal.trainer.ppo import PPOTrainer
    from areal.trainer.session import open_session

    with (
        open_session(interrupted) as trainer_session,
        PPOTrainer(interrupted, trainer_session, transform_rewards=stop_after_two) as trainer,
    ):
        summary = trainer.train()
    assert not summary["finished"]
    assert summary["steps"] == 2
    summary, weights = runs.train(interrupted)
    assert summary["finished"]
    assert_equal_bits(weights, straight)
    steps = list(read_metrics(tmp_path / "interrupted" / "metrics.jsonl"))
    assert steps == [1, 2, 3, 4]


@pytest.mark.fault(
    row=29,
    injected="a run resumed with another learning rate",
    seen="refused with key, old and new value; accepted with checkpoint.allow_config_change=true",
)
def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference(tmp_path):
    runs.train(runs.tiny(tmp_path / "run", total_train_steps=1))
    with pytest.raises(ConfigError, match=r"actor\.lr: was 0\.001, is 0\.01"):
        runs.train(runs.tiny(tmp_path / "run", actor__lr=1e-2, total_train_steps=2))
    summary, _ = runs.train(
        runs.tiny(tmp_path / "run", actor__lr=1e-2, total_train_steps=2, checkpoint__allow_config_change=True)
    )
    assert summary["steps"] == 2


def test_the_final_folder_loads_in_transformers_with_equal_logits(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from areal.models import from_pretrained

    summary, _ = runs.train(runs.tiny(tmp_path / "run"))
    theirs = AutoModelForCausalLM.from_pretrained(summary["checkpoint"], dtype=torch.float32)
    ours = from_pretrained(summary["checkpoint"], dtype=torch.float32)
    tokens = torch.tensor(AutoTokenizer.from_pretrained(summary["checkpoint"])("8*9=")["input_ids"])
    with torch.no_grad():
        expected = theirs(tokens.unsqueeze(0)).logits[0]
        actual = ours(tokens, torch.arange(len(tokens)), torch.tensor([0, len(tokens)], dtype=torch.int32), len(tokens))
    assert torch.allclose(actual, expected, atol=5e-5 * max(1.0, float(expected.std())))


@pytest.mark.exhaustive
def test_evaluation_leaves_training_untouched(tmp_path):
    valid = DatasetConfig(name="jsonl", path=str(runs.ROWS))
    _, without = runs.train(runs.tiny(tmp_path / "without"))
    sampled = GenerationConfig(max_new_tokens=4, temperature=1.5)
    sets = {
        "greedy": EvalSetConfig(dataset=valid, rows=8),
        "sampled": EvalSetConfig(dataset=valid, rows=4, samples=4, gconfig=sampled, reward="gsm8k", answer="text"),
    }
    config = runs.replace(runs.tiny(tmp_path / "with"), eval_sets=sets, eval_every_steps=2)
    summary, with_evaluation = runs.train(config)
    assert_equal_bits(without, with_evaluation)
    assert summary["eval_after"]["eval/greedy/rows"] == 8
    assert {"avg@4", "pass@1", "pass@4", "maj@4", "rows", "faults"} <= {
        name.removeprefix("eval/sampled/") for name in summary["eval_after"]
    }
    lines = [json.loads(line) for line in (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval/sampled/avg@4" in line] == [0, 2, 4]


@pytest.mark.exhaustive
def test_filtered_sampling_is_trained_with_recomputed_ratios(tmp_path):
    config = runs.tiny(tmp_path / "run", gconfig__top_k=3, gconfig__temperature=0.7)
    runs.train(config)
    for row in read_metrics(tmp_path / "run" / "metrics.jsonl").values():
        assert row["train/ratio"] == pytest.approx(1.0, abs=1e-5)
        assert row["mismatch/abs_mean"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gconfig__top_p": 0.9, "objective__prox_logp": "behave"}, "filtered distribution"),
        ({"gconfig__top_k": 4, "objective__preset": "dppo"}, "filtered distribution"),
        ({"objective__prox_logp": "behave", "objective__decoupled": True}, "makes 0 everywhere"),
    ],
)
def test_ratios_that_would_be_wrong_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        runs.tiny(tmp_path / "run", **changes)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=20,
    injected="in a whole run, every truncated answer is masked in full",
    seen="they add nothing to the loss; metrics still describe them",
)
def test_truncated_answers_are_masked_in_the_loss_but_described_as_they_were(tmp_path):
    config = runs.tiny(tmp_path / "run", objective__mask_truncated=True, gconfig__max_new_tokens=2)
    runs.train(config, transform_rewards=alternate_rewards)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl").values()
    assert all(row["length/truncated_fraction"] > 0 for row in rows)
    assert all(row["length/mean"] >= 1 for row in rows)


def test_an_evaluation_that_scores_nothing_is_no_score_of_zero():
    lost = tuple((EvalSample(row=row, sample=0, seed=0, reward=None, fault="rejected"),) for row in range(4))
    nothing = SetResult(name="test", k=1, pass_reward=1.0, rows=lost)
    assert nothing.metrics() == {"eval/test/rows": 0.0, "eval/test/faults": 4.0}
