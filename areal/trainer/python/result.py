"""What training from Python returns: numbers, the model, and what one does with it next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, UsageError
from areal.infra.metrics import names
from areal.infra.metrics.logger import read_metrics
from areal.infra.metrics.report import metrics_file_of
from areal.trainer.config import PPOConfig, RewardModelConfig
from areal.trainer.configuration.source import to_mapping
from areal.trainer.python.arguments import build
from areal.utils.given import given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.hub.publishing import Publication
    from areal.infra.metrics.notebook import MetricCurves
    from areal.trainer.python.arguments import RunSettings


_ROWS_SHOWN: Final = 10
_HEADLINES: Final = {names.REWARD_MEAN: "reward", names.ACCURACY: "accuracy", names.LOSS: "loss"}
"""What tells first how a run went, and what it is called."""


class MetricTable(list[dict[str, float]]):
    """One dict of metrics for each step, in order; the key "step" is the number of finished steps.

    Printed, it is a table of the last steps with the metrics that are looked at first.
    """

    def __repr__(self) -> str:
        """Return the table."""
        known = self._known()
        first = (names.REWARD_MEAN, names.LOSS, names.ACCURACY, names.LENGTH_MEAN, names.KL)
        shown = ["step", *(name for name in first if name in known)]
        shown += [name for name in (names.EVAL_LOSS, names.EVAL_ACCURACY) if name in known]
        shown += names.eval_scores(known)
        lines = [shown]
        for row in self[-_ROWS_SHOWN:]:
            values = map(row.get, shown)
            lines.append(["" if value is None else f"{value:.4g}" for value in values])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        before = max(0, len(self) - _ROWS_SHOWN)
        count = f"{len(known)} metrics of {len(self)} rows" + (f", the last {_ROWS_SHOWN} shown" if before else "")
        return "\n".join([*text, f"({count}; column(name) has one of them, to_pandas() all)"])

    def column(self, name: str) -> list[float]:
        """Return the values of one metric, steps without it left out. Raises UsageError for one that no step has."""
        values = [row[name] for row in self if name in row]
        if not values:
            known = ", ".join(sorted(self._known()))
            raise UsageError(f"no step has the metric {name!r}", where=name, fix=f"choose one of {known}")
        return values

    def curves(self, *charts: str | Sequence[str]) -> MetricCurves:
        """Return charts over steps, which a notebook draws in the output of a cell: one for each metric that is named,
        and one for all of a list. Without names: reward with evaluations, or loss with evaluations, then accuracy,
        length and entropy. Raises UsageError for a metric that no step has.
        """
        from areal.infra.metrics.notebook import MetricCurves

        wanted = [[chart] if isinstance(chart, str) else list(chart) for chart in charts]
        for name in (name for chart in wanted for name in chart):
            self.column(name)
        if not wanted:
            known = self._known()
            lead = names.REWARD_MEAN if names.REWARD_MEAN in known else names.LOSS
            beside = names.eval_scores(known) if lead == names.REWARD_MEAN else (names.EVAL_LOSS,)
            usual = [[lead, *beside], [names.ACCURACY, names.EVAL_ACCURACY], [names.LENGTH_MEAN], [names.ENTROPY]]
            wanted = [found for chart in usual if (found := [name for name in chart if name in known])]
        return MetricCurves({int(row["step"]): row for row in self}, wanted)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a row for each step. Raises UsageError without pandas."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            fix = "pip install pandas, or use the rows as they are"
            raise UsageError("to_pandas needs the package pandas, which is not installed", fix=fix) from error
        return pandas.DataFrame(list(self))

    def _known(self) -> set[str]:
        return {key for row in self for key in row}


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainResult:
    """A run that has ended; its files are in `directory`, and `areal report`, `areal eval` and others read them."""

    config: RunSettings
    """The configuration as it was used; `config.to_yaml()` is a file for `areal train`."""
    summary: Mapping[str, Any]
    """What `areal train --json` prints."""
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Functions of the program that the configuration names."""

    def __repr__(self) -> str:
        """Say in one line how far the run came, how good the model is and where it lies."""
        steps, total = self.summary["steps"], self.summary["total_steps"]
        words = [f"{steps} of {total} steps" if steps < total else f"{steps} steps"]
        if self.summary.get("stopped_early"):
            words[0] += ", stopped early"
        words += [f"{label} {value:.4g}" for label, value in self._last().items()]
        if self.checkpoint is None:
            words.append(f"not finished: train() continues {self.directory}")
        else:
            words.append(str(self.checkpoint))
        best = (self.summary["exports"] or {}).get("best")
        if best is not None:
            words.append(f"best after step {best['step']}: {best['folder']}")
        return f"<TrainResult: {'; '.join(words)}>"

    @property
    def directory(self) -> Path:
        """Folder of the run."""
        return Path(self.summary["directory"])

    @property
    def finished(self) -> bool:
        """Whether all steps are done; False when a signal ended the run, which the same call continues."""
        return bool(self.summary["finished"])

    @property
    def metrics(self) -> MetricTable:
        """All steps of the run, those before a continuation included."""
        steps = read_metrics(metrics_file_of(self.directory))
        return MetricTable({"step": step, **values} for step, values in steps.items())

    @property
    def checkpoint(self) -> Path | None:
        """Folder of the trained model in Hugging Face format; None until the run is finished."""
        folder = self.summary["checkpoint"]
        return None if folder is None else Path(folder)

    @property
    def best_checkpoint(self) -> Path | None:
        """Folder of the model with the best `export.best_metric`; that of the last step where none was chosen by it."""
        best = (self.summary["exports"] or {}).get("best")
        return self.checkpoint if best is None else Path(best["folder"])

    def generate(self, prompts: str | Sequence[Any], *, seed: int | None = None, **sampling: Any) -> list[str]:
        """Return an answer to each prompt: texts, or chats as lists of messages.

        seed: the same one gives the same answers; None is that of the run. sampling: fields of `gconfig`, e.g.
        max_new_tokens=64, greedy=True; in RL the others are those of training. To get several answers, repeat a prompt.

        Raises UsageError for a run without a model that writes, ConfigError for sampling that does not fit.
        """
        from areal.trainer.python.generation import generate_texts

        values = self.config.values
        if isinstance(values, RewardModelConfig):
            raise UsageError("a reward model scores answers and writes none", where="generate", fix="train a policy")
        config = self._policy_config(self._model())
        return generate_texts(
            config,
            [prompts] if isinstance(prompts, str) else list(prompts),
            seed=values.seed if seed is None else seed,
            sampling=sampling,
        )

    def evaluate(
        self, sets: Mapping[str, Any] | Sequence[str] | None = None, *, restart: bool = False, **fields: Any
    ) -> dict[str, Any]:
        """Evaluate the model as `areal eval` does and return its report; every sample is kept in eval/ of the run.

        sets: names of evaluation sets of the run (None: all), or sections like those of `eval_sets`, in which `dataset`
        may be rows and `reward` a function. restart: sample anew what was sampled before. fields: other keys of an RL
        configuration that the evaluation needs, e.g. reward=score after SFT.

        Raises as `areal eval` does; UsageError when there is nothing to evaluate.
        """
        from areal.trainer.configuration.computing import start_computing
        from areal.trainer.evaluation.standalone import evaluate
        from areal.trainer.evaluation.targets import EvalTarget, with_sets

        model = self._model()
        own = dict(sets) if isinstance(sets, Mapping) else {}
        values = to_mapping(self._policy_config(model))
        values |= {**fields, "eval_sets": values["eval_sets"] | own}
        built = build("rl", values, source="evaluate(...)", objects=self.objects)
        config = built.config
        assert isinstance(config, PPOConfig), "of kind rl"
        built.write_rows()
        chosen = tuple(own or sets or ())
        output = self.directory / "eval" / ("-".join(own) or model.name)
        with given(built.objects):
            target = with_sets(EvalTarget(name=str(model), config=config, sets=(), output=output), chosen)
            start_computing(config)
            return evaluate(target, restart=restart)

    def push(self, repo: str, *, private: bool = False) -> Publication:
        """Publish the model that `best_checkpoint` names, with a card from the run, as `org/name` or `org/name@branch`.

        private: whether a new repository is. Returns the commit and the address.

        Raises UsageError for a run without a model, HubError for a wrong name, without a token, and when the hub
        refuses or stays out of reach.
        """
        from areal.hub.publishing import check_token, repository_name
        from areal.trainer.export import push_model

        name = repository_name(repo)
        model = self._model()
        check_token(name)
        best = (self.summary["exports"] or {}).get("best")
        step = int(self.summary["steps"] if best is None else best["step"])
        return push_model(self.directory, model, name, step=step, private=private)

    def _last(self) -> dict[str, float]:
        """Return the last value of what the run is about: the reward, else the accuracy of pairs, else the loss."""
        try:
            metrics = self.metrics
        except (OSError, ArealError):  # the run was moved or archived meanwhile
            return {}
        for name, label in _HEADLINES.items():
            for row in reversed(metrics):
                if name in row:
                    return {label: row[name]}
        return {}

    def _model(self) -> Path:
        model = self.best_checkpoint
        if model is None:
            raise UsageError(
                f"the run in {self.directory} was stopped after step {self.summary['steps']} of "
                f"{self.summary['total_steps']} and has no model yet",
                where=str(self.directory),
                fix="call train() again, which continues it, or `areal export` a checkpoint",
            )
        return model

    def _policy_config(self, model: Path) -> PPOConfig:
        """Return the configuration that samples from a model: that of the run in RL, else one made for it."""
        values = self.config.values
        chosen = replace(values.model, path=str(model), tokenizer_path="", init={})
        actor = replace(values.actor, lora=None)
        if isinstance(values, PPOConfig):
            return replace(values, model=chosen, actor=actor, archon=None, critic=None)
        names = ("seed", "num_threads", "matrix_products", "experiment_name", "trial_name")
        own = {name: getattr(values, name) for name in names}
        return PPOConfig(model=chosen, actor=actor, output_dir=values.output_dir, **own)
