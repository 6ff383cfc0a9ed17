"""Evaluate a checkpoint on named sets, outside any run: every sample is kept, and a killed evaluation goes on.

plan = resolve_target("runs/demo/none-1/grpo", step=100)
report = evaluate(plan)
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import RolloutError
from areal.engine.precision import concrete_dtype
from areal.hub.download import local_folder
from areal.infra.checkpoint.run_control import StopRequest
from areal.infra.rollout.episode import EpisodeRunner
from areal.infra.rollout.groups import evaluation_job, run_jobs, watch_of_evaluation
from areal.infra.rollout.loop_thread import LoopThread, RolloutStoppedError
from areal.trainer.assembly import load_reference, tokenizer_of
from areal.trainer.configuration.source import to_mapping
from areal.trainer.evaluation.progress import SampleProgress
from areal.trainer.evaluation.report import build_report, write_reports
from areal.trainer.evaluation.samples import EvalSample
from areal.trainer.evaluation.sets import EvaluationSets, rows_of, sampling_of
from areal.trainer.evaluation.store import SampleStore, collect, read_samples
from areal.trainer.evaluation.targets import fingerprint
from areal.trainer.inference import build_inference_engine
from areal.utils.logging import getLogger
from areal.utils.seeding import seed_everything

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from areal.api import InferenceEngine, PaddedBatch
    from areal.infra.rollout.episode import EpisodeJob, EpisodeOutcome
    from areal.trainer.config import PPOConfig
    from areal.trainer.evaluation.samples import SetResult
    from areal.trainer.evaluation.sets import EvaluationSet
    from areal.trainer.evaluation.targets import EvalTarget

_logger = getLogger(__name__)
SCHEMA: Final = 1


class FrozenPolicy:
    """A model that is only evaluated, as inference engines know it."""

    def __init__(self, config: PPOConfig, tokenizer: Any) -> None:
        """Load the model in the dtype that it is computed with."""
        self.model: nn.Module = load_reference(config, tokenizer)
        self._config = config

    def whole_model(self) -> nn.Module:
        """Return the model."""
        return self.model

    def weights(self) -> Mapping[str, Tensor]:
        """Return its parameters and buffers by our names."""
        return self.model.state_dict()

    def streams(self) -> None:
        """See `ServedPolicy.streams`: the model is whole."""
        return

    def forward_logp(self, batch: PaddedBatch) -> Tensor:
        """See `areal.api.TrainEngine`."""
        from areal.engine.train.runner import FrozenModel

        return FrozenModel(self.model, config=self._config.actor).forward_logp(batch)


def plan_evaluation(plan: EvalTarget) -> dict[str, Any]:
    """Say what `evaluate` would do. Rows are read; no model is loaded, no reward started, nothing written."""
    config = plan.config
    tokenizer = None if plan.run is not None else tokenizer_of(config.model)
    sets: dict[str, Any] = {}
    for name in plan.sets:
        settings = config.eval_sets[name]
        count: int | None = None
        kept = 0
        if tokenizer is not None:
            _, count = rows_of(settings, config, tokenizer)
            kept = len(read_samples(plan.output, name, rows=count, samples=settings.samples))
        sets[name] = {
            "rows": count,
            "samples_per_row": settings.samples,
            "samples": None if count is None else count * settings.samples,
            "kept": kept,
            "reward": settings.reward or config.reward,
            "greedy": sampling_of(settings, config).greedy,
        }
    return {"target": plan.name, "output": str(plan.output), "engine": config.rollout.engine, "sets": sets}


def evaluate(plan: EvalTarget, *, restart: bool = False, retry_faults: bool = False) -> dict[str, Any]:
    """Sample what is missing and return the report, which is also written as report.json and report.html.

    restart: put samples that are there aside. retry_faults: try lost samples again. Asked to stop by a signal, it
    returns what there is so far, with "finished" false and the exit code of the signal; nothing is written as a report.

    Raises ConfigError when the folder belongs to another evaluation, RolloutError when nothing of a set could be
    scored.
    """
    started = time.monotonic()
    with _ready_model(plan) as config, StopRequest() as stop:
        seed_everything(config.seed)
        tokenizer = tokenizer_of(config.model)
        with contextlib.ExitStack() as stack:
            sets = EvaluationSets(config, tokenizer, only=plan.sets)
            stack.callback(sets.close)
            manifest = _manifest(plan, config, sets)
            store = stack.enter_context(SampleStore(plan.output, manifest, restart=restart))
            known = {chosen.name: _known(plan.output, chosen, retry_faults=retry_faults) for chosen in sets}
            total = sum(len(chosen.rows) * chosen.config.samples for chosen in sets)
            tokens = 0
            if sum(map(len, known.values())) < total:
                engine = build_inference_engine(
                    config, actor=FrozenPolicy(config, tokenizer), tokenizer=tokenizer, directory=plan.output, version=0
                )
                stack.callback(engine.close)
                progress = stack.enter_context(SampleProgress(total, sum(map(len, known.values()))))
                sampler = _Sampler(engine, config, store, progress, stop)
                stack.callback(sampler.close)
                with contextlib.suppress(RolloutStoppedError):
                    for chosen in sets:
                        sampler.sample(chosen, known[chosen.name])
                tokens = int(engine.stats().get("generated_tokens", 0))
            done = sum(map(len, known.values()))
            if done < total:
                return {
                    "finished": False,
                    "exit_code": stop.exit_code,
                    "samples": done,
                    "of": total,
                    "output": str(plan.output),
                }
            results = [
                collect(
                    chosen.name,
                    known[chosen.name],
                    rows=len(chosen.rows),
                    samples=chosen.config.samples,
                    pass_reward=chosen.config.pass_reward,
                )
                for chosen in sets
            ]
            _refuse_nothing(results)
            report = build_report(results, manifest) | {
                "finished": True,
                "exit_code": 0,
                "seconds": round(time.monotonic() - started, 2),
                "generated_tokens": tokens,
                "output": str(plan.output),
            }
            write_reports(plan.output, report, results)
            return report


class _Sampler:
    """Runs the episodes of sets on one engine, on an event loop of its own."""

    def __init__(
        self,
        engine: InferenceEngine,
        config: PPOConfig,
        store: SampleStore,
        progress: SampleProgress,
        stop: StopRequest,
    ) -> None:
        self._engine, self._config, self._store, self._progress, self._stop = engine, config, store, progress, stop
        self._loop = LoopThread("areal-eval", on_end=lambda: None)
        self._loop.start()
        room = config.servers.count * config.servers.max_concurrent
        # Enough that no slot waits for the next episode.
        self._at_once = 2 * (config.engine.max_batch_size if config.rollout.engine == "embedded" else room)

    def sample(self, chosen: EvaluationSet, known: dict[tuple[int, int], EvalSample]) -> None:
        """Take the samples that `known` lacks, and add each to it and to the store."""
        seed = self._config.seed
        jobs = [
            evaluation_job(chosen.stream, row, sample, data, self._engine.version)
            for row, data in enumerate(chosen.rows)
            for sample in range(chosen.config.samples)
            if (row, sample) not in known
        ]
        runner = EpisodeRunner(
            self._engine,
            seed=seed,
            max_retries=self._config.rollout.max_retries,
            on_attempt=watch_of_evaluation(self._config.rollout, dataset=chosen.name),
        )

        def finished(job: EpisodeJob, outcome: EpisodeOutcome) -> None:
            if outcome.trajectories:
                found = EvalSample.scored(
                    outcome.trajectories[0], stream=chosen.stream, seed=seed, answer=chosen.answer
                )
            else:
                place = job.ordinal, job.sample_index
                found = EvalSample.lost(*place, outcome.faults, stream=chosen.stream, seed=seed)
            found = found.with_uses(outcome.reward_uses)
            self._store.add(chosen.name, found)
            known[job.ordinal, job.sample_index] = found
            self._progress.advance(chosen.name, found)

        self._loop.run(
            run_jobs(runner, chosen.workflow, jobs, finished, at_once=self._at_once), lambda: self._stop.requested
        )

    def close(self) -> None:
        """End what is in flight."""
        self._loop.close()


@contextlib.contextmanager
def _ready_model(plan: EvalTarget) -> Iterator[PPOConfig]:
    """Yield the configuration with the folder of the model; one that is exported for this is removed again."""
    if plan.run is None:
        yield plan.config
        return
    from areal.trainer.export import export_checkpoint

    with tempfile.TemporaryDirectory(prefix="areal-eval-") as place:
        folder = export_checkpoint(plan.run, step=plan.step, output=Path(place) / "model").folder
        yield replace(plan.config, model=replace(plan.config.model, path=str(folder), tokenizer_path=""))


def _known(folder: Path, chosen: EvaluationSet, *, retry_faults: bool) -> dict[tuple[int, int], EvalSample]:
    rows, samples = len(chosen.rows), chosen.config.samples
    found = read_samples(folder, chosen.name, rows=rows, samples=samples, answer=chosen.answer)
    if found:
        _logger.info("evaluation of %s: %d of %d samples are there", chosen.name, len(found), rows * samples)
    return {place: item for place, item in found.items() if item.reward is not None or not retry_faults}


def _refuse_nothing(results: list[SetResult]) -> None:
    for result in results:
        if all(reward is None for reward in result.rewards):
            raise RolloutError(
                f"nothing of evaluation set {result.name} could be scored ({result.lost} samples were lost); the "
                f"first: {result.first_fault}",
                where=f"eval_sets.{result.name}",
                fix="mend what it says, and run the same command again with --retry-faults",
            )


def _manifest(plan: EvalTarget, config: PPOConfig, sets: EvaluationSets) -> dict[str, Any]:
    described = to_mapping(config)
    entries = {}
    for chosen in sets:
        settings = chosen.config
        sampling = {key: getattr(chosen.gconfig, key) for key in chosen.gconfig.__dataclass_fields__}
        entries[chosen.name] = {
            "rows": len(chosen.rows),
            "samples": settings.samples,
            "row_fingerprint": chosen.fingerprint,
            "reward": settings.reward or described["reward"],
            "workflow": settings.workflow or described["workflow"],
            "workflow_options": settings.workflow_options if settings.workflow else described["workflow_options"],
            # As JSON makes of it, to be compared with what was stored.
            "gconfig": {key: list(value) if isinstance(value, tuple) else value for key, value in sampling.items()},
            "pass_reward": settings.pass_reward,
            "answer": settings.answer,
        }
    return {
        "schema": SCHEMA,
        "target": plan.name,
        "fingerprint": fingerprint(local_folder(config.model.path)),
        "seed": config.seed,
        "engine": config.rollout.engine,
        "dtype": concrete_dtype(config.actor),
        "sets": entries,
    }
