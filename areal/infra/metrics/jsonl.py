"""Write and read JSON lines: files that survive being killed, and the form of numbers and sampled rollouts in them.

Files are append-only: whole lines or nothing, and no line is ever removed. A torn tail is moved into a file beside it
on reopening; what is done again after a resume is superseded (`areal.infra.metrics.attempts`). Every line but the
markers of attempts is one object with an integer "step". Numbers JSON cannot say are written as "nan", "inf", "-inf".

The record of a rollout has prompt, answers, rewards and the policy version of each token. Versions are run-length
encoded and log-probabilities rounded. Training reads none of this. A report carries all rollouts when they are few, an
even selection of them otherwise.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.infra.metrics.attempts import current_lines
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from areal.api import PromptGroup, Trajectory


logger = getLogger(__name__)

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class JsonLines:
    """File that is open for appending.

    A line is handed to the operating system in a single write before `append` returns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _put_torn_tail_aside(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line. Raises OSError (disk full, ...) and ValueError after `close`."""
        if self._descriptor < 0:
            raise ValueError(f"{self.path}: append after close")
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        start = os.fstat(self._descriptor).st_size
        written = os.write(self._descriptor, line)
        if written != len(line):  # A full disk may take a part: take it back, so that later lines stay readable.
            os.ftruncate(self._descriptor, start)
            raise OSError(f"{self.path}: wrote {written} of {len(line)} bytes; is the disk full?")

    def close(self) -> None:
        """Flush to disk and close. Idempotent."""
        if self._descriptor >= 0:
            os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def read_lines(path: Path, attempt: int | None = None) -> Iterator[dict[str, Any]]:
    """Return records of a file, in order, without superseded ones; lines that are torn or not records are skipped and
    their number is logged. attempt: as in `areal.infra.metrics.attempts.current_lines`.
    """
    bad = 0
    for line in current_lines(path, attempt):
        record = parse_line(line)
        if record is None:
            bad += bool(line.strip())
        else:
            yield record
    if bad:
        logger.warning("%s: skipped %d lines that are not complete records", path, bad)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line, None when it is torn, has no integer step, or is not an object."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and type(record.get("step")) is int else None


def encode_number(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    number = float(value)
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def decode_number(value: Any) -> float | None:
    """Inverse of `encode_number`; None for anything else."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


TORN_SUFFIX: Final = ".torn"
"""Ends the name of the file that gets what a killed writer left of a line."""


def _put_torn_tail_aside(path: Path) -> None:
    """Move what a killed writer left after the last newline to the end of a file of its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.seek(end)
            aside = path.with_name(path.name + TORN_SUFFIX)
            with aside.open("ab") as torn:
                torn.write(file.read() + b"\n")
                torn.flush()
                os.fsync(torn.fileno())
            logger.warning("%s: moved %d bytes of a line that was never finished to %s", path, size - end, aside.name)
            file.truncate(end)


_IMAGE_NUMBERS: Final = ("height", "width", "start", "length")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Trajectory as it was written."""

    index: int
    reward: float
    components: Mapping[str, float]
    """Value of each reward component."""
    stats: Mapping[str, float]
    """What was recorded while the sample was produced (`areal.utils.stats`)."""
    stop: str
    text: Mapping[str, str]
    num_prompt_tokens: int
    """Tokens before the first sampled one."""
    tokens: tuple[int, ...]
    """Token ids from the first sampled one to the end; empty when they were not kept."""
    versions: tuple[int, ...]
    """Policy version of each of these tokens; -1 on tokens the policy did not sample."""
    logprobs: tuple[float, ...]
    """Log-probability of each of these tokens at sampling time; 0.0 where it was not sampled."""
    pieces: tuple[str, ...]
    """Text of each of these tokens; empty when the writer had no decoder."""
    images: tuple[Mapping[str, Any], ...] = ()
    """{"digest": "3f9a...", "height": 448, "width": 448, "start": 3, "length": 256}: pixels, and columns of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All samples of one prompt as they were written."""

    step: int
    ordinal: int
    admitted_version: int
    samples: tuple[Sample, ...]
    faults: tuple[Mapping[str, Any], ...]
    """{"kind": "reward_timeout", "message": "...", "attempt": 0}"""
    source: str = ""
    """Name of the source that the prompt is from; "" for a single one."""


def encode_group(
    step: int, group: PromptGroup, *, decode: Callable[[Sequence[int]], str] | None = None
) -> dict[str, Any]:
    """Plain record of a group. decode: token ids to text, for the text of single tokens."""
    return {
        "step": step,
        "group": group.ordinal,
        **({"source": group.source} if group.source else {}),
        "admitted_version": group.admitted_version,
        "samples": [_encode_trajectory(trajectory, decode) for trajectory in group.trajectories],
        "faults": [
            {"kind": fault.kind.value, "message": fault.message, "attempt": fault.attempt} for fault in group.faults
        ],
    }


def read_rollouts(path: Path) -> Iterator[Group]:
    """Return groups in the order they were written; torn lines are skipped."""
    return map(decode_group, read_lines(path))


def decode_group(record: Mapping[str, Any]) -> Group:
    """Inverse of `encode_group`. Raises DataError for a record that something else wrote."""
    try:
        return Group(
            step=record["step"],
            ordinal=record["group"],
            admitted_version=record["admitted_version"],
            samples=tuple(_decode_sample(sample) for sample in record["samples"]),
            faults=tuple(record["faults"]),
            source=record.get("source", ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"rollouts of step {record['step']}: not a record of this version ({error!r})") from error


def run_lengths(values: Sequence[int]) -> list[list[int]]:
    """`[4, 4, 4, 5]` to `[[4, 3], [5, 1]]`."""
    return [[value, sum(1 for _ in run)] for value, run in groupby(values)]


def expand(runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Inverse of `run_lengths`."""
    return tuple(value for value, count in runs for _ in range(count))


def token_pieces(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """Text of each token such that joining them gives the text of all; a character cut over tokens goes to the last.

    Decoding single tokens would lose leading spaces and split characters, decoding every prefix would be quadratic: the
    window reaches back to the last token after which the text was whole.
    """
    pieces: list[str] = []
    start = read = 0
    for end in range(1, len(tokens) + 1):
        before = decode(list(tokens[start:read]))
        now = decode(list(tokens[start:end]))
        if now.endswith(REPLACEMENT) and end < len(tokens):
            pieces.append("")
            continue
        pieces.append(now[len(before) :])
        start, read = read, end
    return pieces


def _encode_trajectory(trajectory: Trajectory, decode: Callable[[Sequence[int]], str] | None) -> dict[str, Any]:
    mask = trajectory.loss_mask
    first = mask.index(1) if 1 in mask else len(mask)
    tokens = trajectory.tokens[first:]
    record: dict[str, Any] = {
        "index": trajectory.sample_index,
        "reward": trajectory.total_reward,
        "components": {name: encode_number(value) for name, value in trajectory.reward_components.items()},
        "stats": {name: encode_number(value) for name, value in trajectory.stats.items()},
        "stop": trajectory.stop_reason.value,
        "text": dict(trajectory.text),
        "num_prompt_tokens": first,
        "tokens": tokens,
        "versions": run_lengths(trajectory.versions[first:]),
        "logprobs": [round(value, 4) for value in trajectory.logprobs[first:]],
    }
    if trajectory.images:
        record["images"] = [
            {
                "digest": ref.image.digest,
                "height": ref.image.height,
                "width": ref.image.width,
                "start": ref.start,
                "length": ref.length,
            }
            for ref in trajectory.images
        ]
    if decode is not None:
        record["pieces"] = token_pieces(tokens, decode)
    return record


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: number for key, value in values.items() if (number := decode_number(value)) is not None}


def _decode_sample(record: Mapping[str, Any]) -> Sample:
    return Sample(
        index=record["index"],
        reward=record["reward"],
        components=_numbers(record["components"]),
        stats=_numbers(record.get("stats", {})),
        stop=record["stop"],
        text=record["text"],
        num_prompt_tokens=record["num_prompt_tokens"],
        tokens=tuple(record["tokens"]),
        versions=expand(record["versions"]),
        logprobs=tuple(record["logprobs"]),
        pieces=tuple(record.get("pieces", ())),
        images=tuple(
            {"digest": str(image["digest"]), **{name: int(image[name]) for name in _IMAGE_NUMBERS}}
            for image in record.get("images", ())
        ),
    )


MAX_GROUPS: Final = 400
MAX_BYTES: Final = 8 * 1024 * 1024
"""Size of the chosen lines on disk: a page of this size still opens at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Rollouts that the page shows."""

    groups: list[dict[str, Any]]
    note: str
    """How the selection was made, for the reader."""


def load_rollouts(path: Path, attempt: int | None = None) -> Rollouts:
    """Read an even selection of the groups of a rollouts file; a file that does not exist has none.

    attempt: as in `areal.infra.metrics.attempts.current_lines`.
    """
    if not path.is_file():
        return Rollouts(groups=[], note="No rollouts were kept (metrics.rollouts_per_step).")
    sizes = [len(line) for line in current_lines(path, attempt)]
    stride = max(1, math.ceil(len(sizes) / MAX_GROUPS), math.ceil(sum(sizes) / MAX_BYTES))
    groups = []
    for index, line in enumerate(current_lines(path, attempt)):
        # The last group is where a reader looks first: count from the end.
        record = parse_line(line) if (len(sizes) - 1 - index) % stride == 0 else None
        if record is not None:
            groups.append(_shape(decode_group(record)))
    if not groups:
        note = "No rollouts were kept (metrics.rollouts_per_step)."
    elif stride == 1:
        note = f"All {len(groups)} prompts that were kept."
    else:
        note = f"{len(groups)} of {len(sizes)} prompts that were kept, evenly chosen; rollouts.jsonl has all."
    return Rollouts(groups=groups, note=note)


def strict(value: Any) -> Any:
    """Replace numbers JSON does not have by null."""
    if isinstance(value, dict):
        return {str(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _shape(group: Group) -> dict[str, Any]:
    return {
        "step": group.step,
        "ordinal": group.ordinal,
        "admitted": group.admitted_version,
        "samples": [_shape_sample(sample) for sample in group.samples],
        "faults": [dict(fault) for fault in group.faults],
    }


def _shape_sample(sample: Sample) -> dict[str, Any]:
    return {
        "index": sample.index,
        "reward": sample.reward,
        "components": dict(sample.components),
        "stats": dict(sample.stats),
        "stop": sample.stop,
        "text": dict(sample.text),
        "promptTokens": sample.num_prompt_tokens,
        "tokens": sample.tokens,
        "versions": run_lengths(sample.versions),
        "logprobs": sample.logprobs,
        "pieces": sample.pieces,
        "images": sample.images,
    }
