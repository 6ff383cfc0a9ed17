"""Configuration of on-policy distillation: who teaches, which rows, and how far apart student and teacher are."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from areal.algorithm.distillation import Distillation
from areal.api import Config, ConfigError, number
from areal.hub.names import RepoKind

if TYPE_CHECKING:
    from areal.api import GenerationConfig


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(Config):
    """One teacher: a checkpoint that is loaded here, or a server that scores prompts."""

    path: str = ""
    """Checkpoint folder of a frozen teacher, or org/name@revision of the hub; loaded beside the trained model and split
    over ranks like it."""
    server: str = ""
    """Address of a vLLM or SGLang server with the teacher, e.g. http://teacher:8000; instead of path."""
    tokenizer_path: str = ""
    """Folder of the teacher's tokenizer, which is compared with the trained model's; empty means path. Required with
    server."""
    model: str = ""
    """Name of the model on the server; empty takes the first that it serves."""
    max_concurrent: int = number(16, at_least=1)
    """Sequences that the server scores at once."""
    timeout_seconds: float = number(120.0, above=0)
    """Longest wait for the scores of one sequence; a failed request is repeated twice."""

    hub_fields: ClassVar[dict[str, RepoKind]] = {"path": "model", "tokenizer_path": "model"}
    """Fields that take names of the hub."""

    def __post_init__(self) -> None:
        """Check that there is one teacher, and a tokenizer to compare."""
        super().__post_init__()
        if bool(self.path) == bool(self.server):
            raise ConfigError(
                f"a teacher has path {self.path!r} and server {self.server!r}, expected exactly one of them",
                fix="set path to a checkpoint folder, or server to the address of a vLLM or SGLang server",
            )
        if self.server and not re.match(r"https?://[^/]", self.server):
            raise ConfigError(
                f"server is {self.server!r}, expected an address such as http://127.0.0.1:8000",
                fix="write the scheme, the host and the port",
            )
        if self.server and not self.tokenizer_path:
            raise ConfigError(
                f"the teacher on {self.server} has no tokenizer_path, so nobody can tell whether its ids are those of "
                f"the trained model",
                fix="set tokenizer_path to the folder of the teacher's tokenizer",
            )


@dataclass(frozen=True, kw_only=True)
class DistillationConfig(Config):
    """Move the policy towards teachers on what it samples, beside its reward or without one."""

    teachers: dict[str, TeacherConfig] = field(default_factory=dict)
    """Name to teacher; at least one. The name is part of metrics."""
    source_column: str = "source"
    """Column of the rows that names the teacher of each row; not read when there is one teacher, nor for the rows of a
    source (`sources`) that has the name of a teacher."""
    loss: Distillation = field(default_factory=Distillation)
    """The divergence and how it is estimated."""

    def __post_init__(self) -> None:
        """Check the names."""
        super().__post_init__()
        if not self.teachers:
            raise ConfigError(
                "distillation.teachers is empty, expected at least one teacher",
                fix="name one, e.g. distillation.teachers.main.path=runs/teacher/final",
            )
        for name in self.teachers:
            if not re.fullmatch(r"[\w.-]+", name):
                raise ConfigError(
                    f"distillation.teachers has a teacher {name!r}; names are part of metrics, expected letters, "
                    f"digits, '_', '-' and '.'",
                    fix="rename the teacher",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the teachers; their order numbers them."""
        return tuple(self.teachers)

    def check_sampling(self, sampling: GenerationConfig) -> None:
        """Raise ConfigError where the estimate would be wrong for what is sampled so."""
        estimator = f"distillation.loss.estimator {self.loss.estimator}"
        if not self.loss.lists_tokens and (sampling.greedy or sampling.filters):
            how = "greedy" if sampling.greedy else "filtered by top_p, top_k or min_new_tokens"
            raise ConfigError(
                f"{estimator} is an average over samples of the student's distribution, and gconfig samples {how}",
                fix="set distillation.loss.estimator to top_k, or sample without filters",
            )
        served = [name for name, teacher in self.teachers.items() if teacher.server]
        if served and not sampling.greedy and sampling.temperature != 1.0:
            raise ConfigError(
                f"gconfig.temperature is {sampling.temperature:g}, and the server of teacher {served[0]!r} scores at "
                f"temperature 1: the two distributions could never agree",
                fix="set gconfig.temperature to 1, or load the teacher here (path)",
            )
