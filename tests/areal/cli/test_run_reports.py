"""`areal report --text` and `areal doctor` on runs in every state: finished, going on, killed, torn, empty."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scenes import STEPS, Scene, gone, supervised

from areal.cli import main as cli
from areal.infra.diagnosis.rules import RULES

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "run-reports.md"


@pytest.fixture
def areal(capsys):
    """Run a command line in this process; returns exit code, stdout and stderr."""

    def run(*argv):
        code = cli.main([str(word) for word in argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def report(areal, folder):
    code, out, _ = areal("report", folder, "--text", "--json")
    assert code == 0
    return json.loads(out)


def test_a_summary_says_how_far_the_run_came_and_how_its_metrics_went(tmp_path, areal):
    code, out, _ = areal("report", Scene(tmp_path).write(), "--text")
    assert code == 0
    assert len(out.splitlines()) <= 80
    assert "scene/one" in out
    assert "state        finished" in out
    assert "steps        40 of 40 in" in out
    assert "checkpoints  step 40; final model written" in out
    assert re.search(r"^reward +0\.\d+ .* rises$", out, re.MULTILINE)
    assert re.search(r"^entropy +1\.\d+ .* falls$", out, re.MULTILINE)
    assert "update 55%, rollout_wait 30%" in out
    assert "the trainer waits for rollouts 30% of the time" in out
    assert "signs        none" in out
    assert not (tmp_path / "report.html").exists()


def test_the_data_have_what_the_text_says(tmp_path, areal):
    data = report(areal, Scene(tmp_path).write())
    assert data["run"]["state"] == "finished"
    assert (data["run"]["steps"], data["run"]["total_steps"]) == (STEPS, STEPS)
    reward = data["metrics"]["reward/mean"]
    assert reward["first"] < reward["quarter"] < reward["half"] < reward["last"]
    assert (reward["trend"], reward["count"], reward["not_finite"]) == ("rises", STEPS, 0)
    assert data["time"]["shares"]["update"] == pytest.approx(0.55)
    assert data["checkpoints"] == [{"step": 40, "folder": "step-00000040.000001", "whole": True}]
    assert data["signs"] == []


def test_a_sign_has_its_numbers_and_the_rule_that_made_it(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.course("length/truncated_fraction", 0.0, 0.8)
    folder = scene.write()
    (sign,) = report(areal, folder)["signs"]
    assert sign["rule"] == "length_limit"
    assert sign["numbers"]["truncated_late"] == pytest.approx(0.7, abs=0.05)
    code, out, _ = areal("report", folder, "--text")
    assert "are cut at 64 tokens" in out
    assert "rule: late truncated share >= 30%" in out
    assert f"`areal doctor {folder}`" in out
    assert code == 0


def test_the_page_is_still_written_and_its_json_has_the_same_content(tmp_path, areal):
    folder = Scene(tmp_path).write()
    code, out, _ = areal("report", folder, "--json")
    data = json.loads(out)
    assert (code, data["path"]) == (0, str(folder / "report.html"))
    assert data["bytes"] == (folder / "report.html").stat().st_size
    text = report(areal, folder)
    assert {key: data[key] for key in text if key not in {"next"}} == {key: text[key] for key in text if key != "next"}


def test_a_run_that_goes_on_is_read_up_to_its_last_whole_line(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.lines.pop()
    scene.lock = {"pid": os.getpid(), "host": socket.gethostname(), "started_unix": time.time()}
    scene.metrics = {step: values for step, values in scene.metrics.items() if step <= 30}
    folder = scene.write()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step":31,"reward/mean":0.')
    with (folder / "log.jsonl").open("a") as file:
        file.write('{"time":"2026-09')
    data = report(areal, folder)
    assert (data["run"]["state"], data["run"]["steps"], data["run"]["total_steps"]) == ("running", 30, STEPS)


def test_a_pid_that_another_process_has_now_is_not_the_run(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.lines.pop()
    scene.lock = {"pid": os.getpid(), "host": socket.gethostname(), "started_unix": 1000.0}
    assert report(areal, scene.write())["run"]["state"] == "killed"


def test_a_killed_run_that_was_started_twice(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.start()
    scene.lock = gone()
    folder = scene.write()
    data = report(areal, folder)
    assert (data["run"]["state"], len(data["run"]["starts"])) == ("killed", 2)
    code, out, _ = areal("doctor", folder)
    assert code == 10
    assert "wrote no end and holds the lock" in out


def test_a_stopped_run_says_that_it_can_be_continued(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.lines.pop()
    scene.end(exit_code=143, steps=12)
    code, out, _ = areal("report", scene.write(), "--text")
    assert code == 0
    assert "stopped by a signal (exit code 143)" in out


def test_numbers_that_are_not_finite_are_counted_and_not_averaged(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.metrics[9]["train/grad_norm"] = float("nan")
    course = report(areal, scene.write())["metrics"]["train/grad_norm"]
    assert (course["not_finite"], course["count"]) == (1, STEPS)
    assert course["highest"] < 1


def test_faults_are_listed_with_prompt_and_row(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.metrics[5]["rollout/faults/reward_timeout"] = 2.0
    fields = {"fault": "reward_timeout", "prompt": 7, "row": 3, "detail": "took more than 15 s"}
    scene.warn("first fault", logger="areal.infra.rollout.groups", **fields)
    scene.write()
    kept = {"step": 6, "group": 9, "faults": [{"kind": "reward_timeout", "message": "again", "attempt": 0}]}
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(kept, separators=(",", ":")) + "\n")
    (fault,) = report(areal, tmp_path)["faults"]
    assert (fault["kind"], fault["count"]) == ("reward_timeout", 2)
    assert [(one["prompt"], one["row"]) for one in fault["examples"]] == [(7, 3), (9, None)]
    _, out, _ = areal("report", tmp_path, "--text")
    assert "reward_timeout at prompt 7, row 3: took more than 15 s" in out


def test_a_supervised_run_has_a_loss_and_no_rollouts(tmp_path, areal):
    scene = Scene(tmp_path)
    supervised(scene)
    code, out, _ = areal("report", scene.write(), "--text")
    assert code == 0
    assert "evaluation loss" in out
    assert "staleness" not in out


def test_a_run_without_log_and_configuration_is_read_and_says_so(tmp_path, areal):
    folder = Scene(tmp_path).write()
    (folder / "log.jsonl").unlink()
    (folder / "config.yaml").unlink()
    code, out, err = areal("doctor", folder)
    assert (code, "nothing found" in out) == (0, True)
    assert "has no config.yaml: rules that read it were left out" in err
    assert "has no log.jsonl" in err


@pytest.mark.parametrize("command", [["report"], ["report", "--text"], ["doctor"]])
@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "metrics.jsonl").unlink(), "holds no metrics.jsonl; expected the directory of a run"),
        (
            lambda folder: [(folder / name).write_text("") for name in ("metrics.jsonl", "log.jsonl")],
            "is an empty run: no line in metrics.jsonl and no log.jsonl",
        ),
        (lambda folder: (folder / "config.yaml").write_text("{a: ["), "config.yaml is not the YAML that a run leaves"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_place_and_fix(tmp_path, areal, command, break_it, message):
    folder = Scene(tmp_path).write()
    break_it(folder)
    code, out, err = areal(command[0], folder, *command[1:], "--json")
    error = json.loads(out)
    assert (code, error["code"]) == (2, "usage")
    assert message in err
    assert str(folder) in error["where"]
    assert error["fix"]
    assert not (folder / "report.html").exists()


def test_the_folder_above_runs_names_them(tmp_path, areal):
    Scene(tmp_path / "grpo").write()
    code, _, err = areal("report", tmp_path, "--text")
    assert code == 2
    assert f"{tmp_path / 'grpo'} has one" in err


def test_a_run_that_failed_before_its_first_step_is_diagnosed(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.metrics.clear()
    scene.fail("ModelError: no family for 'mamba'", 2)
    code, out, _ = areal("doctor", scene.write())
    assert code == 10
    assert "ModelError: no family for 'mamba' (exit code 2)" in out


def test_a_finding_has_evidence_cause_confidence_and_what_to_do(tmp_path, areal):
    scene = Scene(tmp_path)
    scene.course("train/entropy", 1.0, 9.0)
    folder = scene.write()
    code, out, _ = areal("doctor", folder, "--json")
    data = json.loads(out)
    (finding,) = data["findings"]
    assert (code, data["exit_code"], data["ok"]) == (10, 10, False)
    assert finding["rule"] == "entropy_explosion"
    for key in ("sign", "when", "evidence", "cause", "confidence", "fix", "see"):
        assert isinstance(finding[key], str), key
        assert finding[key], key
    assert data["looked_at"]["steps"] == STEPS + 1
    _, text, _ = areal("doctor", folder)
    assert "entropy 1.92 nats early, 8.08 late" in text
    assert "(likely)" in text


def test_a_healthy_run_gets_exit_code_0_and_says_what_was_looked_at(tmp_path, areal):
    code, out, _ = areal("doctor", Scene(tmp_path).write())
    assert code == 0
    assert "nothing found" in out
    assert f"looked at: {len(RULES)} rules over {STEPS + 1} steps of metrics, 2 log lines" in out


def test_the_table_of_rules_can_be_printed(areal):
    code, out, _ = areal("doctor", "--rules", "--json")
    assert code == 0
    assert set(json.loads(out)["rules"]) == set(RULES)
    code, _, err = areal("doctor")
    assert code == 2
    assert "give a run directory, or --rules alone" in err


def test_the_page_of_the_documentation_lists_every_rule_and_every_field(tmp_path, areal):
    page = PAGE.read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) >= set(RULES)
    data = report(areal, Scene(tmp_path).write())
    for field in (*data["run"], *data["metrics"]["reward/mean"], *data):
        if field not in {"ok", "command", "exit_code", "next", "warnings"}:
            assert f"`{field}`" in page, field


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", [["report", "--text"], ["doctor"]])
def test_neither_command_imports_anything_heavy(tmp_path, command):
    code = (
        "import sys; from areal.cli.main import main; code = main(sys.argv[1:]); "
        "print('HEAVY', [n for n in ('torch', 'transformers', 'datasets', 'numpy', 'rich', 'pydantic') "
        "if n in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, command[0], str(Scene(tmp_path).write()), *command[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout
