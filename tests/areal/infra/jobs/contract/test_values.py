"""Values of users reach processes byte for byte, or are refused; secrets reach processes and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NASTY = {
    "COMMAS": "1,HOME=/nowhere",
    "QUOTES": """it's "quoted" \\ `id` $HOME $(touch pwned) ${HOME}""",
    "LINES": "first\nsecond; touch pwned\r\n\ttab",
    "UNICODE": "żółw 乌龟 \U0001f422 \u2028",
    "PERCENT": "%j %x %% !! # --export=ALL",
    "EMPTY": "",
    "BLANKS": "  around  ",
}


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=45,
    injected="quotes, $(), line feeds, commas, percent signs and other alphabets in variables and arguments",
    seen="every process sees them byte for byte, and nothing was executed",
)
def test_environment_and_arguments_arrive_byte_for_byte(launch, backend, tmp_path):
    arguments = [*NASTY.values(), "--option=$(touch pwned)", "-", "--", "{address}"]
    job = launch({"trainer": {"count": 1, "command": "", "arguments": arguments}}, environment=NASTY)
    assert job.wait() == 0, job.said()
    seen = job.noted("began")["trainer-0-0"]
    assert {name: seen["environment"][name] for name in NASTY} == NASTY
    assert seen["arguments"] == arguments
    assert not [path for folder in (tmp_path, backend.folder) for path in folder.rglob("pwned")]


@pytest.mark.fault(
    row=46,
    injected="a rank prints its secret and fails",
    seen="only its own log has it; events, copied lines, plan, script and the controller's state do not",
)
def test_secrets_reach_processes_by_a_private_file_and_are_seen_nowhere_else(launch, backend):
    secret = "s3cr3t $(id) 'quoted', and\nof two lines"
    backend.environment |= {"JOB_TOKEN": secret, "JOB_PASSED": "passed on", "JOB_LEFT": "left behind"}
    try:
        job = launch(
            {
                "trainer": {
                    "count": 1,
                    "max_restarts": 0,
                    "command": "print('token', os.environ['JOB_TOKEN']); sys.exit(3)",
                }
            },
            secrets=["JOB_TOKEN"],
            pass_environment=["JOB_PASSED"],
        )
        assert job.wait() == 3, job.said()
    finally:
        for name in ("JOB_TOKEN", "JOB_PASSED", "JOB_LEFT"):
            del backend.environment[name]
    seen = job.noted("began")["trainer-0-0"]["environment"]
    assert (seen["JOB_TOKEN"], seen["JOB_PASSED"], seen.get("JOB_LEFT")) == (secret, "passed on", None)
    private = job.folder.path / "private.json"
    assert private.stat().st_mode & 0o777 == 0o600
    assert job.folder.path.stat().st_mode & 0o077 == 0
    # The program printed it, so that its own log has it; what copies lines of that log does not.
    (own,) = job.folder.logs.glob("start-*/rank-0.log")
    assert secret in own.read_text()
    places = [path for path in job.folder.path.rglob("*") if path.is_file() and path not in {private, own}]
    if backend.name == "slurm":
        places += [path for path in Path(backend.folder, "state").rglob("*") if path.is_file()]
    assert len(places) > 5
    for path in places:
        text = path.read_bytes().decode(errors="replace")
        assert "s3cr3t" not in text, path
        assert "of two lines" not in text, path
    events = [json.loads(line) for line in (job.folder.logs / "events.jsonl").read_text().splitlines()]
    assert "token ***" in next(event for event in events if event["event"] == "failed")["tail"]
    _, facts = job.command("logs", "--role", "trainer")
    assert [line for line in facts["lines"] if "token" in line] == ["[trainer 0] token ***"]


@pytest.mark.exhaustive
def test_processes_get_the_devices_that_the_scheduler_gave_in_order(launch, backend):
    if backend.name == "local":
        backend.environment["CUDA_VISIBLE_DEVICES"] = "4,2,7,5"
    try:
        job = launch(
            {
                "trainer": {"count": 2, "per_node": 2, "gpus": 1, "command": ""},
                "server": {"count": 2, "per_node": 2, "gpus": 1, "command": "ready(); time.sleep(600)"},
                "reward": {"count": 1, "command": "ready(); time.sleep(600)"},
            }
        )
        assert job.wait() == 0, job.said()
    finally:
        backend.environment.pop("CUDA_VISIBLE_DEVICES", None)
    given = {
        name: one["environment"]["CUDA_VISIBLE_DEVICES"].split(",") for name, one in job.noted("began").items()
    }  # fmt: skip
    assert given["reward-0-0"] == [""]
    # Ranks see all devices of their node and take that of LOCAL_RANK; each server sees its own.
    assert given["trainer-0-0"] == given["trainer-1-0"]
    assert len(set(given["trainer-0-0"])) == 2
    assert {len(given[f"server-{index}-0"]) for index in range(2)} == {1}
    assert given["server-0-0"] != given["server-1-0"]
    if backend.name == "local":
        assert (given["trainer-0-0"], given["server-0-0"], given["server-1-0"]) == (["4", "2"], ["7"], ["5"])


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=43,
    injected="three devices for one node where no node has three",
    seen="exit code 2; with Ray a table of all nodes, with Slurm what sbatch says",
)
def test_what_can_never_be_given_is_refused_at_once(launch, backend, tmp_path):
    (tmp_path / "run.yaml").write_text(
        f"job: {{name: large, directory: {tmp_path}/jobs, roles: {{trainer: {{count: 3, per_node: 3, gpus: 1, "
        f"command: [/bin/true]}}}}}}"
    )
    done = backend.areal("launch", tmp_path / "run.yaml", "--on", backend.name, *backend.overrides)
    assert done.returncode == 2, done.stderr
    expected = {
        "local": "needs 3 devices",
        "slurm": "sbatch refused the job: sbatch: error: Batch job submission failed: Requested node configuration",
        "ray": "0 of 5 could ever have that",
    }
    assert expected[backend.name] in done.stderr
    if backend.name == "ray":
        assert done.stderr.count("CPU 8, GPU 2, memory") == 4
