"""Pipeline parallelism: a decoder cut into pieces of consecutive layers, each a decoder that gets hidden states.

A process holds one piece or several, as one part of the model in which parameters keep the names that they have in the
whole. What is computed in which order is the engine's.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from areal.api import ModelError
from areal.models.blocks.routing import call_routed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import AttentionBackend, ExpertRoutes


def pieces_of(num_layers: int, number: int) -> list[range]:
    """Return the layers of each piece, equal up to one."""
    bounds = [round(piece * num_layers / number) for piece in range(number + 1)]
    return [range(bounds[piece], bounds[piece + 1]) for piece in range(number)]


def take_part(model: nn.Module, pieces: Sequence[int], number: int, *, projects: bool = True) -> nn.Module:
    """Return some of the `number` pieces of a DecoderModel as one decoder, sharing its modules; the first piece embeds,
    the last norms and projects (projects: whether anybody asks for that).

    A tied embedding that projects is in the part with the last piece too: unless one part has both ends, there are two
    copies of it, whose gradients have to be summed (`copies_of`). Raises ModelError when a piece would have no layer.
    """
    whole: Any = model
    if hasattr(whole, "take_part"):
        part_of_it: nn.Module = whole.take_part(pieces, number, projects=projects)
        return part_of_it
    if not hasattr(whole, "layers"):
        raise ModelError(f"a {type(whole).__name__} cannot be cut into pieces; set parallel.pp to 1")
    if whole.args.num_layers < number:
        raise ModelError(
            f"{whole.args.num_layers} layers cannot be cut into {number} pieces; lower parallel.pp or pp_pieces"
        )
    part: Any = copy.copy(whole)
    part._modules = dict(whole._modules)
    layers = pieces_of(len(whole.layers), number)
    _check_selections(whole.layers, layers)
    part.layers_of = {piece: tuple(str(layer) for layer in layers[piece]) for piece in sorted(pieces)}
    part.layers = nn.ModuleDict({name: whole.layers[int(name)] for names in part.layers_of.values() for name in names})
    part.last_piece = number - 1
    dropped = set() if 0 in pieces else {"embed_tokens", "embed_positions", "embed_norm"}
    if number - 1 not in pieces:
        dropped |= {"norm", "head_transform", "lm_head"}
    elif is_tied(whole) and projects:
        dropped -= {"embed_tokens"}
    for name in dropped:
        part._modules[name] = None
    part.__class__ = type(f"Part{type(whole).__name__}", (_Part, type(whole)), {})
    return part


def _check_selections(layers: Sequence[Any], pieces: Sequence[range]) -> None:
    """Raise ModelError where a piece begins with layers that attend to what a layer of an earlier one chose."""
    mixers = [getattr(layer, "self_attn", None) for layer in layers]
    begin = [piece[0] for piece in pieces if getattr(mixers[piece[0]], "shares_selection", False)]
    if begin:
        full = [number for number, mixer in enumerate(mixers) if getattr(mixer, "indexer", None) is not None]
        raise ModelError(
            f"{len(pieces)} pieces begin with layers {begin} too, which take over the tokens that an earlier layer "
            f"chose; a piece has to begin with a layer that has its own indexer, one of {full}; change parallel.pp or "
            f"pp_pieces"
        )


def is_tied(model: nn.Module) -> bool:
    """Return whether a DecoderModel projects with its embedding."""
    whole: Any = model
    return whole.lm_head is None or whole.lm_head.weight is None


def copies_of(part: nn.Module) -> frozenset[str]:
    """Return the parameters of a part that the part with the first piece has as well."""
    own: Any = part
    if own.embed_tokens is None or 0 in own.layers_of:
        return frozenset()
    weight = own.embed_tokens._parameters["weight"]
    return frozenset(name for name, parameter in own.named_parameters() if parameter is weight)


class _Part:
    """Takes the place of `DecoderModel.hidden`."""

    def hidden(
        self: Any,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        max_seqlen: int,
        tree_attn_meta: Any = None,
        *,
        attention: AttentionBackend,
        piece: int,
        received: Tensor | None = None,
        routes: ExpertRoutes | None = None,
    ) -> Tensor:
        """Return the hidden states after the layers of `piece`; received: those of the piece before, None for the
        first. routes: of all routers of the model."""
        hidden = self._embed(tokens, positions) if received is None else received
        rotaries = {name: self.rotaries[int(name)] for name in self.layers_of[piece]}
        distinct = dict.fromkeys(rotary for rotary in rotaries.values() if rotary is not None)
        rotations = {rotary: rotary(positions, hidden.dtype, cu_seqlens) for rotary in distinct}
        recompute = self._gradient_checkpointing and torch.is_grad_enabled()
        for name, rotary in rotaries.items():
            rotation = None if rotary is None else rotations[rotary]
            layer, numbers = self.layers[name], self.router_numbers[int(name)]
            call = partial(call_routed, layer, numbers, routes) if routes is not None and numbers else layer
            if recompute:
                hidden = checkpoint(call, hidden, rotation, attention, use_reentrant=False)
            else:
                hidden = call(hidden, rotation, attention)
        return self.norm(hidden) if piece == self.last_piece and self.norm is not None else hidden
