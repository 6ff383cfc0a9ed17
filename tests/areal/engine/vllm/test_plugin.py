"""What goes into vLLM's environment is small, complete, and imports nothing that is not there."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from areal.api import ConfigError
from areal.engine.config import ServerEngineConfig, VLLMConfig
from areal.engine.server.plugin import write_plugin
from areal.engine.sglang.launch import MODULES as SGLANG_MODULES
from areal.engine.vllm.launch import MODULES, arguments, check_environment, environment, prepare

ALLOWED = {*sys.stdlib_module_names, "torch", "safetensors", "vllm"}


@pytest.mark.parametrize("modules", [MODULES, SGLANG_MODULES], ids=["vllm", "sglang"])
def test_the_copied_modules_import_only_each_other_and_what_servers_have(tmp_path, modules):
    folder = write_plugin(tmp_path / "plugin", modules)
    for name in modules:
        tree = ast.parse(folder.joinpath(*name.split(".")).with_suffix(".py").read_text())
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module]
            for module in modules:
                assert module in modules or module.split(".")[0] in ALLOWED, f"{name} imports {module}"


@pytest.mark.exhaustive
def test_the_copy_works_where_this_package_is_not_installed(tmp_path):
    folder = write_plugin(tmp_path / "plugin", MODULES)
    code = (
        "import areal, areal.engine.vllm.worker as worker, areal.utils.tensors;"
        f"assert areal.__file__.startswith({str(folder)!r}), areal.__file__;"
        "print(worker.WorkerExtension.areal_stage.__name__)"
    )
    variables = {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "areal_stage", done.stderr


def test_writing_it_again_replaces_an_older_copy(tmp_path):
    folder = write_plugin(tmp_path / "plugin", MODULES)
    (folder / "areal" / "leftover.py").write_text("")
    write_plugin(folder, MODULES)
    assert not (folder / "areal" / "leftover.py").exists()


def test_every_method_of_the_extension_has_a_name_of_its_own():
    from areal.engine.vllm.worker import WorkerExtension

    names = [name for name in vars(WorkerExtension) if not name.startswith("__")]
    assert names
    assert all(name.lstrip("_").startswith("areal_") for name in names)


def command(tmp_path, config=None, servers=None, **options):
    options = {"model": tmp_path, "port": 8000, "context": 64, "on_cpu": True} | options
    return arguments(config or VLLMConfig(), servers or ServerEngineConfig(), **options)


def test_log_probabilities_are_asked_for_after_all_filters(tmp_path):
    line = command(tmp_path)
    assert line[line.index("--logprobs-mode") + 1] == "processed_logprobs"


def test_on_cpus_no_prompt_is_cut_for_seeded_requests_would_end_the_server(tmp_path):
    assert "--no-enable-chunked-prefill" in command(tmp_path, on_cpu=True)
    assert "--no-enable-chunked-prefill" not in command(tmp_path, on_cpu=False)


def test_rounded_weights_are_vllms_own_and_for_gpus(tmp_path):
    servers = ServerEngineConfig(quantization="fp8")
    line = command(tmp_path, servers=servers, on_cpu=False)
    assert line[line.index("--quantization") + 1] == "fp8"
    assert line[line.index("--dtype") + 1] == "bfloat16"
    assert "--quantization" not in command(tmp_path, on_cpu=False)
    assert (servers.resolved_probe_tolerance, ServerEngineConfig().resolved_probe_tolerance) == (1.0, 0.3)
    more = {"folder": tmp_path, "model_config": {}, "context": 64}
    with pytest.raises(ConfigError, match=r"servers\.quantization is 'fp8', which vLLM computes on GPUs only"):
        prepare(VLLMConfig(python=sys.executable), servers, **more, on_cpu=True)
    for exact in ({"dtype": "float32"}, {"parity": True}):
        with pytest.raises(ConfigError, match="exact numbers"):
            ServerEngineConfig(quantization="fp8", **exact)


def test_parity_mode_turns_off_what_makes_results_depend_on_other_requests(tmp_path):
    servers = ServerEngineConfig(parity=True)
    line = command(tmp_path, VLLMConfig(enforce_eager=False), servers, on_cpu=False)
    assert "--no-enable-prefix-caching" in line
    assert "--enforce-eager" in line
    variables = environment(VLLMConfig(), servers, plugin=tmp_path, index=0, on_cpu=False)
    assert variables["VLLM_BATCH_INVARIANT"] == "1"


def test_servers_get_their_devices_in_turn(tmp_path):
    config = VLLMConfig(visible_devices=("1", "2,3"))
    chosen = [
        environment(config, ServerEngineConfig(), plugin=tmp_path, index=index, on_cpu=False)["CUDA_VISIBLE_DEVICES"]
        for index in range(3)
    ]
    assert chosen == ["1", "2,3", "1"]


def test_own_arguments_come_last_so_that_they_win(tmp_path):
    line = command(tmp_path, VLLMConfig(extra_arguments=("--max-num-seqs", "7")))
    assert line[-2:] == ["--max-num-seqs", "7"]


def test_without_the_environment_the_set_up_command_is_named():
    with pytest.raises(ConfigError, match=r"bash scripts/setup_vllm\.sh"):
        check_environment(VLLMConfig(python="no-such-folder/bin/python"))
