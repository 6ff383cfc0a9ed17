"""A tiny real model, batches, and the plain-torch computation that the engine must agree with."""

import pytest
import torch

from areal.api import LossOutput, PaddedBatch
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.models.value_head import ValueModel

VOCAB = 29
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    # Larger than real models use, so that distributions are far from uniform and mistakes show.
    "initializer_range": 0.3,
}


@pytest.fixture(scope="session")
def make_model():
    """`make_model(tied=False, dtype=..., seed=...)`: qwen3 with random weights."""

    def build(*, tied=False, dtype=torch.float32, seed=0):
        return from_config({**CONFIG, "tie_word_embeddings": tied}, dtype=dtype, seed=seed)

    return build


@pytest.fixture(scope="session")
def make_engine(make_model):
    """`make_engine(model=None, is_critic=False, total_steps=None, **config)`, on the CPU and float64 by default."""

    def build(model=None, *, is_critic=False, total_steps=None, **changes):
        config = TrainEngineConfig(**{"lr": 1e-2, "dtype": "float64", "device": "cpu", **changes})
        if model is None:
            model = make_model(dtype=torch.float32 if config.dtype == "bfloat16" else getattr(torch, config.dtype))
            model = ValueModel(model) if is_critic else model
        return TrainingEngine(model, config=config, total_steps=total_steps, is_critic=is_critic)

    return build


@pytest.fixture(scope="session")
def make_batch():
    """`make_batch(lengths, prompts, seed=0, pad=0)`: random tokens; row i trains all but its first `prompts[i]`."""

    def build(lengths=(7, 1, 12, 5, 9), prompts=(3, 1, 4, 5, 0), *, seed=0, pad=0):
        generator = torch.Generator().manual_seed(seed)
        rows, width = len(lengths), max(lengths) + pad
        columns = torch.arange(width)
        sizes, starts = torch.tensor(lengths), torch.tensor(prompts)
        mask = ((columns >= starts[:, None]) & (columns < sizes[:, None]) & (columns > 0)).float()
        return PaddedBatch(
            tokens=torch.randint(0, VOCAB, (rows, width), generator=generator),
            lengths=sizes,
            loss_mask=mask,
            logp_behave=torch.zeros(rows, width),
            versions=torch.where(mask > 0, 0, -1),
            turn_ids=torch.where(mask > 0, 0, -1),
            rewards=torch.randn(rows, generator=generator),
            groups=torch.arange(rows) // 2,
            truncated=torch.zeros(rows, dtype=torch.bool),
            advantages=torch.randn(rows, width, generator=generator),
            returns=torch.randn(rows, width, generator=generator),
        )

    return build


@pytest.fixture(scope="session")
def policy_loss():
    """`policy_loss(batch)`: a loss function with the batch's global denominator, using the entropy when given."""

    def build(batch):
        total = batch.loss_mask.sum().clamp_min(1.0)

        def loss_fn(logp_SL, entropy_SL, part):
            mask_SL = part.loss_mask
            loss = -(torch.where(mask_SL > 0, part.advantages * logp_SL, 0.0)).sum() / total
            if entropy_SL is not None:
                loss = loss - 0.3 * (entropy_SL * mask_SL).sum() / total
            metrics = {
                "logp": (logp_SL * mask_SL).sum().detach() / total,
                "length_max": part.lengths.max(),
                "length_min": part.lengths.min(),
            }
            return LossOutput(loss=loss, metrics=metrics)

        return loss_fn

    return build


@pytest.fixture(scope="session")
def naive_scores():
    """`naive_scores(model, batch, temperature)`: (logp, entropy, mean_logp) [S, L], one unpadded sequence at a time."""

    def compute(model, batch, temperature=1.0):
        columns = [torch.zeros(batch.tokens.shape, dtype=torch.float64) for _ in range(3)]
        placed = [list(column.unbind()) for column in columns]
        for row, length in enumerate(batch.lengths.tolist()):
            tokens = batch.tokens[row, :length]
            offsets = torch.tensor([0, length], dtype=torch.int32)
            logits = model(tokens, torch.arange(length), offsets, length).double() / temperature
            log_p = logits.log_softmax(-1)[:-1]
            rest = torch.zeros(batch.tokens.shape[1] - length, dtype=torch.float64)
            found = (log_p.gather(-1, tokens[1:, None])[:, 0], -(log_p.exp() * log_p).sum(-1), log_p.mean(-1))
            for column, values in zip(placed, found, strict=True):
                column[row] = torch.cat([torch.zeros(1, dtype=torch.float64), values, rest])
        return tuple(torch.stack(column) for column in placed)

    return compute
