"""The whole of one instance as a spec with weights, proven by parity of its logits, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from areal.porting import reference
from areal.porting.infer.divergence import first_divergence
from areal.porting.infer.influence import check_weights
from areal.porting.infer.layers import Surroundings, attention_of, feed_forward_of, infer_layer
from areal.porting.infer.roles import find_roles
from areal.porting.infer.top import infer_top
from areal.porting.probe.instance import build, logits, make_tokens
from areal.porting.probe.trace import record
from areal.porting.records import Evidence, Inference, SubjectError, UnsupportedError
from areal.porting.spec import ArchitectureSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from areal.porting.probe.instance import Instance
    from areal.porting.records import Roles, Trace
    from areal.porting.spec import LayerSpec, RotarySpec

TOLERANCE = 5e-5
"""Of logits, times max(1, their standard deviation): float32 on a CPU."""
TRACED = (2, 24)
JUDGED = ((2, 40), (3, 17))
"""Batches [rows, tokens] that judge the result; longer than the windows of tiny configs."""


def infer(instance: Instance) -> Inference:
    """What `instance` (built with eager attention) computes.

    Raises UnsupportedError naming the feature and the module where no spec reproduces it; a wrong spec is never
    returned.
    """
    instance, oracle = _oracle(instance)
    trace = record(instance, _tokens(instance, *TRACED, seed=1))
    config = instance.hf_config.to_dict()
    roles = find_roles(instance.model, trace)
    top = infer_top(instance.model, roles, trace, config)
    around = Surroundings(instance.model, trace, config, len(roles.layers))
    weights = dict(top.tensors)
    evidence = list(top.evidence)
    layers: list[LayerSpec] = []
    rotaries: list[RotarySpec] = []
    for number, part in enumerate(roles.layers):
        found = infer_layer(around, part, number)
        weights |= {f"layers.{number}.{name}": value for name, value in found.tensors.items()}
        evidence += [replace(line, feature=f"layers.{number}.{line.feature}") for line in found.evidence]
        layers.append(replace(found.spec.layer, rotary=_index(rotaries, found.spec.rotary)))
    spec = ArchitectureSpec(**vars(top.spec), layers=tuple(layers), rotaries=tuple(rotaries))
    parity, tolerance = _judge(instance, oracle, spec, weights, trace, roles)
    unused = check_weights(instance, weights, trace.tokens)
    notes = (f"without influence on the logits: {', '.join(unused)}",) if unused else ()
    evidence.append(
        Evidence(
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
    """Why an instance that `infer` refuses cannot be said, part by part: attention and feed-forward of each layer, and
    what stands around the layers. Each part is looked at by itself, on tensors of the traced forward, so that none is
    blamed for another one; how they are wired together is not, since that would follow from them."""
    instance, _ = _oracle(instance)
    trace = record(instance, _tokens(instance, *TRACED, seed=1))
    config = instance.hf_config.to_dict()
    try:
        roles = find_roles(instance.model, trace)
    except UnsupportedError as error:
        yield error
        return
    around = Surroundings(instance.model, trace, config, len(roles.layers))
    parts: list[Callable[[], object]] = [partial(infer_top, instance.model, roles, trace, config)]
    for number, layer in enumerate(roles.layers):
        parts += [partial(feed_forward_of, around, layer, number), partial(attention_of, around, layer, number)]
    for part in parts:
        try:
            part()
        except UnsupportedError as error:
            yield error


def _oracle(instance: Instance) -> tuple[Instance, Instance]:
    """The instance to trace, and the one with fused attention whose logits judge.

    Where both differ, one of them is wrong (transformers 5.23.0 adds Falcon's ALiBi twice in eager attention). Training
    and serving use the fused one, so that one is traced too.
    """
    try:
        fused = build(instance.subject, instance.config, attention="sdpa")
        fused.model.load_state_dict(instance.model.state_dict())
    except (SubjectError, RuntimeError):
        return instance, instance
    tokens = _tokens(instance, *JUDGED[0], seed=2)
    expected = logits(fused, tokens)
    difference = float((logits(instance, tokens) - expected).abs().max())
    return (instance if difference <= _tolerance(expected) else fused), fused


def _tokens(instance: Instance, rows: int, length: int, *, seed: int) -> Tensor:
    limits = [getattr(instance.hf_config, name, None) for name in ("max_position_embeddings", "n_positions", "n_ctx")]
    limit = min((value for value in limits if isinstance(value, int) and value > 0), default=length)
    return make_tokens(instance, batch=rows, length=min(length, limit), seed=seed)


def _vocabulary(instance: Instance, size: int) -> Tensor:
    """Every token in some order, special ones included; only padding may mean something else than its embedding."""
    padding = getattr(instance.hf_config, "pad_token_id", None)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(4))
    order = order[order != padding] if padding is not None else order
    length = min(_tokens(instance, 1, 48, seed=0).shape[1], order.numel())
    rows = -(-order.numel() // length)
    return torch.cat((order, order))[: rows * length].reshape(rows, length)


def _index(rotaries: list[RotarySpec], rotary: RotarySpec | None) -> int | None:
    if rotary is None:
        return None
    if rotary not in rotaries:
        rotaries.append(rotary)
    return rotaries.index(rotary)


def _tolerance(expected: Tensor) -> float:
    return TOLERANCE * max(1.0, float(expected.std()))


def _judge(
    instance: Instance,
    oracle: Instance,
    spec: ArchitectureSpec,
    weights: Mapping[str, Tensor],
    trace: Trace,
    roles: Roles,
) -> tuple[float, float]:
    """Largest difference of logits and the tolerance. Raises UnsupportedError with the first part that differs."""
    worst, allowed = 0.0, TOLERANCE
    random = [_tokens(instance, rows, length, seed=seed + 2) for seed, (rows, length) in enumerate(JUDGED)]
    for tokens in (*random, _vocabulary(instance, spec.vocab_size)):
        expected = logits(oracle, tokens)
        difference = (reference.logits(spec, weights, tokens) - expected).abs().max()
        allowed = _tolerance(expected)
        if not bool(torch.isfinite(difference)) or float(difference) > allowed:
            first = first_divergence(instance, spec, weights, trace=record(instance, tokens), roles=roles)
            where = first.module if first is not None else "logits"
            detail = f"logits differ by {float(difference):.2g} (allowed: {allowed:.2g})"
            if first is not None:
                detail += f"; the first module with another output is {first}"
            raise UnsupportedError("a computation that no spec reproduces", where=where, detail=detail)
        worst = max(worst, float(difference))
    return worst, allowed
