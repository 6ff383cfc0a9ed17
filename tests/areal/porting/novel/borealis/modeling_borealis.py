"""Borealis: experts behind a sigmoid router with groups, local blocks that rotate, global ones without positions."""

import math

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_borealis import BorealisConfig  # noqa: TID252 - as files beside a checkpoint do


class UnitNorm(nn.Module):
    """Weights are stored as their distance from one."""

    def __init__(self, size, eps):
        super().__init__()
        self.delta = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1.0 + self.delta)


class Attend(nn.Module):
    def __init__(self, config, block):
        super().__init__()
        self.heads, self.kv_heads, self.size = config.n_heads, config.n_kv_heads, config.head_size
        self.everything = (block + 1) % config.global_every == 0
        self.span = config.span
        self.base = config.rope_base
        self.to_q = nn.Linear(config.width, self.heads * self.size, bias=False)
        self.to_k = nn.Linear(config.width, self.kv_heads * self.size, bias=False)
        self.to_v = nn.Linear(config.width, self.kv_heads * self.size, bias=False)
        self.merge = nn.Linear(self.heads * self.size, config.width, bias=False)
        self.norm_q = UnitNorm(self.size, config.epsilon)
        self.norm_k = UnitNorm(self.size, config.epsilon)

    def rotate(self, x):
        half = self.size // 2
        steps = torch.arange(x.shape[2], device=x.device).float()
        angles = steps[:, None] * self.base ** (-torch.arange(half, device=x.device).float() / half)
        first, second = x[..., :half], x[..., half:]
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), dim=-1
        )

    def forward(self, x):
        batch, length, _ = x.shape
        query = self.norm_q(self.to_q(x).view(batch, length, self.heads, self.size)).transpose(1, 2)
        key = self.norm_k(self.to_k(x).view(batch, length, self.kv_heads, self.size)).transpose(1, 2)
        value = self.to_v(x).view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        if not self.everything:
            query, key = self.rotate(query), self.rotate(key)
        repeats = self.heads // self.kv_heads
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size)
        steps = torch.arange(length, device=x.device)
        distance = steps[:, None] - steps[None]
        hidden = (distance < 0) if self.everything else (distance < 0) | (distance >= self.span)
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
        return self.merge((weights @ value).transpose(1, 2).reshape(batch, length, -1))


class Gated(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.open = nn.Linear(width, inner, bias=False)
        self.lift = nn.Linear(width, inner, bias=False)
        self.lower = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.lower(nn.functional.silu(self.open(x)) * self.lift(x))


class Switch(nn.Module):
    """Chooses experts; the bias takes part in the choice and not in the weights."""

    def __init__(self, config):
        super().__init__()
        self.groups, self.kept = config.expert_groups, config.expert_groups_kept
        self.active, self.scale = config.experts_active, config.combine_scale
        self.centroids = nn.Parameter(torch.empty(config.experts_total, config.width))
        self.register_buffer("balance", torch.zeros(config.experts_total))
        nn.init.normal_(self.centroids, std=0.02)

    def forward(self, x):
        scores = torch.sigmoid(x.float() @ self.centroids.float().T)
        judged = scores + self.balance
        grouped = judged.view(x.shape[0], self.groups, -1)
        strength = grouped.topk(2, dim=-1).values.sum(-1)
        best = strength.topk(self.kept, dim=-1).indices
        allowed = torch.zeros_like(strength).scatter_(1, best, 1.0).bool()
        judged = grouped.masked_fill(~allowed[..., None], float("-inf")).view_as(scores)
        chosen = judged.topk(self.active, dim=-1).indices
        weights = scores.gather(1, chosen)
        return chosen, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale


class Crowd(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.switch = Switch(config)
        self.members = nn.ModuleList([Gated(config.width, config.expert_width) for _ in range(config.experts_total)])
        self.everyone = Gated(config.width, config.shared_width)

    def forward(self, x):
        flat = x.view(-1, x.shape[-1])
        chosen, weights = self.switch(flat)
        out = torch.zeros_like(flat)
        for number, member in enumerate(self.members):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                out.index_add_(0, token, member(flat[token]) * weights[token, place, None].to(flat.dtype))
        return out.view_as(x) + self.everyone(x)


class Stage(nn.Module):
    def __init__(self, config, block):
        super().__init__()
        self.before_attend = UnitNorm(config.width, config.epsilon)
        self.attend = Attend(config, block)
        self.before_think = UnitNorm(config.width, config.epsilon)
        dense = block < config.leading_dense_blocks
        self.think = Gated(config.width, config.mlp_width) if dense else Crowd(config)

    def forward(self, x):
        x = x + self.attend(self.before_attend(x))
        return x + self.think(self.before_think(x))


class BorealisForCausalLM(PreTrainedModel):
    config_class = BorealisConfig
    base_model_prefix = "body"
    _supports_sdpa = False

    def __init__(self, config):
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.width)
        self.stages = nn.ModuleList([Stage(config, block) for block in range(config.num_blocks)])
        self.last = UnitNorm(config.width, config.epsilon)
        self.speak = nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def get_output_embeddings(self):
        return self.speak

    def forward(self, input_ids, **kwargs):
        x = self.words(input_ids)
        for stage in self.stages:
            x = stage(x)
        return CausalLMOutput(logits=self.speak(self.last(x)))
