"""Mixture of experts: a router picks a few feed-forward experts per token and mixes their outputs.

Experts are stacked along the first dimension of their parameters, so that sharding over experts is a slice. The
auxiliary balancing loss of pre-training is not computed: it would fight the policy gradient.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from areal.api import ModelError
from areal.models.blocks.grouped_products import RowRuns, grouped_linear, suits_grouping
from areal.models.blocks.linear import Linear, linear
from areal.models.blocks.mlp import find_activation, gated_product

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from areal.api import ExpertRoutes

_SMALLEST_SUM: Final = 1e-20
"""Keeps the rescaling of weights from dividing by zero; far below any sum that scores can have."""


def sparse_mixer(logits: Tensor, top_k: int, jitter: float, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Choose the `top_k` largest logits, [T, num_experts], one after the other, or take those that are `given`:
    weights [T, top_k] and numbers [T, top_k].

    The weight of each is a softmax over those that are left and close to it: whose distance is at most 2 * jitter of
    the larger one of its own size and the chosen logit (SparseMixer, arXiv 2310.00811, as it is at inference: nothing
    is drawn, and the gradient is that of the weights).
    """
    weights, experts = [], []
    left = logits
    for place in range(top_k):
        if given is None:
            best, chosen = left.max(-1, keepdim=True)
        else:
            chosen = given[:, place : place + 1]
            best = left.gather(-1, chosen)
        far = (best - logits) / logits.abs().maximum(best) > 2 * jitter
        close = left.masked_fill(far, -torch.inf).softmax(-1)
        weights.append(close.gather(-1, chosen))
        experts.append(chosen)
        left = left.scatter(-1, chosen, -torch.inf)
    return torch.cat(weights, -1), torch.cat(experts, -1)


