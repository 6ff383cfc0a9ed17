"""`areal train` over many processes: the numbers of one, any number continues, and no end of a rank is the end."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_runs as runs
import torch

from areal.api import ConfigError
from areal.cli.main import main
from areal.infra.checkpoint.store import CheckpointStore
from areal.infra.metrics.logger import read_metrics
from areal.models import from_pretrained
from areal.trainer.configuration.source import dump_yaml
from areal.trainer.export import export_checkpoint
from areal.trainer.rank_group import RankGroup
from areal.trainer.run import lead, run_on_rank_zero

PROGRAM = Path(runs.__file__)
DOUBLE = Path(__file__).parents[1] / "engine" / "contract" / "vllm_program.py"
AREAL = [sys.executable, "-m", "areal"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def assert_equal_runs(found, kinds, ways):
    assert sorted(found) == sorted([*kinds, "saves"])
    for kind in kinds:
        assert sorted(found[kind]) == sorted(ways)
        for way, seen in found[kind].items():
            exact = {name: value for name, value in seen["metrics"].items() if name not in runs.ROUNDED}
            assert {"train/loss", "train/grad_norm"} <= exact.keys()
            assert not {name: value for name, value in exact.items() if not value < 1e-9}, (kind, way)
            assert all(value < 1e-6 for value in seen["metrics"].values()), (kind, way, seen["metrics"])
            assert seen["weights"] < 1e-9, (kind, way)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of `rl`."""
    return tmp_path_factory.mktemp("rl")


@pytest.fixture(scope="module")
def rl(folder, fork_server):
    """An RL run that two ranks begin and one process ends; one start for the tests that look at it."""
    return fork_server.run_ranks(PROGRAM, 2, [f"--folder={folder}", "--ways=ranks to one", "rl"])[0]


def test_rl_begins_over_ranks_and_ends_in_one_process_with_the_numbers_of_one(rl):
    assert_equal_runs(rl, ["rl"], ["ranks to one"])


def test_shards_of_two_ranks_are_exported_by_one_process_as_the_ranks_had_exported_them(rl, folder, tmp_path):
    del rl
    run = folder / "rl ranks to one"
    assert (CheckpointStore(run / "checkpoints", keep=2).load(2).path / "actor" / "shards").is_dir()
    for step, final in ((2, folder / "rl ranks to one after two steps"), (4, run / "final")):
        exported = export_checkpoint(run, step=step, output=tmp_path / str(step)).folder
        assert (exported / "model.safetensors").read_bytes() == (final / "model.safetensors").read_bytes()


