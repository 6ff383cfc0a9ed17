"""A process of a run that logs to one real tracker, and what that tracker's own reader then finds. A program for
test_clients.py, run by the interpreter of .venv-trackers: no torch and no pytest there.

    python client_process.py run wandb FOLDER 0 '{"mode": "offline"}'     the first process: steps 0 to 4, then killed
    python client_process.py run wandb FOLDER 2 '{"mode": "offline"}'     continues from step 2, does 3 to 6, ends
    python client_process.py problems wandb FOLDER '{}'
    python client_process.py read wandb FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import struct
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import PromptGroup, StopReason, Trajectory
from areal.infra.metrics.attempts import run_id_of
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.logger import METRICS_FILE, MetricLogger, read_metrics
from areal.infra.metrics.trackers import config as sections
from areal.infra.metrics.trackers.tracking import Ending, TrackedRun, open_trackers, problems

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTIONS = {
    "mlflow": sections.MlflowConfig,
    "prometheus": sections.PrometheusConfig,
    "swanlab": sections.SwanlabConfig,
    "tensorboard": sections.TensorBoardConfig,
    "trackio": sections.TrackioConfig,
    "wandb": sections.WandbConfig,
}
RUN_CONFIG = {
    "kind": "rl",
    "seed": 7,
    "actor": {"learning_rate": 1e-4, "lora": None},
    "model": {"path": "models/tiny|x"},
    "tags": ["a", "b"],
}


def group(step: int) -> PromptGroup:
    samples = tuple(
        Trajectory(
            tokens=[5, 6, 7], loss_mask=[0, 1, 1], logprobs=[0, -0.5, -0.25], versions=[-1, 4, 4],
            turn_ids=[-1, 0, 0], reward=0.5 * index, stop_reason=StopReason.STOP, sample_index=index,
            reward_components={"format": 1.0}, text={"prompt": "8*9=", "completion": f"7{index} | after\n{step}"},
        )
        for index in range(2)
    )  # fmt: skip
    return PromptGroup(ordinal=step, admitted_version=4, trajectories=samples)


def run(name: str, folder: Path, first: int, settings: dict) -> None:
    config = sections.TrackersConfig(**{name: SECTIONS[name](**settings)}, samples_every_steps=2)
    found = list(problems(config))
    run_id = run_id_of(folder / METRICS_FILE, continues=first > 0)
    tracked = TrackedRun(
        directory=folder, experiment="arithmetic", trial="tiny", config=RUN_CONFIG, id=run_id, first_step=first,
        continues=first > 0,
    )  # fmt: skip
    done = (
        {step: values for step, values in read_metrics(folder / METRICS_FILE).items() if step <= first} if first else {}
    )
    trackers = open_trackers(tracked, config, finished=lambda: done)
    first_logged = first + 1 if first else 0
    metrics = MetricLogger(
        folder, MetricsConfig(trackers=config), first_step=first_logged, run_id=run_id, trackers=trackers
    )
    if first == 0:
        metrics.log(0, {"eval/reward": 0.0})
    for step in range(first + 1, first + 5):
        if step % 2 == 0:
            metrics.log(step, {"eval/reward": step / 10})  # before the numbers of the step, as trainers do
        # The value names the process: which of two attempts at a step is shown can be told apart.
        metrics.log(step, {"reward/mean": step + first / 100, "train/kl": float("nan") if step == 3 else 0.5})
        metrics.log_rollouts(step, [group(step)])
    answer = {"problems": found, "active": trackers.active}
    if name == "prometheus":
        (tracker,) = trackers._trackers.values()
        with urllib.request.urlopen(tracker.url, timeout=60) as response:
            answer["page"] = response.read().decode()
            answer["type"] = response.headers["Content-Type"]
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    if first == 0 and name != "prometheus":
        if name in ("swanlab", "wandb"):  # these send from buffers, whose last moments a kill loses
            trackers.finish(Ending(state="interrupted", exit_code=143, summary={"steps": 4}))
        os._exit(9)
    metrics.close()
    trackers.finish(Ending(state="finished", exit_code=0, summary={"steps": first + 4, "seconds": 1.5}))


def read_mlflow(folder: Path) -> dict:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=f"file://{folder}/mlruns")
    experiment = client.get_experiment_by_name("arithmetic")
    runs = client.search_runs([experiment.experiment_id])
    (found,) = runs
    history = {
        name: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)]
        for name in ("reward/mean", "eval/reward")
    }
    artifacts = [item.path for item in client.list_artifacts(found.info.run_id, "samples")]
    table = Path(found.info.artifact_uri.removeprefix("file://"), "samples", "step-000004.json")
    return {
        "history": history, "params": found.data.params, "tags": found.data.tags, "status": found.info.status,
        "name": found.info.run_name, "artifacts": artifacts, "table": json.loads(table.read_text()),
    }  # fmt: skip


def records(file: Path) -> Iterator[bytes]:
    """Yield what a log of LevelDB's format holds, which W&B and SwanLab write; both begin with 7 bytes of their own."""
    data, position, parts = file.read_bytes(), 7, []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def read_wandb(folder: Path) -> dict:
    """Read the transaction logs, which `wandb sync` sends."""
    kinds = importlib.import_module("wandb.proto.wandb_internal_pb2")
    processes = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        found = {"rows": [], "exits": [], "config": {}, "summary": {}}
        for data in records(file):
            record = kinds.Record.FromString(data)
            kind = record.WhichOneof("record_type")
            if kind == "history":
                found["rows"].append(leaves(record.history.item))
            elif kind == "run":
                run = record.run
                found["run"] = {"id": run.run_id, "project": run.project, "group": run.run_group,
                                "name": run.display_name, "tags": list(run.tags)}  # fmt: skip
                found["config"] |= leaves(run.config.update)
            elif kind == "exit":
                found["exits"].append(record.exit.exit_code)
            elif kind == "summary":
                found["summary"] |= leaves(record.summary.update)
        processes.append(found)
    return {"processes": processes}


