"""Find out what `areal eval` is asked to evaluate: a checkpoint folder, a run, a model of the hub, or what a
configuration names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import UsageError
from areal.hub.download import METADATA, fetch
from areal.hub.names import find_name, pinned
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.source import load_config
from areal.trainer.configuration.validation import validate_evaluation
from areal.trainer.hub_sources import pin_sources
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CONFIG: Final = "config.yaml"
_MODEL: Final = "config.json"
_BLOCK: Final = 4096
_BLOCKS: Final = 64


@dataclass(frozen=True, kw_only=True)
class EvalTarget:
    """A model and the sets to evaluate it on."""

    name: str
    """For people: the folder, with the step of a recovery checkpoint."""
    config: PPOConfig
    """Its model.path is the folder of the model, except where `run` says that it has to be exported first."""
    sets: tuple[str, ...]
    """Names of the sets."""
    output: Path
    """Folder of the evaluation."""
    run: Path | None = None
    """Run whose recovery checkpoint is meant; None for a folder that exists."""
    step: int | None = None
    """Step of that checkpoint."""


def resolve_target(
    target: str,
    *,
    config_file: Path | None = None,
    overrides: Sequence[str] = (),
    sets: Sequence[str] = (),
    step: int | None = None,
    output: Path | None = None,
) -> EvalTarget:
    """Return what is to be evaluated. config_file: configuration with eval_sets; None takes the run's that the target
    belongs to. sets: names of sets; () takes all. step: of a run, its recovery checkpoint of that step.

    Raises UsageError when the target is none, ConfigError when the configuration does not fit.
    """
    path = Path(target)
    if path.suffix in (".yaml", ".yml"):
        if config_file is not None or step is not None:
            raise UsageError(f"{target} is a configuration; --config and --step belong to a checkpoint or a run")
        resolved = load_config(path, overrides)
        config = _rl(resolved.config, str(path))
        config = pin_sources(config, {}).config
        name = find_name(config.model.path)
        given = Path(config.model.path) if name is None else fetch(name, METADATA)
        if not (given / _MODEL).is_file():
            raise UsageError(
                f"{path}: model.path is {config.model.path!r}, expected a checkpoint folder with {_MODEL}",
                where=f"{path}: model.path",
                fix=f"give one: areal eval {path} model.path=FOLDER",
            )
        shown = config.model.path
        found = EvalTarget(name=shown, config=config, sets=(), output=_output(given if name is None else Path(shown)))
        return with_sets(found, sets, output, resolved.provenance)
    hub = find_name(target)
    if hub is not None and step is None:
        hub = pinned(hub, "model")
        found_at: tuple[Path | None, Path | None] = None, Path(str(hub))
        files: Path | None = fetch(hub, METADATA)
    else:
        found_at = _locate(path, step)
        files = found_at[1]
    run, model = found_at
    file = config_file or _config_of(path)
    if file is None:
        raise UsageError(
            f"{target} belongs to no run that says on which sets to evaluate it",
            where=target,
            fix=f"give a configuration with eval_sets: areal eval {target} --config FILE.yaml",
        )
    origin = [] if model is None else [f"model.path={json.dumps(str(model))}"]
    resolved = load_config(file, [*origin, *overrides])
    config = _rl(resolved.config, str(file))
    own = ("tokenizer.json", "tokenizer_config.json")
    has_tokenizer = files is not None and any((files / name).is_file() for name in own)
    if has_tokenizer and not any(text.startswith("model.") for text in overrides):
        config = replace(config, model=replace(config.model, tokenizer_path=""))
    if run is None:
        assert model is not None, "_locate returns a run or a model"
        found = EvalTarget(name=str(model), config=config, sets=(), output=_output(model))
    else:
        from areal.trainer.export import find_step

        chosen = find_step(run, step)
        place = run / "eval" / f"step-{chosen:08d}"
        found = EvalTarget(name=f"{run} at step {chosen}", config=config, sets=(), output=place, run=run, step=chosen)
    return with_sets(found, sets, output, resolved.provenance)


def config_file_of(target: str, config_file: Path | None) -> Path | None:
    """Return the configuration whose sets `target` is evaluated on; None when there is none."""
    path = Path(target)
    return config_file or (path if path.suffix in (".yaml", ".yml") else _config_of(path))


def fingerprint(folder: Path) -> str:
    """Return a digest of a checkpoint folder: its config.json, and size and 64 evenly spread blocks of each file of
    weights, which tells large models apart at little cost.
    """
    digest = hashlib.sha256((folder / _MODEL).read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            for index in range(_BLOCKS):
                stream.seek(max(0, size - _BLOCK) * index // (_BLOCKS - 1))
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def _locate(path: Path, step: int | None) -> tuple[Path | None, Path | None]:
    """Return (run, None) for a recovery checkpoint, (None, folder) for a model."""
    if (path / _CONFIG).is_file() and not (path / _MODEL).is_file():
        if step is None and (path / "final" / _MODEL).is_file():
            return None, path / "final"
        return path, None
    if step is not None:
        raise UsageError(f"--step is for runs, and {path} is not one: it has no {_CONFIG}", where=str(path))
    if (path / _MODEL).is_file():
        return None, path
    raise UsageError(
        f"{path} is neither a checkpoint folder (with {_MODEL}), nor a run (with {_CONFIG}), nor a YAML file"
        + ("" if path.exists() else "; there is no such file or folder"),
        where=str(path),
        fix="name the folder of a checkpoint or of a run, or a model of the hub as org/name@revision",
    )


def _config_of(path: Path) -> Path | None:
    """config.yaml of the run that a folder is or belongs to: final/ and exports/step-N are inside one."""
    places = (path, path.parent, path.parent.parent)
    return next((place / _CONFIG for place in places if (place / _CONFIG).is_file()), None)


def _output(model: Path) -> Path:
    file = _config_of(model)
    return (file.parent / "eval" if file is not None else Path("runs", "eval")) / (
        str(model).replace("/", "--") if "@" in model.name else model.resolve().name
    )


def _rl(config: object, where: str) -> PPOConfig:
    if not isinstance(config, PPOConfig):
        raise UsageError(
            f"{where} is of a {getattr(config, 'kind', '?')} run, which has no eval_sets",
            where=where,
            fix="give a configuration of kind rl with eval_sets by --config",
        )
    # A checkpoint is evaluated as it is, in this process: adapters are merged, nothing is split.
    return replace(config, archon=None, critic=None, actor=replace(config.actor, lora=None))


def with_sets(
    found: EvalTarget, sets: Sequence[str], output: Path | None = None, provenance: Mapping[str, str] | None = None
) -> EvalTarget:
    """Return the target with the sets to evaluate, () taking all of its configuration, checked.

    Raises UsageError for an unknown name, ConfigError for what keeps a set from being evaluated.
    """
    known = found.config.eval_sets
    for name in sets:
        if name not in known:
            hint = did_you_mean(name, known) or f"sets are {', '.join(known) or '(none)'}"
            raise UsageError(f"no evaluation set {name!r}: {hint}", where="--sets", fix=hint)
    chosen = tuple(sets) or tuple(known)
    if not chosen:
        raise UsageError(
            "the configuration has no eval_sets",
            where="eval_sets",
            fix="add a section eval_sets: {NAME: {dataset: {name: ...}, reward: ...}}",
        )
    validate_evaluation(found.config, chosen, provenance, exported=found.run is not None)
    return replace(found, sets=chosen, output=output or found.output)
