"""Every example configuration loads, and everything it names exists and fits together."""

from __future__ import annotations

from pathlib import Path

import pytest

from areal.api import load
from areal.dataset.encoding import check_tokenizer, load_tokenizer
from areal.dataset.loading import load_dataset
from areal.reward.registry import REWARDS
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.source import load_config
from areal.workflow.assembly import create_workflow

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {"arithmetic_grpo", "arithmetic_sft", "gsm8k_rl", "gsm8k_sft"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_only_what_exists(path):
    config = load_config(path).config
    # The placeholder checkpoint of the language-model examples is replaced by a tokenizer that reads any text.
    tokenizer = load_tokenizer(config.model.tokenizer_path or "bytes:")
    held_out = (
        [chosen.dataset for chosen in config.eval_sets.values()]
        if isinstance(config, PPOConfig)
        else [config.valid_dataset]
    )
    for part in (config.train_dataset, *held_out):
        if part is not None:
            assert len(load_dataset(part, tokenizer, kind=config.dataset_kind)) > 0
    if config.model.init:
        check_tokenizer(tokenizer, config.model.init["vocab_size"])
    if isinstance(config, PPOConfig):
        # A run that only distils has no reward.
        reward = load("reward", config.reward, REWARDS) if config.learns_from_reward else None
        create_workflow(
            config.workflow, reward=reward, gconfig=config.gconfig, tokenizer=tokenizer, options=config.workflow_options
        )
