"""What a mixer with a state computes: found from its projections and parameters, judged by the plain recurrence.

No names are needed: every hypothesis says which rows of the first projections are what, and computes what should enter
the last one. Names of parameters do not even decide the order, since few have the right shape. The winner has to
reproduce the module's own output, in sequences of several lengths.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from areal.porting import recurrences
from areal.porting.infer import capture as captures
from areal.porting.infer.convolutions import short_convolutions
from areal.porting.infer.delta import gated_deltas
from areal.porting.infer.lightning import lightnings
from areal.porting.infer.mamba import mambas
from areal.porting.infer.mixer_parts import look
from areal.porting.infer.rg_lru import rg_lrus
from areal.porting.infer.selective import selective_mambas
from areal.porting.infer.tensors import LOCAL, error
from areal.porting.records import FeatureEvidence, Inferred, UnsupportedError

if TYPE_CHECKING:
    from areal.porting.infer.capture import Capture
    from areal.porting.infer.mixer_parts import MixerHypothesis, MixerParts
    from areal.porting.records import LayerContext
    from areal.porting.spec import Stateful

JUDGED = (1, 7, 37)
"""Tokens of the sequences that judge a mixer beside the trace's."""


def infer_mixer(context: LayerContext) -> Inferred[Stateful]:
    """Infer the mixer of a context. Raises UnsupportedError where none that is known gives its output."""
    return _known(look(context))


def infer_scaled_mixer(context: LayerContext) -> tuple[Inferred[Stateful], float]:
    """Infer the mixer of a context, and by what it multiplies its input first. Raises UnsupportedError as
    `infer_mixer`."""
    parts = look(context, scaled=True)
    return _known(parts), parts.input_factor


def _known(parts: MixerParts) -> Inferred[Stateful]:
    context = parts.context
    nearest = float("inf")
    known = (short_convolutions, gated_deltas, mambas, selective_mambas, rg_lrus, lightnings)
    for found in itertools.chain.from_iterable(kind(parts) for kind in known):
        off = _off(found, parts.run)
        nearest = min(nearest, off)
        if off <= LOCAL:
            return Inferred(spec=found.spec, tensors=found.tensors, evidence=(judge(found, parts),))
    shapes = [f"{name.rpartition('.')[2]} {tuple(value.shape)}" for name, value in parts.parameters.items()]
    matrices = [f"{each.name.rpartition('.')[2]} {tuple(each.weight.shape)}" for each in (*parts.first, parts.last)]
    detail = (
        f"no softmax over keys ran inside, and no short convolution, delta rule, Mamba, recurrent unit or lightning "
        f"attention of {', '.join(matrices)} with {', '.join(shapes)} gives the output of "
        f"{type(context.module).__name__}"
    )
    detail += f" (best: off by {nearest:.2g}, relative)" if nearest < float("inf") else ""
    raise UnsupportedError("a layer without softmax attention", where=context.name, detail=detail)


def judge(found: MixerHypothesis, parts: MixerParts) -> FeatureEvidence:
    """Raise UnsupportedError unless the hypothesis reproduces the module for other sequences as well."""
    vocabulary = parts.context.trace.logits.shape[-1]
    results = []
    for length in JUDGED:
        tokens = (torch.arange(2 * length).reshape(2, length) * 7 + 3) % vocabulary
        run = captures.capture(parts.context.model, parts.name, tokens, calls=parts.context.calls)
        off = _off(found, replace(run, input=run.input * parts.input_factor))
        if not off <= LOCAL:
            detail = f"its parts were found but do not reproduce its output for {length} tokens: off by {off:.1e}"
            raise UnsupportedError("a mixer with a state", where=parts.name, detail=f"{detail}, relative")
        results.append(f"{off:.1e} for {length} tokens")
    return FeatureEvidence(
        feature="mixer",
        value=type(found.spec).__name__,
        source="parity",
        detail=f"{parts.name}: {found.layout}; its recurrence gives the output to {', '.join(results)}",
    )


def _off(found: MixerHypothesis, capture: Capture) -> float:
    """Return the relative error of the plain recurrence for what a module got in a capture."""
    tensors = {name: value.double() for name, value in found.tensors.items()}
    rows = [recurrences.mix(found.spec, tensors, row) for row in capture.input.double()]
    return error(torch.stack(rows).float(), capture.output)
