"""Tiny models of `transformers` with every parameter randomised, and ways to run ours on the same tokens."""

from __future__ import annotations

import pytest
import torch

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    # Far above the usual 1e-6: a hard-coded epsilon becomes visible.
    "rms_norm_eps": 2e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "qwen2": {},
    "qwen3": {"head_dim": 24},
    "qwen3_moe": {"head_dim": 24, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
}


def tolerance(logits: torch.Tensor) -> float:
    """Largest difference that float32 rounding explains."""
    return 5e-5 * max(1.0, logits.std().item())


@torch.no_grad()
def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Every parameter, norm scales and biases included: a parameter left at its default could be ignored unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.copy_(1 + 0.3 * noise)
        elif "embed" in name:
            parameter.copy_(0.2 * noise)
        else:
            parameter.copy_(noise * (0.3 if parameter.dim() == 1 else parameter.shape[-1] ** -0.5))


@pytest.fixture
def hf_config():
    """hf_config(model_type, **overrides): a config object of transformers."""
    from transformers import AutoConfig

    def build(model_type, **overrides):
        return AutoConfig.for_model(model_type, **{**SIZES, **FAMILIES[model_type], **overrides})

    return build


@pytest.fixture
def hf_model(hf_config):
    """hf_model(model_type, **overrides): a randomised model of transformers in evaluation mode."""
    from transformers import AutoModelForCausalLM

    def build(model_type, **overrides):
        model = AutoModelForCausalLM.from_config(hf_config(model_type, **overrides)).eval()
        randomise(model)
        return model

    return build


@pytest.fixture
def tokens():
    """40 tokens: longer than every window, group and rotary boundary of the tiny configs."""
    return torch.randint(0, SIZES["vocab_size"], (40,), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def run():
    """run(model, *documents): logits of ours over the documents packed into one forward."""

    def forward(model, *documents):
        lengths = torch.tensor([0, *(len(document) for document in documents)])
        positions = torch.cat([torch.arange(len(document)) for document in documents])
        return model(torch.cat(documents), positions, lengths.cumsum(0).to(torch.int32), max(len(d) for d in documents))

    return forward


@pytest.fixture
def assert_same_logits():
    """assert_same_logits(ours, reference): equal up to rounding."""

    def check(ours, reference):
        assert ours.shape == reference.shape
        difference = (ours - reference).abs().max().item()
        assert difference <= tolerance(reference), f"differs by {difference}, allowed {tolerance(reference)}"

    return check


@pytest.fixture
def assert_different_logits():
    """assert_different_logits(ours, reference): the difference is far above rounding."""

    def check(ours, reference):
        assert (ours - reference).abs().max().item() >= 3 * tolerance(reference)

    return check
