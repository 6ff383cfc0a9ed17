"""Announces a server of `areal serve` in the directory of a configuration, and takes it out of use before it ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

from areal.api import ArealError
from areal.infra.directory import open_directory, read_key
from areal.infra.directory.address import own_address
from areal.trainer.server_command import SERVER_KIND
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from types import TracebackType

    from areal.engine.config import ServerEngineConfig
    from areal.infra.directory import Announcement

_logger = getLogger(__name__)
_LEASE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.2
_ASK_SECONDS: Final = 5.0
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})


class Announced:
    """The entry of one server; does nothing without `servers.directory`. name: of the entry; empty for its address."""

    def __init__(self, config: ServerEngineConfig, name: str = "") -> None:
        """Open the directory. Raises ConfigError when its key cannot be used."""
        self._config, self._name = config, name
        self._directory = open_directory(config.directory, read_key(config.directory_key)) if config.directory else None
        self._entry: Announcement | None = None

    def reached_at(self, host: str) -> str:
        """Return the address by which others reach a server that listens at `host`; empty when it is that."""
        if self._directory is None or host not in _ANY_HOST:
            return ""
        targets = (self._config.directory,) if self._config.directory.startswith("tcp://") else ()
        return own_address(targets, several_hosts=not self._config.all_local)

    def join(self, url: str, incarnation: str) -> str:
        """Announce the server, which is ready; return the name of its entry, empty without a directory."""
        if self._directory is None:
            return ""
        name = self._name or urlsplit(url).netloc.replace(":", "-").strip("[]").replace("]", "")
        self._entry = self._directory.announce(
            SERVER_KIND, name, {"url": url, "incarnation": incarnation}, _LEASE_SECONDS
        )
        return name

    def drain(self, url: str) -> None:
        """Ask trainers to finish their requests, and wait until none uses the server, at most drain_seconds."""
        from areal.engine.vllm.identity import identify

        if self._entry is None:
            return
        deadline = time.monotonic() + self._config.drain_seconds
        try:
            self._entry.update({**self._entry.lease.value, "draining": True})
            while time.monotonic() < deadline and not identify(url, _ASK_SECONDS, owner="")[1]:
                time.sleep(_POLL_SECONDS)
        except (ArealError, OSError) as error:
            _logger.warning("the server ends without being drained: %s", error)

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Withdraw the entry."""
        if self._directory is not None:
            self._directory.close()
