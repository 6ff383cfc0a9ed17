"""Finds how a block joins its norms, attention and feed-forward: linear relations between traced tensors."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from areal.porting.infer.norms import apply_norm, fit_norm, infer_norm
from areal.porting.infer.tensors import EQUAL, combination, error, rows, same, snapped
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError
from areal.porting.spec import StreamFactorsSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from areal.porting.records import ModuleCall
    from areal.porting.spec import BlockKind, NormSpec

EXACT = 1e-5
"""Relative error of a sum of traced tensors that counts as the output of the block."""
NOTHING = 1e-6
"""A factor below this is 0."""


@dataclass(frozen=True, kw_only=True)
class BlockTensors:
    """What was traced of one block; all tensors have hidden_size as their last dimension."""

    name: str
    input: Tensor
    attention_input: Tensor
    attention_output: Tensor
    feed_forward_input: Tensor
    feed_forward_output: Tensor
    output: Tensor
    norms: Sequence[tuple[ModuleCall, nn.Module]]
    parameters: Mapping[str, Tensor]
    """Vectors of the block outside attention and feed-forward: what a norm in the block's own forward may use."""
    epsilons: Sequence[float] = ()
    """Numbers of the config, for norms in the block's own forward."""
    scalars: Mapping[str, Tensor] = field(default_factory=dict)
    """Single numbers that the block holds itself: one may multiply its output."""
    multipliers: Sequence[float] = ()
    """Numbers of the config, as spellings of a measured residual multiplier."""
    number: int = 0
    """Of the block among the blocks of its model."""


@dataclass(frozen=True)
class WiringFinding:
    """The part of a `LayerSpec` that is neither attention nor feed-forward."""

    block: BlockKind
    norms: dict[str, NormSpec]
    residual_multiplier: float
    output_scale: bool
    """Whether a number of the block multiplies what it gives: the tensor "output_scale"."""
    modules: dict[str, str]
    """Canonical norm name to the module that computes it ("" for one in the block's own forward)."""
    factors: StreamFactorsSpec | None = None
    """Of "normed_stream" blocks."""
    counted_sums: bool = False


@dataclass(frozen=True)
class _Norm:
    found: Inferred[NormSpec]
    module: str
    output: Tensor


def infer_wiring(tensors: BlockTensors) -> Inferred[WiringFinding]:
    """Infer block kind, norms and residual multiplier. Tensors: "input_layernorm.weight" and so on.

    Raises UnsupportedError saying by how much the residual stream differs from every wiring that we know.

    Example: the block of a tiny granite (residual_multiplier 0.4) was traced with input x, attention output a and
    output y. What the feed-forward's norm read is explained as x + 0.4 a by least squares over x and a, with factors
    1.0 and 0.4000001 and a relative error of 2e-6; 0.4 is a number of the config, so that is what was meant. y is the
    sum before it plus 0.4 times the feed-forward's output: the block is "pre". A block that norms the outputs of its
    branches fails the first sum and is tried as "post", and so on.
    """
    return _Wiring(tensors).infer()


def infer_one_part(tensors: BlockTensors) -> Inferred[WiringFinding]:
    """Infer norm and residual multiplier of a block of one part; tensors of attention and feed-forward are the part's.

    Raises UnsupportedError as `infer_wiring` does.
    """
    return _Wiring(tensors).one_part()


