"""One optimizer step: equal to plain torch, equal under any split, safe against bad numbers and full memory."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.algorithm.packing import select
from areal.api import ConfigError, EngineError, LossOutput, NumericsError, TrainEngine
from areal.engine.config import TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.optimizer import learning_rate
from areal.engine.train.runner import is_out_of_memory
from areal.utils.computing import threads_beside_training


def _parameters(engine):
    return {name: tensor.clone() for name, tensor in engine.weights().items()}


def _assert_equal_weights(one, other, tolerance):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(
            tensor, other[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_the_engine_fulfils_its_contract(make_engine):
    assert isinstance(make_engine(), TrainEngine)


@pytest.mark.sample(2)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("with_entropy", "smoothing"), [(False, 0.0), (True, 0.0), (True, 0.2)])
def test_a_step_equals_plain_torch(make_model, make_batch, policy_loss, naive_scores, tied, with_entropy, smoothing):
    config = TrainEngineConfig(
        lr=1e-2, dtype="float64", device="cpu", weight_decay=0.1, max_grad_norm=0.5, max_tokens_per_micro_batch=13,
        logprob_chunk_size=3,
    )  # fmt: skip
    engine = TrainingEngine(make_model(tied=tied, dtype=torch.float64), config=config)
    plain, batch = make_model(tied=tied, dtype=torch.float64), make_batch()
    matrices = [parameter for parameter in plain.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in plain.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
    )
    for _ in range(3):
        stats = engine.train_batch(
            batch, policy_loss(batch), temperature=0.8, with_entropy=with_entropy, smoothing=smoothing
        )
        logp, entropy, mean_logp = naive_scores(plain, batch, 0.8)
        logp = (1 - smoothing) * logp + smoothing * mean_logp
        output = policy_loss(batch)(logp, entropy if with_entropy else None, batch)
        optimizer.zero_grad()
        output.loss.backward()
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in plain.parameters()])
        for parameter in plain.parameters():
            parameter.grad *= 0.5 / norm
        optimizer.step()
        assert stats.stepped
        assert stats.grad_norm == pytest.approx(norm.item(), rel=1e-10)
        assert stats.grad_norm > 0.5
        assert stats.loss == pytest.approx(output.loss.item(), rel=1e-10)
        assert stats.metrics["logp"] == pytest.approx(
            (logp * batch.loss_mask).sum().item() / batch.loss_mask.sum().item()
        )
    _assert_equal_weights(engine.weights(), dict(plain.state_dict()), 1e-9)


def _step(make_engine, batch, loss_fn, **changes):
    engine = make_engine(**changes)
    stats = engine.train_batch(batch, loss_fn, with_entropy=True)
    return stats, _parameters(engine)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_cutting_order_and_padding_do_not_change_a_step(make_engine, make_batch, policy_loss, dtype, tolerance):
    options = {"dtype": dtype, "adam_eps": 1e-3}
    batch = make_batch()
    whole, expected = _step(make_engine, batch, policy_loss(batch), **options, max_tokens_per_micro_batch=10_000)
    assert whole.num_micro_batches == 1
    shuffled = select(batch, [3, 0, 4, 2, 1])
    wide = make_batch(pad=9)
    wide = dataclasses.replace(
        wide, tokens=torch.nn.functional.pad(batch.tokens, (0, 9)),
        advantages=torch.nn.functional.pad(batch.advantages, (0, 9)),
    )  # fmt: skip
    for variant, budget, chunk, count in (
        (batch, 13, 4, 3), (batch, 1, 1, 5), (shuffled, 17, 100, 2), (wide, 20, 7, 2), (wide, 1, 1000, 5)
    ):  # fmt: skip
        stats, found = _step(
            make_engine,
            variant,
            policy_loss(variant),
            **options,
            max_tokens_per_micro_batch=budget,
            logprob_chunk_size=chunk,
        )
        assert stats.num_micro_batches == count
        assert stats.loss == pytest.approx(whole.loss, rel=tolerance, abs=tolerance)
        assert stats.grad_norm == pytest.approx(whole.grad_norm, rel=tolerance)
        assert stats.metrics == pytest.approx(whole.metrics, rel=tolerance)
        assert (stats.metrics["length_max"], stats.metrics["length_min"]) == (12, 1)
        _assert_equal_weights(found, expected, tolerance)


@settings(max_examples=10)
@given(data=st.data())
def test_any_batch_gives_the_same_step_under_any_budget(make_engine, make_batch, policy_loss, data):
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    prompts = [data.draw(st.integers(0, length)) for length in lengths]
    batch = make_batch(tuple(lengths), tuple(prompts), seed=data.draw(st.integers(0, 5)))
    results = [
        _step(make_engine, batch, policy_loss(batch), max_tokens_per_micro_batch=budget, logprob_chunk_size=chunk)
        for budget, chunk in ((10_000, 10_000), (data.draw(st.integers(1, 30)), data.draw(st.integers(1, 10))))
    ]
    (first, expected), (second, found) = results
    assert second.loss == pytest.approx(first.loss, rel=1e-12, abs=1e-12)
    # A first Adam step is nearly the sign of the gradient, which magnifies rounding of tiny ones.
    _assert_equal_weights(found, expected, 1e-8)
    assert second.grad_norm == pytest.approx(first.grad_norm, rel=1e-11, abs=1e-14)


def test_generation_in_the_same_process_knows_when_a_batch_is_trained(make_engine, make_batch, policy_loss):
    engine, batch, seen = make_engine(), make_batch(), []
    loss_fn = policy_loss(batch)

    def watched(*arguments):
        seen.append(threads_beside_training(8))
        return loss_fn(*arguments)

    engine.train_batch(batch, watched, with_entropy=True)
    assert set(seen) == {2}
    assert threads_beside_training(8) == 8


@pytest.mark.fault(
    row=20,
    injected="a batch in which every token is masked",
    seen="no parameter changes, no NaN",
)
def test_a_batch_without_any_trained_token_changes_nothing(make_engine, make_batch, policy_loss):
    engine, batch = make_engine(weight_decay=0.1), make_batch(lengths=(4, 1), prompts=(4, 1))
    before = _parameters(engine)
    stats = engine.train_batch(batch, policy_loss(batch), with_entropy=True)
    assert (stats.loss, stats.grad_norm, stats.stepped) == (0.0, 0.0, True)
    _assert_equal_weights(_parameters(engine), before, 0)


@pytest.mark.exhaustive
def test_two_runs_are_equal_bit_by_bit(make_engine, make_batch, policy_loss):
    finals = []
    for _ in range(2):
        engine = make_engine(dtype="float32", max_tokens_per_micro_batch=13, logprob_chunk_size=3)
        for seed in range(4):
            batch = make_batch(seed=seed)
            engine.train_batch(batch, policy_loss(batch), with_entropy=True)
        finals.append(_parameters(engine))
    _assert_equal_weights(*finals, 0)


def test_recomputing_activations_does_not_change_a_step(make_engine, make_batch, policy_loss):
    batch = make_batch()
    _, expected = _step(make_engine, batch, policy_loss(batch))
    _, found = _step(make_engine, batch, policy_loss(batch), gradient_checkpointing=True)
    _assert_equal_weights(found, expected, 1e-12)


@pytest.mark.exhaustive
def test_likelihood_training_learns_a_sequence_by_heart(make_engine, make_batch):
    engine, batch = make_engine(dtype="float32", lr=2e-2), make_batch(lengths=(8, 6), prompts=(1, 1))

    def loss_fn(logp_SL, _, part):
        return LossOutput(loss=-(logp_SL * part.loss_mask).sum() / batch.loss_mask.sum())

    losses = [engine.train_batch(batch, loss_fn).loss for _ in range(60)]
    assert losses[0] > 3
    assert losses[-1] < 0.05


@pytest.mark.exhaustive
def test_a_critic_learns_returns(make_engine, make_batch):
    engine, batch = make_engine(is_critic=True, dtype="float32", lr=2e-2), make_batch()

    def loss_fn(values_SL, entropy_SL, part):
        assert entropy_SL is None
        return LossOutput(loss=((values_SL - part.returns) ** 2 * part.loss_mask).sum() / batch.loss_mask.sum())

    losses = [engine.train_batch(batch, loss_fn).loss for _ in range(80)]
    assert losses[-1] < 0.05 * losses[0]
    error = (engine.forward_values(batch) - batch.returns) ** 2 * batch.loss_mask
    assert error.sum() / batch.loss_mask.sum() < 0.05 * losses[0]
    with pytest.raises(EngineError, match="must stay off"):
        engine.train_batch(batch, loss_fn, with_entropy=True)


def test_decay_leaves_vectors_alone_and_frozen_parameters_are_not_touched(make_model, make_batch):
    model = make_model(dtype=torch.float64)
    model.embed_tokens.requires_grad_(False)
    engine = TrainingEngine(model, config=TrainEngineConfig(lr=0.1, weight_decay=0.5, dtype="float64", device="cpu"))
    before = _parameters(engine)
    engine.train_batch(make_batch(), lambda logp, _, part: LossOutput(loss=0.0 * logp.sum()))
    for name, tensor in engine.weights().items():
        factor = 1.0 if tensor.ndim < 2 or name == "embed_tokens.weight" else 1 - 0.1 * 0.5
        torch.testing.assert_close(tensor, before[name] * factor, rtol=1e-12, atol=0)


def test_a_model_without_trainable_parameters_is_refused(make_model):
    with pytest.raises(EngineError, match="no trainable parameter"):
        TrainingEngine(make_model().requires_grad_(False), config=TrainEngineConfig(device="cpu"))


def test_arguments_that_make_no_sense_are_refused(make_engine, make_batch, policy_loss):
    engine, batch = make_engine(), make_batch()
    for wrong in ({"temperature": 0.0}, {"smoothing": 1.0}, {"smoothing": -0.1}):
        with pytest.raises(EngineError, match="expected"):
            engine.train_batch(batch, policy_loss(batch), **wrong)


class TestNonFinite:
    """A NaN never reaches the parameters, and its source is named."""

    def _poisoned(self, batch, policy_loss, rows):
        advantages = batch.advantages.clone()
        advantages[rows] = float("nan")
        poisoned = dataclasses.replace(batch, advantages=advantages)
        return poisoned, policy_loss(poisoned)

    @pytest.mark.fault(
        row=22,
        injected="NaN advantages in two of six rows",
        seen="step skipped, parameters and moments unchanged, exactly those rows and prompts named",
    )
    def test_the_step_is_skipped_and_the_rows_are_named(self, make_engine, make_batch, policy_loss, caplog):
        engine, batch = make_engine(max_tokens_per_micro_batch=13), make_batch()
        engine.train_batch(batch, policy_loss(batch))
        before = engine.state_dict()
        poisoned, loss_fn = self._poisoned(batch, policy_loss, [2, 4])
        stats = engine.train_batch(poisoned, loss_fn)
        assert not stats.stepped
        assert stats.loss != stats.loss
        assert stats.metrics["nonfinite_sequences_count"] == 2
        assert engine.offending_rows == (2, 4)
        assert "rows [2, 4] of prompt groups [1, 2]" in caplog.text
        after = engine.state_dict()
        _assert_equal_weights(after["parameters"], before["parameters"], 0)
        for name, moments in after["optimizer"]["moments"].items():
            _assert_equal_weights(moments, before["optimizer"]["moments"][name], 0)
        assert (engine.num_steps, engine.num_skipped_steps) == (2, 1)

    def test_a_skipped_step_leaves_no_trace_in_the_next_one(self, make_engine, make_batch, policy_loss):
        batch = make_batch()
        results = []
        for poison_first in (True, False):
            engine = make_engine()
            if poison_first:
                engine.train_batch(*self._poisoned(batch, policy_loss, [0]))
            engine.train_batch(batch, policy_loss(batch))
            results.append(_parameters(engine))
        _assert_equal_weights(*results, 0)

    def test_an_infinite_gradient_under_a_finite_loss_is_skipped_too(self, make_engine, make_batch):
        engine, batch = make_engine(), make_batch()
        before = _parameters(engine)
        stats = engine.train_batch(
            batch, lambda logp, _, part: LossOutput(loss=(logp[:, :1] * 0).abs().sqrt().sum() + logp.sum())
        )
        # The square root has an infinite slope at 0; that token has no gradient path, so this one is finite.
        assert stats.stepped
        stats = engine.train_batch(
            batch, lambda logp, _, part: LossOutput(loss=((logp * 0).abs() * part.loss_mask).sqrt().sum())
        )
        assert not stats.stepped
        assert stats.loss == 0
        assert engine.offending_rows == (0, 2, 4)
        assert not torch.equal(before["norm.weight"], engine.weights()["norm.weight"])

    @pytest.mark.fault(
        row=22,
        injected="NaN in more steps in a row than the budget allows",
        seen="ends with NumericsError; a good step in between resets the count",
    )
    def test_too_many_in_a_row_end_the_run_and_a_good_step_resets_the_count(self, make_engine, make_batch, policy_loss):
        engine, batch = make_engine(max_skipped_steps=2), make_batch()
        poisoned = self._poisoned(batch, policy_loss, [2])
        for _ in range(2):
            engine.train_batch(*poisoned)
        engine.train_batch(batch, policy_loss(batch))
        for _ in range(2):
            assert not engine.train_batch(*poisoned).stepped
        with pytest.raises(NumericsError, match=r"skipped \(3 in a row\).*rows \[2\].*max_skipped_steps is 2"):
            engine.train_batch(*poisoned)


class TestOutOfMemory:
    """Running out of memory once costs a repetition with smaller micro-batches, not the run."""

    @pytest.fixture
    def limited(self, make_engine, monkeypatch):
        """An engine whose model cannot take more than `limit` tokens at once."""

        def build(limit, error, **options):
            engine = make_engine(**options)
            hidden = engine.model.hidden

            def refuse(tokens, *rest, **options):
                if tokens.shape[0] > limit:
                    raise error
                return hidden(tokens, *rest, **options)

            monkeypatch.setattr(engine.model, "hidden", refuse)
            return engine

        return build

    @pytest.mark.fault(
        row=35,
        injected="a model that has no memory for a whole batch (CUDA, Python and allocator errors)",
        seen="run again with half the tokens, equal to 1e-10 to an undisturbed step",
    )
    def test_the_batch_is_run_again_with_half_the_tokens_and_the_same_gradient(
        self, make_engine, limited, make_batch, policy_loss, caplog
    ):
        batch = make_batch(lengths=(7, 8, 7, 8), prompts=(2, 2, 2, 2))
        expected_stats, expected = _step(make_engine, batch, policy_loss(batch))
        engine = limited(15, MemoryError())
        stats = engine.train_batch(batch, policy_loss(batch), with_entropy=True)
        assert "run again with at most 15" in caplog.text
        assert (expected_stats.num_micro_batches, stats.num_micro_batches) == (1, 2)
        assert stats.loss == pytest.approx(expected_stats.loss, rel=1e-12)
        assert stats.metrics == pytest.approx(expected_stats.metrics, rel=1e-12)
        _assert_equal_weights(_parameters(engine), expected, 1e-10)
        torch.testing.assert_close(engine.forward_logp(batch).shape, batch.tokens.shape)

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (torch.OutOfMemoryError("CUDA out of memory"), True),
            (MemoryError(), True),
            (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
            (RuntimeError("shapes do not match"), False),
        ],
    )
    def test_failed_allocations_are_told_from_other_errors(self, error, expected):
        assert is_out_of_memory(error) is expected

    @pytest.mark.fault(
        row=35,
        injected="out of memory in the second micro-batch of a batch",
        seen="nothing of the first is counted twice",
    )
    def test_a_failure_in_the_middle_of_a_batch_does_not_count_its_first_part_twice(
        self, make_engine, limited, make_batch, policy_loss
    ):
        batch = make_batch(lengths=(4, 4, 12), prompts=(1, 1, 1))
        expected_stats, expected = _step(make_engine, batch, policy_loss(batch))
        calls = []
        engine = make_engine(max_tokens_per_micro_batch=12)
        hidden = engine.model.hidden

        def fail_second(*arguments, **options):
            calls.append(1)
            if len(calls) == 2:
                raise MemoryError
            return hidden(*arguments, **options)

        engine.model.hidden = fail_second
        stats = engine.train_batch(batch, policy_loss(batch), with_entropy=True)
        assert stats.loss == pytest.approx(expected_stats.loss, rel=1e-12)
        _assert_equal_weights(_parameters(engine), expected, 1e-10)

    def test_what_cannot_be_made_smaller_ends_the_run_with_advice(self, limited, make_batch, policy_loss):
        batch = make_batch(lengths=(7, 8, 7, 8), prompts=(2, 2, 2, 2))
        engine = limited(3, MemoryError("no room"))
        before = _parameters(engine)
        with pytest.raises(EngineError, match=r"8 tokens, which cannot be cut further: no room\. Lower"):
            engine.train_batch(batch, policy_loss(batch))
        _assert_equal_weights(_parameters(engine), before, 0)

    def test_other_errors_pass_through(self, limited, make_batch, policy_loss):
        batch = make_batch()
        with pytest.raises(RuntimeError, match="shapes do not match"):
            limited(3, RuntimeError("shapes do not match")).train_batch(batch, policy_loss(batch))


class TestBfloat16:
    """Small parameters, exact bookkeeping."""

    def test_updates_too_small_for_bfloat16_add_up_in_the_master_weights(self, make_engine, make_batch, policy_loss):
        engine = make_engine(dtype="bfloat16", lr=1e-4)
        batch = make_batch()
        before = _parameters(engine)
        assert all(tensor.dtype == torch.bfloat16 for tensor in before.values())
        masters = engine.state_dict()["optimizer"]["masters"]
        engine.train_batch(batch, policy_loss(batch))
        # Norm weights start at 1, where bfloat16 steps are 2**-8: one update disappears in rounding ...
        assert torch.equal(engine.weights()["norm.weight"], before["norm.weight"])
        for _ in range(59):
            engine.train_batch(batch, policy_loss(batch))
        # ... but sixty are seen.
        assert not torch.equal(engine.weights()["norm.weight"], before["norm.weight"])
        after = engine.state_dict()["optimizer"]["masters"]
        for name, master in after.items():
            assert master.dtype == torch.float32
            assert torch.equal(master.bfloat16(), engine.weights()[name])
        assert not torch.equal(masters["norm.weight"], after["norm.weight"])

    @pytest.mark.exhaustive
    def test_gradients_add_up_in_float32_over_micro_batches(self, make_engine, make_batch, policy_loss):
        batch = make_batch(lengths=(6,) * 40, prompts=(2,) * 40)
        exact = make_engine(dtype="float32", max_tokens_per_micro_batch=1)
        small = make_engine(dtype="bfloat16", max_tokens_per_micro_batch=1)
        expected = exact.train_batch(batch, policy_loss(batch)).grad_norm
        assert small.train_batch(batch, policy_loss(batch)).grad_norm == pytest.approx(expected, rel=0.02)

    def test_log_probabilities_are_float32_and_close(self, make_engine, make_batch):
        batch = make_batch()
        found = make_engine(dtype="bfloat16").forward_logp(batch)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, make_engine(dtype="float32").forward_logp(batch), rtol=0.1, atol=0.15)


class TestSchedule:
    """The learning rate is a pure function of the step."""

    def _rates(self, steps, total, **options):
        config = TrainEngineConfig(lr=2.0, **options)
        return [learning_rate(config, step, total) for step in range(steps)]

    def test_constant_with_warm_up(self):
        assert self._rates(6, None, warmup_steps=4) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]

    def test_linear_would_end_one_step_after_the_last_at_the_minimum(self):
        rates = self._rates(8, 6, warmup_steps=2, lr_schedule="linear", min_lr_ratio=0.2)
        assert rates == pytest.approx([1.0, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4, 0.4])

    def test_cosine_is_symmetric_about_its_middle(self):
        rates = self._rates(5, 4, lr_schedule="cosine")
        assert rates == pytest.approx([2.0, 2 * 0.8535534, 1.0, 2 * 0.1464466, 0.0], abs=1e-7)

    def test_the_engine_follows_it_and_counts_skipped_steps(self, make_engine, make_batch, policy_loss):
        engine = make_engine(lr=1.0, lr_schedule="linear", total_steps=4)
        batch = make_batch()
        rates = []
        for step in range(4):
            rates.append(engine.train_batch(batch, policy_loss(batch) if step != 1 else _nan_loss).learning_rate)
        assert rates == [1.0, 0.75, 0.5, 0.25]

    def test_a_decaying_rate_needs_the_length_of_the_run(self, make_engine):
        with pytest.raises(ConfigError, match=r"'cosine' needs the number of optimizer steps"):
            make_engine(lr_schedule="cosine")


def _nan_loss(logp_SL, _, __):
    return LossOutput(loss=logp_SL.sum() * float("nan"))
