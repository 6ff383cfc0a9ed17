"""Arguments that all families share: sizes, special tokens, and rotary position settings. No tensors here.

transformers 5 writes `rope_parameters` (rope_theta, rope_type and partial_rotary_factor inside), flat or with one entry
per layer type; older checkpoints have `rope_theta` beside an optional `rope_scaling`, whose type key was once called
`type`. All spellings become one `RotaryArgs`; `blocks.rotary` turns it into frequencies.
"""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import BaseModelArgs, ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from areal.models.config_fields import ConfigFields
    from areal.models.wrapping import Wrapping


def as_bfloat16(number: float) -> float:
    """Return the nearest number that bfloat16 has, of two the even one: it keeps eight binary digits."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(round(mantissa * 256), exponent - 8)


@dataclass(kw_only=True)
class DecoderArgs(BaseModelArgs, ABC):
    """What the arguments of every family add to `BaseModelArgs`. Nothing here says what a layer computes."""

    initializer_range: float = 0.02
    """Standard deviation of random weights."""
    token_ids: dict[str, Any] = field(default_factory=dict, compare=False)
    """Special token ids of the checkpoint, nulls included, written back on export; no part of the computation."""
    auto_map: dict[str, Any] = field(default_factory=dict, compare=False)
    """Names of the classes in modeling files beside the checkpoint, written back on export; only families that were
    made from such files take any."""
    code_folder: str = field(default="", compare=False)
    """Folder that the checkpoint was loaded from, where it has such files: they go along with what is saved."""
    wrapping: Wrapping | None = field(default=None, compare=False)
    """What is around the model in a checkpoint of several models."""

    def remote_code(self) -> dict[str, Any]:
        """Return the field that names the modeling files, where there are any."""
        return {"auto_map": self.auto_map} if self.auto_map else {}

    def __post_init__(self) -> None:
        """Refuse head counts that no attention can have, and contexts without a second token."""
        if self.max_position_embeddings < 2:
            # Reference implementations broadcast tables of one position over all, and compute something else.
            raise ModelError(
                f"a config of model_type {self.model_type!r} says max_position_embeddings="
                f"{self.max_position_embeddings}; expected room for at least 2 tokens"
            )
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"a config of model_type {self.model_type!r} asks for num_heads={self.num_heads} query heads and "
                f"num_kv_heads={self.num_kv_heads}; expected query heads in equal groups per key-value head"
            )


_ORIGINAL: Final = "original_max_position_embeddings"

ROTARY_TYPES: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "llama3": (frozenset({"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL}), frozenset()),
    "longrope": (frozenset({"factor", "short_factor", "long_factor", _ORIGINAL}), frozenset({"attention_factor"})),
    "proportional": (frozenset(), frozenset({"factor", "partial_rotary_factor"})),
    "yarn": (
        frozenset({"factor", _ORIGINAL}),
        frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    ),
}
"""Rotary type to its required and its optional parameters."""

DEFAULT_THETA: Final = 10000.0
DEFAULT_ROTARY: Final = {"rope_theta": DEFAULT_THETA, "rope_type": "default"}
"""What most families mean by a config without rotary fields."""


@dataclass(frozen=True, kw_only=True)
class RotaryArgs:
    """How positions become rotation angles."""

    theta: float = DEFAULT_THETA
    """Base of the geometric series of wavelengths."""
    rotary_type: str = "default"
    """A key of ROTARY_TYPES."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Parameters of the type, e.g. {"factor": 8.0}: numbers, flags, and lists of numbers for longrope."""
    partial_factor: float = 1.0
    """Part of a head's dimensions that is rotated."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Numbers that a family keeps beside these for purposes of its own, under the names of the config."""

    @property
    def score_factor(self) -> float:
        """Factor that DeepSeek's attention puts on scores beside the table: the squared YaRN temperature of
        mscale_all_dim; 1.0 without that parameter, and for other types."""
        weight, stretch = self.parameters.get("mscale_all_dim"), self.parameters.get("factor", 1.0)
        if self.rotary_type == "default" or not weight or stretch <= 1:
            return 1.0
        return float(0.1 * weight * math.log(stretch) + 1.0) ** 2

    def with_theta(self, theta: float) -> RotaryArgs:
        """Return a copy with another base."""
        return replace(self, theta=theta)

    def rotated_dim(self, head_dim: int) -> int:
        """Return how many dimensions of a head of `head_dim` are rotated."""
        return int(head_dim * self.partial_factor)

    def to_hf_config(self) -> dict[str, Any]:
        """Return the fields of both spellings, so that transformers 4 and 5, and engines built on either, read the
        same."""
        scaling: dict[str, Any] | None = None
        if self.rotary_type != "default":
            scaling = {"rope_type": self.rotary_type, **self.parameters, **self.extra}
        config = {"rope_parameters": self.to_entry(), "rope_scaling": scaling, "rope_theta": self.theta}
        if self.partial_factor != 1.0:
            config["partial_rotary_factor"] = self.partial_factor
        # Where a config class has this field, it goes before the one inside.
        if self.rotary_type == "longrope":
            config[_ORIGINAL] = self.parameters[_ORIGINAL]
        return config

    def to_entry(self) -> dict[str, Any]:
        """Return the content of `rope_parameters`. The part is always said: without it some config classes take
        another."""
        return {
            "partial_rotary_factor": self.partial_factor,
            "rope_theta": self.theta,
            "rope_type": self.rotary_type,
            **self.parameters,
            **self.extra,
        }