class Router(nn.Module):
    """Scores all experts for each token, chooses `top_k`, and returns the weights to mix them with.

    The choice is by score plus `selection_bias`, among the best `top_groups` of `groups` equal runs of experts
    (DeepSeek-V3, arXiv 2412.19437); the weights are the scores themselves. Scores and weights are float32. Routers of
    that line compute the logits in float32 as well; plain softmax routers compute them, and hand out the weights, in
    the dtype of the hidden states, as the reference implementations do.
    """

    selection_bias: Tensor | None
    routes: tuple[ExpertRoutes, int] | None = None
    """What settles the choice, and this router's number in the model, during a forward in which something does
    (`areal.models.blocks.routing.call_routed`)."""

    def __init__(  # noqa: PLR0913 - one keyword per feature of the families
        self,
        hidden_size: int,
        num_experts: int,
        top_k: int,
        *,
        score: Literal["softmax", "sigmoid", "sparse_mixer"] = "softmax",
        order: Literal["score_first", "select_first"] = "score_first",
        normalize: bool = False,
        scale: float = 1.0,
        bias: bool = False,
        selection_bias: bool = False,
        groups: int = 1,
        top_groups: int = 1,
        group_score: Literal["max", "top2_sum"] = "top2_sum",
        jitter: float = 0.0,
    ) -> None:
        """score: of a logit; a softmax runs over all experts, or with order "select_first" over the chosen ones;
        "sparse_mixer", with its jitter: see `sparse_mixer`, which chooses too.

        normalize: rescale the weights of the chosen to sum to 1; scale: factor on them after that. bias: of the logits.
        group_score: how a group is judged, by its best expert or by the sum of its two best. Raises ModelError when
        groups are not equal, or hold too few experts to choose from.
        """
        super().__init__()
        fit = 1 <= top_groups <= groups and num_experts % groups == 0
        if not fit or not 1 <= top_k <= num_experts // groups * top_groups:
            raise ModelError(
                f"router: {num_experts} experts in {groups} groups, of which {top_groups} take part, cannot give "
                f"top_k={top_k} experts; expected equal groups that together hold at least top_k"
            )
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(num_experts)) if bias else None
        # A buffer: it is moved by the balance of the experts' load while pre-training, not by a gradient.
        self.register_buffer(
            "selection_bias", torch.zeros(num_experts, dtype=torch.float32) if selection_bias else None
        )
        self.top_k = top_k
        self.score = score
        self.order = order
        self.normalize = normalize
        self.scale = scale
        self.groups = groups
        self.top_groups = top_groups
        self.group_score = group_score
        self.jitter = jitter
        self._in_float32 = score == "sigmoid" or selection_bias or groups > 1

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """[T, hidden_size] -> mixing weights [T, top_k] and expert numbers, int64 [T, top_k]."""
        logits = self._logits(hidden)
        if self.score == "sparse_mixer":
            weights, experts = sparse_mixer(logits, self.top_k, self.jitter)
            if self.routes is not None:
                weights, experts = sparse_mixer(logits, self.top_k, self.jitter, self._settled(experts))
            return (weights * self.scale).to(hidden.dtype), experts
        scores = self._score(logits) if self.order == "score_first" else logits
        choice = scores if self.selection_bias is None else scores + self.selection_bias
        if self.groups > 1:
            choice = self._only_best_groups(choice)
        experts = self._settled(choice.topk(self.top_k, -1).indices)
        weights = scores.gather(-1, experts)
        if self.order == "select_first":
            weights = self._score(weights)
        if self.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + _SMALLEST_SUM)
        if self.scale != 1.0:
            weights = weights * self.scale
        return weights if self._in_float32 else weights.to(hidden.dtype), experts

    def _settled(self, experts: Tensor) -> Tensor:
        if self.routes is None:
            return experts
        routes, number = self.routes
        return routes.settle(number, experts)

    def _logits(self, hidden: Tensor) -> Tensor:
        if not self._in_float32 or hidden.dtype == torch.float64:
            logits = linear(hidden, self.weight, self.bias)
            return logits if logits.dtype == torch.float64 else logits.float()
        bias = None if self.bias is None else self.bias.float()
        return linear(hidden.float(), self.weight.float(), bias)

    def _score(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) if self.score == "softmax" else logits.sigmoid()

    def _only_best_groups(self, choice: Tensor) -> Tensor:
        """[T, num_experts] with -inf outside the best groups."""
        grouped = choice.unflatten(-1, (self.groups, -1))
        if self.group_score == "max":
            judged = grouped.amax(-1)
        else:
            judged = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1)
        best = judged.topk(self.top_groups, -1).indices
        excluded = torch.ones_like(judged, dtype=torch.bool).scatter(-1, best, False)
        return grouped.masked_fill(excluded[..., None], -torch.inf).flatten(-2)


