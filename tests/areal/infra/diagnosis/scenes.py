"""Run directories as runs leave them, written by hand: a healthy one, and what is changed in it."""

from __future__ import annotations

import json
import math
import os
import random
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 40
BEGIN = 1_790_000_000.0
STEP_SECONDS = 2.0


@dataclass
class Scene:
    """A run that learnt, until something is changed."""

    folder: Path
    kind: str = "rl"
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    lock: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        noise = random.Random(1)
        for step in range(1, STEPS + 1):
            done = step / STEPS
            self.metrics[step] = {
                "reward/mean": 0.3 + 0.5 * done + noise.gauss(0, 0.02),
                "reward/std": 0.45 - 0.05 * done,
                "reward/min": 0.0,
                "reward/max": 1.0,
                "reward/zero_variance_share": 0.2 + 0.1 * done,
                "length/mean": 40 + 4 * done,
                "length/max": 64.0,
                "length/truncated_fraction": 0.05,
                "train/loss": noise.gauss(0, 0.01),
                "train/grad_norm": 0.5 + 0.1 * noise.random(),
                "train/learning_rate": 1e-4,
                "train/entropy": 1.5 - 0.8 * done,
                "train/kl": 0.001 + 0.0005 * noise.random(),
                "train/clip_fraction": 0.01,
                "train/dual_clip_fraction": 0.0,
                "train/masked_fraction": 0.0,
                "train/skipped_steps": 0.0,
                "staleness/mean": 0.9,
                "staleness/max": 1.0,
                "rollout/staleness_mean": 0.9,
                "mismatch/abs_mean": 0.01,
                "mismatch/abs_max": 0.4,
                "throughput/tokens_per_second": 3000.0,
                "time/rollout_wait": 0.6,
                "time/prepare": 0.2,
                "time/update": 1.1,
                "time/publish": 0.1,
                "time/step": STEP_SECONDS,
            }
        for step in range(0, STEPS + 1, 10):
            self.metrics.setdefault(step, {}).update(
                {"eval/test/avg@1": 0.3 + 0.4 * step / STEPS, "eval/test/rows": 500.0, "eval/test/faults": 0.0}
            )
        self.config = {
            "kind": "rl", "experiment_name": "scene", "trial_name": "one", "seed": 1, "total_train_steps": STEPS,
            "model": {"path": "models/tiny"}, "train_dataset": {"name": "arithmetic"}, "reward": "exact",
            "gconfig": {"max_new_tokens": 64}, "objective": {"preset": "dapo"}, "critic": None,
            "rollout": {"engine": "embedded", "batch_size": 16, "group_size": 4, "max_head_offpolicyness": 1},
        }  # fmt: skip
        self.start()
        self.end()

    def start(self, **fields: Any) -> None:
        """Add the first line of a start."""
        process = {"pid": 4242, "host": socket.gethostname(), "areal": "1", "incarnation": None, "logs": None}
        self.say("run started", logger="areal", kind="start", **process | fields)

    def end(self, problem: str | None = None, exit_code: int = 0, steps: int = STEPS) -> None:
        """Add the last line of a start."""
        ending = {"exit_code": exit_code, "problem": problem, "steps": steps, "total_steps": STEPS}
        self.say("run ended", logger="areal", kind="end", **ending)

    def say(self, message: str, *, logger: str, level: str = "INFO", **fields: Any) -> None:
        """Add a line of the log."""
        self.lines.append(
            {"time": "2026-09-21T12:00:00.000Z", "level": level, "logger": logger, "message": message, **fields}
        )

    def warn(self, message: str, *, logger: str, **fields: Any) -> None:
        """Add a warning before the end."""
        end = self.lines.pop()
        self.say(message, logger=logger, level="WARNING", **fields)
        self.lines.append(end)

    def fail(self, problem: str, exit_code: int = 1) -> None:
        """Let the run end with an error."""
        self.lines.pop()
        self.end(problem, exit_code)

    def course(self, name: str, first: float, last: float, *, noise: float = 0.0) -> None:
        """Let a metric go from one value to another."""
        random_numbers = random.Random(2)
        for step in range(1, STEPS + 1):
            value = first + (last - first) * (step - 1) / (STEPS - 1)
            self.metrics[step][name] = value + (random_numbers.gauss(0, noise) if noise else 0.0)

    def settle(self, **settings: Any) -> None:
        """Change settings; `rollout__engine="vllm"` is rollout.engine."""
        for key, value in settings.items():
            *path, last = key.split("__")
            section = self.config
            for part in path:
                section = section.setdefault(part, {})
            section[last] = value

    def write(self) -> Path:
        """Write the directory."""
        (self.folder / "checkpoints" / "step-00000040.000001").mkdir(parents=True, exist_ok=True)
        (self.folder / "checkpoints" / "step-00000040.000001" / "manifest.json").write_text("{}")
        (self.folder / "final").mkdir(exist_ok=True)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.config))
        (self.folder / "run.lock").write_text(json.dumps(self.lock) if self.lock else "")
        (self.folder / "rollouts.jsonl").write_text("")
        with (self.folder / "metrics.jsonl").open("w") as file:
            for step, values in sorted(self.metrics.items()):
                line = {"step": step, "time": BEGIN + STEP_SECONDS * step, **values}
                file.write(json.dumps({k: "nan" if math.isnan(v) else v for k, v in line.items()}) + "\n")
        with (self.folder / "log.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in self.lines)
        return self.folder


def supervised(scene: Scene) -> None:
    """Turn the run into one of SFT."""
    scene.settle(kind="sft", reward="")
    for step, values in scene.metrics.items():
        scene.metrics[step] = {
            key: value
            for key, value in values.items()
            if key in {"train/grad_norm", "train/learning_rate", "train/skipped_steps", "time/step"}
        }
    scene.course("train/loss", 3.0, 1.2, noise=0.02)
    for step in range(0, STEPS + 1, 10):
        scene.metrics[step]["eval/loss"] = 3.0 - 0.04 * step


def flat(scene: Scene) -> None:
    """Let the reward stay where it is, with differences within groups."""
    scene.course("reward/mean", 0.4, 0.4, noise=0.02)
    for step in range(0, STEPS + 1, 10):
        scene.metrics[step]["eval/test/avg@1"] = 0.4


def launched(scene: Scene, folder: Path, *ends: tuple[int, int | None, str]) -> None:
    """Let `areal launch` have started the run, once for each end."""
    scene.lines.clear()
    logs = folder / "launch"
    for number, (status, rank, text) in enumerate(ends):
        name, incarnation = f"start-{number:04d}-{number}", f"in{number}"
        (logs / name).mkdir(parents=True)
        (logs / name / "rank-1.log").write_text("loading\nRuntimeError: NCCL says no\n")
        line = {"incarnation": incarnation, "start": number, "seconds": 9.0, "status": status, "rank": rank}
        with (logs / "starts.jsonl").open("a") as file:
            file.write(json.dumps({**line, "text": text, "logs": name}) + "\n")
        scene.start(incarnation=incarnation, logs=str(logs))
        if number == len(ends) - 1 or status == 9:
            scene.end(None if status == 0 else "EngineError: the connection to rank 1 is lost", exit_code=0)


def gone() -> dict[str, Any]:
    """Lock of a process that ended without releasing it."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return {"pid": child, "host": socket.gethostname(), "started_unix": BEGIN}
