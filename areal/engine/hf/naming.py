"""Names and layouts that the tensors of a model have in its checkpoint, which is what inference servers read.

Of our own families their `state_dict_adapter` tells; of models of `transformers` that library itself, since what it
computes with is not always what it stores (experts are stacked, names have changed over the years).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.models.registry import get_spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

_WRAPPER = "inner."


def checkpoint_tensors(model: Any, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` (by the names of `model.state_dict()`) as its checkpoint has it; tensors that are the same share memory.

    A head that is tied to the embedding is left out.
    """
    if not hasattr(model, "inner"):
        return dict(get_spec(model.args.model_type).state_dict_adapter(model.args).to_hf(state))
    from transformers.core_model_loading import revert_weight_conversion

    own: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in state.items():
        # A tied head is the embedding under a second name: one of them is enough, and files refuse both.
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() == 0 or place not in seen:
            own[name.removeprefix(_WRAPPER)] = tensor
        seen.add(place)
    return dict(revert_weight_conversion(model.inner, own))
