"""Where a spec stops agreeing with the instance that it should describe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from areal.porting import reference
from areal.porting.infer.roles import find_roles
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.probe.instance import make_tokens
from areal.porting.probe.trace import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from areal.porting.probe.instance import Instance
    from areal.porting.records import Roles, Trace
    from areal.porting.spec import ArchitectureSpec

ACCEPTED = 5 * LOCAL
"""Relative error that earlier parts may have left."""


@dataclass(frozen=True)
class Divergence:
    """The first part that gives something else, in the order of the computation."""

    module: str
    """Qualified name in the instance; "logits" when all parts agree but the result does not."""
    difference: float
    """max |difference| relative to the largest expected value."""

    def __str__(self) -> str:
        return f"{self.module} is off by {self.difference:.2g} (relative)"


def first_divergence(
    instance: Instance,
    spec: ArchitectureSpec,
    weights: Mapping[str, Tensor],
    *,
    trace: Trace | None = None,
    roles: Roles | None = None,
) -> Divergence | None:
    """Compare embeddings, attentions, feed-forward layers, blocks, final norm and logits; None if all agree."""
    if trace is None:
        trace = record(instance, make_tokens(instance, batch=2, length=24, seed=1))
    roles = roles or find_roles(instance.model, trace)
    ours = _run(reference.load(spec, weights), trace.tokens)
    for theirs, name, expected in _checkpoints(roles, trace):
        difference = error(ours[name].reshape(expected.shape), expected)
        if difference > ACCEPTED:
            return Divergence(theirs, difference)
    return None


def _checkpoints(roles: Roles, trace: Trace) -> Iterator[tuple[str, str, Tensor]]:
    """(module of the instance, module of ours, what the instance got there)."""
    for number, layer in enumerate(roles.layers):
        block = trace.calls[layer.block][0]
        if number == 0:
            yield f"input of {layer.block}", "input", block.input
        # Parts may add the residual themselves, so they are judged only by the block around them.
        yield layer.block, f"layers.{number}", block.output
    if roles.final_norm is not None:
        yield roles.final_norm, "norm", trace.calls[roles.final_norm][0].output
    yield "logits", "logits", trace.logits


def _run(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    outputs: dict[str, Tensor] = {}
    handles = []

    def keep(name: str) -> None:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            del module
            outputs[name] = output
            if name == "layers.0":
                outputs["input"] = arguments[0]

        handles.append(model.get_submodule(name).register_forward_hook(hook))

    for number in range(len(model.layers)):  # type: ignore[arg-type]  # a ModuleList
        keep(f"layers.{number}")
    if model.norm is not None:
        keep("norm")
    batch, length = tokens.shape
    bounds = torch.arange(0, batch * length + 1, length, dtype=torch.int32)
    with torch.no_grad():
        outputs["logits"] = model(tokens.flatten(), torch.arange(length).repeat(batch), bounds, length)
    for handle in handles:
        handle.remove()
    return outputs
