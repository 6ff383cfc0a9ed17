"""Limits of row lengths, from the configuration alone: the room that engine and model leave to a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from areal.api import ConfigError
from areal.dataset.limits import LengthLimit
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.validation import read_model_config

if TYPE_CHECKING:
    from areal.api import GenerationConfig
    from areal.trainer.config import RowsConfig


def max_positions(config: PPOConfig | RowsConfig) -> int | None:
    """Return the model's max_position_embeddings; None where its configuration has none, or cannot be read."""
    try:
        value = read_model_config(config.model).get("max_position_embeddings")
    except ConfigError:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def length_limit(config: PPOConfig | RowsConfig, sampling: GenerationConfig | None = None) -> LengthLimit | None:
    """Return the limit of a row that is not the dataset's own: a prompt of RL leaves room for the longest answer.

    sampling: of the rows; None means that of training. Rows of other kinds of run have no limit but `max_length`.
    """
    if not isinstance(config, PPOConfig):
        return None
    context, reason = config.max_seq_len, f"{config.engine_section}.max_seq_len {config.max_seq_len}"
    positions = max_positions(config)
    if positions is not None and positions < context:
        context, reason = positions, f"the model's max_position_embeddings {positions}"
    new = (sampling or config.gconfig).max_new_tokens
    return LengthLimit(tokens=max(0, context - new), reason=f"{reason} - max_new_tokens {new}")
