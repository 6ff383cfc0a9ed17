"""Scores of one micro-batch, computed by all ranks that share its rows: what `areal.engine.train.forward` does on one.

Every rank runs the model for every micro-batch, also when it has nothing to compute, because the model communicates.
Shape letters: S sequences, L padded length, T tokens that go through the model, N predicted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from areal.api import EngineError
from areal.engine.archon.vocabulary import VocabularyShares
from areal.engine.train.forward import length_limit_of, predicted_tokens
from areal.engine.train.head import TokenScores, score_tokens
from areal.engine.train.layout import TokenLayout, lay_out
from areal.models.blocks.attention import PackedAttention
from areal.models.parallel.collectives import enter, enter_gathered, join_pieces, leave
from areal.models.parallel.context import ParallelAttention

if TYPE_CHECKING:
    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.models.parallel.apply import Sharding
    from areal.models.parallel.meshes import Meshes


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A micro-batch as all ranks that share its rows see it."""

    tokens: TokenLayout
    targets: Tensor
    """int64 [N]."""
    predicted: Tensor | None
    """bool [S, L]: which tokens those are; None for a blank micro-batch."""
    num_model_tokens: int


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Model input of one micro-batch on this rank."""

    layout: Layout
    tokens: Tensor
    """int64 [piece of T, padded]."""
    positions: Tensor
    attention: ParallelAttention | None
    """None for a model that attends by itself."""

    @property
    def source(self) -> Tensor:
        """int64 [N]: index of the state that predicts each token, into T."""
        return self.layout.tokens.source


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Of the N predicted tokens in row-major order, replicated over the ranks that share the rows."""

    scores: TokenScores | None
    """None without a predicted token, and for critics."""
    values: Tensor | None
    """Of critics."""
    anchor: Tensor | None
    """Without a predicted token: something to send a gradient of zeros through, so that this rank takes part in the
    backward pass."""