class _Wiring:
    def __init__(self, tensors: BlockTensors) -> None:
        self.tensors = tensors
        self.where = tensors.name

    def infer(self) -> Inferred[WiringFinding]:
        tensors = self.tensors
        found = self._post_residual(functional=False)
        if found is not None:
            return found
        attention_norm = self._norm_of(tensors.attention_output)
        feed_forward_norm = self._norm_of(tensors.feed_forward_output)
        attended = attention_norm.output if attention_norm else tensors.attention_output
        fed = feed_forward_norm.output if feed_forward_norm else tensors.feed_forward_output
        factors, off = combination(tensors.output, (tensors.input, attended, fed))
        # A stream that ends in a block is one of other things, if of any.
        if off > EXACT or abs(factors[0]) < NOTHING:
            return self._functional_post(factors, off)
        scale = next((each for each in tensors.scalars.values() if abs(float(each) / factors[0] - 1) < EXACT), None)
        if scale is not None and float(scale) != 1.0 and attention_norm and feed_forward_norm:
            plain = replace(tensors, output=tensors.output / scale, scalars={})
            found = _Wiring(plain).infer()
            if found.spec.block == "sandwich":
                scaled = replace(found.spec, output_scale=True)
                return replace(found, spec=scaled, tensors={**found.tensors, "output_scale": scale})
        if attention_norm and feed_forward_norm:
            counted = self._counted(attention_norm, feed_forward_norm, factors, off)
            if counted is not None:
                return counted
        multiplier = self._multiplier(factors)
        middle = rows(tensors.input) + multiplier * rows(attended)
        return self._pre_norms(attention_norm, feed_forward_norm, middle, multiplier, off)

    def one_part(self) -> Inferred[WiringFinding]:
        tensors = self.tensors
        (stream, part), off = combination(tensors.output, (tensors.input, tensors.attention_output))
        if off > EXACT:
            detail = f"the output is off by {off:.2g} (relative) from {stream:.4g} input + {part:.4g} its only part"
            raise UnsupportedError("an unknown residual wiring", where=self.where, detail=detail)
        multiplier = self._multiplier((stream, part, part))
        norm = self._between(tensors.input, tensors.attention_input)
        if norm is None:
            raise self._unexplained("the only part", tensors.attention_input, tensors.input)
        return self._finding("one_part", {"input_layernorm": norm}, multiplier, off)

    # ------------------------------------------------------------------------------------------------------- residual

    def _counted(
        self, attended: _Norm, fed: _Norm, factors: tuple[float, ...], off: float
    ) -> Inferred[WiringFinding] | None:
        """Return the wiring of a block whose sums are weighted by how many there were before; None where these are not
        the weights.

        Example: behind attention, the third block of a model (number 2) makes sum k = 6: sqrt(5/6) of the stream and
        sqrt(1/6) of the branch; then sum 7. All in all its output is sqrt(5/7) of its input and sqrt(1/7) of what each
        branch gives.
        """
        count = 2 * self.tensors.number + 2
        expected = (math.sqrt((count - 1) / (count + 1)), *[1 / math.sqrt(count + 1)] * 2)
        if any(abs(factor - weight) > EXACT for factor, weight in zip(factors, expected, strict=True)):
            return None
        middle = math.sqrt((count - 1) / count) * rows(self.tensors.input) + rows(attended.output) / math.sqrt(count)
        found = self._pre_norms(attended, fed, middle, 1.0, off)
        return replace(found, spec=replace(found.spec, counted_sums=True)) if found.spec.block == "sandwich" else None

    def _multiplier(self, factors: tuple[float, ...]) -> float:
        stream, attention, feed_forward = factors
        if abs(stream - 1.0) > 1e-4:
            detail = f"output = {stream:.6g} input + {attention:.6g} attention + {feed_forward:.6g} feed-forward"
            raise UnsupportedError("a scaled residual stream", where=self.where, detail=detail)
        if abs(attention - feed_forward) > 1e-4 * max(abs(attention), 1e-3):
            detail = f"attention is added times {attention:.6g}, feed-forward times {feed_forward:.6g}"
            raise UnsupportedError("different residual multipliers in one layer", where=self.where, detail=detail)
        return snapped((attention + feed_forward) / 2, (1.0, *self.tensors.multipliers))

    def _functional_post(self, factors: tuple[float, ...], off: float) -> Inferred[WiringFinding]:
        """Return the norms after attention and feed-forward, or after the sums, that ran in the block's own forward."""
        tensors = self.tensors
        normed = self._normed_stream()
        if normed is not None:
            return normed
        if same(tensors.attention_input, tensors.input):
            attended = rows(tensors.feed_forward_input) - rows(tensors.input)
            fed = rows(tensors.output) - rows(tensors.feed_forward_input)
            first = self._functional(rows(tensors.attention_output), attended)
            second = self._functional(rows(tensors.feed_forward_output), fed)
            if first is not None and second is not None:
                norms = {"post_attention_layernorm": first, "post_feedforward_layernorm": second}
                return self._finding("post", norms, 1.0, error(second.output, fed))
            found = self._post_residual(functional=True)
        else:
            found = self._functional_sandwich()
        if found is not None:
            return found
        detail = (
            f"the output is off by {off:.2g} (relative) from {factors[0]:.4g} input + {factors[1]:.4g} attention + "
            f"{factors[2]:.4g} feed-forward, the best sum of its parts"
        )
        raise UnsupportedError("an unknown residual wiring", where=self.where, detail=detail)

    def _normed_stream(self) -> Inferred[WiringFinding] | None:
        """Return the norms that are part of the residual stream, and the factors of both sums."""
        tensors = self.tensors
        first = self._between(tensors.input, tensors.attention_input, functional=False)
        if first is None:
            return None
        for call, module in self.tensors.norms:
            if not same(call.output, tensors.feed_forward_input):
                continue
            sums = (
                combination(call.input, (tensors.attention_input, tensors.attention_output)),
                combination(tensors.output, (call.output, tensors.feed_forward_output)),
            )
            off = max(each for _, each in sums)
            if off > EXACT:
                continue
            second = _Norm(infer_norm(module, call.input, call.output, name=call.name), call.name, call.output)
            known = (1.0, *tensors.multipliers)
            measured = [factor for factors, _ in sums for factor in factors]
            numbers = [0.0 if abs(factor) < NOTHING else snapped(factor, known) for factor in measured]
            found = self._finding(
                "normed_stream", {"input_layernorm": first, "post_attention_layernorm": second}, 1.0, off
            )
            stream = StreamFactorsSpec(
                attention_stream=numbers[0],
                attention_branch=numbers[1],
                mlp_stream=numbers[2],
                mlp_branch=numbers[3],
            )
            return replace(found, spec=replace(found.spec, factors=stream))
        return None

    def _functional_sandwich(self) -> Inferred[WiringFinding] | None:
        """Return the norms of outputs whose results no module saw: like the norm before attention, with other
        weights."""
        tensors = self.tensors
        first = self._between(tensors.input, tensors.attention_input)
        if first is None:
            return None
        names = [name for name, value in tensors.parameters.items() if value.shape == tensors.input.shape[-1:]]
        ends = [
            [self._like(first, name, source) for name in names]
            for source in (tensors.attention_output, tensors.feed_forward_output)
        ]
        for attended, fed in itertools.product(*ends):
            factors, off = combination(tensors.output, (tensors.input, attended.output, fed.output))
            if off <= EXACT:
                multiplier = self._multiplier(factors)
                middle = rows(tensors.input) + multiplier * rows(attended.output)
                return self._pre_norms(attended, fed, middle, multiplier, off)
        return None

    def _like(self, norm: _Norm, name: str, source: Tensor) -> _Norm:
        """Return a norm of the kind of `norm` with the weight `name`, and with the vector beside it as bias if it has
        one."""
        spec = norm.found.spec
        found = {"weight": self.tensors.parameters[name]} if spec.weight else {}
        if spec.bias:
            owner = name.rpartition(".")[0]
            others = [other for other in self.tensors.parameters if other.rpartition(".")[0] == owner and other != name]
            found["bias"] = self.tensors.parameters[others[0] if others else name]
        output = apply_norm(spec, found, rows(source))
        return _Norm(Inferred(spec=spec, tensors=found, evidence=norm.found.evidence), "", output)

    def _post_residual(self, *, functional: bool) -> Inferred[WiringFinding] | None:
        tensors = self.tensors
        summed = rows(tensors.feed_forward_input) + rows(tensors.feed_forward_output)
        if not same(tensors.attention_input, tensors.input):
            return None
        second = self._between(summed, tensors.output, functional=functional)
        if second is None:
            return None
        first = self._between(rows(tensors.input) + rows(tensors.attention_output), tensors.feed_forward_input)
        if first is None:
            return None
        norms = {"input_layernorm": first, "post_attention_layernorm": second}
        return self._finding("post_residual", norms, 1.0, 0.0)

    # ---------------------------------------------------------------------------------------------------------- norms

    def _pre_norms(
        self,
        attention_norm: _Norm | None,
        feed_forward_norm: _Norm | None,
        middle: Tensor,
        multiplier: float,
        off: float,
    ) -> Inferred[WiringFinding]:
        tensors = self.tensors
        first = None
        if not same(tensors.attention_input, tensors.input):
            first = self._between(tensors.input, tensors.attention_input)
            if first is None:
                raise self._unexplained("attention", tensors.attention_input, tensors.input)
        posts = {"post_attention_layernorm": attention_norm, "post_feedforward_layernorm": feed_forward_norm}
        has_posts = [norm is not None for norm in posts.values()]
        if not any(has_posts):
            found = self._without_posts(first, middle, multiplier, off)
            if found is not None:
                return found
        if all(has_posts):
            known = {name: norm for name, norm in posts.items() if norm is not None}
            if first is None and same(tensors.feed_forward_input, middle, EXACT):
                return self._finding("post", known, multiplier, off)
            second = self._between(middle, tensors.feed_forward_input)
            if first is not None and second is not None:
                norms = {"input_layernorm": first, **known, "pre_feedforward_layernorm": second}
                return self._finding("sandwich", norms, multiplier, off)
            raise self._unexplained("feed-forward", tensors.feed_forward_input, middle)
        if attention_norm is None and feed_forward_norm is not None:
            second = self._between(middle, tensors.feed_forward_input)
            if second is not None:
                norms = {} if first is None else {"input_layernorm": first}
                norms |= {"post_attention_layernorm": second, "post_feedforward_layernorm": feed_forward_norm}
                return self._finding("pre", norms, multiplier, off)
        detail = (
            f"norm before attention: {first is not None}, after attention: {has_posts[0]}, "
            f"after feed-forward: {has_posts[1]}"
        )
        raise UnsupportedError("an unknown placement of norms", where=self.where, detail=detail)

    def _without_posts(
        self, first: _Norm | None, middle: Tensor, multiplier: float, off: float
    ) -> Inferred[WiringFinding] | None:
        """Return the blocks that norm only what their parts read; None if there are others."""
        tensors = self.tensors
        norms = {} if first is None else {"input_layernorm": first}
        if first is not None and same(tensors.feed_forward_input, tensors.attention_input):
            return self._finding("parallel", norms, multiplier, off)
        second = self._between(middle, tensors.feed_forward_input)
        if second is not None:
            return self._finding("pre", {**norms, "post_attention_layernorm": second}, multiplier, off)
        if first is None:
            return None
        second = self._between(tensors.input, tensors.feed_forward_input)
        if second is not None:
            return self._finding("parallel_two_norms", {**norms, "post_attention_layernorm": second}, multiplier, off)
        raise self._unexplained("feed-forward", tensors.feed_forward_input, middle)

    def _unexplained(self, part: str, actual: Tensor, expected: Tensor) -> UnsupportedError:
        off = error(rows(actual), rows(expected))
        detail = f"it is off by {off:.2g} (relative) from the residual stream, and no RMS or layer norm of it"
        return UnsupportedError(f"an unknown input of {part}", where=self.where, detail=detail)

    def _norm_of(self, source: Tensor) -> _Norm | None:
        """Return a norm module that was called with `source`."""
        for call, module in self.tensors.norms:
            if same(call.input, source):
                return _Norm(infer_norm(module, call.input, call.output, name=call.name), call.name, call.output)
        return None

    def _between(self, source: Tensor, target: Tensor, *, functional: bool = True) -> _Norm | None:
        """Return the norm that makes `target` of `source`: a module, else a formula in the block's own forward."""
        for call, module in self.tensors.norms:
            if same(call.output, target) and same(call.input, source.to(call.input.dtype), EXACT):
                return _Norm(infer_norm(module, call.input, call.output, name=call.name), call.name, call.output)
        return self._functional(source, target) if functional else None

    def _functional(self, source: Tensor, target: Tensor) -> _Norm | None:
        tensors = self.tensors
        try:
            found = fit_norm(rows(source), rows(target), tensors.parameters, epsilons=tensors.epsilons, name=self.where)
        except UnsupportedError:
            return None
        return _Norm(found, "", target)

    def _finding(
        self, block: BlockKind, norms: dict[str, _Norm], multiplier: float, off: float
    ) -> Inferred[WiringFinding]:
        finding = WiringFinding(
            block=block,
            norms={name: norm.found.spec for name, norm in norms.items()},
            residual_multiplier=multiplier,
            output_scale=False,
            modules={name: norm.module for name, norm in norms.items()},
        )
        tensors = {f"{name}.{key}": value for name, norm in norms.items() for key, value in norm.found.tensors.items()}
        evidence = [
            FeatureEvidence(
                feature="block",
                value=block + (f", residual times {multiplier:g}" if multiplier != 1.0 else ""),
                source="probe",
                detail=f"{self.where}: traced sums reproduced to {max(off, EQUAL):.1e}",
            )
        ]
        for name, norm in norms.items():
            evidence += [
                FeatureEvidence(
                    feature=name, value=line.value, source=line.source, detail=line.detail, margin=line.margin
                )
                for line in norm.found.evidence
            ]
        return Inferred(spec=finding, tensors=tensors, evidence=tuple(evidence))
