"""Parts that all trackers share: the description of the run, a guard around failures, and each step only once.

    trackers = open_trackers(TrackedRun(...), config.metrics.trackers)
    trackers.log(12, {"reward/mean": 0.5})
    trackers.finish(Ending(state="finished", exit_code=0, summary={"steps": 12}))

metrics.jsonl is the truth, trackers get copies. What would keep one from starting is found before the run (`problems`);
one that fails later is switched off with one warning, and the run goes on.

trackers.json in the run directory keeps what services call the run, so that a resumed process continues the same one,
and the last step that was sent, so that steps that are done again are not sent twice.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from areal.api import load
from areal.infra.metrics.trackers.registry import TRACKERS
from areal.utils.atomic import atomic_write
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from areal.api import PromptGroup
    from areal.infra.metrics.trackers.config import TrackersConfig

logger = getLogger(__name__)

STATE_FILE: Final = "trackers.json"
SAMPLE_COLUMNS: Final = ("step", "prompt", "sample", "reward", "components", "stop", "tokens", "question", "answer")
"""Columns of a table of samples; "prompt" is the ordinal."""
_MAX_TEXT: Final = 4000
"""Characters of a text in a table; rollouts.jsonl has all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the process left the run."""

    state: Literal["finished", "interrupted", "failed"]
    """interrupted: stopped on request before the last step; the same command continues."""
    exit_code: int
    summary: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Description of the run for a tracker that starts."""

    directory: Path
    experiment: str
    trial: str
    config: Mapping[str, Any]
    """Nested plain values, as in config.yaml."""
    id: str
    """Stable over all processes of the run, lower-case hexadecimal; the `run` of its attempts in metrics.jsonl."""
    first_step: int = 0
    """Finished steps that the process continues from."""
    continues: bool = False
    """Whether an earlier process of this run is continued, from a checkpoint."""
    memory: dict[str, str] = field(default_factory=dict)
    """Kept in the run directory from one process to the next, for names that a service gives."""

    def flat_config(self) -> dict[str, Any]:
        """Leaves of the configuration by dotted key; lists and empty mappings as JSON text, nulls as "null"."""
        return dict(_flat(self.config, ""))


class Tracker(Protocol):
    """Copy of the run in one service. Its constructor takes the run and the tracker's section and starts it."""

    package: ClassVar[str]
    """Module that must be installed."""
    replaces: ClassVar[bool]
    """Whether a step that is sent again takes the place of the first one; else it is not sent again."""

    @staticmethod
    def problem(settings: Any) -> str:
        """Say why the section cannot work on this machine, "" when nothing is known to be wrong. Imports no client."""
        ...

    def known(self) -> dict[int, set[str]] | None:
        """Return what the service has of the run that is continued, names by step; None when that cannot be asked."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the values of a step; several calls for one step add up."""
        ...

    def log_samples(self, step: int, rows: Sequence[Sequence[Any]]) -> None:
        """Send a table with `SAMPLE_COLUMNS`."""
        ...

    def finish(self, ending: Ending) -> None:
        """Send everything and end the run as it ended."""
        ...


def problems(config: TrackersConfig) -> Iterator[tuple[str, str]]:
    """Yield (name of the tracker, what is wrong and what to do) for those asked for that cannot start here."""
    for name in TRACKERS:
        settings = getattr(config, name)
        if settings is None:
            continue
        tracker: type[Tracker] = load("tracker", name, TRACKERS)
        if importlib.util.find_spec(tracker.package) is None:
            yield name, f"the package {tracker.package!r} is not installed; run pip install 'areal[{name}]'"
        elif wrong := tracker.problem(settings):
            yield name, wrong