def leaves(items: Any) -> dict:
    return {(".".join(item.nested_key) or item.key): json.loads(item.value_json) for item in items}


def read_trackio(folder: Path) -> dict:
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    runs = storage.get_runs("arithmetic")
    logs = storage.get_logs("arithmetic", runs[0])
    return {"runs": runs, "logs": logs, "config": storage.get_run_config("arithmetic", runs[0])}


def read_swanlab(folder: Path) -> dict:
    """Read the logs that `swanlab sync` sends."""
    kind = importlib.import_module("swanlab.proto.swanlab.record.v1.record_pb2").Record
    to_dict = importlib.import_module("google.protobuf.json_format").MessageToDict
    files = sorted((folder / "swanlog").glob("run-*/run-*.swanlab"), key=lambda file: file.stat().st_mtime_ns)
    tables = sorted(item.name for item in (folder / "swanlog").glob("run-*/media/**/*.json"))
    logs = [[to_dict(kind.FromString(data), preserving_proto_field_name=True) for data in records(file)]
            for file in files]  # fmt: skip
    config = (files[-1].parent / "files" / "config.yaml").read_text()
    return {"processes": logs, "tables": tables, "config": config}


def read_tensorboard(folder: Path) -> dict:
    """Read as TensorBoard's pages do."""
    module = importlib.import_module("tensorboard.backend.event_processing.plugin_event_accumulator")
    events = module.EventAccumulator(str(folder / "tensorboard"), size_guidance={module.TENSORS: 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    values = {}
    for tag in ("reward/mean", "eval/reward"):
        values[tag] = [(item.step, item.tensor_proto.float_val[0]) for item in events.Tensors(tag)]
    texts = {
        tag: events.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in ("config", "samples", "summary")
    }
    return {"tags": tags, "values": values, "texts": texts}


READERS = {
    "mlflow": read_mlflow,
    "swanlab": read_swanlab,
    "tensorboard": read_tensorboard,
    "trackio": read_trackio,
    "wandb": read_wandb,
}

if __name__ == "__main__":
    what, name, folder, *rest = sys.argv[1:]
    if what == "run":
        run(name, Path(folder), int(rest[0]), json.loads(rest[1]))
    elif what == "problems":
        section = {name: SECTIONS[name](**json.loads(rest[0]))}
        sys.stdout.write(json.dumps({"problems": list(problems(sections.TrackersConfig(**section)))}))
    else:
        sys.stdout.write(json.dumps(READERS[name](Path(folder)), default=str))
