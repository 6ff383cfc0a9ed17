"""Tensor parallelism: matrices split by heads and features as a family's table says.

A *region* is the attention or the feed-forward layer of a block. Hidden states enter it replicated; inside, every value
is a term of a sum over the ranks, and so is every gradient of a parameter that is not split; at its end the terms are
summed. So one rule covers norms of single heads, routers, compressing projections of latent attention and gates: their
gradients are partial, and summed once per step (`Sharding.partial_over_tp`). With sequence parallelism a rank keeps its
piece of the tokens between regions, and what works on pieces has partial gradients as well.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.distributed.tensor import Shard as ShardPlacement
from torch.distributed.tensor import distribute_tensor
from torch.nn import functional

from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.mlp import MLP, GatedMLP
from areal.models.blocks.moe import Experts
from areal.models.blocks.rg_lru import RGLRU
from areal.models.blocks.short_convolution import ShortConvolution
from areal.models.parallel import collectives
from areal.models.parallel.local import adopt, local_part
from areal.models.parallel.plan import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

DIMENSION: Final = {Shard.COLUMN: 0, Shard.ROW: 1, Shard.EXPERT_COLUMN: 1, Shard.EXPERT_ROW: 2}
"""Of a parameter, which one is split."""
REGIONS: Final = ("self_attn", "beside", "mlp")
VOCABULARY_MODULES: Final = ("embed_tokens", "lm_head")
TERMS: Final = ("bias", "down_bias")
"""Parameters that are added to what ranks sum up: only one of them may."""

_DELTA: Final = ("q_proj", "k_proj", "v_proj", "q_conv", "k_conv", "v_conv", "decay_proj", "rate_proj", "gate_proj")
_LIGHTNING: Final = ("q_proj", "k_proj", "v_proj", "gate_proj")
_SUMMED: Final = ("step_proj", "b_proj", "c_proj")
"""Of Mamba-1: what is made of all channels, for all channels."""
_CHANNELS: Final = ("z_proj", "x_proj", "conv", "dt_proj", "dt_bias", "A_log", "D")
_MAMBA: Final = ("z_proj", "x_proj", "b_proj", "c_proj", "dt_proj", "x_conv", "b_conv", "c_conv", "D", "norm")
_RG_LRU: Final = ("gate_proj", "x_proj", "conv", "input_gate", "decay_gate", "decay")
MIXER_SPLITS: Final[dict[type[nn.Module], dict[str, Shard]]] = {
    GatedDelta: dict.fromkeys((*_DELTA, "A_log", "dt_bias"), Shard.COLUMN) | {"o_proj": Shard.ROW},
    LightningAttention: dict.fromkeys(_LIGHTNING, Shard.COLUMN) | {"o_proj": Shard.ROW},
    Mamba1: dict.fromkeys(_CHANNELS, Shard.COLUMN) | dict.fromkeys((*_SUMMED, "o_proj"), Shard.ROW),
    Mamba2: dict.fromkeys((*_MAMBA, "A_log", "dt_bias"), Shard.COLUMN) | {"o_proj": Shard.ROW},
    RGLRU: dict.fromkeys(_RG_LRU, Shard.COLUMN) | {"o_proj": Shard.ROW},
    ShortConvolution: {"conv": Shard.COLUMN, "out_proj": Shard.ROW},
}
"""Of mixers with a state, which have the same parts in every family: by heads, or by channels."""

_ADAPTED: Final = re.compile(r"(.+)\.(?:base_layer|(lora_[AB])\.[^.]+)")
"""A linear layer inside of one with an adapter (`peft`), or a factor of the adapter; the layer, and which factor."""
_SPLIT_FACTOR: Final = {Shard.COLUMN: "lora_B", Shard.ROW: "lora_A"}


def apply_tensor_parallel(
    model: Any,
    mesh: DeviceMesh,
    table: Mapping[str, Shard],
    *,
    sequence_parallel: bool,
    leave_experts: bool,
    compiled: bool,
) -> frozenset[str]:
    """Split `model` (a DecoderModel, or some of its layers) in place; the names of parameters whose gradients are
    partial afterwards. `areal.models.parallel.checks` has found that everything divides.

    leave_experts: they are split by number instead, and not looked at here. compiled: blocks will be, without what is
    sent between them.
    """
    group = mesh.get_group()
    table = {**mixer_splits(model), **table}
    vocabulary = splits_vocabulary(model.args.vocab_size, group.size(), table)
    skipped = {
        id(module)
        for layer in _layers(model)
        for mixer in _mixers(layer)
        for linear in _whole_key_values(mixer, group.size())
        for module in linear.modules()
    }
    split: set[str] = set()
    for module_name, module in model.named_modules():
        if id(module) in skipped or (not vocabulary and module_name in VOCABULARY_MODULES):
            continue
        if isinstance(module, Experts) and leave_experts:
            split |= {f"{module_name}.{name}" for name, _ in module.named_parameters()}
            continue
        splits = dict(splits_of(module_name, module, table))
        split_parameters(module, splits, mesh)
        split |= {f"{module_name}.{name}" for name in splits}
    regions = _Boundaries(group, sequence_parallel=sequence_parallel, compiled=compiled)
    for layer in _layers(model):
        for mixer in _mixers(layer):
            _split_heads(mixer, group)
        for inner in () if layer.mlp is None else layer.mlp.modules():
            if isinstance(inner, MLP | GatedMLP) and inner.inner_norm is not None:
                adopt(inner.inner_norm, forward=_over_all_features(group))
        for region in (getattr(layer, name, None) for name in REGIONS):
            if region is not None:
                adopt(region, forward=regions.around)
    _split_vocabulary(model, regions, vocabulary=vocabulary)
    whole = [name for name, _ in model.named_parameters() if name not in split]
    return frozenset(name for name in whole if _is_partial(name, sequence_parallel, vocabulary=vocabulary))


def mixer_splits(model: nn.Module) -> dict[str, Shard]:
    """Return the splits of the mixers with a state in a model, by the names of their parts."""
    return {
        f"{name}.{part}": split
        for name, module in model.named_modules()
        for kind, splits in MIXER_SPLITS.items()
        if isinstance(module, kind)
        for part, split in splits.items()
    }


def splits_vocabulary(vocab_size: int, size: int, table: Mapping[str, Shard]) -> bool:
    """Return whether each rank has a share of the vocabulary; where it does not divide, every rank has all of it."""
    return "embed_tokens" in table and vocab_size % size == 0


class _Boundaries:
    """How hidden states come into regions and out of them."""

    def __init__(self, group: ProcessGroup, *, sequence_parallel: bool, compiled: bool) -> None:
        self.group = group
        self.sequence_parallel = sequence_parallel
        self.enter, self.leave = self._enter, self._leave
        if compiled:
            self.enter, self.leave = torch.compiler.disable(self._enter), torch.compiler.disable(self._leave)

    def _enter(self, hidden: Tensor) -> Tensor:
        """Return what flows between regions -> replicated."""
        if self.sequence_parallel:
            return collectives.enter_gathered(hidden, self.group)
        return collectives.enter(hidden, self.group)

    def _leave(self, partial: Tensor) -> Tensor:
        """Turn partial into what flows between regions."""
        if self.sequence_parallel:
            return collectives.leave_scattered(partial, self.group)
        return collectives.leave(partial, self.group)

    def around(self, inner: Callable[..., Tensor], module: nn.Module, hidden: Tensor, *rest: Any) -> Tensor:
        """Return a region's forward."""
        return self.leave(inner(module, self.enter(hidden), *rest))

    def piece_of_output(self, inner: Callable[..., Tensor], module: nn.Module, *inputs: Tensor) -> Tensor:
        """Compute the forward of a module that is computed as a whole by every rank, before the first region."""
        whole = inner(module, *inputs)
        return collectives.take_piece(whole, self.group) if self.sequence_parallel else whole

    def embed(self, inner: Callable[..., Tensor], module: nn.Embedding, tokens: Tensor) -> Tensor:
        """Embed tokens of which each rank knows its share of the vocabulary."""
        weight = module.weight
        rows = tokens - self.group.rank() * weight.shape[0]
        known = (rows >= 0) & (rows < weight.shape[0])
        found = functional.embedding(rows.clamp(0, weight.shape[0] - 1), weight)
        return self.leave(found.masked_fill(~known[:, None], 0))


