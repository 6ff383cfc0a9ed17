"""Run one episode: call the workflow, retry what can be retried, and turn every failure into a typed fault.

Workflows see an `EpisodeEngine`: seeded, never interrupted, and checked against its contract. A weight update may cut a
generation (`StopReason.ABORT`); the request is then continued from the tokens it has until it is complete, so that
workflows never see a partial answer; each token keeps the log-probability and version it was sampled with.

What no episode of the run can survive is not a fault of an episode: a UsageError (a reward that cannot be imported,
stop strings without a tokenizer) gets out and ends the run with its own message.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

from areal.api import (
    NO_VERSION,
    EngineError,
    Fault,
    FaultError,
    FaultKind,
    ModelResponse,
    Provenance,
    RewardUse,
    StopReason,
    Trajectory,
    UsageError,
)
from areal.reward.scoring import ScoreRecord, components_of, recorded_scores, uses_of
from areal.utils import stats, tracing
from areal.utils.logging import getLogger
from areal.utils.routes import join_routes
from areal.utils.seeding import EpisodeSeeds, seeds_of_episode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.api import InferenceEngine, ModelRequest, RolloutWorkflow, WeightUpdateMeta
    from areal.infra.rollout.schedule import Visit


_MASK = (1 << 63) - 1


def derive_seed(*parts: int | str) -> int:
    """63-bit hash of `parts`, e.g. `derive_seed("train", run_seed, ordinal, sample, attempt, call)`.

    Different parts give independent seeds; Python's own `hash` is salted per process and therefore of no use.
    """
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little") & _MASK


LOGPROB_TOLERANCE = 1e-4
"""How far above 0 rounding may push a log-probability; the same slack as in `areal.api.Trajectory`."""
_MAX_EMPTY_ABORTS = 100


@dataclass(slots=True, kw_only=True)
class EpisodeProgress:
    """Last action of an episode, for the watchdog's report and the counters."""

    event: str = "created"
    since: float = field(default_factory=monotonic)
    interruptions: int = 0

    def note(self, event: str) -> None:
        """Record that `event` begins now."""
        self.event, self.since = event, monotonic()


