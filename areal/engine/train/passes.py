"""Runs a model forward and backward over micro-batches: one number per token, at the token it belongs to.

This is the only place with a shift: the hidden state at position t-1 predicts token t, and what is computed from it is
stored at t (`areal.api.records`). A process that is alone runs the model as it is. Ranks that share the rows of a
micro-batch compute it together; each of them runs the model for every micro-batch, also when it has nothing to compute,
because the model communicates. With pipeline parallelism, `areal.engine.train.pipeline` takes the place of
`SequentialPasses`.

Shape letters: S sequences, L padded length, T tokens that go through the model, N predicted tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.nn import functional

from areal.api import DistilledBatch, EngineError
from areal.engine.precision import score_dtype
from areal.engine.train.divided import to_device
from areal.engine.train.head import TokenScores, VocabularyShares, score_tokens
from areal.engine.train.packing import TokenLayout, lay_out
from areal.models.blocks.packed_backend import PackedBackend
from areal.models.blocks.routing import RouteReplay
from areal.models.parallel.apply import Sharding
from areal.models.parallel.collectives import enter, enter_gathered, join_pieces, leave
from areal.models.parallel.context import ParallelBackend
from areal.models.parallel.data import give_back, shard_rest
from areal.models.registry import get_spec
from areal.utils.routes import unrecorded
from areal.utils.transfers import read_together, upload

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from areal.api import AttentionBackend, LossFunction, LossOutput, PaddedBatch
    from areal.engine.train.candidates import Top
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.ranks import Ranks
    from areal.models.parallel.plan import ParallelPlan

    Keep = Callable[[list[int], "Predicted", "Scored"], None]
    """Takes rows of the batch, which of their tokens are predicted, and the scores of those."""

MODEL_TOKENS: Final = "model_tokens_count"
_LOSS: Final = "loss of the engine"
"""Among the sums of a rank, where names of metrics are the loss function's."""


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What is asked of the model at each predicted token."""

    temperature: float = 1.0
    only_masked: bool = False
    """Spare tokens with loss_mask 0."""
    with_entropy: bool = False
    smoothing: float = 0.0
    top: Top | None = None
    """Likeliest tokens to list."""

    @property
    def with_distribution(self) -> bool:
        """Whether more than the log-probability of the token is needed."""
        return self.with_entropy or self.smoothing > 0


class Predicted(NamedTuple):
    """Cells of a padded batch, row by row: indices, since a mask would have to be read from the device to be used."""

    rows: Tensor
    """int64 [N]."""
    columns: Tensor
    """int64 [N]."""
    width: int
    """L of the batch."""

    def place(
        self, values_N: Tensor | None, num_rows: int, *, dtype: torch.dtype, sizes: tuple[int, ...] = ()
    ) -> Tensor:
        """[num_rows, L, *sizes] with values_N [N, *sizes] in the cells and 0 elsewhere. None gives zeros that accept a
        gradient and drop it."""
        zeros_SL = torch.zeros((num_rows, self.width, *sizes), dtype=dtype, device=self.rows.device)
        if values_N is None:
            return zeros_SL.requires_grad_(torch.is_grad_enabled())
        return zeros_SL.index_put((self.rows, self.columns), values_N.to(dtype))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A micro-batch as all ranks that share its rows see it."""

    tokens: TokenLayout
    targets: Tensor
    """int64 [N]."""
    predicted: Predicted | None
    """Which tokens those are; None for a blank micro-batch."""
    num_model_tokens: int
    candidates: Tensor | None = None
    """int64 [N, K]: other tokens that are scored in the place of each target."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Model input of one micro-batch on this rank."""

    layout: Layout
    tokens: Tensor
    """int64 [piece of T, padded]."""
    positions: Tensor
    attention: AttentionBackend | None
    """None for a model that attends by itself."""
    routes: Tensor | None = None
    """[piece of T, padded, M, K]; None where routers choose."""

    @property
    def source(self) -> Tensor:
        """int64 [N]: index of the state that predicts each token, into T."""
        return self.layout.tokens.source


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Of the N predicted tokens in row-major order, replicated over the ranks that share the rows."""

    scores: TokenScores | None = None
    """None without a predicted token, and for critics."""
    values: Tensor | None = None
    """Of critics."""
    anchor: Tensor | None = None
    """Without a predicted token: something to send a gradient of zeros through, so that this rank takes part in the
    backward pass; None for a process that is alone, which does not run the model then."""


class Scorer:
    """Scores one micro-batch by a decoder, or by a ValueModel around one, as far as this rank has them."""

    def __init__(
        self,
        model: nn.Module,
        decoder: Any,
        sharding: Sharding,
        ranks: Ranks,
        *,
        chunk: int,
        is_critic: bool,
        replays: bool,
    ) -> None:
        """chunk: as logprob_chunk_size of the training configuration; replays: as router_replay there."""
        self._model: Any = model
        self._decoder = decoder
        self._sharding = sharding
        self._ranks = ranks
        self._chunk = chunk
        self._is_critic = is_critic
        self._replays = replays
        self._tp, self._cp = ranks.count("tp"), ranks.count("cp")
        self._in_pieces = sharding.plan.sequence_parallel and self._tp > 1
        """Whether ranks of tp keep pieces of the tokens between regions."""
        self._multiple = self._cp * (self._tp if self._in_pieces else 1)

    def lay_out(self, part: PaddedBatch | None, *, only_masked: bool) -> Layout:
        """Lay out a micro-batch that is in host memory; None gives a blank one: one token that predicts nothing."""
        found, predicted, candidates, device = None, None, None, self._ranks.device
        targets = torch.zeros(0, dtype=torch.int64, device=device)
        if part is not None:
            limit, longest = self._model.length_limit, int(part.lengths.max())
            if part.images is not None and getattr(self._decoder, "vision", None) is None:
                raise EngineError(
                    f"{type(self._decoder).__name__} takes no pixels, but rows of the batch have images; train an "
                    f"image-text model with model.implementation=transformers"
                )
            if self._cp > 1 and limit and longest > limit:
                raise EngineError(
                    f"a sequence of {longest} tokens is rotated differently than one of up to {limit}, which pieces of "
                    f"it cannot tell; set parallel.cp to 1 or limit sequences to {limit} tokens"
                )
            if part.routes is not None:
                part = replace(part, routes=part.routes if self._replays else None)
            marked_SL = predicted_tokens(part, only_masked=only_masked)
            found = lay_out(part, marked_SL, device=device, length_limit=limit)
            rows, columns = (upload(index, device) for index in marked_SL.nonzero(as_tuple=True))
            predicted = Predicted(rows, columns, part.tokens.shape[1])
            targets = upload(part.tokens[marked_SL], device)
            if isinstance(part, DistilledBatch) and part.candidates is not None:
                candidates = upload(part.candidates[marked_SL], device)
        return Layout(
            tokens=found or _blank(device),
            targets=targets,
            predicted=predicted,
            num_model_tokens=found.tokens.shape[0] if found is not None else 0,
            candidates=candidates,
        )

    def prepare(self, layout: Layout, *, length: int = 1) -> Prepared:
        """Cut out this rank's piece of the tokens, padded so that all pieces are equal, and at least to `length`
        tokens for all ranks together."""
        packed, ranks, compiled = layout.tokens, self._ranks, self._sharding.plan.compile
        if ranks.is_alone and not compiled:
            return Prepared(
                layout=layout,
                tokens=packed.tokens,
                positions=packed.positions,
                attention=packed.attention,
                routes=packed.routes,
            )
        num_tokens = packed.tokens.shape[0]
        total = -(-max(num_tokens, length) // self._multiple) * self._multiple
        tokens, positions = (
            functional.pad(ids, (0, total - num_tokens)).chunk(self._cp)[ranks.place("cp")]
            for ids in (packed.tokens, packed.positions)
        )
        attention = None
        if not self._sharding.attends_itself:
            attention = ParallelBackend(
                packed.attention or PackedBackend(packed.cu_seqlens, num_tokens, packed.tokens.device),
                num_tokens,
                heads=(ranks.place("tp"), self._tp),
                tokens=None if ranks.is_alone else ranks.group("cp"),
                compiled=compiled,
            )
        routes = packed.routes
        if routes is not None:
            padding = (0, 0, 0, 0, 0, total - num_tokens)
            padded = functional.pad(routes, padding, value=unrecorded(routes.dtype))
            routes = padded.chunk(self._cp)[ranks.place("cp")]
        return Prepared(layout=layout, tokens=tokens, positions=positions, attention=attention, routes=routes)

    def run(self, prepared: Prepared) -> Tensor:
        """States [piece, hidden_size], or values [piece]."""
        forward = self._model if self._is_critic else self._model.hidden
        packed = prepared.layout.tokens
        options: dict[str, Any] = {"images": packed.images} if packed.images else {}
        if prepared.routes is not None:
            options["routes"] = RouteReplay(prepared.routes)
        states: Tensor = forward(
            prepared.tokens,
            prepared.positions,
            packed.cu_seqlens,
            packed.max_seqlen,
            attention=prepared.attention,
            **options,
        )
        return states

    def num_states(self, prepared: Prepared) -> int:
        """Rows of the hidden states that flow between blocks on this rank."""
        return prepared.tokens.shape[0] // (self._tp if self._in_pieces else 1)

    def score(self, prepared: Prepared, states: Tensor, scoring: Scoring) -> Scored:
        """Scores, or values, of the predicted tokens, from the states, or values, of this rank's piece."""
        split = self._sharding.splits_vocabulary and not self._is_critic
        if self._in_pieces:
            join = enter_gathered if split else join_pieces
            states = join(states, self._ranks.group("tp"))
        rows, targets, here = prepared.source, prepared.layout.targets, None
        candidates = prepared.layout.candidates
        if self._cp > 1:
            # Predicting states that are in this rank's piece.
            rows = rows - self._ranks.place("cp") * states.shape[0]
            here = (rows >= 0) & (rows < states.shape[0])
            rows, targets = rows[here], targets[here]
            candidates = None if candidates is None else candidates[here]
        is_blank = not prepared.layout.targets.numel()
        if self._is_critic:
            if is_blank:
                return Scored(anchor=states[:1])
            return Scored(values=self._joined(states.index_select(0, rows), here))
        num_here = rows.numel()
        if not num_here:
            # At least one row, so that every rank projects; what it scores reaches nobody.
            rows, targets = rows.new_zeros(1), targets.new_zeros(1)
            candidates = None if candidates is None else candidates.new_zeros(1, candidates.shape[1])
        # Sequences share states. Of the ways to gather, this one adds their gradients in a fixed order on the CPU.
        chosen = states.index_select(0, rows)
        if split and not self._in_pieces:
            chosen = enter(chosen, self._ranks.group("tp"))
        found = score_tokens(
            self._decoder.project,
            chosen,
            targets,
            temperature=scoring.temperature,
            chunk=self._chunk,
            with_distribution=scoring.with_distribution,
            measure=VocabularyShares(self._ranks.group("tp")) if split else None,
            candidates_NK=candidates,
            top=scoring.top,
        )
        if is_blank:
            return Scored(anchor=found.logp)
        top_ids, top_logp = (None, None) if found.top is None else found.top
        columns = (found.logp, found.entropy, found.mean_logp, found.candidate_logp, top_ids, top_logp)
        logp, entropy, mean_logp, candidate_logp, top_ids, top_logp = (
            None if column is None else self._joined(column[:num_here], here) for column in columns
        )
        assert logp is not None, "every token has a log-probability"
        top = None if top_ids is None or top_logp is None else (top_ids, top_logp)
        return Scored(
            scores=TokenScores(logp=logp, entropy=entropy, mean_logp=mean_logp, candidate_logp=candidate_logp, top=top)
        )

    def _joined(self, found: Tensor, here: Tensor | None) -> Tensor:
        """[N, ...] from each rank's own ones; their loss is the same everywhere, so each rank's gradient is its own."""
        if here is None:
            return found
        everywhere = found.new_zeros(*here.shape, *found.shape[1:]).index_add(0, here.nonzero()[:, 0], found)
        return leave(everywhere, self._ranks.group("cp"))


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """What the micro-batches of all ranks add up to."""

    loss: float
    gradient_norm: float
    """Of the whole model."""
    metrics: dict[str, float]
    num_micro_batches: int
    """Blank ones not counted."""
    num_predicted: int
    """Tokens that the loss is about."""

    @property
    def is_finite(self) -> bool:
        """Whether an optimizer may step."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class SequentialPasses:
    """Owns the model, which is whole on the ranks that share it, and runs micro-batches one after the other."""

    def __init__(
        self,
        model: nn.Module,
        plan: ParallelPlan,
        ranks: Ranks,
        *,
        chunk: int,
        is_critic: bool,
        replays: bool,
    ) -> None:
        """Split `model` in place, unless this process is alone."""
        self.model = model
        self.copies: frozenset[str] = frozenset()
        self._ranks, self._is_critic = ranks, is_critic
        holder: Any = model
        decoder: Any = holder.backbone if is_critic else holder
        if ranks.is_alone and not plan.compile:
            sharding = Sharding(plan=plan)
            if plan.activation_checkpointing:
                holder.set_gradient_checkpointing(True)
        else:
            sharding = split_decoder(decoder, plan)
            if is_critic and plan.shards_data:
                assert plan.meshes is not None, "only a process that is alone has none"
                shard_rest(model, plan, plan.meshes)
        self.partial_over_tp = partial_gradients(sharding, is_critic=is_critic)
        self._scorer = Scorer(model, decoder, sharding, ranks, chunk=chunk, is_critic=is_critic, replays=replays)

    def forward(self, batch: DividedBatch, micro: list[list[int]], scoring: Scoring, keep: Keep) -> None:
        """Scores of this data rank's micro-batches."""
        for rows in micro:
            layout, scored = self._run(batch.select(rows) if rows else None, scoring)
            if rows and layout.predicted is not None:
                keep(rows, layout.predicted, scored)
        if not self._ranks.is_alone:
            give_back(self.model)

    def backward(
        self, batch: DividedBatch, micro: list[list[int]], loss_fn: LossFunction, scoring: Scoring, totals: Totals
    ) -> None:
        """Gradients of this data rank's micro-batches, summed by FSDP2 over all of them."""
        for rows in micro:
            part = batch.select(rows) if rows else None
            layout, scored = self._run(part, scoring)
            roots, gradients = [], []
            if scored.anchor is not None:
                roots.append(scored.anchor)
                gradients.append(torch.zeros_like(scored.anchor))
            if part is not None:
                part = to_device(part, self._ranks.device)
                output = loss_of(part, layout, scored, loss_fn, scoring, score_dtype_of(self.model))
                roots.append(output.loss)
                gradients.append(torch.ones_like(output.loss))
                totals.add(output, layout)
            torch.autograd.backward(roots, gradients)

    def all_totals(self, totals: Totals, gradient_norm: Tensor) -> BatchTotals:
        """Totals of all ranks."""
        return totals.over(self._ranks, gradient_norm)

    def share(self, result: Tensor) -> None:
        """Nothing to do: every rank has its scores."""

    def _run(self, part: PaddedBatch | None, scoring: Scoring) -> tuple[Layout, Scored]:
        layout = self._scorer.lay_out(part, only_masked=scoring.only_masked)
        if self._ranks.is_alone and not layout.num_model_tokens:
            return layout, Scored()
        prepared = self._scorer.prepare(layout)
        return layout, self._scorer.score(prepared, self._scorer.run(prepared), scoring)


