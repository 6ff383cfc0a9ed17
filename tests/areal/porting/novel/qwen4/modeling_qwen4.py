"""Qwen4: three gated delta rules, then gated attention over everything, and so on."""

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from .configuration_qwen4 import Qwen4Config  # noqa: TID252 - as files beside a checkpoint do


class Qwen4Norm(nn.Module):
    """Root mean square norm whose weight is what is added to one."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        spread = x.float().square().mean(-1, keepdim=True)
        return ((1.0 + self.weight) * (x.float() * torch.rsqrt(spread + self.eps))).to(x.dtype)


class Qwen4GatedNorm(nn.Module):
    """Norm of each head of what a rule reads, times its gate."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, gate):
        spread = x.float().square().mean(-1, keepdim=True)
        return self.weight * (x.float() * torch.rsqrt(spread + self.eps)) * functional.silu(gate.float())


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_rule(query, key, value, log_decay, rate):
    """One token after the other; shapes [batch, length, heads, size], decays and rates without the last."""
    state = value.new_zeros(key.shape[0], key.shape[2], key.shape[3], value.shape[3])
    outputs = []
    for t in range(key.shape[1]):
        state = state * log_decay[:, t, :, None, None].exp()
        error = value[:, t] - (state * key[:, t, :, :, None]).sum(-2)
        state = state + key[:, t, :, :, None] * (rate[:, t, :, None] * error)[:, :, None]
        outputs.append((state * query[:, t, :, :, None]).sum(-2))
    return torch.stack(outputs, dim=1)


class Qwen4DeltaRule(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.key_heads, self.value_heads = config.delta_key_heads, config.delta_value_heads
        self.key_dim, self.value_dim = config.delta_key_dim, config.delta_value_dim
        self.keys, self.values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        channels = 2 * self.keys + self.values
        self.in_qkv = nn.Linear(config.hidden_size, channels, bias=False)
        self.in_gate = nn.Linear(config.hidden_size, self.values, bias=False)
        self.in_rate = nn.Linear(config.hidden_size, self.value_heads, bias=False)
        self.in_decay = nn.Linear(config.hidden_size, self.value_heads, bias=False)
        self.filter = nn.Conv1d(
            channels, channels, config.delta_kernel, groups=channels, padding=config.delta_kernel - 1, bias=False
        )
        self.dt_bias = nn.Parameter(torch.ones(self.value_heads))
        self.A_log = nn.Parameter(torch.linspace(1, 8, self.value_heads).log())
        self.norm = Qwen4GatedNorm(self.value_dim, config.rms_norm_eps)
        self.out = nn.Linear(self.values, config.hidden_size, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        mixed = functional.silu(self.filter(self.in_qkv(x).transpose(1, 2))[..., :length].transpose(1, 2))
        query, key, value = mixed.split([self.keys, self.keys, self.values], dim=-1)
        share = self.value_heads // self.key_heads
        query, key = (
            unit(part.view(batch, length, self.key_heads, -1)).repeat_interleave(share, dim=2) for part in (query, key)
        )
        value = value.view(batch, length, self.value_heads, -1)
        log_decay = -self.A_log.float().exp() * functional.softplus(self.in_decay(x).float() + self.dt_bias)
        read = delta_rule(query * self.key_dim**-0.5, key, value, log_decay, self.in_rate(x).sigmoid())
        gate = self.in_gate(x).view(batch, length, self.value_heads, -1)
        return self.out(self.norm(read, gate).reshape(batch, length, -1).to(x.dtype))


def turn(x, cos, sin):
    """Rotate the first channels of each head, half against half."""
    rotated = cos.shape[-1]
    head, rest = x[..., :rotated], x[..., rotated:]
    half = torch.cat((-head[..., rotated // 2 :], head[..., : rotated // 2]), dim=-1)
    return torch.cat((head * cos + half * sin, rest), dim=-1)


class Qwen4Attention(nn.Module):
    """Grouped queries, each head with as many rows of gates as of queries."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.groups, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, 2 * self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, self.groups * self.size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, self.groups * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, config.hidden_size, bias=False)
        self.q_norm = Qwen4Norm(self.size, config.rms_norm_eps)
        self.k_norm = Qwen4Norm(self.size, config.rms_norm_eps)

    def forward(self, x, cos, sin, mask):
        batch, length, _ = x.shape
        query, gate = self.q_proj(x).view(batch, length, self.heads, 2 * self.size).chunk(2, dim=-1)
        query = turn(self.q_norm(query).transpose(1, 2), cos, sin)
        key = turn(self.k_norm(self.k_proj(x).view(batch, length, self.groups, -1)).transpose(1, 2), cos, sin)
        value = self.v_proj(x).view(batch, length, self.groups, -1).transpose(1, 2)
        share = self.heads // self.groups
        key, value = key.repeat_interleave(share, dim=1), value.repeat_interleave(share, dim=1)
        scores = query @ key.transpose(2, 3) * self.size**-0.5
        scores = scores if mask is None else scores + mask
        read = (functional.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype) @ value).transpose(1, 2)
        return self.o_proj(read.reshape(batch, length, -1) * gate.reshape(batch, length, -1).sigmoid())


class Qwen4FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Qwen4Layer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        self.attends = (index + 1) % config.attention_every == 0
        if self.attends:
            self.attention = Qwen4Attention(config)
        else:
            self.delta = Qwen4DeltaRule(config)
        self.mlp = Qwen4FeedForward(config)
        self.norm_before_mixer = Qwen4Norm(config.hidden_size, config.rms_norm_eps)
        self.norm_before_mlp = Qwen4Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x, cos, sin, mask):
        normed = self.norm_before_mixer(x)
        x = x + (self.attention(normed, cos, sin, mask) if self.attends else self.delta(normed))
        return x + self.mlp(self.norm_before_mlp(x))


class Qwen4PreTrainedModel(PreTrainedModel):
    config_class = Qwen4Config
    base_model_prefix = "model"


class Qwen4Model(Qwen4PreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Qwen4Layer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = Qwen4Norm(config.hidden_size, config.rms_norm_eps)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed_tokens

    def set_input_embeddings(self, value):
        self.embed_tokens = value

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        x = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=None,
            position_ids=position_ids,
        )
        rotated = int(self.config.head_dim * self.config.rotary_fraction)
        steps = torch.arange(0, rotated, 2, device=x.device).float() / rotated
        angles = position_ids[..., None].float() * self.config.rope_theta**-steps
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        return BaseModelOutput(last_hidden_state=self.norm(x))


class Qwen4ForCausalLM(Qwen4PreTrainedModel, GenerationMixin):
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.model = Qwen4Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        hidden = self.model(input_ids, attention_mask, position_ids).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden))