class EpisodeEngine:
    """`InferenceEngine` for one attempt at one episode.

    seed_parts: identify the attempt; the index of the call is appended, so the n-th generation of an episode always
        gets the same seed. A request with `metadata["seed_key"]` gets that appended instead: of calls in parallel, it
        depends on timing which one is the n-th. oldest_version: no token may be older (the version at which the prompt
        was admitted).
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        seed_parts: Sequence[int | str],
        oldest_version: int,
        progress: EpisodeProgress,
    ) -> None:
        self._engine, self._seed_parts = engine, tuple(seed_parts)
        self._oldest_version, self._progress = oldest_version, progress
        self._calls = 0

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together; 0 when the engine does not say."""
        return int(getattr(self._engine, "context_length", 0))

    def stats(self) -> Mapping[str, float]:
        return self._engine.stats()

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """As the engine's, but complete and with this episode's seed.

        Raises FaultError: the engine's own, or GENERATION_FAILED when it raised anything else or broke its contract.
        A UsageError passes through: no retry can help.
        """
        call, self._calls = self._calls, self._calls + 1
        which = request.metadata.get("seed_key", call)
        seeded = request.seeded(derive_seed(*self._seed_parts, which))
        self._progress.note(f"generation {call}")
        responses: list[ModelResponse] = []
        started, empty_aborts = monotonic(), 0
        while True:
            current = _continuation(seeded, responses)
            response = await self._generate_once(current)
            self._check(current, response)
            responses.append(response)
            done = sum(len(part.output_tokens) for part in responses)
            if response.stop_reason is not StopReason.ABORT or done >= request.gconfig.max_new_tokens:
                break
            self._progress.interruptions += 1
            self._progress.note(f"generation {call}, continued after {done} tokens")
            empty_aborts = 0 if response.output_tokens else empty_aborts + 1
            if empty_aborts > _MAX_EMPTY_ABORTS:
                raise FaultError(FaultKind.GENERATION_FAILED, f"cut {empty_aborts} times in a row without a new token")
            await asyncio.sleep(0)
        self._progress.note(f"after generation {call}")
        only = responses[0]
        if len(responses) == 1 and only.stop_reason is not StopReason.ABORT and only.input_tokens == request.input_ids:
            return only
        return _merge(request, responses, monotonic() - started)

    async def _generate_once(self, request: ModelRequest) -> ModelResponse:
        try:
            with tracing.async_span("generate", tokens=len(request.input_ids)):
                return await self._engine.agenerate(request)
        except asyncio.CancelledError:
            # The episode is given up: its slot in the engine must not go on decoding for nobody.
            with contextlib.suppress(EngineError):  # closed meanwhile: then nothing decodes either
                self._engine.abort([request.request_id])
            raise
        except (FaultError, UsageError):
            raise
        except Exception as error:  # whatever a backend raises is a failed generation, not a workflow bug
            message = f"the inference engine raised {type(error).__name__}: {error}"
            raise FaultError(FaultKind.GENERATION_FAILED, message) from error

    def _check(self, request: ModelRequest, response: ModelResponse) -> None:
        tokens, logprobs, versions = response.output_tokens, response.output_logprobs, response.output_versions
        if not len(tokens) == len(logprobs) == len(versions):
            _broken(f"{len(tokens)} tokens, {len(logprobs)} log-probabilities and {len(versions)} versions")
        if not tokens:
            if response.stop_reason is not StopReason.ABORT:
                _broken(f"no tokens although it stopped by {response.stop_reason!r}")
            return
        if len(tokens) > request.gconfig.max_new_tokens:
            _broken(f"{len(tokens)} tokens for a budget of {request.gconfig.max_new_tokens}")
        for index, logprob in enumerate(logprobs):
            # NaN is neither.
            if not isinstance(logprob, (int, float)) or not -math.inf < logprob <= LOGPROB_TOLERANCE:
                _broken(f"log-probability {logprob!r} of token {index}, expected finite and <= 0")
        newest = self._engine.version
        if not self._oldest_version <= versions[0] <= versions[-1] <= newest or list(versions) != sorted(versions):
            expected = f"ascending from at least {self._oldest_version} to at most {newest}"
            _broken(f"versions {versions[0]} .. {versions[-1]}, expected {expected}")

    def pause(self) -> None:
        self._refuse("pause")

    def resume(self) -> None:
        self._refuse("resume")

    def abort(self, request_ids: Sequence[str] | None = None) -> int:
        self._refuse("abort")

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        self._refuse("update_weights")

    def close(self) -> None:
        self._refuse("close")

    def _refuse(self, method: str) -> NoReturn:
        raise EngineError(
            f"a workflow called engine.{method}(): the engine is shared by all episodes, only generate with it"
        )


def _broken(what: str) -> NoReturn:
    raise FaultError(FaultKind.GENERATION_FAILED, f"the inference engine returned {what}")


def _continuation(request: ModelRequest, parts: Sequence[ModelResponse]) -> ModelRequest:
    if not parts:
        return request
    tokens = [token for part in parts for token in part.output_tokens]
    before = request.gconfig
    return replace(
        request,
        input_ids=[*request.input_ids, *tokens],
        gconfig=replace(
            before,
            max_new_tokens=before.max_new_tokens - len(tokens),
            min_new_tokens=max(0, before.min_new_tokens - len(tokens)),
        ),
        request_id=f"{request.request_id}-{len(parts)}",
        sampled_before=request.sampled_before + len(tokens),
    )