def rotary_to_hf(tables: Mapping[str, RotaryArgs | None]) -> dict[str, Any]:
    """Return the fields for configs with one entry per layer type; None for layer types that are not rotated."""
    entries = {name: None if table is None else table.to_entry() for name, table in tables.items()}
    return {"rope_parameters": entries}


def take_rotary(  # noqa: PLR0913 - each is a property of a family that its args state by name
    fields: ConfigFields,
    max_position_embeddings: int | None = None,
    *,
    layer_type: str | None = None,
    types: Collection[str] = tuple(ROTARY_TYPES),
    partial: bool = False,
    default: Mapping[str, Any] | None = None,
    original_length: int | None = None,
    rotated: tuple[str, int] | None = None,
    extra: Collection[str] = (),
    unused: Collection[str] = (),
    unread: Collection[str] = (),
) -> RotaryArgs:
    """Consume the rotary fields, or with `layer_type` those of one layer type. Raises ModelError for what is not
    implemented, not said, or said twice and differently.

    max_position_embeddings: of the config, which parameters that are not said are derived from. types: those that the
    family can have. partial: whether it can rotate a part of each head. default: the content of rope_parameters (or the
    entry of this layer type) that transformers takes for a config without rotary fields; its theta and part are also
    those of an entry without; None where that is not known, so that all must be said. original_length: for config
    classes that have original_max_position_embeddings as a field of their own, its default. rotated: an older field for
    the number of rotated dimensions, and the number that the part of it is taken of; with one entry for all layers.
    extra: numbers that the family keeps in rope_parameters beside those of the type; all of them must be there.
    unused: others that may stand there and change nothing in this family. unread: older spellings that transformers
    overlooks in configs of this family without rope_parameters, so that what they ask for is refused: "rope_theta"
    alone, "rope_scaling", "rope_scaling+rope_theta" for the base beside it. "rope_parameters+rope_theta" is a base that
    transformers writes beside rope_parameters and that does not count.
    """
    known = dict(default or {})
    reader = _FieldReader(fields, max_position_embeddings, tuple(types), partial, known, original_length, rotated)
    reader = replace(reader, extra=tuple(extra), unused=tuple(unused), unread=frozenset(unread))
    return reader.flat() if layer_type is None else reader.of_layer_type(layer_type)


