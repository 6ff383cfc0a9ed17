"""Starts servers and a learner that have a device in turn (servers.sleep_learner), neither while the other has it.

Servers sleep as soon as they are ready, so that a version wakes them. A learner first puts those to sleep that an
earlier one has left awake.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from areal.api import EngineError
from areal.infra.supervisor.device_lock import OWN_DEVICE, DeviceLock, StartOnDevice
from areal.trainer.server_command import SERVER_KIND, adapter_of
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.trainer.config import PPOConfig

_logger = getLogger(__name__)
_LOCK_FILE: Final = "device.lock"
_MARGIN_SECONDS: Final = 60.0
"""For a server that hangs, until it is ended."""


def start_on_device(config: PPOConfig, folder: Path) -> StartOnDevice:
    """Return how servers of the run start. folder: of the servers' files."""
    if not config.servers.sleep_learner:
        return OWN_DEVICE
    return StartOnDevice(lock=_lock_path(config, folder), put_to_sleep=lambda url: _put_to_sleep(config, [url]))


def note_owner(config: PPOConfig, owner: str) -> None:
    """Write down, beside the lock, that servers which `owner` holds are on this device; before it holds one."""
    if config.servers.sleep_learner and config.servers.are_given:
        path = Path(config.servers.device_lock)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _owners_file(path).open("a", encoding="ascii") as file:
            file.write(f"{owner}\n")


class LearnersDevice:
    """The learner's side: it has the device alone, or has given it up. folder: of the servers' files."""

    def __init__(self, config: PPOConfig, folder: Path) -> None:
        self._config = config
        path = _lock_path(config, folder) if config.servers.sleep_learner else None
        self._lock = DeviceLock(path)
        self._learning = DeviceLock(None if path is None else path.with_name(f"{path.name}.learner"))
        """Of the only learner, as long as it lives."""

    def begin(self) -> None:
        """Take the device first, before there is a model. Raises EngineError while another learner has it.

        Servers that a learner has left which is gone need not wait until they notice.
        """
        self._learning.take(alone=True, seconds=_MARGIN_SECONDS)
        self.take()
        if self._config.servers.sleep_learner and self._config.servers.are_given:
            from areal.engine.vllm.identity import holder, release

            for url in self._given():
                with contextlib.suppress(OSError, EngineError):  # gone, as the log says, or none of ours
                    seconds = self._config.servers.control_seconds
                    release(url, seconds, owner=holder(url, seconds))

    def take(self) -> None:
        """Wait for servers that are starting, then see that all sleep. Raises EngineError when one takes longer than
        supervisor.startup_seconds, or does not sleep."""
        self._lock.take(alone=True, seconds=self._config.supervisor.startup_seconds + _MARGIN_SECONDS)
        if self._config.servers.sleep_learner and self._config.servers.are_given:
            _put_to_sleep(self._config, self._given())

    def give(self) -> None:
        """Let servers start and wake. Idempotent."""
        self._lock.release()

    def close(self) -> None:
        """Give it up for good. Idempotent."""
        self._lock.release()
        self._learning.release()

    def _given(self) -> Sequence[str]:
        """Return the addresses of servers that others have started, those that are not in use included. Of a
        directory, which may have servers of other learners, those that nobody holds, or a learner of this device."""
        servers = self._config.servers
        if not servers.directory:
            return servers.addresses
        from areal.engine.vllm.identity import holder
        from areal.infra.directory import open_directory, read_key

        directory = open_directory(servers.directory, read_key(servers.directory_key))
        try:
            announced = [str(value["url"]) for value in directory.entries(SERVER_KIND).values() if value.get("url")]
        finally:
            directory.close()
        notes = _owners_file(Path(servers.device_lock))
        owners = {"", *(notes.read_text(encoding="ascii").split() if notes.exists() else ())}
        found = []
        for url in announced:
            try:
                if holder(url, servers.control_seconds) in owners:
                    found.append(url)
            except OSError:
                found.append(url)  # it may be one of ours that hangs
            except EngineError as error:
                _logger.info("%s is left alone: %s", url, error)
        return found


def _lock_path(config: PPOConfig, folder: Path) -> Path:
    return Path(config.servers.device_lock) if config.servers.device_lock else folder / _LOCK_FILE


def _owners_file(lock: Path) -> Path:
    return lock.with_name(f"{lock.name}.owners")


def _put_to_sleep(config: PPOConfig, addresses: Sequence[str]) -> None:
    """Put servers to sleep that are awake. One that cannot be reached has no memory, as a rule: it is named, and left
    to whoever watches it. Raises EngineError for one that answers and does not sleep."""
    from areal.engine.server.client import ServerClient
    from areal.engine.server.errors import ConnectionFailedError, ServerError
    from areal.engine.server.loop import EngineLoop

    adapter, timeout = adapter_of(config), config.servers.control_seconds

    async def one(client: ServerClient, url: str) -> None:
        try:
            if await adapter.is_asleep(client, url, timeout=timeout):
                return
            found = await adapter.probe(client, url, timeout=timeout)
            await adapter.pause(client, url, capabilities=replace(found, keeps_requests=False), timeout=timeout)
            await adapter.sleep(client, url, level=config.servers.sleep_level, timeout=timeout)
        except ConnectionFailedError as error:
            _logger.warning("%s is taken to have ended: %s", url, error)
        except ServerError as error:
            raise EngineError(
                f"{url} does not sleep, and the learner needs its device: {error}",
                where="servers.sleep_level",
                fix="start that server again",
            ) from error

    async def all_of_them() -> None:
        client = ServerClient()
        try:
            await asyncio.gather(*(one(client, url) for url in addresses))
        finally:
            await client.close()

    # Of its own: a notebook runs one in the calling thread.
    loop = EngineLoop("areal-to-sleep")
    try:
        loop.run(all_of_them())
    finally:
        loop.close()
