"""Try out what a run begins with, without training: tokenizer, rows, one prompt, one call of the reward, headers of the
weights, memory. Whatever fails is a problem with its key; the others are still tried.

    found = rehearse(resolved.config, resolved.provenance)
    found.problems, found.facts["example"]["text"]

Loads the libraries that read rows and tokenizers, but no weights. Code of users is called: loaders and workflows in
this process, their rewards in processes of their own.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, ConfigError, DataError
from areal.dataset.encoding import check_tokenizer, encode_text, load_tokenizer
from areal.dataset.images import text_ids
from areal.dataset.loading import ShuffledRows, dataset_loader, fingerprint_sources, load_dataset
from areal.dataset.origins import origins_of, place_of
from areal.dataset.tokenizer_identity import check_same_tokenizer
from areal.engine.precision import accelerator
from areal.hub.download import local_folder, to_fetch
from areal.hub.names import find_name
from areal.trainer.config import DPOConfig, PPOConfig, SFTConfig
from areal.trainer.configuration.memory import estimate, model_shape
from areal.trainer.configuration.problems import Problem
from areal.trainer.configuration.validation import (
    dataset_key,
    length_limit,
    max_positions,
    read_model_config,
    where_written,
)
from areal.trainer.image_rows import image_rows_of, prompt_images_of
from areal.utils.coroutines import run_coroutine
from areal.utils.machine import host_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from areal.api import GenerationConfig
    from areal.dataset.config import DatasetConfig
    from areal.trainer.config import RowsConfig

_SHOWN_CHARACTERS: Final = 600
_GIB: Final = 1 << 30
_UNCERTAIN: Final = frozenset({"activations", "engine KV cache", "logits"})
"""Consumers whose estimate is a rule of thumb, or which rarely reach what they may take."""


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """What was found."""

    provenance: Mapping[str, str] | None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """JSON values: rows of each dataset ("rows"), an "example" of them, the call of the "reward"."""
    rows: dict[str, ShuffledRows] = field(default_factory=dict)
    """By the key of their dataset."""
    fingerprint: str = ""
    """Of the training rows; "" where they cannot be read."""

    def add(self, key: str, message: str, fix: str = "") -> None:
        """Note a problem of a key."""
        self.problems.append(Problem(key=key, where=where_written(key, self.provenance), message=message, fix=fix))

    @contextlib.contextmanager
    def about(self, key: str) -> Iterator[None]:
        """Turn what the body raises into a problem of `key`."""
        try:
            yield
        except ArealError as error:
            self.add(key, str(error), error.fix)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - users' code may raise anything; the others are still tried
            from areal.utils.user_code import blame

            found = blame(error, always=True)
            self.add(key, str(error) if found is None else found.text)


def rehearse(
    config: PPOConfig | RowsConfig, provenance: Mapping[str, str] | None = None, known: Sequence[Problem] = ()
) -> Rehearsal:
    """Try everything. known: problems that were found before; what depends on them is left out."""
    found = Rehearsal(provenance=provenance)
    broken = {problem.key for problem in known}
    if not any(key.startswith("model") for key in broken):
        _check_model(config, found)
    tokenizer = None
    key = "model.tokenizer_path" if config.model.tokenizer_path else "model.path"
    if not broken & {"model.tokenizer_path", "model.path"}:
        with found.about(key):
            tokenizer = load_tokenizer(config.model.tokenizer_path or config.model.path)
    if tokenizer is not None:
        with found.about(key):
            vocabulary = read_model_config(config.model).get("vocab_size")
            if isinstance(vocabulary, int):
                check_tokenizer(tokenizer, vocabulary)
        if isinstance(config, PPOConfig) and config.distillation is not None:
            for name, teacher in config.distillation.teachers.items():
                with found.about(f"distillation.teachers.{name}"):
                    theirs = load_tokenizer(teacher.tokenizer_path or teacher.path)
                    check_same_tokenizer(tokenizer, theirs, where=f"distillation.teachers.{name}")
    firsts: dict[str, Mapping[str, Any]] = {}
    for name, dataset, sampling in _datasets(config):
        if f"{name}.name" in broken:
            continue
        # Options are checked also where rows cannot be read.
        with found.about(f"{name}.options"):
            dataset_loader(dataset, config.dataset_kind)
            if tokenizer is not None:
                with found.about(name):
                    firsts[name] = _read_rows(config, name, dataset, sampling, tokenizer, found)
    trained = [""] if not isinstance(config, PPOConfig) else list(config.all_sources)
    row = firsts.get(dataset_key(trained[0]))
    if row is not None:
        found.facts["example"] = _example(row, tokenizer)
    if all(dataset_key(name) in firsts for name in trained):
        _compare_with_batch(config, [dataset_key(name) for name in trained], found)
        found.fingerprint = fingerprint_sources({name: found.rows[dataset_key(name)] for name in trained})
    if isinstance(config, PPOConfig):
        for name in trained:
            _try_reward(config, name, firsts.get(dataset_key(name)), tokenizer, found, broken)
        _check_graphs(config, found)
    _check_memory(config, found)
    return found


def _datasets(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, DatasetConfig, GenerationConfig | None]]:
    if isinstance(config, PPOConfig):
        for name, source in config.all_sources.items():
            yield dataset_key(name), source.dataset, source.gconfig
        for name, chosen in config.eval_sets.items():
            yield f"eval_sets.{name}.dataset", chosen.dataset, chosen.gconfig
        return
    yield "train_dataset", config.train_dataset, None
    if config.valid_dataset is not None:
        yield "valid_dataset", config.valid_dataset, None


def _check_model(config: PPOConfig | RowsConfig, found: Rehearsal) -> None:
    folders = {"model.path": config.model.path}
    if isinstance(config, DPOConfig):
        folders["reference_path"] = config.reference_path
    if isinstance(config, PPOConfig) and config.distillation is not None:
        folders |= {
            f"distillation.teachers.{name}.path": item.path for name, item in config.distillation.teachers.items()
        }
    for key, folder in folders.items():
        if not folder:
            continue
        with found.about(key):
            from areal.trainer.configuration.weights import check_remote_weights, check_weights

            content = read_model_config(replace(config.model, path=folder))
            native = config.model.implementation == "native"
            name = find_name(folder)
            files = [] if name is None else to_fetch(name)
            missing = [file for file in files if not file.is_cached]
            if name is not None and missing:
                num_bytes = sum(file.num_bytes for file in missing)
                fetched = found.facts.setdefault("downloads", {})
                fetched[key] = {"name": str(name), "files": len(missing), "bytes": num_bytes}
                check_remote_weights(name, files, content, native=native)
            else:
                check_weights(local_folder(folder), content, native=native)
    if config.archon is not None and config.archon.engine == "megatron":
        with found.about("archon.engine"):
            from areal.engine.megatron.checks import check_model
            from areal.models.loading import blank_model

            check_model(blank_model(read_model_config(config.model)), config.archon.parallel)
    positions = max_positions(config)
    if isinstance(config, PPOConfig) and positions is not None and positions <= config.gconfig.max_new_tokens:
        found.add(
            "gconfig.max_new_tokens",
            f"{config.gconfig.max_new_tokens} leaves no room for a prompt in the model's max_position_embeddings "
            f"{positions}",
            "lower gconfig.max_new_tokens, or take a model with more positions",
        )


def max_rows_of(config: PPOConfig | RowsConfig, key: str) -> int | None:
    """Return how many rows of a dataset a source takes at most; None for all."""
    sources = config.sources if isinstance(config, PPOConfig) else {}
    return next((source.max_rows for name, source in sources.items() if dataset_key(name) == key), None)


def _workflow_options(config: PPOConfig, key: str) -> Mapping[str, Any]:
    """Return the options of the workflow that reads the rows of a dataset."""
    readers: dict[str, Any] = {dataset_key(name): source for name, source in config.all_sources.items()}
    readers |= {f"eval_sets.{name}.dataset": chosen for name, chosen in config.eval_sets.items()}
    reader = readers[key]
    options: Mapping[str, Any] = reader.workflow_options if reader.workflow else config.workflow_options
    return options


def _read_rows(
    config: PPOConfig | RowsConfig,
    name: str,
    dataset: DatasetConfig,
    sampling: GenerationConfig | None,
    tokenizer: Any,
    found: Rehearsal,
) -> Mapping[str, Any]:
    """Load a dataset, note how many rows it has, and return the first."""
    images = None
    if isinstance(config, SFTConfig):
        images = image_rows_of(config.model, read_model_config(config.model), config.images)
    place: Callable[[Any, str], Any] | None = None if images is None else images.place
    if isinstance(config, PPOConfig):
        place = prompt_images_of(_workflow_options(config, name), tokenizer)
    limit = length_limit(config, sampling)
    rows = load_dataset(dataset, tokenizer, kind=config.dataset_kind, limit=limit, place_images=place)
    origins = origins_of(rows)
    fitting = None if origins is None else origins.fitting
    most = max_rows_of(config, name)
    facts: dict[str, Any] = {
        "used": len(rows) if most is None else min(most, len(rows)),
        "first": place_of(rows, 0),
    }
    if fitting is not None:
        facts |= {
            "read": fitting.num_read, "too_long": fitting.num_overlong, "truncated": fitting.num_truncated,
            "longest": fitting.longest, "limit": fitting.limit, "limit_from": fitting.reason,
        }  # fmt: skip
    found.facts.setdefault("rows", {})[name] = facts
    positions = max_positions(config)
    if fitting is not None and positions is not None and not isinstance(config, PPOConfig):
        longest = fitting.longest if fitting.limit is None else min(fitting.longest, fitting.limit)
        if longest > positions:
            found.notes.append(f"{name}: the longest row has {longest} tokens, the model {positions} positions")
    placeholders = [length for row in rows["image_lengths"] for length in row] if images is not None else []
    if placeholders:
        mean = sum(placeholders) / len(placeholders)
        found.notes.append(
            f"{name}: {len(placeholders)} images with {mean:.0f} tokens each in the mean, {max(placeholders)} at most"
        )
    found.rows[name] = ShuffledRows(rows, seed=config.seed, max_rows=most)
    return found.rows[name].at(0)


def _compare_with_batch(config: PPOConfig | RowsConfig, keys: Sequence[str], found: Rehearsal) -> None:
    """Note a batch that is larger than the training rows. keys: of their datasets."""
    batch, batch_key = (
        (config.rollout.batch_size, "rollout.batch_size")
        if isinstance(config, PPOConfig)
        else (config.batch_size, "batch_size")
    )
    rows = sum(found.facts["rows"][key]["used"] for key in keys)
    if rows >= batch:
        return
    message = f"{batch} is more than the {rows} training rows, so every step holds rows more than once"
    if config.total_train_steps is not None:  # somebody counted steps and not passes over the rows
        found.notes.append(f"{batch_key} {message}")
    else:
        found.add(batch_key, message, f"set {batch_key} to at most {rows}, or give total_train_steps")


def _example(row: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Return the first row as the model will read it: a prompt, or tokens and what of them is learned."""
    if "messages" in row:
        ids = text_ids(row, tokenizer)
        return {"tokens": len(ids), "text": tokenizer.decode(ids)}
    ids, mask = (
        (row["input_ids"], row["loss_mask"]) if "input_ids" in row else (row["chosen_ids"], row["chosen_loss_mask"])
    )
    learned = [token for token, value in zip(ids, mask, strict=True) if value]
    return {"tokens": len(ids), "text": tokenizer.decode(ids), "learned": tokenizer.decode(learned)}


