"""What the inference of one attention layer looks at, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from areal.porting.infer.capture import Capture
    from areal.porting.infer.operands import Core, Operands
    from areal.porting.records import Evidence, LayerContext
    from areal.porting.spec import AttentionSpec, LatentAttentionSpec, RotarySpec


@dataclass(frozen=True, kw_only=True)
class View:
    """One attention module, watched."""

    context: LayerContext
    run: Capture
    """On the tokens of the trace."""
    probe: Capture
    """On many short sequences: at position 0 no rotation changes anything."""
    core: Core
    operands: Operands
    """Of `run`."""
    single: Operands
    """Of `probe`."""

    @property
    def name(self) -> str:
        """Of the module."""
        return self.context.name


@dataclass(frozen=True, kw_only=True)
class Found:
    """A hypothesis about one attention module, with the weights that it needs."""

    attention: AttentionSpec | LatentAttentionSpec
    rotary: RotarySpec | None
    window: int | None
    chunk: int | None
    tensors: Mapping[str, Tensor]
    evidence: tuple[Evidence, ...]
