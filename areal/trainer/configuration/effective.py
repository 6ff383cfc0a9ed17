"""The settings that a run uses: presets and "auto" resolved, sections without effect left out.

{"objective.surrogate.clip_high": ("0.28", "preset dapo"), "num_threads": (1, "chosen: ..."), ...}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.engine.precision import concrete_dtype
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.problems import DEFAULT
from areal.trainer.configuration.source import flatten, to_mapping
from areal.trainer.configuration.threads import threads_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.trainer.config import RowsConfig

RESOLVED: Final = ("auto, ", "chosen: ", "preset ")
"""Beginnings of origins of values that nobody wrote and that are no defaults."""


def effective_settings(
    config: PPOConfig | RowsConfig, provenance: Mapping[str, str]
) -> tuple[dict[str, tuple[Any, str]], dict[str, str]]:
    """Return the value and origin of each setting by dotted key, and the sections left out with the reason.

    A section without effect that somebody wrote is kept: it is not what they meant.
    """
    values = to_mapping(config)
    origins = dict(provenance)
    if isinstance(config, PPOConfig):
        preset = f"preset {config.objective.preset}"
        values["objective"] |= config.objective.build().describe()
        for key in flatten({"objective": values["objective"]}):
            if origins.get(key, DEFAULT) == DEFAULT and key not in provenance:
                origins[key] = preset
        for key in [f"objective.{name}" for name in config.objective.build().describe()]:
            if provenance.get(key) == DEFAULT:
                origins[key] = preset
    flat = flatten(values)
    for name in ("actor", "critic"):
        settings = getattr(config, name, None)
        if settings is not None and settings.dtype == "auto":
            flat[f"{name}.dtype"] = concrete_dtype(settings)
            origins[f"{name}.dtype"] = "auto, on this machine"
    if not config.num_threads:
        threads = threads_of(config)
        flat["num_threads"], origins["num_threads"] = threads.number, f"chosen: {threads.reason}"
    hidden: dict[str, str] = {}
    for section, reason in without_effect(config).items():
        keys = [key for key in flat if key == section or key.startswith(f"{section}.")]
        if all(origins.get(key, DEFAULT) == DEFAULT for key in keys):
            hidden[section] = reason
            for key in keys:
                del flat[key]
    return {key: (value, origins.get(key, DEFAULT)) for key, value in flat.items()}, hidden


def without_effect(config: PPOConfig | RowsConfig) -> dict[str, str]:
    """Return sections that change nothing in this run, with the reason."""
    found: dict[str, str] = {}
    if config.model.path:
        found["model.init"] = "model.path is set"
    if not isinstance(config, PPOConfig):
        return found
    if config.sources:
        found["train_dataset"] = "sources are set"
    engine = config.rollout.engine
    unused = {
        "embedded": ("servers", "supervisor", "weights", "vllm", "sglang"),
        "vllm": ("engine", "sglang"),
        "sglang": ("engine", "vllm"),
    }[engine]
    return found | dict.fromkeys(unused, f"rollout.engine is {engine}")
