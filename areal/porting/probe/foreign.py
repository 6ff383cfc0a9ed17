"""Runs modeling code that no library has, under module names of its own. Only for code that is trusted."""

from __future__ import annotations

import importlib
import inspect
import sys
import types
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedConfig, PreTrainedModel

from areal.porting.probe.library import quiet
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel", "ForLanguageModeling", "LM")


def load_modules(files: Sequence[Path], folders: Sequence[Path]) -> list[types.ModuleType]:
    """Imports the files as modules of one new package; imports of each other's files work, relative or plain.

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
    """The causal model: a class of `names`, else the only one that is named or built like one.

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
    headed = [cls for cls in models.values() if _has_head(cls)]
    if len(headed) == 1:
        return headed[0]
    listed = ", ".join(models) or "none"
    raise SubjectError(
        f"no causal language model found in {', '.join(str(module.__file__) for module in modules)}; models there: "
        f'{listed}. Name it in config.json: "architectures": ["XForCausalLM"].'
    )


def find_config_class(modules: Sequence[types.ModuleType], model_class: Any, config: dict[str, Any], name: str) -> Any:
    """The config class: `name`, else the model's, else the one of the model type, else one made of config.json."""
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
    """Classes that the foreign package defines, those of files it imports from itself included."""
    package = modules[0].__name__.split(".")[0]
    own = [module for name, module in sys.modules.items() if name.split(".")[0] == package]
    found = [cls for module in (*modules, *own) for _, cls in inspect.getmembers(module, inspect.isclass)]
    files = {getattr(module, "__file__", None) for module in own}
    return [cls for cls in dict.fromkeys(found) if getattr(sys.modules.get(cls.__module__), "__file__", None) in files]


def _has_head(cls: type) -> bool:
    return any(name in vars(cls) for name in ("lm_head", "get_output_embeddings", "_tied_weights_keys"))


@contextmanager
def _plain_imports(folders: Sequence[Path]) -> Iterator[None]:
    """Lets the files import each other by plain names, and forgets these names afterwards."""
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
