"""Turn a `DatasetConfig` into checked rows, in the order in which a run visits them.

load_dataset(DatasetConfig(name="gsm8k_rl"), tokenizer, kind="rl")      # the packaged rows
load_dataset(DatasetConfig(name="gsm8k", path="data/gsm8k", split="test"), tokenizer, kind="rl")
ShuffledRows(dataset, seed=1).row(130)                                 # a pure function of (seed, ordinal)

Ordinals count visits from 0 and never end; epoch e covers ordinals e * len(rows) .. (e + 1) * len(rows) - 1. So a
resumed run sees what it would have seen.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, ConfigError, DataError, RegistryError, load
from areal.dataset.encoding import row_length
from areal.dataset.origins import Fitting, LengthLimit, RowOrigins, origins_of, place_of, remember
from areal.dataset.registry import DATASETS
from areal.dataset.schema import validate_dataset
from areal.utils.logging import getLogger
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from datasets import Dataset

    from areal.api import DatasetKind
    from areal.dataset.config import DatasetConfig, Overlong


def check_options(
    what: str, function: Callable[..., Any], options: Mapping[str, Any], reserved: Collection[str]
) -> None:
    """Raise ConfigError when `options` holds a name that `function` does not take as a keyword.

    what: for the message, e.g. "dataset 'gsm8k_rl'". reserved: parameters that the framework fills in itself.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some callables written in C have no signature: they check their arguments themselves
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        accepted = set(options)
    else:
        accepted = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    accepted -= set(reserved)
    for name in options:
        if name in reserved:
            raise ConfigError(f"{what}: option {name!r} is set by the framework; remove it from the options")
        if name not in accepted:
            known = ", ".join(sorted(accepted)) or "(none)"
            hint = did_you_mean(name, accepted)
            raise ConfigError(f"{what}: unknown option {name!r}: {hint and hint + ' '}it takes {known}")


logger = getLogger(__name__)

_LOADER_PARAMETERS: Final = ("path", "split", "tokenizer", "max_length")


def load_dataset(
    config: DatasetConfig,
    tokenizer: Any,
    *,
    kind: DatasetKind,
    limit: LengthLimit | None = None,
    place_images: Callable[[Dataset, str], Dataset] | None = None,
) -> Dataset:
    """Load and check one split, and deal with rows that are too long as `config.overlong` says.

    kind: what the rows are for; a registry name may leave its suffix out ("gsm8k" is "gsm8k_rl" for kind="rl").
    limit: of a row's tokens, beside `config.max_length`. place_images: puts the tokens of images into the SFT rows of a
    dataset with this name, or measures its prompts with them (`areal.trainer.image_rows`); None for a model of text.
    The result's places and lengths are remembered (`areal.dataset.origins`).

    Raises ConfigError for a missing name, an option the loader does not take, a loader of another kind, or SFT rows
    with images for a model of text;
    RegistryError for an unknown name; DataError with row numbers when rows contradict the schema or none are left.
    """
    name, loader = dataset_loader(config, kind)
    # Without a limit: rows are measured below, where those that are too long can be named, counted and shortened.
    dataset = _called(name, loader, config, tokenizer)
    if not hasattr(dataset, "column_names"):
        raise ConfigError(
            f"dataset {name!r} returned {type(dataset).__name__}, expected datasets.Dataset",
            fix="return datasets.Dataset.from_list(list(rows))",
        )
    validate_dataset(dataset, kind, name)
    if place_images is not None:
        dataset = place_images(dataset, f"dataset {name}")
    elif kind == "sft" and "image_places" in dataset.column_names and any(dataset["image_places"]):
        raise ConfigError(
            f"dataset {name!r} has rows with images, and the model reads text only",
            fix="set model.path to an image-text model (docs/vision.md) and model.implementation to transformers",
        )
    most = config.max_length
    own = None if most is None else LengthLimit(tokens=most, reason=f"max_length {most}")
    tightest = min((each for each in (own, limit) if each is not None), key=lambda each: each.tokens, default=None)
    dataset = fit_rows(
        dataset, kind=kind, overlong=config.overlong, limit=tightest, tokenizer=tokenizer, name=f"dataset {name}"
    )
    logger.info("dataset %s: %d rows of split %s", name, len(dataset), config.split)
    return dataset


