"""Rules about what a run learns: rewards, groups, divergence, entropy, lengths, evaluations, learning rate.

Each takes a record and returns its evidence, or None when it does not apply. "Early" and "late" are means over the
first and the last quarter of the steps; rules about trends want at least `MIN_STEPS` steps.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise
from statistics import fmean as mean
from statistics import median
from typing import TYPE_CHECKING, Final

from areal.infra.diagnosis.record import Grounds, first_quarter, last_quarter
from areal.infra.metrics import names

if TYPE_CHECKING:
    from areal.infra.diagnosis.record import Points, RunRecord

MIN_STEPS: Final = 8
FLAT_STEPS: Final = 20
"""Fewer steps than this say nothing about a flat reward."""
EQUAL_SHARE: Final = 0.9
CLIPPED_SHARE: Final = 0.5
MASKED_SHARE: Final = 0.9
STILL: Final = 0.01
"""Relative change of entropy and length below which the policy did not move."""
KL_LIMIT: Final = 0.5
KL_FACTOR: Final = 10.0
SPIKE_FACTOR: Final = 3.0
GRADIENT_FACTOR: Final = 20.0
COLLAPSE: Final = 0.1
EXPLOSION_FACTOR: Final = 2.0
EXPLOSION_NATS: Final = 1.0
TRUNCATED_SHARE: Final = 0.3
FALL: Final = 0.25
MISMATCH_LIMIT: Final = 0.1
ENDED_SHARE: Final = 0.1
SOLVED_LEVEL: Final = 0.95


def is_solved(record: RunRecord) -> bool:
    """Say whether the reward rose to within 5 % of the best it can be, judged by the rewards that the run has seen.

    Groups without differences and a low entropy are then what success looks like, and no sign of a problem.
    """
    points = record.values(names.REWARD_MEAN)
    if len(points) < MIN_STEPS or _level(record) < SOLVED_LEVEL:
        return False
    return record.late(names.REWARD_MEAN) - record.early(names.REWARD_MEAN) > 3 * standard_error(points)


def groups_all_right(record: RunRecord) -> Grounds | None:
    """Detect that nearly all groups have equal rewards, near the best that the run has seen, which it did not learn."""
    return _equal_groups(record) if _level(record) >= 0.5 and not is_solved(record) else None


def groups_all_wrong(record: RunRecord) -> Grounds | None:
    """Detect that nearly all groups have equal rewards, near the worst that the run has seen."""
    return _equal_groups(record) if _level(record) < 0.5 else None


def _equal_share(record: RunRecord) -> float:
    """Late share of groups without differences; of a run that does not log it, 1 where no rewards differ at all."""
    if record.values(names.ZERO_VARIANCE_SHARE):
        return record.late(names.ZERO_VARIANCE_SHARE)
    return 1.0 if record.late(names.REWARD_STD) == 0 else 0.0


def _level(record: RunRecord) -> float:
    """Where the late mean reward lies between the worst and the best of the run: 0 to 1.

    A mean of 0.004 with one right answer in 256 is at the lower end, although its deviation of 0.06 is symmetric.
    """
    means = [value for _, value in record.values(names.REWARD_MEAN)]
    low = min((value for _, value in record.values(names.REWARD_MIN)), default=min(means, default=0.0))
    high = max((value for _, value in record.values(names.REWARD_MAX)), default=max(means, default=0.0))
    late = record.late(names.REWARD_MEAN)
    return (late - low) / (high - low) if high - low > 1e-9 else float(late > 0)


def _equal_groups(record: RunRecord) -> Grounds | None:
    share, late = _equal_share(record), record.late(names.REWARD_MEAN)
    if share < EQUAL_SHARE or record.setting("critic") is not None or len(record.values(names.REWARD_MEAN)) < 3:
        return None
    return Grounds(
        text=f"{share:.0%} of the groups of the last quarter have equal rewards, at a mean reward of {late:.3g}",
        numbers={"equal_share": share, "reward": late, "reward_std": record.late(names.REWARD_STD)},
    )


def standard_error(points: Points) -> float:
    """Return that of the mean over a quarter of the points, from how much neighbours differ: a trend is not noise."""
    steps = [b - a for (_, a), (_, b) in pairwise(points)]
    sigma = math.sqrt(mean(step * step for step in steps) / 2) if steps else 0.0
    return sigma / math.sqrt(max(1, len(points) // 4))


def _flat(record: RunRecord) -> dict[str, float] | None:
    """Numbers of a reward that differs within groups and does not move; None for any other."""
    points = record.values(names.REWARD_MEAN)
    if len(points) < FLAT_STEPS or _equal_share(record) >= EQUAL_SHARE:
        return None
    early, late, error = record.early(names.REWARD_MEAN), record.late(names.REWARD_MEAN), standard_error(points)
    if abs(late - early) >= 3 * error:
        return None
    return {"reward_early": early, "reward_late": late, "standard_error": error}


def _clipped(record: RunRecord) -> float:
    parts = [record.late(name) for name in (names.CLIP_FRACTION, "train/dual_clip_fraction")]
    return sum(part for part in parts if math.isfinite(part))


def _masked(record: RunRecord) -> float:
    late = record.late("train/masked_fraction")
    return late if math.isfinite(late) else 0.0


def _gradient_vanished(record: RunRecord) -> bool:
    norms = record.values(names.GRAD_NORM)
    return bool(norms) and max(value for _, value in last_quarter(norms)) == 0


def _still(record: RunRecord) -> dict[str, float] | None:
    """Relative changes of entropy and length, when both are negligible."""
    changes = {}
    for label, name in (("entropy", names.ENTROPY), ("length", names.LENGTH_MEAN)):
        early, late = record.early(name), record.late(name)
        if not math.isfinite(early) or not early or abs(late / early - 1) > STILL:
            return None
        changes[f"{label}_change"] = late / early - 1
    return changes


def _flat_evidence(numbers: dict[str, float], text: str, **more: float) -> Grounds:
    moved = f"mean reward {numbers['reward_early']:.3g} early and {numbers['reward_late']:.3g} late"
    return Grounds(text=f"{moved} (standard error {numbers['standard_error']:.2g}); {text}", numbers=numbers | more)


def flat_masked(record: RunRecord) -> Grounds | None:
    """Detect a flat reward while (nearly) nothing reaches the loss."""
    numbers, masked = _flat(record), _masked(record)
    if numbers is None or not (masked >= MASKED_SHARE or _gradient_vanished(record)):
        return None
    norm = record.late(names.GRAD_NORM)
    return _flat_evidence(
        numbers, f"{masked:.0%} of the tokens are masked, gradient norm {norm:.2g}", masked=masked, grad_norm=norm
    )


def flat_clipped(record: RunRecord) -> Grounds | None:
    """Detect a flat reward while most tokens are clipped, or masked by the correction."""
    numbers, clipped, masked = _flat(record), _clipped(record), _masked(record)
    if numbers is None or clipped + masked < CLIPPED_SHARE or masked >= MASKED_SHARE:
        return None
    text = f"{clipped:.0%} of the tokens are clipped and {masked:.0%} masked by the correction"
    return _flat_evidence(numbers, text, clipped=clipped, masked=masked)


def flat_still(record: RunRecord) -> Grounds | None:
    """Detect a flat reward of a policy that does not move although gradients reach it."""
    numbers, changes = _flat(record), _still(record)
    if numbers is None or changes is None or _gradient_vanished(record) or _clipped(record) + _masked(record) >= 0.5:
        return None
    rate, norm = record.late(names.LEARNING_RATE), record.late(names.GRAD_NORM)
    text = f"entropy changed by {changes['entropy_change']:+.2%}, length by {changes['length_change']:+.2%} "
    text += f"at a learning rate of {rate:.2g} and a gradient norm of {norm:.2g}"
    return _flat_evidence(numbers, text, **changes, learning_rate=rate, grad_norm=norm)


def flat_unexplained(record: RunRecord) -> Grounds | None:
    """Detect a flat reward of a policy that moves."""
    numbers = _flat(record)
    if numbers is None or _still(record) or _gradient_vanished(record) or _clipped(record) + _masked(record) >= 0.5:
        return None
    early, late = record.early(names.ENTROPY), record.late(names.ENTROPY)
    return _flat_evidence(numbers, f"the policy moves: entropy {early:.3g} early, {late:.3g} late", entropy=late)


def reward_fell(record: RunRecord) -> Grounds | None:
    """Detect that the training reward ends far below its own best stretch."""
    points = record.values(names.REWARD_MEAN)
    if len(points) < FLAT_STEPS:
        return None
    width = len(points) // 4
    sums = [0.0, *accumulate(value for _, value in points)]
    ends = range(width, len(points))
    end = max(ends, key=lambda index: sums[index] - sums[index - width])
    step, best = points[end - 1][0], (sums[end] - sums[end - width]) / width
    late = record.late(names.REWARD_MEAN)
    worst = min(value for _, value in points)
    if best - late <= max(FALL * (best - min(0.0, worst)), 4 * standard_error(points)):
        return None
    return Grounds(
        text=f"mean reward {late:.3g} late, after {best:.3g} over the {width} steps to step {step}",
        numbers={"best": best, "best_until_step": step, "late": late},
    )


def kl_explosion(record: RunRecord) -> Grounds | None:
    """Detect that the distance to the reference, or to the sampling policy, leaves its range."""
    points = record.values(names.KL)
    if len(points) < MIN_STEPS:
        return None
    usual = median(value for _, value in points[: len(points) // 2])
    step, worst = max(last_quarter(points), key=lambda point: point[1])
    if worst < max(KL_LIMIT, KL_FACTOR * usual):
        return None
    return Grounds(
        text=f"{names.KL} {worst:.3g} at step {step}, median of the first half {usual:.2g}",
        numbers={"kl": worst, "step": step, "median_first_half": usual},
    )


def loss_spike(record: RunRecord) -> Grounds | None:
    """Detect that the loss of a supervised run jumps after it had come down."""
    points = record.values(names.LOSS)
    if not record.is_supervised or len(points) < MIN_STEPS:
        return None
    usual = median(value for _, value in points)
    step, worst = max(points[len(points) // 4 :], key=lambda point: point[1])
    if usual <= 0 or worst < SPIKE_FACTOR * usual:
        return None
    return Grounds(
        text=f"loss {worst:.3g} at step {step}, median {usual:.3g}",
        numbers={"loss": worst, "step": step, "median": usual},
    )


def gradient_spikes(record: RunRecord) -> Grounds | None:
    """Detect that single steps have gradients far above the usual."""
    points = record.values(names.GRAD_NORM)
    if len(points) < MIN_STEPS:
        return None
    usual = median(value for _, value in points)
    limit = max(GRADIENT_FACTOR * usual, float(record.setting("actor.max_grad_norm", 1.0)))
    spikes = [point for point in points[len(points) // 4 :] if usual > 0 and point[1] >= limit]
    if not spikes:
        return None
    step, worst = max(spikes, key=lambda point: point[1])
    return Grounds(
        text=f"{len(spikes)} steps have a gradient norm of at least {limit:.3g}, the median is {usual:.2g}; "
        f"the largest is {worst:.3g} at step {step}",
        numbers={"steps": len(spikes), "largest": worst, "step": step, "median": usual},
    )


def entropy_collapse(record: RunRecord) -> Grounds | None:
    """Detect that the policy has become nearly deterministic."""
    early, late = record.early(names.ENTROPY), record.late(names.ENTROPY)
    if len(record.values(names.ENTROPY)) < MIN_STEPS or not late <= COLLAPSE * early or early <= 0:
        return None
    if is_solved(record):
        return None
    return Grounds(
        text=f"entropy {early:.3g} nats early, {late:.3g} late", numbers={"entropy_early": early, "entropy_late": late}
    )


def entropy_explosion(record: RunRecord) -> Grounds | None:
    """Detect that the policy becomes random."""
    early, late = record.early(names.ENTROPY), record.late(names.ENTROPY)
    if len(record.values(names.ENTROPY)) < MIN_STEPS or not late >= EXPLOSION_FACTOR * early:
        return None
    if late - early < EXPLOSION_NATS:
        return None
    return Grounds(
        text=f"entropy {early:.3g} nats early, {late:.3g} late", numbers={"entropy_early": early, "entropy_late": late}
    )


def length_limit(record: RunRecord) -> Grounds | None:
    """Detect that answers run into the token budget, and more of them than before."""
    name = names.TRUNCATED_FRACTION
    early, late = record.early(name), record.late(name)
    if len(record.values(name)) < MIN_STEPS or late < TRUNCATED_SHARE or not (late - early >= 0.1 or late >= 0.5):
        return None
    budget = int(record.setting("gconfig.max_new_tokens", 0))
    short, long = record.early(names.LENGTH_MEAN), record.late(names.LENGTH_MEAN)
    return Grounds(
        text=f"{late:.0%} of the answers are cut at {budget or 'the budget of'} tokens ({early:.0%} early); mean "
        f"length {short:.4g} early, {long:.4g} late",
        numbers={"truncated_early": early, "truncated_late": late, "length_early": short, "length_late": long},
    )


def evaluation_fell(record: RunRecord) -> Grounds | None:
    """Detect that the evaluation of a set falls from its best while the training reward goes on rising."""
    found = (_set_fell(record, metric, name) for metric, name in record.eval_scores().items())
    return next((grounds for grounds in found if grounds is not None), None)


def _set_fell(record: RunRecord, metric: str, name: str) -> Grounds | None:
    points = record.values(metric)
    rewards = record.values(names.REWARD_MEAN)
    if len(points) < 3 or len(rewards) < MIN_STEPS:
        return None
    best_step, best = max(points, key=lambda point: point[1])
    last = mean(value for _, value in last_quarter(points))
    rows = record.late(f"{names.EVAL_PREFIX}{name}/rows")
    noise = record.late(names.REWARD_STD) / math.sqrt(rows) if rows > 0 else 0.0
    before = [value for step, value in rewards if step <= best_step] or [rewards[0][1]]
    then = mean(before[-max(1, len(rewards) // 4) :])
    now = record.late(names.REWARD_MEAN)
    if best - last < max(0.02, 3 * noise) or now - then < 3 * standard_error(rewards) or now <= then:
        return None
    return Grounds(
        text=f"evaluation of {name} {best:.3g} at step {best_step} and {last:.3g} at the end, while the training "
        f"reward went from {then:.3g} to {now:.3g}",
        numbers={"best": best, "best_step": best_step, "last": last, "reward_then": then, "reward_now": now},
    )


def evaluation_loss_rose(record: RunRecord) -> Grounds | None:
    """Detect that the loss on held-out rows rises from its best while that on the training rows falls."""
    points = record.values(names.EVAL_LOSS)
    losses = record.values(names.LOSS)
    if not record.is_supervised or len(points) < 3 or len(losses) < MIN_STEPS:
        return None
    best_step, best = min(points, key=lambda point: point[1])
    last = points[-1][1]
    train_early, train_late = (mean(v for _, v in part) for part in (first_quarter(losses), last_quarter(losses)))
    if last < best * 1.05 or train_late >= train_early:
        return None
    return Grounds(
        text=f"evaluation loss {best:.4g} at step {best_step} and {last:.4g} at the end, while the training loss went "
        f"from {train_early:.4g} to {train_late:.4g}",
        numbers={"best": best, "best_step": best_step, "last": last, "train_early": train_early, "train": train_late},
    )


def engines_differ(record: RunRecord) -> Grounds | None:
    """Detect that sampler and trainer disagree about the same tokens, more and more."""
    name = names.MISMATCH_MEAN
    early, late = record.early(name), record.late(name)
    if len(record.values(name)) < MIN_STEPS or not late >= max(MISMATCH_LIMIT, 2 * early):
        return None
    return Grounds(
        text=f"mean |log-probability of the sampler - of the trainer| {early:.3g} early, {late:.3g} late",
        numbers={"mismatch_early": early, "mismatch_late": late, "mismatch_max": record.late(names.MISMATCH_MAX)},
    )


def schedule_ended(record: RunRecord) -> Grounds | None:
    """Detect that steps are done at a learning rate of practically zero."""
    points = record.values(names.LEARNING_RATE)
    top = max((value for _, value in points), default=0.0)
    idle = 0
    for _, value in reversed(points):
        if value > 1e-3 * top:
            break
        idle += 1
    if idle < max(5, ENDED_SHARE * len(points)):
        return None
    return Grounds(
        text=f"the last {idle} of {len(points)} steps have a learning rate of {points[-1][1]:.2g}, the largest was "
        f"{top:.2g}",
        numbers={"idle_steps": idle, "steps": len(points), "largest": top, "last": points[-1][1]},
    )
