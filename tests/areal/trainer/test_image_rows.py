"""Supervised rows with images: placeholders are those of RL prompts, rows are measured with them, and what is learned
does not depend on how batches are cut."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
import torch
from datasets import Dataset

from areal.api import ConfigError, DataError
from areal.dataset.config import DatasetConfig
from areal.dataset.encoding import load_tokenizer
from areal.dataset.loading import ShuffledRows, load_dataset
from areal.dataset.origins import origins_of
from areal.dataset.pixels import ImageLimits
from areal.infra.metrics.logger import read_metrics
from areal.models.vision import vision_format
from areal.trainer.configuration.source import load_config
from areal.trainer.dry_run import dry_run
from areal.trainer.image_rows import ImageRows, prompt_images_of
from areal.trainer.rows import collate_rows
from areal.trainer.session import open_session
from areal.trainer.sft import SFTTrainer
from areal.workflow.pixels import PixelPrompts
from tests.support.vision import LLAVA, MODELS, QWEN3_VL, encoded, noise

CHARACTERS = "characters:0123456789?+"
TOKENIZER = load_tokenizer(CHARACTERS)


def file_of(seed, size=(20, 30)):
    return base64.b64encode(encoded(noise(*size, seed=seed))).decode()


def row(*seeds, answer="7", text="2{}+5?"):
    return {
        "prompt": text.format("<image>" * len(seeds)),
        "images": [file_of(seed, (20 + 8 * seed, 30)) for seed in seeds],
        "answer": answer,
    }


def written(folder, *rows):
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return str(file)


def rows_for(config):
    return ImageRows(vision_format(config), ImageLimits())


def load(folder, images, *rows, **options):
    config = DatasetConfig(name="jsonl", path=written(folder, *rows), **options)
    return load_dataset(config, TOKENIZER, kind="sft", place_images=images.place)


@pytest.mark.parametrize("config", MODELS.values(), ids=lambda config: config["model_type"])
def test_what_is_imitated_is_what_reinforcement_learning_goes_on_from(tmp_path, config):
    images, data = rows_for(config), row(0, 1)
    dataset = load(tmp_path, images, data, row())
    prompts = PixelPrompts(TOKENIZER, processor=config, limits=ImageLimits(), enable_thinking=False)
    ids, refs, _ = asyncio.run(prompts.read({"messages": data["prompt"], "images": data["images"]}))
    placed = dataset[0]
    assert placed["input_ids"] == [*ids, *TOKENIZER.encode("7"), TOKENIZER.eos_token_id]
    assert placed["loss_mask"] == [0] * len(ids) + [1, 1]
    assert images.refs([placed, dataset[1]], ["row 0", "row 1"]) == [refs, ()]
    assert dataset[1]["image_starts"] == []
    assert origins_of(dataset).lengths == [len(ids) + 2, 6]


def test_limits_count_placeholders(tmp_path, caplog):
    images = rows_for(QWEN3_VL)
    whole = load(tmp_path, images, row(0, answer="777"), row())
    length, last = len(whole["input_ids"][0]), whole["image_starts"][0][0] + whole["image_lengths"][0][0]
    assert length > 12
    kept = load(tmp_path, images, row(0, answer="777"), row(), max_length=length - 1)
    assert len(kept) == 1
    cut = load(tmp_path, images, row(0, answer="777"), row(), max_length=length - 1, overlong="truncate")
    assert [len(ids) for ids in cut["input_ids"]] == [length - 1, 6]
    caplog.clear()
    gone = load(tmp_path, images, row(0, answer="777"), row(), max_length=last - 1, overlong="truncate")
    assert [len(ids) for ids in gone["input_ids"]] == [6]
    assert "1 of these were not shortened since that would cut images" in caplog.text


def test_rows_that_cannot_be_used_are_named(tmp_path):
    images = rows_for(LLAVA)
    tall = {**row(0), "images": [file_of(0, (300, 1))]}
    with pytest.raises(DataError, match=r"line 2: images\[0\]: .*over 200 times"):
        load(tmp_path, images, row(0), tall)
    text = load_dataset(DatasetConfig(name="jsonl", path=written(tmp_path, row())), TOKENIZER, kind="sft")
    forged = text.remove_columns("input_ids").add_column("input_ids", [[2, 3, 4, LLAVA["image_token_index"], 9, 1]])
    with pytest.raises(DataError, match="token 27 of its text is image_token_index of the config"):
        images.place(forged, "forged")


def test_a_file_that_breaks_behind_its_header_is_found_when_it_is_read(tmp_path):
    images, data = rows_for(LLAVA), row(0)
    content = base64.b64decode(data["images"][0])
    broken = {**data, "images": [base64.b64encode(content[: len(content) // 2]).decode()]}
    rows = ShuffledRows(load(tmp_path, images, row(0), broken), seed=0, shuffle=False)
    assert collate_rows(rows, [0], images=images).images is not None
    with pytest.raises(DataError, match=r"row 1 .*line 2\): images\[0\]: .*cannot be decoded"):
        collate_rows(rows, [0, 1], images=images)


def settings(folder, config=LLAVA, **changes):
    rows = [row(0), row(1, 0, answer="12"), row(answer="3"), row(2, answer="456789"), row(0, answer="8"), row(3, 3)]
    chosen = {
        "kind": "sft", "seed": 3, "output_dir": str(folder / "run"), "total_train_steps": 3, "batch_size": 6,
        "model.init": config, "model.implementation": "transformers", "model.tokenizer_path": CHARACTERS,
        "train_dataset.name": "jsonl", "train_dataset.path": written(folder, *rows),
        "valid_dataset.name": "jsonl", "valid_dataset.path": written(folder, *rows),
        "actor.optimizer": "sgd", "actor.momentum": 0.0, "actor.lr": 0.05,
        "actor.device": "cpu", "actor.vision.train": "all", "metrics.progress": False, **changes,
    }  # fmt: skip
    return [f"{key}={json.dumps(value)}" for key, value in chosen.items()]


def train(folder, **changes):
    folder.mkdir()
    config = load_config(None, settings(folder, **changes)).config
    with open_session(config) as session:
        trainer = SFTTrainer(config, session)
        summary = trainer.train()
        steps = read_metrics(folder / "run" / "metrics.jsonl")
        return summary, [steps[step]["train/loss"] for step in (1, 2, 3)], trainer.engine.model


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "config", [pytest.param(LLAVA, marks=pytest.mark.exhaustive), QWEN3_VL], ids=lambda config: config["model_type"]
)
def test_a_run_learns_the_same_however_its_batches_are_cut(tmp_path, config):
    runs = [
        train(tmp_path / str(size), config=config, **{"actor.max_tokens_per_micro_batch": size}) for size in (4096, 1)
    ]
    (summary, losses, model), (_, others, other) = runs
    assert losses == pytest.approx(others, rel=1e-5)
    assert summary["eval_after"]["eval/loss"] < summary["eval_before"]["eval/loss"]
    theirs = dict(other.named_parameters())
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, theirs[name], atol=2e-5, rtol=1e-4, msg=name)


def test_other_pixels_give_another_loss(tmp_path):
    images = rows_for(LLAVA)
    rows = ShuffledRows(load(tmp_path, images, row(0), row(1)), seed=0, shuffle=False)
    one, other = (collate_rows(rows, [number], images=images) for number in (0, 1))
    assert torch.equal(one.tokens, other.tokens)
    assert one.images.digests != other.images.digests


def test_a_dry_run_measures_rows_with_their_images(tmp_path):
    report = dry_run(load_config(None, settings(tmp_path)))
    assert report.facts["tried"]["rows"]["train_dataset"]["longest"] == 15
    assert "train_dataset: 7 images with 4 tokens each in the mean, 4 at most" in report.facts["notes"]
    text = load_config(None, settings(tmp_path, **{"images.max_file_bytes": 10}))
    with pytest.raises(ConfigError, match=r"images\[0\]: a file of \d+ bytes, at most 10 are decoded"):
        dry_run(text)


CHATML = (
    "{% for m in messages %}{{ m.role[0] | upper }}{{ m.content }}+{% endfor %}"
    "{% if add_generation_prompt %}A{% endif %}"
)


@pytest.mark.parametrize("config", MODELS.values(), ids=lambda config: config["model_type"])
def test_conversations_learn_every_answer_and_no_placeholder(tmp_path, config):
    tokenizer = load_tokenizer("characters:0123456789?+UA")
    tokenizer.chat_template = CHATML
    chat = [("user", "<image>2?"), ("assistant", "7"), ("user", "<image><image>?"), ("assistant", "12")]
    messages = [{"role": role, "content": content} for role, content in chat]
    files = [file_of(seed, (20 + 8 * seed, 30)) for seed in range(3)]
    (tmp_path / "train.jsonl").write_text(json.dumps({"messages": messages, "images": files}) + "\n")
    images = rows_for(config)
    dataset = load_dataset(
        DatasetConfig(name="jsonl", path=str(tmp_path / "train.jsonl")),
        tokenizer,
        kind="sft",
        place_images=images.place,
    )
    row = dataset[0]
    ((one, two, three),) = images.refs([row], ["row 0"])
    assert [ref.image.digest for ref in (one, two, three)] == [
        ref.image.digest for ref in asyncio.run(_prompt(config, tokenizer, messages[:3], files))
    ]
    vision, ids, mask = images.vision, row["input_ids"], row["loss_mask"]
    for ref in (one, two, three):
        assert set(ids[ref.start : ref.end]) == {vision.placeholder}
        assert not any(mask[ref.start : ref.end])
        assert ref.length == vision.num_placeholders(ref.image.height, ref.image.width)
    answers = [token for token, learned in zip(ids, mask, strict=True) if learned]
    # The template ends a turn with "+", no control token, so that the end of the sequence is added to the last one.
    assert answers == [*tokenizer.encode("7+12+"), tokenizer.eos_token_id]


async def _prompt(config, tokenizer, messages, files):
    prompts = PixelPrompts(tokenizer, processor=config, limits=ImageLimits(), enable_thinking=False)
    _, refs, _ = await prompts.read({"messages": messages, "images": files})
    return refs


def prompts(folder, config, *rows, **options):
    """RL rows as a run with `vision_rlvr` loads them."""
    chosen = DatasetConfig(name="jsonl", path=written(folder, *rows), **options)
    place = prompt_images_of({"processor": config}, TOKENIZER)
    return load_dataset(chosen, TOKENIZER, kind="rl", place_images=place)


@pytest.mark.sample(1)
@pytest.mark.parametrize("config", MODELS.values(), ids=lambda config: config["model_type"])
def test_prompts_are_measured_with_the_placeholders_that_their_episodes_have(tmp_path, caplog, config):
    rows = [row(0), row(), row(1, 2), {**row(0), "images": [base64.b64encode(b"<svg/>").decode()]}]
    reader = PixelPrompts(TOKENIZER, processor=config, limits=ImageLimits(), enable_thinking=False)
    asked = [asyncio.run(reader.read({"messages": each["prompt"], "images": each["images"]})) for each in rows[:3]]
    lengths = [len(ids) for ids, _, _ in asked]
    assert lengths[1] == 4 < lengths[0] < lengths[2]
    # A file that cannot be used is measured as text: the fault of its episode says what is wrong.
    assert origins_of(prompts(tmp_path, config, *rows)).lengths == [*lengths, 4]
    exact = prompts(tmp_path, config, *rows, max_length=lengths[2])
    assert len(exact) == 4
    for overlong in ("filter", "truncate"):
        caplog.clear()
        kept = prompts(tmp_path, config, *rows, max_length=lengths[2] - 1, overlong=overlong)
        assert len(kept) == 3
        assert f"dropped 1 of 4 rows with more than {lengths[2] - 1} tokens" in caplog.text
        assert ("not shortened since that would cut images" in caplog.text) == (overlong == "truncate")
    with pytest.raises(DataError, match=rf"line 3\) has {lengths[2]}"):
        prompts(tmp_path, config, *rows, max_length=lengths[2] - 1, overlong="error")


def test_rows_of_a_loader_of_ones_own_are_measured_without_their_marks():
    rows = [{"messages": "2<image>+5?", "images": row(0)["images"]}, {"messages": "2+5?", "images": []}]
    reader = PixelPrompts(TOKENIZER, processor=QWEN3_VL, limits=ImageLimits(), enable_thinking=False)
    asked, _, _ = asyncio.run(reader.read(rows[0]))
    measured = prompt_images_of({"processor": QWEN3_VL}, TOKENIZER)(Dataset.from_list(rows), "dataset mine")
    assert origins_of(measured).lengths == [len(asked), 4]


def test_a_limit_on_pixels_shortens_prompts(tmp_path):
    data = DatasetConfig(name="jsonl", path=written(tmp_path, row(0)))
    found = []
    for options in ({"processor": QWEN3_VL}, {"processor": QWEN3_VL, "max_pixels": 256}):
        place = prompt_images_of(options, TOKENIZER)
        found += origins_of(load_dataset(data, TOKENIZER, kind="rl", place_images=place)).lengths
    assert found[1] < found[0]
    assert prompt_images_of({}, TOKENIZER) is None
    assert prompt_images_of({"processor": {"model_type": "qwen3"}}, TOKENIZER) is None


def test_a_dry_run_of_reinforcement_learning_counts_placeholders(tmp_path):
    chosen = {"kind": "rl", "output_dir": str(tmp_path / "run"), "total_train_steps": 1, "model.init": QWEN3_VL,
              "model.implementation": "transformers", "model.tokenizer_path": CHARACTERS, "reward": "exact",
              "train_dataset.name": "jsonl", "train_dataset.path": written(tmp_path, row(0), row()),
              "workflow": "vision_rlvr", "workflow_options.processor": QWEN3_VL, "engine.max_seq_len": 15,
              "gconfig.max_new_tokens": 5, "actor.device": "cpu"}  # fmt: skip
    report = dry_run(load_config(None, [f"{key}={json.dumps(value)}" for key, value in chosen.items()]))
    facts = report.facts["tried"]["rows"]["train_dataset"]
    assert facts["longest"] == 14
    assert (facts["read"], facts["used"], facts["too_long"]) == (2, 1, 1)
