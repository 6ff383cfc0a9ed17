"""What becomes of images in a model: sizes and pixels are those of the image processors of transformers on Pillow,
positions those of its models."""

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from areal.api import ConfigError, DataError, ModelError
from areal.models.vision import vision_format
from tests.support.vision import LLAVA, QWEN2_5_VL, QWEN3_VL, noise

SIGLIP = {
    **LLAVA,
    "vision_config": {**LLAVA["vision_config"], "model_type": "siglip_vision_model"},
    "vision_feature_select_strategy": "full",
}
GRID = {"size": {"shortest_edge": 256, "longest_edge": 4096}, "patch_size": 4, "merge_size": 2}
SIZES = [(16, 16), (24, 40), (7, 90), (200, 120), (1, 1), (33, 31), (500, 3)]


def final(vision, picture):
    return np.asarray(vision.fit(picture))


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_grids_have_the_sizes_and_pixels_of_the_processor(height, width):
    vision = vision_format(QWEN2_5_VL, GRID)
    picture = Image.fromarray(noise(height, width))
    processor = Qwen2VLImageProcessorPil(**GRID, temporal_patch_size=2)
    expected = processor(picture, return_tensors="pt")
    pixels = final(vision, picture)
    found = vision.tower_inputs([torch.tensor(pixels)])
    assert found["image_grid_thw"].tolist() == expected["image_grid_thw"].tolist()
    assert torch.allclose(found["pixel_values"], expected["pixel_values"], atol=1e-6, rtol=0)
    tokens = int(expected["image_grid_thw"].prod()) // 4
    assert vision.block(*pixels.shape[:2]) == ([29, *[27] * tokens, 30], 1)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (20, 13), (9, 70), (8, 9)])
@pytest.mark.parametrize("tower", ["clip", "siglip"])
def test_images_of_one_size_have_the_pixels_of_the_processor(height, width, tower):
    if tower == "clip":
        settings = {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}}
        vision, processor = vision_format(LLAVA, settings), CLIPImageProcessorPil(**settings)
    else:
        settings = {"size": {"height": 8, "width": 8}}
        vision, processor = vision_format(SIGLIP, settings), SiglipImageProcessorPil(**settings)
    picture = Image.fromarray(noise(height, width))
    expected = processor(picture, return_tensors="pt")["pixel_values"]
    found = vision.tower_inputs([torch.tensor(final(vision, picture))])["pixel_values"]
    assert torch.allclose(found, expected, atol=1e-6, rtol=0)
    assert vision.block(8, 8) == ([27] * 4, 0)


@pytest.mark.parametrize(("height", "width"), SIZES[:-1])
def test_an_image_of_final_size_is_left_as_it_is(height, width):
    for vision in (vision_format(QWEN2_5_VL, GRID), vision_format(LLAVA)):
        once = final(vision, Image.fromarray(noise(height, width)))
        assert np.array_equal(final(vision, Image.fromarray(once)), once)


@pytest.mark.parametrize("config", [QWEN2_5_VL, QWEN3_VL], ids=lambda config: config["model_type"])
def test_positions_are_those_of_transformers(config):
    from transformers import AutoConfig, AutoModelForImageTextToText

    fields = dict(config)
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields)).model
    vision = vision_format(config)
    sizes, start, ids, spans = [(16, 32), (16, 16), (48, 8)], 3, [1, 2, 3], []
    for height, width in sizes:
        block, before = vision.block(height, width)
        spans.append((start + before, height, width))
        ids += [*block, 5]
        start = len(ids)
    tokens = torch.tensor([ids])
    grids = torch.tensor([[1, height // 4, width // 4] for height, width in sizes])
    expected, delta = model.get_rope_index(tokens, (tokens == 27).int(), image_grid_thw=grids)
    found, shift = vision.positions(len(ids), spans)
    assert found == expected[:, 0].tolist()
    assert shift == int(delta)


def test_text_alone_is_no_image_model_and_other_kinds_are_refused_by_name():
    assert vision_format({"model_type": "qwen3"}) is None
    with pytest.raises(ModelError, match=r"see each other in both directions in a 'gemma3' model.*Rows of text can be"):
        vision_format({"model_type": "gemma3", "vision_config": {}, "text_config": {}})
    with pytest.raises(ModelError, match=r"'idefics3' model reads images is not known.*known are llava, qwen2_5_vl"):
        vision_format({"model_type": "idefics3", "vision_config": {}})


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (QWEN2_5_VL, {"patch_size": 14}, "tower has patch_size 4, the image processor 14"),
        (LLAVA, {"size": {"height": 9, "width": 9}}, "tower reads 8 x 8 pixels"),
        (LLAVA, {"do_normalize": False}, "do_normalize=false"),
        (LLAVA, {"do_pad": True}, "do_pad=true"),
        (LLAVA, {"rescale_factor": 0.5}, "rescale_factor 0.5"),
    ],
)
def test_processors_that_do_not_fit_the_tower_are_refused(config, settings, words):
    with pytest.raises(ModelError, match=words):
        vision_format(config, settings)


def test_limits_of_pixels_are_kept_or_refused():
    vision = vision_format(QWEN2_5_VL, GRID, max_pixels=512)
    height, width = vision.final_size(300, 200)
    assert height * width <= 512
    with pytest.raises(ConfigError, match="all images of a llava model have one size"):
        vision_format(LLAVA, max_pixels=512)
    with pytest.raises(DataError, match="over 200 times"):
        vision.final_size(1, 300)
