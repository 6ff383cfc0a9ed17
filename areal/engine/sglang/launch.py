"""Prepares the files that an SGLang server needs, and the command of each start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError
from areal.engine.server.plugin import write_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.engine.config import ServerEngineConfig, SGLangConfig

MODULES: Final = (
    "areal.engine.server.adapters",
    "areal.engine.server.changes",
    "areal.engine.server.receiver",
    "areal.engine.sglang.worker",
    "areal.utils.process_groups",
    "areal.utils.tensors",
)
"""Closed under imports: each imports only others of this list, the standard library, torch and safetensors."""
LOADER: Final = "areal.engine.sglang.worker.load"
"""Of --custom-weight-loader, and the load_format of the calls that reach it."""
MODULE: Final = "sglang.launch_server"
_VARIABLES: Final = {
    "HF_HUB_OFFLINE": "1",
    # /health would generate a token, for which it waits 20 s and then says "unhealthy" while the server is paused.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    # Else log-probabilities would be those before the temperature.
    "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
}
_SPARE: Final = 8
"""SGLang leaves the last positions of its context empty, so an answer would end too early. It is therefore configured
with a longer context than the model has, which is never used."""


def prepare(
    config: SGLangConfig,
    servers: ServerEngineConfig,
    *,
    folder: Path,
    model_config: Mapping[str, Any],
    context: int,
    on_cpu: bool,
    records_routes: bool = False,
) -> Callable[[int, int], tuple[list[str], dict[str, str]]]:
    """Write model folder and plugin below `folder`; returns (server index, port) -> (argv, environment).

    The model folder has no weights: a server starts with random ones and receives the real ones before its first
    request, like every later version. records_routes: whether servers report the experts that routers choose. Raises
    ConfigError without an SGLang environment, for quantization, and for what SGLang cannot do on CPUs.
    """
    if shutil.which(config.python) is None and not Path(config.python).is_file():
        raise ConfigError(
            f"sglang.python is {config.python!r}, which does not exist: run "
            f"`bash scripts/setup_sglang.sh`, or give the python of an environment that has SGLang"
        )
    if on_cpu and config.deterministic:
        raise ConfigError(
            "sglang.deterministic is true, but SGLang has no deterministic attention for CPUs: set it to false here"
        )
    if on_cpu and records_routes:
        raise ConfigError(
            "actor.router_replay is true, and SGLang keeps what routers choose in memory that CUDA has to know",
            where="actor.router_replay",
            fix="set it to false here, or rollout.engine to vllm",
        )
    if servers.quantization != "none":
        raise ConfigError(
            f"servers.quantization is {servers.quantization!r}, and SGLang quantizes weights only when it starts: a "
            f"later version would be loaded as it is",
            where="servers.quantization",
            fix="set it to none, or rollout.engine to vllm",
        )
    model = folder.absolute() / "model"
    model.mkdir(parents=True, exist_ok=True)
    # Each request names its stop tokens: the model's own, and what a class of models has by default, must not end any.
    content = {**model_config, "eos_token_id": None}
    (model / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    plugin = write_plugin(folder.absolute() / "sglang-plugin", MODULES)

    def command(index: int, port: int) -> tuple[list[str], dict[str, str]]:
        arguments = _arguments(config, servers, model=model, port=port, context=context, on_cpu=on_cpu)
        arguments += ["--enable-return-routed-experts"] if records_routes else []
        # Threads that wait without sleeping take the cores that others need.
        variables = _VARIABLES | {"PYTHONPATH": str(plugin)} | ({"OMP_WAIT_POLICY": "PASSIVE"} if on_cpu else {})
        if config.visible_devices:
            variables["CUDA_VISIBLE_DEVICES"] = config.visible_devices[index % len(config.visible_devices)]
        return arguments, variables | config.environment

    return command


def _arguments(
    config: SGLangConfig, servers: ServerEngineConfig, *, model: Path, port: int, context: int, on_cpu: bool
) -> list[str]:
    backend = config.attention_backend or ("torch_native" if on_cpu else "")
    command = [
        str(Path(config.python).absolute()) if "/" in config.python else config.python,
        "-m",
        MODULE,
        *("--model-path", str(model), "--load-format", "dummy"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", servers.dtype, "--context-length", str(context + _SPARE)),
        *("--max-running-requests", str(servers.max_concurrent)),
        *("--tp-size", str(config.tensor_parallel_size), "--mem-fraction-static", str(config.memory_fraction)),
        # Events with what is new: all tokens again in each would be quadratic in the length of an answer.
        *("--stream-interval", str(servers.stream_interval), "--incremental-streaming-output"),
        *("--skip-tokenizer-init", "--log-level", "warning"),
        *("--custom-weight-loader", LOADER),
    ]
    if backend:
        command += ["--attention-backend", backend]
    if on_cpu:
        command += ["--device", "cpu", "--sampling-backend", "pytorch", "--disable-overlap-schedule"]
        # Its share of the host's memory would be cleared at the start, and mostly never used.
        command += ["--max-total-tokens", str((servers.max_concurrent + 1) * (context + _SPARE))]
    elif config.deterministic or servers.parity:
        command.append("--enable-deterministic-inference")
    if servers.max_adapters:
        # Twice: what was replaced stays until its last request has ended.
        slots = str(2 * servers.max_adapters)
        command += ["--enable-lora", "--max-loras-per-batch", slots, "--max-loaded-loras", slots]
        command += ["--max-lora-rank", str(servers.max_adapter_rank), "--lora-target-modules", "all"]
    if servers.sleep_level:
        command.append("--enable-memory-saver")
    if servers.parity:
        command.append("--disable-radix-cache")
    return [*command, *config.extra_arguments]
