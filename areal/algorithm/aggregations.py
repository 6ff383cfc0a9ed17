"""Aggregations of per-token losses to one scalar, with denominators of the whole optimizer step.

Every aggregation is a sum over tokens of `weight * loss` whose weights depend only on the sequence itself and on counts
of the whole step (`Denominators`). That makes the result and its gradient independent of micro-batches, ranks, order,
packing and padding: losses of the parts simply add up. Data-parallel wrappers that average gradients must multiply by
their world size. Notation: N tokens, S sequences with at least one policy token, P prompts, all counted over the whole
step; m mask, n policy tokens of a sequence. A sample that branched has several sequences; they count as one here, so
that branching gives it no more weight. Importing this module does not import torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from areal.algorithm.blocks import check_fields
from areal.algorithm.tokens import check_shape, on_mask
from areal.api import Config, ConfigError, number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """Counts over the whole optimizer step (all ranks, all micro-batches): plain numbers, small and picklable."""

    tokens: float
    """Policy tokens N, before any correction; divides the metrics."""
    loss_tokens: float
    """N that divides the loss: `tokens`, or the tokens a correction kept."""
    loss_sequences: float
    """S, sequences with at least one such token."""
    loss_prompts: float = 0.0
    """P, prompts with at least one such token; 0 when no groups were given."""
    loss_prompt_tokens: tuple[tuple[int, float], ...] = ()
    """(group id, N_p), sorted; filled when groups were given."""
    loss_sample_tokens: tuple[tuple[int, float], ...] = ()
    """(sample, tokens in all its sequences), sorted; filled when samples of several sequences were given, which then
    count once in `loss_sequences`."""
    step_threshold: float | None = None
    """What `Correction.step_threshold` found (m2po: the largest (l_behave - l_prox)^2 to keep); None with others."""

    @staticmethod
    def combine(parts: Iterable[Denominators]) -> Denominators:
        """Return the denominators of the union of disjoint sets of sequences, e.g. of all ranks; a prompt may be spread
        over parts.

        Raises ValueError with a threshold of the step, which needs all tokens at once: compute those denominators
        before the batch is cut.
        """
        parts = tuple(parts)
        if any(part.step_threshold is not None for part in parts):
            raise ValueError(
                "denominators with a threshold of the whole step cannot be combined: compute them on the whole batch "
                "before cutting it"
            )
        prompts: dict[int, float] = {}
        samples: dict[int, float] = {}
        for part in parts:
            for group, count in part.loss_prompt_tokens:
                prompts[group] = prompts.get(group, 0.0) + count
            for sample, count in part.loss_sample_tokens:
                samples[sample] = samples.get(sample, 0.0) + count
        return Denominators(
            tokens=sum(part.tokens for part in parts),
            loss_tokens=sum(part.loss_tokens for part in parts),
            loss_sequences=(
                float(sum(count > 0 for count in samples.values()))
                if samples
                else sum(part.loss_sequences for part in parts)
            ),
            loss_prompts=float(sum(count > 0 for count in prompts.values())),
            loss_prompt_tokens=tuple(sorted(prompts.items())),
            loss_sample_tokens=tuple(sorted(samples.items())),
        )


def count(
    mask: Tensor,
    groups: Tensor | None = None,
    *,
    samples: Tensor | None = None,
    kept: Tensor | None = None,
    step_threshold: float | None = None,
) -> Denominators:
    """Count the given sequences as if they were the whole step.

    mask: [S, L], nonzero on policy tokens. groups: int [S], needed by prompt-mean. samples: int [S], equal for the
    sequences of one sample; None when each is one. kept: [S, L], the tokens whose count divides the loss when it is not
    that of `mask`.
    """
    loss_mask = (mask if kept is None else kept) > 0
    tokens_S = loss_mask.sum(dim=1)
    prompts = {} if groups is None else _tokens_by_key("groups", groups, tokens_S)
    by_sample = {} if samples is None else _tokens_by_key("samples", samples, tokens_S)
    return Denominators(
        tokens=float((mask > 0).sum()),
        loss_tokens=float(tokens_S.sum()),
        loss_sequences=float((tokens_S > 0).sum())
        if samples is None
        else float(sum(n > 0 for n in by_sample.values())),
        loss_prompts=float(sum(number > 0 for number in prompts.values())),
        loss_prompt_tokens=tuple(sorted(prompts.items())),
        loss_sample_tokens=tuple(sorted(by_sample.items())),
        step_threshold=step_threshold,
    )


def tokens_of_samples(tokens_S1: Tensor, samples: Tensor | None, denominators: Denominators) -> Tensor:
    """Return how many tokens the sample of each sequence has in the whole step, [S, 1], what `Aggregation.weights`
    takes; `tokens_S1`, those of the sequence itself, when each is a sample.

    Raises ValueError for a sample that the denominators do not know.
    """
    if samples is None:
        return tokens_S1
    counts = dict(denominators.loss_sample_tokens)
    if unknown := sorted({int(sample) for sample in samples.tolist()} - set(counts)):
        raise ValueError(f"samples {unknown[:8]} are not in the denominators: compute them on the whole batch")
    return tokens_S1.new_tensor([counts[int(sample)] for sample in samples.tolist()]).unsqueeze(1)


def _tokens_by_key(name: str, keys: Tensor, tokens_S: Tensor) -> dict[int, float]:
    check_shape(name, keys, tokens_S.shape)
    found: dict[int, float] = {}
    for key, tokens in zip(keys.tolist(), tokens_S.tolist(), strict=True):
        found[int(key)] = found.get(int(key), 0.0) + tokens
    return found


def aggregate(loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """`sum(weights * mask * loss)`, a scalar connected to the graph of `loss` even when every token is masked.

    loss: [S, L], may hold anything (NaN included) where mask is 0, provided its gradient is not needed there.
    weights: [S, 1], see `Aggregation.weights`.
    """
    return (on_mask(loss, mask) * weights).sum()


@dataclass(frozen=True, kw_only=True)
class Aggregation(Config, ABC):
    """Contract of aggregations: what "mean" means."""

    formula: ClassVar[str] = ""
    """The aggregate in one line."""
    source: ClassVar[str] = ""
    """Where it is used."""
    needs_groups: ClassVar[bool] = False
    """Whether the prompts of sequences must be given."""

    def __post_init__(self) -> None:
        """Check types and ranges of the fields."""
        check_fields(self, "aggregation")

    @abstractmethod
    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return the weight of each sequence's tokens, [S, 1], so that the aggregate is `sum(weight * mask * loss)`.

        tokens_S1: tokens of each sequence that count (with denominators over kept tokens: the kept ones), in the dtype
        of the loss. groups: int [S].
        """


