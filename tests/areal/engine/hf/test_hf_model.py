"""Models of transformers behind the training engine: the numbers are theirs, sequence by sequence, and those of our own
family where there is one."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from areal.api import CheckpointError, LossOutput, ModelError, PaddedBatch
from areal.engine.config import TrainEngineConfig
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.runner import FrozenModel
from areal.models import from_config, from_pretrained
from areal.models.value_head import ValueModel

VOCAB = 31
QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
SMALL = {key: QWEN3[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3}
ARCHITECTURES = {
    "bloom": {"model_type": "bloom", "vocab_size": VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 4},
    "cohere": {**SMALL, "model_type": "cohere", "logit_scale": 0.25, "pad_token_id": 0},
    "gemma2": {**SMALL, "model_type": "gemma2", "head_dim": 4, "sliding_window": 4, "final_logit_softcapping": 2.0},
    "gpt2": {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gpt_neox": {**SMALL, "model_type": "gpt_neox"},
    "mixtral": {**SMALL, "model_type": "mixtral", "num_local_experts": 4},
    "opt": {"model_type": "opt", "vocab_size": VOCAB, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
            "num_attention_heads": 4, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
    "phi3-longrope": {**SMALL, "model_type": "phi3", "pad_token_id": 0, "original_max_position_embeddings": 8,
                      "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, "long_factor": [4.0, 3.0],
                                          "short_factor": [1.0, 1.0], "original_max_position_embeddings": 8}},
}  # fmt: skip


def make_batch(lengths=(7, 1, 12, 5, 9), prompts=(3, 1, 4, 5, 0), *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(lengths), max(lengths)
    columns, sizes = torch.arange(width), torch.tensor(lengths)
    mask = (columns >= torch.tensor(prompts)[:, None]) & (columns < sizes[:, None]) & (columns > 0)
    zeros = torch.zeros(rows, width)
    return PaddedBatch(
        tokens=torch.randint(0, VOCAB, (rows, width), generator=generator),
        lengths=sizes,
        loss_mask=mask.float(),
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.randn(rows, generator=generator),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
    )


def loss_of(batch):
    total = batch.loss_mask.sum()

    def loss_fn(logp, _, part):
        return LossOutput(loss=-(logp * part.rewards[:, None] * part.loss_mask).sum() / total)

    return loss_fn


def engine_of(model, **changes):
    return TrainingEngine(model, config=TrainEngineConfig(**{"lr": 1e-2, "device": "cpu", **changes}))


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_log_probabilities_and_gradients_are_those_of_the_model_alone(name):
    model = loading.from_config(ARCHITECTURES[name], seed=1)
    alone, batch = copy.deepcopy(model.inner), make_batch()
    engine = engine_of(model, logprob_chunk_size=5, max_grad_norm=0.0, optimizer="sgd", momentum=0.0)
    expected = torch.zeros(batch.tokens.shape)
    rows = []
    for row, length in enumerate(batch.lengths.tolist()):
        ids = batch.tokens[row : row + 1, :length]
        if length == 1:
            rows.append(torch.zeros(0))
            continue
        # Without the last token: it predicts nothing, but some models turn positions by how many there are.
        logp = alone(input_ids=ids[:, :-1], use_cache=False).logits[0].float().log_softmax(-1)
        rows.append(logp.gather(-1, ids[0, 1:, None])[:, 0])
        expected[row, 1:length] = rows[-1].detach()
    torch.testing.assert_close(engine.forward_logp(batch), expected, atol=1e-5, rtol=1e-5)

    weights = batch.loss_mask * batch.rewards[:, None] / batch.loss_mask.sum()
    loss = -sum((logp * weights[row, 1 : len(logp) + 1]).sum() for row, logp in enumerate(rows))
    loss.backward()
    stats = engine.train_batch(batch, loss_of(batch))
    assert stats.loss == pytest.approx(loss.item(), abs=1e-5)
    trained = dict(engine.model.inner.named_parameters())
    for key, parameter in alone.named_parameters():
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        torch.testing.assert_close(trained[key], parameter - 1e-2 * gradient, atol=2e-6, rtol=1e-4, msg=key)


@pytest.mark.sample(1)
@pytest.mark.parametrize("tied", [False, True])
def test_the_native_family_and_transformers_train_alike(tmp_path, tied):
    from_config({**QWEN3, "tie_word_embeddings": tied}, seed=4).save_pretrained(tmp_path / "model")
    batch = make_batch()
    native = engine_of(from_pretrained(tmp_path / "model"), max_tokens_per_micro_batch=16)
    theirs = engine_of(loading.from_pretrained(tmp_path / "model"), max_tokens_per_micro_batch=16)
    torch.testing.assert_close(theirs.forward_logp(batch), native.forward_logp(batch), atol=1e-5, rtol=0)
    for _ in range(3):
        first, second = (each.train_batch(batch, loss_of(batch), with_entropy=True) for each in (native, theirs))
        assert second.loss == pytest.approx(first.loss, abs=1e-5)
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-4)
    torch.testing.assert_close(theirs.forward_logp(batch), native.forward_logp(batch), atol=1e-4, rtol=0)
    theirs.save_pretrained(tmp_path / "trained")
    again = engine_of(from_pretrained(tmp_path / "trained"))
    torch.testing.assert_close(again.forward_logp(batch), theirs.forward_logp(batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize("budget", [1, 14])
def test_results_do_not_depend_on_micro_batches(budget):
    batch, results = make_batch(), []
    for tokens in (10_000, budget):
        engine = engine_of(loading.from_config(QWEN3, dtype=torch.float64), dtype="float64",
                           max_tokens_per_micro_batch=tokens)  # fmt: skip
        results.append((engine.train_batch(batch, loss_of(batch)), engine.weights()))
    (whole, expected), (cut, found) = results
    assert cut.num_micro_batches > 1
    assert cut.loss == pytest.approx(whole.loss, abs=1e-10)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-10)


def test_lengths_far_apart_are_not_padded_to_the_longest(monkeypatch):
    model = loading.from_config(QWEN3)
    shapes, body = [], model.inner.base_model.forward
    monkeypatch.setattr(
        model.inner.base_model,
        "forward",
        lambda **options: shapes.append(tuple(options["input_ids"].shape)) or body(**options),
    )
    lengths = (40, 3, 3, 3, 3, 3)
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    tokens = torch.arange(55) % VOCAB
    states = model.hidden(tokens, tokens, bounds, 40)
    assert sorted(shapes) == [(1, 40), (5, 3)]
    monkeypatch.undo()
    alone = model.hidden(tokens[40:43], tokens[:3], torch.tensor([0, 3], dtype=torch.int32), 3)
    torch.testing.assert_close(states[40:43], alone)


def test_checkpointing_frozen_copies_values_and_states_work_like_for_our_own_models(tmp_path):
    batch = make_batch()
    engine = engine_of(loading.from_config({**ARCHITECTURES["gpt2"], "attn_pdrop": 0.1}), gradient_checkpointing=True)
    reference = FrozenModel.copy_of(engine.model)
    before = reference.forward_logp(batch)
    torch.testing.assert_close(engine.forward_logp(batch), before, rtol=0, atol=0)
    state = engine.state_dict()
    stats = engine.train_batch(batch, loss_of(batch))
    assert not torch.equal(engine.forward_logp(batch), before)
    torch.testing.assert_close(reference.forward_logp(batch), before, rtol=0, atol=0)
    engine.load_state_dict(state)
    assert engine.train_batch(batch, loss_of(batch)) == stats, "dropout is off, so a step can be repeated"
    plain = engine_of(loading.from_config(ARCHITECTURES["gpt2"]))
    assert plain.train_batch(batch, loss_of(batch)).loss == pytest.approx(stats.loss, abs=1e-6)

    critic = TrainingEngine(
        ValueModel(loading.from_config(QWEN3)), config=TrainEngineConfig(device="cpu"), is_critic=True
    )
    assert torch.equal(critic.forward_values(batch), torch.zeros(batch.tokens.shape))


def test_bfloat16_keeps_masters(tmp_path):
    batch = make_batch()
    engine = engine_of(loading.from_config(QWEN3), dtype="bfloat16")
    wide = engine_of(loading.from_config(QWEN3))
    for _ in range(2):
        losses = [each.train_batch(batch, loss_of(batch)).loss for each in (engine, wide)]
    assert {parameter.dtype for parameter in engine.model.parameters()} == {torch.bfloat16}
    assert losses[0] == pytest.approx(losses[1], abs=0.05)


def test_what_cannot_be_trained_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot build a 'no_such_type' model"):
        loading.from_config({"model_type": "no_such_type"})
    with pytest.raises(ModelError, match="no checkpoint folder"):
        loading.from_pretrained(tmp_path / "nowhere")
    model = loading.from_config(QWEN3)
    head = model.inner.lm_head.forward
    model.inner.lm_head.forward = lambda states: head(states) * states.shape[1]
    model._check_head()
    original = type(model.inner).forward

    class Odd(type(model.inner)):
        def forward(self, **options):
            output = original(self, **options)
            # What stands behind the body uses more of it than its states.
            output.logits = output.logits + len(self.base_model.state_dict())
            return output

    model.inner.__class__ = Odd
    with pytest.raises(ModelError, match="cannot be trained in slices"):
        type(model)(model.inner)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not a checkpoint folder"):
        loading.from_config(QWEN3).save_pretrained(tmp_path / "mine")


def test_a_pickled_checkpoint_is_not_opened(tmp_path):
    AutoModelForCausalLM.from_config(loading.from_config(QWEN3).inner.config).save_pretrained(tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    torch.save({}, tmp_path / "model" / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelError, match="cannot load"):
        loading.from_pretrained(tmp_path / "model")
