"""Rules about what a run stands on: staleness and who waits, faults, numbers, memory, processes, disks, rows, its end.

Each takes a record and returns its evidence, or None when it does not apply.
"""

from __future__ import annotations

import re
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from areal.infra.diagnosis.learning import MIN_STEPS, is_solved
from areal.infra.diagnosis.record import Grounds
from areal.infra.metrics import names
from areal.reward.components import describe_reward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.infra.diagnosis.record import LogLine, RunRecord

STALENESS_RISE: Final = 1.0
WAIT_SHARE: Final = 0.8
IDLE_SHARE: Final = 0.05
FAULT_SHARE: Final = 0.01
STALE_SHARE: Final = 0.1
OUTSIDE_SESSIONS: Final = "outside_sessions"
"""Workflow whose episodes others begin: the time that they take is not the answers' length."""
FILTERED_SHARE: Final = 0.5
LONG_SHARE: Final = 0.2
SILENT_SECONDS: Final = 300.0
SILENT_STEPS: Final = 10.0
_SHOWN: Final = 3
_OUT_OF_MEMORY: Final = ("out of memory", "outofmemory", "cannot allocate memory", "std::bad_alloc")
_NO_SPACE: Final = ("no space left", "is the disk full", "was not written", "disk quota", "cannot be written")
_WAIT: Final = "rollout_wait"


def staleness_rises(record: RunRecord) -> Grounds | None:
    """Detect that samples get older before they are trained."""
    name = names.STALENESS_MEAN
    early, late = record.early(name), record.late(name)
    if len(record.values(name)) < MIN_STEPS or not late - early >= STALENESS_RISE:
        return None
    wait = record.shares_of_time().get(_WAIT, 0.0)
    bound = record.setting("rollout.max_head_offpolicyness", 0)
    return Grounds(
        text=f"mean staleness {early:.2f} versions early, {late:.2f} late, bound {bound}; the trainer waits for "
        f"rollouts {wait:.0%} of the time",
        numbers={"staleness_early": early, "staleness_late": late, "bound": bound, "wait_share": wait},
    )


def trainer_waits(record: RunRecord) -> Grounds | None:
    """Detect that generation bounds an asynchronous run."""
    wait = record.shares_of_time().get(_WAIT, 0.0)
    bound = record.setting("rollout.max_head_offpolicyness", 0)
    if len(record.steps) < MIN_STEPS or bound < 1 or wait < WAIT_SHARE:
        return None
    return Grounds(
        text=f"the trainer waits for rollouts {wait:.0%} of the time, with a staleness bound of {bound}",
        numbers={"wait_share": wait, "bound": bound, "tokens_per_second": record.late(names.TOKENS_PER_SECOND)},
    )


def rollouts_wait(record: RunRecord) -> Grounds | None:
    """Detect that training bounds a run whose servers have devices of their own."""
    shares = record.shares_of_time()
    bound = record.setting("rollout.max_head_offpolicyness", 0)
    if record.setting("rollout.engine", "embedded") == "embedded" or len(record.steps) < MIN_STEPS or bound < 1:
        return None
    if _WAIT not in shares or shares[_WAIT] > IDLE_SHARE or record.late("rollout/staleness_mean") < bound - 0.1:
        return None
    most = next(part for part in shares if part != _WAIT)
    return Grounds(
        text=f"the trainer waits {shares[_WAIT]:.1%} of the time and batches are at the staleness bound {bound}: the "
        f"servers wait for it; it spends {shares[most]:.0%} on {most}",
        numbers={"wait_share": shares[_WAIT], "bound": bound, "largest_part": most, "largest_share": shares[most]},
    )


def _fault_count(record: RunRecord, kind: str) -> int:
    """Failed attempts: of the metrics, or of the tally in the error that ended the run before a batch was there."""
    tally = re.search(rf"^\s*{kind}\s+(\d+)\s", record.problem, re.MULTILINE)
    noted = sum(fault["kind"] == kind for fault in record.faults)
    return max(int(record.total(f"{names.FAULT_PREFIX}{kind}")), int(tally[1]) if tally else 0, noted)


