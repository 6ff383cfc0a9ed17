"""The installed transformers: which causal models it has, by what names, and how to keep its advice to itself."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import json
import math
import os
import sys
import types
import warnings
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


NUM_NEAREST = 3


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A decoder architecture under analysis: its two classes, and the files that hold them."""

    model_type: str
    architecture: str
    """Class name of the causal model, "LlamaForCausalLM"."""
    config_class: Any
    model_class: Any
    source: str
    """"transformers 5.23.0", or the folder."""
    source_files: tuple[Path, ...]
    """Modeling files first, then configuration files; flattened ones, never `modular_*`."""
    raw_config: dict[str, Any] | None = None
    """Content of config.json where the source has one."""
    installed: bool = True
    """Whether the classes are those of the installed transformers."""


class UnknownTypeError(SubjectError):
    """No model type of that name. `nearest`: names that are alike."""

    def __init__(self, name: str, nearest: tuple[str, ...]) -> None:
        hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
        super().__init__(
            f"unknown model_type {name!r} in transformers {transformers.__version__}{hint}. Name one of these, or give "
            "a folder with config.json and its modeling file."
        )
        self.name = name
        self.nearest = nearest


def find_type(name: str) -> str:
    """Return the model type of the installed transformers that a user means by `name`. Raises `UnknownTypeError`."""
    if name in CONFIG_MAPPING_NAMES:
        return name
    plain = _plain(name)
    for known in CONFIG_MAPPING_NAMES:
        if _plain(known) == plain:
            return str(known)
    for known, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        if name == architecture:
            return str(known)
    raise UnknownTypeError(name, nearest_types(name))


def nearest_types(name: str) -> tuple[str, ...]:
    """Return the causal model types with similar names, the best first."""
    plain = _plain(name)
    known = {_plain(model_type): str(model_type) for model_type in CONFIG_MAPPING_NAMES}
    starting = sorted((key for key in known if key.startswith(plain)), key=len)
    close = difflib.get_close_matches(plain, known, n=2 * NUM_NEAREST, cutoff=0.5)
    ordered = [known[key] for key in dict.fromkeys([*starting, *close])]
    causal = [model_type for model_type in ordered if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    return tuple(dict.fromkeys([*causal, *ordered]))[:NUM_NEAREST]


def installed(model_type: str, raw_config: dict[str, Any] | None = None) -> Subject:
    """Return the causal model of a type of the installed transformers. Raises `SubjectError` where it has none to
    analyse."""
    config_class = CONFIG_MAPPING[model_type]
    _refuse_wrapper(model_type, config_class)
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type)
    if architecture is None:
        raise SubjectError(f"{model_type} has no causal language model in transformers {transformers.__version__}.")
    model_class = getattr(transformers, architecture)
    if model_class.config_class in (getattr(config_class, "sub_configs", None) or {}).values():
        config_class = model_class.config_class
    return Subject(
        model_type=str(config_class.model_type or model_type),
        architecture=model_class.__name__,
        config_class=config_class,
        model_class=model_class,
        source=f"transformers {transformers.__version__}",
        source_files=files_of(model_class, config_class),
        raw_config=raw_config,
    )


