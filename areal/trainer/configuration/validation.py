"""Check whether a valid configuration can run, from the configuration, tables of names and local files alone.

`validate_run` refuses what would only fail after everything is loaded. No torch, no data; what names stand for is not
imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.algorithm.blocks import block_name
from areal.api import ConfigError, HubError, RegistryError, unknown_name
from areal.dataset.encoding import is_buildable
from areal.dataset.origins import LengthLimit
from areal.hub.download import METADATA, local_folder
from areal.hub.names import find_name
from areal.infra.metrics.trackers.config import TrackersConfig
from areal.models.registry import SCAFFOLDS, WRAPPERS, scaffold_problem
from areal.reward.components import RewardChoice, resolve_components
from areal.trainer.config import DPOConfig, ModelConfig, PPOConfig, RowsConfig
from areal.trainer.configuration.problems import DEFAULT, Problem, raise_all
from areal.trainer.evaluation_config import RULES, metrics_of
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from areal.api import GenerationConfig
    from areal.dataset.config import DatasetConfig
    from areal.trainer.config import SourceConfig

MODULES: Final[dict[str, str]] = {
    "dataset": "areal.dataset.registry",
    "environment": "areal.environment.registry",
    "model": "areal.models.registry",
    "reward": "areal.reward.registry",
    "workflow": "areal.workflow.registry",
}
"""Kind of extension to the module that holds its table (or tables)."""

_ROW_METRICS: Final[dict[str, tuple[str, ...]]] = {
    "sft": ("loss",),
    "dpo": ("loss", "accuracy", "margin"),
    "reward_model": ("loss", "accuracy", "margin"),
}
"""What evaluations of runs on rows measure, by kind of run, as far as one would choose a model by it."""
_DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*|\.[A-Za-z_]\w*)")


def validate_run(config: PPOConfig | RowsConfig, provenance: Mapping[str, str] | None = None) -> None:
    """Check everything about a run that needs neither data nor torch. Raises ConfigError with all problems."""
    if found := find_problems(config, provenance):
        raise_all(found)


def find_problems(config: PPOConfig | RowsConfig, provenance: Mapping[str, str] | None = None) -> list[Problem]:
    """Return everything that `validate_run` raises."""
    found = list(_common_problems(config))
    if isinstance(config, PPOConfig):
        found += _rl_problems(config)
    if isinstance(config, DPOConfig):
        found += _reference_problems(config)
    return [_problem(key, message, provenance) for key, message in found]


def validate_evaluation(
    config: PPOConfig, sets: Sequence[str], provenance: Mapping[str, str] | None = None, *, exported: bool = False
) -> None:
    """Check what an evaluation of `sets` needs, and nothing else. exported: the model will be written first.

    Raises ConfigError with all problems.
    """
    found = [] if exported else list(_model_problems(config))
    for name in sets:
        chosen = config.eval_sets[name]
        if not chosen.dataset.name:
            found.append((f"eval_sets.{name}.dataset.name", "required"))
        elif problem := _dataset_problem(chosen.dataset.name, config.dataset_kind):
            found.append((f"eval_sets.{name}.dataset.name", problem))
        if not chosen.reward and not config.reward:
            found.append((f"eval_sets.{name}.reward", "required: the configuration has no reward to take instead"))
        elif not chosen.reward:
            found += [("reward", problem) for problem in reward_problems(config.reward)]
        found += eval_set_problems(config, name)
    found += _server_problems(config)
    if found:
        raise_all([_problem(key, message, provenance) for key, message in dict(found).items()])


def table(kind: str) -> dict[str, str]:
    """Name to target ("module:object") of one kind; a name with several targets lists them separated by ", "."""
    module = importlib.import_module(MODULES[kind])
    merged: dict[str, list[str]] = {}
    for attribute, value in vars(module).items():
        if not attribute.isupper() or not isinstance(value, Mapping):
            continue
        for name, target in value.items():
            targets = target.values() if isinstance(target, Mapping) else [target]
            known = merged.setdefault(name, [])
            known += [item for item in map(str, targets) if item not in known]
    return {name: ", ".join(merged[name]) for name in sorted(merged)}


def _problem(key: str, message: str | RegistryError, provenance: Mapping[str, str] | None) -> Problem:
    fix = message.fix if isinstance(message, RegistryError) else ""
    return Problem(key=key, where=where_written(key, provenance), message=str(message), fix=fix)


def check_name(kind: str, name: str) -> RegistryError | None:
    """Return what is wrong with a registry name, None when it is known or an importable-looking path.

    Imports nothing it names.
    """
    return check_path(kind, name, table(kind))


def check_path(kind: str, name: str, known: Mapping[str, str]) -> RegistryError | None:
    """Return what is wrong with a name that is in the table `known` or a path; see `check_name`."""
    if name in known:
        return None
    if _DOTTED_PATH.fullmatch(name):
        package = re.split(r"[.:]", name, maxsplit=1)[0]
        if importlib.util.find_spec(package) is None:
            fix = "install it or run where it can be imported"
            return RegistryError(f"{kind} {name!r}: there is no package {package!r}; {fix}", fix=fix)
        return None
    return unknown_name(kind, name, known)


def read_model_config(model: ModelConfig) -> dict[str, Any]:
    """Return the content of config.json: from `model.path`, else `model.init`. Raises ConfigError when neither yields
    one.
    """
    if not model.path:
        return dict(model.init)
    try:
        file = local_folder(model.path, METADATA) / "config.json"
    except HubError as error:
        raise ConfigError(f"model.path: {error}", where=error.where, fix=error.fix) from error
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path: cannot read {file}: {error}; expected a Hugging Face checkpoint folder"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"model.path: {file} holds {type(content).__name__}, expected an object with model_type")
    return content


def max_positions(config: PPOConfig | RowsConfig) -> int | None:
    """Return the model's max_position_embeddings; None where its configuration has none, or cannot be read."""
    try:
        value = read_model_config(config.model).get("max_position_embeddings")
    except ConfigError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def length_limit(config: PPOConfig | RowsConfig, sampling: GenerationConfig | None = None) -> LengthLimit | None:
    """Return the limit of a row that is not the dataset's own: a prompt of RL leaves room for the longest answer.

    sampling: of the rows; None means that of training. Rows of other kinds of run have no limit but `max_length`.
    """
    if not isinstance(config, PPOConfig):
        return None
    context, reason = config.max_seq_len, f"{config.engine_section}.max_seq_len {config.max_seq_len}"
    positions = max_positions(config)
    if positions is not None and positions < context:
        context, reason = positions, f"the model's max_position_embeddings {positions}"
    new = (sampling or config.gconfig).max_new_tokens
    return LengthLimit(tokens=max(0, context - new), reason=f"{reason} - max_new_tokens {new}")


