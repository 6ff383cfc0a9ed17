"""Training image-text models: results do not depend on micro-batches, frozen towers are run once per image, adapters
stay in the language half, and checkpoints are those of transformers."""

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForImageTextToText

from areal.algorithm.packing import collate, select
from areal.api import ConfigError, EngineError, LossOutput, PackedImage
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import byte_tokenizer
from areal.dataset.loading import load_dataset
from areal.dataset.pixels import ImageLimits
from areal.engine.config import LoraConfig, TrainEngineConfig, VisionTrainConfig
from areal.engine.hf import loading
from areal.engine.hf.pixels import is_vision, part_of
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.trainer.image_rows import ImageRows
from tests.areal.engine.hf.test_hf_model import QWEN3
from tests.areal.engine.hf.test_hf_sampling import image_requests, record
from tests.support.vision import MODELS, QWEN2_5_VL

PREFIX = "inner.model."


def batch_of(vision):
    """Answers of 4 tokens to 4 prompts, two each."""
    from areal.api import ModelResponse, StopReason

    generator = torch.Generator().manual_seed(0)
    records = []
    for item in image_requests(vision):
        answer = torch.randint(0, 20, (4,), generator=generator).tolist()
        response = ModelResponse(
            input_tokens=item.input_ids,
            output_tokens=answer,
            output_logprobs=[-1.0] * 4,
            output_versions=[0] * 4,
            stop_reason=StopReason.STOP,
        )
        records.append(record(item, response))
    return collate(records)


def loss_fn(logp, _, part):
    return LossOutput(loss=-(logp * part.loss_mask).sum() / 32)


def engine_of(kind, *, train="none", seed=3, **changes):
    config = TrainEngineConfig(
        **{"optimizer": "sgd", "momentum": 0.0, "lr": 0.1, "max_grad_norm": 1e9, "device": "cpu", **changes},
        vision=VisionTrainConfig(train=train),
    )
    return TrainingEngine(loading.from_config(MODELS[kind], seed=seed), config=config)


def values_of(engine):
    return {name: tensor.detach().clone() for name, tensor in engine.model.named_parameters()}


