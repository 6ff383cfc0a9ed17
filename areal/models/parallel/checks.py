"""Whether a model can be split as asked: every refusal names what does not divide, and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ModelError
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.moe import Experts
from areal.models.parallel.tensor import DIMENSION, VOCABULARY_MODULES, number_of_key_value_heads, splits_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.plan import Shard


def check_model(model: nn.Module, dims: ParallelDims, table: Mapping[str, Shard]) -> None:
    """Raise ModelError with everything that keeps `model` from being split over `dims`."""
    problems: list[str] = []
    num_mixtures = 0
    for name, module in model.named_modules():
        if isinstance(module, SelfAttention):
            problems += _attention_problems(name, module, dims)
        elif isinstance(module, LatentAttention):
            heads = module.kv_b_proj.out_features // (module.nope_dim + module.value_dim)
            problems += _head_problems(name, heads, dims)
        elif isinstance(module, Experts):
            num_mixtures += 1
            problems += _expert_problems(name, module, dims)
        problems += _split_problems(name, module, dims, table)
    if dims.ep > 1 and not num_mixtures:
        problems.append(f"ep={dims.ep}: the model has no experts")
    if problems:
        listed = "; ".join(dict.fromkeys(problems))
        raise ModelError(f"the model cannot be split as {dims.describe()}: {listed}")


def _attention_problems(name: str, module: SelfAttention, dims: ParallelDims) -> Iterator[str]:
    yield from _head_problems(name, module.num_heads, dims)
    kv_heads = number_of_key_value_heads(module)
    if kv_heads % dims.tp and dims.tp % kv_heads:
        yield (
            f"tp={dims.tp}: {_general(name)} has {kv_heads} key-value heads; expected tp to divide them, or to be a "
            f"multiple of them (then ranks share a head)"
        )
    if kv_heads < dims.tp and module.full_width_norms and module.k_norm is not None:
        yield f"tp={dims.tp}: {_general(name)} norms keys over all {kv_heads} heads, which ranks cannot share"


def _head_problems(name: str, num_heads: int, dims: ParallelDims) -> Iterator[str]:
    if num_heads % (dims.tp * dims.cp):
        yield f"tp={dims.tp} cp={dims.cp}: {_general(name)} has {num_heads} heads; tp * cp has to divide them"


def _expert_problems(name: str, module: Experts, dims: ParallelDims) -> Iterator[str]:
    number = module.up_proj.shape[0]
    if number % dims.ep:
        yield f"ep={dims.ep}: {_general(name)} has {number} experts; ep has to divide them"


def _split_problems(name: str, module: nn.Module, dims: ParallelDims, table: Mapping[str, Shard]) -> Iterator[str]:
    """Yield the heads and vocabularies have rules of their own."""
    ways = dims.etp if isinstance(module, Experts) and dims.ep > 1 else dims.tp
    if ways == 1 or "self_attn" in name or name in VOCABULARY_MODULES:
        return
    for parameter, shard in splits_of(name, module, table):
        tensor: Any = module.get_parameter(parameter)
        size = tensor.shape[DIMENSION[shard]]
        if size % ways:
            yield f"tp={dims.tp}: {_general(name)}.{parameter} has {size} features to split; tp has to divide them"


def _general(name: str) -> str:
    """Return the layers of one kind are named once."""
    parts = name.split(".")
    return ".".join([*parts[:1], "*", *parts[2:]]) if parts[0] == "layers" else name
