"""Small real models, engines around them, and the reference every log-probability is held against."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from areal.api import GenerationConfig, ModelRequest, ModelResponse
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.models import from_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TINY: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    # Far from uniform predictions, so that a wrong mask, position or weight shows.
    "initializer_range": 0.25,
}
EOS = 1
VARIANTS: dict[str, dict[str, Any]] = {
    "dense": {},
    "sliding window": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "mixture of experts": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
}


@dataclass(frozen=True)
class World:
    """What a test needs to build and to check generations."""

    build_model: Callable[..., Any]
    build_engine: Callable[..., EmbeddedEngine]

    @staticmethod
    def request(
        length: int, *, seed: int = 0, prompt_seed: int | None = None, new: int = 16, **options: Any
    ) -> ModelRequest:
        """A request with a random prompt of `length` tokens; options go to GenerationConfig."""
        generator = torch.Generator().manual_seed(seed if prompt_seed is None else prompt_seed)
        ids = torch.randint(2, TINY["vocab_size"], (length,), generator=generator).tolist()
        return ModelRequest(input_ids=ids, gconfig=GenerationConfig(max_new_tokens=new, **options), seed=seed)

    @staticmethod
    def generate(engine: EmbeddedEngine, requests: Sequence[ModelRequest]) -> list[ModelResponse]:
        """Issue all requests at once on a fresh loop."""

        async def main() -> list[ModelResponse]:
            return await asyncio.wait_for(asyncio.gather(*map(engine.agenerate, requests)), timeout=60)

        return asyncio.run(main())

    @staticmethod
    def logprobs(model: Any, response: ModelResponse, *, temperature: float = 1.0) -> torch.Tensor:
        """Log-probabilities [outputs, vocab] of one full, uncached forward over prompt and output."""
        device = next(model.parameters()).device
        tokens = torch.tensor(response.input_tokens + response.output_tokens, device=device)
        length = len(tokens)
        starts = torch.tensor([0, length], dtype=torch.int32, device=device)
        with torch.no_grad():
            logits = model.forward(tokens, torch.arange(length, device=device), starts, length).float().cpu()
        return torch.log_softmax(logits / temperature, dim=-1)[len(response.input_tokens) - 1 : -1]

    def deviation(
        self, model: Any, response: ModelResponse, *, temperature: float = 1.0, first: int = 0, last: int | None = None
    ) -> float:
        """Largest difference between recorded and recomputed log-probabilities of outputs first .. last - 1."""
        chosen = torch.tensor(response.output_tokens)[:, None]
        expected = self.logprobs(model, response, temperature=temperature).gather(1, chosen)[:, 0]
        return float((expected - torch.tensor(response.output_logprobs))[first:last].abs().max())


@pytest.fixture
def world() -> World:
    def build_model(variant: str = "dense", *, seed: int = 0, **changes: Any) -> Any:
        return from_config({**TINY, **VARIANTS[variant], **changes}, seed=seed)

    def build_engine(
        model: Any, *, eos: int | None = EOS, batch: int = 8, tokenizer: Any = None, **options: Any
    ) -> EmbeddedEngine:
        config = options.pop("config", EmbeddedEngineConfig(max_batch_size=batch))
        return EmbeddedEngine(model, config=config, eos_token_id=eos, tokenizer=tokenizer, **options)

    return World(build_model=build_model, build_engine=build_engine)
