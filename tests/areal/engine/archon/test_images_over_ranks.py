"""Image-text models over two data ranks: the numbers, states and folders of one process, whichever rank has the images,
and whether or not the tower is trained."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from areal.engine.hf import loading
from areal.engine.hf.parallel import blocks_of
from tests.support.vision import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
QUICK = ("llava all",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def found(folder, request, fork_server):
    """What two gloo processes saw; one start for all tests here, with the cases of those that were asked for."""
    own = [item for item in request.session.items if item.path == Path(__file__)]
    quick = not any(item.get_closest_marker("exhaustive") for item in own)
    arguments = [f"--folder={folder}", *(["--quick"] if quick else [])]
    return fork_server.run_ranks(Path(__file__).with_name("images_worker.py"), 2, arguments, timeout_seconds=240)[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("rows", ["apart", "mixed"])
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.exhaustive)
        for name in (f"{kind} {train}" for kind in MODELS for train in ("none", "projector", "all"))
    ],
)
def test_two_ranks_have_the_numbers_of_one_process(found, case, rows):
    result = found["steps"][f"{case} {rows}"]
    before, after = result["logp"]
    assert before < 1e-6
    # Some towers compute in float32 for a while whatever their dtype, and what is lost there AdamW makes larger.
    assert after < 1e-5
    assert result["loss"] < 1e-6
    assert result["norm"] < 1e-6
    assert result["parameters"] < 1e-6
    assert sorted(result["image rows"]) == ([0, 1] if rows == "apart" else [2, 3])
    if case.endswith("none"):
        assert max(result["towers run"]) <= 3, "a frozen tower is run once for each image"
    if rows == "apart":
        assert min(result["towers run"]) == 0, "a rank without images runs no tower"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case",
    [
        "frozen tower",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in (
                "tower",
                "matrices",
                "sequences",
                "layers",
                "adapters",
                "adapters everywhere",
                "adapters and matrices",
                "adapters and layers",
            )
        ),
    ],
)
def test_states_with_images_continue_bit_by_bit(found, folder, case):
    result = found["states"][case]
    assert (result["continued"], result["weights"]) == (0.0, 0.0)
    assert result["one process"] < 1e-6
    assert result["exported"] < 1e-6
    exported = folder / "states" / case / "exported"
    theirs = AutoModelForImageTextToText.from_pretrained(exported, dtype=torch.float64)
    ours = loading.from_pretrained(exported, dtype=torch.float64)
    assert theirs.state_dict().keys() == ours.inner.state_dict().keys()


def _assert_equal(result):
    assert max(result["logp"]) < 1e-5
    assert result["logp"][0] < 1e-6
    assert max(result["loss"], result["norm"], result["parameters"]) < 1e-6


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["cp", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("tp", "pp"))])
def test_a_divided_language_half_has_the_numbers_of_one_process(found, way):
    _assert_equal(found["ways"][f"qwen3_vl {way} all"])


@pytest.mark.exhaustive
def test_every_type_divides_in_every_way(found):
    assert len(found["ways"]) == 18
    for result in found["ways"].values():
        _assert_equal(result)


@pytest.mark.exhaustive
def test_ways_of_dividing_combine(folder, fork_server):
    worker = Path(__file__).with_name("images_worker.py")
    results = fork_server.run_ranks(worker, 4, [f"--folder={folder}", "--what", "combined"], timeout_seconds=280)[0]
    assert len(results["ways"]) == 18
    for result in results["ways"].values():
        _assert_equal(result)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["dp_shard", "tp", "cp", "pp"])
def test_bfloat16_over_ranks_learns_as_one_process_does_and_goes_on_bit_by_bit(found, way):
    result = found["low precision"][way]
    many, one = result["losses"]
    assert many == pytest.approx(one, rel=0.02)
    assert many[1] < many[0]
    assert result["dtypes"] == ["torch.bfloat16"]
    assert (result["again"], result["weights"]) == (0.0, 0.0)
    assert result["one process"] < 0.02 * abs(one[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("heads", "1 key-value heads and 24 features between matrices; tp has to divide both"),
        ("deep", "features of images are added behind the first 2 layers, and the first of 2 pieces has 1"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_reason(found, what, reason):
    assert reason in found["refusals"][what]


@pytest.mark.parametrize("kind", MODELS)
def test_units_are_layers_of_the_language_half_even_where_the_tower_is_larger(kind):
    config = {**MODELS[kind], "vision_config": {**MODELS[kind]["vision_config"], "intermediate_size": 600}}
    inner = loading.from_config(config).inner
    text = {id(parameter) for parameter in inner.base_model.language_model.parameters()}
    blocks = blocks_of(inner)
    assert len(blocks) == 2
    assert all(id(parameter) in text for block in blocks for parameter in block.parameters())