def _fault_evidence(record: RunRecord, kinds: Sequence[str], *, share: float = FAULT_SHARE) -> Grounds | None:
    """share: of all samples of the run that must be exceeded."""
    counts = {kind: number for kind in kinds if (number := _fault_count(record, kind))}
    asked = record.samples_per_step * len(record.values(names.REWARD_MEAN))
    total = sum(counts.values())
    if not total or (asked and total < share * asked):
        return None
    examples = [fault for fault in record.faults if fault["kind"] in counts]
    seen = {str(fault["message"]): fault for fault in reversed(examples)}
    shown = "; ".join(f"{place(fault)}: {shorten(message)}" for message, fault in list(seen.items())[-_SHOWN:])
    spread = ", ".join(f"{kind} {number}" for kind, number in counts.items())
    text = f"{spread}, of {asked} samples asked for" if asked else f"{spread}, before a step was done"
    numbers: dict[str, Any] = {**counts, "samples": asked, "examples": examples[:20]}
    if any(kind.startswith("reward_") for kind in counts):
        numbers["reward"] = describe_reward(record.setting("reward", ""))
        text = f"reward {numbers['reward']}: {text}"
    return Grounds(text=f"{text}; {shown}" if shown else text, numbers=numbers)


def place(fault: Any) -> str:
    """`prompt 7, row 3`."""
    return f"prompt {fault['prompt']}" + ("" if fault.get("row") is None else f", row {fault['row']}")


def shorten(text: str, limit: int = 160) -> str:
    """First line of a text, cut."""
    line = (text.strip().splitlines() or [""])[0]
    return line if len(line) <= limit else line[: limit - 3] + "..."


def reward_timeouts(record: RunRecord) -> Grounds | None:
    """Detect reward calls that took too long."""
    return _fault_evidence(record, ("reward_timeout",))


def reward_errors(record: RunRecord) -> Grounds | None:
    """Detect reward calls that raised, ended their process, or returned something that is not a number."""
    return _fault_evidence(record, ("reward_raised", "reward_invalid", "reward_died"))


def generation_failures(record: RunRecord) -> Grounds | None:
    """Detect that the inference engine failed."""
    return _fault_evidence(record, ("generation_failed",))


def agents_lost(record: RunRecord) -> Grounds | None:
    """Detect agents that failed, were too slow, or got no reward."""
    return _fault_evidence(record, ("agent_failed", "agent_timeout", "reward_missing"))


def environments_lost(record: RunRecord) -> Grounds | None:
    """Detect environments that failed or were too slow."""
    return _fault_evidence(record, ("environment_failed", "environment_timeout"))


def workflow_bug(record: RunRecord) -> Grounds | None:
    """Detect that the workflow itself raised; never retried, so a single one counts."""
    return _fault_evidence(record, ("workflow_raised",), share=0.0)


def rows_unusable(record: RunRecord) -> Grounds | None:
    """Detect rows that cannot be used, or prompts too long."""
    if (found := _fault_evidence(record, ("data_invalid",))) is not None:
        return found
    for line in record.said("dropped", logger="areal.dataset"):
        match = re.search(r"dropped (\d+) of (\d+) rows with more than (\S+) tokens", line.message)
        if match and int(match[1]) >= LONG_SHARE * int(match[2]):
            numbers = {"dropped": int(match[1]), "rows": int(match[2]), "limit": match[3]}
            return Grounds(text=line.message, numbers=numbers)
    if record.problem.startswith("DataError"):
        return Grounds(text=shorten(record.problem, 400), numbers={"exit_code": 20})
    return None


def prompts_filtered(record: RunRecord) -> Grounds | None:
    """Detect that most prompts are thrown away because their samples do not differ."""
    dropped = record.totals(names.DROPPED_PREFIX).get("zero_variance", 0.0)
    trained = int(record.setting("rollout.batch_size", 0)) * len(record.values(names.REWARD_MEAN))
    if not dropped or dropped < FILTERED_SHARE * (dropped + trained) or is_solved(record):
        return None
    share = dropped / (dropped + trained)
    return Grounds(
        text=f"{dropped:.0f} prompts dropped for equal rewards, {trained} trained: {share:.0%} of what was generated",
        numbers={"dropped": dropped, "trained": trained, "share": share},
    )


