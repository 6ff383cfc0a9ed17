"""Random numbers and sampling on a device: the same as in host memory. Here the device is the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal.engine.embedded.device.randomness import device_uniforms, signed
from areal.engine.embedded.device.sampling import draw, invert
from areal.engine.embedded.sequence import SamplingRows, sample, uniforms

VOCABULARIES = (1, 31, 512, 513, 1152, 2000)


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), min_size=1, max_size=20),
)
def test_numbers_are_equal_to_those_of_numpy_in_every_bit(pairs):
    states, counters = zip(*pairs, strict=True)
    expected = uniforms(np.array(states, dtype=np.uint64), np.array(counters, dtype=np.int64))
    found = device_uniforms(torch.tensor([signed(each) for each in states]), torch.tensor(counters))
    assert found.dtype == torch.float64
    assert found.numpy().tobytes() == expected.tobytes()


def settings(rows, *, filters, greedy):
    generator = torch.Generator().manual_seed(7)
    return SamplingRows(
        temperature=torch.rand(rows, 1, generator=generator) + 0.3,
        top_k=torch.randint(0, 9, (rows, 1), generator=generator) if filters else None,
        top_p=torch.rand(rows, 1, generator=generator, dtype=torch.float64) * 0.6 + 0.4 if filters else None,
        greedy=torch.arange(rows) % 3 == 0 if greedy else None,
    )


@pytest.mark.sample(6)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize(
    ("filters", "greedy"),
    [
        (False, False),
        (True, True),
        pytest.param(False, True, marks=pytest.mark.exhaustive),
        pytest.param(True, False, marks=pytest.mark.exhaustive),
    ],
)
def test_tokens_and_log_probabilities_are_equal_to_those_of_the_host(vocabulary, filters, greedy):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(400, vocabulary, generator=generator) * 3
    uniform = torch.rand(400, generator=generator, dtype=torch.float64).clamp_min(1e-12)
    rows = settings(400, filters=filters, greedy=greedy)
    tokens, logprobs = draw(logits, rows, uniform)
    expected_tokens, expected_logprobs = sample(logits, rows, uniform)
    assert torch.equal(tokens, expected_tokens)
    assert torch.equal(logprobs, expected_logprobs)


def test_frequencies_are_those_of_the_distribution():
    probabilities = torch.tensor([0.0, 0.1, 0.2, 0.0, 0.3, 0.4, 0.0]).repeat(1, 100) / 100
    uniform = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    tokens = invert(probabilities.expand(1000, -1), uniform) % 7
    found = torch.bincount(tokens, minlength=7) / 1000
    assert torch.allclose(found, probabilities.view(100, 7).sum(0), atol=2e-3)
    assert found[[0, 3, 6]].sum() == 0


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_numbers_at_both_ends_find_a_token_that_has_a_probability(vocabulary):
    probabilities = torch.zeros(2, vocabulary)
    first, last = min(3, vocabulary - 1), max(0, vocabulary - 4)
    probabilities[:, [first, last]] = 0.5
    ends = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    assert invert(probabilities, ends).tolist() == [min(first, last), max(first, last)]


def test_forbidden_tokens_are_renormalised_away_and_minus_one_forbids_nothing():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    forbidden = torch.tensor([[-1, -1, -1], [0, -1, 0], [5, 0, 39], [40, 7, -1], [2, 2, 2], [-1, 1, 0]])
    expected = logits.clone()
    for row, tokens in enumerate(forbidden.tolist()):
        expected[row, [token for token in tokens if 0 <= token < 40]] = -torch.inf
    uniform = torch.linspace(0.05, 0.95, 6, dtype=torch.float64)
    before = logits.clone()
    found = draw(logits, SamplingRows(), uniform, forbidden)
    for one, other in zip(found, sample(expected, SamplingRows(), uniform), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(logits, before)


def test_logits_that_are_not_numbers_give_log_probabilities_that_are_not_finite():
    logits = torch.randn(3, 40)
    logits[0, 3], logits[1, 5] = torch.nan, torch.inf
    tokens, logprobs = draw(logits, SamplingRows(), torch.full((3,), 0.5, dtype=torch.float64))
    assert logprobs.isfinite().tolist() == [False, False, True]
    assert ((tokens >= 0) & (tokens < 40)).all()