class Totals:
    """Adds up losses and metrics of micro-batches, which are divided by denominators of the whole step already."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._metrics: dict[str, list[Tensor]] = {}
        self._num_model_tokens = 0
        self._num_predicted = 0

    def add(self, output: LossOutput, layout: Layout) -> None:
        """Count a micro-batch of this rank; nothing leaves the device before all are there."""
        self._losses.append(output.loss.detach())
        self._num_model_tokens += layout.num_model_tokens
        self._num_predicted += int(layout.targets.numel())
        for name, value in output.metrics.items():
            self._metrics.setdefault(name, []).append(value.detach())

    def clear(self) -> None:
        """Forget all micro-batches."""
        self._losses.clear()
        self._metrics.clear()
        self._num_model_tokens = self._num_predicted = 0

    def over(self, ranks: Ranks, gradient_norm: Tensor) -> BatchTotals:
        """Totals of all ranks that have rows of their own, added in the order of the ranks. gradient_norm: one number,
        read together with the others."""
        combined = {name: _combine(name, torch.stack(values)) for name, values in self._metrics.items()}
        if self._losses:
            combined[_LOSS] = torch.stack(self._losses).sum()
        norm, *found = read_together([gradient_norm, *combined.values()])
        own = dict(zip(combined, found, strict=True))
        if self._losses:
            own[MODEL_TOKENS] = float(self._num_model_tokens)
        values: dict[str, list[float]] = {}
        counts = [0, 0]
        for others, *numbers in ranks.gather((own, len(self._losses), self._num_predicted), "data"):
            counts = [sum(pair) for pair in zip(counts, numbers, strict=True)]
            for name, value in others.items():
                values.setdefault(name, []).append(value)
        metrics = {name: _over_ranks(name, found) for name, found in values.items()}
        return BatchTotals(
            loss=metrics.pop(_LOSS, 0.0),
            gradient_norm=norm,
            metrics=metrics,
            num_micro_batches=counts[0],
            num_predicted=counts[1],
        )


def loss_of(
    part: PaddedBatch, layout: Layout, scored: Scored, loss_fn: LossFunction, scoring: Scoring, dtype: torch.dtype
) -> LossOutput:
    """Apply `loss_fn` to a micro-batch; see `TrainingEngine.train_batch`."""
    assert layout.predicted is not None, "a blank micro-batch has no loss"
    values_N, entropy_N, num_rows = scored.values, None, part.tokens.shape[0]
    if scored.scores is not None:
        values_N, entropy_N = scored.scores.logp, scored.scores.entropy
        if scoring.smoothing > 0 and scored.scores.mean_logp is not None:
            values_N = (1 - scoring.smoothing) * values_N + scoring.smoothing * scored.scores.mean_logp
    if isinstance(part, DistilledBatch) and part.candidates is not None:
        listed_NK = None if scored.scores is None else scored.scores.candidate_logp
        sizes = part.candidates.shape[2:]
        listed_SLK = layout.predicted.place(listed_NK, num_rows, dtype=dtype, sizes=sizes)
        part = replace(part, candidate_logp=listed_SLK)
    scores_SL = layout.predicted.place(values_N, num_rows, dtype=dtype)
    entropy_SL = layout.predicted.place(entropy_N, num_rows, dtype=dtype) if scoring.with_entropy else None
    return loss_fn(scores_SL, entropy_SL, part)


def score_dtype_of(model: nn.Module) -> torch.dtype:
    """Of log-probabilities and values that `model` gives."""
    return score_dtype(next(model.parameters()).dtype)


def predicted_tokens(batch: PaddedBatch, *, only_masked: bool) -> Tensor:
    """bool [S, L]: tokens that have a prefix, so that a distribution over them exists; only_masked: and loss_mask 1."""
    columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    predicted_SL = (columns > 0) & (columns < batch.lengths[:, None])
    return predicted_SL & (batch.loss_mask > 0) if only_masked else predicted_SL


def split_decoder(decoder: nn.Module, plan: ParallelPlan) -> Sharding:
    """Apply `plan` to `decoder` in place, by its family, or by itself where it is a model of `transformers`.

    Returns what engines have to know of the result. Raises ModelError when the model does not divide.
    """
    holder: Any = decoder
    if hasattr(holder, "parallelize"):
        holder.parallelize(plan)
    else:
        get_spec(holder.args.model_type).parallelize(holder, plan)
    # A plan that splits nothing leaves nothing on the decoder.
    return getattr(holder, "sharding", None) or Sharding(plan=plan)


def partial_gradients(sharding: Sharding, *, is_critic: bool) -> frozenset[str]:
    """Names of parameters, of the whole model, whose gradients are terms of a sum over tp."""
    if not is_critic:
        return sharding.partial_over_tp
    partial = {f"backbone.{name}" for name in sharding.partial_over_tp}
    if sharding.plan.sequence_parallel and sharding.plan.dims.tp > 1:
        partial |= {"head.weight", "head.bias"}  # each rank maps its piece of the states
    return frozenset(partial)


def _combine(name: str, values: Tensor) -> Tensor:
    """One value of a metric from those of micro-batches; see `LossOutput.metrics`."""
    if name.endswith("_max"):
        return values.max()
    return values.min() if name.endswith("_min") else values.sum()


def _over_ranks(name: str, values: list[float]) -> float:
    """One value of a metric from those of ranks."""
    if name.endswith("_max"):
        return max(values)
    # -0.0 is what leaves every number as it is when it is added; 0.0 loses the sign of -0.0.
    return min(values) if name.endswith("_min") else sum(values, -0.0)


def _blank(device: torch.device) -> TokenLayout:
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    token = torch.zeros(1, dtype=torch.int64, device=device)
    bounds = torch.tensor([0, 1], dtype=torch.int32)
    return TokenLayout(tokens=token, positions=token, cu_seqlens=bounds, max_seqlen=1, attention=None, source=nothing)
