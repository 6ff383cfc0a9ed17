"""Run `areal demo`: a policy learns arithmetic facts from the reward alone, on two CPU cores, in about a minute.

Prompts are the calculator annotations of GSM8K (`<<8*9=72>>` becomes "8*9="). A 0.36M-parameter Qwen3 is built from
nothing and shown 60 demonstrations, so that it knows what an answer looks like; every other expression is met only as a
bare prompt. Asynchronous GRPO then finds answers by trying. Rows of GSM8K's *test* problems are scored before and
after; expressions that were never demonstrated are counted separately ("new"): only the reward can have taught them.

The run is an ordinary one: both phases write config.yaml, and `areal train` repeats them.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import ConfigError, GenerationConfig, Trajectory
from areal.dataset.arithmetic import CHARACTERS
from areal.dataset.config import DatasetConfig
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig
from areal.infra.metrics.config import MetricsConfig
from areal.infra.rollout.config import RolloutConfig
from areal.trainer.config import ModelConfig, ObjectiveConfig, PPOConfig, SFTConfig
from areal.trainer.configuration.threads import configure_threads
from areal.trainer.evaluation_config import EvalSetConfig
from areal.trainer.ppo import PPOTrainer
from areal.trainer.run import run
from areal.trainer.session import open_session
from areal.utils.atomic import atomic_write
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.trainer.evaluation.samples import SetResult

_logger = getLogger(__name__)

MODEL: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "vocab_size": 17,
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    # About 1 / sqrt(hidden_size). The usual 0.02 suits wide models; here it would cost half of what is learnt.
    "initializer_range": 0.1,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""Architecture of the demo model, as the content of a config.json."""

TOKENIZER: Final = f"characters:{CHARACTERS}"
SFT_STEPS: Final = 30
CONTROL_SFT_STEPS: Final = 200
"""Supervised steps of `--control sft-only`: what more imitation of the 60 demonstrations is worth without RL."""
RL_STEPS: Final = 200
DEMONSTRATIONS: Final = 60
TEST_ROWS: Final = 500
LEARNT_BY: Final = 0.15
"""Gain in greedy accuracy on new expressions that the demo calls learning; the controls stay far below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Greedy accuracy on held-out rows."""

    all_rows: float
    new_rows: float
    """On rows whose expression was never demonstrated."""
    num_rows: int
    num_new_rows: int

    def text(self) -> str:
        """Return a phrase for people."""
        new = f"{self.new_rows:.1%} of {self.num_new_rows} never demonstrated"
        return f"{self.all_rows:.1%} of {self.num_rows} rows, {new}"


def warm_start_config(directory: Path, *, seed: int, steps: int = SFT_STEPS) -> SFTConfig:
    """Supervised warm start on 60 rows; label smoothing keeps the policy trying alternatives afterwards."""
    return SFTConfig(
        experiment_name="demo",
        trial_name="warm-start",
        output_dir=str(directory),
        seed=seed,
        num_threads=2,
        total_train_steps=steps,
        model=ModelConfig(init=MODEL, tokenizer_path=TOKENIZER),
        train_dataset=DatasetConfig(name="arithmetic", options=_dataset_options(seed)),
        actor=TrainEngineConfig(lr=3e-3, lr_schedule="cosine"),
        batch_size=256,
        label_smoothing=0.3,
    )


