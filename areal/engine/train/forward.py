"""From a padded batch to one number per token: cut, lay out, run the model, score, and put each value at the token it
belongs to.

This is the only place with a shift: the hidden state at position t-1 predicts token t, and what is computed from it is
stored at t (`areal.api.records`). Shared by the trained model and by frozen reference models.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from areal.algorithm.packing import micro_batches, select, units
from areal.api import EngineError
from areal.engine.train.head import TokenScores, score_dtype, score_tokens
from areal.engine.train.layout import TokenLayout, lay_out
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.engine.train.config import TrainEngineConfig

_logger = getLogger(__name__)


def predicted_tokens(batch: PaddedBatch, *, only_masked: bool) -> Tensor:
    """bool [S, L]: tokens that have a prefix, so that a distribution over them exists; only_masked: and loss_mask 1."""
    columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    predicted_SL = (columns > 0) & (columns < batch.lengths[:, None])
    return predicted_SL & (batch.loss_mask > 0) if only_masked else predicted_SL


@torch.no_grad()
def forward_logp(
    model: nn.Module, batch: PaddedBatch, config: TrainEngineConfig, *, temperature: float, only_masked: bool = False
) -> Tensor:
    """Log-probabilities float32 [S, L] of a batch that is on the model's device; see `TrainingEngine.forward_logp`."""
    dtype = score_dtype(next(model.parameters()).dtype)
    result_SL = torch.zeros(batch.tokens.shape, dtype=dtype, device=batch.tokens.device)

    def work(part: PaddedBatch, rows: Tensor) -> None:
        found = token_scores(
            model,
            part,
            temperature=temperature,
            chunk=config.logprob_chunk_size,
            only_masked=only_masked,
            with_distribution=False,
        )
        logp_SL = place(found.scores.logp if found.scores else None, found.predicted, dtype=dtype)
        result_SL[rows, : logp_SL.shape[1]] = logp_SL

    run_in_micro_batches(batch, config.max_tokens_per_micro_batch, work, reset=lambda: None)
    return result_SL


class PredictedScores(NamedTuple):
    """What `token_scores` found in one micro-batch."""

    scores: TokenScores | None
    """Of the N predicted tokens in row-major order; None when no token is predicted."""
    predicted: Tensor
    """bool [S, L]: which tokens those are."""
    num_model_tokens: int
    """Tokens that went through the model."""


class PredictedValues(NamedTuple):
    """What `token_values` found in one micro-batch; see `PredictedScores`."""

    values: Tensor | None
    """[N]."""
    predicted: Tensor
    num_model_tokens: int


def token_scores(
    model: nn.Module, batch: PaddedBatch, *, temperature: float, chunk: int, only_masked: bool, with_distribution: bool
) -> PredictedScores:
    """Scores of the predicted tokens of one micro-batch.

    When no token is predicted (all masked, or one-token sequences), the model is not run at all.
    """
    predicted_SL = predicted_tokens(batch, only_masked=only_masked)
    layout = lay_out(batch, predicted_SL, length_limit=length_limit_of(model))
    if layout is None:
        return PredictedScores(None, predicted_SL, 0)
    run: Any = model.hidden
    project: Any = model.project
    scores = score_tokens(
        project,
        _predicting_states(run, layout),
        batch.tokens[predicted_SL],
        temperature=temperature,
        chunk=chunk,
        with_distribution=with_distribution,
    )
    return PredictedScores(scores, predicted_SL, layout.tokens.shape[0])


def token_values(critic: nn.Module, batch: PaddedBatch, *, only_masked: bool) -> PredictedValues:
    """Critic values of the states *before* the predicted tokens of one micro-batch."""
    predicted_SL = predicted_tokens(batch, only_masked=only_masked)
    layout = lay_out(batch, predicted_SL, length_limit=length_limit_of(critic))
    if layout is None:
        return PredictedValues(None, predicted_SL, 0)
    return PredictedValues(_predicting_states(critic, layout), predicted_SL, layout.tokens.shape[0])


def length_limit_of(model: Any) -> int | None:
    limit: int | None = model.length_limit
    return limit


