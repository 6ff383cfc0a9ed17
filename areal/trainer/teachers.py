"""The teachers of a distillation run: which row has which, and what each says about what the student sampled.

Teachers that are loaded here are on every rank, like the reference model: they score a batch once, before the update.
Servers are asked by rank 0 alone, and what they say goes to all ranks with the batch.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.packing import collate
from areal.api import ConfigError, DataError, DistilledBatch, EngineError, PaddedBatch, TeacherScores
from areal.dataset.encoding import load_tokenizer
from areal.dataset.tokenizer_identity import check_same_tokenizer
from areal.engine.precision import concrete_dtype
from areal.engine.train.candidates import Top
from areal.trainer.assembly import build_scorer
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.api import Trajectory
    from areal.dataset.loading import ShuffledRows
    from areal.engine.server.teacher import ServedTeacher
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.runner import FrozenModel
    from areal.trainer.config import PPOConfig
    from areal.trainer.distillation_config import DistillationConfig

_ROWS_CHECKED_AT_START = 1000


class LocalTeachers:
    """Frozen teachers of one rank."""

    def __init__(
        self, config: DistillationConfig, models: Mapping[str, FrozenModel], *, vocabulary: int, dtype: torch.dtype
    ) -> None:
        """models: by name of the teacher. vocabulary: of the student. dtype: that models are computed in."""
        self._config, self._models, self._vocabulary = config, dict(models), vocabulary
        # Scores of float64 models keep their digits: means over them do not depend on how a step is split.
        self._dtype = torch.promote_types(dtype, torch.float32)
        sizes = {vocabulary, *(model.vocab_size for model in models.values())}
        self._top = None
        served = any(teacher.server for teacher in config.teachers.values())
        if config.loss.lists_tokens:
            # One width for all teachers: what servers list is as wide as was asked for.
            k = config.loss.k if served else min(config.loss.k, *sizes)
            if k > min(sizes):
                raise ConfigError(
                    f"distillation.loss.k is {k}, and the smallest vocabulary has {min(sizes)} tokens",
                    fix=f"set distillation.loss.k to at most {min(sizes)}",
                )
            self._top = Top(k=k, below=min(sizes))
        self.complete = self._top is not None and not served and sizes == {self._top.k}
        """Whether the whole vocabulary is listed."""

    def combine(
        self,
        batch: PaddedBatch,
        teachers: Sequence[int],
        *,
        served: TeacherScores | None,
        score: Callable[[int, list[int]], TeacherScores],
    ) -> DistilledBatch:
        """Return the batch with the scores of its teachers. On rank 0.

        teachers: number of each row's teacher. served: what servers said, 0 on rows of others. score: calls the method
        of this name on every rank, for a teacher and its rows.
        """
        scores = _blank(batch, 0 if self._top is None else self._top.k) if served is None else served
        listed = scores.candidate_logp
        scores = replace(
            scores,
            logp=scores.logp.to(self._dtype),
            candidate_logp=None if listed is None else listed.to(self._dtype),
        )
        if scores.candidates is not None and int(scores.candidates.max()) >= self._vocabulary:
            raise EngineError(
                f"a teacher's server lists token {int(scores.candidates.max())}, and the trained model has "
                f"{self._vocabulary} embeddings",
                where="distillation.teachers",
                fix="take a teacher of the same family, or distillation.loss.estimator=sampled",
            )
        for number, name in enumerate(self._config.names):
            rows = [row for row, teacher in enumerate(teachers) if teacher == number]
            if rows and name in self._models:
                self._fill(scores, score(number, rows), rows)
        values = {item.name: getattr(batch, item.name) for item in fields(PaddedBatch)}
        return DistilledBatch(
            **values,
            teachers=torch.tensor(teachers, dtype=torch.int64),
            teacher_logp=scores.logp,
            candidates=scores.candidates,
            candidate_teacher_logp=scores.candidate_logp,
        )

    def score(self, number: int, batch: DividedBatch, *, temperature: float) -> TeacherScores:
        """Return what a teacher that is here says about the rows of a batch, by all ranks together."""
        model = self._models[self._config.names[number]]
        if self._top is None:
            return TeacherScores(logp=model.forward_logp(batch, temperature=temperature, only_masked=True))
        return model.forward_top(batch, self._top, temperature=temperature)

    def _fill(self, scores: TeacherScores, found: TeacherScores, rows: list[int]) -> None:
        scores.logp[rows] = found.logp[rows].to(self._dtype)
        if scores.candidates is not None and scores.candidate_logp is not None:
            assert found.candidates is not None
            assert found.candidate_logp is not None
            scores.candidates[rows] = found.candidates[rows]
            scores.candidate_logp[rows] = found.candidate_logp[rows].to(self._dtype)


def build_local_teachers(
    config: PPOConfig, distillation: DistillationConfig, tokenizer: Any, *, student: Any
) -> LocalTeachers:
    """Load the teachers that have a path. student: the trained model.

    Raises ConfigError for a teacher with another tokenizer, before anything is loaded.
    """
    check_teacher_tokenizers(distillation, tokenizer)
    models = {
        name: build_scorer(config, tokenizer, teacher.path)
        for name, teacher in distillation.teachers.items()
        if teacher.path
    }
    dtype: torch.dtype = getattr(torch, concrete_dtype(config.actor))
    return LocalTeachers(distillation, models, vocabulary=int(student.args.vocab_size), dtype=dtype)


def check_teacher_tokenizers(config: DistillationConfig, tokenizer: Any) -> None:
    """Raise ConfigError for a teacher whose tokenizer is not the student's."""
    for name, teacher in config.teachers.items():
        where = f"distillation.teachers.{name}.{'tokenizer_path' if teacher.tokenizer_path else 'path'}"
        check_same_tokenizer(tokenizer, load_tokenizer(teacher.tokenizer_path or teacher.path), where=where)


