"""Where environments run, and their limits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from areal.api import Config, ConfigError, check_ranges, number
from areal.environment.wire import is_loopback
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class HostConfig(Config):
    """One place to run environments in, and how long it may take."""

    kind: Literal["process", "subprocess", "http"] = "process"
    """ "process": on the event loop of the rollouts, for async code of your own that never blocks. "subprocess": one
    process per slot, which may block, crash and leak; killed with all it started at a limit. "http": on a server
    (`areal env serve`) that serves the same environment with the same options."""
    max_environments: int = number(16, at_least=1)
    """Episodes at once, >= 1. Others wait for a slot, which no time limit counts."""
    reset_seconds: float = number(60.0, above=0)
    """Time limit of `create` and `reset` together, seconds; beyond it, fault environment_timeout."""
    step_seconds: float = number(30.0, above=0)
    """Time limit of a step, seconds."""
    close_seconds: float = number(5.0, above=0)
    """Time limit of `close`, seconds; beyond it the environment counts as leaked, and its process is killed."""
    block_seconds: float = number(0.25, above=0)
    """kind process: an environment that keeps the event loop busy for this long is named in the log, seconds. Time in
    which other programs had the processor does not count (on Linux)."""
    python: str = ""
    """kind subprocess: the interpreter, for packages whose versions do not fit ours; "" is ours."""
    memory_limit_mb: int = number(0, at_least=0)
    """kind subprocess: address space of each process in megabytes; 0 for no limit."""
    pass_variables: tuple[str, ...] = ()
    """kind subprocess: environment variables that are passed on beside PATH, LANG, LC_ALL and TZ."""
    reuse: bool = False
    """kind subprocess: let an environment serve one episode after the other, for one that is expensive to make. It has
    to say that it resets fully (`resets_fully`, see `areal.api.Environment`). `close` is not called: its process ends
    with all it started."""
    url: str = ""
    """kind http: address of the server, http://host:port or https://...; one that is not loopback needs a key."""
    key_variable: str = ""
    """kind http: environment variable with the server's key, at least 32 characters; "" for none."""
    capacity_seconds: float = number(600.0, above=0)
    """kind http: how long an episode waits while all environments of the server are in use, seconds; no other limit
    counts this. Beyond it, fault environment_timeout."""
    max_answer_bytes: int = number(1 << 20, at_least=1000)
    """kind http: of one answer of the server; a larger one is fault environment_failed."""

    def __post_init__(self) -> None:
        """Check ranges, and that only fields of the chosen kind are set."""
        check_ranges(self, "host.")
        if self.kind not in {"process", "subprocess", "http"}:
            raise ConfigError(f"host.kind is {self.kind!r}, expected process, subprocess or http")
        for name, kind in (
            ("python", "subprocess"),
            ("reuse", "subprocess"),
            ("url", "http"),
            ("key_variable", "http"),
        ):
            if getattr(self, name) and self.kind != kind:
                raise ConfigError(f"host.{name} has no effect with kind {self.kind!r}; it belongs to {kind}")
        if self.kind == "http":
            self._check_url()

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            named = parts.hostname if parts.scheme in {"http", "https"} and parts.port != 0 else None
        except ValueError:
            named = None
        if not named or parts.query or parts.fragment or parts.username is not None:
            raise ConfigError(
                f"host.url is {self.url!r}, expected an address such as http://127.0.0.1:8300",
                where="host.url",
                fix="give what `areal env serve` prints; a key goes into an environment variable, host.key_variable",
            )
        if not is_loopback(named) and not self.key_variable:
            raise ConfigError(
                f"host.url {self.url!r} is another machine, and host.key_variable names no key for it",
                where="host.key_variable",
                fix="serve with `areal env serve --key-variable NAME`, and name the variable that holds the key here",
            )


def host_config(choice: str | Mapping[str, Any] | HostConfig) -> HostConfig:
    """Return the settings that a configuration gives: a kind by its name, or fields. Raises ConfigError."""
    if isinstance(choice, HostConfig):
        return choice
    changes: dict[str, Any] = {"kind": choice} if isinstance(choice, str) else dict(choice)
    known = [item.name for item in fields(HostConfig)]
    for key in changes:
        if key not in known:
            raise ConfigError(f"host.{key} is an unknown key; {did_you_mean(key, known)} known are {', '.join(known)}")
    if "pass_variables" in changes:
        changes["pass_variables"] = tuple(changes["pass_variables"])
    return HostConfig(**changes)
