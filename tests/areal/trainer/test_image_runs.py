"""RL runs on batches of rows with and without images: what is sampled is what is trained on, and runs that stop go on
bit by bit."""

from __future__ import annotations

import image_runs
import pytest
import runs
import torch

from areal.infra.metrics.logger import read_metrics

EVERYWHERE = {"rank": 2, "scope": ["language", "projector", "tower"]}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "changes",
    [
        {"actor__vision__train": "all"},
        pytest.param({"actor__vision__train": "none"}, marks=pytest.mark.exhaustive),
        pytest.param({"actor__vision__train": "none", "actor__lora": EVERYWHERE}, marks=pytest.mark.exhaustive),
    ],
    ids=["all", "none", "adapters"],
)
def test_a_run_with_images_and_text_goes_on_bit_by_bit(tmp_path, changes):
    changes |= {"objective__prox_logp": "recompute", "actor__lr": 1e-2}
    _, straight = runs.train(image_runs.tiny(tmp_path / "straight", **changes))
    runs.train(image_runs.tiny(tmp_path / "parts", total_train_steps=2, **changes))
    _, resumed = runs.train(image_runs.tiny(tmp_path / "parts", **changes))
    assert straight.keys() == resumed.keys()
    assert [name for name in straight if not torch.equal(straight[name], resumed[name])] == []
    steps = read_metrics(tmp_path / "straight" / "metrics.jsonl")
    assert list(steps) == [1, 2, 3, 4]
    assert all(step["mismatch/abs_max"] < 1e-5 for step in steps.values())
    assert all(step["train/grad_norm"] > 0 for step in steps.values())