def _layers(model: Any) -> Iterator[Any]:
    layers = model.layers
    return iter(layers.values() if isinstance(layers, nn.ModuleDict) else layers)


def _mixers(layer: Any) -> list[nn.Module]:
    """Return what mixes the tokens of a layer: nothing, attention or a mixer with a state, or both side by side."""
    found = (layer.self_attn, getattr(layer, "beside", None))
    return [mixer for mixer in found if mixer is not None]


def splits_of(module_name: str, module: nn.Module, table: Mapping[str, Shard]) -> Iterator[tuple[str, Shard]]:
    """Yield the parameters of the module itself that the table splits; it names them, or the module for all of them.

    A low-rank adapter of a matrix is split where the matrix is: by output features what maps to them, by input features
    what maps from them. The other one of its factors is whole on every rank.
    """
    adapted = _ADAPTED.fullmatch(module_name)
    owner_name, factor = (module_name, None) if adapted is None else adapted.groups()
    for name, parameter in module.named_parameters(recurse=False):
        for pattern, shard in table.items():
            if any(fnmatch.fnmatchcase(owner, pattern) for owner in (owner_name, f"{owner_name}.{name}")):
                # The bias of a ROW matrix belongs to the sum, not to one of its terms.
                if parameter.ndim > DIMENSION[shard] and factor in (None, _SPLIT_FACTOR.get(shard)):
                    yield name, shard
                break


