"""What stands around the layers: embedding, absolute positions, their norm, the final norm, the head, its scalars."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from areal.models.blocks.mlp import ACTIVATIONS
from areal.models.blocks.positions import SinusoidalPositions
from areal.porting.infer.layer_embeddings import infer_layer_embeddings
from areal.porting.infer.mlp import activation_names
from areal.porting.infer.norms import fit_norm, infer_norm
from areal.porting.infer.replay import numbers_of
from areal.porting.infer.tensors import (
    EQUAL,
    LOCAL,
    MATRIX_DIMENSIONS,
    combination,
    error,
    inside,
    matrix_call,
    rows,
    same,
    snapped,
)
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import HeadTransformSpec, PositionSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from areal.porting.records import ModelRoles, Trace
    from areal.porting.spec import LayerEmbeddingsSpec, NormSpec


ENDLESS = 2**20
"""Positions of a sinusoid that no config field limits."""


@dataclass(frozen=True, kw_only=True)
class TopFinding:
    """The fields of an `ArchitectureSpec` that are not its layers."""

    vocab_size: int
    hidden_size: int
    final_norm: NormSpec | None
    tied: bool
    embedding_multiplier: float
    positions: PositionSpec | None
    embedding_norm: NormSpec | None
    layer_embeddings: LayerEmbeddingsSpec | None
    head_transform: HeadTransformSpec | None
    head_bias: bool
    logit_multiplier: float
    logit_softcap: float | None


def infer_top(model: nn.Module, roles: ModelRoles, trace: Trace, config: Mapping[str, Any]) -> Inferred[TopFinding]:
    """Infer everything of the model but its layers. Tensors: "embed_tokens.weight", "norm.weight", "lm_head.weight",
    ...

    Raises UnsupportedError when the input of the first layer, or the logits, are something else than these parts say.
    """
    return _Top(model, roles, trace, config).infer()


class _Top:
    def __init__(self, model: nn.Module, roles: ModelRoles, trace: Trace, config: Mapping[str, Any]) -> None:
        self.model = model
        self.roles = roles
        self.trace = trace
        self.config = config
        self.numbers = [number for number in numbers_of(config) if number > 0]
        self.start = trace.calls[roles.layers[0].block][0].input
        self.end = trace.calls[roles.layers[-1].block][0].output
        self.tensors: dict[str, Tensor] = {}
        self.evidence: list[FeatureEvidence] = []

    def infer(self) -> Inferred[TopFinding]:
        table: Tensor = self.model.get_submodule(self.roles.embedding).weight.detach()  # type: ignore[operator]  # roles chose a module with a table
        if table.shape[1] != self.start.shape[-1]:
            detail = f"{table.shape[1]} dimensions, but the layers have {self.start.shape[-1]}"
            raise UnsupportedError("projected embeddings", where=self.roles.embedding, detail=detail)
        self.tensors["embed_tokens.weight"] = table
        embedding_norm, start = self._embedding_norm()
        multiplier, positions = self._embedded(table, start)
        layered = None
        if self.roles.layer_embedding is not None:
            layered = infer_layer_embeddings(self.model, self.roles, self.trace, self.config)
            self.evidence += layered.evidence
            self.tensors |= {f"layer_embeddings.{key}": value for key, value in layered.tensors.items()}
        final_norm, normed = self._final_norm()
        transform, normed = self._transform(normed)
        matrix, tied, head_bias = self._head(table)
        logit_multiplier, softcap = self._logits(normed, matrix, head_bias)
        finding = TopFinding(
            vocab_size=table.shape[0],
            hidden_size=table.shape[1],
            final_norm=final_norm,
            tied=tied,
            embedding_multiplier=multiplier,
            positions=positions,
            embedding_norm=embedding_norm,
            layer_embeddings=None if layered is None else layered.spec,
            head_transform=transform,
            head_bias=head_bias,
            logit_multiplier=logit_multiplier,
            logit_softcap=softcap,
        )
        return Inferred(spec=finding, tensors=self.tensors, evidence=tuple(self.evidence))

    # ------------------------------------------------------------------------------------------------------ embedding

    def _embedding_norm(self) -> tuple[NormSpec | None, Tensor]:
        """Return the norm of the embeddings, and what it was applied to."""
        name = self.roles.embedding_norm
        if name is None:
            return None, self.start
        call = self.trace.calls[name][0]
        found = infer_norm(self.model.get_submodule(name), call.input, call.output, name=name)
        if not same(call.output, self.start):
            detail = "its output is changed before it enters the first layer"
            raise UnsupportedError("something between embedding norm and layers", where=name, detail=detail)
        self._note("embedding_norm", found)
        self.tensors |= {f"embed_norm.{key}": value for key, value in found.tensors.items()}
        return found.spec, call.input

    def _embedded(self, table: Tensor, start: Tensor) -> tuple[float, PositionSpec | None]:
        """Return the multiplier of the embeddings, and the positions added to them.

        Example: granite's first layer receives 6.0 times the embeddings. Differences between two rows of the batch at
        the same position are 5.9999995 times the differences of their embeddings, with a relative error of 1e-7; 6.0 is
        a number of the config. What is left of the first row after subtracting 6.0 times its embeddings is zero: there
        are no positions to add.
        """
        batch, length = self.trace.tokens.shape
        embedded = functional.embedding(self.trace.tokens, table).double()
        start = start.reshape(batch, length, -1).double()
        # The same position in two rows of the batch holds the same position vector, so differences are free of it.
        (factor,), off = combination(start - start.roll(1, 0), (embedded - embedded.roll(1, 0),))
        if off > LOCAL:
            detail = (
                f"what enters the first layer is off by {off:.2g} (relative) from {factor:.4g} embedding + positions"
            )
            raise UnsupportedError("an unknown input of the layers", where=self.roles.layers[0].block, detail=detail)
        width = table.shape[1]
        multiplier = snapped(factor, (1.0, math.sqrt(width), *self.numbers))
        if multiplier != 1.0:
            self._say(
                "embedding_multiplier", f"{multiplier:g}", "probe", f"embeddings enter the layers times {factor:.7g}"
            )
        rest = start[0] - multiplier * embedded[0]
        if float(rest.abs().max()) <= LOCAL * float(start.abs().max()):
            return multiplier, None
        return multiplier, self._positions(rest)

    def _positions(self, rest: Tensor) -> PositionSpec:
        """Return the table that gives `rest` [T, H]."""
        learned = {name: value.detach() for name, value in self.model.named_parameters()}
        for name, value in learned.items():
            if value.ndim != MATRIX_DIMENSIONS or value.shape[1] != rest.shape[1] or value.shape[0] < rest.shape[0]:
                continue
            offset = int((value.double() - rest[0]).abs().sum(1).argmin())
            if error(value[offset : offset + rest.shape[0]].double(), rest) <= LOCAL * 10:
                self.tensors["embed_positions.weight"] = value
                self._say("positions", f"learned, offset {offset}", "parity", f"rows of {name} {tuple(value.shape)}")
                return PositionSpec(kind="learned", num_positions=value.shape[0] - offset, offset=offset)
        length, width = rest.shape
        choices = itertools.product((False, True), (False, True), range(4))
        for interleaved, endpoint, offset in choices if width % 2 == 0 else ():
            options = {"offset": offset, "interleaved": interleaved, "endpoint": endpoint}
            block = SinusoidalPositions(length, width, **options)  # type: ignore[arg-type]  # an int and two flags
            if error(block(torch.arange(length)).double(), rest) <= LOCAL * 10:
                self._say("positions", f"sinusoidal, offset {offset}", "parity", "what is added to the embeddings")
                # How long the config allows sequences to be; sinusoids themselves have no end.
                config = getattr(self.model, "config", None)
                values = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
                known = [value for value in values if isinstance(value, int) and value >= length]
                return PositionSpec(kind="sinusoidal", num_positions=max(known, default=ENDLESS), **options)  # type: ignore[arg-type]  # as in the line above
        detail = "what is added to embeddings depends on the position, but is neither a learned table nor a sinusoid"
        raise UnsupportedError("unknown absolute positions", where=self.roles.layers[0].block, detail=detail)

    # ----------------------------------------------------------------------------------------------------------- head

    def _final_norm(self) -> tuple[NormSpec | None, Tensor]:
        """Return the norm after the last layer, and what it gave."""
        name = self.roles.final_norm
        head_input = self.trace.calls[self.roles.head_dense or self.roles.head][0].input
        if name is not None:
            call = self.trace.calls[name][0]
            if not same(call.input, self.end):
                detail = "its input is not the output of the last layer"
                raise UnsupportedError("something between layers and final norm", where=name, detail=detail)
            found = infer_norm(self.model.get_submodule(name), call.input, call.output, name=name)
            normed = call.output
        else:
            _, off = combination(head_input, (self._aligned(self.end, head_input),))
            if off <= EQUAL:
                return None, self.end
            blocks = [layer.block for layer in self.roles.layers]
            outer = {
                key: value.detach()
                for key, value in self.model.named_parameters()
                if value.ndim == 1 and not any(inside(key, block) for block in blocks)
            }
            found = fit_norm(self.end, head_input, outer, epsilons=self.numbers, name=self.roles.head)
            normed = head_input
        self._note("final_norm", found)
        self.tensors |= {f"norm.{key}": value for key, value in found.tensors.items()}
        return found.spec, normed

    def _transform(self, normed: Tensor) -> tuple[HeadTransformSpec | None, Tensor]:
        """Return what stands between the final norm and the head, and what enters the head."""
        if self.roles.head_dense is None or self.roles.head_norm is None:
            if self.roles.head_dense is not None:
                detail = f"{self.roles.head_dense}, without a norm behind it"
                raise UnsupportedError(
                    "matrices between the last layer and the head", where=self.roles.head_dense, detail=detail
                )
            return None, normed
        found = infer_transform(self.model, self.roles, self.trace, normed, self.config)
        self.evidence += found.evidence
        self.tensors |= {f"head_transform.{key}": value for key, value in found.tensors.items()}
        return found.spec, self.trace.calls[self.roles.head_norm][0].output

    def _aligned(self, value: Tensor, like: Tensor) -> Tensor:
        if value.numel() != like.numel():
            shapes = f"{tuple(value.shape)} and {tuple(like.shape)}"
            raise UnsupportedError("a head on some of the tokens", where=self.roles.head, detail=shapes)
        return value

    def _head(self, table: Tensor) -> tuple[Tensor, bool, bool]:
        call = self.trace.calls[self.roles.head][0]
        matrix = matrix_call(self.model.get_submodule(self.roles.head), call)
        assert matrix is not None, "roles chose a matrix as head"
        if matrix.weight.shape != table.shape:
            detail = f"{tuple(matrix.weight.shape)}, embedding {tuple(table.shape)}"
            raise UnsupportedError("a head of another size than the embedding", where=self.roles.head, detail=detail)
        tied = matrix.weight.data_ptr() == table.data_ptr()
        if not tied:
            self.tensors["lm_head.weight"] = matrix.weight
        if matrix.bias is not None:
            self.tensors["lm_head.bias"] = matrix.bias
        self._say("tied", str(tied).lower(), "parameters", f"{self.roles.head} and {self.roles.embedding}")
        return matrix.output, tied, matrix.bias is not None

    def _logits(self, normed: Tensor, projected: Tensor, head_bias: bool) -> tuple[float, float | None]:
        """Return the multiplier and softcap of the logits."""
        head_input = self.trace.calls[self.roles.head][0].input
        (before,), off = combination(head_input, (self._aligned(normed, head_input),))
        if off > EQUAL:
            detail = f"its input is off by {off:.2g} (relative) from a multiple of the final norm"
            raise UnsupportedError("something between final norm and head", where=self.roles.head, detail=detail)
        if abs(before - 1.0) > LOCAL and head_bias:
            raise UnsupportedError(
                "scaled input of a head with bias", where=self.roles.head, detail=f"times {before:g}"
            )
        logits = self.trace.logits
        (after,), off = combination(logits, (self._aligned(projected, logits),))
        softcap = None
        if off > LOCAL:
            after, softcap = self._softcap(logits, projected)
        candidates = (1.0, *self.numbers, *(1.0 / number for number in self.numbers))
        multiplier = snapped(before * after, candidates)
        if multiplier != 1.0:
            self._say("logit_multiplier", f"{multiplier:g}", "probe", f"measured {before * after:.7g}")
        return multiplier, softcap

    def _softcap(self, logits: Tensor, projected: Tensor) -> tuple[float, float]:
        """Return the factor and bound of logits = bound * tanh(factor * projected / bound): numbers of the config, else
        fitted."""
        found = []
        for bound in (*self.numbers, *self._fitted_bounds(logits, projected)):
            factor, off = _bounded(logits, projected, bound)
            if off <= 5 * LOCAL:
                found.append((factor, bound))
        if not found:
            raise UnsupportedError(
                "logits that are no multiple of the head's output",
                where=self.roles.head,
                detail="nor a tanh bound of it",
            )
        factor, bound = found[0]
        self._say("logit_softcap", f"{bound:g}", "parity", f"logits = {bound:g} tanh({factor:.6g} x / {bound:g})")
        return factor, bound

    def _fitted_bounds(self, logits: Tensor, projected: Tensor) -> Iterator[float]:
        low, high = float(logits.abs().max()) * 1.0001, float(logits.abs().max()) * 100
        for _ in range(60):
            left, right = low * (high / low) ** 0.382, low * (high / low) ** 0.618
            if _bounded(logits, projected, left)[1] < _bounded(logits, projected, right)[1]:
                high = right
            else:
                low = left
        yield float(f"{math.sqrt(low * high):.5g}")

    # ------------------------------------------------------------------------------------------------------- evidence

    def _say(self, feature: str, value: str, source: str, detail: str) -> None:
        self.evidence.append(FeatureEvidence(feature=feature, value=value, source=source, detail=detail))

    def _note(self, feature: str, found: Inferred[NormSpec]) -> None:
        self.evidence += [
            FeatureEvidence(
                feature=feature, value=line.value, source=line.source, detail=line.detail, margin=line.margin
            )
            for line in found.evidence
        ]


def _bounded(logits: Tensor, projected: Tensor, bound: float) -> tuple[float, float]:
    """Return the factor inside the tanh for this bound, and the relative error."""
    if float(logits.abs().max()) >= bound:
        return 1.0, math.inf
    inner = torch.atanh(rows(logits) / bound) * bound
    # Near the bound float32 has no digits left to invert.
    usable = rows(logits).abs() < 0.9 * bound
    x, y = rows(projected)[usable], inner[usable]
    if x.numel() == 0:
        return 1.0, math.inf
    factor = float((x * y).sum() / x.square().sum().clamp_min(1e-30))
    return factor, error((bound * torch.tanh(factor * rows(projected) / bound))[None], rows(logits)[None])


# ----------------------------------------------------------------------------------------------------------------- head

# A matrix, an activation and a norm between the final norm and the head, found on the traced tensors.


def infer_transform(
    model: nn.Module, roles: ModelRoles, trace: Trace, normed: Tensor, config: Mapping[str, Any]
) -> Inferred[HeadTransformSpec]:
    """Infer the transform of `normed`, which its matrix reads. Tensors: "dense.weight", "dense.bias", "norm.weight",
    ...

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
    evidence = FeatureEvidence(
        feature="head_transform",
        value=f"matrix, {name}, {norm.spec.kind} norm",
        source="parity",
        detail=f"between {roles.head_dense} and {roles.head}",
        margin=min(others) / LOCAL if others else None,
    )
    return Inferred(spec=spec, tensors=tensors, evidence=(evidence,))
