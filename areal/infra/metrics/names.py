"""Names of the metrics that the live view and the report know how to show.

Any other name is stored and plotted as it is.

Form: "<group>/<what>" with units in the name where they are not obvious. All are plain floats, one value per step.
Step k is the state after k training steps; step 0 is before the first one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REWARD_MEAN: Final = "reward/mean"
REWARD_STD: Final = "reward/std"
REWARD_MIN: Final = "reward/min"
REWARD_MAX: Final = "reward/max"
DISTILLATION_PREFIX: Final = "distillation/"
ZERO_VARIANCE_SHARE: Final = "reward/zero_variance_share"
"""Share of the step's groups of two and more samples whose rewards are all equal: they teach nothing."""
COMPONENT_PREFIX: Final = "reward/"
"""Of each reward component `reward/<name>/mean` and `/std` over the step's samples, `/failures` (calls without a value)
and `/seconds` (mean of a call, waiting in the queue left out) of the prompts that ended since the last step."""
STATS_PREFIX: Final = "stats/"
"""What rewards, workflows and datasets recorded (`areal.utils.stats`): `stats/<name>` is the mean over the step's
samples that recorded it, with `/count`, `/min` and `/max`."""
EVAL_LOSS: Final = "eval/loss"
EVAL_FAILED: Final = "eval/failed"
"""1 where an evaluation ended with an error; nothing was measured then."""
EVAL_PREFIX: Final = "eval/"
"""Measured on held-out rows; of a run with rewards "eval/<set>/<what>", see `areal.trainer.evaluation.samples`."""
ACCURACY: Final = "train/accuracy"
"""Share of the step's pairs whose preferred answer is ahead; a tie counts half."""
EVAL_ACCURACY: Final = "eval/accuracy"
"""The same on the validation pairs."""
MARGIN: Final = "train/margin"
"""Mean lead of the preferred answers: difference of rewards, or of a reward model's scores."""
EVAL_MARGIN: Final = "eval/margin"
LENGTH_MEAN: Final = "length/mean"
"""Sampled tokens per trajectory."""
LENGTH_MAX: Final = "length/max"
TRUNCATED_FRACTION: Final = "length/truncated_fraction"
LOSS: Final = "train/loss"
GRAD_NORM: Final = "train/grad_norm"
LEARNING_RATE: Final = "train/learning_rate"
SKIPPED_STEPS: Final = "train/skipped_steps"
"""Optimizer steps that were left out because loss or gradient was not finite."""
ENTROPY: Final = "train/entropy"
"""Mean entropy of the policy per sampled token, in nats."""
KL: Final = "train/kl"
"""Mean distance to the reference model, or to the previous policy where there is no reference."""
CLIP_FRACTION: Final = "train/clip_fraction"
STALENESS_MEAN: Final = "staleness/mean"
"""Weight versions between sampling and training, mean over tokens."""
STALENESS_MAX: Final = "staleness/max"
MISMATCH_PREFIX: Final = "mismatch/"
"""Sampler against trainer in every step, see `areal.algorithm.tokens.mismatch_summary`."""
MISMATCH_MEAN: Final = "mismatch/abs_mean"
"""Mean |log-probability at sampling - recomputed by the trainer| over sampled tokens."""
MISMATCH_MAX: Final = "mismatch/abs_max"
TOKENS_PER_SECOND: Final = "throughput/tokens_per_second"
"""Tokens per second of wall time: generated ones in RL, trained ones in SFT."""
FLOPS_PER_TOKEN: Final = "perf/flops_per_token"
"""Operations of forward and backward pass per trained token, recomputation not counted."""
MFU: Final = "perf/mfu"
"""Model FLOPs utilisation while the model learns: operations that were needed, of those the accelerators could do."""
WEIGHTS_SENT: Final = "weights/sent_bytes"
"""Bytes of tensors that the step's weight update sent to servers, each server counted as one worker."""
WEIGHTS_SKIPPED: Final = "weights/skipped_bytes"
"""Bytes of tensors that servers had already and were not sent (weights.deltas)."""
TRAINER_ASLEEP: Final = "memory/trainer_asleep_mb"
"""MiB of the device that the learner keeps while servers have it (servers.sleep_learner)."""
TRAINER_IN_HOST: Final = "memory/trainer_in_host_mb"
"""MiB of the learner that are in host memory meanwhile."""
TIME_PREFIX: Final = "time/"
"""Seconds of one step spent on something, e.g.

"time/rollout_wait", "time/train", "time/update"; they add up to the step.
"""
TIME_STEP: Final = "time/step"
"""Wall seconds of the whole step; not part of the split."""
FAULT_PREFIX: Final = "rollout/faults/"
"""Failed attempts at episodes by kind, those that a retry made good included, e.g. "rollout/faults/reward_timeout"."""
DROPPED_PREFIX: Final = "rollout/dropped/"
"""Prompts that were given up by reason: a kind of fault, "zero_variance", "rejected", "stale" or "surplus"."""
CANCELLED: Final = "rollout/cancelled"
"""Surplus prompts (`rollout.surplus_prompts`) that were cancelled, or not started any more, when the batch was
complete."""
CANCELLED_SHARE: Final = "rollout/cancelled_share"
"""The same as a share of the prompts that were trained, dropped or cancelled in the step."""
CANCELLED_SAMPLES: Final = "rollout/cancelled_samples"
"""Samples of cancelled prompts that had been finished: work thrown away."""
SOURCE_PREFIX: Final = "source/"
"""Of each of several sources `source/<name>/share`, `/reward_mean` and `/pass_rate` of the step's prompts, `/rows`
(distinct ones visited), `/epochs` and, under a curriculum, `/pool/<pool>` (rows at rest)."""
CURRICULUM_PREFIX: Final = "curriculum/"
"""The same of a single source that has a curriculum."""
_EVAL_SCORE: Final = re.compile(r"eval/([^/]+)/avg@\d+")


def eval_scores(found: Iterable[str]) -> dict[str, str]:
    """Return the mean rewards of evaluation sets among `found`: metric ("eval/test/avg@8") to name of the set."""
    matches = ((name, _EVAL_SCORE.fullmatch(name)) for name in sorted(set(found)))
    return {name: match[1] for name, match in matches if match}