@pytest.mark.sample(1)
@pytest.mark.parametrize("train", ["none", "projector", "all"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_step_does_not_depend_on_micro_batches(kind, train):
    whole, cut = (engine_of(kind, train=train, max_tokens_per_micro_batch=size) for size in (4096, 1))
    before = values_of(whole)
    batch = batch_of(whole.model.vision)
    stats = [engine.train_batch(batch, loss_fn) for engine in (whole, cut)]
    assert [item.num_micro_batches for item in stats] == [1, 8]
    assert stats[0].loss == pytest.approx(stats[1].loss, rel=1e-6)
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-5)
    after, other = values_of(whole), values_of(cut)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    for name, value in after.items():
        assert torch.allclose(value, other[name], atol=1e-6), name
    vision = {name for name in moved if is_vision(name.removeprefix(PREFIX))}
    projector = {name for name in vision if "merger" in name or "projector" in name}
    assert moved - vision
    assert bool(projector) == (train != "none")
    assert bool(vision - projector) == (train == "all")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", MODELS)
def test_features_of_a_frozen_tower_are_computed_once_and_change_nothing(kind):
    engine = engine_of(kind, max_tokens_per_micro_batch=40)
    batch = batch_of(engine.model.vision)
    first = engine.forward_logp(batch)
    assert engine.model.tower.num_computed == 4
    again = engine.forward_logp(batch)
    assert engine.model.tower.num_computed == 4
    assert torch.equal(first, again)
    fresh = engine_of(kind, max_tokens_per_micro_batch=40, train="all")
    assert torch.equal(fresh.forward_logp(batch), first)
    state = engine_of(kind, seed=5).state_dict()
    engine.load_state_dict(state)
    assert torch.equal(
        engine.forward_logp(batch), engine_of(kind, seed=5, max_tokens_per_micro_batch=40).forward_logp(batch)
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", MODELS)
def test_the_numbers_are_those_of_transformers(kind):
    engine = engine_of(kind)
    vision, inner = engine.model.vision, engine.model.inner
    batch = batch_of(vision)
    found = engine.forward_logp(batch)
    for row in range(batch.tokens.shape[0]):
        one = select(batch, [row])
        options = {}
        if one.images is not None:
            pixels = [one.images.pixels_of(int(number)) for number in one.images.index]
            options = vision.tower_inputs(pixels)
            if vision.has_grid:
                options["mm_token_type_ids"] = (one.tokens == vision.placeholder).int()
        logits = inner(input_ids=one.tokens, **options).logits[0]
        expected = logits.log_softmax(-1)[:-1].gather(1, one.tokens[0, 1:, None])[:, 0]
        assert torch.allclose(found[row, 1 : one.tokens.shape[1]], expected, atol=1e-5)


SCOPES = [["language"], ["projector"], ["tower"], ["language", "projector", "tower"]]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "scope"),
    [
        pytest.param(
            kind, scope, id=f"{kind} {'+'.join(scope)}",
            marks=[] if kind == "llava" or len(scope) == 3 else pytest.mark.exhaustive,
        )
        for kind in MODELS
        for scope in SCOPES
    ],
)  # fmt: skip
def test_adapters_go_into_the_parts_in_their_scope(kind, scope, tmp_path):
    lora = LoraConfig(rank=2, alpha=4, scope=scope)
    engine = engine_of(kind, lora=lora)
    trained = {name for name, value in engine.model.named_parameters() if value.requires_grad}
    assert {part_of(name.removeprefix(PREFIX)) for name in trained} == set(scope)
    assert all(".lora_" in name for name in trained)
    batch, before = batch_of(engine.model.vision), values_of(engine)
    first = engine.forward_logp(batch)
    assert torch.equal(first, engine_of(kind).forward_logp(batch))
    assert all(engine.train_batch(batch, loss_fn).stepped for _ in range(2))
    assert not torch.allclose(engine.forward_logp(batch), first, atol=1e-4)
    assert engine.model.tower.is_frozen == (scope == ["language"])
    moved = {name for name, value in values_of(engine).items() if not torch.equal(value, before[name])}
    assert moved <= trained
    assert {part_of(name.removeprefix(PREFIX)) for name in moved} == set(scope)
    other = engine_of(kind, lora=lora)
    other.load_state_dict(engine.state_dict())
    assert torch.equal(other.forward_logp(batch), engine.forward_logp(batch))
    engine.save_pretrained(tmp_path / "merged")
    merged = loading.from_pretrained(tmp_path / "merged")
    found = TrainingEngine(merged, config=TrainEngineConfig(device="cpu")).forward_logp(batch)
    assert torch.allclose(found, engine.forward_logp(batch), atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("scope", [SCOPES[0], SCOPES[3]], ids="+".join)
def test_a_folder_of_adapters_goes_on_top_of_the_model_of_transformers(scope, tmp_path):
    engine = engine_of("llava", lora=LoraConfig(rank=2, alpha=4, scope=scope, targets=["q_proj", "v_proj"]))
    engine_of("llava").save_pretrained(tmp_path / "base")
    batch = batch_of(engine.model.vision)
    for _ in range(2):
        engine.train_batch(batch, loss_fn)
    engine.save_adapter(tmp_path / "adapter", base=str(tmp_path / "base"))
    base = AutoModelForImageTextToText.from_pretrained(tmp_path / "base")
    theirs = PeftModel.from_pretrained(base, tmp_path / "adapter")
    adapted = {name for name, _ in theirs.named_parameters() if ".lora_" in name}
    assert len(adapted) == sum(".lora_" in name for name in values_of(engine))
    one = select(batch, [0])
    inputs = engine.model.vision.tower_inputs([one.images.pixels_of(0)])
    expected = theirs(input_ids=one.tokens, **inputs).logits[0].log_softmax(-1)
    expected = expected[:-1].gather(1, one.tokens[0, 1:, None])[:, 0]
    assert torch.allclose(engine.forward_logp(one)[0, 1:], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("llava", {"targets": ["q_proj", "linear_1"]}, "linear_1 name layers of the projector, and none in lora.scope"),
        ("qwen2_5_vl", {"targets": ["q_proj", "qkv"]}, r"qkv name layers of the tower, and none in .*\['language'\]"),
        ("qwen3_vl", {"targets": ["linear_fc1", "q_proj"], "scope": ["tower"]}, "q_proj name layers of the language"),
        ("llava", {"scope": []}, "expected a part"),
        ("qwen3", {"scope": ["language", "tower"]}, r"expected \[language\]: text alone"),
    ],
)
def test_scopes_that_leave_a_name_without_a_layer_are_refused(kind, changes, words):
    config = TrainEngineConfig(device="cpu", lora=LoraConfig(rank=2, alpha=4, **changes))
    model = from_config(QWEN3) if kind == "qwen3" else loading.from_config(MODELS[kind])
    with pytest.raises(ConfigError, match=words):
        TrainingEngine(model, config=config)


