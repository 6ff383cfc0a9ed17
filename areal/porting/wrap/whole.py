"""A tiny instance of a whole wrapped model, and of its text model alone, with the same weights in both.

The other parts (towers, projectors) are made as small as their configs allow and are never run: only names of their
tensors matter, and that text does not reach them.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from areal.porting.probe.instance import Instance, build, read
from areal.porting.probe.subject import Subject, files_of, installed, quiet
from areal.porting.records import SubjectError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

SECTION: Final = "text_config"
_TABLES: Final = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
)
"""Of `transformers.models.auto.modeling_auto`, those whose classes can have a vocabulary head over text."""
_DEPTH: Final = re.compile(r"(num_.*layers|.*_layers|depth|n_layers?|num_.*blocks|layers)$")
_WIDTH: Final = re.compile(
    r"(hidden_size|.*_dim|intermediate_size|d_model|dim|embed_dim|.*hidden_size|projection_size|vocab_size|codebook_size)$"
)
_HEADS: Final = re.compile(r".*heads$")
_FEW: Final = 2
_LARGE: Final = 128
_SHRINK: Final = 8
_MOST_PARAMETERS: Final = 200_000_000


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """A model type whose config holds that of a text model."""

    subject: Subject
    """The whole."""
    inner: Subject
    """The text model, with a head of its own."""
    sections: dict[str, dict[str, Any]]
    """Configs of the other parts."""
    optional: frozenset[str] = frozenset()
    """Those of them that are null by default: there are checkpoints with these parts and without."""
    default_width: int | None = None
    """Width of the default text model, which configs of other parts repeat."""


def find_wrapped(model_type: str, raw_config: dict[str, Any] | None = None) -> Wrapped | None:
    """Return the whole of a type of the installed transformers and its text model; None for one that is not a wrapper.

    Raises `SubjectError` for a wrapper without a language model that can be analysed.
    """
    config_class: Any = CONFIG_MAPPING[model_type]
    try:
        with quiet():
            default = config_class()
    except Exception:  # noqa: BLE001 - foreign constructors fail in any way; no wrapper that could be looked at
        return None
    text = getattr(default, SECTION, None)
    if not isinstance(text, PreTrainedConfig) or getattr(default, "is_encoder_decoder", False):
        return None
    given = (raw_config or {}).get(SECTION)
    inner_type = str((given or {}).get("model_type") or text.model_type)
    if inner_type not in CONFIG_MAPPING_NAMES:
        raise SubjectError(f"{model_type} holds a text model of the unknown type {inner_type!r}.")
    model_class = _whole_class(model_type, type(text), raw_config or {})
    subject = Subject(
        model_type=model_type,
        architecture=model_class.__name__,
        config_class=config_class,
        model_class=model_class,
        source=f"transformers {transformers.__version__}",
        source_files=files_of(model_class, config_class),
    )
    inner = text_subject(inner_type, given)
    sections = {
        name: value.to_dict()
        for name, value in vars(default).items()
        if isinstance(value, PreTrainedConfig) and name != SECTION
    }
    declared: Mapping[str, Any] = getattr(config_class, "sub_configs", {})
    optional = [name for name in declared if name != SECTION and getattr(default, name, None) is None]
    try:
        sections |= {name: declared[name]().to_dict() for name in optional}
    except Exception:  # noqa: BLE001 - a class without a default of its own: then null is what was proven
        optional = []
    width = getattr(text, "hidden_size", None)
    return Wrapped(subject=subject, inner=inner, sections=sections, optional=frozenset(optional), default_width=width)


def text_subject(model_type: str, raw_config: dict[str, Any] | None = None) -> Subject:
    """Return the causal model of a text type. Raises `SubjectError` for one that has none."""
    return installed(model_type, raw_config)


def _whole_class(model_type: str, text_class: Any, raw_config: Mapping[str, Any]) -> Any:
    """Return the class of the whole: that of config.json, else the first that transformers lists for language."""
    listed = [getattr(modeling_auto, table, {}).get(model_type) for table in _TABLES]
    names = [*(raw_config.get("architectures") or ()), *listed]
    for name in names:
        for each in (name,) if isinstance(name, str) else name or ():
            found = getattr(transformers, each, None)
            if found is not None and found.config_class is not text_class and hasattr(found, "forward"):
                return found
    raise SubjectError(f"{model_type} has no model with a vocabulary head in transformers {transformers.__version__}.")


# ------------------------------------------------------------------------------------------------------ other parts


def with_small_parts(wrapped: Wrapped, text: Mapping[str, Any], *, narrow: bool = True) -> Wrapped:
    """Return it with the other parts as small as the whole still builds with around `text`.

    narrow: reduce widths as well as numbers of layers; some parts cannot be saved then.
    """
    small = wrapped
    for name, config in wrapped.sections.items():
        trials = (
            replace(small, sections={**small.sections, name: _scaled({**config, **fitted}, **how)})
            for fitted in fitted_sizes(config, wrapped.default_width, text.get("hidden_size"))
            for how in (_NARROWEST if narrow else _DEEPEST)
        )
        found = next((each for each in trials if _builds(each.subject, whole_content(each, text))), None)
        small = found or _narrowed(small, text, name)
    return small


def fitted_sizes(config: Mapping[str, Any], before: int | None, now: int | None) -> Iterator[dict[str, int]]:
    """Yield sizes of a part that follow from the width of the text model, before and now: some parts have to end in
    that width, and some have a quarter of it inside (Fun-ASR-Nano). One that says nothing where no width is known."""
    if before is None or now is None:
        yield {}
        return
    for shares in ((1,), (1, 4)):
        sizes = {before // share: now // share for share in shares if before % share == now % share == 0}
        yield {name: sizes[value] for name, value in config.items() if type(value) is int and value in sizes}


_NARROWEST: Final[tuple[dict[str, bool], ...]] = (
    {"width": True, "depth": True, "heads": False},
    {"width": True, "depth": True, "heads": True},
    {"width": False, "depth": True, "heads": False},
    {"width": False, "depth": True, "heads": True},
)
_DEEPEST: Final[tuple[dict[str, bool], ...]] = _NARROWEST[2:]


def _scaled(config: Any, *, width: bool, depth: bool, heads: bool) -> Any:
    if not isinstance(config, dict):
        return config
    small = copy.deepcopy(config)
    for name, value in config.items():
        if isinstance(value, dict):
            small[name] = _scaled(value, width=width, depth=depth, heads=heads)
        elif type(value) is not int:
            continue
        elif depth and _DEPTH.match(name) and value > 1:
            small[name] = 1
        elif width and _WIDTH.match(name) and value >= _LARGE and value % _SHRINK == 0:
            small[name] = value // _SHRINK
        elif heads and _HEADS.match(name) and value > _FEW:
            small[name] = _FEW
    return small


def _narrowed(wrapped: Wrapped, text: Mapping[str, Any], name: str) -> Wrapped:
    """Return it with every size of a part reduced by itself, as far as the whole builds with it."""
    small = wrapped
    for field, value in wrapped.sections[name].items():
        if type(value) is int and value > 1:
            for option in (_scaled({field: value}, width=True, depth=True, heads=True),):
                section = {**small.sections[name], **option}
                trial = replace(small, sections={**small.sections, name: section})
                if section != small.sections[name] and _builds(trial.subject, whole_content(trial, text)):
                    small = trial
    return small


def _builds(subject: Subject, config: dict[str, Any]) -> bool:
    try:
        blank(subject, config)
    except SubjectError:
        return False
    return True


def blank(subject: Subject, config: dict[str, Any]) -> Any:
    """Return the model without memory. Raises `SubjectError` where the class refuses the config."""
    hf_config = read(subject, config)
    with quiet(), torch.device("meta"):
        try:
            return subject.model_class(hf_config)
        except Exception as error:  # foreign code fails in any way
            text = " ".join(str(error).split())[:300]
            raise SubjectError(f"{subject.architecture} does not build: {type(error).__name__}: {text}") from error


# -------------------------------------------------------------------------------------------------------- instances


def whole_content(wrapped: Wrapped, text: Mapping[str, Any], **outer: Any) -> dict[str, Any]:
    """Return the content of config.json around that of the text model."""
    own = {name: value for name, value in text.items() if name != "architectures"}
    own["model_type"] = wrapped.inner.model_type
    content = {"model_type": wrapped.subject.model_type, "architectures": [wrapped.subject.architecture]}
    return {**content, **copy.deepcopy(wrapped.sections), **outer, SECTION: own}


def build_pair(
    wrapped: Wrapped, text: Mapping[str, Any], *, alone: Instance | None = None, **outer: Any
) -> tuple[Instance, Instance]:
    """Return the whole and its text model alone, with equal weights in what both have. alone: a text model of before.

    Raises `SubjectError` where one does not build, `UnsupportedError` where the whole does not hold that text model.
    """
    content = whole_content(wrapped, text, **outer)
    count = sum(parameter.numel() for parameter in blank(wrapped.subject, content).parameters())
    if count > _MOST_PARAMETERS:
        raise SubjectError(f"no small instance of {wrapped.subject.architecture}: {count:,} parameters are too many")
    alone = alone or build(wrapped.inner, dict(text))
    whole = build(wrapped.subject, content)
    copy_text(alone, whole)
    return whole, alone


@torch.no_grad()
def copy_text(alone: Instance, whole: Instance) -> None:
    """Give the text model inside the whole the weights of the one alone. Raises `UnsupportedError`."""
    architecture = whole.subject.architecture
    bodies: list[nn.Module] = [alone.model, alone.model.base_model]
    counted = [(body, [each for each in whole.model.modules() if type(each) is type(body)]) for body in bodies]
    own, inside = next(((body, found[0]) for body, found in counted if len(found) == 1), (None, None))
    if own is None or inside is None:
        raise UnsupportedError(
            "a text model of a class of its own inside its wrapper",
            where=architecture,
            detail=f"{len(counted[-1][1])} modules are a {type(bodies[-1]).__name__}",
        )
    state = own.state_dict()
    missing, unexpected = inside.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise UnsupportedError(
            "a text model that is another inside its wrapper",
            where=architecture,
            detail=f"missing {sorted(missing)[:4]}, unexpected {sorted(unexpected)[:4]}",
        )
    theirs, ours = whole.model.get_output_embeddings(), alone.model.get_output_embeddings()
    if theirs is None or ours is None:
        raise UnsupportedError("a wrapper without a vocabulary head", where=architecture, detail="")
    theirs.load_state_dict(ours.state_dict())
