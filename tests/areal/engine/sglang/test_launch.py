"""What an SGLang server is started with: arguments, variables and the folder avoid traps of the real program."""

from __future__ import annotations

import json
import sys

import pytest

from areal.api import ConfigError
from areal.engine.config import ServerEngineConfig, SGLangConfig
from areal.engine.sglang.launch import prepare

CONTENT = {"model_type": "qwen3", "max_position_embeddings": 64, "eos_token_id": 1}


def launch(folder, *, on_cpu=True, servers=None, records_routes=False, **options):
    """Arguments as a dict of options, and variables, of the second server."""
    command = prepare(
        SGLangConfig(python=sys.executable, **options),
        servers or ServerEngineConfig(max_concurrent=4),
        folder=folder,
        model_config=CONTENT,
        context=64,
        on_cpu=on_cpu,
        records_routes=records_routes,
    )
    arguments, variables = command(1, 8123)
    return arguments, variables


def value(arguments, name):
    return arguments[arguments.index(name) + 1]


def test_without_sglang_the_message_says_how_to_get_it(tmp_path):
    with pytest.raises(ConfigError, match=r"bash scripts/setup_sglang\.sh"):
        prepare(
            SGLangConfig(python="no-such-folder/bin/python"), ServerEngineConfig(), folder=tmp_path,
            model_config=CONTENT, context=64, on_cpu=True,
        )  # fmt: skip


def test_what_cpus_cannot_do_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match=r"sglang\.deterministic"):
        launch(tmp_path, deterministic=True)
    arguments, _ = launch(tmp_path, on_cpu=False, deterministic=True)
    assert "--enable-deterministic-inference" in arguments
    with pytest.raises(ConfigError, match=r"actor\.router_replay"):
        launch(tmp_path, records_routes=True)
    arguments, _ = launch(tmp_path, on_cpu=False, records_routes=True)
    assert "--enable-return-routed-experts" in arguments
    parity, _ = launch(tmp_path, servers=ServerEngineConfig(parity=True))
    assert "--enable-deterministic-inference" not in parity
    assert "--disable-radix-cache" in parity


def test_weights_that_arrive_later_would_not_be_rounded(tmp_path):
    with pytest.raises(ConfigError, match="SGLang quantizes weights only when it starts") as found:
        launch(tmp_path, on_cpu=False, servers=ServerEngineConfig(quantization="fp8"))
    assert "rollout.engine to vllm" in found.value.fix


def test_the_model_folder_has_no_stop_tokens_of_its_own(tmp_path):
    arguments, _ = launch(tmp_path)
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert value(arguments, "--model-path") == str(tmp_path / "model")
    assert written == CONTENT | {"eos_token_id": None}


def test_an_answer_can_fill_the_context_and_memory_holds_as_many_as_are_decoded_together(tmp_path):
    arguments, variables = launch(tmp_path)
    assert int(value(arguments, "--context-length")) >= 64 + 2
    assert variables["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    assert 4 * 64 <= int(value(arguments, "--max-total-tokens")) <= 8 * 64
    on_gpu, _ = launch(tmp_path, on_cpu=False)
    assert "--max-total-tokens" not in on_gpu


def test_health_asks_for_no_token_and_log_probabilities_are_those_of_the_sampled(tmp_path):
    _, variables = launch(tmp_path, environment={"HF_HUB_OFFLINE": "0"}, visible_devices=("1", "2,3"))
    assert variables["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] == "0"
    assert variables["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "0"
    # The user's own win; devices go round.
    assert variables["HF_HUB_OFFLINE"] == "0"
    assert variables["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_its_workers_find_our_loader(tmp_path):
    arguments, variables = launch(tmp_path)
    assert value(arguments, "--custom-weight-loader") == "areal.engine.sglang.worker.load"
    assert (tmp_path / "sglang-plugin" / "areal" / "engine" / "sglang" / "worker.py").is_file()
    assert variables["PYTHONPATH"] == str(tmp_path / "sglang-plugin")


def test_own_arguments_come_last_so_that_they_win(tmp_path):
    arguments, _ = launch(tmp_path, extra_arguments=("--stream-interval", "7"))
    assert arguments[-2:] == ["--stream-interval", "7"]
