"""Configuration of the embedded inference engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from areal.api import Config, ConfigError


@dataclass(frozen=True, kw_only=True)
class EmbeddedEngineConfig(Config):
    """The engine that runs in the trainer's process."""

    max_batch_size: int = 128
    """Sequences decoded together; further requests wait."""
    max_seq_len: int = 2048
    """Prompt plus output tokens of one request; also bounded by the model's max_position_embeddings."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the engine's copy of the weights; "auto" keeps the trained model's."""
    device: str = "auto"
    """"auto" uses the trained model's device."""
    num_threads: int = 0
    """Intra-op threads of the decode loop; 0 keeps the process default."""

    def __post_init__(self) -> None:
        """Refuse an engine that could hold nothing."""
        if self.max_batch_size < 1 or self.max_seq_len < 2:
            raise ConfigError(
                f"max_batch_size is {self.max_batch_size} and max_seq_len {self.max_seq_len}; expected at least 1 and 2"
            )
        if self.num_threads < 0:
            raise ConfigError(f"num_threads is {self.num_threads}, expected >= 0")
