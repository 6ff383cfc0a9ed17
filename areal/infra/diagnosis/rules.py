"""The table of rules: from a sign in the record of a run to its cause and what to do about it.

    findings = diagnose(load_record(Path("runs/gsm8k/default")))

A rule is a function over the record and a row of the table. Confidence is that of the cause, given the sign: "certain"
where the run recorded the cause itself, "likely" where little else looks so, "possible" where other causes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from areal.infra.diagnosis import learning, machinery

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.infra.diagnosis.record import Grounds, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisRule:
    """One row: `find` decides, the rest is for readers."""

    find: Callable[[RunRecord], Grounds | None]
    sign: str
    """What is seen."""
    when: str
    """Condition of `find`, with its numbers."""
    cause: str
    confidence: Literal["certain", "likely", "possible"]
    fix: str
    """What to do."""
    see: str
    """Page, and command where there is one."""

    def texts(self) -> dict[str, str]:
        """Return what readers see, by field."""
        return {field: getattr(self, field) for field in ("sign", "when", "cause", "confidence", "fix", "see")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that applies to a run, and why."""

    name: str
    """Key of `RULES`."""
    rule: DiagnosisRule
    grounds: Grounds


def diagnose(record: RunRecord) -> list[Finding]:
    """Apply all rules, in order of the table."""
    return [
        Finding(name=name, rule=rule, grounds=grounds)
        for name, rule in RULES.items()
        if (grounds := rule.find(record)) is not None
    ]