class Experts(nn.Module):
    """`num_experts` feed-forward layers in stacked parameters: [experts, out, in], biases [experts, out].

    Each is a `GatedMLP`, or with gated=False an `MLP`; the options mean the same.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        *,
        activation: str = "silu",
        gated: bool = True,
        bias: bool = False,
        clamp: float | None = None,
        up_offset: float = 0.0,
        weigh_inputs: bool = False,
    ) -> None:
        """bias: of all matrices. weigh_inputs: what an expert gets is weighted, in place of what it gives (Llama 4).
        ModelError for an unknown activation."""
        super().__init__()

        def stacked(*shape: int, present: bool = True) -> nn.Parameter | None:
            return nn.Parameter(torch.empty(num_experts, *shape)) if present else None

        self.gate_proj = stacked(intermediate_size, hidden_size, present=gated)
        self.up_proj = nn.Parameter(torch.empty(num_experts, intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(num_experts, hidden_size, intermediate_size))
        self.gate_bias = stacked(intermediate_size, present=gated and bias)
        self.up_bias = stacked(intermediate_size, present=bias)
        self.down_bias = stacked(hidden_size, present=bias)
        self.activation = find_activation(activation)
        self.clamp = clamp
        self.up_offset = up_offset
        self.weigh_inputs = weigh_inputs

    def forward(self, hidden: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        """Return the weighted sum of each token's experts: [T, hidden_size], [T, top_k], [T, top_k] -> [T,
        hidden_size]."""
        top_k = experts.shape[1]
        # Sorting brings the tokens of one expert together; `order` indexes (token, choice) pairs.
        chosen, order = experts.flatten().sort(stable=True)
        tokens = order // top_k
        factors = weights.flatten()[order, None]
        given = hidden[tokens]
        if self.weigh_inputs:
            given = (given * factors).to(hidden.dtype)
        if suits_grouping(given, self.gate_proj, self.up_proj, self.down_proj):
            runs = RowRuns.of(chosen, self.up_proj.shape[0])
            fed = self._feed(partial(grouped_linear, runs=runs), given, *self._stacks())
        else:
            fed = self._one_by_one(given, chosen)
        mixed = fed if self.weigh_inputs else fed * factors
        return torch.zeros_like(hidden).index_add(0, tokens, mixed.to(hidden.dtype))

    def _one_by_one(self, given: Tensor, chosen: Tensor) -> Tensor:
        """[R, hidden_size] sorted by expert, int64 [R] -> [R, hidden_size]; reads from the device how many rows each
        expert has."""
        num_experts = self.up_proj.shape[0]
        counts = chosen.bincount(minlength=num_experts).tolist()
        # unbind: its backward stacks the experts' gradients, where that of indexing adds a full-size one per expert.
        separate = [[None] * num_experts if stack is None else stack.unbind() for stack in self._stacks()]
        parts = zip(given.split(counts), *separate, strict=True)
        return torch.cat([self._feed(linear, rows, *parameters) for rows, *parameters in parts if rows.shape[0]])

    def _stacks(self) -> tuple[Tensor | None, ...]:
        return self.gate_proj, self.gate_bias, self.up_proj, self.up_bias, self.down_proj, self.down_bias

    def _feed(
        self,
        product: Callable[[Tensor, Any, Any], Tensor],
        rows: Tensor,
        gate: Tensor | None,
        gate_bias: Tensor | None,
        up: Tensor | None,
        up_bias: Tensor | None,
        down: Tensor | None,
        down_bias: Tensor | None,
    ) -> Tensor:
        """Apply one expert, or all of them by a `product` that knows which rows are whose."""
        widened = product(rows, up, up_bias)
        if gate is None:
            return product(self.activation(widened), down, down_bias)
        gated = product(rows, gate, gate_bias)
        joined = gated_product(gated, widened, self.activation, clamp=self.clamp, up_offset=self.up_offset)
        return product(joined, down, down_bias)


class MixtureOfExperts(nn.Module):
    """Router and experts in the place of a feed-forward layer.

    shared_experts: a layer for all tokens, whose output is added; shared_gate: after a gate of its own, one number
    between 0 and 1 per token; shared_scale: times this number.
    """

    def __init__(
        self,
        *,
        router: Router,
        experts: Experts,
        shared_experts: nn.Module | None = None,
        shared_gate: bool = False,
        shared_scale: float = 1.0,
    ) -> None:
        super().__init__()
        assert shared_experts is not None or not shared_gate, "a gate needs shared experts"
        self.router = router
        self.experts = experts
        self.shared_experts = shared_experts
        self.shared_scale = shared_scale
        self.shared_gate = Linear(router.weight.shape[1], 1, bias=False) if shared_gate else None

    def forward(self, hidden: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        mixed: Tensor = self.experts(hidden, *self.router(hidden))
        if self.shared_experts is None:
            return mixed
        shared: Tensor = self.shared_experts(hidden)
        if self.shared_gate is not None:
            shared = shared * self.shared_gate(hidden).sigmoid()
        if self.shared_scale != 1.0:
            shared = shared * self.shared_scale
        return mixed + shared
