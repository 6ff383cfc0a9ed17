"""Each rule fires in a scene that shows its sign, and none in a healthy run."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from scenes import STEPS, Scene, flat, gone, launched, supervised

from areal.infra.diagnosis.record import load_record
from areal.infra.diagnosis.rules import RULES, diagnose

ROOT = Path(__file__).resolve().parents[4]


def found(scene):
    return {finding.name: finding for finding in diagnose(load_record(scene.write()))}


def killed(scene):
    scene.lines.pop()
    scene.lock = gone()


def out_of_memory(scene):
    scene.warn("out of memory with 4096 tokens (cuda); this batch is run again", logger="areal.engine.train.runner")


def no_rollouts(scene):
    scene.fail("RolloutError: 32 prompts in a row were dropped for faults\n  reward_raised  96  judge is down", 22)


def rank_hung(scene):
    launched(scene, scene.folder, (124, None, "metrics.jsonl did not change for 600 s"), (0, None, "ended well"))


def rank_died(scene):
    launched(scene, scene.folder, (9, 1, "rank 1 of 2: exit status 9"), (0, None, "all ranks ended well"))


def silent(scene):
    scene.lines.pop()
    scene.lock = {"pid": os.getpid(), "host": socket.gethostname(), "started_unix": time.time()}


def rollouts_stalled(scene):
    scene.warn(
        "no episode finished for 300 s (stall_seconds = 300); pending:\n  prompt 7, started 300 s ago",
        logger="areal.infra.rollout.loop_thread",
    )


def disk_refused(scene):
    scene.warn(
        "checkpoint of step 20 was not written to x: [Errno 28] No space left on device; training goes on",
        logger="areal.trainer.session",
    )


def server_died(scene):
    scene.warn("vllm-0: killed by SIGKILL; restart 1 of 3 in 1 s", logger="areal.infra.supervisor.supervisor")


def error(scene):
    scene.fail("EngineError: the engine is closed", 1)


def steps_skipped(scene):
    for step in (7, 8):
        scene.metrics[step] |= {"train/skipped_steps": 1.0, "train/grad_norm": float("nan")}
    scene.warn(
        "optimizer step 6 skipped (1 in a row): loss nan; caused by rows [3] of prompt groups [99]",
        logger="areal.engine.train.engine",
    )


def kl_explosion(scene):
    scene.metrics[STEPS - 2]["train/kl"] = 4.5


def loss_spike(scene):
    supervised(scene)
    scene.metrics[30]["train/loss"] = 9.0


def gradient_spikes(scene):
    scene.metrics[30]["train/grad_norm"] = 40.0


def engines_differ(scene):
    scene.course("mismatch/abs_mean", 0.02, 0.4)


def groups_all_right(scene):
    scene.course("reward/mean", 0.99, 0.99)
    scene.course("reward/std", 0.1, 0.0)
    scene.course("reward/zero_variance_share", 0.9, 1.0)
    for step in range(25, STEPS + 1):
        scene.metrics[step] |= {"reward/zero_variance_share": 0.97}


def groups_all_wrong(scene):
    scene.course("reward/mean", 0.0, 0.0)
    scene.course("reward/std", 0.0, 0.0)
    for values in scene.metrics.values():
        values.pop("reward/zero_variance_share", None)  # of a run that did not log it


def flat_masked(scene):
    flat(scene)
    scene.course("train/masked_fraction", 0.99, 0.99)
    scene.course("train/grad_norm", 0.0, 0.0)


def flat_clipped(scene):
    flat(scene)
    scene.course("train/clip_fraction", 0.5, 0.7)


def flat_still(scene):
    flat(scene)
    scene.course("train/entropy", 1.5, 1.4999)
    scene.course("length/mean", 40.0, 40.01)
    scene.course("train/learning_rate", 1e-9, 1e-9)


def reward_fell(scene):
    for step in range(25, STEPS + 1):
        scene.metrics[step]["reward/mean"] = 0.05


def entropy_collapse(scene):
    scene.course("train/entropy", 1.5, 0.0)
    for step in range(25, STEPS + 1):
        scene.metrics[step]["train/entropy"] = 0.01


def entropy_explosion(scene):
    scene.course("train/entropy", 1.0, 8.0)


def length_limit(scene):
    scene.course("length/truncated_fraction", 0.0, 0.8)
    scene.course("length/mean", 40, 62)


def evaluation_fell(scene):
    for step, reward in {0: 0.3, 10: 0.6, 20: 0.5, 30: 0.4, 40: 0.3}.items():
        scene.metrics[step]["eval/test/avg@1"] = reward


def evaluation_loss_rose(scene):
    supervised(scene)
    for step, loss in {0: 3.0, 10: 2.0, 20: 2.2, 30: 2.5, 40: 3.0}.items():
        scene.metrics[step]["eval/loss"] = loss


def schedule_ended(scene):
    for step in range(25, STEPS + 1):
        scene.metrics[step]["train/learning_rate"] = 0.0


def faults(kind, number=200.0):
    def change(scene):
        scene.metrics[5][f"rollout/faults/{kind}"] = number
        fields = {"fault": kind, "prompt": 7, "row": 3, "detail": "it went wrong"}
        scene.warn(f"first fault of kind {kind}", logger="areal.infra.rollout.groups", **fields)

    return change


def rows_unusable(scene):
    scene.warn("rows.jsonl: dropped 700 of 1000 rows with more than 64 tokens", logger="areal.dataset.encoding")


def prompts_filtered(scene):
    scene.course("rollout/dropped/zero_variance", 40.0, 40.0)


def prompts_stale(scene):
    scene.course("rollout/dropped/stale", 4.0, 4.0)


def sessions_stale(scene):
    scene.settle(workflow="outside_sessions")
    prompts_stale(scene)


def staleness_rises(scene):
    scene.settle(rollout__max_head_offpolicyness=8)
    scene.course("staleness/mean", 1.0, 6.0)


def trainer_waits(scene):
    scene.course("time/rollout_wait", 18.0, 18.0)
    scene.course("time/step", 20.0, 20.0)


def rollouts_wait(scene):
    scene.settle(rollout__engine="vllm")
    scene.course("time/rollout_wait", 0.01, 0.01)
    scene.course("rollout/staleness_mean", 1.0, 1.0)


def evaluation_failed(scene):
    scene.metrics[20]["eval/failed"] = 1.0


SCENES = {
    "killed": killed,
    "out_of_memory": out_of_memory,
    "no_rollouts": no_rollouts,
    "rank_died": rank_died,
    "rank_hung": rank_hung,
    "silent": silent,
    "rollouts_stalled": rollouts_stalled,
    "disk_refused": disk_refused,
    "server_died": server_died,
    "error": error,
    "steps_skipped": steps_skipped,
    "kl_explosion": kl_explosion,
    "loss_spike": loss_spike,
    "gradient_spikes": gradient_spikes,
    "engines_differ": engines_differ,
    "groups_all_right": groups_all_right,
    "groups_all_wrong": groups_all_wrong,
    "flat_masked": flat_masked,
    "flat_clipped": flat_clipped,
    "flat_still": flat_still,
    "flat_unexplained": flat,
    "reward_fell": reward_fell,
    "entropy_collapse": entropy_collapse,
    "entropy_explosion": entropy_explosion,
    "length_limit": length_limit,
    "evaluation_fell": evaluation_fell,
    "evaluation_loss_rose": evaluation_loss_rose,
    "schedule_ended": schedule_ended,
    "reward_timeout": faults("reward_timeout"),
    "agents_lost": faults("reward_missing"),
    "environments_lost": faults("environment_timeout"),
    "reward_error": faults("reward_raised"),
    "generation_failed": faults("generation_failed"),
    "workflow_raised": faults("workflow_raised", 1.0),
    "rows_unusable": rows_unusable,
    "prompts_filtered": prompts_filtered,
    "prompts_stale": prompts_stale,
    "sessions_stale": sessions_stale,
    "staleness_rises": staleness_rises,
    "trainer_waits": trainer_waits,
    "rollouts_wait": rollouts_wait,
    "evaluation_failed": evaluation_failed,
}
ALONG = {
    "no_rollouts": {"reward_error"},  # the tally names the kind
    "rank_hung": {"killed"},  # what hangs is killed, and writes no end
}
"""What else a scene shows; all others show one thing."""


def test_a_healthy_run_has_no_finding(tmp_path):
    assert found(Scene(tmp_path)) == {}


def test_a_healthy_supervised_run_has_no_finding(tmp_path):
    scene = Scene(tmp_path)
    supervised(scene)
    assert found(scene) == {}


def test_every_rule_has_a_scene():
    assert set(SCENES) == set(RULES)


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", SCENES)
def test_a_rule_fires_alone_in_its_scene(tmp_path, name):
    scene = Scene(tmp_path)
    SCENES[name](scene)
    seen = found(scene)
    assert set(seen) == {name} | ALONG.get(name, set())
    assert seen[name].grounds.text
    assert seen[name].grounds.numbers


def test_a_rule_points_to_pages_and_commands_that_exist():
    for name, rule in RULES.items():
        assert rule.sign != rule.cause, name
        for page in rule.see.split(", "):
            assert (ROOT / page).exists() or page.startswith(("areal plan", "df -h")), f"{name}: {page}"


def test_evidence_has_the_numbers_and_the_places(tmp_path):
    scene = Scene(tmp_path)
    faults("reward_timeout")(scene)
    steps_skipped(scene)
    seen = found(scene)
    assert seen["reward_timeout"].grounds.text == (
        "reward exact: reward_timeout 200, of 2560 samples asked for; prompt 7, row 3: it went wrong"
    )
    assert seen["reward_timeout"].grounds.numbers["reward_timeout"] == 200
    assert "2 optimizer steps skipped at steps 7, 8" in seen["steps_skipped"].grounds.text
    assert "prompt groups [99]" in seen["steps_skipped"].grounds.text


def test_one_right_answer_among_hundreds_is_no_solved_task(tmp_path):
    scene = Scene(tmp_path)
    scene.course("reward/mean", 0.004, 0.004)
    scene.course("reward/std", 0.062, 0.062)
    scene.course("reward/zero_variance_share", 0.97, 0.97)
    seen = found(scene)
    assert "groups_all_wrong" in seen
    assert "groups_all_right" not in seen


def test_what_success_looks_like_is_no_finding(tmp_path):
    scene = Scene(tmp_path)
    scene.course("reward/mean", 0.3, 1.06, noise=0.01)
    scene.course("reward/std", 0.45, 0.0)
    scene.course("reward/zero_variance_share", 0.2, 1.0)
    scene.course("train/entropy", 1.5, 0.02)
    scene.course("rollout/dropped/zero_variance", 40.0, 40.0)
    for values in scene.metrics.values():
        if "reward/mean" in values:
            values["reward/mean"] = min(values["reward/mean"], 1.0)
    for step in range(31, STEPS + 1):
        scene.metrics[step] |= {"reward/zero_variance_share": 1.0}
    assert found(scene) == {}


def test_a_few_faults_that_a_retry_made_good_are_no_finding(tmp_path):
    scene = Scene(tmp_path)
    scene.metrics[5]["rollout/faults/reward_timeout"] = 3.0
    assert found(scene) == {}


def test_a_single_step_says_nothing_about_trends(tmp_path):
    scene = Scene(tmp_path)
    scene.metrics = {step: values for step, values in scene.metrics.items() if step <= 2}
    assert found(scene) == {}


def test_the_log_of_a_rank_that_failed_is_part_of_the_evidence(tmp_path):
    scene = Scene(tmp_path)
    rank_died(scene)
    evidence = found(scene)["rank_died"].grounds.text
    assert "rank 1 of 2: exit status 9" in evidence
    assert "NCCL says no" in evidence


def test_a_rank_that_was_killed_is_told_from_one_that_failed(tmp_path):
    scene = Scene(tmp_path)
    launched(scene, tmp_path, (137, 1, "rank 1 of 2: killed by SIGKILL"), (0, None, "all ranks ended well"))
    seen = found(scene)
    assert set(seen) == {"killed"}
    assert seen["killed"].grounds.text == (
        "1 earlier starts wrote no end; the run was continued; rank 1 of 2: killed by SIGKILL"
    )


def test_the_end_of_a_servers_log_tells_that_its_memory_ran_out(tmp_path):
    (tmp_path / "servers" / "vllm-0").mkdir(parents=True)
    (tmp_path / "servers" / "vllm-0" / "ab.log").write_text("torch.OutOfMemoryError: CUDA out of memory.\n")
    evidence = found(Scene(tmp_path))["out_of_memory"].grounds.text
    assert "vllm-0/ab.log" in evidence
