"""Choices of optimizers: textbook updates, states that come back bit by bit, matrices that go where they belong."""

import copy

import pytest
import torch

from areal.api import ConfigError, EngineError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.muon import orthogonal
from areal.engine.train.optimizer import ModelOptimizer
from areal.engine.train.ranks import Ranks
from areal.models import from_config

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


@pytest.mark.parametrize("together", [1, 600, 1 << 26], ids=["one by one", "some at a time", "all at once"])
def test_rounded_gradients_add_up_in_float32_however_many_wait(
    make_engine, make_batch, policy_loss, monkeypatch, together
):
    def stepped(**options):
        engine, batch = make_engine(dtype="bfloat16", max_tokens_per_micro_batch=9, **options), make_batch()
        stats = engine.train_batch(batch, policy_loss(batch))
        return stats, engine.optimizer.masters

    expected, theirs = stepped()
    monkeypatch.setattr("areal.engine.train.optimizer._WAITING_BYTES", together)
    found, ours = stepped()
    assert (found, found.num_micro_batches) == (expected, 4)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.sample(2)
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


def test_muon_takes_the_steps_of_torchs_own(make_engine, make_batch, policy_loss):
    engine = make_engine(optimizer="muon", dtype="float32", weight_decay=0.1, lr=1e-2)
    twin = copy.deepcopy(engine.model)
    names = [name for name, _ in twin.named_parameters() if name.endswith("_proj.weight")]
    theirs = torch.optim.Muon(
        [twin.get_parameter(name) for name in names], lr=1e-2, weight_decay=0.1, momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    gradients = {}
    for name in names:
        engine.model.get_parameter(name).register_post_accumulate_grad_hook(
            lambda value, name=name: gradients.__setitem__(name, value.grad.clone())
        )
    for seed in range(3):
        batch = make_batch(seed=seed)
        stats = engine.train_batch(batch, policy_loss(batch))
        for name in names:
            scale = min(1.0, 1.0 / stats.grad_norm)
            twin.get_parameter(name).grad = gradients[name] * scale
        theirs.step()
        for name in names:
            found, expected = engine.model.get_parameter(name), twin.get_parameter(name)
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_an_orthogonal_update_keeps_directions_and_evens_out_sizes():
    generator = torch.Generator().manual_seed(0)
    stack = torch.randn(3, 9, 5, dtype=torch.float64, generator=generator)
    stack[2, :, 3:] = 0
    turned = orthogonal(stack)
    for matrix, found in zip(stack, turned, strict=True):
        torch.testing.assert_close(orthogonal(matrix), found, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(orthogonal(matrix.T).T, found, rtol=1e-12, atol=1e-12)
        left, sizes, right = torch.linalg.svd(matrix, full_matrices=False)
        kept = sizes > 1e-9
        values = torch.linalg.svdvals(found)
        assert values[: int(kept.sum())].min() > 0.5
        assert values.max() < 1.3
        new = left[:, kept].T @ found @ right[kept].T
        torch.testing.assert_close(new, torch.diag(new.diagonal()), rtol=0, atol=1e-9)
    assert orthogonal(torch.zeros(4, 3, dtype=torch.float64)).abs().max() == 0


def test_muon_turns_every_expert_by_itself(make_engine, make_batch, policy_loss):
    config = {
        "model_type": "qwen3_moe", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24,
        "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "max_position_embeddings": 64, "initializer_range": 0.3, "tie_word_embeddings": False,
    }  # fmt: skip
    model = from_config(config, dtype=torch.float64, seed=0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    engine, batch = make_engine(model, optimizer="muon", lr=1e-3), make_batch()
    engine.train_batch(batch, policy_loss(batch))
    stacks = [name for name, value in before.items() if value.ndim == 3]
    assert len(stacks) == 2 * 3
    for name in stacks:
        assert engine.state_dict()["optimizer"]["moments"][name].keys() == {"momentum_buffer"}
        changes = (model.get_parameter(name).detach() - before[name]) / 1e-3
        for change in changes:
            values = torch.linalg.svdvals(change) / (0.2 * max(change.shape) ** 0.5)
            assert values.max() == pytest.approx(0.95, abs=0.35), name


class TestOffload:
    """Masters and moments in host memory: the same numbers, the same checkpoints, and another place."""

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    @pytest.mark.parametrize("optimizer", KINDS)
    def test_offloading_changes_no_number_and_no_checkpoint(
        self, make_engine, make_batch, policy_loss, optimizer, dtype
    ):
        options = {"optimizer": optimizer, "dtype": dtype, "weight_decay": 0.1}
        engines = [make_engine(offload_optimizer=offload, **options) for offload in (False, True)]
        batches = [make_batch(seed=seed) for seed in range(3)]
        for batch in batches[:2]:
            stats = [engine.train_batch(batch, policy_loss(batch)) for engine in engines]
            assert stats[0] == stats[1]
        states = [engine.state_dict() for engine in engines]
        torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
        # Each goes on from what the other saved.
        crossed = [make_engine(offload_optimizer=offload, **options) for offload in (True, False)]
        for engine, state in zip(crossed, states, strict=True):
            engine.load_state_dict(state)
        ends = []
        for engine in (*engines, *crossed):
            engine.train_batch(batches[2], policy_loss(batches[2]))
            ends.append(engine.state_dict())
        for end in ends[1:]:
            torch.testing.assert_close(ends[0], end, rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_masters_are_apart_from_parameters_and_moments_are_where_masters_are(self, make_model, dtype):
        model = make_model()
        config = TrainEngineConfig(optimizer="muon", offload_optimizer=True)
        masters = ModelOptimizer(model, config, dtype=dtype, ranks=Ranks(torch.device("cpu"))).masters
        addresses = {parameter.data_ptr() for parameter in model.parameters()}
        assert addresses.isdisjoint(master.data_ptr() for master in masters.values())
        assert {master.dtype for master in masters.values()} == {torch.float32}

    def test_masters_go_to_the_device_that_is_their_home(self, make_model):
        model, config = make_model(), TrainEngineConfig(optimizer="muon")
        optimizer = ModelOptimizer(
            model, config, dtype=torch.float32, ranks=Ranks(torch.device("cpu")), home=torch.device("meta")
        )
        assert {master.device.type for master in optimizer.masters.values()} == {"meta"}
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        optimizer.set_moments("norm.weight", {"exp_avg": torch.zeros(16)})
        assert optimizer.moments("norm.weight")["exp_avg"].device.type == "meta"

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator beside the host")
    @pytest.mark.parametrize("optimizer", KINDS)
    def test_on_an_accelerator_nothing_of_the_optimizer_is_left_there(
        self, make_engine, make_batch, policy_loss, optimizer
    ):
        ends, held = [], []
        for offload in (False, True):
            torch.cuda.empty_cache()
            start = torch.cuda.memory_allocated()
            engine = make_engine(optimizer=optimizer, dtype="float32", device="cuda", offload_optimizer=offload)
            for seed in range(2):
                batch = make_batch(seed=seed)
                engine.train_batch(batch, policy_loss(batch))
            held.append(torch.cuda.memory_allocated() - start)
            ends.append({name: value.cpu() for name, value in engine.weights().items()})
            if offload:
                masters = engine.optimizer.masters.values()
                assert {master.device.type for master in masters} == {"cpu"}
                assert all(master.is_pinned() for master in masters)
            del engine
        assert held[1] < held[0]
        torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)
