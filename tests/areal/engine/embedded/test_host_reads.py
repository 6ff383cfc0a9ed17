"""How often the host waits for the device in a decode step: reads are counted, here of a CPU, where nothing waits."""

from __future__ import annotations

import pytest
import torch

READS = ("cpu", "item", "tolist", "nonzero", "__bool__", "__float__", "__int__", "__index__")
PER_STEP = 1
"""Tokens and log-probabilities, together: the host decides who has ended. A goal of 0 needs that on the device."""
PER_STEP_WITH_SHARED_PROMPTS = 2
"""One more, whether all rows see prompts of one length, before a mask is made."""


@pytest.fixture
def reads(monkeypatch):
    """Names of what was called that makes the host wait for an accelerator."""
    found = []
    for name in READS:
        original = getattr(torch.Tensor, name)

        def counted(tensor, *arguments, name=name, original=original, **options):
            found.append(name)
            return original(tensor, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, name, counted)
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize(("samples", "ceiling"), [(1, PER_STEP), (4, PER_STEP_WITH_SHARED_PROMPTS)])
@pytest.mark.parametrize("sampling", [{}, {"greedy": True}, {"top_p": 0.9, "top_k": 7}], ids=["plain", "greedy", "cut"])
def test_reads_of_a_decode_step_have_a_ceiling(world, reads, sampling, samples, ceiling):
    engine = world.build_engine(world.build_model(), eos=None)

    def reads_for(tokens):
        requests = [world.request(5, seed=seed, prompt_seed=0, new=tokens, **sampling) for seed in range(samples)]
        reads.clear()
        responses = world.generate(engine, requests)
        assert [len(response.output_tokens) for response in responses] == [tokens] * samples
        return list(reads)

    reads_for(4)  # some tables are made once
    short, long = reads_for(8), reads_for(20)
    engine.close()
    assert long.count("cpu") >= 20
    # 12 steps more: what a request costs once is in both; requests may arrive in one step or in two.
    assert len(long) - len(short) <= 12 * ceiling + samples, (short, long)
