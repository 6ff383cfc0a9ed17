"""Check whether a configuration can run, and report its sizes and memory, from the configuration and local files alone.

`validate_run` refuses what would only fail after everything is loaded; `build_report` is `areal train --dry-run`.
Neither imports torch. One unit throughout: *prompts*; a prompt has `group_size` samples.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.algorithm.blocks import block_name
from areal.api import ConfigError
from areal.dataset.tokenizers import is_buildable
from areal.models.parallel.dims import REST
from areal.trainer.assembly import run_directory
from areal.trainer.config import DPOConfig, ModelConfig, PPOConfig, RowsConfig
from areal.trainer.configuration import registries, source
from areal.trainer.configuration.memory import estimate, model_shape, read_model_config
from areal.trainer.configuration.problems import Problem, raise_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.api import GenerationConfig
    from areal.dataset.config import DatasetConfig
    from areal.trainer.configuration.source import Resolved


def validate_run(config: PPOConfig | RowsConfig, provenance: Mapping[str, str] | None = None) -> None:
    """Check everything about a run that needs neither data nor torch. Raises ConfigError with all problems."""
    found = list(_common_problems(config))
    if isinstance(config, PPOConfig):
        found += _rl_problems(config)
    if isinstance(config, DPOConfig):
        found += _reference_problems(config)
    if found:
        raise_all([Problem(key=key, where=_where(key, provenance), message=message) for key, message in found])


def build_report(resolved: Resolved) -> dict[str, Any]:
    """Content of the dry run as plain data: config, provenance, derived sizes, memory (bytes) and notes."""
    config = resolved.config
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
        "run_dir": str(run_directory(config)),
        "config": source.to_mapping(config),
        "provenance": dict(resolved.provenance),
        "derived": derive(config),
        "memory": memory,
        "notes": list(_notes(config)),
    }


def derive(config: PPOConfig | RowsConfig) -> dict[str, int | None]:
    """Sizes that follow from the configuration; None where they depend on rows that were not counted."""
    rows = count_rows(config.train_dataset)
    batch = config.rollout.batch_size if isinstance(config, PPOConfig) else config.batch_size
    per_epoch = None if rows is None else rows // batch
    steps = config.total_train_steps
    if steps is None and rows is not None:
        steps = rows * config.total_train_epochs // batch
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
    bound = (rollout.max_head_offpolicyness + 1) * rollout.batch_size
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


def count_rows(dataset: DatasetConfig) -> int | None:
    """Rows of a local JSON-lines file, or of `<split>.jsonl` in a local folder; None for anything else (not loaded
    here).
    """
    if not dataset.path:
        return None
    path = Path(dataset.path)
    file = path / f"{dataset.split}.jsonl" if path.is_dir() else path
    if file.suffix not in (".jsonl", ".ndjson") or not file.is_file():
        return None
    with file.open("rb") as lines:
        return sum(bool(line.strip()) for line in lines)


def _common_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str]]:
    yield from _model_problems(config)
    datasets = {"train_dataset": config.train_dataset, "valid_dataset": config.valid_dataset}
    for key, dataset in datasets.items():
        if dataset is None:
            continue
        if not dataset.name:
            known = ", ".join(registries.table("dataset")) or "(none)"
            yield f"{key}.name", f"required; known datasets are {known}, or give an importable loader"
        elif problem := _dataset_problem(dataset.name, config.dataset_kind):
            yield f"{key}.name", problem
        if dataset.max_length is not None and dataset.max_length < 1:
            yield f"{key}.max_length", f"expected null or at least 1, got {dataset.max_length}"
    for key, low in (("total_train_epochs", 1), ("total_train_steps", 1), ("eval_every_steps", 0), ("eval_rows", 1)):
        value = getattr(config, key)
        if value is not None and value < low:
            yield key, f"expected at least {low}, got {value}"


def _dataset_problem(name: str, kind: str) -> str | None:
    if f"{name}_{kind}" in registries.table("dataset"):
        return None  # the loader adds the suffix itself
    return registries.check_name("dataset", name) or _wrong_rows(name, kind)


def _wrong_rows(name: str, kind: str) -> str | None:
    """Registry names end in what their rows are for; rows of another kind would only be refused after loading them."""
    known = registries.table("dataset")
    if name not in known or name.endswith(f"_{kind}"):
        return None
    sibling = f"{name.rpartition('_')[0]}_{kind}"
    hint = f"use {sibling!r}" if sibling in known else f"use one of {', '.join(n for n in known if n.endswith(kind))}"
    return f"{name!r} has rows for another kind of training than {kind!r}; {hint}"


def _model_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str]]:
    model = config.model
    if not model.path and not model.init:
        yield "model.path", "required: a Hugging Face checkpoint folder (or describe a new model in model.init)"
        return
    if not model.path and not model.tokenizer_path:
        yield "model.tokenizer_path", "required with model.init: a new model has no tokenizer of its own"
    if model.path and not Path(model.path).is_dir():
        yield "model.path", f"no such folder {model.path!r}; download the checkpoint first and give its folder"
        return
    if model.tokenizer_path and not is_buildable(model.tokenizer_path) and not Path(model.tokenizer_path).is_dir():
        yield "model.tokenizer_path", f"no such folder {model.tokenizer_path!r}"
    try:
        content = read_model_config(model)
    except ConfigError as error:
        yield "model.path", str(error).removeprefix("model.path: ")
        return
    known = registries.table("model")
    if model.implementation == "native" and content.get("model_type") not in known:
        where = "model.path" if model.path else "model.init.model_type"
        supported = f"supported are {', '.join(known) or '(none)'}"
        other = ", and all others with model.implementation=transformers"
        if isinstance(config, PPOConfig) and config.rollout.engine == "embedded":
            other += " and rollout.engine=vllm or sglang (`areal-new model` makes one that the embedded engine knows)"
        yield where, f"model_type is {content.get('model_type')!r}; {supported}{other}"


def _reference_problems(config: DPOConfig) -> Iterator[tuple[str, str]]:
    if not config.reference_path:
        return
    try:
        theirs = read_model_config(ModelConfig(path=config.reference_path)).get("vocab_size")
        ours = read_model_config(config.model).get("vocab_size")
    except ConfigError as error:
        yield "reference_path", str(error).removeprefix("model.path: ")
        return
    if theirs != ours:
        yield (
            "reference_path",
            f"its vocabulary has {theirs} tokens, that of the trained model {ours}; use one of its own",
        )


def _rl_problems(config: PPOConfig) -> Iterator[tuple[str, str]]:
    if not config.reward:
        known = ", ".join(registries.table("reward")) or "(none)"
        yield (
            "reward",
            f'required; known rewards are {known}, or give an importable path such as "package.module:function"',
        )
    elif problem := registries.check_name("reward", config.reward):
        yield "reward", problem
    if problem := registries.check_name("workflow", config.workflow):
        yield "workflow", problem
    if config.model.implementation != "native" and config.rollout.engine == "embedded":
        yield (
            "model.implementation",
            "the embedded engine computes with key/value caches that only families of ours have; use native "
            "(`areal-new model` makes one), or rollout.engine=vllm or sglang",
        )
    yield from _length_problems("gconfig", config.gconfig, "train_dataset", config.train_dataset, config)
    if config.valid_dataset is not None:
        sampling, key = config.gconfig, "gconfig"
        if config.eval_gconfig is not None:
            sampling, key = config.eval_gconfig, "eval_gconfig"
        if key == "eval_gconfig" or config.valid_dataset.max_length is not None:
            yield from _length_problems(key, sampling, "valid_dataset", config.valid_dataset, config)
    yield from _objective_problems(config)
    yield from _server_problems(config)


def _server_problems(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """Yield what servers need on this machine before the first one can be started."""
    name = config.rollout.engine
    if name == "embedded":
        return
    if importlib.util.find_spec("aiohttp") is None:
        yield "rollout.engine", f"{name} needs the client's packages: pip install 'areal[servers]'"
    if config.servers.addresses:
        return  # whoever starts the servers needs the program, here or elsewhere
    python = {"vllm": config.vllm.python, "sglang": config.sglang.python}[name]
    if shutil.which(python) is None:
        yield (
            f"{name}.python",
            f"no interpreter at {python!r}; run `bash scripts/setup_{name}.sh`, or give the python of an environment "
            f"that has {name}",
        )


def _length_problems(
    key: str, sampling: GenerationConfig, dataset_key: str, dataset: DatasetConfig, config: PPOConfig
) -> Iterator[tuple[str, str]]:
    limit, limit_key, new = config.max_seq_len, f"{_engine_section(config)}.max_seq_len", sampling.max_new_tokens
    if new >= limit:
        yield (
            f"{key}.max_new_tokens",
            f"{new} leaves no room for a prompt in {limit_key} {limit}; lower it or raise {limit_key}",
        )
    elif dataset.max_length is not None and dataset.max_length + new > limit:
        yield (
            limit_key,
            f"{limit} is less than {dataset_key}.max_length {dataset.max_length} + {key}.max_new_tokens {new} = "
            f"{dataset.max_length + new}; raise it to that, or lower one of the two",
        )


def _engine_section(config: PPOConfig) -> str:
    """Return the section that limits sequences of the engine in use."""
    return "engine" if config.rollout.engine == "embedded" else "servers"


def _objective_problems(config: PPOConfig) -> Iterator[tuple[str, str]]:
    objective = config.objective.build()
    advantage = f"advantage {block_name(objective.advantage)!r} of objective {config.objective.preset!r}"
    if objective.needs_critic and config.critic is None:
        yield "critic", f"required: {advantage} needs values; write `critic: {{}}`"
    elif not objective.needs_critic and config.critic is not None:
        yield "critic", f"{advantage} uses no values; remove the section"


def _notes(config: PPOConfig | RowsConfig) -> Iterator[str]:
    if config.valid_dataset is None:
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
    maximum = read_model_config(config.model).get("max_position_embeddings")
    if isinstance(maximum, int) and maximum < config.max_seq_len:
        yield (
            f"{_engine_section(config)}.max_seq_len {config.max_seq_len} is cut to the model's max_position_embeddings "
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


def _where(key: str, provenance: Mapping[str, str] | None) -> str:
    """Where a key, or else the first key of that section, was written; empty for defaults."""
    known = provenance or {}
    places = [known.get(key, ""), *(origin for name, origin in known.items() if name.startswith(f"{key}."))]
    return next((place for place in places if place and place != source.DEFAULT), "")
