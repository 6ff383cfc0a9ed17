"""What an SGLang server needs on disk before it starts, and the command for each start."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.engine.server.config import ServerEngineConfig
    from areal.engine.sglang.config import SGLangConfig

MODULE: Final = "sglang.launch_server"


def prepare(
    config: SGLangConfig,
    servers: ServerEngineConfig,
    *,
    folder: Path,
    model_config: Mapping[str, Any],
    context: int,
    on_cpu: bool,
) -> Callable[[int, int], tuple[list[str], dict[str, str]]]:
    """Write the model folder below `folder`; returns (server index, port) -> (argv, environment).

    The model folder has no weights: a server starts with random ones, and gets the real ones as it gets all others,
    before its first request. Raises ConfigError without an SGLang environment.
    """
    if shutil.which(config.python) is None and not Path(config.python).is_file():
        raise ConfigError(
            f"sglang.python is {config.python!r}, but there is no such interpreter: give the python of an environment "
            f"that has SGLang"
        )
    model = folder.absolute() / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(dict(model_config), indent=2) + "\n", encoding="utf-8")

    def command(index: int, port: int) -> tuple[list[str], dict[str, str]]:
        arguments = _arguments(config, servers, model=model, port=port, context=context, on_cpu=on_cpu)
        variables = {"HF_HUB_OFFLINE": "1"}
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
        *("--dtype", servers.dtype, "--context-length", str(context)),
        *("--max-running-requests", str(servers.max_concurrent)),
        *("--tp-size", str(config.tensor_parallel_size), "--mem-fraction-static", str(config.memory_fraction)),
        *("--stream-interval", str(servers.stream_interval)),
        *("--skip-tokenizer-init", "--log-level", "warning"),
    ]
    if backend:
        command += ["--attention-backend", backend]
    if on_cpu:
        command += ["--device", "cpu", "--sampling-backend", "pytorch", "--disable-overlap-schedule"]
    if config.deterministic or servers.parity:
        command.append("--enable-deterministic-inference")
    if servers.parity:
        command.append("--disable-radix-cache")
    return [*command, *config.extra_arguments]
