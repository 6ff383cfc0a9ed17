"""The language half of a model of `transformers`, divided over processes: by matrices, by tokens, by layers.

Instead of padded rectangles, sequences are packed end to end, and the layers are given attention that knows where each
one ends (`areal.api.AttentionBackend`); all else in them works on single tokens. So ranks of cp have a piece of the
tokens each, and trade heads for tokens in attention, as with families of ours; ranks of tp have some heads and features
of each layer; ranks of pp have some layers. A tower, its projector, the embedding and the head are whole on every rank
that has them: all of tp and cp, and of a pipeline the first and the last.

Which types of text models are built like that is a table, since `transformers` does not say what else may look beyond
a token: other masks, states, experts.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional
from transformers import AttentionInterface

from areal.api import ModelError
from areal.engine.hf.pixels import axis_positions, is_vision
from areal.models.parallel.collectives import enter, leave
from areal.models.parallel.dims import ParallelDims
from areal.models.parallel.local import adopt
from areal.models.parallel.pipeline import pieces_of
from areal.models.parallel.plan import Shard
from areal.models.parallel.tensor import split_parameters, splits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from areal.api import AttentionBackend, PackedImage
    from areal.models.vision import VisionFormat

    # A `HuggingFaceModel`, whose module imports this one.
    _Model = Any

DIVISIBLE: Final = frozenset(
    {"llama", "mistral", "qwen2", "qwen2_5_vl_text", "qwen2_vl_text", "qwen3", "qwen3_vl_text"}
)
"""Text models whose layers are causal attention over heads and a gated feed-forward part, and nothing else."""
_SPLITS: Final[dict[str, Shard]] = {
    "*.self_attn.q_proj": Shard.COLUMN,
    "*.self_attn.k_proj": Shard.COLUMN,
    "*.self_attn.v_proj": Shard.COLUMN,
    "*.self_attn.o_proj": Shard.ROW,
    "*.mlp.gate_proj": Shard.COLUMN,
    "*.mlp.up_proj": Shard.COLUMN,
    "*.mlp.down_proj": Shard.ROW,
}
_ATTENTION: Final = "areal_packed"


def attend_packed(model: _Model) -> None:
    """Have the layers attend over packed tokens from now on, with the attention that `packed_hidden` is given."""
    AttentionInterface.register(_ATTENTION, _packed_attention)
    language_of(model.inner).config._attn_implementation = _ATTENTION


def packed_hidden(
    model: _Model,
    tokens: Tensor,
    positions: Tensor,
    cu_seqlens: Tensor,
    *,
    cp: ProcessGroup,
    attention: AttentionBackend,
    images: Sequence[PackedImage],
    piece: int | None = None,
    received: Tensor | None = None,
) -> Tensor:
    """States [t, hidden_size] behind the layers of `piece`, or behind all.

    tokens, positions: int64 [t], this rank's piece of the packed tokens with their padding. cp: ranks that have the
    others. images: of all packed tokens. received: states [t, hidden_size] of the piece of layers before.
    """
    options: dict[str, Any] = {"position_ids": positions[None]}
    if model.vision is not None and model.vision.has_grid:
        options["position_ids"] = _axes(model.vision, cu_seqlens, images, tokens, cp)[:, None]
    if received is None:
        assert model.embed_tokens is not None, "the first piece is here"
        embedded: Tensor = model.embed_tokens(tokens)
        received, layers = _with_images(model, embedded, images, cp.rank() * len(tokens))
        options |= layers
    language = language_of(model.inner)
    found: Tensor = (language if piece is None else _only(language, model, piece))(
        inputs_embeds=received[None], use_cache=False, return_dict=True, attention_backend=attention, **options
    ).last_hidden_state
    return found.squeeze(0).clone()  # FSDP2 warns of views


def _with_images(
    model: _Model, embedded: Tensor, images: Sequence[PackedImage], first: int
) -> tuple[Tensor, dict[str, Any]]:
    """Put the features of images in the place of their placeholders, as far as those are in this rank's piece, which
    begins with packed token `first`; and what is added behind the first layers."""
    end = first + len(embedded)
    own = [image for image in images if image.start < end and first < image.start + image.length]
    if not own:
        return embedded, {}
    assert model.tower is not None, "only an image-text model is given images"
    found = model.tower.features(model.inner.base_model, own)
    spans = [(max(first - image.start, 0), min(end - image.start, image.length)) for image in own]
    columns = torch.cat([torch.arange(*span) + image.start - first for image, span in zip(own, spans, strict=True)]).to(
        embedded.device
    )

    def cut(features: Sequence[Tensor]) -> Tensor:
        rows = [each[start:end] for each, (start, end) in zip(features, spans, strict=True)]
        return torch.cat(rows).to(embedded.dtype)

    embedded = embedded.index_copy(0, columns, cut(found.pooler_output))
    if found.deepstack_features is None:
        return embedded, {}
    is_image = torch.zeros(len(embedded), dtype=torch.bool, device=embedded.device).index_fill(0, columns, True)
    layers = [cut(features) for features in found.deepstack_features]
    return embedded, {"visual_pos_masks": is_image[None], "deepstack_visual_embeds": layers}


def _axes(
    vision: VisionFormat, cu_seqlens: Tensor, images: Sequence[PackedImage], tokens: Tensor, cp: ProcessGroup
) -> Tensor:
    """Positions int64 [3, t] of this rank's piece."""
    spans = list(itertools.pairwise(cu_seqlens.tolist()))
    places = [
        [(image.start - start, *image.pixels.shape[:2]) for image in images if start <= image.start < end]
        for start, end in spans
    ]
    axes, _ = axis_positions(vision, [end - start for start, end in spans], places)
    packed = torch.cat([torch.tensor(each, dtype=torch.int64) for each in axes], dim=1)
    padded = functional.pad(packed, (0, cp.size() * len(tokens) - packed.shape[1]))
    return padded.chunk(cp.size(), dim=1)[cp.rank()].to(tokens.device)


