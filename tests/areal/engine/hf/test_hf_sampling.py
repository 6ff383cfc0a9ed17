"""Sampling in this process from models of transformers: recorded log-probabilities are those of one forward of the
trainer, text or images, after weight updates too."""

import asyncio

import pytest
import torch

from areal.algorithm.packing import collate
from areal.api import (
    ConfigError,
    FaultError,
    GenerationConfig,
    ImageRef,
    ModelError,
    ModelRequest,
    ModelResponse,
    StopReason,
    Trajectory,
    WeightUpdateMeta,
)
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig, VisionTrainConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.hf import loading
from areal.engine.hf.pixels import is_vision
from areal.engine.train.engine import TrainingEngine
from tests.areal.engine.hf.test_hf_model import ARCHITECTURES, QWEN3
from tests.support.vision import MODELS, noisy_image

TEXTS = {**{name: ARCHITECTURES[name] for name in ("bloom", "gemma2", "gpt2", "mixtral", "opt")}, "qwen3": QWEN3}
TOLERANCE = 1e-5


def engine_of(model, **changes):
    return EmbeddedEngine(model, config=EmbeddedEngineConfig(max_seq_len=200, **changes), eos_token_id=None)


def request(ids, *, seed=0, images=(), **gconfig):
    return ModelRequest(
        input_ids=list(ids),
        images=tuple(images),
        seed=seed,
        gconfig=GenerationConfig(**{"max_new_tokens": 9, **gconfig}),
    )


def answers(engine, requests, between=None):
    async def all_of():
        tasks = [asyncio.create_task(engine.agenerate(item)) for item in requests]
        if between is not None:
            while engine.stats()["generated_tokens"] < 4 * len(requests):
                await asyncio.sleep(0)
            between()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(all_of())


def record(item, response):
    prompt, count = len(item.input_ids), len(response.output_tokens)
    return Trajectory(
        tokens=[*item.input_ids, *response.output_tokens],
        loss_mask=[0] * prompt + [1] * count,
        logprobs=[0.0] * prompt + response.output_logprobs,
        versions=[-1] * prompt + response.output_versions,
        turn_ids=[-1] * prompt + [0] * count,
        reward=0.0,
        stop_reason=response.stop_reason,
        images=item.images,
    )


def worst_error(trainer, requests, responses, *, version=None, **scoring):
    """Against the trainer, of the tokens of one version; each row alone."""
    worst = 0.0
    for item, response in zip(requests, responses, strict=True):
        batch = collate([record(item, response)])
        chosen = (batch.loss_mask > 0) & ((batch.versions == version) if version is not None else True)
        assert chosen.any()
        found = trainer.forward_logp(batch, only_masked=True, **scoring)
        worst = max(worst, float((found - batch.logp_behave)[chosen].abs().max()))
    return worst


def trainer_of(model, **changes):
    return TrainingEngine(model, config=TrainEngineConfig(lr=1e-2, device="cpu", **changes))


def image_prompt(vision, images, words, *, start=(5,)):
    ids, refs = list(start), []
    for image in images:
        block, before = vision.block(image.height, image.width)
        length = vision.num_placeholders(image.height, image.width)
        refs.append(ImageRef(image=image, start=len(ids) + before, length=length))
        ids += block
    return [*ids, *words], refs


def pictures(vision, *sizes, seed=0):
    return [noisy_image(*(size if vision.has_grid else vision.size), seed=seed + n) for n, size in enumerate(sizes)]


def image_requests(vision, **gconfig):
    one, two = pictures(vision, (16, 24)), pictures(vision, (8, 16), (24, 8), seed=7)
    prompts = [
        image_prompt(vision, one, [3, 4]),
        image_prompt(vision, two, [6, 7, 8]),
        ([9, 10, 11, 12], []),
        # As the first one, with other pixels.
        image_prompt(vision, pictures(vision, (16, 24), seed=9), [3, 4]),
    ]
    return [
        request(ids, images=refs, seed=10 * number + sample, **gconfig)
        for number, (ids, refs) in enumerate(prompts)
        for sample in range(2)
    ]


