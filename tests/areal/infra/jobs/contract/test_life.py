"""What a job does from its start to its end, whoever starts its runners."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest
import yaml
from processes import eventually

from areal.trainer.configuration.source import load_config


@pytest.mark.exhaustive
def test_ranks_start_after_the_services_they_need_and_meet_at_one_place(launch):
    job = launch(
        {
            "trainer": {"count": 4, "per_node": 2, "command": "note('ended'); print(f'rank {rank} was here')"},
            "server": {
                "count": 2,
                "per_node": 2,
                "command": "time.sleep(0.5); ready(); note('ready'); time.sleep(600)",
            },
        }
    )
    assert job.wait() == 0, job.said()
    ranks, ready = job.noted("began"), job.noted("ready")
    servers = {name: ranks.pop(name) for name in list(ranks) if name.startswith("server")}
    assert sorted(ranks) == [f"trainer-{rank}-0" for rank in range(4)]
    assert sorted(servers) == ["server-0-0", "server-1-0"]
    assert min(one["time"] for one in ranks.values()) > max(one["time"] for one in ready.values())
    seen = [ranks[f"trainer-{rank}-0"]["environment"] for rank in range(4)]
    assert [one["RANK"] for one in seen] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in seen] == ["0", "1", "0", "1"]
    assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in seen} == {("4", "2")}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"], one["AREAL_SERVER_INCARNATION"]) for one in seen}) == 1
    # Logs carry role and rank.
    _, facts = job.command("logs", "--role", "trainer")
    assert [line for line in facts["lines"] if "was here" in line] == [
        f"[trainer {rank}] rank {rank} was here" for rank in range(4)
    ]
    assert eventually(lambda: not job.left()), job.left()


@pytest.mark.fault(
    row=36,
    injected="rank 1 of two nodes is killed in its first start",
    seen="both ranks run again with another incarnation, the server stays, events.jsonl has the rank's last lines",
)
def test_a_rank_that_dies_ends_its_start_and_all_start_again_while_services_stay(launch):
    job = launch(
        {
            "trainer": {
                "count": 2,
                "command": "if start == 0 and rank == 1:\n    wait_for('began-trainer-0-0.json')\n"
                "    print('no GPU', flush=True); os.kill(os.getpid(), 9)\n"
                "if start == 0:\n    time.sleep(600)\n",
            },
            "server": {"count": 1, "command": "ready(); time.sleep(600)"},
        }
    )
    assert job.wait() == 0, job.said()
    began = job.noted("began")
    assert sorted(began) == ["server-0-0", "trainer-0-0", "trainer-0-1", "trainer-1-0", "trainer-1-1"]
    first, second = (began[f"trainer-0-{start}"]["environment"] for start in range(2))
    assert first["AREAL_SERVER_INCARNATION"] != second["AREAL_SERVER_INCARNATION"]
    events = [json.loads(line) for line in (job.folder.logs / "events.jsonl").read_text().splitlines()]
    failed = next(event for event in events if event["event"] == "failed")
    assert failed["rank"] == 1
    assert "no GPU" in failed["tail"]
    assert eventually(lambda: not job.left()), job.left()


@pytest.mark.exhaustive
def test_an_edit_of_the_configuration_after_submission_changes_nothing(launch_file, tmp_path):
    path = tmp_path / "run.yaml"
    edit = f"open({str(path)!r}, 'w').write('model: {{path: /second/model}}')"
    job = {
        "name": "j1",
        "directory": str(tmp_path / "jobs"),
        "setup": [[sys.executable, "-c", edit]],
        "roles": {"trainer": {"count": 1}},
    }
    path.write_text(yaml.safe_dump({"kind": "rl", "model": {"path": "/first/model"}, "job": job}))
    launched = launch_file(path)
    assert launched.wait() == 2, launched.said()
    assert path.read_text() == "model: {path: /second/model}"
    rank = next(launched.folder.logs.glob("start-*/rank-0.log")).read_text()
    assert "/first/model" in rank
    assert "/second/model" not in rank
    assert load_config(launched.folder.path / "run.yaml").config.model.path == "/first/model"


@pytest.mark.exhaustive
def test_the_exit_code_is_that_of_the_rank_that_failed_first(launch):
    job = launch(
        {
            "trainer": {
                "count": 2,
                "max_restarts": 0,
                "command": "time.sleep(0.3)\nif rank == 1:\n    sys.exit(7)\ntime.sleep(600)",
            }
        }
    )
    assert job.wait() == 7, job.said()
    assert "rank 1" in job.folder.state()["reason"]


@pytest.mark.exhaustive
def test_an_error_that_would_only_repeat_is_not_tried_again(launch):
    job = launch({"trainer": {"count": 1, "command": "sys.exit(20)"}})
    assert job.wait() == 20, job.said()
    assert list(job.noted("began")) == ["trainer-0-0"]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=39,
    injected="a server is killed while ranks run",
    seen="it comes back at its port, the ranks go on in their first start",
)
def test_a_service_that_dies_is_started_again_at_its_address(launch):
    job = launch(
        {
            "trainer": {"count": 1, "command": "wait_for('again-*')"},
            "server": {
                "count": 1,
                "command": "mark, port = folder / 'once', os.environ['AREAL_JOB_PORT']\n"
                "if mark.exists():\n    note('again', port=port); ready(); time.sleep(600)\n"
                "mark.touch(); note('first', port=port)\n"
                "ready(); wait_for('began-trainer-*'); os.kill(os.getpid(), 9)",
            },
        }
    )
    assert job.wait() == 0, job.said()
    assert list(job.noted("began")) == ["server-0-0", "trainer-0-0"]
    assert job.noted("first")["server-0-0"]["port"] == job.noted("again")["server-0-0"]["port"]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=39,
    injected="a server ends with 9 before it is ready",
    seen="the job ends with 9 and no rank was started",
)
def test_a_job_whose_service_never_starts_ends_with_its_code(launch):
    job = launch(
        {
            "trainer": {"count": 1, "command": ""},
            "server": {"count": 1, "max_restarts": 0, "command": "print('out of memory'); sys.exit(9)"},
        }
    )
    assert job.wait() == 9, job.said()
    assert list(job.noted("began")) == ["server-0-0"]


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=42,
    injected="areal job cancel while each process has a child in another session",
    seen="both ranks save, the command returns with nothing left, the job ends with 143",
)
def test_cancelling_lets_ranks_save_and_leaves_nothing_behind(launch):
    job = launch(
        {
            "trainer": {
                "count": 2,
                # A child in a session of its own, which signals to the group do not reach.
                "command": "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
                "signal.signal(signal.SIGTERM, save_and_end)\nnote('ready')\ntime.sleep(600)",
            },
            "server": {
                "count": 1,
                "command": "subprocess.Popen(['sleep', '600'], start_new_session=True); ready(); time.sleep(600)",
            },
        }
    )
    assert eventually(lambda: len(job.noted("ready")) == 2), job.said()
    code, facts = job.command("status")
    assert (code, facts["state"]) == (0, "running")
    begun = time.monotonic()
    code, facts = job.command("cancel")
    assert (code, facts["state"]) == (0, "cancelled"), job.said()
    assert time.monotonic() - begun < 5 + 60
    assert job.left() == []
    assert sorted(job.noted("saved")) == ["trainer-0-0", "trainer-1-0"]
    assert job.wait() == 143


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=42,
    injected="areal job cancel of a rank that ignores SIGTERM",
    seen="it is killed after the grace, nothing is left",
)
def test_a_rank_that_does_not_listen_is_killed_after_the_grace(launch):
    job = launch(
        {
            "trainer": {
                "count": 1,
                "command": "signal.signal(signal.SIGTERM, signal.SIG_IGN); note('deaf'); time.sleep(600)",
            }
        },
        grace_seconds=1,
    )
    assert eventually(lambda: job.noted("deaf")), job.said()
    job.command("cancel")
    assert job.left() == []
    assert job.wait() == 143


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=37,
    injected="its runner is killed (local), it is set down (Slurm), all its processes are killed (Ray)",
    seen="a second start of all ranks ends the job with 0; no process is left",
)
def test_a_lost_node_ends_the_allocation_and_the_next_one_goes_on(launch, backend):
    job = launch(
        {
            "trainer": {
                "count": 2,
                "command": "note('ready')\nif start == 0:\n    time.sleep(600)\nwait_for('began-trainer-*-1.json', 2)",
            },
            "server": {"count": 1, "command": "ready(); time.sleep(600)"},
        }
    )
    assert eventually(lambda: len(job.noted("ready")) == 2), job.said()
    try:
        backend.lose_node(job, "trainer", 1)
        assert job.wait(120) == 0, job.said()
    finally:
        backend.bring_back()
    assert {"trainer-0-1", "trainer-1-1"} <= job.noted("began").keys()
    assert eventually(lambda: not job.left()), job.left()


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=38,
    injected="the first runner is killed",
    seen="the other node ends its rank within its lease, both run again, no process is left",
)
def test_the_loss_of_the_first_runner_ends_what_the_others_run(launch, backend):
    job = launch(
        {
            "trainer": {"count": 2, "command": "note('ready')\nif start == 0:\n    time.sleep(600)"},
        },
        max_restarts=1,
    )
    assert eventually(lambda: len(job.noted("ready")) == 2), job.said()
    pid = next(pid for pid, role, node in job.runners() if (role, node) == ("trainer", 0))
    os.kill(pid, signal.SIGKILL)
    assert job.wait(120) == 0, job.said()
    assert {"trainer-0-1", "trainer-1-1"} <= job.noted("began").keys()
    assert eventually(lambda: not job.left()), job.left()


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=41,
    injected="the notice that Slurm sends (USR1 to the batch script)",
    seen="both ranks save, the job is queued again and ends with 0; failures stay 0",
)
def test_a_preempted_job_saves_and_is_queued_again(launch, backend):
    job = launch(
        {
            "trainer": {
                "count": 2,
                "command": "signal.signal(signal.SIGTERM, save_and_end); note('ready')\n"
                "if start == 0:\n    time.sleep(600)",
            }
        }
    )
    assert eventually(lambda: len(job.noted("ready")) == 2), job.said()
    backend.preempt(job)
    assert job.wait(120) == 0, job.said()
    assert sorted(job.noted("saved")) == ["trainer-0-0", "trainer-1-0"]
    assert {"trainer-0-1", "trainer-1-1"} <= job.noted("began").keys()
    assert job.folder.state().get("failures", 0) == 0


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=44,
    injected="areal launch of a job that runs",
    seen="refused with 75, the first one goes on",
)
def test_a_second_submission_of_a_running_job_is_refused(launch, backend, tmp_path):
    job = launch({"trainer": {"count": 1, "command": "note('ready'); time.sleep(600)"}})
    assert eventually(lambda: job.noted("ready")), job.said()
    again = backend.areal("launch", tmp_path / "run.yaml", "--on", backend.name, *backend.overrides)
    assert again.returncode == 75, again.stderr
    assert "j1" in again.stderr
    job.command("cancel")
    assert job.wait() == 143


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.fault(
    row=40,
    injected="SIGTERM or SIGKILL to the process that launched (local, Ray)",
    seen="no process of the job is left",
)
def test_whatever_ends_the_launch_ends_the_job(launch, backend, number):
    if backend.name == "slurm":
        pytest.skip("the launch of a Slurm job ends with its submission")
    job = launch({"trainer": {"count": 2, "command": "note('ready'); time.sleep(600)"}})
    assert eventually(lambda: len(job.noted("ready")) == 2), job.said()
    job.process.send_signal(number)
    job.process.wait(30)
    assert eventually(lambda: not job.left()), job.left()


@pytest.mark.exhaustive
def test_a_job_may_have_a_ray_cluster_of_its_own(launch, backend):
    if backend.name != "ray":
        pytest.skip("about Ray")
    backend.overrides, before = ["job.ray.address=local"], backend.overrides
    try:
        job = launch({"trainer": {"count": 1, "command": "note('here')"}})
        assert job.wait(120) == 0, job.said()
    finally:
        backend.overrides = before
    assert list(job.noted("here")) == ["trainer-0-0"]
    assert job.left() == []
