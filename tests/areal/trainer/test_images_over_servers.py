"""Image-text models over vLLM servers: what a server is started with, what is refused, and a run that samples there."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path

import pytest
import runs

from areal.api import ConfigError
from areal.dataset.encoding import load_tokenizer
from areal.engine.config import ServerEngineConfig, TrainEngineConfig, VLLMConfig
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.engine.vllm.launch import prepare
from areal.infra.metrics.logger import read_metrics
from areal.trainer.server_command import commands_of
from areal.trainer.server_weights import served_model
from tests.support.vision import LLAVA, QWEN3_VL, encoded, noise

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("program", ROOT / "tests/areal/engine/contract/vllm_program.py")
program = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(program)
PROCESSOR = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 8},
             "crop_size": {"height": 8, "width": 8}}  # fmt: skip
TOKENIZER = load_tokenizer("characters:0123456789?+")


@pytest.fixture
def checkpoint(tmp_path):
    """A LLaVA of random weights with its image processor and tokenizer."""
    folder = tmp_path / "checkpoint"
    engine = TrainingEngine(loading.from_config(LLAVA, seed=3), config=TrainEngineConfig(device="cpu"))
    engine.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def settings(folder, checkpoint, **changes):
    rows = [
        {
            "messages": "<image>?",
            "images": [base64.b64encode(encoded(noise(9, 9, seed=seed))).decode()],
            "answer": str(seed),
        }
        for seed in range(8)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return runs.tiny(
        folder / "run",
        **{
            "model__init": {}, "model__path": str(checkpoint), "model__implementation": "transformers",
            "model__tokenizer_path": "", "train_dataset__path": str(folder / "rows.jsonl"), "total_train_steps": 2,
            "workflow": "vision_rlvr", "workflow_options__processor": str(checkpoint), "rollout__engine": "vllm",
            "rollout__batch_size": 2, "rollout__group_size": 2, "rollout__max_retries": 20, "engine__max_seq_len": 64,
            "servers__dtype": "float32", "servers__num_servers": 1, "servers__max_seq_len": 64,
            "supervisor__poll_seconds": 0.2, "objective__prox_logp": "recompute", "gconfig__max_new_tokens": 3,
            "actor__vision__train": "all", **changes,
        },
    )  # fmt: skip


def test_a_server_gets_the_image_processor_of_the_checkpoint_and_a_tokenizer(tmp_path, checkpoint):
    config = settings(tmp_path, checkpoint)
    model = served_model(config.model, dtype="float32", max_seq_len=64)
    assert model.content["architectures"] == ["LlavaForConditionalGeneration"]
    assert model.context == 64
    command = prepare(
        VLLMConfig(python=str(program.write_python(tmp_path / "python"))),
        ServerEngineConfig(dtype="float32"),
        folder=tmp_path / "server",
        model_config=model.content,
        tokenizer=TOKENIZER,
        processor=model.processor,
        context=model.context,
        on_cpu=True,
    )
    arguments, _ = command(0, 1234)
    assert "--skip-tokenizer-init" not in arguments
    assert arguments[arguments.index("--limit-mm-per-prompt") + 1] == '{"video": 0}'
    assert "--no-mm-device-do-normalize" in arguments
    folder = tmp_path / "server" / "model"
    assert json.loads((folder / "preprocessor_config.json").read_text()) == PROCESSOR
    assert load_tokenizer(str(folder)).encode("2+5?") == TOKENIZER.encode("2+5?")


def test_what_servers_cannot_do_with_images_is_refused(tmp_path, checkpoint):
    without = settings(tmp_path, checkpoint, model__path="", model__init=QWEN3_VL)
    with pytest.raises(ConfigError, match="settings of an image processor from a checkpoint"):
        served_model(without.model, dtype="float32", max_seq_len=64)
    config = settings(tmp_path, checkpoint, rollout__engine="sglang")
    model = served_model(config.model, dtype="float32", max_seq_len=64)
    with pytest.raises(ConfigError, match="SGLang does not say which prompt it makes of images"):
        commands_of(config, model, tokenizer=TOKENIZER, folder=tmp_path / "servers")
    (checkpoint / "preprocessor_config.json").unlink()
    config = settings(tmp_path, checkpoint, vllm__python=str(program.write_python(tmp_path / "python")))
    with pytest.raises(ConfigError, match=r"no preprocessor_config\.json"):
        commands_of(config, model, tokenizer=TOKENIZER, folder=tmp_path / "servers")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_run_samples_on_servers_what_it_trains_on(tmp_path, checkpoint):
    python = program.write_python(tmp_path / "environment" / "python")
    runs.train(settings(tmp_path, checkpoint, vllm__python=str(python)))
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    # The second step samples with weights, those of the tower included, that the first one has changed.
    assert [row["mismatch/abs_max"] < 1e-5 for row in steps.values() if "mismatch/abs_max" in row] == [True, True]
    assert len(list((tmp_path / "run" / "pictures").iterdir())) >= 2