RULES: Final[dict[str, DiagnosisRule]] = {
    # the run ended, or does not get on
    "killed": DiagnosisRule(
        find=machinery.killed,
        sign="the process was killed",
        when="the lock names a process that is gone, a start wrote no end, or a rank was killed by SIGKILL",
        cause="the machine's memory ran out, or the job's limit or its machine was taken away",
        confidence="likely",
        fix=(
            "look at the kernel's log (dmesg) and the scheduler's; lower memory (reward_workers, micro-batches) or "
            "save more often (checkpoint.every_seconds), then start the same command again: it continues"
        ),
        see="docs/faults.md",
    ),
    "out_of_memory": DiagnosisRule(
        find=machinery.out_of_memory,
        sign="out of memory",
        when="a log line, the last error or the end of a server's or a rank's log says so",
        cause="micro-batches, sequences or caches are larger than the device",
        confidence="certain",
        fix=(
            "lower actor.max_tokens_per_micro_batch or logprob_chunk_size, set actor.gradient_checkpointing, lower "
            "vllm.gpu_memory_utilization, or split the model over more ranks"
        ),
        see="docs/parallel.md, areal plan CONFIG.yaml",
    ),
    "no_rollouts": DiagnosisRule(
        find=machinery.no_rollouts,
        sign="rollouts made no progress (exit code 22)",
        when="the last error is a RolloutError",
        cause="every prompt of a long row of them was dropped; the tally names the kinds of fault",
        confidence="certain",
        fix="mend the kind with the highest count: the reward, the workflow, the rows, or the filter of equal rewards",
        see="docs/faults.md",
    ),
    "rank_died": DiagnosisRule(
        find=machinery.ranks_ended,
        sign="a rank failed",
        when="the launcher noted a start that ended with a failure",
        cause="the program of that rank ended by itself, all others only because of it",
        confidence="certain",
        fix="read the end of the log named here; errors of other ranks come later",
        see="skills/debug-distributed/SKILL.md, docs/parallel.md",
    ),
    "rank_hung": DiagnosisRule(
        find=machinery.ranks_hung,
        sign="ranks hung",
        when="the launcher ended a start after --stall seconds without progress (status 124)",
        cause="a rank left a collective early or waits for one that never comes",
        confidence="likely",
        fix="run again and look at all stacks: py-spy dump --pid PID for each rank",
        see="skills/debug-distributed/SKILL.md",
    ),
    "silent": DiagnosisRule(
        find=machinery.silent,
        sign="the run is alive and writes nothing",
        when=f"no line for {machinery.SILENT_SECONDS:g} s and for {machinery.SILENT_STEPS:g} median steps",
        cause="it hangs, or one step takes far longer than before",
        confidence="possible",
        fix="look at its stacks: py-spy dump --pid PID",
        see="skills/debug-distributed/SKILL.md",
    ),
    "rollouts_stalled": DiagnosisRule(
        find=machinery.rollouts_stalled,
        sign="no episode finishes",
        when="the watchdog warned (rollout.stall_seconds)",
        cause="episodes wait for the reward, a tool or a server; the pending ones are named",
        confidence="likely",
        fix="mend what the pending episodes wait for; set time limits inside the workflow",
        see="docs/concepts.md, skills/debug-distributed/SKILL.md",
    ),
    "disk_refused": DiagnosisRule(
        find=machinery.disk_refused,
        sign="the disk refuses files",
        when="the log or the last error says that something was not written",
        cause="the disk or the quota is full, or the folder is not writable",
        confidence="certain",
        fix="free space where output_dir is, lower checkpoint.keep, then start the same command again: it continues",
        see="docs/faults.md, df -h",
    ),
    "server_died": DiagnosisRule(
        find=machinery.servers_died,
        sign="inference servers died or were restarted",
        when="the supervisor or the engine logged it",
        cause="the reason is in the evidence and in RUN/servers/NAME/*.log",
        confidence="certain",
        fix="read the server's log; with memory lower vllm.gpu_memory_utilization or servers.max_concurrent",
        see="docs/engines.md",
    ),
    "error": DiagnosisRule(
        find=machinery.ended_by_error,
        sign="the run ended with an error",
        when="the log's last line has an error that no other rule explains",
        cause="the message says it",
        confidence="certain",
        fix="do what the message says; log.jsonl has the traceback",
        see="docs/faults.md",
    ),
    # numbers break
    "steps_skipped": DiagnosisRule(
        find=machinery.steps_skipped,
        sign="optimizer steps were skipped",
        when="train/skipped_steps > 0, or the last error is a NumericsError",
        cause=(
            "loss or gradient was not finite: the learning rate is too high, the dtype too coarse, or single rows "
            "are broken"
        ),
        confidence="likely",
        fix="look at the prompts named here; lower actor.lr, use actor.dtype=float32 or a smaller max_grad_norm",
        see="docs/faults.md",
    ),
    "kl_explosion": DiagnosisRule(
        find=learning.kl_explosion,
        sign="KL exploded",
        when=(
            f"train/kl in the last quarter >= {learning.KL_LIMIT:g} nats per token and >= {learning.KL_FACTOR:g} "
            "times its median in the first half"
        ),
        cause="the policy runs away: updates are too large, or the reward is being exploited",
        confidence="likely",
        fix="lower actor.lr or objective.num_minibatches, add objective.kl, read late rollouts (areal report RUN)",
        see="docs/algorithms.md",
    ),
    "loss_spike": DiagnosisRule(
        find=learning.loss_spike,
        sign="the loss jumped",
        when=f"a later loss >= {learning.SPIKE_FACTOR:g} times the median of all",
        cause="a broken stretch of rows, or a learning rate that is too high",
        confidence="possible",
        fix="look at the rows of that step; lower actor.lr or raise warmup_steps",
        see="docs/training.md",
    ),
    "gradient_spikes": DiagnosisRule(
        find=learning.gradient_spikes,
        sign="gradients spike",
        when=f"steps with a gradient norm >= {learning.GRADIENT_FACTOR:g} times the median and >= actor.max_grad_norm",
        cause="rare tokens with a huge ratio, or broken rows; clipping bounds the damage",
        confidence="possible",
        fix=(
            "compare with train/ratio_max and mismatch/abs_max of those steps; use a truncated correction "
            "(objective.correction: tis)"
        ),
        see="docs/algorithms.md",
    ),
    "engines_differ": DiagnosisRule(
        find=learning.engines_differ,
        sign="sampler and trainer disagree",
        when=f"mismatch/abs_mean late >= {learning.MISMATCH_LIMIT:g} and >= twice the early value",
        cause=(
            "the inference engine computes otherwise than the trainer (dtype, kernels, stale weights), or samples "
            "are very old"
        ),
        confidence="likely",
        fix=(
            "compare dtypes (servers.dtype, actor.dtype), set servers.parity, lower max_head_offpolicyness, use "
            "objective.correction"
        ),
        see="docs/engines.md",
    ),
    # the reward does not rise
    "groups_all_right": DiagnosisRule(
        find=learning.groups_all_right,
        sign="no signal: all answers of a group are right",
        when=(
            f"late share of groups with equal rewards >= {learning.EQUAL_SHARE:.0%}, at the upper end of the rewards "
            "seen, and the reward did not rise to it"
        ),
        cause="the rows are too easy, or the reward is constant",
        confidence="likely",
        fix="take harder rows, or set rollout.filter_zero_variance=true; check the reward on wrong answers",
        see="docs/algorithms.md",
    ),
    "groups_all_wrong": DiagnosisRule(
        find=learning.groups_all_wrong,
        sign="no signal: all answers of a group are wrong",
        when=(
            f"late share of groups with equal rewards >= {learning.EQUAL_SHARE:.0%}, at the lower end of the rewards "
            "seen"
        ),
        cause="the task is too hard, the answer's form is not what the reward reads, or the reward is constant",
        confidence="likely",
        fix=(
            "read rollouts (areal report RUN) and score a right answer by hand; warm-start with SFT, take easier "
            "rows, raise group_size"
        ),
        see="docs/algorithms.md, skills/add-reward/SKILL.md",
    ),
    "flat_masked": DiagnosisRule(
        find=learning.flat_masked,
        sign="flat reward, nothing reaches the loss",
        when=f"reward flat, and >= {learning.MASKED_SHARE:.0%} of tokens masked or a gradient norm of 0",
        cause="the loss mask, the correction or mask_truncated leaves nothing to learn from",
        confidence="likely",
        fix="check train/masked_fraction, objective.mask_truncated, objective.correction, and the workflow's loss_mask",
        see="docs/algorithms.md",
    ),
    "flat_clipped": DiagnosisRule(
        find=learning.flat_clipped,
        sign="flat reward, most tokens clipped",
        when=f"reward flat, and >= {learning.CLIPPED_SHARE:.0%} of tokens clipped or masked by the correction",
        cause="updates leave the trust region at once: too many minibatches, samples too old, or clipping too tight",
        confidence="likely",
        fix="lower objective.num_minibatches, actor.lr or max_head_offpolicyness; widen objective.surrogate.clip_high",
        see="docs/algorithms.md",
    ),
    "flat_still": DiagnosisRule(
        find=learning.flat_still,
        sign="flat reward, the policy does not move",
        when=f"reward flat, entropy and length change < {learning.STILL:.0%}, gradients not 0",
        cause="the learning rate is too small",
        confidence="likely",
        fix="raise actor.lr by 3 to 10 times; check the schedule and warm-up",
        see="docs/reference/config.md",
    ),
    "flat_unexplained": DiagnosisRule(
        find=learning.flat_unexplained,
        sign="flat reward although the policy moves",
        when=f"over >= {learning.FLAT_STEPS} steps early and late reward differ by less than 3 standard errors",
        cause="the reward says little about the answers (noise, a wrong grader), or batches are too small to see it",
        confidence="possible",
        fix=(
            "score known right and wrong answers by hand, raise rollout.batch_size, compare with areal demo "
            "--control shuffled-rewards"
        ),
        see="skills/add-reward/SKILL.md",
    ),
    "reward_fell": DiagnosisRule(
        find=learning.reward_fell,
        sign="the reward collapsed",
        when=f"late mean reward >= {learning.FALL:.0%} below the best quarter of the run",
        cause=(
            "the policy was damaged after it had learnt: too large steps, growing mismatch or entropy, or a reward "
            "that says nothing"
        ),
        confidence="possible",
        fix="go back to a checkpoint before the fall with a lower actor.lr; look at the other findings",
        see="docs/algorithms.md",
    ),
    "entropy_collapse": DiagnosisRule(
        find=learning.entropy_collapse,
        sign="entropy collapsed",
        when=f"late entropy <= {learning.COLLAPSE:.0%} of the early one, and the task is not solved",
        cause="exploration has ended: the policy repeats itself",
        confidence="likely",
        fix="set objective.entropy_coef, raise clip_high, sample at temperature 1, stop earlier",
        see="docs/algorithms.md",
    ),
    "entropy_explosion": DiagnosisRule(
        find=learning.entropy_explosion,
        sign="entropy exploded",
        when=(
            f"late entropy >= {learning.EXPLOSION_FACTOR:g} times the early one and >= {learning.EXPLOSION_NATS:g} "
            "nat more"
        ),
        cause="the entropy bonus or noise outweighs the reward, or the policy breaks",
        confidence="likely",
        fix="lower objective.entropy_coef and actor.lr; look at late rollouts",
        see="docs/algorithms.md",
    ),
    "length_limit": DiagnosisRule(
        find=learning.length_limit,
        sign="answers run into the token budget",
        when=f"late truncated share >= {learning.TRUNCATED_SHARE:.0%}, and 10 points above the early one or >= 50 %",
        cause="length is rewarded or answers do not end; what is cut gets no fair score",
        confidence="likely",
        fix="raise gconfig.max_new_tokens, or use objective.overlong_buffer or objective.mask_truncated",
        see="docs/algorithms.md",
    ),
    "evaluation_fell": DiagnosisRule(
        find=learning.evaluation_fell,
        sign="evaluation falls while the training reward rises",
        when=(
            "last evaluation below the best by 3 standard errors (at least 0.02), training reward above its value then"
        ),
        cause="overfitting to the training rows, or the reward is being hacked",
        confidence="likely",
        fix="use the checkpoint of the best evaluation; read late rollouts, check the reward, add rows or objective.kl",
        see="docs/algorithms.md, skills/add-reward/SKILL.md",
    ),
    "evaluation_loss_rose": DiagnosisRule(
        find=learning.evaluation_loss_rose,
        sign="evaluation loss rises while the training loss falls",
        when="last evaluation loss >= 5 % above the best one",
        cause="overfitting",
        confidence="likely",
        fix="stop at the best evaluation; fewer epochs, more rows, label smoothing or a lower actor.lr",
        see="docs/training.md",
    ),
    "schedule_ended": DiagnosisRule(
        find=learning.schedule_ended,
        sign="steps without a learning rate",
        when=f"the last steps, at least 5 and {learning.ENDED_SHARE:.0%} of all, have <= 0.1 % of the largest rate",
        cause="the schedule ended before the run did",
        confidence="certain",
        fix="set total_train_steps to what is meant before the start, actor.lr_schedule=constant or a min_lr_ratio",
        see="docs/reference/config.md",
    ),
    # rollouts cost more than they give
    "reward_timeout": DiagnosisRule(
        find=machinery.reward_timeouts,
        sign="reward calls time out",
        when=f">= {machinery.FAULT_SHARE:.0%} of the samples",
        cause="the reward is too slow for reward_timeout_seconds, or hangs on some answers",
        confidence="certain",
        fix="run the reward on the prompts named here; raise rollout.reward_timeout_seconds or reward_workers",
        see="docs/faults.md, skills/add-reward/SKILL.md",
    ),
    "reward_error": DiagnosisRule(
        find=machinery.reward_errors,
        sign="the reward raises, crashes or returns no number",
        when=f">= {machinery.FAULT_SHARE:.0%} of the samples",
        cause="a bug in the reward, or a judge that fails",
        confidence="certain",
        fix="run the reward on the prompts named here; let it return a number for every answer",
        see="docs/faults.md, skills/add-reward/SKILL.md",
    ),
    "generation_failed": DiagnosisRule(
        find=machinery.generation_failures,
        sign="generation fails",
        when=f">= {machinery.FAULT_SHARE:.0%} of the samples",
        cause="the inference engine broke its contract or went away",
        confidence="likely",
        fix="read RUN/servers/NAME/*.log; see the findings about servers",
        see="docs/engines.md",
    ),
    "agents_lost": DiagnosisRule(
        find=machinery.agents_lost,
        sign="agents fail, are too slow, or get no reward",
        when=f">= {machinery.FAULT_SHARE:.0%} of the samples",
        cause="a broken set-up, too short limits (process.seconds, gateway.reward_deadline), or the policy's doing",
        confidence="likely",
        fix="mend what the messages say; score the policy's doing (process.accept_exit_codes, process.grade_timeouts)",
        see="docs/agents.md",
    ),
    "environments_lost": DiagnosisRule(
        find=machinery.environments_lost,
        sign="environments fail or are too slow",
        when=f">= {machinery.FAULT_SHARE:.0%} of the samples",
        cause="a bug in the environment, or limits of host that are too short for it",
        confidence="likely",
        fix="areal env check NAME; answer the policy's mistakes with observations; raise host.step_seconds",
        see="docs/environments.md",
    ),
    "workflow_raised": DiagnosisRule(
        find=machinery.workflow_bug,
        sign="the workflow raises",
        when="at least one fault workflow_raised",
        cause="a bug in the workflow: such episodes are lost and never tried again",
        confidence="certain",
        fix="log.jsonl has the traceback; raise FaultError for failures that are not bugs",
        see="docs/extensions.md",
    ),
    "rows_unusable": DiagnosisRule(
        find=machinery.rows_unusable,
        sign="rows cannot be used",
        when=(
            f">= {machinery.FAULT_SHARE:.0%} of the samples are data_invalid, >= {machinery.LONG_SHARE:.0%} of the "
            "rows were dropped as too long, or the last error is a DataError"
        ),
        cause="prompts are empty or longer than the limit, or columns are missing",
        confidence="certain",
        fix="raise train_dataset.max_length or max_seq_len, or mend the rows named here",
        see="docs/extensions.md",
    ),
    "prompts_filtered": DiagnosisRule(
        find=machinery.prompts_filtered,
        sign="most prompts are filtered",
        when=f">= {machinery.FILTERED_SHARE:.0%} dropped as zero_variance, and the task is not solved",
        cause="the rows are too easy or too hard for the policy; their generation is wasted",
        confidence="certain",
        fix="take rows of middling difficulty, raise rollout.group_size",
        see="docs/algorithms.md",
    ),
    "prompts_stale": DiagnosisRule(
        find=machinery.prompts_stale,
        sign="prompts are dropped as stale or surplus",
        when=f">= {machinery.STALE_SHARE:.0%} of the prompts",
        cause="with consume=drop long answers miss the bound, or the batch: the data is biased to short ones",
        confidence="certain",
        fix="use rollout.consume=deadline or fifo, or raise max_head_offpolicyness",
        see="docs/concepts.md",
    ),
    "sessions_stale": DiagnosisRule(
        find=machinery.sessions_stale,
        sign="places for sessions from outside are dropped as stale or surplus",
        when=f"workflow outside_sessions, >= {machinery.STALE_SHARE:.0%} of the prompts",
        cause="nobody took the places in time, or sessions and their rewards last longer than the bound lets them",
        confidence="certain",
        fix="raise max_head_offpolicyness or lower rollout.batch_size; close and score sessions sooner",
        see="docs/agents.md",
    ),
    "staleness_rises": DiagnosisRule(
        find=machinery.staleness_rises,
        sign="staleness rises",
        when=f"mean staleness late >= early + {machinery.STALENESS_RISE:g}",
        cause="answers grow longer or generation slower, compared with training",
        confidence="likely",
        fix=(
            "see who waits: generation-bound runs want servers or shorter answers, others a lower "
            "max_head_offpolicyness"
        ),
        see="docs/concepts.md",
    ),
    "trainer_waits": DiagnosisRule(
        find=machinery.trainer_waits,
        sign="generation-bound: the trainer waits",
        when=(
            f"rollout_wait >= {machinery.WAIT_SHARE:.0%} of the later half's time, with a staleness bound of at least 1"
        ),
        cause="generation, tools or rewards are slower than training",
        confidence="likely",
        fix="add servers (servers.num_servers), raise concurrency and reward_workers, shorten answers",
        see="docs/engines.md",
    ),
    "rollouts_wait": DiagnosisRule(
        find=machinery.rollouts_wait,
        sign="training-bound: the servers wait",
        when=(
            f"rollout_wait <= {machinery.IDLE_SHARE:.0%}, batches at the staleness bound, servers have devices of "
            "their own"
        ),
        cause="training is slower than generation",
        confidence="likely",
        fix="move devices from servers to ranks; larger micro-batches; see the largest part of the step's time",
        see="docs/parallel.md",
    ),
    "evaluation_failed": DiagnosisRule(
        find=machinery.evaluations_failed,
        sign="evaluations failed",
        when="eval/failed is 1",
        cause="the evaluation raised; nothing was measured then",
        confidence="certain",
        fix="log.jsonl has the traceback",
        see="docs/faults.md",
    ),
}
"""Name to rule, in the order in which findings are shown: what ended a run comes before what slowed it."""
