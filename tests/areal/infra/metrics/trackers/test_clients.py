"""Every tracker with its real client, offline: two processes of one run, of which the second does two steps again."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from areal.infra.metrics.attempts import read_attempts

ROOT = Path(__file__).resolve().parents[5]
PYTHON = ROOT / ".venv-trackers" / "bin" / "python"
PROGRAM = Path(__file__).with_name("client_process.py")

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(
        not (ROOT / ".venv-trackers" / ".ready").exists(), reason="run `bash scripts/setup_trackers.sh` first"
    ),
]


def process(folder: Path, *arguments: str, code: int = 0) -> dict:
    """Run the program; HOME is a folder without logins."""
    environment = {
        "HOME": str(folder), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT),
        "TRACKIO_DIR": str(folder / "trackio"), "WANDB_SILENT": "true",
    }  # fmt: skip
    done = subprocess.run(
        [str(PYTHON), str(PROGRAM), *arguments], capture_output=True, text=True, timeout=300, env=environment,
        cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def twice(folder: Path, name: str, **settings: object) -> dict:
    """Two processes, the first of which is killed; what the tracker has then."""
    text = json.dumps(settings)
    for first, code in ((0, 9), (2, 0)):
        answer = process(folder, "run", name, str(folder), str(first), text, code=code)
        assert answer == {"problems": [], "active": [name]}
    return process(folder, "read", name, str(folder))


def test_mlflow_has_one_run_with_each_step_once(tmp_path):
    found = twice(tmp_path, "mlflow", tracking_uri=f"file://{tmp_path}/mlruns", tags={"team": "red"})
    assert found["history"]["reward/mean"] == [[1, 1.0], [2, 2.0], [3, 3.0], [4, 4.0], [5, 5.02], [6, 6.02]]
    assert found["history"]["eval/reward"] == [[0, 0.0], [2, 0.2], [4, 0.4], [6, 0.6]]
    assert (found["name"], found["status"]) == ("tiny", "FINISHED")
    assert found["params"]["actor.learning_rate"] == "0.0001"
    assert {"team": "red", "areal.state": "finished", "areal.steps": "6"}.items() <= found["tags"].items()
    tables = [f"samples/step-{step:06d}.json" for step in (2, 4, 6)]
    assert found["artifacts"] == tables
    assert [item["path"] for item in json.loads(found["tags"]["mlflow.loggedArtifacts"])] == tables
    assert found["table"]["data"][1][-2:] == ["8*9=", "71 | after\n4"]


def test_wandb_continues_one_run_and_sends_each_step_once(tmp_path):
    first, second = twice(tmp_path, "wandb", mode="offline", tags=["red"])["processes"]
    identity = read_attempts(tmp_path / "metrics.jsonl")[0].run_id
    for part in (first, second):
        assert part["run"] == {
            "id": identity, "project": "arithmetic", "group": "arithmetic", "name": "tiny", "tags": ["red"],
        }  # fmt: skip
        assert part["config"]["actor"] == {"learning_rate": 0.0001, "lora": None}
    rows = [row for part in (first, second) for row in part["rows"]]
    assert [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row] == [
        (1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.02), (6, 6.02),
    ]  # fmt: skip
    assert [row["step"] for row in rows if "eval/reward" in row] == [0, 2, 4, 6]
    assert [(row["step"], row["samples.nrows"]) for row in rows if "samples._type" in row] == [(2, 2), (4, 2), (6, 2)]
    assert (first["exits"], second["exits"]) == ([143], [0])
    assert {"areal/state": "finished", "areal/steps": 6}.items() <= second["summary"].items()


def test_trackio_has_one_run_with_each_step_once_although_a_kill_lost_some(tmp_path):
    found = twice(tmp_path, "trackio")
    (name,) = found["runs"]
    assert re.fullmatch(r"tiny-[0-9a-f]{8}", name)
    rewards = sorted((row["step"], row["reward/mean"]) for row in found["logs"] if "reward/mean" in row)
    assert [step for step, _ in rewards] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in rewards][:2] == [1.0, 2.0]  # from metrics.jsonl where the kill lost them
    assert all(value in (step, step + 0.02) for step, value in rewards)
    assert sorted(row["step"] for row in found["logs"] if "eval/reward" in row) == [0, 2, 4, 6]
    assert found["logs"][-1]["areal/steps"] == 6
    assert found["config"]["actor.learning_rate"] == 0.0001


def test_swanlab_keeps_an_experiment_per_process_with_each_step_once(tmp_path):
    found = twice(tmp_path, "swanlab", mode="offline")
    values = [
        (int(record["scalar"]["step"]), record["scalar"]["value"]["number"])
        for part in found["processes"]
        for record in part
        if record.get("scalar", {}).get("key") == "reward/mean"
    ]
    assert values == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.02), (6, 6.02)]
    starts = [record["start"] for part in found["processes"] for record in part if "start" in record]
    assert {(item["project"], item["group"], item["name"]) for item in starts} == {("arithmetic", "arithmetic", "tiny")}
    ends = [record["finish"]["state"] for part in found["processes"] for record in part if "finish" in record]
    assert ends == ["RUN_STATE_ABORTED", "RUN_STATE_FINISHED"]
    assert [int(name.split("-")[0]) for name in found["tables"]] == [2, 4, 6]
    identity = read_attempts(tmp_path / "metrics.jsonl")[0].run_id
    assert identity in found["config"]


def test_tensorboard_shows_the_steps_that_were_done_last(tmp_path):
    found = twice(tmp_path, "tensorboard")
    rewards = [(step, round(value, 4)) for step, value in found["values"]["reward/mean"]]
    assert rewards == [(1, 1.0), (2, 2.0), (3, 3.02), (4, 4.02), (5, 5.02), (6, 6.02)]
    assert [step for step, _ in found["values"]["eval/reward"]] == [0, 2, 4, 6]
    assert {"_hparams_/session_start_info", "_hparams_/session_end_info", "train/kl"} <= set(found["tags"])
    assert '"state": "finished"' in found["texts"]["summary"]
    assert "| 6 | 6 | 1 | 0.5 |" in found["texts"]["samples"]


def test_prometheus_reads_the_newest_values(tmp_path):
    page = process(tmp_path, "run", "prometheus", str(tmp_path), "0", "{}")
    assert page["type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE areal_reward_mean gauge" in page["page"]
    assert 'areal_reward_mean{experiment="arithmetic",trial="tiny"} 4.0' in page["page"]
    assert 'areal_step{experiment="arithmetic",trial="tiny"} 4.0' in page["page"]


def test_what_keeps_a_service_from_starting_is_known_before(tmp_path):
    answers = {
        name: process(tmp_path, "problems", name, str(tmp_path), text)
        for name, text in {"wandb": "{}", "swanlab": "{}", "mlflow": "{}", "trackio": '{"space_id": "a/b/c"}'}.items()
    }
    said = {name: answer["problems"][0][1] for name, answer in answers.items()}
    assert "`wandb login`" in said["wandb"]
    assert "`swanlab login`" in said["swanlab"]
    assert "MLFLOW_TRACKING_URI" in said["mlflow"]
    assert "user/name" in said["trackio"]