def _merge(request: ModelRequest, parts: Sequence[ModelResponse], seconds: float) -> ModelResponse:
    last = parts[-1]
    metadata: dict[str, Any] = dict(last.metadata)
    if len(parts) > 1:
        metadata["interruptions"] = len(parts) - 1
    return ModelResponse(
        input_tokens=list(request.input_ids),
        output_tokens=[token for part in parts for token in part.output_tokens],
        output_logprobs=[logprob for part in parts for logprob in part.output_logprobs],
        output_versions=[version for part in parts for version in part.output_versions],
        # Cut exactly when the budget was used up: nothing is left to continue.
        stop_reason=StopReason.LENGTH if last.stop_reason is StopReason.ABORT else last.stop_reason,
        latency_seconds=seconds,
        metadata=metadata,
        routes=join_routes([part.routes for part in parts if part.output_tokens]),
    )


logger = getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_MAX_REMEMBERED_MESSAGES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeJob:
    """What to run."""

    stream: str
    """Which family of seeds: "train" or "eval"; evaluation must never shift the randomness of training."""
    ordinal: int
    sample_index: int
    data: Mapping[str, Any]
    admitted_version: int
    row_index: int = -1
    source: str = ""
    """Name of the source that the row is from; "" for a single one."""
    visit: Visit | None = None
    """The row in the schedule of the run; None in an evaluation."""
    recorded: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What the dataset recorded (`areal.utils.stats`) while it made the row."""
    progress: EpisodeProgress = field(default_factory=EpisodeProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOutcome:
    """What came of it."""

    trajectories: tuple[Trajectory, ...] = ()
    """Empty when the episode was lost or rejected."""
    faults: tuple[Fault, ...] = ()
    """One per failed attempt."""
    rejected: bool = False
    """The workflow returned None, or no trajectory: on purpose, not a fault."""
    reward_uses: Mapping[str, RewardUse] = field(default_factory=dict)
    """By reward component, all attempts together."""


def sample_id(ordinal: int, sample_index: int) -> str:
    """Return what names a sample of the run in traces."""
    return f"{ordinal}/{sample_index}"


class EpisodeRunner:
    """Runs episodes on one engine. Seeds depend on (stream, run seed, ordinal, sample, attempt, call) only."""

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        seed: int,
        max_retries: int,
        dataset_name: str = "",
        workflow_name: str = "",
        engine_name: str = "",
        on_attempt: Callable[[EpisodeJob, Fault | None], None] | None = None,
    ) -> None:
        """on_attempt: called at once after every attempt, with its fault or None; what it raises ends the run."""
        self._engine, self._seed, self._max_retries = engine, seed, max_retries
        self._on_attempt = on_attempt
        self._names = {"dataset": dataset_name, "workflow": workflow_name, "engine": engine_name}
        self._logged: set[str] = set()

    async def run(self, workflow: RolloutWorkflow, job: EpisodeJob) -> EpisodeOutcome:
        """Run to the end. Only cancellation, UsageError and what `on_attempt` raises get out as exceptions."""
        if not tracing.active():
            return await self._run(workflow, job)
        identity = sample_id(job.ordinal, job.sample_index)
        with tracing.async_span("episode", track=f"{job.stream}/{identity}", row=job.row_index):
            outcome = await self._run(workflow, job)
            if outcome.trajectories and job.stream == "train":
                tracing.flow_start("sample", identity)
            return outcome

    async def _run(self, workflow: RolloutWorkflow, job: EpisodeJob) -> EpisodeOutcome:
        faults: list[Fault] = []
        scores: list[ScoreRecord] = []
        for attempt in range(self._max_retries + 1):
            trajectories, fault = await self._attempt(workflow, job, attempt, scores)
            if self._on_attempt is not None:
                self._on_attempt(job, fault)
            if fault is None:
                return EpisodeOutcome(
                    trajectories=trajectories,
                    faults=tuple(faults),
                    rejected=not trajectories,
                    reward_uses=uses_of(scores),
                )
            faults.append(fault)
            if not fault.kind.retryable:
                break
            if attempt < self._max_retries:
                job.progress.note(f"pausing after {fault.kind.value}")
                await asyncio.sleep(min(_FIRST_PAUSE_SECONDS * 4**attempt, _LONGEST_PAUSE_SECONDS))
        return EpisodeOutcome(faults=tuple(faults), reward_uses=uses_of(scores))

    async def _attempt(
        self, workflow: RolloutWorkflow, job: EpisodeJob, attempt: int, scores: list[ScoreRecord]
    ) -> tuple[tuple[Trajectory, ...], Fault | None]:
        """Return the trajectories or the fault of one attempt; its calls of rewards are added to `scores`."""
        with stats.scope() as recorded, recorded_scores() as own, seeds_of_episode(partial(self._seeds_of, job)):
            stats.merge(job.recorded)
            try:
                result = await self._call(workflow, job, attempt)
                return self._stamp(result, job, attempt, own, stats.means(recorded)), None
            except FaultError as error:
                return (), Fault(kind=error.kind, message=error.message, attempt=attempt)
            except UsageError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever user code raises is a bug: counted, shown, not retried
                self._log_once(workflow, error)
                message = f"{type(workflow).__name__} raised {type(error).__name__}: {error}"
                return (), Fault(kind=FaultKind.WORKFLOW_RAISED, message=message, attempt=attempt)
            finally:
                scores.extend(own)

    def _seeds_of(self, job: EpisodeJob) -> EpisodeSeeds:
        prompt = (job.stream, self._seed, job.ordinal)
        return EpisodeSeeds(
            prompt=derive_seed(*prompt, "environment"),
            sample=derive_seed(*prompt, job.sample_index, "environment"),
        )

    async def _call(self, workflow: RolloutWorkflow, job: EpisodeJob, attempt: int) -> object:
        engine = EpisodeEngine(
            self._engine,
            seed_parts=(job.stream, self._seed, job.ordinal, job.sample_index, attempt),
            oldest_version=job.admitted_version,
            progress=job.progress,
        )
        job.progress.note(f"attempt {attempt}")
        try:
            return await workflow.arun_episode(engine, job.data)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something inside the workflow was cancelled and nobody there took care of it.
            message = f"{type(workflow).__name__} let a CancelledError escape"
            raise FaultError(FaultKind.WORKFLOW_RAISED, message) from error

    def _stamp(
        self,
        result: object,
        job: EpisodeJob,
        attempt: int,
        scores: Sequence[ScoreRecord],
        recorded: Mapping[str, float],
    ) -> tuple[Trajectory, ...]:
        if result is None:
            return ()
        trajectories = tuple(result) if isinstance(result, Sequence) else (result,)
        for trajectory in trajectories:
            if not isinstance(trajectory, Trajectory):
                raise TypeError(
                    f"arun_episode returned a {type(trajectory).__name__}, expected Trajectory, several, or None"
                )
            if NO_VERSION < trajectory.head_version < job.admitted_version:
                raise ValueError(
                    f"a trajectory has a token of version {trajectory.head_version}, older than the admission of its "
                    f"prompt at {job.admitted_version}; does the workflow keep state between episodes?"
                )
        return tuple(
            trajectory.stamped(
                group_id=job.ordinal,
                sample_index=job.sample_index,
                source=job.source,
                provenance=Provenance(
                    **self._names, row=job.row_index, attempt=attempt, extra=trajectory.provenance.extra
                ),
                reward_components=components_of(scores, trajectory.reward),
                stats=recorded,
            )
            for trajectory in trajectories
        )

    def _log_once(self, workflow: RolloutWorkflow, error: Exception) -> None:
        key = f"{type(error).__name__}: {error}"
        if key in self._logged or len(self._logged) >= _MAX_REMEMBERED_MESSAGES:
            return
        self._logged.add(key)
        logger.error(
            "workflow %s raised; further episodes with this error are only counted",
            type(workflow).__name__,
            exc_info=error,
        )
