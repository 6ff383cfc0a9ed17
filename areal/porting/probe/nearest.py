"""Which proven families an unknown model type, or its config, is most like: by name, and by the fields of the config.

    nearest_families("qwen4")[0].model_type                                  # "qwen3"
    nearest_families("qwen4", {"num_experts": 64, ...})[0].model_type        # "qwen3_moe"

Only families that areal can make are worth naming: those of `areal.porting.proven` and of the registry. Reads files;
neither torch nor transformers is imported.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from areal.models.config_fields import HARMLESS_FIELDS, TOKEN_FIELDS
from areal.models.registry import MODELS
from areal.porting.probe.catalog import installed_catalog
from areal.porting.proven import PROVEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUM_NEAREST: Final = 3
ALIKE: Final = 0.5
"""Similarity from which a name alone is worth naming."""
_NAME_WEIGHT: Final = 0.4
"""Share of the name where there are fields as well: authors reuse their own architecture more than that of others."""
_VALUE_WEIGHT: Final = 0.1
_SHOWN: Final = 3
"""Fields that a reason names."""
_NOT_COMPUTED: Final = frozenset({*HARMLESS_FIELDS, *TOKEN_FIELDS, "model_type", "auto_map", "initializer_range"})
_TODAYS_SPELLING: Final = {"rope_scaling": "rope_parameters", "rope_theta": "rope_parameters"}


@dataclass(frozen=True, kw_only=True)
class NearFamily:
    """One proven family, and how near it is."""

    model_type: str
    score: float
    """0 .. 1, of name and fields together."""
    name: float
    """Similarity of the names, 0 .. 1."""
    shared: tuple[str, ...] = ()
    """Fields that both configs have, the rarest first."""
    differences: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """[{"field", "theirs", "ours"}]: theirs from the config, ours the family's default; None where one lacks it."""
    lacks: tuple[str, ...] = ()
    """Fields that only the config has."""
    adds: tuple[str, ...] = ()
    """Fields that only the family has."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields, and why the family is near in one line."""
        fields = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**fields, "reason": self.reason}

    @property
    def reason(self) -> str:
        """Why the family is near, and what is different.

        Example: "a similar name; 9 shared fields, e.g. head_dim, rms_norm_eps; lacks use_mystery; has besides
        layer_types".
        """
        parts = ["a similar name"] if self.name >= ALIKE else []
        if self.shared:
            parts.append(f"{len(self.shared)} shared fields, e.g. {_some(self.shared)}")
        parts += [f"lacks {_some(self.lacks)}"] if self.lacks else []
        parts += [f"has besides {_some(self.adds)}"] if self.adds else []
        return "; ".join(parts) or "nothing in common"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return f"{', '.join(names[:_SHOWN])}{f' and {more} more' if more > 0 else ''}"


def proven_types() -> tuple[str, ...]:
    """Return the model types that areal can make or has, sorted."""
    return tuple(sorted({*PROVEN, *MODELS}))


def nearest_families(
    name: str, config: Mapping[str, Any] | None = None, *, count: int = NUM_NEAREST
) -> list[NearFamily]:
    """Return the nearest proven families, best first; without a config only those with a similar name, maybe none."""
    if not config:
        by_name = sorted(proven_types(), key=lambda known: (-_similarity(name, known), _distance(name, known), known))
        found = [
            NearFamily(model_type=each, score=_similarity(name, each), name=_similarity(name, each)) for each in by_name
        ]
        return [near for near in found if near.name >= ALIKE][:count]
    families = _fields_of_families()
    frequency = Counter(each for fields in families.values() for each in fields)
    theirs = {_TODAYS_SPELLING.get(each, each): value for each, value in config.items() if each not in _NOT_COMPUTED}

    def weight(each: str) -> float:
        return math.log(1 + len(families) / (1 + frequency[each]))

    found = []
    for model_type, ours in families.items():
        shared = sorted(theirs.keys() & ours.keys(), key=lambda each: (-weight(each), each))
        total = sum(map(weight, {*theirs, *ours}))
        fields = sum(map(weight, shared)) / total if total else 0.0
        equal = sum(theirs[each] == ours[each] for each in shared) / len(shared) if shared else 0.0
        alike = _similarity(name, model_type)
        score = _NAME_WEIGHT * alike + _VALUE_WEIGHT * equal + (1 - _NAME_WEIGHT - _VALUE_WEIGHT) * fields
        found.append(
            NearFamily(
                model_type=model_type,
                score=round(score, 4),
                name=round(alike, 4),
                shared=tuple(shared),
                differences=_differences(theirs, ours),
                lacks=tuple(each for each in theirs if each not in ours),
                adds=tuple(each for each in ours if each not in theirs),
            )
        )
    found.sort(key=lambda near: (-near.score, _distance(name, near.model_type), near.model_type))
    return found[:count]


def nearest_names(name: str, known: Sequence[str], *, count: int = NUM_NEAREST) -> list[str]:
    """Return the names that are alike, the best first."""
    best = sorted(known, key=lambda each: (-_similarity(name, each), _distance(name, each), each))
    return [each for each in best[:count] if _similarity(name, each) >= ALIKE]


def plain(name: str) -> str:
    """Return the letters and digits of a name in lower case: how `Qwen3-MoE` and `qwen3_moe` are the same type."""
    return "".join(character for character in name.lower() if character.isalnum())


def _similarity(name: str, other: str) -> float:
    """Return how alike two names are, 0 .. 1: in a third each by characters, letters and a common beginning.

    Example: qwen4_moe and qwen3_moe have 7 of 8 characters in common, all letters, and begin with the same 4 of 8
    characters, so 0.79; qwen3 has 0.71.
    """
    left, right = plain(name), plain(other)
    if not left or not right:
        return 0.0
    letters = ("".join(filter(str.isalpha, left)), "".join(filter(str.isalpha, right)))
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    begin = same / min(len(left), len(right))
    return (
        SequenceMatcher(None, left, right).ratio() + SequenceMatcher(None, letters[0], letters[1]).ratio() + begin
    ) / 3


def _distance(name: str, other: str) -> float:
    """Return how far the first numbers of two names are apart: the family before last is further away than the last."""
    numbers = [re.search(r"\d+", each) for each in (name, other)]
    left, right = (float(number[0]) if number else 0.0 for number in numbers)
    return abs(left - right)


def _fields_of_families() -> dict[str, dict[str, Any]]:
    """Return the fields and defaults of every proven family that the installed transformers has, without those that
    compute nothing."""
    catalog = installed_catalog()
    found = {each: catalog.fields(each) for each in proven_types()}
    return {
        each: {name: value for name, value in fields.items() if name not in _NOT_COMPUTED}
        for each, fields in found.items()
        if fields
    }


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields that only one side has, then fields with another value, in the order of the config."""
    alone = [name for name in theirs if name not in ours]
    changed = [name for name in theirs if name in ours and theirs[name] != ours[name]]
    absent = [name for name in ours if name not in theirs]
    return [{"field": name, "theirs": theirs.get(name), "ours": ours.get(name)} for name in (*alone, *absent, *changed)]
