"""The whole of one instance as a spec with weights, proven by parity of its logits, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from areal.porting import reference
from areal.porting.infer.embedding_and_head import infer_top
from areal.porting.infer.layers import attention_of, feed_forward_of, infer_layer, surroundings
from areal.porting.infer.roles import find_roles
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.probe.instance import build, logits, make_tokens
from areal.porting.probe.trace import record
from areal.porting.probe.wide import without_rounding
from areal.porting.records import FeatureEvidence, Inference, SubjectError, UnsupportedError
from areal.porting.spec import ArchitectureSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from areal.porting.probe.instance import Instance
    from areal.porting.records import ModelRoles, Trace
    from areal.porting.spec import LayerSpec, RotarySpec


TOLERANCE = 5e-5
"""Of logits, times max(1, their standard deviation): float32 on a CPU."""
TRACED = (2, 24)
JUDGED = ((2, 40), (3, 17))
"""Batches [rows, tokens] that judge the result; longer than the windows of tiny configs."""


def infer(instance: Instance, *, fused: Instance | None = None) -> Inference:
    """Return what `instance` (built with eager attention) computes. fused: the same config built with fused attention,
    where there is one already.

    Raises UnsupportedError naming the feature and the module where no spec reproduces it; a wrong spec is never
    returned.
    """
    instance, oracle, expected = _oracle(instance, fused)
    trace = record(instance, _tokens(instance, *TRACED, seed=1))
    config = instance.hf_config.to_dict()
    roles = find_roles(instance.model, trace)
    top = infer_top(instance.model, roles, trace, config)
    around = surroundings(instance.model, trace, config, roles)
    weights = dict(top.tensors)
    evidence = list(top.evidence)
    layers: list[LayerSpec] = []
    rotaries: list[RotarySpec] = []
    for number, part in enumerate(roles.layers):
        found = infer_layer(around, part, number)
        weights |= {f"layers.{number}.{name}": value for name, value in found.tensors.items()}
        evidence += [replace(line, feature=f"layers.{number}.{line.feature}") for line in found.evidence]
        table = found.spec.rotary
        rotaries += [] if table is None or table in rotaries else [table]
        layers.append(replace(found.spec.layer, rotary=None if table is None else rotaries.index(table)))
    spec = ArchitectureSpec(**vars(top.spec), layers=tuple(layers), rotaries=tuple(rotaries))
    parity, tolerance = _judge(instance, oracle, expected, spec, weights, trace, roles)
    unused = check_weights(instance, weights, trace.tokens)
    notes = (f"without influence on the logits: {', '.join(unused)}",) if unused else ()
    evidence.append(
        FeatureEvidence(
            feature="logits",
            value=f"max difference {parity:.1e}",
            source="parity",
            detail=f"{len(JUDGED)} random batches and the whole vocabulary, tolerance {tolerance:.1e}",
            margin=None,
        )
    )
    return Inference(
        spec=spec,
        weights=weights,
        roles=roles,
        evidence=tuple(evidence),
        parity=parity,
        tolerance=tolerance,
        notes=notes,
    )


def unexplained_parts(instance: Instance) -> Iterator[UnsupportedError]:
    """Yield why an instance that `infer` refuses cannot be said, part by part: attention and feed-forward of each
    layer, and what stands around the layers. Each part is looked at by itself, on tensors of the traced forward, so
    that none is blamed for another one; how they are wired together is not, since that would follow from them."""
    instance, *_ = _oracle(instance, None)
    trace = record(instance, _tokens(instance, *TRACED, seed=1))
    config = instance.hf_config.to_dict()
    try:
        roles = find_roles(instance.model, trace)
    except UnsupportedError as error:
        yield error
        return
    around = surroundings(instance.model, trace, config, roles)
    parts: list[Callable[[], object]] = [partial(infer_top, instance.model, roles, trace, config)]
    for number, layer in enumerate(roles.layers):
        parts += [] if layer.feed_forward is None else [partial(feed_forward_of, around, layer, number)]
        parts += [] if layer.attention is None else [partial(attention_of, around, layer, number)]
    for part in parts:
        try:
            part()
        except UnsupportedError as error:
            yield error


def _oracle(instance: Instance, fused: Instance | None) -> tuple[Instance, Instance, Tensor | None]:
    """Return the instance to trace, the one with fused attention whose logits judge, and its logits of the first batch
    that judges, where they were computed.

    Where both differ, one of them is wrong (transformers 5.23.0 adds Falcon's ALiBi twice in eager attention). Training
    and serving use the fused one, so that one is traced too.
    """
    try:
        if fused is None or not _equal(fused, instance):
            fused = build(instance.subject, instance.config, attention="sdpa")
            fused.model.load_state_dict(instance.model.state_dict())
    except (SubjectError, RuntimeError):
        return instance, instance, None
    tokens = _tokens(instance, *JUDGED[0], seed=2)
    expected = logits(fused, tokens)
    difference = float((logits(instance, tokens) - expected).abs().max())
    return (instance if difference <= _tolerance(expected) else fused), fused, expected


def _equal(first: Instance, second: Instance) -> bool:
    """Return whether the models keep the same numbers under the same names."""
    kept, other = first.model.state_dict(), second.model.state_dict()
    return kept.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in kept.items())


def _tokens(instance: Instance, rows: int, length: int, *, seed: int) -> Tensor:
    limits = [getattr(instance.hf_config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    limit = min((value for value in limits if isinstance(value, int) and value > 0), default=length)
    return make_tokens(instance, batch=rows, length=min(length, limit), seed=seed)


def _vocabulary(instance: Instance, size: int) -> Tensor:
    """Return every token in some order, special ones included; only padding may mean something else than its
    embedding."""
    padding = getattr(instance.hf_config, "pad_token_id", None)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(4))
    order = order[order != padding] if padding is not None else order
    length = min(_tokens(instance, 1, 48, seed=0).shape[1], order.numel())
    rows = -(-order.numel() // length)
    return torch.cat((order, order))[: rows * length].reshape(rows, length)


def _tolerance(expected: Tensor) -> float:
    return TOLERANCE * max(1.0, float(expected.std()))


def _judge(
    instance: Instance,
    oracle: Instance,
    of_first: Tensor | None,
    spec: ArchitectureSpec,
    weights: Mapping[str, Tensor],
    trace: Trace,
    roles: ModelRoles,
) -> tuple[float, float]:
    """Return the largest difference of logits and the tolerance. of_first: what is expected of the first batch, where
    it is known. Raises UnsupportedError with the first part that differs."""
    worst, allowed = 0.0, TOLERANCE
    ours = reference.load(spec, weights)
    double = {name: value.double() for name, value in weights.items()}
    random = [_tokens(instance, rows, length, seed=seed + 2) for seed, (rows, length) in enumerate(JUDGED)]
    for tokens in (*random, _vocabulary(instance, spec.vocab_size)):
        expected = logits(oracle, tokens) if of_first is None or tokens is not random[0] else of_first
        off = float((reference.logits_of(ours, tokens) - expected).abs().max())
        allowed = _tolerance(expected)
        difference = without_rounding(
            oracle,
            tokens,
            lambda tokens=tokens: reference.logits(spec, double, tokens),  # type: ignore[misc]  # of this turn
            difference=off,
            allowed=allowed,
        )
        if not difference <= allowed:
            first = first_divergence(instance, spec, weights, trace=record(instance, tokens), roles=roles)
            where = first.module if first is not None else "logits"
            detail = f"logits differ by {difference:.2g} (allowed: {allowed:.2g})"
            if first is not None:
                detail += f"; the first module with another output is {first}"
            raise UnsupportedError("a computation that no spec reproduces", where=where, detail=detail)
        worst = max(worst, difference)
    return worst, allowed


# ----------------------------------------------------------------------------------------------------------- divergence

# Where a spec stops agreeing with the instance that it should describe.


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
    roles: ModelRoles | None = None,
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


def _checkpoints(roles: ModelRoles, trace: Trace) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (module of the instance, module of ours, what the instance got there)."""
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


# ------------------------------------------------------------------------------------------------------------ influence

# Whether anything in a model acts on its logits without being part of the inferred weights.


def check_weights(instance: Instance, weights: Mapping[str, Tensor], tokens: Tensor) -> tuple[str, ...]:
    """Return the names of parameters and of stored buffers that are not among `weights`, all proven to be without
    influence.

    A tensor is among the weights when each of its numbers is: the instance's are random, so that layouts need not be
    known. Others are changed, and the logits must stay the same to the last bit. Raises UnsupportedError otherwise.
    """
    known = torch.cat([tensor.detach().reshape(-1).float() for tensor in weights.values()]).unique()
    places = {(value.data_ptr(), value.numel()) for value in weights.values()}
    stored = instance.model.state_dict(keep_vars=True)
    suspects: dict[str, Tensor] = {}
    for name, value in stored.items():
        if (value.data_ptr(), value.numel()) in places:
            continue
        # One number may be among the weights by chance.
        flat = value.detach().reshape(-1).float()
        place = torch.searchsorted(known, flat).clamp_max(known.numel() - 1)
        accounted = value.numel() > 1 and bool((known[place] == flat).all())
        if value.is_floating_point() and value.numel() and not accounted:
            suspects[name] = value.detach()
    if not suspects:
        return ()
    before = logits(instance, tokens)
    if not bool((_changed(instance, suspects, tokens) == before).all()):
        for name, value in suspects.items():
            difference = float((_changed(instance, {name: value}, tokens) - before).abs().max())
            if difference > 0.0:
                detail = f"it acts on the logits (changing it moves them by {difference:.2g}), but is in no known part"
                raise UnsupportedError("a parameter of unknown use", where=name, detail=detail)
        detail = "together they act on the logits, but are in no known part"
        raise UnsupportedError("parameters of unknown use", where=", ".join(suspects), detail=detail)
    return tuple(suspects)


def _changed(instance: Instance, tensors: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the logits with other values in these tensors, which get their own back."""
    saved = {name: tensor.clone() for name, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        try:
            for tensor in tensors.values():
                size = tensor.float().std() if tensor.numel() > 1 else tensor.float().abs().max()
                noise = torch.randn(tensor.shape, generator=generator) * (size + 0.1)
                tensor.add_(noise.to(tensor.dtype))
            return logits(instance, tokens)
        finally:
            for name, tensor in tensors.items():
                tensor.copy_(saved[name])