class Trackers:
    """All trackers of a process; one that fails is switched off and leaves the others alone.

    They start with the first values: a process that finds nothing to do leaves no trace in any service.
    """

    def __init__(
        self,
        build: Mapping[str, Callable[[], Tracker]],
        state: TrackerState,
        *,
        samples_every_steps: int = 10,
        finished: Callable[[], Mapping[int, Mapping[str, float]]] = dict,
    ) -> None:
        """build: starts each tracker, by name. finished: steps that are done and not done again, for trackers that lack
        some since they were killed before they had sent them.
        """
        self._finished = finished
        self._known: dict[str, dict[int, set[str]]] = {}
        """Of trackers that say what they have; it counts more than what was sent."""
        self._build, self._state, self._samples_every = dict(build), state, samples_every_steps
        self._sent = state.sent
        """Where the process before this one got to; stays as it is."""
        self._trackers: dict[str, Tracker] = {}

    @property
    def active(self) -> tuple[str, ...]:
        """Names of those that have started and still work."""
        return tuple(self._trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the values of a step to all."""
        self._begin()
        new = {name: value for name, value in metrics.items() if not self._sent.covers(step, name)}
        for name, tracker in list(self._trackers.items()):
            values = metrics if tracker.replaces else new
            if name in self._known:
                there = self._known[name].get(step, set())
                values = {key: value for key, value in metrics.items() if key not in there}
            if values:
                self._attempt(name, "log", partial(tracker.log, step, values))
        if self._trackers:
            self._state.note(step, metrics)

    def log_samples(self, step: int, groups: Sequence[PromptGroup]) -> None:
        """Send a table of the groups' samples, at the steps that are chosen for it."""
        if not groups or not self._samples_every or step % self._samples_every:
            return
        self._begin()
        if not self._trackers:
            return
        rows = sample_rows(step, groups)
        for name, tracker in list(self._trackers.items()):
            if tracker.replaces or step > self._sent.samples:
                self._attempt(name, "log samples", partial(tracker.log_samples, step, rows))
        if self._trackers:
            self._state.note_samples(step)

    def finish(self, ending: Ending) -> None:
        """End all that have started. Idempotent."""
        self._build.clear()
        trackers, self._trackers = self._trackers, {}
        for name, tracker in trackers.items():
            self._attempt(name, "finish", partial(tracker.finish, ending))

    def _begin(self) -> None:
        build, self._build = self._build, {}
        for name, start in build.items():
            self._attempt(name, "start", partial(self._start, name, start))
        if build and self._trackers:
            self._state.save()

    def _start(self, name: str, start: Callable[[], Tracker]) -> None:
        tracker = self._trackers[name] = start()
        known = tracker.known()
        if known is None:
            return
        self._known[name] = known
        lacking = {
            step: {key: value for key, value in values.items() if key != "time" and key not in known.get(step, ())}
            for step, values in self._finished().items()
        }
        for step, values in lacking.items():
            if values:
                tracker.log(step, values)

    def _attempt(self, name: str, what: str, action: Callable[[], object]) -> None:
        try:
            # Clients greet on standard output, which belongs to the command's answer.
            with contextlib.redirect_stdout(sys.stderr):
                action()
        except Exception as error:  # noqa: BLE001 - third-party clients raise anything; a run must outlive all of it
            self._trackers.pop(name, None)
            logger.warning(
                "tracker %s failed to %s and is switched off for this run (%s: %s); metrics.jsonl has everything",
                name,
                what,
                type(error).__name__,
                error,
            )


def open_trackers(
    run: TrackedRun, config: TrackersConfig, *, finished: Callable[[], Mapping[int, Mapping[str, float]]] = dict
) -> Trackers:
    """Return the trackers that a configuration asks for. finished: as of `Trackers`."""
    wanted = {name: settings for name in TRACKERS if (settings := getattr(config, name)) is not None}
    state = TrackerState.read(run.directory / STATE_FILE) if wanted and run.continues else None
    state = state or TrackerState(run.directory / STATE_FILE)

    def starter(name: str, settings: Any) -> Callable[[], Tracker]:
        memory = state.memory.setdefault(name, {})
        known = replace(run, memory=memory)
        return lambda: load("tracker", name, TRACKERS)(known, settings)

    build = {name: starter(name, settings) for name, settings in wanted.items()}
    return Trackers(build, state, samples_every_steps=config.samples_every_steps, finished=finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """How far the trackers of a run got."""

    step: int = -1
    names: frozenset[str] = frozenset()
    """Metrics of that step."""
    samples: int = -1
    """Last step with a table."""

    def covers(self, step: int, name: str) -> bool:
        """Return whether the value was sent already."""
        return step < self.step or (step == self.step and name in self.names)


class TrackerState:
    """Content of trackers.json."""

    def __init__(self, path: Path) -> None:
        """Begin a new run."""
        self._path = path
        self.memory: dict[str, dict[str, str]] = {}
        self.sent = Sent()

    @classmethod
    def read(cls, path: Path) -> TrackerState | None:
        """Return what an earlier process left; None without it, which begins a new run in every tracker."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            state = cls(path)
            state.memory = dict(content["memory"])
            sent = content["sent"]
            state.sent = Sent(step=sent["step"], names=frozenset(sent["names"]), samples=sent["samples"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s cannot be read (%s); the trackers begin a new run or get steps again", path, error)
            return None
        return state

    def note(self, step: int, metrics: Mapping[str, float]) -> None:
        """Remember that the metrics of a step are sent."""
        if step < self.sent.step:
            return
        names = self.sent.names if step == self.sent.step else frozenset()
        self.sent = Sent(step=step, names=names | metrics.keys(), samples=self.sent.samples)
        self.save()

    def note_samples(self, step: int) -> None:
        """Remember that the table of a step is sent."""
        self.sent = Sent(step=self.sent.step, names=self.sent.names, samples=max(step, self.sent.samples))
        self.save()

    def save(self) -> None:
        """Write the file; a disk that refuses costs at most a step that is sent twice."""
        sent = {"step": self.sent.step, "names": sorted(self.sent.names), "samples": self.sent.samples}
        with contextlib.suppress(OSError):
            atomic_write(self._path, json.dumps({"memory": self.memory, "sent": sent}))


def sample_rows(step: int, groups: Sequence[PromptGroup]) -> list[list[Any]]:
    """Return one row of `SAMPLE_COLUMNS` per trajectory."""
    rows = []
    for group in groups:
        for item in group.trajectories:
            question = item.text.get("prompt", "")
            answer = "\n".join(text for name, text in item.text.items() if name != "prompt")
            components = json.dumps({name: round(value, 6) for name, value in item.reward_components.items()})
            numbers = [step, group.ordinal, item.sample_index, float(item.total_reward)]
            end = [item.stop_reason.value, item.num_sampled, _shorten(question), _shorten(answer)]
            rows.append([*numbers, components, *end])
    return rows


def table_as_markdown(rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table of `SAMPLE_COLUMNS`; every text on one line."""
    lines = [" | ".join(SAMPLE_COLUMNS), " | ".join("---" for _ in SAMPLE_COLUMNS)]
    for row in rows:
        cells = [str(cell).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ... ({len(text) - _MAX_TEXT} more characters)"


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        key = f"{prefix}{name}"
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{key}.")
        elif inner is None or isinstance(inner, dict | list | tuple):
            yield key, json.dumps(inner, default=str)
        else:
            yield key, inner
