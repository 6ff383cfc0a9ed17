"""Configuration shared by all engines that use inference servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from areal.api import Config, ConfigError, number

_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, kw_only=True)
class ServerEngineConfig(Config):
    """Client-side settings for inference servers: limits, timeouts, routing, checks."""

    num_servers: int = number(1, at_least=1)
    """Servers to start on this machine; ignored with addresses."""
    addresses: tuple[str, ...] = ()
    """Addresses of servers started elsewhere (`areal serve`), e.g. ["http://node1:8000", "http://node2:8000"]. The run
    uses them while they answer and neither starts nor stops any. vllm only."""
    max_seq_len: int = number(2048, at_least=2)
    """Prompt plus output tokens of one request; also bounded by the model's max_position_embeddings."""
    max_concurrent: int = number(256, at_least=1)
    """Sequences that one server decodes together; further requests wait in its queue."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """dtype of the servers' weights; trained weights are converted before they are sent."""
    stream_interval: int = number(16, at_least=1)
    """Tokens per message from a server. Fewer tokens lose less when a server dies; more tokens cost less."""
    stall_seconds: float = number(120.0, above=0)
    """Seconds without any message after which a server with requests is evicted; its requests continue elsewhere."""
    control_seconds: float = number(60.0, above=0)
    """Timeout in seconds of a control call (pause, resume, probe)."""
    weights_seconds: float = number(300.0, above=0)
    """Timeout in seconds for one server to stage or switch a weight version."""
    wait_seconds: float = number(900.0, above=0)
    """Longest time in seconds a request waits for a server to be ready."""
    max_attempts: int = number(4, at_least=1)
    """Servers on which a request is tried; tokens already sampled are kept between attempts."""
    max_consecutive_errors: int = number(8, at_least=1)
    """Consecutive errors of one server before it is evicted and restarted."""
    weight_attempts: int = number(2, at_least=1)
    """Attempts to send a version to a server before it is evicted and restarted."""
    affinity_tokens: int = number(256, at_least=0)
    """Requests that share this many leading tokens prefer the same server, which has them cached; 0 is off."""
    affinity_slack: int = number(8, at_least=0)
    """Requests in flight by which the preferred server may exceed the least loaded one."""
    clear_cache: bool = True
    """Recompute the key/value cache of running requests after a weight update. Without it the update is cheaper, but
    later tokens are sampled from a mixture of two versions, and their log-probabilities belong to neither."""
    probe_tokens: int = number(16, at_least=0)
    """Length of the sequence that both trainer and server score after every weight update; 0 is off."""
    probe_tolerance: float = number(0.0, at_least=0)
    """Largest difference of a log-probability in that comparison; 0 means 1e-3 for float32 and 0.3 for bfloat16."""
    parity: bool = False
    """For debugging: servers run in their most deterministic mode, every answer is scored again in one forward pass,
    and a difference above parity_tolerance fails the request. Slow."""
    parity_tolerance: float = number(1e-3, at_least=0)
    """See parity."""

    def __post_init__(self) -> None:
        """Check addresses, and that a probe compares something."""
        super().__post_init__()
        _check_addresses(self.addresses)
        if self.probe_tokens == 1:
            raise ConfigError(f"probe_tokens is {self.probe_tokens}, expected 0 (off) or at least 2")

    @property
    def count(self) -> int:
        """Number of servers of a run."""
        return len(self.addresses) or self.num_servers

    @property
    def all_local(self) -> bool:
        """Whether every server runs on this machine, judging by the addresses."""
        return all(urlsplit(address).hostname in _LOCAL_HOSTS for address in self.addresses)

    @property
    def resolved_probe_tolerance(self) -> float:
        """probe_tolerance, with 0 replaced by the default for the dtype."""
        return self.probe_tolerance or (1e-3 if self.dtype == "float32" else 0.3)


def _check_addresses(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        _check_address(address)
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"addresses are {list(addresses)}, expected each once")


def _check_address(address: str) -> None:
    """Require scheme, host and port and nothing else, because request URLs are built from it."""
    problem = "expected http://HOST:PORT"
    try:
        parts = urlsplit(address)
        good = parts.scheme == "http" and parts.hostname and parts.port and address == f"http://{parts.netloc}"
        if good and parts.username is None:
            return
    except ValueError as error:
        problem = f"{problem} ({error})"
    raise ConfigError(f"address is {address!r}, {problem}")
