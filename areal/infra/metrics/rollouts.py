"""Sampled rollouts on disk: what the report shows of prompts, answers, rewards and the policy version of each token.

Records are compact: per-token versions are run-length encoded and log-probabilities rounded. Nothing here is read by
training.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from areal.api import DataError
from areal.infra.metrics.jsonl import decode_number, encode_number, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from areal.api import PromptGroup, Trajectory

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory as it was written."""

    index: int
    reward: float
    components: Mapping[str, float]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """All samples of one prompt as they were written."""

    step: int
    ordinal: int
    admitted_version: int
    samples: tuple[Sample, ...]
    faults: tuple[Mapping[str, Any], ...]
    """{"kind": "reward_timeout", "message": "...", "attempt": 0}"""


def encode_group(
    step: int, group: PromptGroup, *, decode: Callable[[Sequence[int]], str] | None = None
) -> dict[str, Any]:
    """Plain record of a group. decode: token ids to text, for the text of single tokens."""
    return {
        "step": step,
        "group": group.ordinal,
        "admitted_version": group.admitted_version,
        "samples": [_encode_trajectory(trajectory, decode) for trajectory in group.trajectories],
        "faults": [
            {"kind": fault.kind.value, "message": fault.message, "attempt": fault.attempt} for fault in group.faults
        ],
    }


def read_rollouts(path: Path) -> Iterator[Group]:
    """Groups in the order they were written; torn lines are skipped."""
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
        "reward": trajectory.reward,
        "components": {name: encode_number(value) for name, value in trajectory.reward_components.items()},
        "stop": trajectory.stop_reason.value,
        "text": dict(trajectory.text),
        "num_prompt_tokens": first,
        "tokens": tokens,
        "versions": run_lengths(trajectory.versions[first:]),
        "logprobs": [round(value, 4) for value in trajectory.logprobs[first:]],
    }
    if decode is not None:
        record["pieces"] = token_pieces(tokens, decode)
    return record


def _decode_sample(record: Mapping[str, Any]) -> Sample:
    return Sample(
        index=record["index"],
        reward=record["reward"],
        components={
            key: number for key, value in record["components"].items() if (number := decode_number(value)) is not None
        },
        stop=record["stop"],
        text=record["text"],
        num_prompt_tokens=record["num_prompt_tokens"],
        tokens=tuple(record["tokens"]),
        versions=expand(record["versions"]),
        logprobs=tuple(record["logprobs"]),
        pieces=tuple(record.get("pieces", ())),
    )