def _common_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str | RegistryError]]:
    yield from _folder_problems(config)
    yield from _model_problems(config)
    yield from _push_problems(config)
    yield from _watched_problems(config)
    yield from _megatron_problems(config)
    datasets: dict[str, DatasetConfig | None] = {"train_dataset": config.train_dataset}
    if isinstance(config, PPOConfig):
        datasets = {dataset_key(name): source.dataset for name, source in config.all_sources.items()}
        datasets |= {f"eval_sets.{name}.dataset": chosen.dataset for name, chosen in config.eval_sets.items()}
    else:
        datasets["valid_dataset"] = config.valid_dataset
    for key, dataset in datasets.items():
        if dataset is None:
            continue
        if not dataset.name:
            known = ", ".join(table("dataset")) or "(none)"
            yield f"{key}.name", f"required; known datasets are {known}, or give an importable loader"
        elif problem := _dataset_problem(dataset.name, config.dataset_kind):
            yield f"{key}.name", problem
        if dataset.max_length is not None and dataset.max_length < 1:
            yield f"{key}.max_length", f"expected null or at least 1, got {dataset.max_length}"
    if config.metrics.trackers != TrackersConfig():
        from areal.infra.metrics.trackers.tracking import problems

        for name, problem in problems(config.metrics.trackers):
            yield f"metrics.trackers.{name}", problem
    if config.actor.lora is not None and importlib.util.find_spec("peft") is None:
        yield "actor.lora", "needs the package peft, which is not installed: pip install 'areal[lora]'"
    for key, low in (("total_train_epochs", 1), ("total_train_steps", 1), ("eval_every_steps", 0), ("eval_rows", 1)):
        value = getattr(config, key, None)
        if value is not None and value < low:
            yield key, f"expected at least {low}, got {value}"


