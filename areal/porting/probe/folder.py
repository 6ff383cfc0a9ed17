"""Sources with files of their own: a checkpoint folder, a config.json, modeling code that no library has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from areal.porting.probe import foreign
from areal.porting.probe.library import Subject, installed
from areal.porting.probe.nearest import nearest_families
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from pathlib import Path

SHOWN_DIFFERENCES = 12


class ModelingError(SubjectError):
    """A modeling file that was named and is none."""


class UnknownConfigError(SubjectError):
    """A config.json of a type that nobody knows, without code.

    `nearest`: [{"model_type", "differences": [{"field", "theirs", "ours"}]}], best first."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.config = config
        self.nearest = nearest_families(config)
        best = self.nearest[0]
        shown = [f"  {row['field']}: {row['theirs']!r} (there {row['ours']!r})" for row in best["differences"]]
        more = len(shown) - SHOWN_DIFFERENCES
        lines = "\n".join([*shown[:SHOWN_DIFFERENCES], *([f"  and {more} more"] if more > 0 else [])])
        super().__init__(
            f"{path}: model_type {config['model_type']!r} is unknown to the installed transformers and no modeling "
            f"file is beside it; nearest family: {best['model_type']}, which differs in\n{lines}"
        )


class UntrustedSourceError(SubjectError):
    """Code that was not declared to be trusted. `files`: what would run."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        names = ", ".join(str(file) for file in files)
        super().__init__(
            f"analysing this architecture runs {names}, which was not declared to be trusted: read the code first."
        )
        self.files = files


def resolve_folder(path: Path, *, modeling: Path | None, trust: bool) -> Subject:
    """The subject of a folder or config.json, with modeling code from `modeling` or the folder.

    The installed transformers go first where they know the model type and no `modeling` is given.
    Raises `SubjectError`.
    """
    config, files = read_source(path, modeling=modeling)
    model_type = config.get("model_type")
    if model_type in CONFIG_MAPPING_NAMES and modeling is None:
        return installed(str(model_type), config)
    if not files and not isinstance(model_type, str):
        raise SubjectError(f"{path} has model_type {model_type!r} instead of a name, and no modeling file beside it.")
    if not files:
        raise UnknownConfigError(path, config)
    if not trust:
        raise UntrustedSourceError(files)
    folders = tuple(dict.fromkeys([*(file.parent for file in files), path if path.is_dir() else path.parent]))
    modules = foreign.load_modules(files, folders)
    mapped = {str(key): str(value).split(".")[-1] for key, value in (config.get("auto_map") or {}).items()}
    names = [*(config.get("architectures") or []), *(mapped[key] for key in mapped if key == "AutoModelForCausalLM")]
    model_class = foreign.find_model_class(modules, names)
    config_class = foreign.find_config_class(modules, model_class, config, mapped.get("AutoConfig", ""))
    return Subject(
        model_type=str(model_type or config_class.model_type or model_class.__name__.lower()),
        architecture=model_class.__name__,
        config_class=config_class,
        model_class=model_class,
        source=str(path),
        source_files=files,
        raw_config=config,
        installed=False,
    )


def read_source(path: Path, *, modeling: Path | None) -> tuple[dict[str, Any], tuple[Path, ...]]:
    """Content of config.json, and the modeling and configuration files, modeling first; nothing is run.

    Raises `SubjectError` where there is no config.json or a named file is missing.
    """
    folder = path if path.is_dir() else path.parent
    config = read_config(folder / "config.json" if path.is_dir() else path)
    if modeling is not None and not modeling.is_file():
        raise ModelingError(f"there is no file {modeling}.")
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
    """Content of a config.json. Raises `SubjectError` when it is none."""
    if not path.is_file():
        raise SubjectError(
            f"there is no file {path}; a source is a model_type, a folder with config.json, or that file."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubjectError(f"{path} is not a readable config.json: {error}") from error
    if not isinstance(content, dict):
        raise SubjectError(f"{path} holds a {type(content).__name__} instead of an object.")
    return content