class Scorer:
    """Runs a sharded model (a decoder, or a ValueModel around one) on micro-batches."""

    def __init__(self, model: nn.Module, decoder: Any, sharding: Sharding, meshes: Meshes, *, chunk: int) -> None:
        """chunk: as logprob_chunk_size of the training configuration."""
        self._model: Any = model
        self._decoder = decoder
        self._meshes = meshes
        self._chunk = chunk
        self._sharding = sharding
        self._tp, self._cp = meshes.group("tp"), meshes.group("cp")
        pieces = self._tp.size() if self._in_pieces else 1
        self._multiple = self._cp.size() * pieces

    @property
    def _in_pieces(self) -> bool:
        """Whether ranks of tp keep pieces of the tokens between regions."""
        return self._sharding.plan.sequence_parallel and self._tp.size() > 1

    def lay_out(self, part: PaddedBatch | None, device: torch.device, *, only_masked: bool) -> Layout:
        """What of a micro-batch goes through the model; None for a blank one: one token that predicts nothing."""
        layout, predicted = None, None
        if part is not None:
            self._check_lengths(part)
            predicted = predicted_tokens(part, only_masked=only_masked)
            layout = lay_out(part, predicted, length_limit=length_limit_of(self._model))
        targets = torch.zeros(0, dtype=torch.int64, device=device)
        if part is not None and predicted is not None and layout is not None:
            targets = part.tokens[predicted]
        return Layout(
            tokens=layout or _blank(device),
            targets=targets,
            predicted=predicted,
            num_model_tokens=layout.tokens.shape[0] if layout is not None else 0,
        )

    def prepare(self, layout: Layout, *, length: int = 1) -> Prepared:
        """This rank's piece of the tokens, padded to a multiple that all pieces are equal in, and at least to `length`
        tokens for all ranks together."""
        packed = layout.tokens
        num_tokens = packed.tokens.shape[0]
        total = -(-max(num_tokens, length) // self._multiple) * self._multiple
        tokens, positions = (functional.pad(ids, (0, total - num_tokens)) for ids in (packed.tokens, packed.positions))
        return Prepared(
            layout=layout,
            tokens=self._own(tokens),
            positions=self._own(positions),
            attention=None if self._sharding.attends_itself else self._attention(packed),
        )

    def run(self, prepared: Prepared, *, is_critic: bool) -> Tensor:
        """States [piece, hidden_size], or values [piece]."""
        forward = self._model if is_critic else self._model.hidden
        states: Tensor = forward(
            prepared.tokens,
            prepared.positions,
            prepared.layout.tokens.cu_seqlens,
            prepared.layout.tokens.max_seqlen,
            attention=prepared.attention,
        )
        return states

    def num_states(self, prepared: Prepared) -> int:
        """Rows of the hidden states that flow between blocks on this rank."""
        return prepared.tokens.shape[0] // (self._tp.size() if self._in_pieces else 1)

    def values(self, prepared: Prepared, values: Tensor) -> Scored:
        """Values of the states that predict, from those of this rank's piece."""
        if self._in_pieces:
            values = join_pieces(values, self._tp)
        here = self._here(prepared, values.shape[0])
        if not prepared.layout.targets.numel():
            return Scored(scores=None, values=None, anchor=values[:1])
        found = values.index_select(0, prepared.source[here] - self._offset(values.shape[0]))
        return Scored(scores=None, values=self._joined(found, here, prepared), anchor=None)

    def score(self, prepared: Prepared, states: Tensor, *, temperature: float, with_distribution: bool) -> Scored:
        """Scores of the predicted tokens, from the states of this rank's piece."""
        split = self._sharding.splits_vocabulary
        if self._in_pieces:
            states = enter_gathered(states, self._tp) if split else join_pieces(states, self._tp)
        here = self._here(prepared, states.shape[0])
        rows, targets = prepared.source[here] - self._offset(states.shape[0]), prepared.layout.targets[here]
        if not rows.numel():
            # At least one row, so that every rank projects; what it scores reaches nobody.
            rows, targets = rows.new_zeros(1), targets.new_zeros(1)
        chosen = states.index_select(0, rows)
        if split and not self._in_pieces:
            chosen = enter(chosen, self._tp)
        found = score_tokens(
            self._decoder.project,
            chosen,
            targets,
            temperature=temperature,
            chunk=self._chunk,
            with_distribution=with_distribution,
            measure=VocabularyShares(self._tp) if split else None,
        )
        if not prepared.layout.targets.numel():
            return Scored(scores=None, values=None, anchor=found.logp)
        joined = [
            None if column is None else self._joined(column[: int(here.sum())], here, prepared)
            for column in (found.logp, found.entropy, found.mean_logp)
        ]
        assert joined[0] is not None
        return Scored(
            scores=TokenScores(logp=joined[0], entropy=joined[1], mean_logp=joined[2]), values=None, anchor=None
        )

    def _attention(self, packed: TokenLayout) -> ParallelAttention:
        num_tokens = packed.tokens.shape[0]
        return ParallelAttention(
            packed.attention or PackedAttention(packed.cu_seqlens, num_tokens, packed.tokens.device),
            num_tokens,
            heads=(self._tp.rank(), self._tp.size()),
            tokens=self._cp,
            compiled=self._sharding.plan.compile,
        )

    def _own(self, whole: Tensor) -> Tensor:
        """This rank's piece of the tokens that ranks of cp share."""
        return whole.chunk(self._cp.size())[self._cp.rank()]

    def _offset(self, piece: int) -> int:
        return self._cp.rank() * piece

    def _here(self, prepared: Prepared, piece: int) -> Tensor:
        """bool [N]: predicting states that are in this rank's piece."""
        place = prepared.source - self._offset(piece)
        return (place >= 0) & (place < piece)

    def _joined(self, found: Tensor, here: Tensor, prepared: Prepared) -> Tensor:
        """[N] from each rank's own ones; their loss is the same everywhere, so each rank's gradient is its own."""
        if self._cp.size() == 1:
            return found
        whole = found.new_zeros(prepared.layout.targets.shape).index_add(0, here.nonzero()[:, 0], found)
        return leave(whole, self._cp)

    def _check_lengths(self, part: PaddedBatch) -> None:
        limit, longest = length_limit_of(self._model), int(part.lengths.max())
        if self._cp.size() > 1 and limit is not None and longest > limit:
            raise EngineError(
                f"a sequence of {longest} tokens is rotated differently than one of up to {limit}, which pieces of it "
                f"cannot tell; set parallel.cp to 1 or limit sequences to {limit} tokens"
            )


def _blank(device: torch.device) -> TokenLayout:
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    token = torch.zeros(1, dtype=torch.int64, device=device)
    bounds = torch.tensor([0, 1], dtype=torch.int32, device=device)
    return TokenLayout(tokens=token, positions=token, cu_seqlens=bounds, max_seqlen=1, attention=None, source=nothing)
