"""Supervised fine-tuning: token-mean cross-entropy over the whole step, with optional label smoothing."""

from __future__ import annotations

import torch
from torch import Tensor

from areal.algorithm import metrics as metric_functions
from areal.algorithm.aggregate import Denominators, aggregate, check_shape, count, token_weights
from areal.algorithm.ratios import on_mask
from areal.api import ConfigError, LossOutput


def sft_loss(
    logp: Tensor,
    *,
    mask: Tensor,
    mean_vocab_logp: Tensor | None = None,
    label_smoothing: float = 0.0,
    aggregation: str = "token-mean",
    denominators: Denominators | None = None,
) -> LossOutput:
    """-(1/N) sum m [(1 - s) logp + s mean_v log pi(v)]: cross-entropy against (1 - s) one-hot + s uniform. arXiv
    1512.00567.

    logp, mask: [S, L]. mean_vocab_logp: [S, L], mean over the vocabulary of log pi(v), with gradient; needed when s >
    0, see `mean_vocab_logp`. label_smoothing: s in [0, 1). denominators: of the whole step; None takes these sequences
    for it.

    Metrics: nll (negative log-likelihood per token), without smoothing.
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ConfigError(f"sft: label_smoothing is {label_smoothing}, expected 0 <= label_smoothing < 1")
    if label_smoothing > 0 and mean_vocab_logp is None:
        raise ConfigError(
            "sft: label_smoothing needs mean_vocab_logp, the mean over the vocabulary of the log-probabilities"
        )
    check_shape("mask", mask, logp.shape)
    if denominators is None:
        denominators = count(mask)
    chosen = on_mask(logp, mask)
    loss = -chosen
    if label_smoothing > 0 and mean_vocab_logp is not None:
        check_shape("mean_vocab_logp", mean_vocab_logp, logp.shape)
        loss = -(1.0 - label_smoothing) * chosen - label_smoothing * on_mask(mean_vocab_logp, mask)
    weights = token_weights(aggregation, mask, denominators, dtype=logp.dtype)
    metrics = {"nll": metric_functions.masked_mean(-chosen, mask, denominators.tokens)}
    return LossOutput(loss=aggregate(loss, mask, weights), metrics=metrics)


def mean_vocab_logp(logits: Tensor) -> Tensor:
    """Mean over the last dimension of log-softmax(logits), in float32 or better, without storing the log-probabilities.

    logits: [..., V]. Equals mean(logits) - logsumexp(logits).
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return wide.mean(dim=-1) - torch.logsumexp(wide, dim=-1)
