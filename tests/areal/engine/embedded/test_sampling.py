"""The sampler: exact distributions, exact log-probabilities, randomness that depends on seed and position alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from areal.engine.embedded.sequence import SamplingRows, processed_logits, sample, seed_state, uniforms


def draws(count: int, *, seed: int = 3) -> torch.Tensor:
    state = np.full(count, seed_state(seed), dtype=np.uint64)
    return torch.from_numpy(uniforms(state, np.arange(count)))


def filters(rows: int, *, top_k: int = 0, top_p: float = 1.0) -> SamplingRows:
    return SamplingRows(top_k=torch.full((rows, 1), top_k), top_p=torch.full((rows, 1), top_p, dtype=torch.float64))


def chi_square(tokens: torch.Tensor, probabilities: torch.Tensor) -> float:
    expected = probabilities * len(tokens)
    observed = torch.bincount(tokens, minlength=len(probabilities)).double()
    return float(((observed - expected) ** 2 / expected)[probabilities > 0].sum())


def test_random_numbers_are_open_interval_uniform_and_uncorrelated_between_neighbouring_seeds():
    first, second = draws(50_000, seed=1).numpy(), draws(50_000, seed=2).numpy()
    assert first.min() > 0
    assert first.max() < 1
    counts = np.histogram(first, bins=100, range=(0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 150  # 99 degrees of freedom: 0.07% lie above
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.02


def test_the_largest_possible_random_number_stays_below_one_and_picks_the_last_possible_token():
    largest = (2.0**52 - 0.5) * 2.0**-52
    assert largest < 1.0
    logits = torch.tensor([[0.0, 1.0, -1.0, float("-inf"), float("-inf")]])
    smallest = 0.5 * 2.0**-52
    for uniform, expected in ((largest, 2), (smallest, 0)):
        tokens, logprobs = sample(logits, SamplingRows(), torch.tensor([uniform], dtype=torch.float64))
        assert tokens.tolist() == [expected]
        assert torch.isfinite(logprobs).all()


def test_any_integer_is_a_seed_modulo_two_to_the_64():
    assert len({seed_state(seed) for seed in (-1, 0, 1, 2**32, 2**63)}) == 5
    assert seed_state(-1) == seed_state(2**64 - 1)
    assert seed_state(1) == seed_state(2**64 + 1)


def test_streams_of_a_seed_stay_those_of_earlier_versions():
    found = [seed_state(seed) for seed in (-1, 0, 7, 2**63 - 1)]
    assert found == [0xE4D971771B652C20, 0xE220A8397B1DCDAF, 0x63CBE1E459320DD7, 0x2A67D7552E039EA7]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_tempered_softmax(temperature: float):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(0))
    count = 40_000
    rows = SamplingRows(temperature=torch.full((count, 1), temperature))
    tokens, logprobs = sample(logits.expand(count, -1), rows, draws(count))
    expected = torch.softmax(logits.double() / temperature, -1)
    assert chi_square(tokens, expected) < 31.3  # 11 degrees of freedom: 0.1% lie above
    torch.testing.assert_close(logprobs.double(), expected.log()[tokens], atol=1e-6, rtol=0)


def test_top_k_keeps_exactly_k_tokens_even_among_ties_and_renormalises():
    logits = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0]])
    kept = torch.softmax(processed_logits(logits, filters(1, top_k=3)), -1)
    expected = torch.softmax(torch.tensor([1.0, 3.0, 2.0]), -1)
    torch.testing.assert_close(kept, torch.tensor([[expected[0], expected[1], 0.0, expected[2], 0.0]]))


def test_top_p_keeps_the_smallest_sufficient_set_and_renormalises():
    probabilities = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]])
    kept = torch.softmax(processed_logits(probabilities.log(), filters(1, top_p=0.6)), -1)
    torch.testing.assert_close(kept, torch.tensor([[0.0, 0.4, 0.0, 0.25, 0.0]]) / 0.65)
    tiny = torch.softmax(processed_logits(probabilities.log(), filters(1, top_p=1e-9)), -1)
    torch.testing.assert_close(tiny, torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]]))


def test_top_p_counts_probability_after_top_k():
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    # Of the two kept tokens the first has 4/7 = 0.571: enough for 0.55, not for 0.6.
    for top_p, expected in ((0.55, [1.0, 0.0, 0.0, 0.0]), (0.6, [4 / 7, 3 / 7, 0.0, 0.0])):
        kept = torch.softmax(processed_logits(probabilities.log(), filters(1, top_k=2, top_p=top_p)), -1)
        torch.testing.assert_close(kept, torch.tensor([expected]))


def test_filtered_samples_follow_the_renormalised_distribution():
    logits = torch.randn(20, generator=torch.Generator().manual_seed(4))
    count = 30_000
    rows = filters(count, top_k=7, top_p=0.9)
    tokens, logprobs = sample(logits.expand(count, -1), rows, draws(count))
    expected = torch.softmax(processed_logits(logits[None], filters(1, top_k=7, top_p=0.9)), -1)[0].double()
    assert 2 <= int((expected > 0).sum()) <= 7
    assert chi_square(tokens, expected) < 24
    torch.testing.assert_close(logprobs.double(), expected.log()[tokens], atol=1e-6, rtol=0)


def test_a_row_is_not_changed_by_the_settings_of_its_neighbours():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(5))
    alone = sample(logits, SamplingRows(), draws(3))
    rows = SamplingRows(
        temperature=torch.tensor([[1.0], [0.3], [1.0]]),
        top_k=torch.tensor([[0], [4], [0]]),
        top_p=torch.tensor([[1.0], [0.5], [1.0]], dtype=torch.float64),
        greedy=torch.tensor([False, False, True]),
    )
    mixed = sample(logits, rows, draws(3))
    assert mixed[0][0] == alone[0][0]
    assert mixed[1][0] == alone[1][0]
    assert mixed[0][2] == logits[2].argmax()
    assert mixed[1][2] == torch.log_softmax(logits[2], -1).max()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rows", [SamplingRows(), filters(2, top_k=3), SamplingRows(all_greedy=True)])
def test_a_row_that_is_not_finite_is_recognisable_and_alone(bad: float, rows: SamplingRows):
    logits = torch.randn(2, 9, generator=torch.Generator().manual_seed(6))
    logits[1, 4] = bad
    tokens, logprobs = sample(logits, rows, draws(2))
    assert torch.isfinite(logprobs).tolist() == [True, False]
    assert int(tokens.min()) >= 0
    assert int(tokens.max()) < 9
