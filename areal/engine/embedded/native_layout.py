"""What `kernel.c` reads: the records of a model, made from the modules of a decoder whose layers it knows.

    pre-norm, post-norm and sandwich blocks; RMS and layer norms, also of queries and keys; grouped queries, windows,
    chunks, softcaps, sinks, rotary positions; plain and gated feed-forward layers by SiLU, GELU or ReLU; float32.

Anything else raises `UnsupportedLayer`, with its name. What is not named above must not change a result silently:
`_PLAIN` lists, for each module, the attributes of features that are missing, and the value at which they do nothing.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.block import PostNormBlock, PreNormBlock, SandwichBlock
from areal.models.blocks.decoder import DecoderModel
from areal.models.blocks.linear import Linear
from areal.models.blocks.mlp import MLP, GatedMLP, gelu_tanh, quick_gelu
from areal.models.blocks.norms import LayerNorm, RMSNorm
from areal.models.blocks.rotary import Rotary
from areal.utils.machine import free_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PAD: Final = 16
"""Outputs of a matrix are padded to a multiple of this, the widest vector."""
_MAX_HEAD: Final = 256
_COPIES: Final = 3
"""Of one matrix, while it is packed."""


class UnsupportedLayer(Exception):
    """Something that the kernel does not compute; the message names it."""


class _Matrix(ctypes.Structure):
    _fields_: ClassVar = [
        ("panels", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in", ctypes.c_int64),
        ("out", ctypes.c_int64),
    ]


class _Norm(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("size", "centered")),
        *((name, ctypes.c_double) for name in ("eps", "offset")),
    ]


class _Layer(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, _Norm) for name in ("before_attention", "after_attention", "before_mlp", "after_mlp", "query", "key")),
        *((name, _Matrix) for name in ("qkv", "output", "inner", "down")),
        *((name, ctypes.c_void_p) for name in ("cosine", "sine", "sinks")),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "prompt_keys", "prompt_values")),
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "head_dim", "rotated", "interleaved")),
        *((name, ctypes.c_int64) for name in ("window", "chunk", "width", "gated", "activation")),
        *((name, ctypes.c_double) for name in ("scale", "softcap", "residual", "output_scale", "sharpness")),
    ]


class ModelRecord(ctypes.Structure):
    """`struct model` of the kernel."""

    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(_Layer)),
        ("embedding", ctypes.c_void_p),
        ("norm", _Norm),
        ("head", _Matrix),
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden", "capacity", "prompt_capacity", "context")),
        *((name, ctypes.c_double) for name in ("embedding_multiplier", "logit_multiplier", "logit_softcap")),
    ]


# Norms before attention, after it, before the feed-forward layer, after it.
_NORMS: Final[dict[type[nn.Module], tuple[str | None, str | None, str | None, str | None]]] = {
    PostNormBlock: (None, "post_attention_layernorm", None, "post_feedforward_layernorm"),
    PreNormBlock: ("input_layernorm", None, "post_attention_layernorm", "post_feedforward_layernorm"),
    SandwichBlock: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}
_PLAIN: Final[dict[type[nn.Module], dict[str, Any]]] = {
    DecoderModel: {"embed_positions": None, "embed_norm": None, "layer_embeddings": None, "head_transform": None},
    GatedMLP: {"clamp": None, "up_offset": 0.0, "inner_norm": None, "gate_multiplier": 1.0, "output_multiplier": 1.0},
    MLP: {"inner_norm": None},
    PostNormBlock: {},
    PreNormBlock: {"beside": None},
    SandwichBlock: {"experts_beside": None, "layer_input": None, "first_sum": None},
    SelfAttention: {
        **{"alibi": None, "clip": None, "differential": None, "gate_bias": None, "gate_proj": None},
        **{"is_shared": False, "norm_after_rotary": False, "output_norm": None, "shares_keys": False},
        **{"v_norm": None, "value_scale": 1.0},
    },
}
_SILU, _GELU_TANH, _GELU, _RELU = range(4)
_ACTIVATIONS: Final[dict[Callable[[Tensor], Tensor], tuple[int, float]]] = {
    functional.gelu: (_GELU, 1.0),
    functional.relu: (_RELU, 1.0),
    functional.silu: (_SILU, 1.0),
    gelu_tanh: (_GELU_TANH, 1.0),
    quick_gelu: (_SILU, 1.702),
}


def require_computable(model: Any) -> None:
    """Raise UnsupportedLayer for a model that the kernel does not compute, without a copy of its weights."""
    if not isinstance(model, DecoderModel) or model.embed_tokens is None:
        raise UnsupportedLayer(f"the model is a {type(model).__name__}")
    for name in ("forward", "hidden", "project", "_embed"):
        if getattr(type(model), name) is not getattr(DecoderModel, name):
            raise UnsupportedLayer(f"{type(model).__name__} has a {name} of its own")
    _require_plain(model, DecoderModel, "the model")
    for name, value in model.named_parameters():
        if value.dtype is not torch.float32 or not value.is_cpu or type(value) is not nn.Parameter:
            raise UnsupportedLayer(f"{name} is {type(value).__name__} of {value.dtype} on {value.device}")
    for name, module in model.named_modules():
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnsupportedLayer(f"{name or 'the model'} has forward hooks")
    for number, block in enumerate(model.layers):
        _require_layer(f"layer {number}", block, model.rotaries[number])
    _require_norm(model.norm, "norm")


def _require_layer(where: str, block: Any, rotary: Any) -> None:
    if type(block) not in _NORMS:
        raise UnsupportedLayer(f"{where} is a {type(block).__name__}")
    _require_plain(block, type(block), where)
    attention, mlp = block.self_attn, block.mlp
    for part, allowed in ((attention, (SelfAttention,)), (mlp, (GatedMLP, MLP))):
        if type(part) not in allowed:
            raise UnsupportedLayer(f"{where} has a {type(part).__name__}")
        _require_plain(part, type(part), where)
    if attention.v_proj is None or attention.value_dim != attention.head_dim:
        raise UnsupportedLayer(f"{where} has values of another kind than keys")
    if attention.head_dim % _PAD or attention.head_dim > _MAX_HEAD:
        raise UnsupportedLayer(
            f"{where} has heads of {attention.head_dim}, expected a multiple of {_PAD} up to {_MAX_HEAD}"
        )
    if rotary is not None and type(rotary) is not Rotary:
        raise UnsupportedLayer(f"{where} has positions by {type(rotary).__name__}")
    if mlp.activation not in _ACTIVATIONS:
        raise UnsupportedLayer(f"{where} has the activation {getattr(mlp.activation, '__name__', mlp.activation)}")
    for matrix in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, *mlp.children()):
        if type(matrix) not in (Linear, nn.Linear):
            raise UnsupportedLayer(f"{where} has a matrix {type(matrix).__name__}")
    names = (name for name in _NORMS[type(block)] if name is not None)
    for norm in (attention.q_norm, attention.k_norm, *(getattr(block, name) for name in names)):
        _require_norm(norm, where)


def _require_plain(module: Any, kind: type[nn.Module], where: str) -> None:
    for name, plain in _PLAIN[kind].items():
        if getattr(module, name) != plain:
            raise UnsupportedLayer(f"{where} has {name} of {kind.__name__}")


def _require_norm(norm: Any, where: str) -> None:
    if norm is not None and (type(norm) not in (LayerNorm, RMSNorm) or len(norm.shape) != 1):
        raise UnsupportedLayer(f"{where} has a norm {type(norm).__name__} of shape {getattr(norm, 'shape', None)}")


class NativeModel:
    """The records of one model, with the packed copies of its weights; `refresh` when these change.

    Rotations are tables over the positions, which grow by `reserve`.
    """

    def __init__(self, model: Any, *, panel: int) -> None:
        """panel: outputs that the kernel computes together. Raises UnsupportedLayer, also without room for copies."""
        sizes = [parameter.nbytes for parameter in model.parameters()]
        needed, free = sum(sizes) + _COPIES * max(sizes), free_memory()
        if free is not None and needed > free:
            raise UnsupportedLayer(f"a copy of the weights needs {needed / 2**30:.1f} GiB, free are {free / 2**30:.1f}")
        self._model = model
        self._panel = panel
        self._tensors: list[Tensor] = []
        """What records point to."""
        self._tables: dict[Rotary, tuple[Tensor, Tensor]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Take over the weights as they are now. Raises UnsupportedLayer where the model has become another."""
        model = self._model
        require_computable(model)
        # The copy before goes first: two may not fit.
        self._tensors.clear()
        self._tables.clear()
        self._rotaries: tuple[Any, ...] = model.rotaries
        embedding = model.embed_tokens.weight
        head = model.lm_head
        weight = embedding if head is None or head.weight is None else head.weight
        self.layers = (_Layer * len(model.layers))(*map(self._layer, model.layers))
        self.cached: list[tuple[int, Tensor]] = [
            (each.layer, embedding.new_empty(0, each.num_kv_heads, each.head_dim))
            for each in (layer.self_attn for layer in model.layers)
        ]
        """For each layer, its number in the caches, and no keys of it."""
        self.vocab = weight.shape[0]
        self.record = ModelRecord(
            layers=self.layers,
            embedding=self._pointer(embedding),
            norm=self._norm(model.norm),
            head=self._matrix([(weight, None if head is None else head.bias)]),
            num_layers=len(model.layers),
            hidden=embedding.shape[1],
            embedding_multiplier=model.embedding_multiplier,
            logit_multiplier=model.logit_multiplier,
            logit_softcap=model.logit_softcap or 0.0,
        )

    def reserve(self, positions: int) -> None:
        """Have rotations for the first `positions` positions."""
        for layer, rotary in zip(self.layers, self._rotaries, strict=True):
            if rotary is None:
                continue
            table = self._tables.get(rotary)
            if table is None or table[0].shape[0] < positions:
                rotation = rotary(torch.arange(positions), torch.float32)
                if rotation.query_scale is not None:
                    raise UnsupportedLayer("queries grow with their position")
                table = self._tables[rotary] = (rotation.cos.contiguous(), rotation.signed_sin.contiguous())
            layer.cosine, layer.sine = table[0].data_ptr(), table[1].data_ptr()
            layer.rotated, layer.interleaved = (
                table[0].shape[-1],
                int(rotary(torch.arange(1), torch.float32).interleaved),
            )

    def _layer(self, block: Any) -> _Layer:
        attention, mlp = block.self_attn, block.mlp
        activation, sharpness = _ACTIVATIONS[mlp.activation]
        gated = isinstance(mlp, GatedMLP)
        inner = [mlp.gate_proj, mlp.up_proj] if gated else [mlp.up_proj]
        norms = (None if name is None else getattr(block, name) for name in _NORMS[type(block)])
        names = ("before_attention", "after_attention", "before_mlp", "after_mlp")
        scale = getattr(block, "output_scale", None)
        return _Layer(
            **{name: self._norm(norm) for name, norm in zip(names, norms, strict=True)},
            query=self._norm(attention.q_norm),
            key=self._norm(attention.k_norm),
            qkv=self._linear([attention.q_proj, attention.k_proj, attention.v_proj]),
            output=self._linear([attention.o_proj]),
            inner=self._linear(inner),
            down=self._linear([mlp.down_proj]),
            sinks=self._pointer(attention.sinks),
            heads=attention.num_heads,
            kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            window=attention.window or 0,
            chunk=attention.chunk or 0,
            width=_padded(mlp.up_proj.out_features),
            gated=int(gated),
            activation=activation,
            scale=attention.scale,
            softcap=attention.softcap or 0.0,
            residual=block.residual_multiplier,
            output_scale=1.0 if scale is None else float(scale),
            sharpness=sharpness,
        )

    def _norm(self, norm: Any) -> _Norm:
        if norm is None:
            return _Norm()
        return _Norm(
            weight=self._pointer(norm.weight),
            bias=self._pointer(getattr(norm, "bias", None)),
            size=norm.shape[0],
            centered=int(type(norm) is LayerNorm),
            eps=norm.eps,
            offset=norm.offset,
        )

    def _linear(self, modules: Sequence[Any]) -> _Matrix:
        return self._matrix([(module.weight, module.bias) for module in modules])

    def _matrix(self, parts: Sequence[tuple[Tensor, Tensor | None]]) -> _Matrix:
        """Lay weights [out, in] out in panels, one below the other, each padded with rows of zeros."""
        with torch.no_grad():
            weight = torch.cat([functional.pad(each, (0, 0, 0, _padded(len(each)) - len(each))) for each, _ in parts])
            whole = weight.shape[0] // self._panel * self._panel
            panels = weight[:whole].view(-1, self._panel, weight.shape[1]).transpose(1, 2)
            packed = torch.cat([panels.flatten(), weight[whole:].t().flatten()])
            bias = None
            if any(each is not None for _, each in parts):
                bias = torch.zeros(weight.shape[0])
                start = 0
                for matrix, each in parts:
                    if each is not None:
                        bias[start : start + len(each)] = each
                    start += _padded(len(matrix))
        pointers = {"panels": self._pointer(packed), "bias": self._pointer(bias)}
        return _Matrix(**pointers, **{"in": weight.shape[1], "out": weight.shape[0]})

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        tensor = tensor.detach().contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()


def _padded(size: int) -> int:
    return -(-size // _PAD) * _PAD
