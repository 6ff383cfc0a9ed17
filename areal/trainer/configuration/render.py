"""The dry-run report as text for a terminal. Formatting only; `report` makes the numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from areal.trainer.configuration.source import DEFAULT, flatten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LABELS: dict[str, str] = {
    "prompts_per_step": "prompts per step",
    "samples_per_prompt": "samples per prompt",
    "samples_per_step": "samples per step",
    "minibatches_per_step": "minibatches per step",
    "prompts_per_minibatch": "prompts per minibatch",
    "max_live_prompts": "prompts in flight, at most",
    "max_live_samples": "samples in flight, at most",
    "max_generated_tokens_per_step": "generated tokens per step, at most",
    "rows_per_step": "rows per step",
    "pairs_per_step": "pairs per step",
    "sequences_per_step": "sequences per step",
    "processes": "processes that train",
    "optimizer_steps_per_step": "optimizer steps per step",
    "train_rows": "training rows",
    "steps_per_epoch": "steps per epoch",
    "optimizer_steps_per_epoch": "optimizer steps per epoch",
    "total_steps": "steps in total",
    "total_optimizer_steps": "optimizer steps in total",
}


def render_report(report: Mapping[str, Any]) -> str:
    """Return resolved values with their origin, derived sizes, the memory estimate and notes."""
    lines = [f"{report['kind']} run in {report['run_dir']}", "", "Configuration (value, then where it comes from)"]
    lines += _configuration(report["config"], report["provenance"])
    lines += ["", "Derived sizes"]
    width = max(len(label) for label in _LABELS.values())
    for key, value in report["derived"].items():
        unknown = "as many as are started" if key == "processes" else "known when the rows are loaded"
        shown = unknown if value is None else f"{value:,}"
        lines.append(f"  {_LABELS[key]:<{width}}  {shown}")
    lines += ["", *_memory(report["memory"])]
    if report["notes"]:
        lines += ["", "Notes", *(f"  - {note}" for note in report["notes"])]
    return "\n".join(lines)


def format_bytes(count: int) -> str:
    """`3.2 GiB`; binary units, one decimal."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _configuration(config: Mapping[str, Any], provenance: Mapping[str, str]) -> Iterator[str]:
    values = {key: json.dumps(value, ensure_ascii=False) for key, value in flatten(config).items()}
    key_width = max(len(key) for key in values)
    value_width = min(48, max(len(value) for value in values.values()))
    for key, value in values.items():
        origin = provenance[key]
        yield f"{' ' if origin == DEFAULT else '*'} {key:<{key_width}}  {value:<{value_width}}  {origin}"


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if memory["total_bytes"] is None:
        yield f"Memory: not estimated, {memory['unknown_because']}"
        return
    yield f"Memory estimate for {memory['parameters']:,} parameters (peak; libraries and fragmentation come on top)"
    items = [*memory["items"], {"name": "total", "bytes": memory["total_bytes"], "formula": ""}]
    width = max(len(item["name"]) for item in items)
    for item in items:
        yield f"  {item['name']:<{width}}  {format_bytes(item['bytes']):>10}  {item['formula']}".rstrip()