def _try_reward(
    config: PPOConfig, name: str, row: Mapping[str, Any] | None, tokenizer: Any, found: Rehearsal, broken: set[str]
) -> None:
    """Build the workflow of a source, and call its reward for the first prompt, with its answer as the completion if it
    has one.
    """
    from areal.reward.components import resolve_components
    from areal.reward.scoring import RewardSet, recorded_scores
    from areal.workflow.assembly import create_workflow, find_workflow, reward_columns

    source = config.all_sources[name]
    chosen, key = (source.reward, f"sources.{name}.reward") if source.reward else (config.reward, "reward")
    own_key = f"sources.{name}.workflow" if source.workflow else "workflow"
    if not chosen or key in broken:
        return
    with (
        found.about(key),
        contextlib.closing(
            RewardSet(
                resolve_components(chosen),
                timeout_seconds=config.rollout.reward_timeout_seconds,
                memory_limit_mb=config.rollout.reward_memory_mb or None,
            )
        ) as reward,
    ):
        workflow, workflow_name = None, source.workflow or config.workflow
        options = source.workflow_options if source.workflow else config.workflow_options
        if own_key not in broken:
            with found.about(own_key):
                if tokenizer is None:  # whatever it makes of None says nothing about the workflow
                    find_workflow(workflow_name, options)
                else:
                    workflow = create_workflow(
                        workflow_name, reward=reward, gconfig=source.gconfig or config.gconfig, tokenizer=tokenizer,
                        options=options,
                    )  # fmt: skip
            has_own = workflow_name == "agent" or getattr(workflow, "with_reward", True) is False
            if has_own and [component.reward for component in resolve_components(chosen)] == ["unscored"]:
                return  # episodes bring their reward, and this one only says so
        reward.start()
        if row is None or tokenizer is None:
            return
        prompt_ids = text_ids(row, tokenizer)
        answer = row.get("answer")
        completion = answer if isinstance(answer, str) else ""
        ids: list[int] = []
        with contextlib.suppress(DataError):  # the vocabulary of a tiny model need not have it
            ids = encode_text(completion, tokenizer)
        started = time.perf_counter()
        prompt: str = tokenizer.decode(prompt_ids)

        async def score() -> tuple[float, dict[str, float]]:
            with recorded_scores() as records:
                value = await reward(prompt, completion, prompt_ids, ids, **reward_columns(row))
            return value, dict(records[0].values) if records else {}

        try:
            value, parts = run_coroutine(score())
        except ArealError as error:
            raise ConfigError(
                f"called with completion {completion[:60]!r} for the first training row: {error}",
                fix=error.fix or "mend the reward, or rollout.reward_timeout_seconds if it needs longer",
            ) from error
        seconds = round(time.perf_counter() - started, 3)
        facts = {"completion": completion, "value": value, "components": parts, "seconds": seconds}
        if name:
            found.facts.setdefault("rewards", {})[name] = facts
        else:
            found.facts["reward"] = facts


