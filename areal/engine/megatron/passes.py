"""Runs micro-batches through megatron-core's decoder, in the order that its schedules have for a pipeline or without.

Scores and losses are those of `areal.engine.train`, from the states of the last stage. megatron sums gradients over
data ranks, over copies of a tied embedding, and over tp where a norm works on a rank's own heads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from areal.engine.megatron.building import arrange, build_decoder, device_of_megatron
from areal.engine.megatron.checks import check_model
from areal.engine.megatron.rectangle import blank_layout, lay_out_rows
from areal.engine.megatron.weights import StageWeights
from areal.engine.train.divided import to_device
from areal.engine.train.head import VocabularyShares, score_tokens
from areal.engine.train.passes import Scored, loss_of, score_dtype_of
from areal.models.parallel.pipeline import copies_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from areal.api import LossFunction, PaddedBatch
    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.engine.megatron.rectangle import UnpackedRows
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.passes import BatchTotals, Keep, Layout, Scoring, Totals
    from areal.engine.train.ranks import Ranks
    from areal.models.parallel.plan import ParallelPlan

    Finish = Callable[[Scored], Tensor]


class MegatronPasses:
    """Owns this rank's stage of megatron's decoder; takes the place of `SequentialPasses` and `PipelinePasses`."""

    def __init__(
        self, model: nn.Module, plan: ParallelPlan, ranks: Ranks, config: TrainEngineConfig, archon: ArchonConfig
    ) -> None:
        """model: a DecoderModel, which is split in place. Until `join` nothing can be computed.

        Raises ModelError for a model that megatron cannot compute, EngineError where it cannot run.
        """
        check_model(model, plan.dims)
        device = device_of_megatron()
        assert device == ranks.device, f"megatron computes on {device}, the ranks on {ranks.device}"
        assert plan.meshes is not None, "a process of this engine is one of a group"
        arrange(plan.dims, ranks)
        whole: Any = model
        self._ranks, self._chunk = ranks, config.logprob_chunk_size
        self._vocab_size = int(whole.args.vocab_size)
        self._last = ranks.count("pp") - 1
        self._decoder = build_decoder(model, config, archon, ranks)
        self.weights = StageWeights(model, ranks, plan.meshes.tp)
        self.model: nn.Module = self.weights.part
        self.partial_over_tp: frozenset[str] = frozenset()
        self.copies = copies_of(self.model)

    def join(self) -> None:
        """Take over the values of `model`, which from now on changes with megatron's parameters."""
        self.weights.join(self._decoder.module)

    def zero_grad(self) -> None:
        """Forget the gradients that megatron has added up."""
        self._decoder.zero_grad_buffer()

    def forward(self, batch: DividedBatch, micro: list[list[int]], scoring: Scoring, keep: Keep) -> None:
        """Scores of this data rank's micro-batches, on the ranks of the last stage."""

        def finish(rows: list[int], layout: Layout, scored: Scored) -> Tensor:
            assert layout.predicted is not None, "blank ones are left out"
            keep(rows, layout.predicted, scored)
            return torch.zeros((), device=self._ranks.device)

        work: list[tuple[UnpackedRows, Finish]] = [
            (rectangle, partial(finish, rows, rectangle.layout))
            for rows in micro
            if rows
            and (rectangle := lay_out_rows(self._select(batch, rows), only_masked=scoring.only_masked)) is not None
        ]
        self._run(work, scoring, forward_only=True)

    def backward(
        self, batch: DividedBatch, micro: list[list[int]], loss_fn: LossFunction, scoring: Scoring, totals: Totals
    ) -> None:
        """Gradients of all data ranks' micro-batches, in `model`; totals are filled on the ranks of the last stage."""
        from megatron.core.distributed import finalize_model_grads

        dtype = score_dtype_of(self.model)
        is_last = self._ranks.place("pp") == self._last

        def finish(part: PaddedBatch, layout: Layout, scored: Scored) -> Tensor:
            output = loss_of(part, layout, scored, loss_fn, scoring, dtype)
            totals.add(output, layout)
            return output.loss

        work: list[tuple[UnpackedRows, Finish]] = []
        for rows in micro:
            if not rows:
                continue
            part = self._select(batch, rows)
            rectangle = lay_out_rows(part, only_masked=scoring.only_masked)
            if rectangle is not None:
                work.append((rectangle, partial(finish, part, rectangle.layout)))
            elif is_last:
                finish(part, blank_layout(part), Scored())
        self._run(work, scoring, forward_only=False)
        finalize_model_grads([self._decoder])
        self.weights.pull_gradients()

    def all_totals(self, totals: Totals, gradient_norm: Tensor) -> BatchTotals:
        """Totals of all ranks, which only those of the last stage have seen."""
        return self._ranks.sent(totals.over(self._ranks, gradient_norm), "pp", self._last)

    def share(self, result: Tensor) -> None:
        """Hand what the ranks of the last stage have to all others."""
        if self._last:
            dist.broadcast(result, group=self._ranks.group("pp"), group_src=self._last)

    def _select(self, batch: DividedBatch, rows: list[int]) -> PaddedBatch:
        return to_device(batch.select(rows), self._ranks.device)

    def _run(self, work: list[tuple[UnpackedRows, Finish]], scoring: Scoring, *, forward_only: bool) -> None:
        """Ranks of a pipeline and of tp have the same work; those of data ranks may differ, since they do not meet."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        if not work:
            return
        rows, length = work[0][0].tokens.shape
        get_forward_backward_func()(
            forward_step_func=partial(self._step, scoring),
            data_iterator=iter(work),
            model=[self._decoder],
            num_microbatches=len(work),
            seq_length=length,
            micro_batch_size=rows,
            forward_only=forward_only,
        )

    def _step(
        self, scoring: Scoring, work: Iterator[tuple[UnpackedRows, Finish]], decoder: nn.Module
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, dict[str, Any]]]]:
        """Return the states of a micro-batch, and what makes a loss of those of the last stage; megatron calls it."""
        rectangle, finish = next(work)
        states: Tensor = decoder(rectangle.tokens, rectangle.positions, rectangle.hidden_later)

        def loss(states: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            found = finish(self._score(rectangle, states, scoring))
            # The count would be divided by; denominators are in the loss already.
            return found, torch.zeros((), dtype=torch.int, device=states.device), {}

        return states, loss

    def _score(self, rectangle: UnpackedRows, states: Tensor, scoring: Scoring) -> Scored:
        """Scores of the predicted tokens from states [L, S, hidden_size]."""
        # Of the ways to gather, this one adds gradients in a fixed order on the CPU.
        chosen = states.transpose(0, 1).flatten(0, 1).index_select(0, rectangle.source)
        tp = self._ranks.count("tp")
        measure = VocabularyShares(self._ranks.group("tp"), size=self._vocab_size) if tp > 1 else None
        found = score_tokens(
            self._project,
            chosen,
            rectangle.layout.targets,
            temperature=scoring.temperature,
            chunk=self._chunk,
            with_distribution=scoring.with_distribution,
            measure=measure,
            candidates_NK=rectangle.layout.candidates,
            top=scoring.top,
        )
        return Scored(scores=found)

    def _project(self, hidden: Tensor) -> Tensor:
        """Logits of this rank's share of the vocabulary; those of padding are -inf."""
        decoder: Any = self._decoder.module
        weight = decoder.shared_embedding_or_output_weight() if decoder.share_embeddings_and_output_weights else None
        logits: Tensor = decoder.output_layer(hidden, weight=weight)[0]
        real = self._vocab_size - self._ranks.place("tp") * logits.shape[-1]
        if real >= logits.shape[-1]:
            return logits
        return logits.masked_fill(torch.arange(logits.shape[-1], device=logits.device) >= real, -torch.inf)
