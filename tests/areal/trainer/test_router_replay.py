"""A mixture of experts whose routers are given, in training, what they chose while sampling."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import runs

from areal.api import ConfigError
from areal.engine.config import TrainEngineConfig
from areal.engine.server.routes import ServedRouters
from areal.infra.metrics.logger import read_metrics
from areal.trainer.config import DPOConfig, RewardModelConfig, SFTConfig
from areal.trainer.configuration.validation import find_problems
from areal.trainer.python.generation import generate_texts
from areal.trainer.server_weights import served_routers

CONTRACT = Path(__file__).parents[1] / "engine" / "contract"
MIXTURE = {
    **runs.BASE["model.init"],
    "model_type": "qwen3_moe",
    "initializer_range": 0.25,
    "num_experts": 32,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}


def largest_mismatches(folder, *, replay: bool, **changes) -> list[float]:
    config = runs.tiny(
        folder,
        model__init=MIXTURE,
        actor__router_replay=replay,
        actor__dtype="bfloat16",
        engine__dtype="float32",  # rounds otherwise than the learner, as other kernels would
        gconfig__max_new_tokens=16,
        total_train_steps=2,
        **changes,
    )
    runs.train(config)
    return [row["mismatch/fresh_abs_max"] for row in read_metrics(folder / "metrics.jsonl").values()]


@pytest.mark.exhaustive
def test_replay_keeps_probabilities_where_sampler_and_learner_round_differently(tmp_path):
    without = largest_mismatches(tmp_path / "free", replay=False)
    with_replay = largest_mismatches(tmp_path / "replay", replay=True)
    assert len(with_replay) == len(without) == 2
    assert max(with_replay) < 0.15, with_replay
    assert min(without) > 2 * max(with_replay), (without, with_replay)


@pytest.mark.exhaustive
def test_replay_does_the_same_with_servers(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(CONTRACT))
    program = importlib.import_module("vllm_program")
    servers = {
        "rollout__engine": "vllm",
        "vllm__python": str(program.write_python(tmp_path / "environment" / "python")),
        "servers__dtype": "float32",
        "servers__max_seq_len": 64,
        "servers__probe_tolerance": 20.0,  # of a learner that rounds, and whose routers choose otherwise
    }
    without = largest_mismatches(tmp_path / "free", replay=False, **servers)
    with_replay = largest_mismatches(tmp_path / "replay", replay=True, **servers)
    assert max(with_replay) < 0.15, with_replay
    assert min(without) > 2 * max(with_replay), (without, with_replay)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollout__engine": "vllm", "vllm__api": "completions"}, r"completions does not report them"),
        ({"rollout__engine": "vllm", "vllm__prefix_caching": False}, r"vllm.prefix_caching false turns off"),
        ({"rollout__engine": "vllm", "servers__parity": True}, r"servers.parity true turns off"),
        ({"archon__engine": "megatron"}, r"routers of its own"),
        ({"critic__router_replay": True}, r"set for the critic"),
    ],
)
def test_where_nothing_is_recorded_replay_is_refused_at_once(tmp_path, changes, said):
    with pytest.raises(ConfigError, match=said):
        runs.tiny(tmp_path, model__init=MIXTURE, actor__router_replay=True, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "has no experts"),
        ({"model__init": MIXTURE, "model__implementation": "transformers"}, "not ours to replay"),
        ({"model__init": MIXTURE}, ""),
    ],
)
def test_a_check_before_the_run_finds_that_there_are_no_routers(tmp_path, changes, said):
    config = runs.tiny(tmp_path, actor__router_replay=True, **changes)
    found = [problem for problem in find_problems(config) if problem.key == "actor.router_replay"]
    assert [said in problem.message for problem in found] == ([True] if said else [])


def test_answers_that_nobody_learns_from_record_nothing(tmp_path):
    """So that a model without routers answers as well."""
    config = runs.tiny(tmp_path, actor__router_replay=True)
    assert len(generate_texts(config, ["2*3="], seed=0, sampling={"max_new_tokens": 2})) == 1


def test_servers_report_the_routers_of_the_layers_that_have_one():
    mixed = {**MIXTURE, "num_hidden_layers": 3, "mlp_only_layers": [1]}
    assert served_routers(mixed) == ServedRouters(num_layers=3, layers=(0, 2), num_experts=32, top_k=2)


@pytest.mark.parametrize("kind", [SFTConfig, DPOConfig, RewardModelConfig])
def test_runs_that_do_not_sample_refuse_replay(kind):
    with pytest.raises(ConfigError, match="this run does not sample"):
        kind(actor=TrainEngineConfig(router_replay=True))