@dataclass(frozen=True)
class _FieldReader:
    fields: ConfigFields
    max_position_embeddings: int | None
    types: tuple[str, ...]
    can_be_partial: bool
    default: dict[str, Any]
    original_length: int | None
    rotated: tuple[str, int] | None = None
    extra: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    unread: frozenset[str] = frozenset()

    def flat(self) -> RotaryArgs:
        """Read a config in which all layers are rotated alike, or by one entry."""
        fields = self.fields
        outer = {name: fields.optional(name) for name in ("rope_theta", "partial_rotary_factor")}
        outer = {name: value for name, value in outer.items() if value is not None}
        self._take_rotated(outer)
        given = {name: raw for name in ("rope_parameters", "rope_scaling") if (raw := fields.optional(name))}
        if "rope_parameters" not in given:
            self._refuse_unread(given, outer)
        elif "rope_parameters+rope_theta" in self.unread and "rope_theta" in given["rope_parameters"]:
            # What counts there is the base of rope_scaling beside it, too.
            outer["rope_theta"] = given["rope_parameters"]["rope_theta"]
        original, found = fields.optional(_ORIGINAL), []
        for name, raw in given.items():
            if original is not None:
                fields.put_back(_ORIGINAL, original)  # for each of two spellings
            found.append(self._parse(name, raw, outer))
        if original is not None and not given:
            fields.put_back(_ORIGINAL, original)
        if len(found) == 2 and found[0] != found[1]:
            raise ModelError(
                f"config of model_type {fields.model_type!r} contradicts itself: rope_parameters means {found[0]} but "
                f"rope_scaling means {found[1]}; remove one of them"
            )
        return found[0] if found else self._parse("rope_parameters", self._absent(outer), outer)

    def _refuse_unread(self, given: Mapping[str, Any], outer: Mapping[str, Any]) -> None:
        """Raise ModelError for what says something that transformers would not do."""
        scaling = given.get("rope_scaling")
        if scaling and "rope_scaling" in self.unread:
            raise self.fields.error("rope_scaling", scaling, "the same in rope_parameters: it is overlooked here")
        theta = outer.get("rope_theta")
        where = "rope_scaling+rope_theta" if scaling else "rope_theta"
        if where in self.unread and theta not in (None, self.default.get("rope_theta")):
            raise self.fields.error("rope_theta", theta, "the same in rope_parameters: it is overlooked here")

    def _take_rotated(self, outer: dict[str, Any]) -> None:
        """Add the part that the number of rotated dimensions means to what is said beside rope_parameters."""
        if self.rotated is None:
            return
        (name, size), fields = self.rotated, self.fields
        dim = fields.optional(name)
        if dim is None:
            return
        if type(dim) is not int or dim < 1:
            raise fields.error(name, dim, "a whole number >= 1")
        if outer.setdefault("partial_rotary_factor", dim / size) != dim / size:
            raise fields.error(name, dim, f"the part {outer['partial_rotary_factor']} of {size}")

    def of_layer_type(self, layer_type: str) -> RotaryArgs:
        """Read a config with one entry per layer type; the entries of others stay to be taken."""
        fields, name = self.fields, "rope_parameters"
        fields.require("rope_scaling", (None,))
        raw = fields.optional(name)
        if raw is not None and not isinstance(raw, dict):
            raise fields.error(name, raw, "an object")
        entries = dict(raw or {})
        if raw and "rope_type" in raw:
            raise fields.error(name, raw, f"an object with one entry per layer type, one of them {layer_type}")
        entry = entries.pop(layer_type, {})
        if entry is None:
            raise fields.error(f"{name}.{layer_type}", None, "an object")
        if isinstance(entry, dict) and not entry.get("truncate", True):
            # transformers looks for it outside the entries, where no other reader would.
            raise fields.error(f"{name}.{layer_type}.truncate", entry["truncate"], "true, or one table for all layers")
        if self._says_no_part(entry):
            part = f"{name}.{layer_type}.partial_rotary_factor"
            raise fields.error(part, None, "a number: reference implementations differ in what its absence means")
        others = {key: value for key, value in entries.items() if value is not None}
        if others:
            fields.put_back(name, others)
        return self._parse(f"{name}.{layer_type}", entry or self._absent({}), {})

    def _says_no_part(self, entry: object) -> bool:
        """Return whether an entry leaves out the rotated part where an absent entry means less than all of a head."""
        known = self.default.get("partial_rotary_factor", 1.0)
        if not isinstance(entry, dict) or not entry or known == 1.0:
            return False
        # A part that belongs to proportional tables says nothing about those of other types, and the other way round.
        if (entry.get("rope_type") == "proportional") != self._is_proportional():
            return False
        return entry.get("partial_rotary_factor") is None

    def _is_proportional(self) -> bool:
        """Return whether the table of a config that says nothing is a proportional one, of which the part is its
        own."""
        return bool(self.default.get("rope_type") == "proportional")

    def _absent(self, outer: Mapping[str, Any]) -> dict[str, Any]:
        if "rope_type" not in self.default:
            raise ModelError(
                f"config of model_type {self.fields.model_type!r} does not say how positions are rotated, and what "
                f"that means is not known; give rope_parameters with rope_type and rope_theta"
            )
        return {name: value for name, value in self.default.items() if name not in outer}

    def _parse(self, name: str, raw: object, outer: Mapping[str, Any]) -> RotaryArgs:
        """Parse one entry. name: of the field, for errors. outer: theta and part as said beside it."""
        fields = self.fields
        if not isinstance(raw, dict):
            raise fields.error(name, raw, "an object")
        # A parameter that is null is one that is not set.
        values = {key: value for key, value in raw.items() if value is not None}
        legacy_type = values.pop("type", "default")
        rotary_type = values.pop("rope_type", legacy_type)
        if rotary_type not in self.types or rotary_type not in ROTARY_TYPES:
            supported = sorted(set(self.types) & set(ROTARY_TYPES))
            raise fields.error(f"{name}.rope_type", rotary_type, f"one of {', '.join(supported)}")
        theta = self._either(name, "rope_theta", values, outer)
        partial = self._either(name, "partial_rotary_factor", values, outer, otherwise=1.0)
        if not (isinstance(partial, (int, float)) and 0 < partial <= 1):
            raise fields.error(f"{name}.partial_rotary_factor", partial, "a number above 0, at most 1")
        if rotary_type == "proportional":
            # All of a head is rotated, by angles of 0 beyond the part.
            values["partial_rotary_factor"], partial = float(partial), 1.0
        if theta is None:
            raise ModelError(f"config of model_type {fields.model_type!r} has no {name}.rope_theta, which is required")
        extra = self._take_extra(name, rotary_type, values)
        self._complete(name, rotary_type, values, has_null_factor="factor" in raw)
        for key, value in values.items():
            listed = key in ("short_factor", "long_factor")
            if not all(isinstance(each, (int, float)) for each in (value if isinstance(value, list) else [value])):
                raise fields.error(f"{name}.{key}", value, "a list of numbers" if listed else "a number")
            if isinstance(value, list) is not listed:
                raise fields.error(f"{name}.{key}", value, "a list of numbers" if listed else "a number")
        if partial != 1.0 and not self.can_be_partial:
            raise fields.error(f"{name}.partial_rotary_factor", partial, "1.0")
        return RotaryArgs(
            theta=float(theta),
            rotary_type=rotary_type,
            parameters=values,
            partial_factor=float(partial),
            extra=extra,
        )

    def _take_extra(self, name: str, rotary_type: str, values: dict[str, Any]) -> dict[str, Any]:
        """Return the family's own numbers; a parameter of the type may be one of them and stays in `values` then."""
        known = frozenset().union(*ROTARY_TYPES[rotary_type])
        for key in {*self.unused} - known:
            values.pop(key, None)
        found = {}
        for key in self.extra:
            value = values.get(key) if key in known else values.pop(key, None)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self.fields.error(f"{name}.{key}", value, "a number")
            found[key] = value
        return found

    def _either(
        self, name: str, key: str, values: dict[str, Any], outer: Mapping[str, Any], otherwise: Any = None
    ) -> Any:
        """Return the value of `key` inside, which is taken out, or beside it, or by default."""
        inside, beside = values.pop(key, None), outer.get(key)
        if inside is not None and beside is not None and inside != beside:
            raise self.fields.error(key, beside, f"the value of {name}.{key}, which is {inside!r}")
        known = inside if inside is not None else beside
        if known is not None or (key == "partial_rotary_factor" and self._is_proportional()):
            return otherwise if known is None else known
        return self.default.get(key, otherwise)

    def _complete(self, name: str, rotary_type: str, values: dict[str, Any], *, has_null_factor: bool) -> None:
        """Derive what transformers derives, and refuse what is missing or unknown."""
        required, optional = ROTARY_TYPES[rotary_type]
        if _ORIGINAL in required:
            beside = self.fields.optional(_ORIGINAL)
            beside = self.original_length if beside is None else beside
            if beside is not None and values.setdefault(_ORIGINAL, beside) != beside:
                raise self.fields.error(_ORIGINAL, beside, f"the value of {name}.{_ORIGINAL}, {values[_ORIGINAL]!r}")
            if self.max_position_embeddings is not None:
                values.setdefault(_ORIGINAL, self.max_position_embeddings)
        derives_factor = rotary_type == "longrope" or (rotary_type == "yarn" and has_null_factor)
        if derives_factor and "factor" not in values and _ORIGINAL in values and self.max_position_embeddings:
            values["factor"] = self.max_position_embeddings / values[_ORIGINAL]
        missing, unknown = required - values.keys(), values.keys() - required - optional
        if missing or unknown:
            raise ModelError(
                f"config of model_type {self.fields.model_type!r}: {name} of type {rotary_type!r} lacks "
                f"{sorted(missing)} and has unknown parameters {sorted(unknown)}; it takes {sorted(required)} and "
                f"optionally {sorted(optional)}"
            )
