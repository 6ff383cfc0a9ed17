"""Warm start, GRPO and controls of the locked boxes, measured on held-out seeds, on one CPU core.

    python -m examples.environment.learn --seed 1 --folder runs/boxes

Accuracy is the share of right digits on chains of seeds that no run trains on, greedy, by depth of the chain. Training
must raise it, and each control must not learn, all from the same warm start:

    shuffled    trains with rewards that went to another sample of the same prompt
    other       trains where look-ups show another chain of equal form
    nothing     trains where look-ups show a question mark
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from examples.environment.locked_boxes import DEPTHS

from areal.algorithm.advantages import GRPO, AdvantageEstimate, RewardBatch
from areal.api import GenerationConfig
from areal.dataset.encoding import load_tokenizer
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.hf import loading
from areal.trainer.configuration.source import load_config
from areal.trainer.ppo import PPOTrainer
from areal.trainer.session import open_session
from areal.trainer.sft import SFTTrainer
from areal.utils.seeding import EpisodeSeeds, seeds_of_episode
from areal.workflow.environment import EnvironmentWorkflow

FOLDER: Final = Path(__file__).resolve().parent
EPISODES: Final = 300
CONTROLS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "shuffled": ("true", {"objective.advantage": {"name": "examples.environment.learn:ShuffledGRPO"}}),
    "other": ("other", {"workflow_options.environment_options": {"shown": "other"}}),
    "nothing": ("nothing", {"workflow_options.environment_options": {"shown": "nothing"}}),
}
"""Name to what look-ups show when the control is measured, and what it changes in the run."""


@dataclass(frozen=True, kw_only=True)
class ShuffledGRPO(GRPO):
    """GRPO on rewards that went to another sample of the prompt: each gets that of the next one in its group."""

    def estimate(self, batch: RewardBatch) -> AdvantageEstimate:
        """Estimate the advantage of every token of the step; each sequence is a sample."""
        import torch

        source = torch.arange(batch.rewards.shape[0])
        for group in batch.groups.unique():
            members = (batch.groups == group).nonzero().flatten()
            source[members] = members.roll(1)
        return GRPO.estimate(self, replace(batch, rewards=batch.rewards[source]))


def train(name: str, directory: Path, **changes: Any) -> Path:
    """Run a configuration of this folder as `areal train` does; return its checkpoint."""
    settings = {"output_dir": str(directory), "metrics.progress": False, **changes}
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    config = load_config(FOLDER / name, overrides).config
    with open_session(config) as session:
        if config.kind == "sft":
            return Path(SFTTrainer(config, session).train()["checkpoint"])
        with PPOTrainer(config, session) as trainer:
            return Path(trainer.train()["checkpoint"])


def accuracy(model: Path, *, shown: str = "true") -> dict[str, float]:
    """Return the share of right greedy answers on held-out seeds, by depth."""
    tokenizer = load_tokenizer(str(model))
    engine = EmbeddedEngine(
        loading.from_pretrained(model),
        config=EmbeddedEngineConfig(max_seq_len=64, max_batch_size=128, num_threads=1),
        eos_token_id=tokenizer.eos_token_id,
    )
    workflow = EnvironmentWorkflow(
        no_reward,
        GenerationConfig(max_new_tokens=20, greedy=True),
        tokenizer,
        environment="examples.environment.locked_boxes:LockedBoxes",
        environment_options={"shown": shown},
        host={"kind": "process", "max_environments": 128},
        max_turns=4,
        credit="outcome",
    )

    async def episode(depth: int, seed: int) -> float:
        with seeds_of_episode(EpisodeSeeds(prompt=seed)):
            return (await workflow.arun_episode(engine, {"depth": depth})).reward

    async def all_of(depth: int) -> list[float]:
        return await asyncio.gather(*(episode(depth, seed) for seed in range(EPISODES)))

    return {str(depth): round(sum(asyncio.run(all_of(depth))) / EPISODES, 3) for depth in DEPTHS}


async def no_reward(*_: Any, **__: Any) -> float:
    """Stand for the reward of a run: episodes bring their own."""
    raise AssertionError("the environment gives the reward")


def main() -> int:
    """Run the task and its controls; exit code 1 when training does not learn, or a control does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/boxes"))
    parser.add_argument("--without-controls", action="store_true", help="only the run itself, in a quarter of the time")
    options = parser.parse_args()
    folder, seed = options.folder / str(options.seed), options.seed
    started, used = time.perf_counter(), time.process_time()
    start = train("demonstrations_sft.yaml", folder / "start", seed=seed, **{"train_dataset.options": {"seed": seed}})
    found: dict[str, Any] = {"seed": seed, "before": accuracy(start)}

    def reinforced(name: str, **changes: Any) -> Path:
        return train("locked_boxes_grpo.yaml", folder / name, seed=seed, **{"model.path": str(start), **changes})

    trained = reinforced("trained")
    found["trained"] = accuracy(trained)
    controls = {} if options.without_controls else CONTROLS
    for name, (shown, changes) in controls.items():
        found[name] = accuracy(reinforced(name, **changes), shown=shown)
    for shown in ("other", "nothing"):
        found[f"trained, shown {shown}"] = accuracy(trained, shown=shown)
    found["seconds"] = round(time.perf_counter() - started)
    found["cpu_seconds"] = round(time.process_time() - used)
    print(json.dumps(found))
    deep = [str(depth) for depth in DEPTHS if depth > 1]
    learned = all(found["before"][depth] <= 0.25 and found["trained"][depth] >= 0.8 for depth in deep)
    flat = all(found[name][depth] <= 0.3 for name in controls for depth in deep)
    return 0 if learned and flat else 1


if __name__ == "__main__":
    sys.exit(main())