def prompts_stale(record: RunRecord) -> Grounds | None:
    """Detect that prompts grow too old before they finish."""
    return None if record.setting("workflow") == OUTSIDE_SESSIONS else _stale_prompts(record)


def sessions_stale(record: RunRecord) -> Grounds | None:
    """Detect that places for sessions from outside grow too old before a session ends in them."""
    return _stale_prompts(record) if record.setting("workflow") == OUTSIDE_SESSIONS else None


def _stale_prompts(record: RunRecord) -> Grounds | None:
    totals = record.totals(names.DROPPED_PREFIX)
    dropped = totals.get("stale", 0.0) + totals.get("surplus", 0.0)
    trained = int(record.setting("rollout.batch_size", 0)) * len(record.values(names.REWARD_MEAN))
    if not dropped or dropped < STALE_SHARE * (dropped + trained):
        return None
    return Grounds(
        text=f"{dropped:.0f} prompts were dropped as stale or surplus, {trained} trained",
        numbers={"dropped": dropped, "trained": trained, "share": dropped / (dropped + trained)},
    )


def steps_skipped(record: RunRecord) -> Grounds | None:
    """Detect losses or gradients that were not finite."""
    skipped = [(step, value) for step, value in record.values(names.SKIPPED_STEPS) if value > 0]
    total = sum(value for _, value in skipped)
    if not total and not record.problem.startswith("NumericsError"):
        return None
    said = record.said("caused by", logger="areal.engine.train")
    words = shorten(said[-1].message if said else record.problem, 300)
    at = f" at steps {', '.join(str(step) for step, _ in skipped[:6])}" if skipped else ""
    return Grounds(
        text=f"{total:.0f} optimizer steps skipped{at}" + (f"; {words}" if words else ""),
        numbers={"skipped": total, "steps": [step for step, _ in skipped]},
    )


def out_of_memory(record: RunRecord) -> Grounds | None:
    """Detect that something had no room, on a device or in the host."""
    lines = record.said(*_OUT_OF_MEMORY)
    found = [(line.logger, line.message) for line in lines]
    if any(phrase in record.problem.lower() for phrase in (*_OUT_OF_MEMORY, "memoryerror")):
        found.append(("end of the run", record.problem))
    tails = {**record.servers, **{launch["log"]: launch["tail"] for launch in record.launches}}
    for path, tail in tails.items():
        hits = [line for line in tail.splitlines() if any(phrase in line.lower() for phrase in _OUT_OF_MEMORY)]
        found += [(path, line) for line in hits[-1:]]
    if not found:
        return None
    where, words = found[-1]
    text = f"{len(found)} times, last in {where}: {shorten(words, 240)}"
    return Grounds(text=text, numbers={"times": len(found), "where": sorted({place for place, _ in found})})


def killed(record: RunRecord) -> Grounds | None:
    """Detect that the process wrote no end, which an error or a stop request always does."""
    signals = [launch for launch in record.launches if "SIGKILL" in str(launch.get("text", ""))]
    if record.state != "killed" and not signals and not record.unended:
        return None
    owner, words = record.owner, []
    if record.unended:
        words.append(f"{record.unended} earlier starts wrote no end; the run was continued")
    if record.state == "killed":
        words.append(
            f"process {owner.get('pid')} on {owner.get('host')} is gone, wrote no end and holds the lock; step "
            f"{record.last_step} was its last"
        )
    words += [str(launch["text"]) for launch in signals[-_SHOWN:]]
    return Grounds(
        text="; ".join(words),
        numbers={"last_step": record.last_step, "kills": len(signals), "unended_starts": record.unended},
    )


def _lines_evidence(lines: Sequence[LogLine], what: str) -> Grounds | None:
    if not lines:
        return None
    shown = "; ".join(shorten(line.message, 240) for line in lines[-_SHOWN:])
    return Grounds(text=f"{len(lines)} {what}; last: {shown}", numbers={"times": len(lines)})


def servers_died(record: RunRecord) -> Grounds | None:
    """Detect inference servers that ended, hung or were given up."""
    lines = record.said("restart ", logger="areal.infra.supervisor", level="WARNING")
    lines += record.said("will not come back", "is gone:", logger="areal.engine.server")
    return _lines_evidence(lines, "ends of inference servers")