def test_adapters_and_a_trained_tower_are_refused_together():
    with pytest.raises(ConfigError, match=r"adapters leave all else .* in actor\.lora\.scope"):
        engine_of("llava", lora=LoraConfig(rank=2, alpha=4), train="projector")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", MODELS)
def test_checkpoints_are_those_of_transformers(kind, tmp_path):
    engine = engine_of(kind, train="all")
    batch = batch_of(engine.model.vision)
    engine.train_batch(batch, loss_fn)
    engine.save_pretrained(tmp_path / "model")
    theirs = AutoModelForImageTextToText.from_pretrained(tmp_path / "model").state_dict()
    for name, tensor in engine.model.inner.state_dict().items():
        assert torch.equal(theirs[name], tensor), name
    again = loading.from_pretrained(tmp_path / "model")
    assert again.vision == engine.model.vision
    found = TrainingEngine(again, config=TrainEngineConfig(device="cpu")).forward_logp(batch)
    assert torch.equal(found, engine.forward_logp(batch))


def test_states_continue_bit_by_bit():
    one, other = engine_of("llava", optimizer="adamw"), engine_of("llava", optimizer="adamw", seed=9)
    batch = batch_of(one.model.vision)
    one.train_batch(batch, loss_fn)
    other.load_state_dict(one.state_dict())
    stats = [engine.train_batch(batch, loss_fn) for engine in (one, other)]
    assert stats[0] == stats[1]
    assert all(torch.equal(value, values_of(other)[name]) for name, value in values_of(one).items())


def test_models_of_text_refuse_images():
    batch = batch_of(engine_of("llava").model.vision)
    with pytest.raises(EngineError, match="takes no pixels"):
        TrainingEngine(from_config(QWEN3), config=TrainEngineConfig(device="cpu")).forward_logp(batch)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["geometry3k", "clevr_count_70k", "virl39k"])
def test_little_of_what_is_computed_for_rows_with_images_is_padding(name):
    config = {**QWEN2_5_VL, "text_config": {**QWEN2_5_VL["text_config"], "vocab_size": 300}}
    config |= {field: 290 + number for number, field in enumerate(field for field in config if field.endswith("_id"))}
    model = loading.from_config(config)
    images = ImageRows(model.vision, ImageLimits())
    dataset = load_dataset(DatasetConfig(name=name), byte_tokenizer(), kind="sft", place_images=images.place)
    rows = [dataset[number] for number in range(16)]
    seen = []
    hook = model.inner.model.language_model.register_forward_pre_hook(
        lambda _, __, options: seen.append(options["inputs_embeds"].shape[:2]), with_kwargs=True
    )
    tokens = torch.cat([torch.tensor(row["input_ids"]) for row in rows])
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    packed = []
    for row, refs, start in zip(rows, images.refs(rows, [""] * 16), bounds.tolist(), strict=False):
        assert row["image_lengths"]
        packed += [
            PackedImage(digest=ref.image.digest, pixels=torch.tensor(ref.image.pixels), start=start + ref.start,
                        length=ref.length) for ref in refs
        ]  # fmt: skip
    with torch.no_grad():
        found = model.hidden(tokens, tokens, bounds.to(torch.int32), int(lengths.max()), images=packed)
        cells = sum(rows * columns for rows, columns in seen)
        alone = model.hidden(tokens[: lengths[0]], tokens[: lengths[0]], bounds[:2].to(torch.int32), int(lengths[0]),
                             images=[image for image in packed if image.start < lengths[0]])  # fmt: skip
    hook.remove()
    assert len(tokens) / cells >= 0.85
    torch.testing.assert_close(found[: lengths[0]], alone, atol=1e-4, rtol=1e-4)
