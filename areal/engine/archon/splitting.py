"""How a decoder comes to be split: by its family, or by itself where it is a model of `transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.models.parallel.apply import Sharding
from areal.models.registry import get_spec

if TYPE_CHECKING:
    from torch import nn

    from areal.models.parallel.plan import ParallelPlan


def split_decoder(decoder: nn.Module, plan: ParallelPlan) -> Sharding:
    """Apply `plan` to `decoder` in place; what engines have to know of the result. Raises ModelError when it does not
    divide."""
    holder: Any = decoder
    if hasattr(holder, "parallelize"):
        holder.parallelize(plan)
    else:
        get_spec(holder.args.model_type).parallelize(holder, plan)
    # A plan that splits nothing leaves nothing on the decoder.
    return getattr(holder, "sharding", None) or Sharding(plan=plan)
