"""Configuration of asynchronous rollout. The unit of every count is one *prompt* (a group of `group_size` samples)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, ConfigError, number


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Config):
    """How prompts become training batches."""

    engine: Literal["embedded", "sglang", "vllm"] = "embedded"
    """What generates. embedded: this process (section engine); vllm, sglang: server processes (sections servers,
    supervisor, weights, and that of the same name)."""
    batch_size: int = number(64, at_least=1, at_most=2**20)
    """Prompts per training step."""
    group_size: int = number(8, at_least=1, at_most=65536)
    """Samples per prompt."""
    max_head_offpolicyness: int = number(1, at_least=0)
    """Hard bound: no trained token is older than this many weight versions. 0 is synchronous training."""
    consume: Literal["deadline", "drop", "fifo"] = "fifo"
    """Which finished prompts form the next batch. All keep the bound. fifo: admission order (unbiased, waits for
    stragglers); deadline: any finished prompts, as long as every waiting one can still meet the bound; drop: any
    finished prompts, and those that became too old are dropped and counted (biased against long answers)."""
    max_concurrent_prompts: int = number(0, at_least=0)
    """Prompts in flight at once; 0 means as many as the staleness bound and surplus_prompts admit."""
    surplus_prompts: int = number(0, at_least=0)
    """Prompts started beyond those that the bound admits while the trainer waits for a batch (oversampling), so that
    prompts which are dropped (filter_zero_variance, faults) have been replaced already. Once the batch is complete, the
    surplus is cancelled in the engine. With consume fifo, batches are those of a run without surplus, and what was
    cancelled is sampled again, first of all, with newer weights; with drop, the prompts that finish first are trained
    and the others given up, which is biased against long answers. deadline cancels as fifo does; a surplus prompt is
    only trained or dropped once it has taken the place of a prompt that was dropped."""
    max_retries: int = number(2, at_least=0)
    """Further attempts at an episode after a retryable fault."""
    min_group_size: int = number(0, at_least=0)
    """Samples a prompt must keep after faults, else the whole prompt is dropped; 0 means all of group_size."""
    max_consecutive_failures: int = number(32, at_least=1)
    """Prompts that may be dropped in a row for faults before the run stops with the tally of reasons."""
    max_lost_rewards: int = number(16, at_least=1)
    """Samples in a row whose reward timed out or lost its process, none scored in between, before the run stops. While
    no sample has been scored, 4 samples are enough, unless they are of one prompt and the reward has answered for
    another."""
    filter_zero_variance: bool = False
    """Drop prompts whose samples all have the same reward (dynamic sampling); they are replaced by further ones."""
    max_filtered_batches: int = number(10, at_least=1)
    """With filter_zero_variance: batches worth of prompts filtered in a row before the run stops."""
    reward_timeout_seconds: float = number(15.0, above=0)
    """A reward call that takes longer is killed and counts as a fault. Like reward_workers and reward_memory_mb,
    without effect on exact and gsm8k, which need no process."""
    reward_workers: int = number(1, at_least=1)
    """Worker processes for rewards."""
    reward_memory_mb: int = number(0, at_least=0)
    """Address space of each reward process in MiB; an allocation beyond it fails inside the reward, which is a fault of
    that sample. 0 sets no limit. Address space is more than memory: a reward that loads torch needs 16384 or so."""
    stall_seconds: float = number(300.0, above=0)
    """Without any finished episode for this long, a warning names what is pending and for how long."""

    def __post_init__(self) -> None:
        """Check that a group can be kept."""
        super().__post_init__()
        if self.min_group_size > self.group_size:
            raise ConfigError(f"min_group_size {self.min_group_size} exceeds group_size {self.group_size}")
        if self.filter_zero_variance and self.group_size == 1:
            raise ConfigError("filter_zero_variance would drop every prompt when group_size is 1; set group_size >= 2")


@dataclass(frozen=True, kw_only=True)
class PoolConfig(Config):
    """Rows of one difficulty."""

    up_to: float = number(1.0, at_least=0, at_most=1)
    """Highest running pass rate of its rows; the lowest follows from the pool below."""
    weight: float = number(1.0, at_least=0)
    """How often its rows are drawn, relative to the other pools that have rows; 0: only when no other pool has any."""


@dataclass(frozen=True, kw_only=True)
class CurriculumConfig(Config):
    """Which rows of a source come when: by how often they were solved."""

    pools: dict[str, PoolConfig] = field(default_factory=dict)
    """Pools by name, e.g. {hard: {up_to: 0.25}, medium: {up_to: 0.75, weight: 3}, easy: {weight: 0.2}}; one must reach
    up to 1. Empty: all rows alike."""
    unseen: float = number(1.0, above=0)
    """Weight of the pool of rows without a known outcome; without pools, such rows always come first."""
    replay: float = number(0.0, at_least=0, below=1)
    """Share of the prompts that repeat a hard row, as long as there is one; it is taken off the turns of the pools."""
    replay_up_to: float = number(0.5, at_least=0, at_most=1)
    """Rows are hard, for replay, up to this running pass rate."""
    max_reuse: int = number(0, at_least=0)
    """Most visits of a row, replays included; when a source has no row left the run stops. 0 sets no limit."""
    memory: float = number(0.5, at_least=0, at_most=1)
    """What an older outcome of a row counts at its next visit; 0 knows the last visit only, 1 never forgets."""

    def __post_init__(self) -> None:
        """Check that the pools hold every row."""
        super().__post_init__()
        tops = [pool.up_to for pool in self.pools.values()]
        if len(set(tops)) < len(tops):
            raise ConfigError("curriculum.pools: two pools have the same up_to, so one would be empty; remove it")
        if tops and max(tops) != 1.0:
            raise ConfigError(
                f"curriculum.pools end at a pass rate of {max(tops):g}, so rows above have no pool",
                fix="give the easiest pool up_to: 1.0",
            )
        if tops and not any(pool.weight for pool in self.pools.values()):
            raise ConfigError("curriculum.pools: every weight is 0", fix="give a pool a weight above 0")
        if reserved := {"unseen", "seen"} & set(self.pools):
            raise ConfigError(f"curriculum.pools: {min(reserved)!r} is the name of a pool that is always there; rename")

    @property
    def orders_rows(self) -> bool:
        """Whether rows come in another order than that of passes over the source."""
        return bool(self.pools or self.replay)
