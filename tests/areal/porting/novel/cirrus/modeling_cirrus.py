"""Cirrus: norms after each part, queries and keys normed over all heads together, capped scores, a sink per head."""

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class CirrusConfig(PreTrainedConfig):
    model_type = "cirrus"
    attribute_map: ClassVar = {"hidden_size": "d_model", "num_hidden_layers": "n_layer", "vocab_size": "n_vocab"}

    def __init__(
        self,
        *,
        n_vocab=64000,
        d_model=1536,
        n_layer=20,
        n_head=12,
        n_head_kv=3,
        d_ff=4096,
        score_cap=30.0,
        logit_cap=20.0,
        theta=20000.0,
        eps=1e-6,
        n_ctx=2048,
        **kwargs,
    ):
        self.n_vocab = n_vocab
        self.d_model = d_model
        self.n_layer = n_layer
        self.n_head = n_head
        self.n_head_kv = n_head_kv
        self.d_ff = d_ff
        self.score_cap = score_cap
        self.logit_cap = logit_cap
        self.theta = theta
        self.eps = eps
        self.n_ctx = n_ctx
        super().__init__(**kwargs)


def cap(x, limit):
    return limit * torch.tanh(x / limit)


class CirrusAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, self.kv_heads = config.n_head, config.n_head_kv
        self.size = config.d_model // config.n_head
        self.limit = config.score_cap
        self.q = nn.Linear(config.d_model, self.heads * self.size, bias=False)
        self.kv = nn.Linear(config.d_model, 2 * self.kv_heads * self.size, bias=False)
        self.out = nn.Linear(self.heads * self.size, config.d_model, bias=True)
        self.q_scale = nn.RMSNorm(self.heads * self.size, eps=config.eps)
        self.k_scale = nn.RMSNorm(self.kv_heads * self.size, eps=config.eps)
        self.drain = nn.Parameter(torch.zeros(self.heads))

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        key, value = self.kv(x).chunk(2, dim=-1)
        query, key = self.q_scale(self.q(x)), self.k_scale(key)
        query = query.view(batch, length, self.heads, self.size).transpose(1, 2)
        key = key.view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        value = value.view(batch, length, self.kv_heads, self.size).transpose(1, 2)
        query, key = (each * cos + rotate_half(each) * sin for each in (query, key))
        repeats = self.heads // self.kv_heads
        key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        scores = cap(query @ key.transpose(-1, -2) * self.size**-0.5, self.limit)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        drain = self.drain.view(1, -1, 1, 1).expand(batch, -1, length, 1)
        weights = torch.cat((scores, drain), dim=-1).softmax(dim=-1)[..., :-1]
        return self.out((weights @ value).transpose(1, 2).reshape(batch, length, -1))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class CirrusLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn = CirrusAttention(config)
        self.attn_norm = nn.RMSNorm(config.d_model, eps=config.eps)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        self.ff_norm = nn.RMSNorm(config.d_model, eps=config.eps)

    def forward(self, x, cos, sin):
        x = x + self.attn_norm(self.attn(x, cos, sin))
        return x + self.ff_norm(self.fc2(functional.relu(self.fc1(x)).square()))


class CirrusLM(PreTrainedModel):
    config_class = CirrusConfig
    _supports_sdpa = False

    def __init__(self, config):
        super().__init__(config)
        self.wte = nn.Embedding(config.n_vocab, config.d_model)
        self.h = nn.ModuleList([CirrusLayer(config) for _ in range(config.n_layer)])
        self.ln_f = nn.RMSNorm(config.d_model, eps=config.eps)
        self.unembed = nn.Linear(config.d_model, config.n_vocab, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.wte

    def get_output_embeddings(self):
        return self.unembed

    def forward(self, input_ids, **kwargs):
        x = self.wte(input_ids)
        size = self.config.d_model // self.config.n_head
        inverse = self.config.theta ** (-torch.arange(0, size, 2, device=x.device).float() / size)
        angles = torch.arange(x.shape[1], device=x.device).float()[:, None] * inverse
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        for layer in self.h:
            x = layer(x, cos, sin)
        return CausalLMOutput(logits=cap(self.unembed(self.ln_f(x)), self.config.logit_cap))