def _check_graphs(config: PPOConfig, found: Rehearsal) -> None:
    """Refuse captured decode steps where there are none before a model is built; layers that forbid them show later."""
    if config.rollout.engine != "embedded" or config.engine.cuda_graphs != "on":
        return
    chosen = [name for name in (config.engine.device, config.actor.device) if name != "auto"]
    device = (chosen[0] if chosen else accelerator() or "cpu").partition(":")[0]
    if device != "cuda":
        found.add("engine.cuda_graphs", f"is 'on', but the engine computes on {device!r} here", "set it to 'auto'")
    elif config.actor.router_replay:
        found.add(
            "engine.cuda_graphs",
            "is 'on', but the experts that routers choose are recorded token by token (actor.router_replay)",
            "set one of the two to its default",
        )


def _check_memory(config: PPOConfig | RowsConfig, found: Rehearsal) -> None:
    """Compare the estimate with the machine's memory; that of servers and of other ranks is not this one's."""
    if config.archon is not None and not config.archon.parallel.is_single:
        return
    try:
        shape = model_shape(read_model_config(config.model))
    except ConfigError:
        return
    if isinstance(shape, str):
        return
    items = estimate(config, shape)
    device = accelerator() if config.actor.device == "auto" else config.actor.device.partition(":")[0]
    host = [item for item in items if device in ("", "cpu") or "host memory" in item.formula]
    places = [("this machine's memory", host_memory(), host)]
    if device == "cuda":
        import torch

        if torch.cuda.is_available():
            on_device = [item for item in items if item not in host]
            places.append(("the GPU's memory", torch.cuda.get_device_properties(0).total_memory, on_device))
    for what, size, consumers in places:
        total = sum(item.num_bytes for item in consumers)
        certain = [item for item in consumers if item.name not in _UNCERTAIN]
        needed = sum(item.num_bytes for item in certain)
        if size is None or total <= size:
            continue
        if needed > size:
            parts = ", ".join(f"{item.name} {item.num_bytes / _GIB:.1f}" for item in certain)
            found.add(
                "model",
                f"needs {needed / _GIB:.1f} GiB and {what} has {size / _GIB:.1f} GiB ({parts} GiB), before activations",
                "use actor.lora, actor.dtype=bfloat16, a smaller model, or several processes (archon, `areal plan`)",
            )
        else:
            found.notes.append(
                f"up to {total / _GIB:.1f} GiB are needed and {what} has {size / _GIB:.1f} GiB: full micro-batches may "
                f"not fit; lower actor.max_tokens_per_micro_batch or engine.max_batch_size"
            )


def shown(text: str) -> str:
    """Return a text for people, cut in the middle when it is long."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
