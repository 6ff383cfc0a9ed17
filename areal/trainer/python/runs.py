"""Runs as classes: what `areal train` does with a YAML file, from a script or a notebook.

    result = areal.GRPO(model="models/Qwen3-0.6B", reward=score, train=rows, actor={"lr": 1e-6}).train()

The keywords are the keys of the YAML (docs/reference/config.md); sections are dicts or config objects.
docs/python-api.md says what becomes of functions and rows.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, ClassVar

from areal.trainer.configuration.validation import validate_run
from areal.trainer.python.arguments import RunSettings, build
from areal.trainer.python.result import TrainResult
from areal.trainer.run import check_processes, run, world_size
from areal.utils import logging as own_logging
from areal.utils.given import given

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


class TrainingRun:
    """A run that is ready to start; `GRPO`, `PPO`, `SFT`, `DPO` and `RewardModel` are its kinds.

    Everything that is wrong with the values is said when it is built, in one ConfigError that names the fields. It
    holds the rows and functions that it was given; nothing is written before `train`.
    """

    kind: ClassVar[str]
    """Value of the key `kind` in YAML."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """What is set unless the caller does."""

    def __init__(self, *, model: Any, train: Any = None, **fields: Any) -> None:
        """model: a checkpoint folder, the content of a config.json (random weights), or the fields of the section.

        train: rows in memory (a list, generator or Dataset), a file, or the name of a dataset; `train_dataset` takes
        the fields of the section, beside it or instead. fields: every other key of the YAML by its name.

        Raises ConfigError with all problems, DataError for rows that are none.
        """
        name = type(self).__name__.removesuffix("Run")  # as `areal` exports it
        merged = {"trial_name": name.lower(), **self.defaults, **fields, "model": model, "train": train}
        if isinstance(model, dict) and "tokenizer_path" in fields:
            merged["model"] = {"init": model, "tokenizer_path": merged.pop("tokenizer_path")}
        self._built = build(self.kind, merged, source=f"{name}(...)")
        self.config = RunSettings(values=self._built.config)
        """The configuration; `config.to_yaml()` is the file for `areal train`."""

    @property
    def directory(self) -> Path:
        """Folder of the run."""
        return self._built.config.directory

    def train(self, *, restart: bool = False) -> TrainResult:
        """Train, or continue what the run directory holds, and return what came of it.

        restart: start over; what an earlier run left is moved into `archived/`. Ctrl-C ends the run after the step,
        with its state saved; the same call then continues it. Of a launch (`areal launch -- python my_script.py`), only
        rank 0 returns; the others exit with its code.

        Raises FinishedError when the run is finished already, ConfigError when the directory holds another run, and
        what `areal train` reports.
        """
        config = self._built.config
        self._built.write_rows()
        with self._handed_over(), _shown_log():
            if (num_processes := world_size()) is not None:
                check_processes(config, num_processes)
            validate_run(config)
            summary = run(config, restart=restart)
        if "rank" in summary:
            raise SystemExit(int(summary["exit_code"]))
        return TrainResult(config=self.config, summary=summary, objects=self._built.objects)

    def __repr__(self) -> str:
        """Say what it is and where."""
        return f"<{type(self).__name__.removesuffix('Run')} in {self.directory}>"

    def _handed_over(self) -> contextlib.AbstractContextManager[None]:
        return given(self._built.objects)


class GRPORun(TrainingRun):
    """Reinforcement learning without a critic; `objective={"preset": "dapo"}` and others choose a relative.

    areal.GRPO(model="models/Qwen3-0.6B", reward=score, train=rows).train()
    """

    kind = "rl"

    def __init__(self, *, model: Any, reward: Any, train: Any = None, **fields: Any) -> None:
        """reward: a function, a name or path, a list of them, or a map to weights. Others as `TrainingRun`."""
        super().__init__(model=model, train=train, reward=reward, **fields)


class PPORun(TrainingRun):
    """Reinforcement learning with a critic, which is a copy of the model unless `critic` says otherwise.

    areal.PPO(model="models/Qwen3-0.6B", reward=score, train=rows, critic={"lr": 1e-5}).train()
    """

    kind = "rl"
    defaults: ClassVar[Mapping[str, Any]] = {"objective": {"preset": "ppo"}, "critic": {}}

    def __init__(self, *, model: Any, reward: Any, train: Any = None, **fields: Any) -> None:
        """reward: as of `GRPORun`. Others as `TrainingRun`."""
        super().__init__(model=model, train=train, reward=reward, **fields)


class SFTRun(TrainingRun):
    """Supervised fine-tuning on answers, or on the assistant's turns of chats.

    areal.SFT(model="models/Qwen3-0.6B", train=[{"prompt": "8*9=", "answer": "72"}]).train()
    """

    kind = "sft"


class DPORun(TrainingRun):
    """Learning from pairs of answers; `preference={"loss": "ipo"}` and others choose a relative.

    areal.DPO(model="models/Qwen3-0.6B", train=[{"prompt": "8*9=", "chosen": "72", "rejected": "17"}]).train()
    """

    kind = "dpo"


class RewardModelRun(TrainingRun):
    """A model that scores answers, from pairs of them (Bradley-Terry).

    areal.RewardModel(model="models/Qwen3-0.6B", train=[{"prompt": "8*9=", "chosen": "72", "rejected": "17"}]).train()
    """

    kind = "reward_model"


@contextlib.contextmanager
def _shown_log() -> Iterator[None]:
    """Show progress on stderr, as `areal train` does, where the program has set up no logging of its own."""
    logger = logging.getLogger(own_logging.PACKAGE_LOGGER)
    if logger.hasHandlers():
        yield
        return
    level = logger.level
    own_logging.configure("INFO")
    try:
        yield
    finally:
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
        logger.setLevel(level)
