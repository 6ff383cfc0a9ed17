"""Whether a model can be split as asked: every refusal names what does not divide, and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.api import ModelError
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.experts_beside import ExpertsBeside
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.moe import Experts
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.shared_keys import shares_keys
from areal.models.blocks.short_convolution import ShortConvolution
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
        if isinstance(module, SelfAttention) and not module.shares_keys:
            problems += _attention_problems(name, module, dims)
        elif isinstance(module, LatentAttention):
            heads = module.kv_b_proj.out_features // (module.nope_dim + module.value_dim)
            problems += _head_problems(name, heads, dims)
        elif isinstance(module, LightningAttention):
            problems += _head_problems(name, module.num_heads, dims)
        elif isinstance(module, GatedDelta | Mamba1 | Mamba2 | RGLRU | ShortConvolution):
            problems += _state_problems(name, module, dims)
        elif isinstance(module, Experts):
            num_mixtures += 1
            problems += _expert_problems(name, module, dims)
        problems += _split_problems(name, module, dims, table)
    if shares_keys(model) and max(dims.tp, dims.cp, dims.pp) > 1:
        problems.append(
            f"tp={dims.tp} cp={dims.cp} pp={dims.pp}: layers attend to the keys and values of earlier ones, which is "
            f"not implemented for split layers; expected 1 for all three"
        )
    if getattr(model, "layer_embeddings", None) is not None and max(dims.tp, dims.cp, dims.pp) > 1:
        problems.append(
            f"tp={dims.tp} cp={dims.cp} pp={dims.pp}: layers get embeddings of their own, which is not implemented for "
            f"split layers; expected 1 for all three"
        )
    if any(isinstance(module, ExpertsBeside) for module in model.modules()) and max(dims.tp, dims.cp, dims.ep) > 1:
        problems.append(
            f"tp={dims.tp} cp={dims.cp} ep={dims.ep}: there are experts beside feed-forward layers, which is not "
            f"implemented for split layers; expected 1 for all three"
        )
    if dims.ep > 1 and not num_mixtures:
        problems.append(f"ep={dims.ep}: the model has no experts")
    if problems:
        listed = "; ".join(dict.fromkeys(problems))
        raise ModelError(f"the model cannot be split as {dims.describe()}: {listed}")


def _attention_problems(name: str, module: SelfAttention, dims: ParallelDims) -> Iterator[str]:
    yield from _head_problems(name, module.num_heads, dims)
    if module.differential is not None and dims.tp * dims.cp > 1:
        yield f"tp={dims.tp} cp={dims.cp}: {_general(name)} takes heads from each other, which have to be on one rank"
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


def _state_problems(
    name: str, module: GatedDelta | Mamba1 | Mamba2 | RGLRU | ShortConvolution, dims: ParallelDims
) -> Iterator[str]:
    """Yield what keeps a state from being split by heads, and its filters from being traded by channels."""
    if isinstance(module, ShortConvolution):
        channels = module.out_proj.in_features
    elif isinstance(module, Mamba1):
        channels = module.o_proj.in_features
    elif isinstance(module, RGLRU):
        yield from _group_problems(name, "blocks of gates", module.num_blocks, dims)
        channels = module.o_proj.in_features
    elif isinstance(module, GatedDelta):
        yield from _head_problems(name, module.num_value_heads, dims)
        yield from _group_problems(name, "key heads", module.num_key_heads, dims)
        channels = 2 * module.num_key_heads * module.key_dim + module.num_value_heads * module.value_dim
    else:
        yield from _head_problems(name, module.num_heads, dims)
        yield from _group_problems(name, "groups of heads", module.num_groups, dims)
        if module.norm is not None:
            inner = module.num_heads * module.head_dim
            yield from _group_problems(name, "groups of its norm", inner // module.norm.group_size, dims)
        channels = module.num_heads * module.head_dim + 2 * module.num_groups * module.state_size
    if channels % (dims.tp * dims.cp):
        yield (f"tp={dims.tp} cp={dims.cp}: {_general(name)} convolves {channels} channels; tp * cp has to divide them")


def _group_problems(name: str, what: str, number: int, dims: ParallelDims) -> Iterator[str]:
    if number % dims.tp:
        yield f"tp={dims.tp}: {_general(name)} has {number} {what}, which ranks cannot share; tp has to divide them"


def _expert_problems(name: str, module: Experts, dims: ParallelDims) -> Iterator[str]:
    number = module.up_proj.shape[0]
    if number % dims.ep:
        yield f"ep={dims.ep}: {_general(name)} has {number} experts; ep has to divide them"


def _split_problems(name: str, module: nn.Module, dims: ParallelDims, table: Mapping[str, Shard]) -> Iterator[str]:
    """Yield the heads and vocabularies have rules of their own."""
    ways = dims.etp if isinstance(module, Experts) and dims.ep > 1 else dims.tp
    if ways == 1 or "self_attn" in name or ".beside" in name or name in VOCABULARY_MODULES:
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