def files_of(*classes: Any) -> tuple[Path, ...]:
    """Return the files that define the classes, without repetition."""
    return tuple(dict.fromkeys(Path(inspect.getfile(cls)) for cls in classes))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep advice about unusual configs, warnings and progress bars to itself."""
    verbosity = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    if verbosity == transformers.logging.CRITICAL and not bars:  # changing it costs a millisecond
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
        return
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if bars:
            transformers.logging.enable_progress_bar()


def _refuse_wrapper(model_type: str, config_class: Any) -> None:
    """Refuse multimodal wrappers and encoder-decoders, which are not decoders; the text part of a wrapper often is."""
    try:
        with quiet():
            config = config_class()
    except Exception:  # noqa: BLE001 - foreign constructors fail in any way; nothing to check then
        return
    if getattr(config, "is_encoder_decoder", False):
        raise SubjectError(f"{model_type} is an encoder-decoder; only decoders can be analysed.")
    text = config.get_text_config(decoder=True)
    if text is not config and text.model_type in CONFIG_MAPPING_NAMES:
        causal = text.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        advice = f"analyse its text model: {text.model_type}" if causal else "its text model has no causal head"
        raise SubjectError(f"{model_type} is a wrapper around several models; {advice}.")


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


# -------------------------------------------------------------------------------------------------------------- foreign

# Runs modeling code that no library has, under module names of its own. Only for code that is trusted.


CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForLanguageModeling", "LM")


def load_modules(files: Sequence[Path], folders: Sequence[Path]) -> list[types.ModuleType]:
    """Import the files as modules of one new package; imports of each other's files work, relative or
    plain.

    Raises `SubjectError` with the file and the error when one does not import.
    """
    key = zlib.crc32("|".join(str(folder.resolve()) for folder in folders).encode())
    package = types.ModuleType(f"areal_foreign_{key:08x}")
    package.__path__ = [str(folder) for folder in folders]
    for name in [name for name in sys.modules if name.split(".")[0] == package.__name__]:
        del sys.modules[name]
    sys.modules[package.__name__] = package
    loaded = []
    with _plain_imports(folders), quiet():
        importlib.invalidate_caches()
        for file in files:
            try:
                loaded.append(importlib.import_module(f"{package.__name__}.{file.stem}"))
            except (Exception, SystemExit) as error:
                raise SubjectError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return loaded


def find_model_class(modules: Sequence[types.ModuleType], names: Sequence[str]) -> Any:
    """Return the causal model: a class of `names`, else the only one that is named or built like one.

    Raises `SubjectError` with the classes that there are.
    """
    models = {cls.__name__: cls for cls in _classes(modules) if issubclass(cls, PreTrainedModel)}
    for name in names:
        if name in models:
            return models[name]
    for ending in CAUSAL_ENDINGS:
        fitting = [cls for name, cls in models.items() if name.endswith(ending)]
        if len(fitting) == 1:
            return fitting[0]
    head = {"lm_head", "get_output_embeddings", "_tied_weights_keys"}
    headed = [cls for cls in models.values() if head & vars(cls).keys()]
    if len(headed) == 1:
        return headed[0]
    listed = ", ".join(models) or "none"
    raise SubjectError(
        f"no causal language model found in {', '.join(str(module.__file__) for module in modules)}; models there: "
        f'{listed}. Name it in config.json: "architectures": ["XForCausalLM"].'
    )


def find_config_class(modules: Sequence[types.ModuleType], model_class: Any, config: dict[str, Any], name: str) -> Any:
    """Return the config class: `name`, else the model's, else the one of the model type, else one made of
    config.json."""
    classes = {cls.__name__: cls for cls in _classes(modules) if issubclass(cls, PreTrainedConfig)}
    if name in classes:
        return classes[name]
    declared = getattr(model_class, "config_class", None)
    if declared is not None and declared is not PreTrainedConfig:
        return declared
    fitting = [cls for cls in classes.values() if cls.model_type == config.get("model_type")]
    if len(fitting) == 1 or len(classes) == 1:
        return (fitting or list(classes.values()))[0]
    generic = type("ConfigOfFile", (PreTrainedConfig,), {"model_type": str(config.get("model_type", ""))})
    if declared is None:
        model_class.config_class = generic
    return generic


def _classes(modules: Sequence[types.ModuleType]) -> list[Any]:
    """Return the classes that the foreign package defines, those of files it imports from itself included."""
    package = modules[0].__name__.split(".")[0]
    own = [module for name, module in sys.modules.items() if name.split(".")[0] == package]
    found = [cls for module in (*modules, *own) for _, cls in inspect.getmembers(module, inspect.isclass)]
    files = {getattr(module, "__file__", None) for module in own}
    return [cls for cls in dict.fromkeys(found) if getattr(sys.modules.get(cls.__module__), "__file__", None) in files]


@contextmanager
def _plain_imports(folders: Sequence[Path]) -> Iterator[None]:
    """Let the files import each other by plain names, and forgets these names afterwards."""
    before = set(sys.modules)
    places = [str(folder) for folder in folders]
    sys.path[:0] = places
    try:
        yield
    finally:
        del sys.path[: len(places)]
        for name in set(sys.modules) - before:
            origin = getattr(sys.modules[name], "__file__", None)
            if "." not in name and origin and any(origin.startswith(place) for place in places):
                sys.modules[f"{name}@{places[0]}"] = sys.modules.pop(name)


# -------------------------------------------------------------------------------------------------------------- nearest

# Which families of the installed transformers a config resembles, and in which fields it differs.


NUM_FAMILIES = 3


def nearest_families(config: dict[str, Any], *, count: int = NUM_FAMILIES) -> list[dict[str, Any]]:
    """Return the families with the most alike config fields, best first; rare fields count more.

    Each: {"model_type": ..., "differences": [{"field", "theirs", "ours"}]}, theirs from the config and ours the
    family's default; None where one lacks the field.
    """
    families = family_fields()
    frequency = Counter(name for fields in families.values() for name in fields)
    common = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    theirs = {name: value for name, value in config.items() if name not in common | {"auto_map", "torch_dtype"}}

    def weight(name: str) -> float:
        return math.log(1 + len(families) / (1 + frequency[name]))

    def score(model_type: str) -> float:
        ours = families[model_type]
        shared = sum(weight(name) for name in theirs if name in ours)
        return shared / sum(weight(name) for name in {*theirs, *ours})

    best = sorted(families, key=lambda model_type: (-score(model_type), len(model_type), model_type))[:count]
    return [{"model_type": each, "differences": differences(theirs, families[each])} for each in best]


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the fields that only one side has, then fields with another value, in the order of the config."""
    alone = [name for name in theirs if name not in ours]
    changed = [name for name in theirs if name in ours and theirs[name] != ours[name]]
    absent = [name for name in ours if name not in theirs]
    return [{"field": name, "theirs": theirs.get(name), "ours": ours.get(name)} for name in (*alone, *absent, *changed)]


