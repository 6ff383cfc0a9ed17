"""Run a configuration: the one function behind `areal train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import load
from areal.trainer.config import PPOConfig
from areal.trainer.processes import run_on_rank_zero
from areal.trainer.session import open_session

if TYPE_CHECKING:
    from areal.trainer.config import RowsConfig
    from areal.trainer.rank_group import RankGroup

ROW_TRAINERS: Final[dict[str, str]] = {
    "dpo": "areal.trainer.dpo:DPOTrainer",
    "reward_model": "areal.trainer.reward_model:RewardModelTrainer",
    "sft": "areal.trainer.sft:SFTTrainer",
}
"""Kind of run to the trainer, for those that learn from rows as they are. Strings, so that a run loads only its own."""


def run(config: PPOConfig | RowsConfig) -> dict[str, Any]:
    """Train as `config` says and return the summary (JSON values; see the trainers' `train`).

    Writes config.yaml, metrics.jsonl, rollouts.jsonl, checkpoints/, final/ and report.html into the run directory.
    With `config.archon`, this is called in every process of the run: rank 0 does all that, the others what rank 0 asks
    of them, and they return {"rank": ..., "exit_code": ...}.
    """
    from areal.trainer.ppo import configure_threads

    configure_threads(config.num_threads)
    return run_on_rank_zero(config, lambda group: lead(config, group))


def lead(config: PPOConfig | RowsConfig, group: RankGroup) -> dict[str, Any]:
    """Run everything, from rank 0; group: all ranks, which do what they are asked for."""
    from areal.infra.metrics.report import write_report

    with open_session(config) as session:
        if isinstance(config, PPOConfig):
            from areal.trainer.ppo import PPOTrainer

            with PPOTrainer(config, session, group) as trainer:
                summary = trainer.train()
        else:
            summary = load("trainer", config.kind, ROW_TRAINERS)(config, session, group).train()
    summary["report"] = str(write_report(session.directory, session.directory / "report.html"))
    return summary
