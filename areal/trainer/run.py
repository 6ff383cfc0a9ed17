"""Run a configuration: the function behind `areal train`, on rank 0 and on the ranks that serve it.

Ranks are numbered by the environment variables that `areal launch` and torchrun set. Rank 0 leads; the others serve it
over authenticated connections.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import socket
import struct
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, ConfigError, EngineError, HubError, load
from areal.trainer.config import PPOConfig
from areal.trainer.configuration.computing import keep_computing, start_computing
from areal.trainer.hub_sources import pin_sources, recorded_pins, write_pins
from areal.trainer.learner_start import LearnerStart
from areal.trainer.milestones import FINAL
from areal.trainer.rank_group import RankGroup, serve
from areal.trainer.session import open_session, view_of
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from areal.infra.metrics.live_view import LiveView
    from areal.trainer.config import RowsConfig, RunConfig


_logger = getLogger(__name__)
_CONNECT_SECONDS: Final = 600.0
"""Loading torch on a busy machine is slow; a rank that fails at its start ends the launch before."""
_AUTHENTICATE_SECONDS: Final = 30.0
"""A stranger that connects and says nothing keeps the ranks waiting this long."""
_RANK_BYTES: Final = 4
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""The end of a machine that lost its power is noticed after a minute and a half."""
_UNEXPECTED: Final = 1
_INTERRUPTED: Final = 130


def world_size() -> int | None:
    """Return how many processes this one was started with; None when it was started alone, by no launcher."""
    text = os.environ.get("WORLD_SIZE")
    return int(text) if text and text.isdecimal() else None


def check_processes(config: RunConfig, num_processes: int) -> None:
    """Raise ConfigError when `archon` does not fit the number of processes; says what to write."""
    if config.archon is None:
        if num_processes > 1:
            raise ConfigError(
                f"there are {num_processes} processes (WORLD_SIZE) and archon is null, which trains in one; write "
                f"archon.parallel.dp_shard={num_processes} to split the model over them, or start one process"
            )
        return
    try:
        config.archon.parallel.resolved(num_processes)
    except ConfigError as error:
        parallel = config.archon.parallel
        needed = f"; or start it with `areal launch --ranks {parallel.world_size} -- areal train ...`"
        raise ConfigError(f"archon.{error}{needed if parallel.dp_shard > 0 else ''}") from None


def run_on_rank_zero(config: RunConfig, lead: Callable[[RankGroup], dict[str, Any]]) -> dict[str, Any]:
    """Return what `lead` returns, on rank 0; on every other rank, once rank 0 has ended, its rank and exit code.

    Raises ConfigError when the number of processes does not fit the configuration.
    """
    num_processes = world_size() or 1
    check_processes(config, num_processes)
    if config.archon is None:
        return lead(RankGroup())
    from areal.engine.train.processes import connected

    with connected(config.actor.device, alone=num_processes == 1):
        import torch.distributed as dist

        rank = dist.get_rank()
        if rank > 0:
            with ignore_signals(), _connect_to_rank_zero() as leader:
                return {"rank": rank, "exit_code": serve(leader)}
        group = RankGroup(_accept_ranks(dist.get_world_size() - 1))
        # Whatever happens here, the other ranks end with the same code: they have nothing to report of their own.
        try:
            summary = lead(group)
        except BaseException as error:
            code = error.exit_code if isinstance(error, ArealError) else _UNEXPECTED
            code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else code
            group.end(code, reason=f"{type(error).__name__}: {error}")
            raise
        group.end(int(summary.get("exit_code", 0)))
        return summary


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore SIGTERM and Ctrl-C, which reach all ranks: rank 0 alone answers them, by finishing its step and saving."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A handler and not SIG_IGN, which programs that this one starts would inherit.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _accept_ranks(count: int) -> list[Connection[Any, Any]]:
    """Accept the connections of ranks 1 to `count` on rank 0."""
    import torch.distributed as dist

    if not count:
        return []
    key = secrets.token_bytes(32)
    host = os.environ["MASTER_ADDR"]
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((host, 0), family=family, backlog=count) as server:
        # The key reaches only processes of this run: it travels through their process group.
        dist.broadcast_object_list([(host, server.getsockname()[1], key)], src=0)
        deadline = time.monotonic() + _CONNECT_SECONDS
        found: dict[int, Connection[Any, Any]] = {}
        while len(found) < count:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                visitor, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, count + 1)) - found.keys())
                raise EngineError(f"ranks {missing} did not connect within {_CONNECT_SECONDS:g} s") from None
            if (accepted := accept_rank(visitor, key)) is not None:
                rank, found[rank] = accepted[0], accepted[1]
    return [found[rank] for rank in sorted(found)]


def _connect_to_rank_zero() -> Connection[Any, Any]:
    import torch.distributed as dist

    received: list[Any] = [None]
    dist.broadcast_object_list(received, src=0)
    host, port, key = received[0]
    try:
        link = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
    except OSError as error:
        raise EngineError(f"cannot connect to rank 0 at {host}:{port}: {error}") from error
    return join_rank_zero(link, key, dist.get_rank())


def accept_rank(visitor: socket.socket, key: bytes) -> tuple[int, Connection[Any, Any]] | None:
    """Authenticate a visitor on rank 0; returns its rank and connection, or None for one without the key.

    Both sides prove that they have the key, as `multiprocessing.connection` does; nothing is unpickled before.
    """
    connection = _as_connection(visitor, timeout=_AUTHENTICATE_SECONDS)
    try:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        rank = int.from_bytes(connection.recv_bytes(_RANK_BYTES))
    except (OSError, EOFError, AuthenticationError):
        connection.close()  # a port scanner, or a rank that died, which its launcher reports
        return None
    _set_timeout(connection, 0)
    return rank, connection


