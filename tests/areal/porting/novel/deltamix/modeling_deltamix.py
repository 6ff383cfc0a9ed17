"""DeltaMix: the input of each layer is a learned mixture of the outputs of all layers before it."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class DeltaMixLayer(nn.Module):
    def __init__(self, config, index):
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.mixture = nn.Parameter(torch.zeros(index + 1))
        self.input_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.proj = nn.Linear(size, size, bias=False)
        self.ff_norm = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.up = nn.Linear(size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, size, bias=False)

    def forward(self, outputs, cos, sin):
        x = torch.einsum("l,lbth->bth", torch.softmax(self.mixture, dim=0), torch.stack(outputs))
        batch, length, size = x.shape
        mixed = self.qkv(self.input_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = mixed
        half = query.shape[-1] // 2
        query, key = (each * cos + torch.cat((-each[..., half:], each[..., :half]), -1) * sin for each in (query, key))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(nn.functional.gelu(self.up(self.ff_norm(x))))


class DeltaMixForCausalLM(PreTrainedModel):
    """Has no config class of its own: fields are those of config.json."""

    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DeltaMixLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, **kwargs):
        outputs = [self.embed(input_ids)]
        size = self.config.hidden_size // self.config.num_attention_heads
        inverse = self.config.rope_theta ** (-torch.arange(0, size, 2, device=input_ids.device).float() / size)
        angles = torch.arange(input_ids.shape[1], device=input_ids.device).float()[:, None] * inverse
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
        for layer in self.layers:
            outputs.append(layer(outputs, cos, sin))
        return CausalLMOutput(logits=self.lm_head(self.norm(outputs[-1])))
