"""Configuration of the embedded inference engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from areal.api import Config, number


@dataclass(frozen=True, kw_only=True)
class EmbeddedEngineConfig(Config):
    """The engine that runs in the trainer's process."""

    max_batch_size: int = number(128, at_least=1)
    """Sequences decoded together; further requests wait."""
    max_seq_len: int = number(2048, at_least=2)
    """Prompt plus output tokens of one request; also bounded by the model's max_position_embeddings."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the engine's copy of the weights; "auto" keeps the trained model's."""
    device: str = "auto"
    """"auto" uses the trained model's device."""
    num_threads: int = number(0, at_least=0)
    """Intra-op threads of the decode loop; 0 keeps the process default."""
