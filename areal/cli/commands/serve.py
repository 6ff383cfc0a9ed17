"""Start one inference server as a configuration says, for trainers that name its address in servers.addresses, or
find it in the directory that is named in servers.directory.

examples:
  areal serve run.yaml --port 8000
  areal serve run.yaml --host 0.0.0.0 --port 8000 --ready-file server.json
  areal serve run.yaml --dry-run --json

CONFIG is the configuration of the training run; the server gets its model (without weights, which come from the
trainer), its dtype and lengths, and everything under `vllm`. Run it where the GPUs are, once per server; it needs that
machine's vLLM environment (vllm.python) and no trainer. SIGTERM and Ctrl-C end the server with supervisor.grace_seconds
of grace, and nothing of it outlives this command. A server that dies is not started again (exit code 1): started again
by hand, it is taken in by the trainer as a new one.

With servers.directory, the server announces itself once it is ready. SIGTERM then first drains it: trainers send no
further requests and let it go when theirs are done, or after servers.drain_seconds.

Whoever reaches the port controls the server: --host opens it to a network, which has to be a trusted one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.cli.output import CommandReport

if TYPE_CHECKING:
    import argparse

    from areal.infra.supervisor.standalone import StandaloneAddress
    from areal.infra.supervisor.supervisor import ServerCommand
    from areal.trainer.config import PPOConfig


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal serve`."""
    parser.add_argument("config", metavar="CONFIG.yaml", type=Path, help="configuration of `areal train`")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="change one value of it; the last one wins")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 for all (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port to listen at (default: a free one)")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="which of vllm.visible_devices it gets (0)")
    parser.add_argument("--name", default="", help="in the directory (default: ADDRESS-PORT)")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="for its files and log (default: serve/PORT in the run directory)"
    )
    parser.add_argument("--ready-file", type=Path, metavar="FILE", help="gets the address as JSON once it is ready")
    parser.add_argument("--dry-run", action="store_true", help="say what would be started, and stop")


def run(arguments: argparse.Namespace) -> CommandReport:
    """Start it and wait for its end."""
    from areal.api import UsageError
    from areal.infra.supervisor.process import free_port
    from areal.infra.supervisor.standalone import check_port
    from areal.trainer.config import PPOConfig
    from areal.trainer.configuration import source

    # Reward, rows and tokenizer are the trainer's: they need not be on this machine, and are not looked for.
    config = source.load_config(arguments.config, list(arguments.overrides)).config
    if not isinstance(config, PPOConfig) or config.rollout.engine != "vllm":
        raise UsageError(
            f"{arguments.config} uses no vLLM servers, and this starts no others; set kind=rl and rollout.engine=vllm"
        )
    if arguments.port:
        check_port(arguments.host, arguments.port)
    port = arguments.port or free_port(arguments.host)
    folder = (arguments.folder or config.directory / "serve" / str(port)).absolute()
    if arguments.dry_run:
        return _describe(config, arguments, port, folder)
    return _serve(config, arguments, port, folder)


def _command(config: PPOConfig, arguments: argparse.Namespace, port: int, folder: Path) -> ServerCommand:
    from areal.dataset.encoding import load_tokenizer
    from areal.trainer.server_command import commands_of
    from areal.trainer.server_weights import served_model

    model = served_model(config.model, dtype=config.servers.dtype, max_seq_len=config.servers.max_seq_len)
    tokenizer = (
        load_tokenizer(config.model.tokenizer_path or config.model.path) if config.vllm.api == "completions" else None
    )
    command = commands_of(
        config,
        model,
        tokenizer=tokenizer,
        folder=folder,
        host=arguments.host,
        records_routes=config.actor.router_replay,
    )
    return command(arguments.index, port)


def _describe(config: PPOConfig, arguments: argparse.Namespace, port: int, folder: Path) -> CommandReport:
    import shlex
    import tempfile

    from areal.infra.supervisor.standalone import url_of

    with tempfile.TemporaryDirectory() as scratch:
        command = _command(config, arguments, port, Path(scratch))
        # Nothing is left where the files would be.
        words = [str(word).replace(scratch, str(folder)) for word in command.arguments]
        variables = {key: value.replace(scratch, str(folder)) for key, value in command.environment.items()}
    url = url_of(arguments.host, port)
    text = "\n".join(
        [f"would start a server at {url}, with files in {folder}:", *(f"{k}={shlex.quote(v)} \\" for k, v in
         sorted(variables.items())), shlex.join(words)]
    )  # fmt: skip
    facts: dict[str, Any] = {"url": url, "folder": str(folder), "arguments": words, "environment": variables}
    return CommandReport(text=text, data=facts)


def _serve(config: PPOConfig, arguments: argparse.Namespace, port: int, folder: Path) -> CommandReport:
    from areal.engine.server.client import is_healthy
    from areal.infra.checkpoint.run_control import StopRequest
    from areal.infra.supervisor.standalone import serve
    from areal.trainer.announcing import Announced
    from areal.trainer.device_starts import start_on_device

    announced = Announced(config.servers, arguments.name)

    def announce(standing: StandaloneAddress) -> None:
        name = announced.join(standing.url, standing.incarnation)
        how = f"announced as {name}" if name else "servers.addresses takes this address"
        sys.stderr.write(
            f"serving at {standing.url} (incarnation {standing.incarnation}); {how}. Log: {standing.log}\n"
        )
        sys.stderr.flush()
        if arguments.ready_file is not None:
            standing.write(arguments.ready_file)

    try:
        with StopRequest() as stop, announced:
            standing = serve(
                _command(config, arguments, port, folder),
                host=arguments.host,
                port=port,
                health=is_healthy,
                config=config.supervisor,
                log_folder=folder,
                stop=stop,
                on_ready=announce,
                on_stop=lambda standing: announced.drain(standing.url),
                reached_at=announced.reached_at(arguments.host),
                device=start_on_device(config, folder),
            )
    finally:
        if arguments.ready_file is not None:
            arguments.ready_file.unlink(missing_ok=True)
    facts = {"url": standing.url, "incarnation": standing.incarnation, "log": standing.log}
    return CommandReport(text=f"the server at {standing.url} has been ended", data=facts, exit_code=stop.exit_code)