def place(values_N: Tensor | None, predicted_SL: Tensor, *, dtype: torch.dtype) -> Tensor:
    """[S, L] with values_N at the marked tokens and 0 elsewhere. None gives zeros that accept a gradient and drop
    it."""
    zeros_SL = torch.zeros(predicted_SL.shape, dtype=dtype, device=predicted_SL.device)
    if values_N is None:
        return zeros_SL.requires_grad_(torch.is_grad_enabled())
    return zeros_SL.masked_scatter(predicted_SL, values_N.to(dtype))


def run_in_micro_batches(
    batch: PaddedBatch, budget: int, work: Callable[[PaddedBatch, Tensor], None], *, reset: Callable[[], None]
) -> int:
    """Call `work(micro_batch, row_indices)` on parts of at most `budget` tokens each; return how many there were.

    Rows of a group are in one part where they fit, because only there their common prompt is computed once.

    When memory runs out, `reset` is called and everything starts again with half the tokens, once.
    Raises EngineError when that does not fit either.
    """
    tried: list[int] = []
    while True:
        parts = cut_rows(batch, budget)
        failure = _run_parts(batch, parts, work)
        if failure is None:
            return len(parts)
        reset()
        _release_cached_memory()
        tried.append(max(int(batch.lengths[part].sum()) for part in parts))
        if len(tried) == 2:
            raise EngineError(
                f"out of memory with micro-batches of {tried[0]} tokens, and again with {tried[1]}: {failure}. Lower "
                f"max_tokens_per_micro_batch or logprob_chunk_size, set gradient_checkpointing, or allow shorter "
                f"sequences (the longest of this batch has {int(batch.lengths.max())} tokens)"
            )
        budget = max(1, tried[0] // 2)
        _logger.warning("out of memory with %d tokens; this batch is run again with at most %d", tried[0], budget)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation; torch's CPU allocator reports one as a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def to_device(batch: PaddedBatch, device: torch.device) -> PaddedBatch:
    """The batch with all its tensors on `device`; the same object when they are there already."""
    moved = {
        item.name: value.to(device)
        for item in fields(batch)
        if isinstance(value := getattr(batch, item.name), torch.Tensor) and value.device != device
    }
    return replace(batch, **moved) if moved else batch


def _predicting_states(run: Callable[..., Tensor], layout: TokenLayout) -> Tensor:
    """What `run` gives at the N states that predict, [N, ...].

    run: (tokens, positions, cu_seqlens, max_seqlen) -> [T, ...] over packed tokens.
    """
    options = {} if layout.attention is None else {"attention": layout.attention}
    states_T = run(layout.tokens, layout.positions, layout.cu_seqlens, layout.max_seqlen, **options)
    # Sequences share states here. Of the ways to gather, this one adds their gradients in a fixed order on the CPU.
    return states_T.index_select(0, layout.source)


def cut_rows(batch: PaddedBatch, budget: int) -> list[list[int]]:
    """Row indices of micro-batches of at most `budget` tokens, in which rows of a group are together if they fit.

    Only together they share what they have in common. The budget counts every row as if it were alone. Rows of a unit
    (`areal.algorithm.packing.units`) are never separated: one that is too long has a micro-batch of its own.
    """
    lengths, groups = batch.lengths.tolist(), batch.groups.tolist()
    members: dict[int, list[list[int]]] = {}
    for unit in units(batch):
        members.setdefault(groups[unit[0]], []).append(unit)
    pieces = [
        [row for place in part for row in found[place]]
        for found in members.values()
        for part in micro_batches([sum(lengths[row] for row in unit) for unit in found], budget)
    ]
    parts = micro_batches([sum(lengths[row] for row in piece) for piece in pieces], budget)
    return sorted(sorted(row for index in part for row in pieces[index]) for part in parts)


def _run_parts(
    batch: PaddedBatch, parts: Sequence[Sequence[int]], work: Callable[[PaddedBatch, Tensor], None]
) -> str | None:
    """The message of a failed allocation, or None. Not the error: its traceback would keep the tensors alive."""
    try:
        for part in parts:
            indices = torch.as_tensor(part, dtype=torch.int64, device=batch.tokens.device)
            work(select(batch, indices), indices)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return str(error) or type(error).__name__
    return None


def _release_cached_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
