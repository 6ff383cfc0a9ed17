"""Rotary position settings of a config.json, in both spellings that are in use, as one record. No tensors here.

transformers 5 writes `rope_parameters` (rope_theta and rope_type inside); older checkpoints have `rope_theta` beside an
optional `rope_scaling`, whose type key was once called `type`. `blocks.rotary` turns the record into frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.api import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.models.config_fields import ConfigFields

DEFAULT_THETA: Final = 10000.0

ROTARY_TYPES: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        frozenset(),
    ),
    "yarn": (
        frozenset({"factor", "original_max_position_embeddings"}),
        frozenset({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
    ),
}
"""Rotary type to its required and its optional parameters."""

LENGTH_DEPENDENT: Final = frozenset({"dynamic", "longrope"})
"""Types whose frequencies change as a sequence grows: keys cached while decoding would disagree with training."""


@dataclass(frozen=True, kw_only=True)
class RotaryArgs:
    """How positions become rotation angles."""

    theta: float = DEFAULT_THETA
    """Base of the geometric series of wavelengths."""
    rotary_type: str = "default"
    """A key of ROTARY_TYPES."""
    parameters: dict[str, float | bool] = field(default_factory=dict)
    """Parameters of the type, e.g. {"factor": 8.0}."""

    def to_hf_config(self) -> dict[str, Any]:
        """The fields of both spellings, so that transformers 4 and 5, and engines built on either, read the same."""
        scaling = {"rope_type": self.rotary_type, **self.parameters} if self.rotary_type != "default" else None
        return {
            "rope_parameters": {"rope_theta": self.theta, "rope_type": self.rotary_type, **self.parameters},
            "rope_scaling": scaling,
            "rope_theta": self.theta,
        }


def take_rotary(fields: ConfigFields, max_position_embeddings: int) -> RotaryArgs:
    """Consume the rotary fields. Raises ModelError for what is not implemented, and for a contradiction."""
    theta = fields.number("rope_theta", DEFAULT_THETA) if fields.has("rope_theta") else None
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        raw = fields.optional(name)
        if raw:
            found.append(_parse(fields, name, raw, theta, max_position_embeddings))
    if len(found) == 2 and found[0] != found[1]:
        raise ModelError(
            f"config of model_type {fields.model_type!r} contradicts itself: rope_parameters means {found[0]} but "
            f"rope_scaling means {found[1]}; remove one of them"
        )
    return found[0] if found else RotaryArgs(theta=DEFAULT_THETA if theta is None else theta)


def _parse(
    fields: ConfigFields, name: str, raw: Mapping[str, Any], outer_theta: float | None, max_position_embeddings: int
) -> RotaryArgs:
    if not isinstance(raw, dict):
        raise fields.error(name, raw, "an object")
    # A parameter that is null is one that is not set.
    values = {key: value for key, value in raw.items() if value is not None}
    legacy_type = values.pop("type", "default")
    rotary_type = values.pop("rope_type", legacy_type)
    if rotary_type not in ROTARY_TYPES:
        reason = " (its frequencies depend on the sequence length)" if rotary_type in LENGTH_DEPENDENT else ""
        raise fields.error(f"{name}.rope_type", rotary_type, f"one of {', '.join(sorted(ROTARY_TYPES))}{reason}")
    if values.pop("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error(f"{name}.partial_rotary_factor", raw["partial_rotary_factor"], "1.0")
    theta = values.pop("rope_theta", DEFAULT_THETA if outer_theta is None else outer_theta)
    if outer_theta is not None and theta != outer_theta:
        raise fields.error("rope_theta", outer_theta, f"the value of {name}.rope_theta, which is {theta!r}")
    required, optional = ROTARY_TYPES[rotary_type]
    if "original_max_position_embeddings" in required:
        values.setdefault("original_max_position_embeddings", max_position_embeddings)
    missing, unknown = required - values.keys(), values.keys() - required - optional
    if missing or unknown:
        raise ModelError(
            f"config of model_type {fields.model_type!r}: {name} of type {rotary_type!r} lacks {sorted(missing)} and "
            f"has unknown parameters {sorted(unknown)}; it takes {sorted(required)} and optionally {sorted(optional)}"
        )
    for key, value in values.items():
        if not isinstance(value, (int, float)):
            raise fields.error(f"{name}.{key}", value, "a number")
    return RotaryArgs(theta=float(theta), rotary_type=rotary_type, parameters=values)
