"""What the fields around a text model do to it: nothing, something that was not proven, or marks tokens of images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from transformers import PreTrainedConfig

from areal.models.config_fields import HARMLESS_FIELDS, MUST_BE_OFF, TOKEN_FIELDS
from areal.models.wrapping import TIED
from areal.porting.probe.instance import make_tokens, read
from areal.porting.records import SubjectError, UnsupportedError
from areal.porting.wrap.proof import difference
from areal.porting.wrap.whole import SECTION, build_pair, whole_content

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.porting.probe.instance import Instance
    from areal.porting.wrap.whole import Wrapped

_TOKEN: Final = re.compile(r".*_token_(id|index|ids)$")
_FOREIGN: Final = re.compile(r"(image|img|video|audio|speech|media|vision|point|time|patch|object)")
_ENDS: Final = re.compile(r"(start|begin|end|bos|eos|boi|eoi|boa|eoa|newline)")
_COMMON: Final = frozenset(PreTrainedConfig().to_dict()) | {*HARMLESS_FIELDS, *MUST_BE_OFF, *TOKEN_FIELDS, TIED}
_PLAIN_TOKEN: Final = 7
_FAR: Final = 1_000_003
"""A token that is in no tiny vocabulary."""


@dataclass(frozen=True, kw_only=True)
class OuterFields:
    """What becomes of the fields around a text model."""

    idle: tuple[str, ...]
    fixed: dict[str, tuple[Any, ...]]
    placeholders: dict[str, int | None]


def sort_fields(wrapped: Wrapped, text: Mapping[str, Any], alone: Instance) -> OuterFields:
    """Try other values of every field around the text model."""
    default = read(wrapped.subject, whole_content(wrapped, text))
    content = default.to_dict()
    aliases = getattr(wrapped.subject.config_class, "attribute_map", None) or {}
    idle: list[str] = []
    fixed: dict[str, tuple[Any, ...]] = {}
    placeholders: dict[str, int | None] = {}
    names = [name for name in content if name not in _COMMON and name not in wrapped.sections and name != SECTION]
    for name in sorted(names):
        value = content[name]
        if _TOKEN.match(name) and (value is None or isinstance(value, int | list)):
            if _is_placeholder(wrapped, text, alone, name, value):
                placeholders[name] = value if isinstance(value, int) else None
                placeholders |= {alias: None for alias, known in aliases.items() if known == name}
                continue
            idle.append(name)
        elif _is_idle(wrapped, text, alone, name, value):
            idle.append(name)
        else:
            fixed[name] = (value,)
    return OuterFields(idle=tuple(idle), fixed=fixed, placeholders=placeholders)


def _is_placeholder(wrapped: Wrapped, text: Mapping[str, Any], alone: Instance, name: str, value: Any) -> bool:
    """Return whether a field's token stands for something other than text: by its name, or because it is not
    embedded as text."""
    if _FOREIGN.search(name) and not _ENDS.search(name):
        return True
    tokens = make_tokens(alone, batch=2, length=12, seed=3)
    tokens[:, 5] = _PLAIN_TOKEN
    try:
        marked = [_PLAIN_TOKEN] if isinstance(value, list) else _PLAIN_TOKEN
        whole, _ = build_pair(wrapped, text, alone=alone, **{TIED: text[TIED], name: marked})
        return difference(whole, alone, [tokens]) > 1.0
    except (SubjectError, UnsupportedError):
        return True


def _is_idle(wrapped: Wrapped, text: Mapping[str, Any], alone: Instance, name: str, value: Any) -> bool:
    """Return whether text logits are the same for another value, as far as one builds."""
    tried = 0
    for other in _others(value):
        try:
            whole, _ = build_pair(wrapped, text, alone=alone, **{TIED: text[TIED], name: other})
            if difference(whole, alone, [make_tokens(alone, batch=2, length=12, seed=3)]) > 1.0:
                return False
        except SubjectError:
            continue
        except UnsupportedError:
            return False
        tried += 1
        if tried == 2:
            break
    return tried > 0


def _others(value: Any) -> Iterator[Any]:
    """Yield other values of a field, plausible ones first."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value * 2 or 2, 3)
    elif isinstance(value, float):
        yield from (value * 1.5 + 0.1, value / 2)
    elif isinstance(value, str):
        yield from ("areal", "relu", "gelu", "full", "default", "max", "mean")
    elif isinstance(value, list):
        yield from (value[:1], [*value, *value[-1:]])
    elif value is None:
        yield from (1, True, "default", [1])
    elif isinstance(value, dict):
        yield from ({}, dict(list(value.items())[:-1]))
