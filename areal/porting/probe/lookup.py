"""What a source names: a model type of the installed transformers, or a folder with its own code; found in files alone.

    locate("GPT-OSS").model_type                     # "gpt_oss"
    locate("checkpoints/novel", trust=True).files    # (checkpoints/novel/modeling_novel.py, ...)

Neither torch nor transformers is imported, so that a source of which nothing can be made is refused at once.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.porting.probe.catalog import installed_catalog
from areal.porting.probe.config_only import describe
from areal.porting.probe.nearest import nearest_families, nearest_names, plain, proven_types
from areal.porting.records import SubjectError
from areal.utils.special_numbers import untagged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.porting.probe.catalog import Catalog


class UnknownTypeError(SubjectError):
    """No model type of that name.

    `nearest`: proven families with a similar name, best first, as JSON. `others`: similar types of transformers that
    are not proven.
    """

    def __init__(self, name: str, catalog: Catalog) -> None:
        self.name = name
        self.nearest = [near.as_json() for near in nearest_families(name)]
        rest = sorted(catalog.causal.keys() - {*proven_types()})
        self.others = nearest_names(name, rest)
        super().__init__(
            f"unknown model_type {name!r}: none of the {len(catalog.types)} of transformers {catalog.version} "
            f"({len(catalog.causal)} of them have a causal language model) is called that, and there is no file or "
            f"folder of that name."
        )


class UnknownConfigError(SubjectError):
    """A config.json of a type that nobody knows, without code.

    `nearest`: proven families with similar fields and names, best first, as JSON (`NearFamily`). `tensors`: what the
    index of the folder lists, None without one (`config_only.describe`)."""

    def __init__(self, path: Path, config: dict[str, Any], catalog: Catalog) -> None:
        self.config = config
        found = describe(path, config)
        self.nearest, self.tensors, self.text_type = found["nearest"], found["tensors"], found["text_type"]
        self.others: list[str] = []
        super().__init__(
            f"{path}: model_type {config['model_type']!r} is none of the {len(catalog.types)} of transformers "
            f"{catalog.version}, and no modeling file is beside it."
        )


class LikeError(SubjectError):
    """A family cannot stand in for the source: it is none itself, or nothing has to be guessed.

    `nearest`: proven families with a similar name where there is none of the name, best first, as JSON."""

    def __init__(self, message: str, nearest: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(message)
        self.nearest = list(nearest)


class ModelingError(SubjectError):
    """A modeling file that was named and is none."""


class UntrustedSourceError(SubjectError):
    """Code that was not declared to be trusted. `files`: what would run."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        names = ", ".join(str(file) for file in files)
        super().__init__(
            f"analysing this architecture runs {names}, which was not declared to be trusted: read the code first."
        )
        self.files = files


@dataclass(frozen=True, kw_only=True)
class NamedSource:
    """What a source names."""

    model_type: str
    """"" where the code has to say it."""
    config: dict[str, Any] | None = None
    """Content of config.json where the source has one."""
    files: tuple[Path, ...] = ()
    """Modeling files, then configuration files, of a type that transformers does not have."""
    folder: Path | None = None


def locate(source: str, *, modeling: Path | None = None, trust: bool = False) -> NamedSource:
    """Find what `source` names: a model_type of the installed transformers (dashes and capitals do not matter), a class
    name, a checkpoint folder or a config.json; with code of its own in the folder (`auto_map`) or in `modeling`.

    The installed transformers go first where they know the type and no `modeling` is given. Raises `SubjectError`.
    """
    path = Path(source).expanduser()
    if path.suffix == ".json" or path.is_dir() or modeling is not None:
        return _in_folder(path, modeling=modeling, trust=trust)
    if os.sep in source:
        raise SubjectError(f"{source} is neither a folder nor a config.json; expected one of these, or a model_type.")
    return NamedSource(model_type=find_type(source))


def find_type(name: str) -> str:
    """Return the model type of the installed transformers that a user means by `name`. Raises `UnknownTypeError`."""
    catalog = installed_catalog()
    if name in catalog.types:
        return name
    for known in catalog.types:
        if plain(known) == plain(name):
            return known
    for known, architecture in catalog.causal.items():
        if name == architecture:
            return known
    raise UnknownTypeError(name, catalog)


def find_family(name: str) -> str:
    """Return the model type of a family that is to stand in for another. Raises `LikeError`."""
    try:
        return find_type(name)
    except UnknownTypeError as error:
        raise LikeError(f"unknown model_type {name!r}.", error.nearest) from error


def _in_folder(path: Path, *, modeling: Path | None, trust: bool) -> NamedSource:
    config, files = read_source(path, modeling=modeling)
    model_type = config.get("model_type")
    catalog = installed_catalog()
    if model_type in catalog.types and modeling is None:
        return NamedSource(model_type=str(model_type), config=config)
    if not files and not isinstance(model_type, str):
        raise SubjectError(f"{path} has model_type {model_type!r} instead of a name, and no modeling file beside it.")
    if not files:
        raise UnknownConfigError(path, config, catalog)
    if not trust:
        raise UntrustedSourceError(files)
    folder = path if path.is_dir() else path.parent
    return NamedSource(model_type=str(model_type or ""), config=config, files=files, folder=folder)


def read_source(path: Path, *, modeling: Path | None) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """Return the content of config.json, and the modeling and configuration files, modeling first; nothing is run.

    Raises `SubjectError` where there is no config.json or a named file is missing.
    """
    folder = path if path.is_dir() else path.parent
    config = read_config(folder / "config.json" if path.is_dir() else path)
    if modeling is not None and not modeling.is_file():
        raise ModelingError(f"file not found: {modeling}; expected the modeling file of the model.")
    named = [str(value).split("--")[-1].split(".")[0] for value in (config.get("auto_map") or {}).values()]
    mapped = [folder / f"{name}.py" for name in named if (folder / f"{name}.py").is_file()]
    beside = sorted([*folder.glob("modeling_*.py"), *folder.glob("configuration_*.py")])
    near = sorted(modeling.parent.glob("configuration_*.py")) if modeling is not None else []
    if modeling is not None:
        files = [modeling, *(file for file in (*near, *beside) if file.stem.startswith("configuration"))]
    else:
        files = mapped or beside
    unique = {file.resolve(): file for file in files}.values()
    ordered = sorted(unique, key=lambda file: (file.stem.startswith("configuration"), file.name))
    return config, tuple(ordered) if any(not file.stem.startswith("configuration") for file in ordered) else ()


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config.json. Raises `SubjectError` when it is none."""
    if not path.is_file():
        raise SubjectError(f"file not found: {path}; expected a model_type, a folder with config.json, or that file.")
    try:
        content = untagged(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SubjectError(f"{path} is not a readable config.json: {error}") from error
    if not isinstance(content, dict):
        raise SubjectError(f"{path} holds a {type(content).__name__} instead of an object.")
    return content
