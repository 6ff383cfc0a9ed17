"""Turns a `DatasetConfig` into a checked `datasets.Dataset`: resolve the loader, call it, validate every row.

load_dataset(DatasetConfig(name="gsm8k_rl"), tokenizer, kind="rl")      # the packaged rows
load_dataset(DatasetConfig(name="gsm8k", path="data/gsm8k", split="test"), tokenizer, kind="rl")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, load
from areal.dataset.options import check_options
from areal.dataset.registry import DATASETS
from areal.dataset.schema import validate_dataset
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from datasets import Dataset

    from areal.api import DatasetKind
    from areal.dataset.config import DatasetConfig

logger = getLogger(__name__)

_LOADER_PARAMETERS: Final = ("path", "split", "tokenizer", "max_length")


def load_dataset(config: DatasetConfig, tokenizer: Any, *, kind: DatasetKind) -> Dataset:
    """Load and check one split.

    kind: what the rows are for; a registry name may leave its suffix out ("gsm8k" is "gsm8k_rl" for kind="rl").
    Raises ConfigError for a missing name, an option the loader does not take or a loader of another kind;
    RegistryError for an unknown name; DataError with row numbers when rows contradict the schema or none are left.
    """
    name = _full_name(config.name, kind)
    loader = load("dataset", name, DATASETS)
    check_options(f"dataset {name!r}", loader, config.options, _LOADER_PARAMETERS)
    dataset = loader(config.path, config.split, tokenizer, config.max_length, **config.options)
    if not hasattr(dataset, "column_names"):
        raise ConfigError(f"dataset {name!r} returned {type(dataset).__name__}, expected datasets.Dataset")
    validate_dataset(dataset, kind, name)
    logger.info("dataset %s: %d rows of split %s", name, len(dataset), config.split)
    return dataset


def _full_name(name: str, kind: DatasetKind) -> str:
    if not name:
        raise ConfigError(
            f"dataset name is empty; set it to one of {', '.join(sorted(DATASETS))} or an importable path"
        )
    if name in DATASETS and not name.endswith(f"_{kind}"):
        raise ConfigError(f"dataset {name!r} is not for {kind}; expected a name ending in _{kind}")
    return f"{name}_{kind}" if f"{name}_{kind}" in DATASETS else name