@pytest.mark.fault(
    row=3,
    injected="rank 1 cannot write into the folder of a checkpoint, and rank 0 can",
    seen="no rank has a checkpoint, all go on, and the next save works",
)
def test_a_rank_that_cannot_save_costs_that_checkpoint(rl):
    assert "no checkpoint was written: rank 1: " in rl["saves"]["refused"]
    assert rl["saves"]["next"] == ["actor", "rng_rank_1.json"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", runs.MAKERS)
def test_every_kind_of_run_has_the_numbers_of_one_process(tmp_path, fork_server, kind):
    found = fork_server.run_ranks(PROGRAM, 2, [f"--folder={tmp_path}", kind], timeout_seconds=280)[0]
    assert_equal_runs(found, [kind], runs.WAYS)


class Launch:
    """`areal launch` of a run."""

    def __init__(self, folder, config, ranks):
        self.folder, self.run = folder, Path(config.output_dir)
        path = folder / "config.yaml"
        path.write_text(dump_yaml(config))
        options = ["--ranks", str(ranks), "--max-restarts", "1", "--log-folder", str(folder / "logs"), "--json", "--"]
        self.process = subprocess.Popen(
            [*AREAL, "launch", *options, *AREAL, "train", str(path), "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_for_step(self, step, seconds=200.0):
        deadline = time.monotonic() + seconds
        file = self.run / "metrics.jsonl"
        while not file.exists() or max(read_metrics(file), default=0) < step:
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"no step {step} within {seconds} s"
            time.sleep(0.05)

    def pid_of_rank(self, rank):
        """Of the process that trains, not of its guard."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            trains = words[1:4] == [b"-m", b"areal", b"train"] and str(self.folder / "config.yaml").encode() in words
            if trains and f"RANK={rank}".encode() in environment:
                found.append(int(folder.name))
        assert len(found) == 1, found
        return found[0]

    def end(self):
        output, errors = self.process.communicate(timeout=250)
        return json.loads(output), errors

    def outputs(self, start):
        """What each rank printed."""
        folder = sorted((self.folder / "logs").iterdir())[start]
        return [path.read_text() for path in sorted(folder.glob("rank-*.log"))]


@pytest.fixture
def launch(tmp_path):
    """`launch(folder name, ranks, **changes)`: a running launch of an SFT run, or of another `make`, which is ended
    after the test."""
    started = []

    def start(name, ranks, *, make=runs.sft, ways=None, **changes):
        folder = tmp_path / name
        folder.mkdir()
        config = make(changes.pop("run", folder / "run"), **changes)
        parallel = runs.ParallelDims(**(ways or {"dp_shard": -1}))
        config = runs.replace(config, archon=runs.ArchonConfig(parallel=parallel))
        started.append(Launch(folder, config, ranks))
        return started[-1]

    yield start
    for item in started:
        item.process.kill()
        item.process.communicate()


def alone(folder, **changes):
    """Weights of the same run in this process, without `archon`."""
    lead(runs.sft(folder, **changes), RankGroup())
    return weights(folder)


def weights(folder):
    return from_pretrained(folder / "final", dtype=torch.float64).state_dict()


def assert_close(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=1,
    injected="SIGKILL of rank 1 of an `areal train` over two ranks, under `areal launch`",
    seen="rank 0 ends too; both start again, continue from the newest checkpoint of shards and end with the weights of "
    "an undisturbed run in one process",
)
def test_a_follower_that_is_killed_costs_what_was_done_since_the_last_checkpoint(launch, tmp_path):
    # By time, which each rank has its own of: rank 0 alone decides.
    changes = {"total_train_steps": 30, "checkpoint__every_seconds": 0.05, "checkpoint__max_overhead": 1}
    found = launch("killed", 2, **changes)
    found.wait_for_step(5)
    os.kill(found.pid_of_rank(1), signal.SIGKILL)
    result, errors = found.end()
    assert found.process.returncode == 0, errors
    assert [(start["status"], start["rank"]) for start in result["starts"]] == [(137, 1), (0, None)]
    assert "continuing from step" in errors
    assert list(read_metrics(found.run / "metrics.jsonl"))[-30:] == list(range(1, 31))
    # Rank 0 alone reports.
    reports = [[line for line in text.splitlines() if line.startswith("{")] for text in found.outputs(1)]
    assert [len(lines) for lines in reports] == [1, 0]
    assert json.loads(reports[0][0])["summary"]["finished"]
    assert_close(weights(found.run), alone(tmp_path / "alone", **changes))


@pytest.mark.exhaustive
@pytest.mark.fault(
    row=25,
    injected="SIGTERM to `areal launch` of an `areal train` over two ranks",
    seen="rank 0 finishes its step, all save, exit code 143; one process without `archon` continues the run to the "
    "weights of an undisturbed one",
)
def test_sigterm_stops_all_ranks_between_two_steps_and_one_process_goes_on(launch, tmp_path):
    found = launch("stopped", 2, total_train_steps=100_000)
    found.wait_for_step(2)
    found.process.terminate()
    result, errors = found.end()
    assert found.process.returncode == 143, errors
    assert [start["status"] for start in result["starts"]] == [143]
    step = CheckpointStore(found.run / "checkpoints", keep=2).load_latest().step
    assert step == max(read_metrics(found.run / "metrics.jsonl"))
    total = {"total_train_steps": step + 2}
    assert_close(alone(found.run, **total), alone(tmp_path / "alone", **total))


@pytest.mark.exhaustive
def test_four_ranks_then_two_then_one_continue_one_run(launch, tmp_path):
    total = 0
    for ranks in (4, 2, 1):
        total += 2
        found = launch(f"with-{ranks}", ranks, run=tmp_path / "run", total_train_steps=total)
        result, errors = found.end()
        assert found.process.returncode == 0, errors
        assert [start["status"] for start in result["starts"]] == [0]
    assert_close(weights(tmp_path / "run"), alone(tmp_path / "alone", total_train_steps=total))
    # Each rank's random generators, of those that were there.
    newest = CheckpointStore(tmp_path / "run" / "checkpoints", keep=2)
    assert sorted(path.name for path in newest.load(4).path.glob("rng*.json")) == ["rng.json", "rng_rank_1.json"]
    assert sorted(path.name for path in newest.load(6).path.glob("rng*.json")) == ["rng.json"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("carrier", "ways"),
    [
        ("shared_memory", {"dp_shard": 2}),
        ("shards", {"dp_shard": 2}),
        ("shards", {"tp": 2}),
        ("shards", {"pp": 2}),
        ("shards", {"dp_replicate": 2, "dp_shard": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_servers_get_whole_weights_of_a_model_that_no_process_has(launch, tmp_path, carrier, ways):
    spec = importlib.util.spec_from_file_location("vllm_program", DOUBLE)
    double = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(double)
    servers = {
        "rollout__engine": "vllm", "vllm__python": str(double.write_python(tmp_path / "environment" / "python")),
        "servers__dtype": "float32", "servers__num_servers": 1, "servers__max_seq_len": 64, "actor__lr": 3e-2,
        "objective__preset": "grpo", "objective__entropy_coef": 0.5, "objective__kl": None, "critic": None,
        "objective__prox_logp": "recompute",
    }  # fmt: skip
    found = launch("served", math.prod(ways.values()), make=runs.rl, ways=ways, weights__carrier=carrier, **servers)
    _, errors = found.end()
    assert found.process.returncode == 0, errors
    steps = read_metrics(found.run / "metrics.jsonl")
    assert list(steps) == [1, 2, 3, 4]
    # Each step samples from the weights of the one before: were they others, their log-probabilities would be too.
    assert all(values["mismatch/fresh_fraction"] == 1.0 for values in steps.values())
    assert all(values["mismatch/fresh_abs_max"] < 1e-4 for values in steps.values()), steps
    assert all(values["train/grad_norm"] > 0 for values in steps.values())


def test_a_launch_of_no_rank_is_refused_by_the_name_of_its_option(capsys):
    assert main(["launch", "--ranks", "0", "--", "true"]) == 2
    assert "--ranks is 0, expected at least 1" in capsys.readouterr().err


def test_a_dry_run_says_how_to_start_the_processes_and_joins_none(tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(runs.sft(tmp_path / "run")))
    sizes = ["archon.parallel.dp_shard=2", "archon.parallel.tp=2"]
    assert main(["train", str(path), *sizes, "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["derived"]["processes"] == 4
    assert report["config"]["archon"]["parallel"]["tp"] == 2
    notes = "\n".join(report["notes"])
    assert "areal launch --ranks 4 -- areal train" in notes
    assert "(dp_shard=2 tp=2)" in notes
    assert "areal plan CONFIG" in notes
    assert main(["train", str(path), "archon.parallel.dp_shard=-1", "--dry-run"]) == 0
    assert "as many as are started" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ranks", "parallel", "message"),
    [
        (2, None, "there are 2 processes (WORLD_SIZE) and archon is null"),
        (2, {"dp_shard": 4}, "need 4 processes and there are 2"),
        (None, {"dp_shard": 4}, "areal launch --ranks 4 -- areal train"),
    ],
    ids=["no archon", "too few", "alone"],
)
def test_wrong_numbers_of_processes_are_refused_at_once(tmp_path, monkeypatch, ranks, parallel, message):
    archon = None if parallel is None else runs.ArchonConfig(parallel=runs.ParallelDims(**parallel))
    config = runs.replace(runs.sft(tmp_path / "run"), archon=archon)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
    with pytest.raises(ConfigError) as error:
        run_on_rank_zero(config, lambda group: lead(config, group))
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()
