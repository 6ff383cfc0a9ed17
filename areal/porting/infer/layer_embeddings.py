"""Embeddings of the tokens that each layer gets for itself: what they are made of, and how a layer adds them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS
from areal.porting.infer.mlp import activation_names
from areal.porting.infer.norms import infer_norm
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.roles import given_to, is_norm_like
from areal.porting.infer.tensors import EQUAL, LOCAL, combination, error, matrix_call, same, snapped
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import LayerEmbeddingsSpec, LayerInputSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from areal.porting.records import LayerRoles, ModelRoles, Trace

UNKNOWN = "embeddings of the tokens in each layer, of an unknown form"


def infer_layer_embeddings(
    model: nn.Module, roles: ModelRoles, trace: Trace, config: Mapping[str, Any]
) -> Inferred[LayerEmbeddingsSpec]:
    """Infer what all layers get of the tokens. Tensors: "table.weight", "projection.weight", "norm.weight".

    Raises UnsupportedError where it is not a sum of a table and of what a matrix makes of the embeddings.

    Example: the blocks of a tiny gemma4_text get [2, 24, 28] each. Together they are 0.7071068 times a norm's output,
    which read 0.125 times a matrix's of the embeddings [2, 24, 64], and 3.7416575 times rows of the table: sqrt(28)
    times as much.
    """
    assert roles.layer_embedding is not None, "called for models with a second table"
    where = roles.layer_embedding
    table: Tensor = model.get_submodule(where).weight.detach()  # type: ignore[operator]  # roles chose a module with a table
    start = trace.calls[roles.layers[0].block][0]
    num_layers, hidden_size = len(roles.layers), start.input.shape[-1]
    size = table.shape[1] // num_layers
    given = [given_to(trace.calls[layer.block][0], size) for layer in roles.layers]
    joined = torch.stack([each for each in given if each is not None], dim=2)
    before = [calls[0] for name, calls in trace.calls.items() if name and calls[0].order < start.order]
    matrices = [(call, matrix_call(model.get_submodule(call.name), call)) for call in before]
    projections = [
        (call, found) for call, found in matrices if found and found.weight.shape == (table.shape[1], hidden_size)
    ]
    norms = [call for call in before if call.input.numel() == joined.numel() and call.input.shape[-1] == size]
    norms = [call for call in norms if is_norm_like(model, trace, call.name)]
    if len(projections) != 1 or len(norms) != 1 or projections[0][1].bias is not None:
        detail = f"{len(projections)} matrices from the embeddings to all layers, and {len(norms)} norms"
        raise UnsupportedError(UNKNOWN, where=where, detail=detail)
    (call, projection), normed = projections[0], norms[0]
    rows = functional.embedding(trace.tokens, table).reshape(joined.shape)
    (scale,), off = combination(normed.input.reshape(joined.shape), (projection.output.reshape(joined.shape),))
    (own, other), rest = combination(joined, (rows, normed.output.reshape(joined.shape)))
    if not same(call.input, start.input) or max(off, rest) > LOCAL:
        detail = f"off by {max(off, rest):.2g} (relative) from {own:.4g} {where} + {other:.4g} {normed.name}"
        raise UnsupportedError(UNKNOWN, where=where, detail=detail)
    norm = infer_norm(model.get_submodule(normed.name), normed.input, normed.output, name=normed.name)
    known = (1.0, *(number for number in numbers_of(config) if number > 0))
    spec = LayerEmbeddingsSpec(
        vocab_size=table.shape[0],
        size=size,
        multiplier=snapped(own / other, (math.sqrt(size), *known)),
        projection_multiplier=snapped(scale, (1 / math.sqrt(hidden_size), *known)),
        sum_multiplier=snapped(other, (math.sqrt(0.5), *known)),
        norm=norm.spec,
    )
    evidence = FeatureEvidence(
        feature="layer_embeddings",
        value=f"{size} numbers of each token in each of {num_layers} layers",
        source="probe",
        detail=f"{other:.7g} ({normed.name} + {own / other:.7g} {where}), off by {rest:.1e} (relative)",
    )
    tensors = {"table.weight": table, "projection.weight": projection.weight}
    tensors |= {f"norm.{key}": value for key, value in norm.tensors.items()}
    return Inferred(spec=spec, tensors=tensors, evidence=(evidence,))


def infer_layer_input(
    model: nn.Module, roles: LayerRoles, trace: Trace, config: Mapping[str, Any], scalars: Mapping[str, Tensor]
) -> tuple[Inferred[LayerInputSpec], Tensor]:
    """Infer how a block adds what it gets of its tokens, and return it with what the block would give without it.

    scalars: single numbers that the block holds, of which one may multiply the result: the tensor "output_scale". Other
    tensors: "layer_input.gate.weight", ... Raises UnsupportedError where the block does something else.
    """
    assert roles.layer_input is not None, "called for blocks that get something of their tokens"
    block = trace.calls[roles.block][0]
    matrices = [matrix_call(model.get_submodule(name), trace.calls[name][0]) for name in roles.layer_input]
    gate, projection = (matrix for matrix in matrices if matrix is not None)
    before, given = trace.calls[roles.layer_input[0]][0].input, given_to(block, gate.output.shape[-1])
    assert given is not None, "roles saw what the block gets"
    read = trace.calls[roles.layer_input[1]][0].input
    errors = {name: error(ACTIVATIONS[name](gate.output) * given, read) for name in activation_names(config)}
    activation = min(errors, key=lambda name: errors[name])
    norms = [call for name in roles.norms for call in trace.calls[name] if same(call.input, projection.output)]
    if errors[activation] > LOCAL or not norms or gate.bias is not None or projection.bias is not None:
        detail = f"{activation} of {roles.layer_input[0]} times what it gets is off by {errors[activation]:.2g}; "
        detail += f"{len(norms)} norms read {roles.layer_input[1]}"
        raise UnsupportedError(UNKNOWN, where=roles.block, detail=detail)
    norm = infer_norm(model.get_submodule(norms[0].name), norms[0].input, norms[0].output, name=norms[0].name)
    (stream, added), off = combination(block.output, (before, norms[0].output))
    known = [each for each in scalars.values() if abs(float(each) / stream - 1) <= EQUAL]
    if off > LOCAL or abs(added / stream - 1) > EQUAL or not (known or abs(stream - 1) <= EQUAL):
        detail = f"it is {stream:.6g} times the stream and {added:.6g} times what is added, off by {off:.2g} (relative)"
        raise UnsupportedError(UNKNOWN, where=roles.block, detail=detail)
    tensors = {"layer_input.gate.weight": gate.weight, "layer_input.projection.weight": projection.weight}
    tensors |= {f"layer_input.norm.{key}": value for key, value in norm.tensors.items()}
    tensors |= {"output_scale": known[0]} if known else {}
    others = [off for name, off in errors.items() if name != activation and off > LOCAL]
    evidence = FeatureEvidence(
        feature="layer_input",
        value=f"{activation} of {gate.output.shape[-1]} numbers",
        source="parity",
        detail=f"{roles.layer_input[1]} reproduced to {errors[activation]:.1e}",
        margin=min(others) / LOCAL if others else None,
    )
    spec = LayerInputSpec(size=gate.output.shape[-1], activation=activation, norm=norm.spec)
    return Inferred(spec=spec, tensors=tensors, evidence=(evidence,)), before