@functools.cache
def family_fields() -> dict[str, dict[str, Any]]:
    """Return the config fields and defaults of every causal model type, without those that all configs have."""
    common = set(PreTrainedConfig().to_dict()) - {"tie_word_embeddings"}
    found: dict[str, dict[str, Any]] = {}
    with quiet():
        for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            try:
                config = CONFIG_MAPPING[model_type]()
            except Exception:  # noqa: BLE001 - defaults that contradict each other: no family to resemble
                continue
            declared = {*inspect.signature(type(config)).parameters, *type(config).attribute_map}
            content = json.loads(json.dumps(config.to_dict(), default=str))  # as config.json would hold it
            found[str(model_type)] = {
                name: value
                for name, value in content.items()
                if name not in common and (name in declared or value is not None)
            }
    return found


# --------------------------------------------------------------------------------------------------------------- folder

# Sources with files of their own: a checkpoint folder, a config.json, modeling code that no library has.


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
    """Return the subject of a folder or config.json, with modeling code from `modeling` or the folder.

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
    modules = load_modules(files, folders)
    mapped = {str(key): str(value).split(".")[-1] for key, value in (config.get("auto_map") or {}).items()}
    names = [*(config.get("architectures") or []), *(mapped[key] for key in mapped if key == "AutoModelForCausalLM")]
    model_class = find_model_class(modules, names)
    config_class = find_config_class(modules, model_class, config, mapped.get("AutoConfig", ""))
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
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SubjectError(f"{path} is not a readable config.json: {error}") from error
    if not isinstance(content, dict):
        raise SubjectError(f"{path} holds a {type(content).__name__} instead of an object.")
    return content


# -------------------------------------------------------------------------------------------------------------- subject

# What is analysed: a causal language model of `transformers`, or of a folder with its own code.


__all__ = ["ModelingError", "Subject", "UnknownConfigError", "UnknownTypeError", "UntrustedSourceError", "resolve"]


def resolve(source: str, *, modeling: Path | None = None, trust: bool = False) -> Subject:
    """Find the classes that `source` names.

    source: a model_type of the installed transformers (dashes and capitals do not matter), a class name, a checkpoint
    folder or a config.json; with code of its own in the folder (`auto_map`) or in `modeling`. Such code runs only with
    `trust`.

    Raises `SubjectError` where there is nothing to analyse: unknown type, code that is not trusted, no causal model,
    an encoder, a multimodal wrapper.
    """
    path = Path(source).expanduser()
    if path.suffix == ".json" or path.is_dir() or modeling is not None:
        return resolve_folder(path, modeling=modeling, trust=trust)
    if os.sep in source:
        raise SubjectError(f"{source} is neither a folder nor a config.json; expected one of these, or a model_type.")
    return installed(find_type(source))
