"""The installed transformers: which causal models it has, by what names, and how to keep its advice to itself."""

from __future__ import annotations

import difflib
import inspect
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Model type of the installed transformers that a user means by `name`. Raises `UnknownTypeError`."""
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
    """Causal model types with similar names, the best first."""
    plain = _plain(name)
    known = {_plain(model_type): str(model_type) for model_type in CONFIG_MAPPING_NAMES}
    starting = sorted((key for key in known if key.startswith(plain)), key=len)
    close = difflib.get_close_matches(plain, known, n=2 * NUM_NEAREST, cutoff=0.5)
    ordered = [known[key] for key in dict.fromkeys([*starting, *close])]
    causal = [model_type for model_type in ordered if model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    return tuple(dict.fromkeys([*causal, *ordered]))[:NUM_NEAREST]


def installed(model_type: str, raw_config: dict[str, Any] | None = None) -> Subject:
    """The causal model of a type of the installed transformers. Raises `SubjectError` where it has none to analyse."""
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
    """Files that define the classes, without repetition."""
    return tuple(dict.fromkeys(Path(inspect.getfile(cls)) for cls in classes))


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps advice about unusual configs, warnings and progress bars to itself."""
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
    """Multimodal wrappers and encoder-decoders are no decoders; the text part of a wrapper often is."""
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
