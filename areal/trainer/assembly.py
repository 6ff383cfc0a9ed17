"""Build the parts of a run from its configuration: directory, tokenizer, model, rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.dataset.loading import ShuffledRows, load_dataset
from areal.dataset.tokenizers import check_tokenizer, load_tokenizer

if TYPE_CHECKING:
    from areal.api import DatasetKind
    from areal.dataset.config import DatasetConfig
    from areal.trainer.config import ModelConfig, RunConfig


def run_directory(config: RunConfig) -> Path:
    """Where the run writes: output_dir, or runs/<experiment_name>/<trial_name> below the current folder."""
    return Path(config.output_dir) if config.output_dir else Path("runs") / config.experiment_name / config.trial_name


def resolve_device(name: str) -> str:
    """ "auto" becomes the accelerator when there is one, else "cpu"."""
    if name != "auto":
        return name
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator.type if accelerator is not None else "cpu"


def tokenizer_of(config: ModelConfig) -> Any:
    """Return the tokenizer: `tokenizer_path`, else the model's own folder. Raises ConfigError when there is none."""
    return load_tokenizer(config.tokenizer_path or config.path)


def load_model(config: RunConfig, tokenizer: Any) -> Any:
    """Return the model to train, an `areal.api.CausalModel`: from a checkpoint folder, or random weights from
    `model.init` and the run's seed.
    """
    import torch

    library: Any
    if config.model.implementation == "transformers":
        from areal.engine.hf import loading as library
    else:
        from areal import models as library

    # Loaded in float32 whatever the compute dtype: the training engine keeps these as its master weights.
    options: dict[str, Any] = {"dtype": torch.float32, "device": resolve_device(config.actor.device)}
    if config.model.path:
        model = library.from_pretrained(config.model.path, **options)
    elif config.model.init:
        model = library.from_config(config.model.init, seed=config.seed, **options)
    else:
        raise ConfigError("model: set path (a checkpoint folder) or init (the content of a config.json)")
    check_tokenizer(tokenizer, model.args.vocab_size)
    return model


def load_reference(config: RunConfig, tokenizer: Any, *, path: str = "") -> Any:
    """Return a model that stays as it is: the one in `path`, or what the trained model is before its first step; in the
    dtype it is computed with.
    """
    import torch

    model = load_model(replace(config, model=replace(config.model, path=path)) if path else config, tokenizer)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, config.actor.dtype))
    return model


def load_rows(config: DatasetConfig, tokenizer: Any, *, kind: DatasetKind, seed: int) -> ShuffledRows:
    """Return checked rows of one dataset in the run's order; errors name rows and the fix."""
    return ShuffledRows(load_dataset(config, tokenizer, kind=kind), seed=seed, shuffle=config.shuffle)


def steps_in_run(config: RunConfig, *, num_rows: int, batch_size: int) -> int:
    """Training steps: total_train_steps, or what total_train_epochs passes over the rows fill (at least one)."""
    if config.total_train_steps is not None:
        return config.total_train_steps
    return max(1, config.total_train_epochs * num_rows // batch_size)