def ranks_ended(record: RunRecord) -> Grounds | None:
    """Detect that a rank failed, and all were started again or given up; kills and stalls have rules of their own."""
    failed = [launch for launch in record.launches if launch.get("status") not in {0, 124, 130, 137, 143}]
    if not failed:
        return None
    last = failed[-1]
    tail = [line for line in str(last["tail"]).splitlines() if line.strip()]
    text = f"{len(failed)} of {len(record.launches)} starts; last: {last['text']}, log {last['log']}"
    return Grounds(
        text=text + (f": {shorten(tail[-1])}" if tail else ""),
        numbers={"failed": len(failed), "starts": len(record.launches), "statuses": [one["status"] for one in failed]},
    )


def ranks_hung(record: RunRecord) -> Grounds | None:
    """Detect ranks that `areal launch --stall` ended because they did not get on."""
    hung = [launch for launch in record.launches if launch.get("status") == 124]
    if not hung:
        return None
    text = f"{len(hung)} of {len(record.launches)} starts; last: {hung[-1]['text']}"
    return Grounds(text=text, numbers={"hung": len(hung), "starts": len(record.launches)})


def disk_refused(record: RunRecord) -> Grounds | None:
    """Detect that checkpoints or metrics could not be written."""
    lines = [line for line in record.said(*_NO_SPACE) if line.level in {"WARNING", "ERROR"}]
    found = _lines_evidence(lines, "refused writes")
    if found is None and record.problem.startswith("CheckpointError") and "damaged" not in record.problem:
        return Grounds(text=shorten(record.problem, 300), numbers={"times": 1})
    return found


def evaluations_failed(record: RunRecord) -> Grounds | None:
    """Detect evaluations that ended with an error."""
    steps = [step for step, value in record.values(names.EVAL_FAILED) if value]
    if not steps:
        return None
    said = record.said("evaluation at step", level="ERROR")
    error = str(said[-1].fields.get("exception", "")).strip().splitlines() if said else []
    text = f"at steps {', '.join(map(str, steps[:6]))}" + (f": {shorten(error[-1], 240)}" if error else "")
    return Grounds(text=text, numbers={"steps": steps})


def rollouts_stalled(record: RunRecord) -> Grounds | None:
    """Detect what the watchdog says: no episode finished for long."""
    lines = record.said("no episode finished for")
    found = _lines_evidence(lines, "warnings of the watchdog")
    if found is None:
        return None
    pending = [line.strip() for line in lines[-1].message.splitlines()[1:]][:_SHOWN]
    return Grounds(text=f"{found.text} {'; '.join(pending)}", numbers={**found.numbers, "pending": pending})


def silent(record: RunRecord) -> Grounds | None:
    """Detect that the process lives and has written nothing for long."""
    steps = [value for _, value in record.values(names.TIME_STEP)]
    age = time.time() - record.last_time
    limit = max(SILENT_SECONDS, SILENT_STEPS * (median(steps) if steps else 0.0))
    if record.state != "running" or not record.last_time or age < limit:
        return None
    return Grounds(
        text=f"process {record.owner.get('pid')} has written nothing for {age:.0f} s; a step takes "
        f"{median(steps) if steps else 0.0:.1f} s",
        numbers={"seconds": age, "limit": limit, "pid": record.owner.get("pid")},
    )


def no_rollouts(record: RunRecord) -> Grounds | None:
    """Detect that the run gave up: too many prompts in a row were dropped."""
    if not record.problem.startswith("RolloutError"):
        return None
    return Grounds(text=" ".join(record.problem.split())[:600], numbers={"exit_code": 22})


def ended_by_error(record: RunRecord) -> Grounds | None:
    """Detect an error that no other rule explains."""
    covered = ("RolloutError", "NumericsError", "DataError")
    if record.state != "failed" or record.problem.startswith(covered) or disk_refused(record) or out_of_memory(record):
        return None
    assert record.end is not None
    return Grounds(
        text=f"{' '.join(record.problem.split())[:600]} (exit code {record.end.fields.get('exit_code')})",
        numbers={"exit_code": record.end.fields.get("exit_code"), "step": record.last_step},
    )
