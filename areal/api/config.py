"""Base of every configuration dataclass. Loading, overrides and provenance live in `areal.trainer.configuration`.

Rules, each checked by a test: a component's config is in the component's package; every field has a default or is
required on purpose; every field is followed by a string literal that says unit, range and effect; contradictions
between fields raise `ConfigError` from `__post_init__`; unknown keys are errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, kw_only=True)
class Config:
    """Marker base: `@dataclass(frozen=True, kw_only=True) class RolloutConfig(Config): ...`."""

    # Read by pydantic when the loader validates a mapping against a dataclass.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
