"""The server program a configuration names (`rollout.engine`): how it is spoken to, and what starts one server."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from areal.engine.server.adapter import ServerAdapter
    from areal.infra.supervisor.supervisor import ServerCommand
    from areal.trainer.config import PPOConfig
    from areal.trainer.server_weights import ServedModel

    Command = Callable[[int, int], tuple[list[str], dict[str, str]]]

SERVERS_FOLDER: Final = "servers"
"""In the run directory: logs and files of servers."""
SERVER_KIND: Final = "server"
"""Kind of the entries by which servers announce themselves in a directory."""


def adapter_of(config: PPOConfig, *, owner: str = "") -> ServerAdapter:
    """Speaks the program's HTTP API. owner: of servers that others may know too."""
    if config.rollout.engine == "sglang":
        from areal.engine.sglang.adapter import SGLangAdapter

        return SGLangAdapter()
    from areal.engine.vllm.adapter import VLLMAdapter

    return VLLMAdapter(api=config.vllm.api, owner=owner)


def commands_of(
    config: PPOConfig,
    model: ServedModel,
    *,
    tokenizer: Any,
    folder: Path,
    host: str = "",
    records_routes: bool = False,
) -> Callable[[int, int], ServerCommand]:
    """(index of the server, port) -> command; files that it needs are written below `folder` now.

    host: address it listens at; empty for this machine only. records_routes: whether it reports the experts that
    routers choose. Raises ConfigError when the program is not installed.
    """
    from areal.infra.supervisor.supervisor import ServerCommand

    prepare = {"vllm": _vllm, "sglang": _sglang}.get(config.rollout.engine)
    if prepare is None:
        raise ConfigError(
            f"rollout.engine is {config.rollout.engine!r}, which runs in the trainer's process; there is no server to "
            f"start. Use vllm or sglang"
        )
    command = prepare(config, model, tokenizer, folder, ("--host", host) if host else (), records_routes)

    def of(index: int, port: int) -> ServerCommand:
        arguments, environment = command(index, port)
        return ServerCommand(arguments=arguments, environment=environment)

    return of


def _vllm(
    config: PPOConfig, model: ServedModel, tokenizer: Any, folder: Path, more: tuple[str, ...], records_routes: bool
) -> Command:
    from areal.engine.vllm.launch import prepare

    return prepare(
        replace(config.vllm, extra_arguments=(*more, *config.vllm.extra_arguments)),
        config.servers,
        folder=folder,
        model_config=model.content,
        tokenizer=tokenizer,
        processor=model.processor,
        context=model.context,
        on_cpu=not _has_cuda(),
        records_routes=records_routes,
    )


def _sglang(
    config: PPOConfig, model: ServedModel, tokenizer: Any, folder: Path, more: tuple[str, ...], records_routes: bool
) -> Command:
    from areal.engine.sglang.launch import prepare

    if model.processor is not None:
        raise ConfigError(
            "SGLang does not say which prompt it makes of images, so that image-text models are not served by it",
            where="rollout.engine",
            fix="set rollout.engine to vllm or embedded",
        )
    return prepare(
        replace(config.sglang, extra_arguments=(*more, *config.sglang.extra_arguments)),
        config.servers,
        folder=folder,
        model_config=model.content,
        context=model.context,
        on_cpu=not _has_cuda(),
        records_routes=records_routes,
    )


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