def _called(name: str, loader: Callable[..., Any], config: DatasetConfig, tokenizer: Any) -> Any:
    """Call a loader. Raises ConfigError for other parameters than it has, DataError for what code of users raises."""
    arguments = (config.path, config.split, tokenizer, None)
    try:
        inspect.signature(loader).bind(*arguments, **config.options)
    except TypeError as error:
        raise ConfigError(
            f"dataset {name!r} cannot be called: {error}",
            fix=f"define it with the parameters {', '.join(_LOADER_PARAMETERS)}, and one for each of its options",
        ) from error
    try:
        return loader(*arguments, **config.options)
    except ArealError:
        raise
    except (Exception, SystemExit) as error:
        from areal.utils.user_code import blame

        # `datasets` says only that generating failed; what went wrong is the cause.
        generated = type(error).__name__ == "DatasetGenerationError"
        cause = error if not generated or error.__cause__ is None else error.__cause__
        found = blame(cause, loader)
        if found is None:
            raise
        how = "its generator raised" if generated else "its loader raised"
        about = f" for {found.row}" if found.row else ""
        message = f"dataset {name!r}: {how} {found.text}{about}"
        raise DataError(message, where=found.place or name, fix="mend the loader, or what it reads") from error


def fit_rows(
    dataset: Dataset, *, kind: DatasetKind, overlong: Overlong, limit: LengthLimit | None, tokenizer: Any, name: str
) -> Dataset:
    """Return the dataset with rows of at most `limit` tokens, with its origins and what was done (`Fitting`).

    overlong: "filter" leaves longer rows out, and says so in the log; "truncate" shortens them
    (`areal.dataset.limits.truncated_row`) and leaves out those of which nothing to learn would remain; "error" raises.
    name: of the dataset, for messages.

    Raises DataError, with rows and lengths, for overlong rows under "error", and when no row is left.
    """
    known = origins_of(dataset) or RowOrigins(source=name, unit="row", numbers=())
    lengths: Sequence[int | None] = known.lengths
    if limit is not None and len(lengths) != len(dataset):
        lengths = [row_length(row, kind, tokenizer) for row in dataset]
    measured = [length for length in lengths if length is not None]
    fitting = Fitting(
        num_read=len(dataset),
        num_overlong=0,
        num_truncated=0,
        longest=max(measured, default=0),
        limit=None if limit is None else limit.tokens,
        reason="" if limit is None else limit.reason,
    )
    long = [] if limit is None else [i for i, length in enumerate(lengths) if length and length > limit.tokens]
    if limit is None or not long:
        return remember(dataset, replace(known, lengths=lengths, fitting=fitting))
    from areal.dataset.limits import fit_long_rows

    return fit_long_rows(
        dataset,
        long,
        kind=kind,
        overlong=overlong,
        limit=limit,
        tokenizer=tokenizer,
        name=name,
        known=replace(known, lengths=lengths, fitting=fitting),
    )


def dataset_loader(config: DatasetConfig, kind: DatasetKind) -> tuple[str, Callable[..., Any]]:
    """Return the full name of a dataset and its loader, whose options were checked; raises as `load_dataset` does
    before it reads rows."""
    name = config.name
    if not name:
        raise ConfigError(
            f"dataset name is empty; set it to one of {', '.join(sorted(DATASETS))} or an importable path"
        )
    if f"{name}_{kind}" in DATASETS:
        name = f"{name}_{kind}"
    elif name in DATASETS and not name.endswith(f"_{kind}"):
        raise ConfigError(f"dataset {name!r} is not for {kind}; expected a name ending in _{kind}")
    try:
        loader = load("dataset", name, DATASETS)
    except ArealError:
        raise
    except (Exception, SystemExit) as error:
        from areal.utils.user_code import blame

        if (found := blame(error)) is None:
            raise
        raise RegistryError(
            f"dataset {name!r} cannot be loaded: {found.text}", where=found.place, fix=found.fix_of_import
        ) from error
    check_options(f"dataset {name!r}", loader, config.options, _LOADER_PARAMETERS)
    return name, loader