@dataclass(frozen=True, kw_only=True)
class PromptMean(Aggregation):
    """Mean over prompts of token means."""

    formula: ClassVar[str] = "(1/P) sum_p (1/N_p) sum_(i in p, t) m l"
    source: ClassVar[str] = "mean over prompts of token means"
    needs_groups: ClassVar[bool] = True

    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return 1 / (P N_p) of each sequence's prompt."""
        if groups is None:
            raise ValueError("aggregation 'prompt-mean' needs groups [S], both for the denominators and for the loss")
        counts = dict(denominators.loss_prompt_tokens)
        prompts = max(denominators.loss_prompts, 1.0)
        weights = []
        for group in groups.tolist():
            if int(group) not in counts:
                raise ValueError(
                    f"group {int(group)} is not in the denominators: compute them on the whole batch, with groups"
                )
            weights.append(1.0 / (prompts * max(counts[int(group)], 1.0)))
        return tokens_S1.new_tensor(weights).unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class SequenceTokenMean(Aggregation):
    """Mean over sequences of token means."""

    formula: ClassVar[str] = "(1/S) sum_i (1/n_i) sum_t m l"
    source: ClassVar[str] = "GRPO, GSPO, SAPO papers"

    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return 1 / (S n)."""
        return _per_sequence(tokens_S1, denominators) / tokens_S1.clamp(min=1.0)


@dataclass(frozen=True, kw_only=True)
class SequenceTokenSum(Aggregation):
    """Mean over sequences of token sums."""

    formula: ClassVar[str] = "(1/S) sum_i sum_t m l"
    source: ClassVar[str] = "REINFORCE on whole answers"

    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return 1 / S."""
        return _per_sequence(tokens_S1, denominators)


@dataclass(frozen=True, kw_only=True)
class SequenceTokenSumNorm(Aggregation):
    """Mean over sequences of token sums, divided by a constant."""

    formula: ClassVar[str] = "(1/(S length_norm)) sum_it m l"
    source: ClassVar[str] = "Dr.GRPO, arXiv 2503.20783"
    length_norm: float | None = number(None, above=0)
    """The constant that divides each sum; > 0, required: use the generation budget."""

    def __post_init__(self) -> None:
        """Check that the constant is given."""
        super().__post_init__()
        if self.length_norm is None:
            raise ConfigError(
                "aggregation 'seq-mean-token-sum-norm' needs aggregation.length_norm, a constant such as the "
                "generation budget; the padded width is not a substitute, since it differs from batch to batch and "
                "changes the step size"
            )

    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return 1 / (S length_norm)."""
        assert self.length_norm is not None, "checked when it was made"
        return _per_sequence(tokens_S1, denominators) / self.length_norm


@dataclass(frozen=True, kw_only=True)
class TokenMean(Aggregation):
    """Mean over all tokens of the step."""

    formula: ClassVar[str] = "(1/N) sum_it m l"
    source: ClassVar[str] = "DAPO, arXiv 2503.14476"

    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return 1 / N."""
        return tokens_S1.new_full(tokens_S1.shape, 1.0 / max(denominators.loss_tokens, 1.0))


@dataclass(frozen=True, kw_only=True)
class TokenSum(Aggregation):
    """Sum over all tokens."""

    formula: ClassVar[str] = "sum_it m l"
    source: ClassVar[str] = "no normalisation"

    def weights(self, tokens_S1: Tensor, denominators: Denominators, groups: Tensor | None = None) -> Tensor:
        """Return 1."""
        return tokens_S1.new_ones(tokens_S1.shape)


def _per_sequence(tokens_S1: Tensor, denominators: Denominators) -> Tensor:
    """1 / S for every sequence, [S, 1]."""
    return tokens_S1.new_full(tokens_S1.shape, 1.0 / max(denominators.loss_sequences, 1.0))
