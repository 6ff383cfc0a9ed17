"""Aster: sandwich norms, one matrix for queries, keys and values per group of heads, rotation of half of each head."""

from typing import ClassVar

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_aster import AsterConfig  # noqa: TID252 - as files beside a checkpoint do


class AsterScale(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, size, eps):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        spread = x.float().square().mean(-1, keepdim=True)
        return (self.gain * (x.float() * torch.rsqrt(spread + self.eps))).to(x.dtype)


def rotation_table(config, positions):
    rotated = int(config.channels_per_head * config.rotated_fraction)
    frequencies = config.rotation_base ** (-torch.arange(0, rotated, 2, device=positions.device).float() / rotated)
    angles = positions[..., None].float() * frequencies
    return angles.cos()[:, None], angles.sin()[:, None]


def turn(x, cos, sin):
    """Rotates neighbouring channels (2j, 2j + 1) of the first part of each head."""
    rotated = 2 * cos.shape[-1]
    head, rest = x[..., :rotated], x[..., rotated:]
    even, odd = head[..., 0::2], head[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((turned, rest), dim=-1)


def eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    weights = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class AsterMixer(nn.Module):
    """Grouped-query attention; rows of `wqkv` stand group by group: queries of the group, its key, its value."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.groups = config.key_heads
        self.num_key_value_groups = config.query_heads // config.key_heads
        self.channels = config.channels_per_head
        self.is_causal = True
        rows = (config.query_heads + 2 * config.key_heads) * self.channels
        self.wqkv = nn.Linear(config.d_model, rows, bias=True)
        self.wo = nn.Linear(config.query_heads * self.channels, config.d_model, bias=False)

    def forward(self, x, cos, sin, attention_mask):
        batch, length, _ = x.shape
        mixed = self.wqkv(x).view(batch, length, self.groups, self.num_key_value_groups + 2, self.channels)
        query = mixed[:, :, :, :-2].reshape(batch, length, -1, self.channels).transpose(1, 2)
        key, value = (mixed[:, :, :, part].transpose(1, 2) for part in (-2, -1))
        query, key = turn(query, cos, sin), turn(key, cos, sin)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        attended, _ = attend(
            self, query, key, value, attention_mask, scaling=self.channels**-0.5, dropout=0.0, is_causal=True
        )
        return self.wo(attended.reshape(batch, length, -1))


class AsterFeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.w13 = nn.Linear(config.d_model, 2 * config.feedforward_width, bias=False)
        self.w2 = nn.Linear(config.feedforward_width, config.d_model, bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(nn.functional.gelu(gate, approximate="tanh") * up)


class AsterBlock(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.gain = config.residual_gain
        self.mix_in = AsterScale(config.d_model, config.norm_eps)
        self.mixer = AsterMixer(config, layer_idx)
        self.mix_out = AsterScale(config.d_model, config.norm_eps)
        self.ff_in = AsterScale(config.d_model, config.norm_eps)
        self.ff = AsterFeedForward(config)
        self.ff_out = AsterScale(config.d_model, config.norm_eps)

    def forward(self, x, cos, sin, attention_mask):
        x = x + self.gain * self.mix_out(self.mixer(self.mix_in(x), cos, sin, attention_mask))
        return x + self.gain * self.ff_out(self.ff(self.ff_in(x)))


class AsterPreTrainedModel(PreTrainedModel):
    config_class = AsterConfig
    base_model_prefix = "trunk"
    _supports_sdpa = True
    _supports_attention_backend = True


class AsterModel(AsterPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.tokens = nn.Embedding(config.token_count, config.d_model)
        self.blocks = nn.ModuleList([AsterBlock(config, index) for index in range(config.depth)])
        self.out_scale = AsterScale(config.d_model, config.norm_eps)
        self.post_init()

    def get_input_embeddings(self):
        return self.tokens

    def set_input_embeddings(self, value):
        self.tokens = value

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        x = self.tokens(input_ids) * self.config.embedding_gain
        if position_ids is None:
            position_ids = torch.arange(x.shape[1], device=x.device)[None]
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=attention_mask,
            past_key_values=None,
            position_ids=position_ids,
        )
        cos, sin = rotation_table(self.config, position_ids)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return BaseModelOutput(last_hidden_state=self.out_scale(x))


class AsterForCausalLM(AsterPreTrainedModel, GenerationMixin):
    _tied_weights_keys: ClassVar = {"readout.weight": "trunk.tokens.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.trunk = AsterModel(config)
        self.readout = nn.Linear(config.d_model, config.token_count, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.readout

    def set_output_embeddings(self, value):
        self.readout = value

    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        hidden = self.trunk(input_ids, attention_mask, position_ids).last_hidden_state
        return CausalLMOutput(logits=self.readout(hidden) / self.config.logit_divisor)