def without_faults(requests, responses):
    """Random weights sample placeholders now and then, which are faults."""
    kept = [(item, found) for item, found in zip(requests, responses, strict=True) if not isinstance(found, Exception)]
    for found in responses:
        assert not isinstance(found, Exception) or "stands for something other than text" in str(found)
    assert len(kept) >= len(requests) // 2
    return [item for item, _ in kept], [found for _, found in kept]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", TEXTS)
def test_text_is_sampled_with_the_trainers_log_probabilities(name):
    model = loading.from_config(TEXTS[name], seed=3)
    engine = engine_of(model)
    prompts = [[5, 6, 7], [5, 6, 7], [1, 2, 3, 4, 5, 6, 7], [8, 9], [8, 9]]
    requests = [request(ids, seed=number, temperature=0.7) for number, ids in enumerate(prompts)]
    responses = answers(engine, requests)
    assert [len(found.output_tokens) for found in responses] == [9] * 5
    assert worst_error(trainer_of(model), requests, responses, temperature=0.7) < TOLERANCE
    alone = [answers(engine_of(model), [item])[0].output_tokens for item in requests]
    assert [found.output_tokens for found in responses] == alone
    assert engine.stats()["prefill_tokens"] == 3 + 7 + 2


def test_updates_and_continuations_are_exact():
    model = loading.from_config(QWEN3, seed=3)
    other = loading.from_config(QWEN3, seed=4)
    engine = engine_of(model)
    requests = [request([5, 6, 7], seed=1), request([1, 2], seed=2)]
    update = WeightUpdateMeta(kind="memory", version=1, state_dict=other.state_dict())
    responses = answers(engine, requests, between=lambda: engine.update_weights(update))
    assert {version for found in responses for version in found.output_versions} == {0, 1}
    for version, weights in ((0, model), (1, other)):
        assert worst_error(trainer_of(weights), requests, responses, version=version) < TOLERANCE


def test_weights_come_from_a_folder_too(tmp_path):
    model, other = (loading.from_config(QWEN3, seed=seed) for seed in (3, 4))
    other.save_pretrained(tmp_path / "checkpoint")
    engine = engine_of(model)
    engine.update_weights(WeightUpdateMeta(kind="disk", version=1, path=tmp_path / "checkpoint"))
    requests = [request([5, 6, 7])]
    assert worst_error(trainer_of(other), requests, answers(engine, requests), version=1) < TOLERANCE


def test_requests_end_for_the_same_reasons_as_in_our_families():
    engine = engine_of(loading.from_config(QWEN3, seed=3), max_batch_size=2)
    first = answers(engine, [request([5, 6, 7], seed=4)])[0]
    stop = first.output_tokens[3]
    requests = [
        request([5, 6, 7], seed=4, stop_token_ids=(stop,)),
        request([5, 6, 7], seed=4),
        request([4], greedy=True),
    ]
    stopped, whole, greedy = answers(engine, requests)
    assert stopped.stop_reason is StopReason.STOP
    assert stopped.output_tokens == whole.output_tokens[: whole.output_tokens.index(stop) + 1]
    assert (whole.stop_reason, greedy.stop_reason) == (StopReason.LENGTH, StopReason.LENGTH)
    engine = engine_of(loading.from_config(QWEN3, seed=3))
    partial = answers(engine, [request([5, 6, 7], seed=5)], between=engine.abort)[0]
    assert partial.stop_reason is StopReason.ABORT
    assert 4 <= len(partial.output_tokens) < 9


def test_positions_that_change_with_length_are_refused():
    with pytest.raises(ModelError, match="rope type longrope"):
        engine_of(loading.from_config(ARCHITECTURES["phi3-longrope"]))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODELS)
def test_images_are_sampled_with_the_trainers_log_probabilities(name):
    model = loading.from_config(MODELS[name], seed=3)
    trainer = trainer_of(model)
    engine = engine_of(model)
    requests = image_requests(model.vision, temperature=1.3)
    kept, responses = without_faults(requests, answers(engine, requests))
    assert worst_error(trainer, kept, responses, temperature=1.3) < TOLERANCE
    batch = collate([record(item, found) for item, found in zip(kept, responses, strict=True)])
    together = trainer.forward_logp(batch, temperature=1.3, only_masked=True)
    assert float((together - batch.logp_behave)[batch.loss_mask > 0].abs().max()) < TOLERANCE
    # One prefill per distinct prompt, and one run of the tower per distinct image, of which there are 4.
    assert engine._batch._model.tower.num_computed == 4
    assert engine.stats()["prefill_tokens"] == sum(len(item.input_ids) for item in requests[::2])


