"""Configuration that all engines with server processes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from areal.api import Config, ConfigError

_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True)
class ServerEngineConfig(Config):
    """Client side of inference servers: limits, patience, routing, checks."""

    num_servers: int = 1
    """Servers to start on this machine; ignored with addresses."""
    addresses: tuple[str, ...] = ()
    """Servers that somebody else starts (`areal serve`), e.g. ["http://node1:8000", "http://node2:8000"]; they are used
    while they answer, and none is started or ended by the run. vllm only."""
    max_seq_len: int = 2048
    """Prompt plus output tokens of one request; also bounded by the model's max_position_embeddings."""
    max_concurrent: int = 256
    """Sequences that one server decodes together; further requests wait in its queue."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the servers' weights; trained weights are converted before they travel."""
    stream_interval: int = 16
    """Tokens per message from a server. Fewer keep more when a server dies; more cost less."""
    stall_seconds: float = 120.0
    """A server that has requests and sends nothing for so long is given up, and its requests go on elsewhere."""
    control_seconds: float = 60.0
    """Longest wait for a control call (pause, resume, probe)."""
    weights_seconds: float = 300.0
    """Longest wait for one server to stage or to switch a weight version."""
    wait_seconds: float = 900.0
    """Longest wait of a request for any server to be ready."""
    max_attempts: int = 4
    """Servers a request may be tried on; tokens it has already are kept from one to the next."""
    max_consecutive_errors: int = 8
    """Errors of one server in a row, without a good answer between them, before it is given up and restarted."""
    weight_attempts: int = 2
    """Tries to bring a version to a server before it is given up and restarted."""
    affinity_tokens: int = 256
    """Requests whose first so many tokens are equal prefer the same server, which has them cached; 0 is off."""
    affinity_slack: int = 8
    """Requests in flight by which the preferred server may exceed the least loaded one."""
    clear_cache: bool = True
    """Recompute the key/value cache of running requests after a weight update. Without it the update is cheaper, but
    tokens that follow are sampled from a mixture of two versions, and their log-probabilities are those of neither."""
    probe_tokens: int = 16
    """Length of the sequence that is scored by trainer and server after every weight update; 0 is off."""
    probe_tolerance: float = 0.0
    """Largest difference of a log-probability in that comparison; 0 means 1e-3 with float32 and 0.3 with bfloat16."""
    parity: bool = False
    """For debugging: servers run in their most deterministic mode, every answer is scored once more in one forward, and
    a difference above parity_tolerance fails the request. Slow."""
    parity_tolerance: float = 1e-3
    """See parity."""

    def __post_init__(self) -> None:
        """Refuse what cannot serve a request."""
        for name in (
            "num_servers", "max_concurrent", "stream_interval", "max_attempts", "max_consecutive_errors",
            "weight_attempts",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected at least 1")
        for name in ("stall_seconds", "control_seconds", "weights_seconds", "wait_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected > 0")
        for name in ("affinity_tokens", "affinity_slack", "probe_tolerance", "parity_tolerance"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, expected >= 0")
        _check_addresses(self.addresses)
        if self.max_seq_len < 2:
            raise ConfigError(f"max_seq_len is {self.max_seq_len}, expected at least 2")
        if self.probe_tokens == 1 or self.probe_tokens < 0:
            raise ConfigError(f"probe_tokens is {self.probe_tokens}, expected 0 (off) or at least 2")

    @property
    def count(self) -> int:
        """Servers of a run."""
        return len(self.addresses) or self.num_servers

    @property
    def all_local(self) -> bool:
        """Whether every server runs on this machine, as far as addresses tell."""
        return all(urlsplit(address).hostname in _LOCAL_HOSTS for address in self.addresses)

    @property
    def resolved_probe_tolerance(self) -> float:
        """probe_tolerance, or what its 0 stands for."""
        return self.probe_tolerance or (1e-3 if self.dtype == "float32" else 0.3)


def _check_addresses(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        _check_address(address)
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"addresses are {list(addresses)}, expected each once")


def _check_address(address: str) -> None:
    """Scheme, host and port, and nothing else: requests and their paths are made from it."""
    problem = "expected http://HOST:PORT"
    try:
        parts = urlsplit(address)
        good = parts.scheme == "http" and parts.hostname and parts.port and address == f"http://{parts.netloc}"
        if good and parts.username is None:
            return
    except ValueError as error:
        problem = f"{problem} ({error})"
    raise ConfigError(f"address is {address!r}, {problem}")
