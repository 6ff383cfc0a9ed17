"""Report what a run would do: its configuration with origins, sizes, memory and notes (`areal train --dry-run`).

From the configuration, local files and what a `rehearsal` found. One unit throughout: *prompts*; a prompt has
`group_size` samples.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from areal.models.parallel.dims import REST
from areal.trainer.config import DPOConfig, PPOConfig, RowsConfig
from areal.trainer.configuration import source
from areal.trainer.configuration.effective import RESOLVED, effective_settings, without_effect
from areal.trainer.configuration.memory import estimate, model_shape
from areal.trainer.configuration.mixture import mixture_of, render_mixture, training_rows, used_up
from areal.trainer.configuration.problems import DEFAULT
from areal.trainer.configuration.rehearsal import shown
from areal.trainer.configuration.validation import read_model_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.trainer.configuration.rehearsal import Rehearsal
    from areal.trainer.configuration.source import ResolvedConfig


def build_report(resolved: ResolvedConfig, rehearsal: Rehearsal | None = None) -> dict[str, Any]:
    """Content of the dry run as plain data: config, provenance, what of it has effect, derived sizes, memory (bytes),
    what was tried, and notes. rehearsal: has the rows that are counted; None counts lines.
    """
    config = resolved.config
    settings, hidden = effective_settings(config, resolved.provenance)
    tried = {} if rehearsal is None else rehearsal.facts
    counted = training_rows(config, tried.get("rows", {}))
    derived = derive(config, counted)
    steps = derived["total_steps"]
    shape = model_shape(read_model_config(config.model))
    memory: dict[str, Any]
    if isinstance(shape, str):
        memory = {"parameters": None, "unknown_because": shape, "items": [], "total_bytes": None}
    else:
        consumers = estimate(config, shape)
        items = [{"name": item.name, "bytes": item.num_bytes, "formula": item.formula} for item in consumers]
        total = sum(item.num_bytes for item in consumers)
        memory = {"parameters": shape.num_parameters, "unknown_because": None, "items": items, "total_bytes": total}
    return {
        "kind": config.kind,
        "run_dir": str(config.directory),
        "config": source.to_mapping(config),
        "provenance": dict(resolved.provenance),
        "effective": {key: {"value": value, "origin": origin} for key, (value, origin) in settings.items()},
        "hidden": hidden,
        "derived": derived,
        "sources": mixture_of(config, counted, steps),
        "memory": memory,
        "tried": tried,
        "notes": [
            *_notes(config),
            *used_up(config, counted, steps),
            *_useless(config, hidden),
            *(rehearsal.notes if rehearsal is not None else ()),
        ],
    }


def derive(config: PPOConfig | RowsConfig, counted: Mapping[str, int | None] | None = None) -> dict[str, int | None]:
    """Sizes that follow from the configuration; None where they depend on rows that were not counted. counted: rows of
    each source, as loaded; None counts lines."""
    numbers = [*(training_rows(config, {}) if counted is None else counted).values()]
    rows = None if None in numbers else sum(number or 0 for number in numbers)
    batch = config.rollout.batch_size if isinstance(config, PPOConfig) else config.batch_size
    per_epoch = None if rows is None else rows // batch
    steps = config.total_train_steps
    if steps is None and rows is not None:
        steps = max(1, rows * config.total_train_epochs // batch)
    updates = config.objective.num_minibatches if isinstance(config, PPOConfig) else 1
    sizes: dict[str, int | None] = {}
    if isinstance(config, PPOConfig):
        sizes = _rl_sizes(config)
    elif config.dataset_kind == "preference":
        sizes = {"pairs_per_step": batch, "sequences_per_step": 2 * batch}
    else:
        sizes["rows_per_step"] = batch
    return sizes | {
        "processes": _processes(config),
        "optimizer_steps_per_step": updates,
        "train_rows": rows,
        "steps_per_epoch": per_epoch,
        "optimizer_steps_per_epoch": None if per_epoch is None else per_epoch * updates,
        "total_steps": steps,
        "total_optimizer_steps": None if steps is None else steps * updates,
    }


def _processes(config: PPOConfig | RowsConfig) -> int | None:
    """Return the number of processes that train one model; None for as many as are started."""
    if config.archon is None:
        return 1
    return None if config.archon.parallel.dp_shard == REST else config.archon.parallel.world_size


def _rl_sizes(config: PPOConfig) -> dict[str, int | None]:
    rollout = config.rollout
    bound = (rollout.max_head_offpolicyness + 1) * rollout.batch_size + rollout.surplus_prompts
    live = min(bound, rollout.max_concurrent_prompts or bound)
    samples = rollout.batch_size * rollout.group_size
    return {
        "prompts_per_step": rollout.batch_size,
        "samples_per_prompt": rollout.group_size,
        "samples_per_step": samples,
        "minibatches_per_step": config.objective.num_minibatches,
        "prompts_per_minibatch": math.ceil(rollout.batch_size / config.objective.num_minibatches),
        "max_live_prompts": live,
        "max_live_samples": live * rollout.group_size,
        "max_generated_tokens_per_step": samples * config.gconfig.max_new_tokens,
    }


def _notes(config: PPOConfig | RowsConfig) -> Iterator[str]:
    if isinstance(config, PPOConfig) and not config.eval_sets:
        yield "eval_sets is empty: the run will report no evaluation"
    if not isinstance(config, PPOConfig) and config.valid_dataset is None:
        yield "valid_dataset is not set: the run will report no evaluation"
    if config.archon is not None:
        yield from _archon_notes(config)
    if isinstance(config, DPOConfig):
        yield from _preference_notes(config)
    if not isinstance(config, PPOConfig):
        return
    sizes = _rl_sizes(config)
    live, slots, slots_key = sizes["max_live_samples"] or 0, config.engine.max_batch_size, "engine.max_batch_size"
    if config.rollout.engine != "embedded":
        slots, slots_key = config.servers.count * config.servers.max_concurrent, "room in the servers"
    if live > slots:
        yield f"up to {live} samples are live but {slots_key} is {slots}: the others wait for a slot"
    if config.rollout.batch_size % config.objective.num_minibatches:
        yield (
            f"rollout.batch_size {config.rollout.batch_size} is not a multiple of objective.num_minibatches "
            f"{config.objective.num_minibatches}: minibatches differ in size"
        )
    if config.rollout.consume == "drop":
        yield "rollout.consume is drop: prompts with long answers are dropped more often, which biases training"
    elif config.rollout.surplus_prompts and not config.rollout.filter_zero_variance:
        yield (
            f"rollout.surplus_prompts is {config.rollout.surplus_prompts} and rollout.filter_zero_variance is off: in "
            f"order of admission a surplus only replaces prompts that are dropped, so most of it is wasted"
        )
    maximum = read_model_config(config.model).get("max_position_embeddings")
    if isinstance(maximum, int) and maximum < config.max_seq_len:
        yield (
            f"{config.engine_section}.max_seq_len {config.max_seq_len} is cut to the model's max_position_embeddings "
            f"{maximum}"
        )


def _archon_notes(config: PPOConfig | RowsConfig) -> Iterator[str]:
    assert config.archon is not None, "only asked with archon"
    parallel = config.archon.parallel
    if parallel.is_single:
        return
    yield (
        f"the trained model is split over processes ({parallel.describe()}): start them with `areal launch --ranks "
        f"{_processes(config) or 'N'} -- areal train ...`, or with torchrun"
    )
    yield "memory is that of one process that trains alone; `areal plan CONFIG` has that of each of these"
    if isinstance(config, PPOConfig) and config.rollout.engine == "embedded":
        yield "rollout.engine embedded generates on rank 0, which holds a whole copy of the model for it"


def _preference_notes(config: DPOConfig) -> Iterator[str]:
    loss = config.preference.resolved()
    how = "averaged" if loss.length_normalised else "summed"
    yield f"preference.loss {loss.loss} with beta {loss.beta}: log-probabilities are {how} over the tokens of an answer"
    if loss.uses_reference:
        whose = config.reference_path or "the model before its first step"
        yield f"the reference ({whose}) scores every pair of the run once, before the first step; then it is let go"


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
    lines += _configuration(report["effective"])
    if report["hidden"]:
        sections: dict[str, list[str]] = {}
        for section, reason in report["hidden"].items():
            sections.setdefault(reason, []).append(section)
        lines += [f"  not shown, since {reason}: {', '.join(names)}" for reason, names in sections.items()]
    lines += ["", "Derived sizes"]
    width = max(len(label) for label in _LABELS.values())
    for key, value in report["derived"].items():
        unknown = "as many as are started" if key == "processes" else "known when the rows are loaded"
        shown = unknown if value is None else f"{value:,}"
        lines.append(f"  {_LABELS[key]:<{width}}  {shown}")
    lines += render_mixture(report["sources"])
    lines += ["", *_memory(report["memory"]), *_tried(report["tried"])]
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


def _tried(tried: Mapping[str, Any]) -> Iterator[str]:
    """Lines about what a rehearsal did; none without one."""
    if downloads := tried.get("downloads"):
        yield from ("", "To be fetched when the run starts")
        for key, facts in downloads.items():
            yield f"  {key}: {facts['files']} files, {format_bytes(facts['bytes'])}, of {facts['name']}"
    if rows := tried.get("rows"):
        yield from ("", "Rows")
        for name, facts in rows.items():
            too_long = ""
            if facts.get("limit") is not None:
                cut = f", {facts['truncated']:,} of them shortened" if facts["truncated"] else ""
                too_long = f"; {facts['too_long']:,} too long{cut} (limit {facts['limit']:,}: {facts['limit_from']})"
            yield f"  {name}: {facts['used']:,} of {facts.get('read', facts['used']):,} used{too_long}"
    if example := tried.get("example"):
        yield from ("", f"First training row, {example['tokens']:,} tokens", *_indented(example["text"]))
        if "learned" in example:
            yield from ("  learned of it:", *_indented(example["learned"]))
    rewards = {f" of source {name}": facts for name, facts in tried.get("rewards", {}).items()}
    if "reward" in tried:
        rewards[""] = tried["reward"]
    for name, reward in rewards.items():
        called = f"{name.removeprefix(' ')}{' ' if name else ''}for completion {shown(reward['completion'])!r} of "
        called += "its first row" if name else "this row"
        yield from ("", f"Reward {called}: {reward['value']:g} ({reward['seconds']:.3f} s)")
        if len(reward["components"]) > 1:
            yield from (f"  {name}: {value:g}" for name, value in reward["components"].items())


def _indented(text: str) -> Iterator[str]:
    return (f"  | {line}" for line in shown(text).split("\n"))


def _useless(config: PPOConfig | RowsConfig, hidden: Mapping[str, str]) -> Iterator[str]:
    """Yield what was written although it has no effect."""
    for section, reason in without_effect(config).items():
        if section not in hidden:
            yield f"what is set in {section} has no effect: {reason}"


def _configuration(settings: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    values = {key: json.dumps(entry["value"], ensure_ascii=False) for key, entry in settings.items()}
    key_width = max(len(key) for key in values)
    value_width = min(48, max(len(value) for value in values.values()))
    for key, value in values.items():
        origin = settings[key]["origin"]
        is_written = not (origin == DEFAULT or origin.startswith(RESOLVED))
        yield f"{'*' if is_written else ' '} {key:<{key_width}}  {value:<{value_width}}  {origin}"


def _memory(memory: Mapping[str, Any]) -> Iterator[str]:
    if memory["total_bytes"] is None:
        yield f"Memory: not estimated, {memory['unknown_because']}"
        return
    yield f"Memory estimate for {memory['parameters']:,} parameters (peak; libraries and fragmentation come on top)"
    items = [*memory["items"], {"name": "total", "bytes": memory["total_bytes"], "formula": ""}]
    width = max(len(item["name"]) for item in items)
    for item in items:
        yield f"  {item['name']:<{width}}  {format_bytes(item['bytes']):>10}  {item['formula']}".rstrip()
