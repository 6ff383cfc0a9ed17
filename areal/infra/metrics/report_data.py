"""Choose and shape the rollouts that a report carries: the whole file when it is small, an even selection of it
otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.infra.metrics.jsonl import parse_line
from areal.infra.metrics.rollouts import decode_group, run_lengths

if TYPE_CHECKING:
    from pathlib import Path

    from areal.infra.metrics.rollouts import Group, Sample

MAX_GROUPS: Final = 400
MAX_BYTES: Final = 8 * 1024 * 1024
"""Size of the chosen lines on disk: a page of this size still opens at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What the page shows."""

    groups: list[dict[str, Any]]
    note: str
    """How the selection was made, for the reader."""


def load_rollouts(path: Path) -> Rollouts:
    """Read an even selection of the groups of a rollouts file; a file that does not exist has none."""
    if not path.is_file():
        return Rollouts(groups=[], note="No rollouts were kept (metrics.rollouts_per_step).")
    with path.open("rb") as lines:
        sizes = [len(line) for line in lines]
    stride = max(1, math.ceil(len(sizes) / MAX_GROUPS), math.ceil(sum(sizes) / MAX_BYTES))
    groups = []
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
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
        "stop": sample.stop,
        "text": dict(sample.text),
        "promptTokens": sample.num_prompt_tokens,
        "tokens": sample.tokens,
        "versions": run_lengths(sample.versions),
        "logprobs": sample.logprobs,
        "pieces": sample.pieces,
    }