class TeacherChoice:
    """What rank 0 knows of teachers: whose row is whose, and the servers."""

    def __init__(self, config: DistillationConfig, sources: Mapping[str, ShuffledRows]) -> None:
        """Ask every server for its model, and look at the first rows of the sources, by name ("" for a single one).

        Raises EngineError for a server that does not answer, DataError for a row without a known teacher.
        """
        from areal.engine.server.teacher import ServedTeacher
        from areal.engine.sglang.teacher import SGLangScores
        from areal.engine.vllm.teacher import VLLMScores

        self._config, self._sources = config, sources
        self._numbers = {name: number for number, name in enumerate(config.names)}
        for source, rows in sources.items():
            for ordinal in range(min(len(rows), _ROWS_CHECKED_AT_START)):
                self._number(source, rows.row_index(ordinal))
        self._k = config.loss.k if config.loss.lists_tokens else 0
        self._served: dict[int, ServedTeacher] = {
            self._numbers[name]: ServedTeacher(
                teacher.server,
                programs=[VLLMScores(), SGLangScores()],
                k=self._k,
                model=teacher.model,
                max_concurrent=teacher.max_concurrent,
                timeout_seconds=teacher.timeout_seconds,
            )
            for name, teacher in config.teachers.items()
            if teacher.server
        }

    def of(self, trajectories: Sequence[Trajectory]) -> list[int]:
        """Return the number of each trajectory's teacher."""
        return [self._number(item.source, item.provenance.row) for item in trajectories]

    def served(self, trajectories: Sequence[Trajectory], teachers: Sequence[int]) -> TeacherScores | None:
        """Return what servers say about the trajectories of their rows; None without servers."""
        if not self._served:
            return None
        batch = collate(trajectories)
        total = _blank(batch, self._k)
        for number, teacher in self._served.items():
            rows = [row for row, chosen in enumerate(teachers) if chosen == number]
            found = teacher.score(batch, rows)
            total.logp[rows] = found.logp[rows]
            if total.candidates is not None and total.candidate_logp is not None:
                assert found.candidates is not None
                assert found.candidate_logp is not None
                total.candidates[rows], total.candidate_logp[rows] = found.candidates[rows], found.candidate_logp[rows]
        return total

    def _number(self, source: str, row: int) -> int:
        """Return the teacher of a row, by its index: that with the name of its source, else that which it names."""
        if len(self._numbers) == 1:
            return 0
        if source in self._numbers:
            return self._numbers[source]
        column = self._config.source_column
        name = self._sources[source].at(row).get(column)
        if name not in self._numbers:
            near = did_you_mean(name, self._numbers) if isinstance(name, str) else ""
            of = f"source {source!r} has not the name of a teacher, and its " if source else ""
            known = ", ".join(self._numbers)
            raise DataError(
                f"{of}column {column!r} is {name!r}, expected the name of a teacher: {known}; {near}",
                where=self._sources[source].place_of(row),
                fix=f"write a teacher's name into {column!r} of every row, or set distillation.source_column",
            )
        return self._numbers[name]


def _blank(batch: PaddedBatch, k: int) -> TeacherScores:
    shape = batch.tokens.shape
    if not k:
        return TeacherScores(logp=torch.zeros(shape))
    ids = torch.zeros((*shape, k), dtype=torch.int64)
    return TeacherScores(logp=torch.zeros(shape), candidates=ids, candidate_logp=torch.zeros((*shape, k)))
