"""Log-probabilities and values of padded batches belong to their tokens, however the batch is cut."""

import pytest
import torch

from areal.api import EngineError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.runner import FrozenModel
from areal.models.value_head import ValueModel


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("budget", "chunk"), [(1, 1), (13, 3), (1000, 1000)])
def test_log_probabilities_equal_those_of_each_sequence_alone(
    make_engine, make_batch, naive_scores, temperature, budget, chunk
):
    engine = make_engine(max_tokens_per_micro_batch=budget, logprob_chunk_size=chunk)
    batch = make_batch(pad=3)
    expected = naive_scores(engine.model, batch, temperature)[0]
    found = engine.forward_logp(batch, temperature=temperature)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not found.requires_grad
    assert (found[:, 0] == 0).all()
    columns = torch.arange(batch.tokens.shape[1])
    assert (found[columns >= batch.lengths[:, None]] == 0).all()


def test_float32_is_the_default_and_close_to_exact(make_engine, make_batch, naive_scores):
    engine = make_engine(dtype="float32", max_tokens_per_micro_batch=13, logprob_chunk_size=3)
    batch = make_batch()
    found = engine.forward_logp(batch)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), naive_scores(engine.model, batch)[0], rtol=1e-5, atol=1e-5)


def test_computing_masked_tokens_only_gives_the_same_numbers_there_and_zero_elsewhere(make_engine, make_batch):
    engine, batch = make_engine(), make_batch()
    every, some = engine.forward_logp(batch), engine.forward_logp(batch, only_masked=True)
    torch.testing.assert_close(some, every * batch.loss_mask, rtol=1e-12, atol=1e-12)
    assert (every[batch.loss_mask == 0] != 0).any()


def test_only_needed_hidden_states_reach_the_vocabulary_projection(make_engine, make_batch, monkeypatch):
    engine, batch = make_engine(), make_batch()
    rows, project = [], engine.model.project
    monkeypatch.setattr(engine.model, "project", lambda hidden: rows.append(hidden.shape[0]) or project(hidden))
    engine.forward_logp(batch, only_masked=True)
    assert sum(rows) == int(batch.loss_mask.sum())


def test_one_token_sequences_have_no_prediction(make_engine, make_batch):
    batch = make_batch(lengths=(1, 1), prompts=(0, 0))
    assert torch.equal(make_engine().forward_logp(batch), torch.zeros(2, 1, dtype=torch.float64))


def test_a_frozen_copy_scores_like_the_engine_and_is_not_changed_by_its_updates(make_engine, make_batch, policy_loss):
    engine, batch = make_engine(), make_batch()
    before = engine.forward_logp(batch, temperature=0.9)
    frozen = FrozenModel.copy_of(engine.model, config=TrainEngineConfig(max_tokens_per_micro_batch=10))
    engine.train_batch(batch, policy_loss(batch))
    torch.testing.assert_close(frozen.forward_logp(batch, temperature=0.9), before, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(engine.forward_logp(batch, temperature=0.9), before)


def test_values_are_those_of_the_state_before_each_token(make_engine, make_batch):
    engine, batch = make_engine(is_critic=True, dtype="float32", max_tokens_per_micro_batch=13), make_batch()
    with torch.no_grad():
        engine.model.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    found = engine.forward_values(batch)
    assert found.dtype == torch.float32
    for row, length in enumerate(batch.lengths.tolist()):
        packed = (
            batch.tokens[row, :length],
            torch.arange(length),
            torch.tensor([0, length], dtype=torch.int32),
            length,
        )
        values = engine.model(*packed).detach()
        torch.testing.assert_close(found[row, 1:length], values[:-1], rtol=1e-5, atol=1e-5)
        assert found[row, 0] == 0
        assert (found[row, length:] == 0).all()


def test_actor_and_critic_are_not_confused(make_engine, make_model, make_batch):
    with pytest.raises(EngineError, match="needs a value head"):
        make_engine().forward_values(make_batch())
    with pytest.raises(EngineError, match="trains a critic"):
        make_engine(is_critic=True).forward_logp(make_batch())
    with pytest.raises(EngineError, match="ValueModel"):
        make_engine(make_model(), is_critic=True)


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator beside the CPU")
def test_results_are_on_the_device_of_the_batch_and_not_on_that_of_the_model(make_engine, make_model, make_batch):
    batch = make_batch()
    actor = make_engine(make_model(), device="auto", dtype="float32")
    critic = make_engine(ValueModel(make_model()), device="auto", dtype="float32", is_critic=True)
    assert actor.device.type != "cpu"
    reference = FrozenModel.copy_of(actor.model)
    for result in (actor.forward_logp(batch), critic.forward_values(batch), reference.forward_logp(batch)):
        assert result.device == batch.tokens.device
