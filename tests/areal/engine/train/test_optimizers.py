"""Choices of optimizers: textbook updates, states that come back bit by bit, matrices that go where they belong."""

import copy

import pytest
import torch

from areal.api import ConfigError, EngineError
from areal.engine.train.config import TrainEngineConfig

KINDS = ("adamw", "muon", "sgd")


def gradients_of(engine, batch, loss_fn):
    """Gradients of one step, by a twin that is not updated."""
    twin = copy.deepcopy(engine.model)
    probe = type(engine)(twin, config=TrainEngineConfig(lr=0.0, dtype="float64", device="cpu", max_grad_norm=0.0))
    kept = {}
    for name, parameter in twin.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda value, name=name: kept.__setitem__(name, value.grad.clone())
        )
    probe.train_batch(batch, loss_fn)
    return kept


def test_sgd_is_momentum_with_decay_on_matrices_only(make_engine, make_batch, policy_loss):
    engine = make_engine(optimizer="sgd", lr=0.1, momentum=0.5, weight_decay=0.01, max_grad_norm=0.0)
    parameters = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
    momenta = {}
    for seed in range(3):
        batch = make_batch(seed=seed)
        gradients = gradients_of(engine, batch, policy_loss(batch))
        engine.train_batch(batch, policy_loss(batch))
        for name, before in parameters.items():
            decay = 0.01 if before.ndim > 1 else 0.0
            gradient = gradients[name] + decay * before
            momenta[name] = 0.5 * momenta[name] + gradient if name in momenta else gradient
            parameters[name] = before - 0.1 * momenta[name]
    for name, parameter in engine.model.named_parameters():
        torch.testing.assert_close(parameter.detach(), parameters[name], atol=1e-12, rtol=1e-12)


def test_muon_turns_matrices_and_leaves_tokens_and_vectors_to_adamw(make_engine, make_batch, policy_loss):
    batch = make_batch()
    engine, adamw = make_engine(optimizer="muon", lr=1e-3), make_engine(lr=1e-3)
    before = {name: parameter.detach().clone() for name, parameter in engine.model.named_parameters()}
    for each in (engine, adamw):
        each.train_batch(batch, policy_loss(batch))
    others = dict(adamw.model.named_parameters())
    turned = 0
    for name, parameter in engine.model.named_parameters():
        change = (parameter.detach() - before[name]) / 1e-3
        if name.endswith("_proj.weight"):
            turned += 1
            # Nearly an orthogonal matrix, scaled to the size of an update of AdamW.
            values = torch.linalg.svdvals(change) / (0.2 * max(change.shape) ** 0.5)
            assert values.median() > 0.6, name
            assert values.max() < 1.3, name
            assert (engine.state_dict()["optimizer"]["moments"][name]).keys() == {"momentum_buffer"}
        else:
            torch.testing.assert_close(parameter, others[name], rtol=0, atol=0)
    assert turned == 2 * 7


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", KINDS)
def test_a_state_brings_every_optimizer_back_bit_by_bit(make_engine, make_batch, policy_loss, optimizer, dtype):
    engine = make_engine(optimizer=optimizer, dtype=dtype, weight_decay=0.1)
    batches = [make_batch(seed=seed) for seed in range(3)]
    engine.train_batch(batches[0], policy_loss(batches[0]))
    state = copy.deepcopy(engine.state_dict())
    results = []
    for each in (engine, make_engine(optimizer=optimizer, dtype=dtype, weight_decay=0.1)):
        each.load_state_dict(state)
        stats = [each.train_batch(batch, policy_loss(batch)) for batch in batches]
        results.append((stats, each.state_dict()))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", KINDS)
def test_clipping_bounds_the_gradient_whatever_the_optimizer(make_engine, make_batch, policy_loss, optimizer):
    batch = make_batch()
    loose, tight = (make_engine(optimizer=optimizer, max_grad_norm=norm, momentum=0.0) for norm in (0.0, 1e-3))
    stats = [each.train_batch(batch, policy_loss(batch)) for each in (loose, tight)]
    assert stats[0].grad_norm == stats[1].grad_norm > 1e-3
    if optimizer == "sgd":
        changes = []
        for each in (loose, tight):
            start = dict(make_engine().model.named_parameters())
            moved = [(parameter - start[name]).flatten() for name, parameter in each.model.named_parameters()]
            changes.append(torch.cat(moved).norm())
        assert (changes[1] / changes[0]).item() == pytest.approx(1e-3 / stats[0].grad_norm, rel=1e-6)


def test_states_of_another_optimizer_and_settings_without_meaning_are_refused(make_engine, make_batch, policy_loss):
    trained, batch = make_engine(), make_batch()
    trained.train_batch(batch, policy_loss(batch))
    for other in ("muon", "sgd"):
        with pytest.raises(EngineError, match="saved with another optimizer"):
            make_engine(optimizer=other).load_state_dict(trained.state_dict())
    with pytest.raises(ConfigError, match="momentum is 1"):
        TrainEngineConfig(momentum=1.0)