@pytest.mark.parametrize("name", MODELS)
def test_pixels_decide_where_tokens_are_equal(name):
    model = loading.from_config(MODELS[name], seed=3)
    one, _, _, other = image_requests(model.vision)[::2]
    assert one.input_ids == other.input_ids
    answer = ModelResponse(
        input_tokens=one.input_ids,
        output_tokens=[3, 9, 4],
        output_logprobs=[-1.0] * 3,
        output_versions=[0] * 3,
        stop_reason=StopReason.STOP,
    )
    records = [record(item, answer) for item in (one, other, one)]
    trainer = trainer_of(model)
    found = trainer.forward_logp(collate(records), only_masked=True)
    alone = torch.cat([trainer.forward_logp(collate([item]), only_masked=True) for item in records])
    assert torch.allclose(found, alone, atol=TOLERANCE)
    assert float((found[0] - found[1]).abs().max()) > 1e-3
    assert float((found[0] - found[2]).abs().max()) < TOLERANCE


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODELS)
def test_images_live_through_updates_of_a_trained_tower(name):
    model, other = (loading.from_config(MODELS[name], seed=seed) for seed in (3, 4))
    trainers = [trainer_of(weights, vision=VisionTrainConfig(train="all")) for weights in (model, other)]
    engine = engine_of(model)
    requests = image_requests(model.vision)
    update = WeightUpdateMeta(kind="memory", version=1, state_dict=other.state_dict())
    kept, responses = without_faults(requests, answers(engine, requests, between=lambda: engine.update_weights(update)))
    both = [number for number, found in enumerate(responses) if set(found.output_versions) == {0, 1}]
    for version, trainer in enumerate(trainers):
        chosen = [kept[number] for number in both], [responses[number] for number in both]
        assert worst_error(trainer, *chosen, version=version) < TOLERANCE


def test_placeholders_without_an_image_and_images_without_a_tower_are_refused():
    model = loading.from_config(MODELS["llava"], seed=3)
    found = answers(engine_of(model), [request([5, 27, 6])])[0]
    assert isinstance(found, FaultError)
    assert "token 27 is image_token_index" in str(found)
    item = image_requests(model.vision)[0]
    text = answers(engine_of(loading.from_config(QWEN3)), [item])[0]
    assert isinstance(text, ConfigError)
    assert "reads text only" in str(text)


def test_rows_that_hold_no_pixels_are_computed_as_by_the_language_half():
    model = loading.from_config(MODELS["qwen3_vl"], seed=3)
    item = request([9, 10, 11, 12])
    found = answers(engine_of(model), [item])[0]
    tokens = torch.tensor([[*item.input_ids, *found.output_tokens]])
    logp = model.inner(input_ids=tokens).logits[0].log_softmax(-1)
    expected = logp[3:-1].gather(1, tokens[0, 4:, None])[:, 0]
    assert torch.allclose(expected, torch.tensor(found.output_logprobs), atol=TOLERANCE)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODELS)
def test_features_of_a_frozen_tower_survive_updates_and_never_outlive_its_weights(name):
    model, other = (loading.from_config(MODELS[name], seed=seed) for seed in (3, 4))
    trainer_of(model)  # which freezes the tower
    engine = engine_of(model)
    tower = engine._batch._model.tower
    requests = image_requests(model.vision)
    answers(engine, requests)
    assert tower.num_computed == 4
    mixed = {
        key: (model if is_vision(key.removeprefix("inner.model.")) else other).state_dict()[key].clone()
        for key in other.state_dict()
    }
    for version, (state, computed) in enumerate([(mixed, 4), (other.state_dict(), 8)], 1):
        engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=state))
        kept, responses = without_faults(requests, answers(engine, requests))
        assert tower.num_computed == computed
        weights = loading.from_config(MODELS[name], seed=0)
        weights.load_state_dict(state)
        assert worst_error(trainer_of(weights), kept, responses) < TOLERANCE