def language_of(inner: Any) -> Any:
    """Return the text model inside a model of `transformers`, or inside a part of one."""
    body = inner.base_model
    return getattr(body, "language_model", body)


def check_divisible(model: _Model, dims: ParallelDims) -> None:
    """Raise ModelError with everything that keeps the language half from being divided."""
    config = language_of(model.inner).config
    asked = f"tp={dims.tp} cp={dims.cp}"
    problems = []
    if config.model_type not in DIVISIBLE:
        problems.append(
            f"{config.model_type!r} does not say how its matrices, tokens and layers may be split; known are "
            f"{', '.join(sorted(DIVISIBLE))}. Use dp_shard and dp_replicate, or make it a family with "
            f"`areal-new model` and leave model.implementation native"
        )
    elif config.num_attention_heads % (dims.tp * dims.cp):
        problems.append(f"{asked}: {config.num_attention_heads} heads; tp * cp has to divide them")
    elif config.num_key_value_heads % dims.tp or config.intermediate_size % dims.tp:
        problems.append(
            f"{asked}: {config.num_key_value_heads} key-value heads and {config.intermediate_size} features between "
            f"matrices; tp has to divide both"
        )
    if model.has_length_dependent_positions:
        problems.append("positions change with the length of a sequence, which a piece of it cannot tell")
    if problems:
        raise ModelError(f"tp, cp and pp: the model cannot be split: {'; '.join(problems)}")


def split_layers(model: _Model, mesh: DeviceMesh) -> frozenset[str]:
    """Split the matrices of the layers over the ranks of tp, in place.

    Returns the names of parameters whose gradients are terms of a sum over them afterwards.
    """
    group = mesh.get_group()
    partial: set[str] = set()
    prefix = f"{_name_of(model, language_of(model.inner).layers)}."
    for name, module in model.named_modules():
        if not name.startswith(prefix):
            continue
        splits = dict(splits_of(name, module, _SPLITS))
        split_parameters(module, splits, mesh)
        own = name.removeprefix(prefix).split(".")
        if own[1:2] in (["self_attn"], ["mlp"]):
            partial |= {f"{name}.{leaf}" for leaf, _ in module.named_parameters(recurse=False) if leaf not in splits}
            if len(own) == 2:
                adopt(module, forward=_region(group))
    return frozenset(partial)