def _megatron_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str]]:
    if config.archon is None or config.archon.engine != "megatron":
        return
    from areal.engine.megatron.checks import config_problems

    for key, (message, fix) in config_problems(config.actor, config.archon).items():
        yield key, f"{message}; {fix}"
    if config.model.implementation != "native":
        yield (
            "model.implementation",
            f"is {config.model.implementation}; archon.engine megatron takes weights of families of ours; write native",
        )


def _folder_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str]]:
    """Yield why the folder of the run cannot be made or written, as far as that is known without trying."""
    keys = ("output_dir",) if config.output_dir else ("experiment_name", "trial_name")
    for key in keys:
        text = getattr(config, key)
        if not text.isprintable():
            yield key, f"is {text!r}, expected printable characters: it is the name of a folder"
            return
        if key != "output_dir" and any(part in {"", ".", ".."} for part in text.split("/")):
            yield key, f"is {text!r}, expected the name of a folder below runs/; set output_dir for another place"
            return
    folder = config.directory
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    if not there.is_dir():
        yield keys[0], f"{folder} cannot be the folder of the run: {there} is not a folder; choose another output_dir"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield keys[0], f"{folder} cannot be written: no permission in {there}; choose another output_dir"


def _dataset_problem(name: str, kind: str) -> str | RegistryError | None:
    if f"{name}_{kind}" in table("dataset"):
        return None  # the loader adds the suffix itself
    return check_name("dataset", name) or _wrong_rows(name, kind)


def _wrong_rows(name: str, kind: str) -> str | None:
    """Registry names end in what their rows are for; rows of another kind would only be refused after loading them."""
    known = table("dataset")
    if name not in known or name.endswith(f"_{kind}"):
        return None
    sibling = f"{name.rpartition('_')[0]}_{kind}"
    hint = f"use {sibling!r}" if sibling in known else f"use one of {', '.join(n for n in known if n.endswith(kind))}"
    return f"{name!r} has rows for another kind of training than {kind!r}; {hint}"


def _model_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str | RegistryError]]:
    model = config.model
    if not model.path and not model.init:
        yield (
            "model.path",
            "required: a checkpoint folder, or org/name@revision of the hub (or describe a new model in model.init)",
        )
        return
    if not model.path and not model.tokenizer_path:
        yield "model.tokenizer_path", "required with model.init: a new model has no tokenizer of its own"
    if model.path and not _may_exist(model.path):
        yield (
            "model.path",
            f"no such folder {model.path!r}; expected a checkpoint folder, or org/name@revision of the hub",
        )
        return
    if model.tokenizer_path and not is_buildable(model.tokenizer_path) and not _may_exist(model.tokenizer_path):
        yield (
            "model.tokenizer_path",
            f"no such folder {model.tokenizer_path!r}; expected a folder, or org/name@revision of the hub",
        )
    try:
        content = read_model_config(model)
    except ConfigError as error:
        yield "model.path", str(error).removeprefix("model.path: ")
        return
    known = table("model")
    if config.kind == "reward_model" and content.get("model_type") in WRAPPERS:
        problem = "a checkpoint of several models, for which there is no layout of reward models"
        yield "model.path", f"model_type is {content['model_type']!r}, {problem}; expected a text model"
    if model.implementation == "native" and content.get("model_type") in SCAFFOLDS:
        yield "model.path" if model.path else "model.init.model_type", scaffold_problem(str(content["model_type"]))
        return
    if model.implementation == "native" and content.get("model_type") not in known:
        where = "model.path" if model.path else "model.init.model_type"
        supported = f"supported are {', '.join(known) or '(none)'}"
        other = ", and all others with model.implementation=transformers"
        if isinstance(config, PPOConfig) and config.rollout.engine == "embedded":
            other += " (`areal-new model` makes a family, which samples faster)"
        yield where, f"model_type is {content.get('model_type')!r}; {supported}{other}"


def _push_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str | RegistryError]]:
    """Yield what would only be found when the run has finished."""
    if config.export.push_to_hub:
        from areal.hub.publishing import check_token, repository_name

        try:
            check_token(repository_name(config.export.push_to_hub))
        except HubError as error:
            yield "export.push_to_hub", f"{error}; {error.fix}"


def _may_exist(path: str) -> bool:
    """Return whether `path` is a folder or a name of the hub; whether the hub has it is found when it is read."""
    return Path(path).is_dir() or find_name(path) is not None


