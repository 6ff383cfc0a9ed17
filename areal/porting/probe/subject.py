"""The installed transformers: which causal models it has, by what names, and how to keep its advice to itself."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import types
import warnings
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from areal.porting.probe.lookup import locate
from areal.porting.probe.shims import adapt, older_names
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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


def code_of(subject: Subject) -> dict[str, Any]:
    """Return which modeling files were analysed: auto_map as config.json has it, and the SHA-256 of each
    file, those that others import included."""
    if subject.installed:
        return {}
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in subject.source_files}
    return {"auto_map": dict((subject.raw_config or {}).get("auto_map") or {}), "files": dict(sorted(files.items()))}


def place_in(error: BaseException, files: Sequence[Path]) -> str | None:
    """Return the innermost line of the files that an error came by, "modeling_x.py:12"; None where it met none."""
    known, place = {str(file.resolve()): file.name for file in files}, None
    trace = error.__traceback__
    while trace is not None:
        name = known.get(trace.tb_frame.f_code.co_filename)
        place = place if name is None else f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


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
    with _plain_imports(folders), older_names(), quiet():
        importlib.invalidate_caches()
        for file in files:
            try:
                loaded.append(importlib.import_module(f"{package.__name__}.{file.stem}"))
            except ModuleNotFoundError as error:
                raise _missing(file, error) from error
            except (Exception, SystemExit) as error:
                raise SubjectError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    adapt(each for each in _classes(loaded) if issubclass(each, (PreTrainedConfig, PreTrainedModel)))
    return loaded


def _missing(file: Path, error: ModuleNotFoundError) -> SubjectError:
    """Return what is said of an import that finds nothing: a package to install, or a file to put beside the others."""
    name = error.name or ""
    if name.startswith("areal_foreign_"):
        gone = f"{name.partition('.')[2].replace('.', '/')}.py"
        return SubjectError(
            f"{file} cannot be imported: {file.parent / gone} is missing, which it or a file that it needs imports; "
            "copy all files of the model's repository"
        )
    if name.partition(".")[0] == "transformers":
        version = transformers.__version__
        return SubjectError(f"{file} cannot be imported: transformers {version} has no module {name}.")
    package = name.partition(".")[0] or str(error)
    return SubjectError(f"{file} needs the package {package}, which is not installed: pip install {package}")


def loaded_files(module: types.ModuleType, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files of a foreign package that were imported, by name: those that others import included."""
    package, places = module.__name__.partition(".")[0], {folder.resolve() for folder in folders}
    own = [
        getattr(each, "__file__", None)
        for name, each in list(sys.modules.items())
        if name.partition(".")[0] == package or name.rpartition("@")[2] in map(str, folders)
    ]
    inside = {Path(file).resolve() for file in own if file}
    return tuple(sorted(file for file in inside if any(place in file.parents for place in places)))


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


# -------------------------------------------------------------------------------------------------------------- subject

# What is analysed: a causal language model of `transformers`, or of a folder with its own code.


def resolve(source: str, *, modeling: Path | None = None, trust: bool = False) -> Subject:
    """Find the classes that `source` names, as `locate` says. Code of a stranger runs only with `trust`.

    Raises `SubjectError` where there is nothing to analyse: unknown type, code that is not trusted, no causal model,
    an encoder, a multimodal wrapper.
    """
    found = locate(source, modeling=modeling, trust=trust)
    if not found.files:
        return installed(found.model_type, found.config)
    assert found.config is not None
    assert found.folder is not None
    folders = tuple(dict.fromkeys([*(file.parent for file in found.files), found.folder]))
    modules = load_modules(found.files, folders)
    mapped = {str(key): str(value).split(".")[-1] for key, value in (found.config.get("auto_map") or {}).items()}
    names = [
        *(found.config.get("architectures") or []),
        *(mapped[key] for key in mapped if key == "AutoModelForCausalLM"),
    ]
    model_class = find_model_class(modules, names)
    known = {file.resolve() for file in found.files}
    beside = [file for file in loaded_files(modules[0], folders) if file not in known]
    config_class = find_config_class(modules, model_class, found.config, mapped.get("AutoConfig", ""))
    return Subject(
        model_type=str(found.model_type or config_class.model_type or model_class.__name__.lower()),
        architecture=model_class.__name__,
        config_class=config_class,
        model_class=model_class,
        source=source,
        source_files=(*found.files, *beside),
        raw_config=found.config,
        installed=False,
    )