def part_of(model: _Model, pieces: Sequence[int], number: int, *, projects: bool) -> _Model:
    """Return some pieces; see `areal.models.parallel.pipeline.take_part`. The first has the tower and its projector."""
    check_divisible(model, ParallelDims())
    whole = language_of(model.inner)
    layers = list(whole.layers)
    if len(layers) < number:
        raise ModelError(f"{len(layers)} layers cannot be cut into {number} pieces; lower parallel.pp or pp_pieces")
    spans = pieces_of(len(layers), number)
    deep = len(getattr(getattr(model.inner.config, "vision_config", None), "deepstack_visual_indexes", None) or ())
    if deep > len(spans[0]):
        raise ModelError(
            f"features of images are added behind the first {deep} layers, and the first of {number} pieces has "
            f"{len(spans[0])} layers; lower parallel.pp or pp_pieces"
        )
    part = copy.copy(model)
    part.layers_of = {piece: tuple(str(layer) for layer in spans[piece]) for piece in sorted(pieces)}
    part.last_piece = number - 1
    has_first, has_last = 0 in pieces, number - 1 in pieces
    keeps_embedding = has_first or (has_last and model.lm_head is None and projects)
    part._modules = dict(model._modules)
    part.inner = _copied(part, "inner")
    body = _copied(part.inner, model.inner.base_model_prefix)
    language = _copied(body, "language_model") if whole is not model.inner.base_model else body
    own = nn.ModuleList()
    own._modules = {name: whole.layers[int(name)] for names in part.layers_of.values() for name in names}
    language._modules["layers"] = own
    if not keeps_embedding:
        # Not None: `transformers` looks for the embedding to find the head.
        language._modules["embed_tokens"] = nn.Identity()
    if not has_first:
        body._modules |= {name: None for name in body._modules if is_vision(name)}
    if has_last:
        part.rebuild_head()
    else:
        language._modules["norm"] = None
        part.inner._modules["lm_head"] = None
        del part.__dict__["_head"]  # it holds the whole model's
    return part


def _copied(owner: nn.Module, name: str) -> Any:
    """Put a copy, with the same modules in it, in the place of a module."""
    copied: Any = copy.copy(owner._modules[name])
    copied._modules = dict(copied._modules)
    owner._modules[name] = copied
    return copied


def _only(language: Any, model: _Model, piece: int) -> Any:
    """Return the text model as if it had the layers of one piece alone, and no norm unless they are the last."""
    found = copy.copy(language)
    layers = nn.ModuleList()
    layers._modules = {name: language.layers._modules[name] for name in model.layers_of[piece]}
    norm = language.norm if piece == model.last_piece else nn.Identity()
    found._modules = {**language._modules, "layers": layers, "norm": norm}
    return found


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)


def _region(group: ProcessGroup) -> Callable[..., Any]:
    """Compute the forward of attention or of a feed-forward part, whose output is a sum over the ranks."""

    def forward(inner: Callable[..., Any], module: nn.Module, hidden_states: Tensor, **options: Any) -> Any:
        found = inner(module, enter(hidden_states, group), **options)
        return (leave(found[0], group), *found[1:]) if isinstance(found, tuple) else leave(found, group)

    return forward


def _packed_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attention_backend: AttentionBackend,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as layers of `transformers` ask for it: [1, heads, t, head_dim] -> [1, t, heads, head_dim]."""
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} has a mask of its own, which packed tokens cannot follow")
    query, key, value = (part[0].transpose(0, 1) for part in (query, key, value))
    found = attention_backend(module.layer_idx, query, key, value, scale=scaling, window=sliding_window)
    return found[None], None
