"""Differential attention: two products of the same weights with the values of either half of the heads.

Names of the four vectors that make its factor do not matter: every assignment of them, and every epsilon that the
config or the module holds, is tried against what the output projection reads.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from areal.models.blocks.differential import DifferentialHeads
from areal.porting.infer.delta import KNOWN_EPSILONS
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.records import UnsupportedError

if TYPE_CHECKING:
    from torch import Tensor

    from areal.porting.infer.operands import Operands, View

PARTS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


def difference_of(view: View, operands: Operands, given: Tensor) -> tuple[dict[str, Tensor], float]:
    """Return the vectors of the factor and the epsilon with which the output projection's input comes out.

    given: [B, T, H * V]. Raises UnsupportedError where none does.
    """
    module = view.context.model.get_submodule(view.name)
    width = operands.value.shape[-1]
    vectors = [each.detach() for each in module.parameters(recurse=False) if each.shape == (width,)]
    held = [value for child in module.modules() for value in vars(child).values()]
    own = [value for value in held if isinstance(value, float)]
    known = [value for value in (*own, *numbers_of(view.context.config), *KNOWN_EPSILONS) if 0 < value < 0.1]
    attended, wanted = operands.attended.flatten(0, 1).double(), given.flatten(0, 1)
    nearest = float("inf")
    for four in itertools.permutations(vectors, 4):
        found: dict[str, Tensor] = dict(zip(PARTS, four, strict=True))
        errors = {}
        for eps in dict.fromkeys(known):
            heads = DifferentialHeads(view.context.layer, width, eps).double()
            heads.load_state_dict(found)
            with torch.no_grad():
                errors[eps] = error(heads(attended).flatten(1).float(), wanted)
        best = min(errors, key=lambda eps: errors[eps])
        nearest = min(nearest, errors[best])
        if errors[best] <= LOCAL:
            return {f"differential.{name}": vector for name, vector in found.items()}, best
    raise UnsupportedError(
        "several attentions in one module",
        where=view.name,
        detail=f"the same weights are applied to values of both halves of the heads, but what the output projection "
        f"reads is not a normed difference of them with {len(vectors)} vectors [{width}] (best: off by {nearest:.2g})",
    )
