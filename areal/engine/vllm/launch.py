"""Prepares the files that a vLLM server needs, and the command of each start."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from areal.engine.vllm.command import arguments, check_environment, environment
from areal.engine.vllm.plugin import write_plugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from areal.engine.config import ServerEngineConfig, VLLMConfig


def prepare(
    config: VLLMConfig,
    servers: ServerEngineConfig,
    *,
    folder: Path,
    model_config: Mapping[str, Any],
    tokenizer: Any = None,
    context: int,
    on_cpu: bool,
) -> Callable[[int, int], tuple[list[str], dict[str, str]]]:
    """Write model folder and plugin below `folder`; returns (server index, port) -> (argv, environment).

    The model folder has no weights: a server starts with random ones and receives the real ones before its first
    request, like every later version. model_config: content of config.json. Raises ConfigError without a vLLM
    environment.
    """
    check_environment(config)
    model = folder.absolute() / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text(json.dumps(dict(model_config), indent=2) + "\n", encoding="utf-8")
    if config.api == "completions" and tokenizer is not None:
        tokenizer.save_pretrained(model)
    plugin = write_plugin(folder.absolute() / "vllm-plugin")

    def command(index: int, port: int) -> tuple[list[str], dict[str, str]]:
        return (
            arguments(config, servers, model=model, port=port, context=context, on_cpu=on_cpu),
            environment(config, servers, plugin=plugin, index=index, on_cpu=on_cpu),
        )

    return command
