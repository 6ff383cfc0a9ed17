"""Runs as classes: what `areal train` does with a YAML file, from a script or a notebook.

    result = areal.GRPO(model="models/Qwen3-0.6B", reward=score, train=rows, actor={"lr": 1e-6}).train()

The keywords are the keys of the YAML (docs/reference/config.md); sections are dicts or config objects.
docs/python-api.md says what becomes of functions and rows.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from areal.api import ConfigError
from areal.trainer.config import PPOConfig
from areal.trainer.configuration import schema as schema_of
from areal.trainer.configuration.source import KINDS
from areal.trainer.configuration.validation import validate_run
from areal.trainer.distillation_config import TeacherConfig
from areal.trainer.python.arguments import RunSettings, build
from areal.trainer.python.result import TrainResult
from areal.trainer.run import check_processes, run, world_size
from areal.utils import logging as own_logging
from areal.utils.given import given
from areal.utils.suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from areal.trainer.python.trial import DryRun


class TrainingRun:
    """A run that is ready to start; `GRPO`, `PPO`, `Distillation`, `SFT`, `DPO` and `RewardModel` are its kinds.

    Everything that is wrong with the values is said when it is built, in one ConfigError that names the fields. It
    holds the rows and functions that it was given; nothing is written before `train`.
    """

    kind: ClassVar[str]
    """Value of the key `kind` in YAML."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """What is set unless the caller does."""
    shortcuts: ClassVar[tuple[str, ...]] = ("train",)
    """Keywords that no file has."""

    def __init__(self, *, model: Any = None, train: Any = None, **fields: Any) -> None:
        """model: a checkpoint folder, the content of a config.json (random weights), or the fields of the section;
        required.

        train: rows in memory (a list, generator or Dataset), a file, or the name of a dataset; `train_dataset` takes
        the fields of the section, beside it or instead. fields: every other key of the YAML by its name.

        Raises ConfigError with all problems, DataError for rows that are none.
        """
        name = type(self).__name__.removesuffix("Run")  # as `areal` exports it
        self._source = f"{name}(...)"
        merged = {"trial_name": name.lower(), **self.defaults, **fields, "model": model, "train": train}
        if isinstance(model, dict) and "tokenizer_path" in fields:
            merged["model"] = {"init": model, "tokenizer_path": merged.pop("tokenizer_path")}
        self._check_names(fields)
        if model is None:
            del merged["model"]  # missed last: it may be there under a misspelt name
        self._built = build(self.kind, merged, source=self._source)
        self.config = RunSettings(values=self._built.config)
        """The configuration; `config.to_yaml()` is the file for `areal train`."""
        self._check_complete()

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

    def dry_run(self, *, restart: bool = False) -> DryRun:
        """Try the run out without training: what `areal train --dry-run` reports, as an object that prints its text.

        Rows are read, a prompt is rendered, the rewards are called once, and memory is estimated; nothing is written.
        restart: of the `train` that is asked about. Raises ConfigError with all problems.
        """
        from areal.trainer.python.trial import try_out

        with self._handed_over():
            return try_out(self._built, source=self._source, restart=restart)

    def __repr__(self) -> str:
        """Say what it is and where."""
        return f"<{type(self).__name__.removesuffix('Run')} in {self.directory}>"

    def _handed_over(self) -> contextlib.AbstractContextManager[None]:
        return given(self._built.objects)

    def _check_names(self, fields: Mapping[str, Any]) -> None:
        """Raise ConfigError for a keyword that is nearly one which no file has, and no key of files."""
        known = schema_of.fields_of(KINDS[self.kind])
        for name in fields:
            if name not in {*known, "tokenizer_path", "valid"}:
                near = nearest(name, [*known, *self.shortcuts], limit=1)
                if near and near[0] in self.shortcuts:
                    meant = f"did you mean {near[0]}?"
                    raise ConfigError(f"{name} ({self._source}): unknown key; {meant}", where=name, fix=meant)

    def _check_complete(self) -> None:
        """Raise ConfigError for a run without a model, rows, or anything to learn from."""
        config = self._built.config
        sources = config.sources if isinstance(config, PPOConfig) else {}
        missing: dict[str, str] = {}
        if not config.model.path and not config.model.init:
            missing["model"] = "a checkpoint folder, a name on the hub, or the content of a config.json"
        if not config.train_dataset.name and not sources:
            missing["train"] = "rows, a file, or the name of a dataset"
        needs_reward = isinstance(config, PPOConfig) and config.learns_from_reward and not config.reward
        if needs_reward and not (sources and all(source.reward for source in sources.values())):
            missing["reward"] = "a function, the name of a reward, a list of them, or a map to weights"
        if missing:
            listed = "; ".join(f"{key}: required, {what}" for key, what in missing.items())
            raise ConfigError(
                f"{self._source}: {listed}",
                where=next(iter(missing)),
                fix=f"give {', '.join(missing)}",
                problems=[
                    {"key": key, "where": self._source, "message": f"required, {what}", "fix": f"give {key}"}
                    for key, what in missing.items()
                ],
            )


class GRPORun(TrainingRun):
    """Reinforcement learning without a critic; `objective={"preset": "dapo"}` and others choose a relative.

    areal.GRPO(model="models/Qwen3-0.6B", reward=score, train=rows).train()
    """

    kind = "rl"

    def __init__(self, *, model: Any = None, reward: Any = "", train: Any = None, **fields: Any) -> None:
        """reward: a function, a name or path, a list of them, or a map to weights; required unless each of `sources`
        has its own. Others as `TrainingRun`."""
        super().__init__(model=model, train=train, reward=reward, **fields)


class PPORun(TrainingRun):
    """Reinforcement learning with a critic, which is a copy of the model unless `critic` says otherwise.

    areal.PPO(model="models/Qwen3-0.6B", reward=score, train=rows, critic={"lr": 1e-5}).train()
    """

    kind = "rl"
    defaults: ClassVar[Mapping[str, Any]] = {"objective": {"preset": "ppo"}, "critic": {}}

    def __init__(self, *, model: Any = None, reward: Any = "", train: Any = None, **fields: Any) -> None:
        """reward: as of `GRPORun`. Others as `TrainingRun`."""
        super().__init__(model=model, train=train, reward=reward, **fields)


class DistillationRun(TrainingRun):
    """Learning from a teacher on what the student samples; with a reward, from both.

    areal.Distillation(model="models/Qwen3-0.6B", teacher="models/Qwen3-4B", train=[{"prompt": "8*9="}]).train()
    """

    kind = "rl"
    shortcuts = ("train", "teacher")

    def __init__(
        self, *, model: Any = None, teacher: Any = None, train: Any = None, reward: Any = "", **fields: Any
    ) -> None:
        """teacher: a checkpoint folder or name on the hub, the fields of one teacher (of a server, {"server": address,
        "tokenizer_path": folder}), or a map from names to either, for one teacher for each row or source; required.
        reward: as of `GRPORun`, beside the teacher; "" has none. The key `distillation` has the loss. Others as
        `TrainingRun`.
        """
        section = fields.pop("distillation", None)
        if is_dataclass(section) and not isinstance(section, type):
            section = {item.name: getattr(section, item.name) for item in fields_of(section)}
        own = dict(section) if isinstance(section, Mapping) else {}
        if section is not None and not isinstance(section, Mapping):
            raise ConfigError(
                f"distillation is {section!r:.80}, expected a section", where="distillation", fix="give a dict"
            )
        if teacher is not None and own.get("teachers"):
            raise ConfigError(
                "there are teacher and distillation.teachers, expected one of them",
                where="teacher",
                fix="remove one of the two",
            )
        if teacher is not None:
            own["teachers"] = _teachers(teacher)
        super().__init__(model=model, train=train, reward=reward, **fields, distillation=own or None)

    def _check_complete(self) -> None:
        if self.config.distillation is None:
            raise ConfigError(
                f"{self._source}: teacher: required, a checkpoint folder, a hub name, or the fields of a teacher",
                where="teacher",
                fix="give teacher",
            )
        super()._check_complete()


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


def _teachers(value: Any) -> dict[str, Any]:
    """Return `distillation.teachers` for what was given as teacher."""
    own = {item.name for item in fields_of(TeacherConfig)}
    if isinstance(value, TeacherConfig) or not isinstance(value, Mapping) or own & set(value):
        return {"main": _teacher("teacher", value)}
    return {str(name): _teacher(f"teacher.{name}", chosen) for name, chosen in value.items()}


def _teacher(key: str, value: Any) -> Any:
    if isinstance(value, (TeacherConfig, Mapping)):
        return value
    if not isinstance(value, (str, PurePath)):
        raise ConfigError(
            f"{key} is a {type(value).__name__}, expected a checkpoint folder, a name on the hub, or a dict of fields",
            where=key,
            fix='write a path, or {"path": ...}',
        )
    return {"server": value} if isinstance(value, str) and re.match("https?://", value) else {"path": str(value)}


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