def rl_config(directory: Path, *, model: Path, seed: int, steps: int = RL_STEPS) -> PPOConfig:
    """Asynchronous GRPO on bare prompts, one weight version behind at most."""
    return PPOConfig(
        experiment_name="demo",
        trial_name="grpo",
        output_dir=str(directory),
        seed=seed,
        num_threads=1,
        total_train_steps=steps,
        model=ModelConfig(path=str(model)),
        train_dataset=DatasetConfig(name="arithmetic", options=_dataset_options(seed)),
        eval_sets={
            "test": EvalSetConfig(
                dataset=DatasetConfig(name="arithmetic", split="test", options=_dataset_options(seed)), rows=TEST_ROWS
            )
        },
        reward="exact",
        gconfig=GenerationConfig(max_new_tokens=4),
        rollout=RolloutConfig(batch_size=64, group_size=8, max_head_offpolicyness=1),
        engine=EmbeddedEngineConfig(max_batch_size=512, max_seq_len=64, num_threads=1),
        objective=ObjectiveConfig(preset="dapo", entropy_coef=0.03),
        actor=TrainEngineConfig(lr=5e-4, warmup_steps=8),
        metrics=MetricsConfig(rollouts_per_step=1),
    )


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Options of `areal demo`."""

    control: Literal["none", "sft-only", "shuffled-rewards"] = "none"
    """none: train. sft-only: stop before RL. shuffled-rewards: RL on rewards that say nothing."""
    seed: int = 1
    """Of data, parameters and sampling."""
    steps: int | None = None
    """RL steps; None for those that the demo needs to learn."""
    output_dir: Path | None = None
    """Run directory; None for runs/demo/<control>-<seed>."""

    @property
    def directory(self) -> Path:
        """Folder of the demo."""
        return self.output_dir or Path("runs") / "demo" / f"{self.control}-{self.seed}"

    def phases(self) -> tuple[SFTConfig, PPOConfig]:
        """Return the runs. Raises ConfigError for wrong options, and for a folder that holds other files: an earlier
        demo may be removed, something else is not touched."""
        sft_only = self.control == "sft-only"
        warm_start = warm_start_config(
            self.directory / "warm-start", seed=self.seed, steps=CONTROL_SFT_STEPS if sft_only else SFT_STEPS
        )
        rl = rl_config(
            self.directory / "grpo",
            model=self.directory / "warm-start" / "final",
            seed=self.seed,
            steps=0 if sft_only else (RL_STEPS if self.steps is None else self.steps),
        )
        known = {"warm-start", "grpo", "demo.json", "report.html"}
        entries = self.directory.iterdir() if self.directory.exists() else ()
        foreign = sorted(entry.name for entry in entries if entry.name not in known)
        if foreign:
            raise ConfigError(
                f"{self.directory} holds other files ({', '.join(foreign[:3])}); choose another --output-dir"
            )
        return warm_start, rl


def plan_demo(config: DemoConfig) -> dict[str, Any]:
    """Say what the demo would do; nothing is trained or removed."""
    warm_start, rl = config.phases()
    replaces = config.directory.exists()
    steps = f"{warm_start.total_train_steps} supervised and {rl.total_train_steps} RL steps"
    removal = " (an earlier demo there is removed)" if replaces else ""
    return {
        "ok": True,
        "directory": str(config.directory),
        "replaces": replaces,
        "steps": {"warm_start": warm_start.total_train_steps, "grpo": rl.total_train_steps},
        "text": f"would train {steps} in {config.directory}{removal}",
    }


def run_demo(config: DemoConfig) -> dict[str, Any]:
    """Run both phases; returns the scores and a text for people. `ok` says whether the run did what it should."""
    directory = config.directory
    # Before anything is removed or trained: a wrong option costs nothing.
    warm_start, rl = config.phases()
    if directory.exists():
        shutil.rmtree(directory)
    warm = run(warm_start)
    if not warm["finished"]:
        return {"ok": False, "exit_code": warm["exit_code"], "text": "stopped during the warm start"}
    _logger.info("warm start: loss %.3f after %d steps, %.1f s", warm["loss"], warm["steps"], warm["seconds"])
    configure_threads(rl.num_threads)
    transform = shuffle_rewards if config.control == "shuffled-rewards" else None
    with open_session(rl) as session, PPOTrainer(rl, session, transform_rewards=transform) as trainer:
        summary = trainer.train()
        assert trainer.evaluator is not None
        (test,) = trainer.evaluator.sets
        before, after = (score(trainer.evaluations[index].results[test.name], test.rows) for index in (0, -1))
    from areal.infra.metrics.report import write_report

    gain = after.new_rows - before.new_rows
    learnt = gain >= LEARNT_BY
    expected = config.control == "none" and config.steps is None
    report = write_report(directory / "grpo", directory / "report.html")
    if config.control == "sft-only":
        verdict = [f"supervised {after.text()} (control: {CONTROL_SFT_STEPS} steps on the demonstrations, no RL)"]
    else:
        verdict = [
            f"before RL  {before.text()}",
            f"after RL   {after.text()}",
            f"{'learnt from the reward alone' if learnt else 'did not learn new facts'}: {gain:+.1%} on expressions it "
            f"was never shown (control: {config.control}, seed {config.seed})",
        ]
    text = [
        *verdict,
        f"time       {warm['seconds']:.0f} s warm start, {summary['seconds']:.0f} s RL "
        f"({summary['steps']} steps, {summary['generated_tokens']:,} tokens)",
        f"model      {summary['checkpoint']}  (Hugging Face format)",
        f"report     {report}",
    ]
    result = {
        "ok": summary["finished"] and (learnt if expected else True),
        "exit_code": summary["exit_code"],
        "control": config.control,
        "seed": config.seed,
        "before": {"all": before.all_rows, "new": before.new_rows},
        "after": {"all": after.all_rows, "new": after.new_rows},
        "learnt": learnt,
        "steps": summary["steps"],
        "seconds": {"warm_start": warm["seconds"], "rl": summary["seconds"]},
        "checkpoint": summary["checkpoint"],
        "report": str(report),
        "text": "\n".join(text),
    }
    atomic_write(directory / "demo.json", json.dumps(result, indent=2))
    return result


def shuffle_rewards(step: int, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """Control: the same rewards, dealt out to other samples of the batch. Nothing can be learnt from them."""
    rewards = [item.reward for item in trajectories]
    random.Random(f"shuffled rewards {step}").shuffle(rewards)
    return [replace(item, reward=reward) for item, reward in zip(trajectories, rewards, strict=True)]


def score(result: SetResult, rows: Sequence[Any]) -> Score:
    """Accuracy on all rows and on those with a new expression; a row that could not be scored counts as wrong."""
    pairs = [(reward or 0.0, row["demonstrated"]) for reward, row in zip(result.rewards, rows, strict=True)]
    new = [reward for reward, demonstrated in pairs if not demonstrated]
    return Score(
        all_rows=sum(reward for reward, _ in pairs) / len(pairs),
        new_rows=sum(new) / max(1, len(new)),
        num_rows=len(pairs),
        num_new_rows=len(new),
    )


def _dataset_options(seed: int) -> dict[str, Any]:
    return {"demonstrations": DEMONSTRATIONS, "seed": seed}