def split_parameters(module: nn.Module, splits: Mapping[str, Shard], mesh: DeviceMesh) -> None:
    """Split parameters of the module itself over the ranks of `mesh`; its forward reads this rank's parts."""
    if not splits:
        return
    reads: dict[str, Callable[[Tensor], Tensor | None]] = {}
    for name, shard in splits.items():
        parameter = module.get_parameter(name)
        placement = ShardPlacement(DIMENSION[shard])
        distributed = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(distributed, requires_grad=parameter.requires_grad))
        reads[name] = local_part
    if Shard.ROW in splits.values() or Shard.EXPERT_ROW in splits.values():
        reads |= dict.fromkeys(TERMS, on_first(mesh))
    terms = [name for name in TERMS if name in reads and name not in splits]
    adopt(module, reads={name: reads[name] for name in splits}, mesh=mesh)
    adopt(module, reads={name: reads[name] for name in terms if module._parameters.get(name) is not None})


def on_first(mesh: DeviceMesh) -> Callable[[Tensor], Tensor | None]:
    """Read a term that every rank has, and that has to be in the sum once."""
    is_first = mesh.get_local_rank() == 0
    return lambda parameter: local_part(parameter) if is_first else None


def _split_heads(attention: nn.Module, group: ProcessGroup) -> None:
    """Split what the table does not say: keys and values of fewer heads than ranks, norms over heads, and matrices of
    several parts."""
    if isinstance(attention, ShortConvolution):
        for module in _with_output_features(attention.in_proj):
            adopt(module, reads=dict.fromkeys(("weight", "bias"), _reading_thirds(group)))
        return
    if isinstance(attention, LightningAttention):
        attention.first_head = group.rank() * attention.num_heads // group.size()
        adopt(attention.norm, forward=_over_all_features(group))
        return
    if isinstance(attention, Mamba1):
        for name in _SUMMED:
            adopt(attention.get_submodule(name), forward=_summed(group))
        return
    if not isinstance(attention, SelfAttention):
        return
    size, rank = group.size(), group.rank()
    num_kv_heads = number_of_key_value_heads(attention)
    kept = (rank * num_kv_heads // size, max(1, num_kv_heads // size))
    for linear in _whole_key_values(attention, size):
        width = linear.out_features // num_kv_heads
        for module in _with_output_features(linear):
            adopt(module, reads=dict.fromkeys(("weight", "bias"), _reading_rows(kept[0] * width, width)))
    heads = attention.num_heads // size
    norms: tuple[tuple[Any, tuple[int, int]], ...] = (
        (attention.q_norm, (rank * heads, heads)),
        (attention.k_norm, kept),
    )
    for norm, (first, number) in norms:
        if norm is None:
            continue
        if attention.full_width_norms:
            adopt(norm, forward=_over_all_features(group))
        elif len(norm.shape) > 1:
            adopt(norm, reads=dict.fromkeys(("weight", "bias"), _reading_rows(first, number)))
    if attention.output_norm is not None:
        adopt(attention.output_norm, forward=_over_all_features(group))


def number_of_key_value_heads(attention: SelfAttention) -> int:
    """Return the number for the whole layer."""
    assert attention.k_proj is not None, "models that share keys between layers are not split"
    return attention.k_proj.out_features // attention.head_dim


def _whole_key_values(attention: nn.Module, size: int) -> tuple[nn.Linear, ...]:
    """Return the projections that every rank has as a whole, reading the rows of the one head that its queries
    share, or of its channels in each of several parts."""
    if isinstance(attention, ShortConvolution):
        return (attention.in_proj,)
    if isinstance(attention, SelfAttention) and number_of_key_value_heads(attention) < size:
        return tuple(part for part in (attention.k_proj, attention.v_proj) if part is not None)
    return ()


def _with_output_features(linear: Any) -> list[nn.Module]:
    """Return the modules in a linear layer, with an adapter or without, whose parameters have a row per output
    feature."""
    return [linear.base_layer, *linear.lora_B.values()] if hasattr(linear, "base_layer") else [linear]


def _reading_rows(start: int, length: int) -> Callable[[Tensor], Tensor | None]:
    return lambda parameter: local_part(parameter).narrow(0, start, length)


def _reading_thirds(group: ProcessGroup) -> Callable[[Tensor], Tensor | None]:
    def read(parameter: Tensor) -> Tensor:
        thirds = local_part(parameter).unflatten(0, (3, group.size(), -1))
        return thirds[:, group.rank()].flatten(0, 1)

    return read


def _summed(group: ProcessGroup) -> Callable[..., Tensor]:
    """Compute the forward of a matrix of which each rank has some columns, inside of a region: every rank uses the sum
    for a part."""

    def forward(inner: Callable[..., Tensor], module: nn.Module, features: Tensor) -> Tensor:
        return collectives.enter(collectives.leave(inner(module, features), group), group)

    return forward


def _over_all_features(group: ProcessGroup) -> Callable[..., Tensor]:
    """Compute the forward of a norm whose statistics are those of all heads, or of all features, together."""

    def forward(inner: Callable[..., Tensor], module: nn.Module, features: Tensor) -> Tensor:
        normed = inner(module, collectives.enter_gathered(features, group, features.ndim - 1))
        return normed.chunk(group.size(), -1)[group.rank()]

    return forward


def _split_vocabulary(model: Any, regions: _Boundaries, *, vocabulary: bool) -> None:
    if model.embed_tokens is not None:
        adopt(model.embed_tokens, forward=regions.embed if vocabulary else regions.piece_of_output)
    if model.embed_positions is not None:
        adopt(model.embed_positions, forward=regions.piece_of_output)


def _is_partial(name: str, sequence_parallel: bool, *, vocabulary: bool) -> bool:
    """Return whether the gradient of a parameter that is not split is a term of a sum."""
    parts = name.split(".")
    if parts[0] == "layers":
        return sequence_parallel or parts[2] in REGIONS
    if parts[0] == "head_transform":
        return vocabulary
    return sequence_parallel and parts[0] in ("norm", "embed_norm")
