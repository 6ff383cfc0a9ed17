"""Shards that every rank reads for itself are those of a model that was loaded whole, and take no more memory."""

from pathlib import Path

import pytest

WORKER = str(Path(__file__).with_name("loading_worker.py"))

pytestmark = pytest.mark.slow


def _run(fork_server, world_size, folder, *options):
    found = fork_server.run_ranks(WORKER, world_size, [f"--folder={folder}", *options], timeout_seconds=200)[0]
    for name, case in found["cases"].items():
        assert case["same"], name
        assert case["losses"][0] == case["losses"][1], name
        assert case["stays the same"], name
    return found


@pytest.mark.timeout(300)
@pytest.mark.exhaustive
def test_parts_are_equal_to_those_of_a_whole_model_bit_by_bit_and_errors_too(tmp_path, fork_server):
    found = _run(fork_server, 2, tmp_path, "--quick")
    assert found["critic"] == {"same": True, "head": 0.0}
    refused = found["refusals"]
    assert refused["same"]
    expected = {
        "missing": "missing model.layers.0.input_layernorm",
        "unexpected": "unexpected model.extra",
        "misshapen": "is [3], expected [32]",
        "differs": "lm_head.weight in the checkpoint differs",
    }
    for name, (parts, whole) in refused["messages"].items():
        assert expected[name] in whole
        assert parts == whole


@pytest.mark.exhaustive
@pytest.mark.timeout(400)
def test_no_rank_needs_memory_for_a_whole_model_however_it_is_split(tmp_path, fork_server):
    _run(fork_server, 2, tmp_path / "two")
    found = _run(fork_server, 4, tmp_path / "four")
    for name, shares in found["memory"].items():
        # What a rank keeps, and one tensor on its way: a quarter of the model, and in no case all of it.
        for grown, held, read in zip(shares["grown"], shares["held"], shares["read"], strict=True):
            assert grown < held + 0.2 < 0.6, (name, shares)
            assert read == pytest.approx(held, rel=0.01), (name, shares)
