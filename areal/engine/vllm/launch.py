"""Prepares the files that a vLLM server needs, and the command of each start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.engine.server.plugin import write_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.engine.config import ServerEngineConfig, VLLMConfig

MODULES: Final = (
    "areal.engine.server.adapters",
    "areal.engine.server.changes",
    "areal.engine.server.receiver",
    "areal.engine.vllm.worker",
    "areal.utils.process_groups",
    "areal.utils.tensors",
)
"""Closed under imports: each imports only others of this list, the standard library, torch, safetensors and vllm."""
EXTENSION: Final = "areal.engine.vllm.worker.WorkerExtension"
MODULE: Final = "vllm.entrypoints.openai.api_server"
MODEL_NAME: Final = "policy"
_CPU_ENVIRONMENT: Final = {
    # Compiling two functions of the sampler takes 17 s at the first request, and gains nothing.
    "TORCHDYNAMO_DISABLE": "1",
    # Its kernels are in Triton, which has to be interpreted on CPUs.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


def prepare(
    config: VLLMConfig,
    servers: ServerEngineConfig,
    *,
    folder: Path,
    model_config: Mapping[str, Any],
    tokenizer: Any = None,
    processor: Path | None = None,
    context: int,
    on_cpu: bool,
    records_routes: bool = False,
) -> Callable[[int, int], tuple[list[str], dict[str, str]]]:
    """Write model folder and plugin below `folder`; returns (server index, port) -> (argv, environment).

    The model folder has no weights: a server starts with random ones and receives the real ones before its first
    request, like every later version. model_config: content of config.json. processor: folder with the settings of the
    image processor, for a model that reads images, which needs its tokenizer too. records_routes: whether servers tell
    the experts that routers choose. Raises ConfigError without a vLLM environment, for an image model without either,
    and for quantization on CPUs.
    """
    check_environment(config)
    if on_cpu and servers.quantization != "none":
        raise ConfigError(
            f"servers.quantization is {servers.quantization!r}, which vLLM computes on GPUs only, and there is none",
            where="servers.quantization",
            fix="set it to none here",
        )
    model = folder.absolute() / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(dict(model_config), indent=2) + "\n", encoding="utf-8")
    if processor is not None:
        _write_processor(model, processor, tokenizer)
    elif config.api == "completions" and tokenizer is not None:
        tokenizer.save_pretrained(model)
    plugin = write_plugin(folder.absolute() / "vllm-plugin", MODULES)

    def command(index: int, port: int) -> tuple[list[str], dict[str, str]]:
        return (
            arguments(
                config,
                servers,
                model=model,
                port=port,
                context=context,
                on_cpu=on_cpu,
                reads_images=processor is not None,
                records_routes=records_routes,
            ),
            environment(config, servers, plugin=plugin, index=index, on_cpu=on_cpu, records_routes=records_routes),
        )

    return command


def _write_processor(model: Path, processor: Path, tokenizer: Any) -> None:
    """Copy the settings of the image processor, and save the tokenizer, into a model folder."""
    files = [file for file in sorted(processor.glob("*processor_config.json")) if file.is_file()]
    if not files or tokenizer is None:
        what = "no tokenizer" if files else f"no preprocessor_config.json in {processor}"
        raise ConfigError(f"vLLM servers of a model that reads images need its processor: {what}")
    tokenizer.save_pretrained(model)
    for file in files:
        shutil.copyfile(file, model / file.name)


def check_environment(config: VLLMConfig) -> None:
    """Raise ConfigError that names the set-up command when `config.python` does not exist."""
    if shutil.which(config.python) is None and not Path(config.python).is_file():
        raise ConfigError(
            f"vllm.python is {config.python!r}, which does not exist: run `bash scripts/setup_vllm.sh`, or "
            f"give the python of an environment that has vLLM"
        )


def arguments(
    config: VLLMConfig,
    servers: ServerEngineConfig,
    *,
    model: Path,
    port: int,
    context: int,
    on_cpu: bool,
    reads_images: bool = False,
    records_routes: bool = False,
) -> list[str]:
    """Return argv of one server. model: checkpoint folder with config.json. context: longest sequence. reads_images:
    whether the folder has an image processor. records_routes: see `prepare`."""
    command = [
        str(Path(config.python).absolute()) if "/" in config.python else config.python,
        "-m",
        MODULE,
        *("--model", str(model), "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy"),  # weights come by the transfer
        *("--dtype", servers.dtype, "--max-model-len", str(context), "--max-num-seqs", str(servers.max_concurrent)),
        *("--tensor-parallel-size", str(config.tensor_parallel_size)),
        # Log-probabilities of the distribution that was sampled from: after temperature and filters, renormalised.
        *("--logprobs-mode", "processed_logprobs"),
        *("--worker-extension-cls", EXTENSION),
        *("--uvicorn-log-level", "warning", "--disable-log-stats"),
    ]
    if config.api != "completions":
        # Token ids in, token ids out: no server needs a tokenizer, and none can re-tokenise.
        command.append("--enable-scale-out")
        # vLLM's image processors cannot be built without one; they are given token ids all the same.
        command += [] if reads_images else ["--skip-tokenizer-init"]
    if reads_images:
        # Memory is set aside for the largest film otherwise.
        command += ["--limit-mm-per-prompt", json.dumps({"video": 0})]
        # Else pixels are normalised in the model, by buffers that its random weights overwrite and no checkpoint brings
        # back. These are also read from the file alone, without the defaults of transformers.
        command.append("--no-mm-device-do-normalize")
    if config.enforce_eager or on_cpu or servers.parity:
        command.append("--enforce-eager")
    if not config.prefix_caching or servers.parity:
        command.append("--no-enable-prefix-caching")
    if servers.quantization == "fp8":
        # What vLLM does to 16-bit weights as they are loaded, and to each version that is loaded later.
        command += ["--quantization", "fp8"]
    if records_routes:
        command.append("--enable-return-routed-experts")
    if servers.sleep_level:
        command.append("--enable-sleep-mode")
    if servers.max_adapters:
        # Twice: what was replaced stays until its last request has ended.
        slots = str(2 * servers.max_adapters)
        command += ["--enable-lora", "--max-loras", slots, "--max-cpu-loras", slots]
        command += ["--max-lora-rank", str(servers.max_adapter_rank)]
    if on_cpu:
        # A request with a seed whose prompt is cut in two ends the server: generators of CPUs cannot be wound back.
        command.append("--no-enable-chunked-prefill")
    else:
        command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
    return [*command, *config.extra_arguments]


def environment(
    config: VLLMConfig,
    servers: ServerEngineConfig,
    *,
    plugin: Path,
    index: int,
    on_cpu: bool,
    records_routes: bool = False,
) -> dict[str, str]:
    """Return the environment variables of server number `index`. plugin: folder made by `write_plugin`. records_routes:
    see `prepare`."""
    variables = {
        "VLLM_SERVER_DEV_MODE": "1",  # pause, resume and calls of worker methods are development endpoints
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(plugin),
    }
    if servers.max_adapters:
        variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if on_cpu:
        variables |= _CPU_ENVIRONMENT | {"VLLM_CPU_KVCACHE_SPACE": str(config.cpu_cache_gb)}
        if config.cpu_cores:
            variables["VLLM_CPU_OMP_THREADS_BIND"] = config.cpu_cores
    elif servers.parity:
        variables["VLLM_BATCH_INVARIANT"] = "1"
    if records_routes:
        variables["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # the only one that records them
    if config.visible_devices:
        variables["CUDA_VISIBLE_DEVICES"] = config.visible_devices[index % len(config.visible_devices)]
    return variables | config.environment