def _reference_problems(config: DPOConfig) -> Iterator[tuple[str, str | RegistryError]]:
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


def _rl_problems(config: PPOConfig) -> Iterator[tuple[str, str | RegistryError]]:
    needs_shared = any(not source.reward for source in config.all_sources.values())
    if not config.learns_from_reward:
        if config.rollout.filter_zero_variance:
            yield "rollout.filter_zero_variance", "without a reward all samples score 0: every prompt would be filtered"
    elif not config.reward and needs_shared:
        known = ", ".join(table("reward")) or "(none)"
        yield (
            "reward",
            f'required; known rewards are {known}, or give an importable path such as "package.module:function"',
        )
    elif config.reward:
        yield from (("reward", problem) for problem in reward_problems(config.reward))
    for name, source in config.sources.items():
        yield from _source_problems(config, name, source)
    if problem := check_name("workflow", config.workflow):
        yield "workflow", problem
    if not config.sources:
        yield from _length_problems("gconfig", config.gconfig, "train_dataset", config.train_dataset, config)
    for name in config.eval_sets:
        yield from eval_set_problems(config, name)
    yield from _objective_problems(config)
    if config.actor.router_replay:
        yield from _router_problems(config.model)
    yield from _quantization_problems(config)
    yield from _teacher_problems(config)
    yield from _server_problems(config)


def _router_problems(model: ModelConfig) -> Iterator[tuple[str, str | RegistryError]]:
    """Yield why there are no routers of ours to give recorded choices to."""
    key, fix = "actor.router_replay", "set actor.router_replay to false"
    if model.implementation == "transformers":
        yield key, f"routers of a model of transformers are not ours to replay; use the native family, or {fix}"
        return
    try:
        content = read_model_config(model)
    except ConfigError:
        return  # the model's own problem
    # Every family names the number of its experts by such a field: num_experts, num_local_experts, n_routed_experts.
    if not any("expert" in name and value for name, value in content.items()):
        yield key, f"model_type {content.get('model_type')!r} has no experts to choose among; {fix}"


def dataset_key(source: str) -> str:
    """Return the key of a source's dataset; "" names the single source of a run."""
    return f"sources.{source}.dataset" if source else "train_dataset"


def _source_problems(config: PPOConfig, name: str, source: SourceConfig) -> Iterator[tuple[str, str | RegistryError]]:
    key = f"sources.{name}"
    if source.reward:
        yield from ((f"{key}.reward", problem) for problem in reward_problems(source.reward))
    if source.workflow and (problem := check_name("workflow", source.workflow)):
        yield f"{key}.workflow", problem
    sampling_key = "gconfig" if source.gconfig is None else f"{key}.gconfig"
    yield from _length_problems(
        sampling_key, source.gconfig or config.gconfig, f"{key}.dataset", source.dataset, config
    )


def reward_problems(reward: RewardChoice) -> Iterator[RegistryError]:
    """Yield what is wrong with the names of the components; imports nothing."""
    for component in resolve_components(reward):
        if isinstance(component.reward, str) and (problem := check_name("reward", component.reward)):
            yield problem


def eval_set_problems(config: PPOConfig, name: str) -> Iterator[tuple[str, str | RegistryError]]:
    """Yield what keeps one set from being evaluated; its dataset's name apart."""
    key, chosen = f"eval_sets.{name}", config.eval_sets[name]
    if chosen.reward:
        yield from ((f"{key}.reward", problem) for problem in reward_problems(chosen.reward))
    if chosen.workflow and (problem := check_name("workflow", chosen.workflow)):
        yield f"{key}.workflow", problem
    if (chosen.workflow or config.workflow) == "outside_sessions":
        yield (
            f"{key}.workflow",
            "required: an evaluation would wait for somebody to open its sessions; name another one",
        )
    if chosen.answer not in RULES and (unknown := check_path("answer rule", chosen.answer, RULES)):
        yield f"{key}.answer", unknown
    if chosen.gconfig is None and chosen.samples > 1 and config.gconfig.greedy:
        yield (
            f"{key}.samples",
            f"{chosen.samples} samples of a row would be the same: the set has no gconfig of its own, and the run's is "
            f"greedy; give it one, or set samples to 1",
        )
    sampling, sampling_key = config.gconfig, "gconfig"
    if chosen.gconfig is not None:
        sampling, sampling_key = chosen.gconfig, f"{key}.gconfig"
    if chosen.gconfig is not None or chosen.dataset.max_length is not None:
        yield from _length_problems(sampling_key, sampling, f"{key}.dataset", chosen.dataset, config)


