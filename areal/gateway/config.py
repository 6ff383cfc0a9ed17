"""Options of the gateway and limits of its sessions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from areal.api import Config, ConfigError, number


@dataclass(frozen=True, kw_only=True)
class SessionLimits(Config):
    """What one session may use. Over a limit it is closed: its requests are refused, what it has is still scored."""

    max_requests: int = number(200, at_least=1)
    """Requests for answers."""
    max_answer_tokens: int = number(1_000_000, at_least=1)
    """Tokens that are sampled, all answers together."""
    max_roots: int = number(32, at_least=1)
    """Conversations that continue no other."""
    max_parallel: int = number(16, at_least=1)
    """Requests in work at once; further ones get 429."""
    max_choices: int = number(8, at_least=1)
    """Answers per request (`n`)."""
    idle_seconds: float = number(600.0, above=0)
    """Without any request."""
    total_seconds: float = number(3600.0, above=0)
    """From its opening."""


@dataclass(frozen=True, kw_only=True)
class GatewayConfig(Config):
    """How the gateway serves."""

    host: str = "127.0.0.1"
    """Address to listen at; one that is not loopback needs allow_remote."""
    port: int = number(0, at_least=0, at_most=65535)
    """Port to listen at; 0 takes a free one."""
    allow_remote: bool = False
    """Listen at an address that other machines reach. Whoever has a session's key spends its tokens."""
    model_name: str = "areal"
    """What /v1/models lists; requests may name any model, and get the name back."""
    history: Literal["keep", "template"] = "keep"
    """What the model sees of its earlier answers: "keep", what it sampled, reasoning included; "template", what the
    chat template shows of it, which begins a new leaf where that is something else."""
    max_leaf_tokens: int = number(0, at_least=0)
    """Most tokens of a conversation, answer included; 0 takes the context of the engine."""
    enable_thinking: bool = False
    """Handed to the chat template; templates without that switch ignore it."""
    template_date: str = "2026-01-01"
    """What a chat template that reads the clock (strftime_now) reads, so that a prompt is the same every day."""
    allow_client_sampling: bool = False
    """Let requests set temperature and top_p. The trainer divides by one temperature: not for training."""
    max_body_bytes: int = number(64_000_000, at_least=1000)
    """Of one request, decompressed."""
    header_seconds: float = number(120.0, above=0)
    """Until the headers of a request are there, from the connection or the answer before it; then it is closed."""
    body_seconds: float = number(60.0, above=0)
    """Until a request is there as a whole, from its headers on."""
    keep_alive_seconds: float = number(5.0, above=0)
    """Between signs of life in a stream while the engine works."""
    pause_patience: float = number(120.0, above=0)
    """Seconds that a request waits for an engine in which nothing moves, before it is refused as overloaded."""
    drain_seconds: float = number(5.0, at_least=0)
    """What requests in work get when their session is closed; then they are aborted."""
    train_auxiliary: bool = False
    """Train on side requests too: single questions without tools beside a conversation, such as for a title."""
    reward_deadline: float = number(0.0, at_least=0)
    """Seconds after its end in which a session may still be given its reward over HTTP; then it has none."""
    dump_folder: str = ""
    """Folder for the content of all requests and answers, a file per session, for you alone (mode 0700); "" writes
    nothing."""
    dump_bytes: int = number(1_000_000_000, at_least=1)
    """Of all files in dump_folder that one gateway writes; then it stops writing."""
    limits: SessionLimits = field(default_factory=SessionLimits)
    """Of each session."""

    def __post_init__(self) -> None:
        """Check what ranges of single fields do not say."""
        super().__post_init__()
        if not self.allow_remote and self.host not in {"127.0.0.1", "::1", "localhost"}:
            raise ConfigError(
                f"host is {self.host!r}, which other machines may reach: whoever has a key spends tokens",
                fix="set allow_remote=true if that is meant, or host=127.0.0.1",
            )
        if not self.template_date.replace("-", "").isdecimal() or len(self.template_date) != 10:
            raise ConfigError(f"template_date is {self.template_date!r}, expected YYYY-MM-DD")
