"""Forward and backward passes of a step's micro-batches over a model that is whole on its ranks, one after the other.

With pipeline parallelism, `areal.engine.archon.pipeline` takes the place of this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.packing import select
from areal.engine.archon.scoring import Prepared, Scored, Scorer
from areal.engine.archon.splitting import split_decoder
from areal.engine.train.forward import place
from areal.engine.train.head import score_dtype
from areal.models.parallel.data import give_back, shard_rest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from areal.api import LossFunction, LossOutput, PaddedBatch
    from areal.engine.archon.totals import Totals
    from areal.engine.train.config import TrainEngineConfig
    from areal.models.parallel.meshes import Meshes
    from areal.models.parallel.plan import ParallelPlan

    Keep = Callable[[list[int], Tensor, Scored], None]
    """Takes rows of the batch, which of their tokens are predicted, and the scores of those."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What is asked of the model at each predicted token."""

    temperature: float
    with_distribution: bool
    only_masked: bool
    with_entropy: bool = False
    smoothing: float = 0.0


class SequentialPasses:
    """Owns the sharded model."""

    def __init__(
        self, model: nn.Module, plan: ParallelPlan, meshes: Meshes, config: TrainEngineConfig, *, is_critic: bool
    ) -> None:
        """Shard `model` in place."""
        holder: Any = model
        decoder: Any = holder.backbone if is_critic else holder
        sharding = split_decoder(decoder, plan)
        if is_critic and plan.shards_data:
            shard_rest(model, plan, meshes)
        self.model = model
        self._meshes = meshes
        self._is_critic = is_critic
        self._dtype = score_dtype(getattr(torch, config.dtype))
        prefix = "backbone." if is_critic else ""
        partial = {prefix + name for name in sharding.partial_over_tp}
        if is_critic and plan.sequence_parallel and plan.dims.tp > 1:
            partial |= {"head.weight", "head.bias"}  # each rank maps its piece of the states
        self.partial_over_tp = frozenset(partial)
        self.copies: frozenset[str] = frozenset()
        self._scorer = Scorer(model, decoder, sharding, meshes, chunk=config.logprob_chunk_size)

    @property
    def _device(self) -> torch.device:
        """Not that of the model, which may have no memory when it is split, and be in host memory between passes."""
        return self._meshes.device

    def forward(self, batch: PaddedBatch, micro: list[list[int]], scoring: Scoring, keep: Keep) -> None:
        """Scores of this data rank's micro-batches."""
        for rows in micro:
            prepared, scored = self._run(select(batch, rows) if rows else None, scoring)
            if rows and prepared.layout.predicted is not None:
                keep(rows, prepared.layout.predicted, scored)
        give_back(self.model)

    def backward(
        self, batch: PaddedBatch, micro: list[list[int]], loss_fn: LossFunction, scoring: Scoring, totals: Totals
    ) -> None:
        """Gradients of this data rank's micro-batches, summed by FSDP2 over all of them."""
        for rows in micro:
            part = select(batch, rows) if rows else None
            prepared, scored = self._run(part, scoring)
            roots, gradients = [], []
            if scored.anchor is not None:
                roots.append(scored.anchor)
                gradients.append(torch.zeros_like(scored.anchor))
            if part is not None:
                output = loss_of(part, prepared, scored, loss_fn, scoring, self._dtype)
                roots.append(output.loss)
                gradients.append(torch.ones_like(output.loss))
                totals.add(
                    output,
                    num_model_tokens=prepared.layout.num_model_tokens,
                    num_predicted=int(prepared.layout.targets.numel()),
                )
            torch.autograd.backward(roots, gradients)

    def all_totals(self, totals: Totals) -> Totals:
        """Totals of all ranks."""
        return totals.over(self._meshes.group("data"))

    def share(self, result: Tensor) -> None:
        """Nothing to do: every rank has its scores."""

    def _run(self, part: PaddedBatch | None, scoring: Scoring) -> tuple[Prepared, Scored]:
        layout = self._scorer.lay_out(part, self._device, only_masked=scoring.only_masked)
        prepared = self._scorer.prepare(layout)
        states = self._scorer.run(prepared, is_critic=self._is_critic)
        if self._is_critic:
            return prepared, self._scorer.values(prepared, states)
        scored = self._scorer.score(
            prepared, states, temperature=scoring.temperature, with_distribution=scoring.with_distribution
        )
        return prepared, scored


def loss_of(
    part: PaddedBatch,
    prepared: Prepared,
    scored: Scored,
    loss_fn: LossFunction,
    scoring: Scoring,
    dtype: torch.dtype,
) -> LossOutput:
    """What `loss_fn` says of a micro-batch; see `TrainingEngine.train_batch`."""
    assert prepared.layout.predicted is not None, "a blank micro-batch has no loss"
    values_N, entropy_N = scored.values, None
    if scored.scores is not None:
        values_N, entropy_N = scored.scores.logp, scored.scores.entropy
        if scoring.smoothing > 0 and scored.scores.mean_logp is not None:
            values_N = (1 - scoring.smoothing) * values_N + scoring.smoothing * scored.scores.mean_logp
    scores_SL = place(values_N, prepared.layout.predicted, dtype=dtype)
    entropy_SL = place(entropy_N, prepared.layout.predicted, dtype=dtype) if scoring.with_entropy else None
    return loss_fn(scores_SL, entropy_SL, part)
