"""How the processes of a run find each other: who leads, who follows, and the connections between them.

Ranks are told by the environment that `areal launch` and torchrun set. Nothing here knows what is trained.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import signal
import socket
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, ConfigError, EngineError
from areal.trainer.crew import Crew, follow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from areal.trainer.config import RunConfig

_MEETING_SECONDS: Final = 600.0
"""Loading torch on a busy machine is slow; what fails at its start ends the launch before."""
_INTRODUCTION_SECONDS: Final = 30.0
"""One that came and says nothing must not keep the others out."""
_KEY_BYTES: Final = 32
_RANK_BYTES: Final = 4
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""A machine that lost its power says nothing; it is missed after a minute and a half."""
_UNEXPECTED: Final = 1
_INTERRUPTED: Final = 130


def world_size() -> int | None:
    """How many processes this one was started with; None when it was started alone, by no launcher."""
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


def in_crew(config: RunConfig, lead: Callable[[Crew], dict[str, Any]]) -> dict[str, Any]:
    """What `lead` returns, on rank 0; on every other rank, once rank 0 has ended, {"rank": ..., "exit_code": ...}.

    Raises ConfigError when the number of processes does not fit the configuration.
    """
    num_processes = world_size() or 1
    check_processes(config, num_processes)
    if config.archon is None:
        return lead(Crew())
    from areal.engine.archon.processes import connected

    with connected(config.actor.device, alone=num_processes == 1):
        import torch.distributed as dist

        rank = dist.get_rank()
        if rank > 0:
            with _deaf(), _connect() as leader:
                return {"rank": rank, "exit_code": follow(leader)}
        return _lead(Crew(_accept(dist.get_world_size() - 1)), lead)


def _lead(crew: Crew, lead: Callable[[Crew], dict[str, Any]]) -> dict[str, Any]:
    """Whatever happens here, the others end with the same code: they have nothing to say of their own."""
    try:
        summary = lead(crew)
    except BaseException as error:
        code = error.exit_code if isinstance(error, ArealError) else _UNEXPECTED
        code = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else code
        crew.end(code, why=f"{type(error).__name__}: {error}")
        raise
    crew.end(int(summary.get("exit_code", 0)))
    return summary


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """SIGTERM and Ctrl-C reach all ranks, and rank 0 alone answers them: it finishes its step, saves and says so."""
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


def _accept(num_followers: int) -> list[Connection[Any, Any]]:
    """Connections to ranks 1, 2, ... on rank 0."""
    import torch.distributed as dist

    if not num_followers:
        return []
    key = secrets.token_bytes(_KEY_BYTES)
    host = os.environ["MASTER_ADDR"]
    with socket.create_server((host, 0), family=_family(host), backlog=num_followers) as server:
        dist.broadcast_object_list([(host, server.getsockname()[1], key)], src=0)
        server.settimeout(_MEETING_SECONDS)
        found: dict[int, Connection[Any, Any]] = {}
        while len(found) < num_followers:
            try:
                visitor, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(1, num_followers + 1)) - found.keys())
                raise EngineError(f"ranks {missing} did not come within {_MEETING_SECONDS:g} s") from None
            if (known := admit(visitor, key)) is not None:
                found[known[0]] = known[1]
    return [found[rank] for rank in sorted(found)]


def _connect() -> Connection[Any, Any]:
    """The connection of a follower to rank 0."""
    import torch.distributed as dist

    told: list[Any] = [None]
    dist.broadcast_object_list(told, src=0)
    host, port, key = told[0]
    try:
        return introduce(socket.create_connection((host, port), timeout=_MEETING_SECONDS), key, dist.get_rank())
    except OSError as error:
        raise EngineError(f"rank 0 is not to be reached at {host}:{port}: {error}") from error


def admit(visitor: socket.socket, key: bytes) -> tuple[int, Connection[Any, Any]] | None:
    """Rank and connection of one that came and has the key, which only processes of this run were told; None for a
    stranger, of whom nothing is unpickled."""
    visitor.settimeout(_INTRODUCTION_SECONDS)
    challenge = secrets.token_bytes(_KEY_BYTES)
    try:
        visitor.sendall(challenge)
        rank = int.from_bytes(_read(visitor, _RANK_BYTES))
        if hmac.compare_digest(_read(visitor, _KEY_BYTES), _proof(key, b"follower", challenge, rank)):
            visitor.sendall(_proof(key, b"leader", challenge, rank))
            return rank, _as_connection(visitor)
    except OSError:
        pass  # a port scanner, or a rank that died, which its launcher tells
    visitor.close()
    return None


def introduce(link: socket.socket, key: bytes, rank: int) -> Connection[Any, Any]:
    """The other side of `admit`. Raises EngineError when it is not rank 0 that listens, since that one has no key."""
    challenge = _read(link, _KEY_BYTES)
    link.sendall(rank.to_bytes(_RANK_BYTES) + _proof(key, b"follower", challenge, rank))
    try:
        known = hmac.compare_digest(_read(link, _KEY_BYTES), _proof(key, b"leader", challenge, rank))
    except ConnectionError:
        known = False
    if not known:
        link.close()
        raise EngineError("what listens at the address of rank 0 does not belong to this run")
    return _as_connection(link)


def _proof(key: bytes, role: bytes, challenge: bytes, rank: int) -> bytes:
    return hmac.digest(key, role + rank.to_bytes(_RANK_BYTES) + challenge, "sha256")


def _read(link: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = link.recv(size - len(found))
        if not part:
            raise ConnectionError("the other side ended")
        found += part
    return found


def _as_connection(link: socket.socket) -> Connection[Any, Any]:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not everywhere
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return Connection(link.detach())


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