def join_rank_zero(link: socket.socket, key: bytes, rank: int) -> Connection[Any, Any]:
    """Authenticate to rank 0; the other side of `accept_rank`. Raises EngineError when it does not have the key."""
    connection = _as_connection(link, timeout=_CONNECT_SECONDS)
    try:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        connection.send_bytes(rank.to_bytes(_RANK_BYTES))
    except BlockingIOError:
        connection.close()
        raise EngineError(f"rank 0 did not answer within {_CONNECT_SECONDS:g} s") from None
    except (OSError, EOFError, AuthenticationError):
        connection.close()
        raise EngineError("the process that listens at the address of rank 0 does not belong to this run") from None
    _set_timeout(connection, 0)
    return connection


def _as_connection(link: socket.socket, *, timeout: float) -> Connection[Any, Any]:
    """timeout: seconds that one read may take."""
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not everywhere
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection: Connection[Any, Any] = Connection(link.detach())
    _set_timeout(connection, timeout)
    return connection


def _set_timeout(connection: Connection[Any, Any], seconds: float) -> None:
    """Limit each read of a connection; 0 waits without limit."""
    with socket.socket(fileno=os.dup(connection.fileno())) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(seconds), 0))


def _publish(config: RunConfig, directory: Path, step: int) -> dict[str, Any]:
    """Publish final/ and return where. Any failure is reported and loses nothing: training is done and saved."""
    from areal.hub.publishing import repository_name
    from areal.trainer.export import push_model

    name = repository_name(config.export.push_to_hub)
    try:
        done = push_model(directory, directory / FINAL, name, step=step, private=config.export.push_private)
    except Exception as error:  # noqa: BLE001 - hours of training must not end in a traceback of an upload
        private = ["--private"] if config.export.push_private else []
        command = shlex.join(["areal", "export", str(directory), "--push-to-hub", str(name), *private])
        _logger.error("the model was not published: %s; `%s` tries again", error, command)  # noqa: TRY400 - the message says it all
        return {"repo": name.repo, "error": f"{type(error).__name__}: {error}", "again": command}
    _logger.info("published %s at commit %s", done.url, done.commit)
    return {"repo": done.repo, "revision": done.revision, "commit": done.commit, "url": done.url}


ROW_TRAINERS: Final[dict[str, str]] = {
    "dpo": "areal.trainer.dpo:DPOTrainer",
    "reward_model": "areal.trainer.reward_model:RewardModelTrainer",
    "sft": "areal.trainer.sft:SFTTrainer",
}
"""Kind of run to the trainer, for those that learn from rows as they are. Strings, so that a run loads only its own."""


def run(config: PPOConfig | RowsConfig, *, restart: bool = False) -> dict[str, Any]:
    """Train as `config` says and return the summary (JSON values; see the trainers' `train`).

    Writes config.yaml, metrics.jsonl, rollouts.jsonl, checkpoints/, final/ and report.html into the run directory; what
    an earlier run left there is continued, or with `restart` moved into archived/ first. Raises FinishedError when that
    run has nothing left to do.
    With `config.archon`, this is called in every process of the run: rank 0 does all that, the others what rank 0 asks
    of them, and they return {"rank": ..., "exit_code": ...}.
    """
    with contextlib.ExitStack() as stack:
        # Before torch is loaded, which takes seconds. The other ranks have nothing to show.
        view = stack.enter_context(view_of(config)) if os.environ.get("RANK", "0") == "0" else None
        if view is not None:
            view.begin("loading torch")
        separate = None
        if isinstance(config, PPOConfig) and config.separate_learner:
            separate = stack.enter_context(LearnerStart())
        start_computing(config)
        return run_on_rank_zero(
            config, lambda group: lead(config, group, restart=restart, view=view, separate=separate)
        )


def lead(
    config: PPOConfig | RowsConfig,
    group: RankGroup,
    *,
    restart: bool = False,
    view: LiveView | None = None,
    separate: LearnerStart | None = None,
) -> dict[str, Any]:
    """Run everything, from rank 0; group: all ranks, which do what they are asked for. restart: as in `run`. view:
    shows the run already; None opens one. separate: as in `PPOTrainer`.
    """
    from areal.infra.metrics.report import write_report

    sources = pin_sources(config, {} if restart else recorded_pins(config.directory))
    config = sources.config
    with open_session(config, restart=restart, view=view) as session:
        write_pins(session.directory, sources.pins)
        if session.resumed is not None and group.num_ranks == 1:
            keep_computing(config, session.resumed.meta)
        if isinstance(config, PPOConfig):
            from areal.trainer.ppo import PPOTrainer

            with PPOTrainer(config, session, group, separate=separate) as trainer:
                summary = trainer.train()
        else:
            summary = load("trainer", config.kind, ROW_TRAINERS)(config, session, group).train()
    if config.export.push_to_hub and summary["finished"]:
        if view is not None:
            view.begin(f"publishing {config.export.push_to_hub}")
        summary["hub"] = _publish(config, session.directory, int(summary["steps"]))
        if "error" in summary["hub"]:
            summary["exit_code"] = HubError.exit_code
    summary["report"] = str(write_report(session.directory, session.directory / "report.html"))
    return summary
