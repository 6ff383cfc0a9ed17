"""A matrix, an activation and a norm between the final norm and the head, found on the traced tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.models.blocks.activations import ACTIVATIONS
from areal.porting.infer.matrices import matrix_call
from areal.porting.infer.mlp import activation_names
from areal.porting.infer.norms import infer_norm
from areal.porting.infer.tensors import LOCAL, error, same
from areal.porting.records import Evidence, Inferred, UnsupportedError
from areal.porting.spec import HeadTransformSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from areal.porting.records import Roles, Trace


def infer_transform(
    model: nn.Module, roles: Roles, trace: Trace, normed: Tensor, config: Mapping[str, Any]
) -> Inferred[HeadTransformSpec]:
    """The transform of `normed`, which its matrix reads. Tensors: "dense.weight", "dense.bias", "norm.weight", ...

    Raises UnsupportedError where something else happens between the final norm and the head.
    """
    assert roles.head_dense is not None
    assert roles.head_norm is not None, "called for models with a transform"
    call = trace.calls[roles.head_dense][0]
    dense = matrix_call(model.get_submodule(roles.head_dense), call)
    assert dense is not None, "roles chose a matrix"
    if not same(call.input, normed):
        raise UnsupportedError(
            "something between final norm and head", where=roles.head_dense, detail="before the matrix of the head"
        )
    norm_call = trace.calls[roles.head_norm][0]
    errors = {name: error(ACTIVATIONS[name](dense.output), norm_call.input) for name in activation_names(config)}
    name = next((name for name, off in errors.items() if off <= LOCAL), None)
    if name is None:
        detail = f"no activation of its output enters {roles.head_norm} (best: off by {min(errors.values()):.2g})"
        raise UnsupportedError("a transform of an unknown form before the head", where=roles.head_dense, detail=detail)
    norm = infer_norm(model.get_submodule(roles.head_norm), norm_call.input, norm_call.output, name=roles.head_norm)
    tensors = {"dense.weight": dense.weight} | {f"norm.{key}": value for key, value in norm.tensors.items()}
    if dense.bias is not None:
        tensors["dense.bias"] = dense.bias
    spec = HeadTransformSpec(activation=name, bias=dense.bias is not None, norm=norm.spec)
    others = [off for other, off in errors.items() if other != name and off > LOCAL]
    evidence = Evidence(
        feature="head_transform",
        value=f"matrix, {name}, {norm.spec.kind} norm",
        source="parity",
        detail=f"between {roles.head_dense} and {roles.head}",
        margin=min(others) / LOCAL if others else None,
    )
    return Inferred(spec=spec, tensors=tensors, evidence=(evidence,))
