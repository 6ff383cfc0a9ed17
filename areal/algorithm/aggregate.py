"""From per-token losses to one scalar, with denominators of the whole optimizer step.

Every aggregation is a sum over tokens of `weight * loss` whose weights depend only on the sequence itself and on counts
of the whole step (`Denominators`). That makes the result and its gradient independent of micro-batches, ranks, order,
packing and padding: losses of the parts simply add up. Data-parallel wrappers that average gradients must multiply by
their world size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from areal.algorithm import catalog
from areal.algorithm.ratios import on_mask
from areal.api import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable


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
    second_moment_cut: float | None = None
    """m2po: largest (logp_behave - logp_prox)^2 that is kept; None with other corrections."""

    @staticmethod
    def combine(parts: Iterable[Denominators]) -> Denominators:
        """Denominators of the union of disjoint sets of sequences, e.g. of all ranks. A prompt may be spread over
        parts.

        Raises ValueError with an m2po cut, which needs all tokens at once: compute those denominators before the batch
        is cut.
        """
        parts = tuple(parts)
        if any(part.second_moment_cut is not None for part in parts):
            raise ValueError(
                "denominators with an m2po cut cannot be combined: compute them on the whole batch before cutting it"
            )
        prompts: dict[int, float] = {}
        for part in parts:
            for group, count in part.loss_prompt_tokens:
                prompts[group] = prompts.get(group, 0.0) + count
        return Denominators(
            tokens=sum(part.tokens for part in parts),
            loss_tokens=sum(part.loss_tokens for part in parts),
            loss_sequences=sum(part.loss_sequences for part in parts),
            loss_prompts=float(sum(count > 0 for count in prompts.values())),
            loss_prompt_tokens=tuple(sorted(prompts.items())),
        )


def count(
    mask: Tensor, groups: Tensor | None = None, *, kept: Tensor | None = None, second_moment_cut: float | None = None
) -> Denominators:
    """Count the given sequences as if they were the whole step.

    mask: [S, L], nonzero on policy tokens. groups: int [S], needed by prompt-mean. kept: [S, L], the tokens whose count
    divides the loss when it is not that of `mask`.
    """
    loss_mask = (mask if kept is None else kept) > 0
    tokens_S = loss_mask.sum(dim=1)
    prompts: dict[int, float] = {}
    if groups is not None:
        check_shape("groups", groups, mask.shape[:1])
        for group, number in zip(groups.tolist(), tokens_S.tolist(), strict=True):
            prompts[int(group)] = prompts.get(int(group), 0.0) + number
    return Denominators(
        tokens=float((mask > 0).sum()),
        loss_tokens=float(tokens_S.sum()),
        loss_sequences=float((tokens_S > 0).sum()),
        loss_prompts=float(sum(number > 0 for number in prompts.values())),
        loss_prompt_tokens=tuple(sorted(prompts.items())),
        second_moment_cut=second_moment_cut,
    )


def token_weights(
    aggregation: str,
    mask: Tensor,
    denominators: Denominators,
    *,
    groups: Tensor | None = None,
    length_norm: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Weight of each sequence's tokens, [S, 1], so that the aggregated loss is `sum(weight * mask * loss)`.

    mask: [S, L], the tokens that count (with denominators over kept tokens: the kept ones). Formulas:
    `catalog.AGGREGATIONS`. Weights of sequences without such tokens are 0. Raises ConfigError for an unknown name,
    ValueError when groups or length_norm are missing.
    """
    catalog.lookup("aggregation", aggregation, catalog.AGGREGATIONS)
    tokens_S1 = (mask > 0).sum(dim=1, keepdim=True).to(dtype)
    if aggregation == "token-sum":
        return torch.ones_like(tokens_S1)
    if aggregation == "token-mean":
        return torch.full_like(tokens_S1, 1.0 / max(denominators.loss_tokens, 1.0))
    if aggregation == "prompt-mean":
        return _prompt_weights(tokens_S1, groups, denominators)
    per_sequence = torch.full_like(tokens_S1, 1.0 / max(denominators.loss_sequences, 1.0))
    if aggregation == "seq-mean-token-mean":
        return per_sequence / tokens_S1.clamp(min=1.0)
    if aggregation == "seq-mean-token-sum-norm":
        if length_norm is None:
            raise ValueError("aggregation 'seq-mean-token-sum-norm' needs the constant length_norm")
        return per_sequence / length_norm
    return per_sequence


def aggregate(loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """`sum(weights * mask * loss)`, a scalar connected to the graph of `loss` even when every token is masked.

    loss: [S, L], may hold anything (NaN included) where mask is 0, provided its gradient is not needed there.
    """
    return (on_mask(loss, mask) * weights).sum()


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...] | torch.Size) -> None:
    """Broadcasting by accident would train on the wrong thing; say which tensor has which shape instead."""
    if tuple(tensor.shape) != tuple(expected):
        raise DataError(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}")


def _prompt_weights(tokens_S1: Tensor, groups: Tensor | None, denominators: Denominators) -> Tensor:
    """1 / (P N_p) of each sequence's prompt, [S, 1]."""
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
    return torch.tensor(weights, dtype=tokens_S1.dtype, device=tokens_S1.device).unsqueeze(1)