_FINGERPRINT_ROWS = 512
_EPOCHS_KEPT = 2
"""Prompts in flight can straddle one epoch boundary."""


class ShuffledRows:
    """Rows in a new seeded order each epoch, or in file order.

    Example: `ShuffledRows(dataset, seed=1, shuffle=True).row(130)` is row 2 of the third epoch of 64 rows.
    """

    def __init__(
        self,
        dataset: Sequence[Mapping[str, Any]] | Any,
        *,
        seed: int,
        shuffle: bool = True,
        max_rows: int | None = None,
    ) -> None:
        """dataset: anything with `len` and integer indexing that yields mappings; ValueError when it is empty.
        max_rows: visit the first so many only; None visits all.
        """
        if len(dataset) == 0:
            raise ValueError("no rows to visit: the dataset is empty")
        self._dataset = dataset
        self._count = len(dataset) if max_rows is None else min(max_rows, len(dataset))
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Return the number of rows per epoch."""
        return self._count

    def row(self, ordinal: int) -> Mapping[str, Any]:
        """Return the row visited at `ordinal` (>= 0)."""
        row: Mapping[str, Any] = self._dataset[self.row_index(ordinal)]
        return row

    def at(self, index: int) -> Mapping[str, Any]:
        """Return the row with this index in the dataset."""
        row: Mapping[str, Any] = self._dataset[index]
        return row

    def row_index(self, ordinal: int) -> int:
        """Return the index in the dataset of the row visited at `ordinal`."""
        if ordinal < 0:
            raise IndexError(f"ordinal is {ordinal}, expected >= 0")
        epoch, position = divmod(ordinal, self._count)
        if not self._shuffle:
            return position
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(self._count))
            # A string seed is hashed with SHA-512, so neighbouring seeds and epochs give unrelated orders.
            random.Random(f"row order {self._seed} {epoch}").shuffle(order)
            self._orders[epoch] = order
            for old in sorted(self._orders)[:-_EPOCHS_KEPT]:
                self._orders.pop(old, None)
        return order[position]

    def place(self, ordinal: int) -> str:
        """Return the row visited at `ordinal` in words: its index, and its place in the source if known."""
        return self.place_of(self.row_index(ordinal))

    def place_of(self, index: int) -> str:
        """Return the row with this index in the dataset in words."""
        return place_of(self._dataset, index)

    def fingerprint(self) -> str:
        """Return a digest of how many rows there are and of 512 of them, evenly spread (all, if there are no more)."""
        digest = hashlib.sha256(str(len(self)).encode())
        count = min(len(self), _FINGERPRINT_ROWS)
        for number in range(count):
            row = dict(self._dataset[number * len(self) // count])
            digest.update(json.dumps(row, sort_keys=True, default=_in_words).encode())
        return digest.hexdigest()


def _in_words(value: Any) -> str:
    """Return what JSON does not know as a text that is the same in every process: bytes and pictures by their content,
    all else by type only, since its text may hold addresses."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if type(value).__module__.startswith("PIL.") and hasattr(value, "tobytes"):
        return f"{value.mode} {value.size} {hashlib.sha256(value.tobytes()).hexdigest()}"
    return type(value).__name__


def fingerprint_sources(rows: Mapping[str, ShuffledRows]) -> str:
    """Return a digest of the rows of all sources of a run, by name; of the one source "", that of its rows."""
    if "" in rows:
        return rows[""].fingerprint()
    parts = [f"{name}:{source.fingerprint()}" for name, source in sorted(rows.items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
