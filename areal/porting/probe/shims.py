"""What modeling code for older versions of transformers expects and the installed one lacks: helpers, modules, methods.

    with older_names():
        importlib.import_module("modeling_novel")     # from transformers.pytorch_utils import find_pruneable_heads_...
    adapt(classes)                                    # lists of tied weights, head masks

Only code that is loaded inside sees the names. Nothing here changes what a model computes: a name that is missing for
another reason stays missing, and loading says which.
"""

from __future__ import annotations

import importlib
import sys
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypedDict

import torch
from transformers import PreTrainedConfig, PreTrainedModel, cache_utils, modeling_rope_utils, pytorch_utils

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class LossKwargs(TypedDict, total=False):
    """Keywords of losses, which were an annotation."""

    num_items_in_batch: int | None


def find_pruneable_heads_and_indices(
    heads: list[int], n_heads: int, head_size: int, already_pruned_heads: set[int]
) -> tuple[set[int], torch.Tensor]:
    """Return which heads are still to be pruned, and the indices of what remains; nothing here prunes."""
    mask = torch.ones(n_heads, head_size)
    left = set(heads) - already_pruned_heads
    for head in left:
        mask[head - sum(1 if other < head else 0 for other in already_pruned_heads)] = 0
    return left, torch.arange(mask.numel())[mask.view(-1) == 1].long()


def default_rotary(config: Any, device: Any = None, **_: Any) -> tuple[torch.Tensor, float]:
    """Return the frequencies of plain rotary positions, as `ROPE_INIT_FUNCTIONS["default"]` did, and their factor."""
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    entries = getattr(config, "rope_parameters", None) or {}
    base = getattr(config, "rope_theta", None) or entries["rope_theta"]
    part = getattr(config, "partial_rotary_factor", None) or entries.get("partial_rotary_factor") or 1.0
    size = int(width * part)
    return 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).float().to(device) / size)), 1.0


class OnnxConfig:
    """Export to ONNX, which no analysis does."""


def no_torch_fx() -> bool:
    """Return that nothing is to be wrapped for tracing by torch.fx."""
    return False


def no_zero3() -> bool:
    """Return that weights are not sharded by DeepSpeed."""
    return False


def _no_device_map(*_: Any) -> None:
    """Do nothing: models stay on one device."""


NAMES: Final[dict[str, Any]] = {
    "transformers.cache_utils:HybridCache": cache_utils.StaticCache,
    "transformers.cache_utils:OffloadedCache": cache_utils.DynamicCache,
    "transformers.cache_utils:SinkCache": cache_utils.DynamicCache,
    "transformers.deepspeed:is_deepspeed_zero3_enabled": no_zero3,
    "transformers.modeling_utils:Conv1D": pytorch_utils.Conv1D,
    "transformers.modeling_utils:apply_chunking_to_forward": pytorch_utils.apply_chunking_to_forward,
    "transformers.modeling_utils:find_pruneable_heads_and_indices": find_pruneable_heads_and_indices,
    "transformers.modeling_utils:prune_linear_layer": pytorch_utils.prune_linear_layer,
    "transformers.onnx:OnnxConfig": OnnxConfig,
    "transformers.pytorch_utils:find_pruneable_heads_and_indices": find_pruneable_heads_and_indices,
    "transformers.utils.import_utils:is_torch_fx_available": no_torch_fx,
    "transformers.utils.model_parallel_utils:assert_device_map": _no_device_map,
    "transformers.utils.model_parallel_utils:get_device_map": _no_device_map,
    "transformers.utils:LossKwargs": LossKwargs,
    "transformers.utils:is_torch_fx_available": no_torch_fx,
}
"""Name that older code imports to its replacement."""

CONFIG_ATTRIBUTES: Final[dict[str, Any]] = {
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "is_decoder": False,
    "pruned_heads": {},
}
"""Attributes that every config had."""


@contextmanager
def older_names() -> Iterator[None]:
    """Offer the names of `NAMES` that the installed transformers lacks, as long as the context lasts."""
    added: list[tuple[Any, str]] = []
    modules: list[str] = []
    for place, value in NAMES.items():
        path, _, name = place.partition(":")
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:
            module = sys.modules[path] = types.ModuleType(path)
            modules.append(path)
        if not hasattr(module, name):
            setattr(module, name, value)
            added.append((module, name))
    kinds = modeling_rope_utils.ROPE_INIT_FUNCTIONS
    rotary = "default" not in kinds
    if rotary:
        kinds["default"] = default_rotary
    try:
        yield
    finally:
        for module, name in added:
            delattr(module, name)
        for path in modules:
            sys.modules.pop(path, None)
        if rotary:
            # Code keeps the table itself and asks it while models are built: then `adapt` gives the entry back.
            kinds.pop("default", None)


def adapt(classes: Iterable[Any]) -> None:
    """Give classes of foreign code the methods and attributes that their bases once had."""
    for cls in classes:
        if issubclass(cls, PreTrainedConfig):
            for name, value in CONFIG_ATTRIBUTES.items():
                if not hasattr(cls, name):
                    setattr(cls, name, value)
        if issubclass(cls, PreTrainedModel):
            if isinstance(cls.__dict__.get("_tied_weights_keys"), list | tuple | set):
                cls.get_expanded_tied_weights_keys = _expanded_ties
            if not hasattr(cls, "get_head_mask"):
                cls.get_head_mask = _no_head_mask
            table = modeling_rope_utils.ROPE_INIT_FUNCTIONS  # looked up by type while models are built
            if any(value is table for value in vars(sys.modules[cls.__module__]).values()):
                modeling_rope_utils.ROPE_INIT_FUNCTIONS.setdefault("default", default_rotary)


def _expanded_ties(self: Any, all_submodels: bool = False) -> dict[str, str]:
    """Return which parameter is tied to which, where the class has a list: the head to the embedding, as the list
    meant."""
    head = self.get_output_embeddings()
    names = {id(tensor): name for name, tensor in self.named_parameters(remove_duplicate=False)}
    source = names.get(id(self.get_input_embeddings().weight))
    found = {}
    for name, module in self.named_modules():
        if module is head and source is not None and source != f"{name}.weight":
            found[f"{name}.weight"] = source
    self._tied_weights_keys = found  # saving asks it, too
    return found if getattr(self.config, "tie_word_embeddings", False) else {}


def _no_head_mask(self: Any, head_mask: Any, num_hidden_layers: int, *_: Any, **__: Any) -> list[None]:
    """Return that no head is masked."""
    assert head_mask is None, "no analysis masks heads"
    return [None] * num_hidden_layers
