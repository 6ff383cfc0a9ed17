"""Base of every configuration dataclass. Loading, overrides and provenance live in `areal.trainer.configuration`.

Rules, each checked by a test: a component's config is in the component's package; every field has a default or is
required on purpose; every field is followed by a string literal that says unit, range and effect; ranges are declared
with `number`, contradictions between fields raise `ConfigError` from `__post_init__`; unknown keys are errors.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final

from areal.api.errors import ConfigError

_COMPARE: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base that checks declared ranges: `@dataclass(frozen=True, kw_only=True) class RolloutConfig(Config): ...`."""

    # Read by pydantic when the loader validates a mapping against a dataclass.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        """Raise ConfigError for a value out of its range. A subclass with checks of its own calls this first."""
        check_ranges(self)


def number(
    default: Any,
    *,
    above: float | None = None,
    below: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    because: str = "",
) -> Any:
    """Declare a field with a range; None, where its type allows it, is in every range.

    because: why, for the message. Example: `cap: float = number(2.0, above=0)`.
    """
    bounds = {">": above, ">=": at_least, "<": below, "<=": at_most}
    limits = {sign: bound for sign, bound in bounds.items() if bound is not None}
    return field(default=default, metadata={"limits": limits, "because": because})


def check_ranges(config: Config, prefix: str = "") -> None:
    """Raise ConfigError for the first field out of the range that `number` declared; `prefix` opens the message."""
    for item in fields(config):
        value, limits = getattr(config, item.name), item.metadata.get("limits", {})
        if value is None or all(_COMPARE[sign](value, bound) for sign, bound in limits.items()):
            continue
        because = f" ({item.metadata['because']})" if item.metadata["because"] else ""
        shown = {sign: str(bound) if isinstance(bound, int) else f"{bound:g}" for sign, bound in limits.items()}
        expected = " and ".join(f"{sign} {bound}" for sign, bound in shown.items())
        message = f"{prefix}{item.name} is {value}, expected {expected}{because}"
        raise ConfigError(message, fix=f"set {item.name} to a value {expected}")