def _watched_problems(config: PPOConfig | RowsConfig) -> Iterator[tuple[str, str | RegistryError]]:
    """Yield metrics of evaluations that are watched and will never be there."""
    watched = {"export.best_metric": config.export.best_metric}
    if config.early_stop is not None:
        watched["early_stop.metric"] = config.early_stop.metric
    if isinstance(config, PPOConfig):
        known = [f"eval/{name}/{metric}" for name, chosen in config.eval_sets.items() for metric in metrics_of(chosen)]
    else:
        known = [f"eval/{what}" for what in _ROW_METRICS[config.kind]] if config.valid_dataset is not None else []
    for key, metric in watched.items():
        if metric.startswith("eval/") and metric not in known:
            near = did_you_mean(metric, known) or f"there are {', '.join(known) or '(none)'}"
            yield key, f"no evaluation of this run measures {metric!r}: {near}"
        elif metric.startswith("eval/") and not config.eval_every_steps:
            yield key, f"{metric} is measured before and after the run only; set eval_every_steps"


def _server_problems(config: PPOConfig) -> Iterator[tuple[str, str | RegistryError]]:
    """Yield what servers need on this machine before the first one can be started."""
    name = config.rollout.engine
    if name == "embedded":
        return
    if importlib.util.find_spec("aiohttp") is None:
        yield "rollout.engine", f"{name} needs the client's packages: pip install 'areal[servers]'"
    if config.servers.are_given:
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
) -> Iterator[tuple[str, str | RegistryError]]:
    limit, limit_key, new = config.max_seq_len, f"{config.engine_section}.max_seq_len", sampling.max_new_tokens
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


def _objective_problems(config: PPOConfig) -> Iterator[tuple[str, str | RegistryError]]:
    objective = config.objective.build()
    advantage = f"advantage {block_name(objective.advantage)!r} of objective {config.objective.preset!r}"
    if objective.needs_critic and config.critic is None:
        yield "critic", f"required: {advantage} needs values; write `critic: {{}}`"
    elif not objective.needs_critic and config.critic is not None:
        yield "critic", f"{advantage} uses no values; remove the section"
    if objective.needs_group and config.rollout.group_size == 1 and config.learns_from_reward:
        yield (
            "rollout.group_size",
            f"1 leaves nothing to compare: {advantage} is a reward relative to the other samples of the same prompt, "
            f"so it is 0 for all of them and nothing is learned; set rollout.group_size to at least 2, or choose an "
            f"advantage without groups (objective.advantage: reinforce_pp, or gae with a critic)",
        )


def _quantization_problems(config: PPOConfig) -> Iterator[tuple[str, str]]:
    """Yield what is missing where servers sample from a rounded policy."""
    kind, correction = config.servers.quantization, config.objective.build().correction
    if kind == "none" or config.rollout.engine == "embedded":
        return
    if config.rollout.engine != "vllm":
        yield (
            "servers.quantization",
            f"{kind}, and {config.rollout.engine} cannot quantize weights that arrive later; use rollout.engine vllm, "
            f"or none",
        )
    if not correction.weighted:
        yield (
            "objective.correction",
            f"{block_name(correction)!r}, and with servers.quantization {kind} answers come from a rounded policy: "
            f"without importance weights the gradient is biased; use tis (docs/rl-configuration.md)",
        )


def _teacher_problems(config: PPOConfig) -> Iterator[tuple[str, str | RegistryError]]:
    teachers = {} if config.distillation is None else config.distillation.teachers
    for name, teacher in teachers.items():
        if teacher.path and not Path(teacher.path).is_dir():
            yield (
                f"distillation.teachers.{name}.path",
                f"no folder {teacher.path!r}: train or download the teacher first",
            )


def where_written(key: str, provenance: Mapping[str, str] | None) -> str:
    """Return where a key, or else the first key of its section, was written; empty for defaults."""
    known = provenance or {}
    places = [known.get(key, ""), *(origin for name, origin in known.items() if name.startswith(f"{key}."))]
    return next((place for place in places if place and place != DEFAULT), "")
