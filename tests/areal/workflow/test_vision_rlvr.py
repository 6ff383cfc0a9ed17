"""Prompts with images on the real engine, with a tiny image-text model of random weights: tokens, pixels, records."""

from __future__ import annotations

import asyncio
import base64
import threading

import pytest
import torch
from PIL import Image

from areal.algorithm.packing import collate
from areal.api import ConfigError, FaultError, FaultKind, GenerationConfig
from areal.dataset.encoding import load_tokenizer
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.workflow.assembly import create_workflow
from tests.support.vision import LLAVA, QWEN3_VL, encoded, noise

TOKENIZER = load_tokenizer("characters:0123456789?+")
SIZES = {"llava": (8, 8), "qwen3_vl": (16, 24)}


def file_of(seed, size=(20, 30)):
    return base64.b64encode(encoded(noise(*size, seed=seed))).decode()


def row(*seeds, answer="7", text="{}2+5?"):
    return {
        "messages": text.format("<image>" * len(seeds)),
        "images": [file_of(seed) for seed in seeds],
        "answer": answer,
    }


async def exact(prompt, completions, prompt_ids, completion_ids, /, *, answer):
    """Takes no column `images`: giving it one would fail."""
    return float(completions == answer)


def made(config, reward=exact, **options):
    gconfig = GenerationConfig(max_new_tokens=5)
    return create_workflow(
        "vision_rlvr", reward=reward, gconfig=gconfig, tokenizer=TOKENIZER, options={"processor": config, **options}
    )


def engine_of(config):
    model = loading.from_config(config, seed=3)
    return model, EmbeddedEngine(model, config=EmbeddedEngineConfig(max_seq_len=250), eos_token_id=None)


def episodes(workflow, engine, rows):
    async def all_of():
        return await asyncio.gather(*(workflow.arun_episode(engine, item) for item in rows), return_exceptions=True)

    return asyncio.run(all_of())


def usable(found):
    """Random weights sample placeholders now and then."""
    return [item for item in found if not isinstance(item, FaultError) or item.kind is not FaultKind.GENERATION_FAILED]


@pytest.mark.parametrize("config", [LLAVA, QWEN3_VL], ids=lambda config: config["model_type"])
def test_records_have_the_pixels_and_the_trainers_log_probabilities(config):
    model, engine = engine_of(config)
    found = usable(episodes(made(config), engine, [row(0), row(1, 2), row(0), row(0)]))
    batch = collate(found)
    logp = TrainingEngine(model, config=TrainEngineConfig(device="cpu")).forward_logp(batch, only_masked=True)
    assert float((logp - batch.logp_behave)[batch.loss_mask > 0].abs().max()) < 1e-5
    for record in found:
        for ref in record.images:
            assert set(record.tokens[ref.start : ref.end]) == {model.vision.placeholder}
            assert ref.length == model.vision.num_placeholders(ref.image.height, ref.image.width)
        assert record.tokens.count(model.vision.placeholder) >= sum(ref.length for ref in record.images)
        assert record.text["prompt"].endswith("2+5?")


def test_a_file_is_decoded_once_for_all_samples_and_away_from_the_event_loop():
    _, engine = engine_of(LLAVA)
    workflow = made(LLAVA)
    files = workflow._prompts.files
    seen, original = [], files._final
    files._final = lambda content: (seen.append(threading.current_thread().name), original(content))[1]
    found = episodes(workflow, engine, [row(0)] * 8)
    assert files.num_decoded == len(seen) == 1
    assert seen[0].startswith("images")
    kept = [item for item in found if not isinstance(item, Exception)]
    assert len({id(item.images[0].image) for item in kept}) == 1
    assert collate(kept).images.pixels.numel() == 8 * 8 * 3


def test_other_pixels_give_another_prompt_with_the_same_ids():
    model, engine = engine_of(LLAVA)
    one, other = (usable(episodes(made(LLAVA), engine, [row(seed)] * 4))[0] for seed in (0, 1))
    prompt = len(one.loss_mask) - sum(one.loss_mask)
    assert one.tokens[:prompt] == other.tokens[:prompt]
    assert one.images[0].image != other.images[0].image
    swapped = collate([one])
    theirs = collate([other]).images
    from dataclasses import replace

    trainer = TrainingEngine(model, config=TrainEngineConfig(device="cpu"))
    own = trainer.forward_logp(swapped, only_masked=True)
    foreign = trainer.forward_logp(replace(swapped, images=theirs), only_masked=True)
    assert not torch.allclose(own, foreign, atol=1e-4)


def test_rewards_get_images_only_when_they_ask():
    got = []

    async def with_images(prompt, completions, prompt_ids, completion_ids, /, *, answer, images):
        got.append(images)
        return 1.0

    _, engine = engine_of(LLAVA)
    episodes(made(LLAVA, with_images, reward_images=True), engine, [row(0)] * 4)
    assert got
    assert all(images == row(0)["images"] for images in got)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**row(0), "images": []}, "1 <image> marks for 0 images"),
        ({**row(0), "images": ["no file"]}, r"images\[0\] is 'no file'"),
        ({**row(0), "images": [base64.b64encode(b"<svg/>").decode()]}, r"images\[0\]: .*cannot be decoded"),
        ({**row(0), "images": [file_of(0, (300, 1))]}, r"images\[0\]: .*one side is over 200 times"),
        (row(0, text="2+5?{}"), "the prompt ends with an image"),
        ({"messages": "2+5?"}, "no column 'images'"),
    ],
)
def test_hostile_rows_are_faults_of_their_own_and_good_rows_go_on(data, words):
    _, engine = engine_of(LLAVA)
    bad, *good = episodes(made(LLAVA), engine, [{"answer": "7", **data}, row(1), row(2), row(3)])
    assert isinstance(bad, FaultError)
    assert bad.kind is FaultKind.DATA_INVALID
    with pytest.raises(FaultError, match=words):
        raise bad
    assert usable(good)


def test_limits_come_from_the_options():
    _, engine = engine_of(LLAVA)
    large = base64.b64encode(encoded(Image.new("RGB", (40, 40)))).decode()
    (found,) = episodes(made(LLAVA, max_file_pixels=1000), engine, [{**row(0), "images": [large]}])
    assert "40 x 40 pixels, at most 1000" in str(found)
    with pytest.raises(ConfigError, match="reads text only"):
        made({"model_type": "qwen3"})
