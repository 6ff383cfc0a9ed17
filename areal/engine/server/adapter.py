"""Defines the interface between a server engine and one server program (vLLM, SGLang); everything else is shared.

An adapter translates calls to HTTP. It keeps no state, makes no decisions and retries nothing. All methods run on the
engine's loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from torch import Tensor

    from areal.api import GenerationConfig, ImageRef, PublishedWeights, WeightRoute
    from areal.engine.server.client import ServerClient
    from areal.engine.server.routes import ServedRouters


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One attempt at one generation, with all settings resolved."""

    call_id: str
    """Unique among all calls; known to the server."""
    prompt: Sequence[int]
    """Prompt and all tokens sampled so far."""
    max_tokens: int
    min_tokens: int
    stop_token_ids: tuple[int, ...]
    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    """0 keeps all."""
    seed: int
    stream_interval: int
    images: tuple[ImageRef, ...] = ()
    """In `prompt`, which holds all of their placeholders."""
    adapter: str = ""
    """Name on the server of the adapter to compute with; empty for none."""
    routers: ServedRouters | None = None
    """Of the model, when the server is to report what they choose."""
    routes_from: int = 0
    """Number of tokens of `prompt` whose experts are known already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """New tokens of a call."""

    tokens: list[int]
    logprobs: list[float]
    finish: str = ""
    """Empty while more follows, else "stop", "length" or "abort"."""
    spans: tuple[tuple[int, int, int], ...] | None = None
    """In the last chunk, if the server reports it: (version, first token, one past the last) over the whole call."""
    routes: Tensor | None = None
    """Experts [T, M, K] of tokens (`areal.utils.routes`) from `Call.routes_from` on, or after those of earlier chunks;
    None where the server reports none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a server can do, as it reported itself."""

    version: str
    """Of the server program."""
    keeps_requests: bool
    """Whether requests survive a weight update in the server, with each token labelled with the version that sampled
    it. Otherwise they are cut before the update and continued afterwards."""
    workers: int = 1
    """Model processes behind the server."""
    verifies: bool = False
    """Whether its workers compare received weights with the manifest before they switch."""
    adapters: bool = False
    """Whether it accepts versions that are adapters on top of a base."""
    deltas: bool = False
    """Whether its workers keep the version in use, so that the next one may be sent as what differs."""
    routes: bool = False
    """Whether it reports the experts that routers choose."""
    base: str = ""
    """Identity of the base it already holds."""
    incarnation: str = ""
    """As the server reports it; empty when it does not know."""
    labels: bool = True
    """Whether it labels tokens with weight versions, so that tokens of other weights are never accepted."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings it was started with, as far as it reports them: "logprobs_mode", "dtype", "context"."""
    details: dict[str, Any] = field(default_factory=dict)
    """Private notes of the adapter, e.g. which of two endpoints to use."""


class ServerAdapter(Protocol):
    """One upstream program's HTTP API."""

    name: str
    stages_paused: bool
    """Whether a server can stage weights only while it computes no tokens."""

    def unsupported_sampling(self, config: GenerationConfig) -> str:
        """Return why this program cannot give exact log-probabilities for these settings; empty when it can."""
        ...

    def unsupported_images(self) -> str:
        """Return why servers of this program are sent no images; empty when they are. With images, `stream` and `score`
        compare the prompt that the server used with the one that was meant, and raise BrokenTokensError."""
        ...

    async def probe(self, client: ServerClient, url: str, *, timeout: float) -> Capabilities:
        """Ask a healthy server what it can do. Raises ServerRefusedError: what is missing, and how to get it."""
        ...

    def stream(
        self, client: ServerClient, url: str, call: Call, *, capabilities: Capabilities, patience: float
    ) -> AsyncIterator[Chunk | None]:
        """Generate. Yields None whenever nothing arrived for `patience` seconds; the last chunk has `finish`."""
        ...

    async def abort(self, client: ServerClient, url: str, call_ids: Sequence[str], *, timeout: float) -> None:
        """End these calls: their streams finish with "abort" and the tokens so far."""
        ...

    async def pause(self, client: ServerClient, url: str, *, capabilities: Capabilities, timeout: float) -> None:
        """Return when no token is being computed. Calls stay (`keeps_requests`), or end with "abort"."""
        ...

    async def resume(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """Compute tokens again."""
        ...

    async def stage(
        self, client: ServerClient, url: str, published: PublishedWeights, route: WeightRoute, *, timeout: float
    ) -> None:
        """Have the server fetch and verify a version beside the one it uses. Raises ServerRefusedError."""
        ...

    async def switch(
        self, client: ServerClient, url: str, published: PublishedWeights, *, clear_cache: bool, timeout: float
    ) -> None:
        """Put the staged version in use; the server is paused. Raises ServerRefusedError.

        clear_cache: drop everything that was cached under the version before, that of running calls included.
        """
        ...

    async def sleep(self, client: ServerClient, url: str, *, level: int, timeout: float) -> None:
        """Free the device's memory; no request is running. level: 1 keeps the weights in host memory, 2 drops them."""
        ...

    async def load_adapter(self, client: ServerClient, url: str, name: str, folder: str, *, timeout: float) -> None:
        """Load a PEFT folder under a new name, beside all others. Raises ServerError when the server cannot."""
        ...

    async def adapters(self, client: ServerClient, url: str, *, timeout: float) -> list[str]:
        """Return the names of the adapters that the server has loaded, whoever loaded them."""
        ...

    async def unload_adapter(self, client: ServerClient, url: str, name: str, *, timeout: float) -> None:
        """Forget an adapter that no call uses."""
        ...

    async def is_asleep(self, client: ServerClient, url: str, *, timeout: float) -> bool | None:
        """Say whether the server has lent its device to a learner, which may be gone by now; None if it cannot tell."""
        ...

    async def wake(
        self, client: ServerClient, url: str, part: Literal["weights", "kv_cache"], *, timeout: float
    ) -> None:
        """Take memory for a part again. What was in it is lost: of the cache always, of weights after level 2."""
        ...

    async def clear_cache(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """Forget all cached prefixes; no request is running."""
        ...

    async def score(
        self,
        client: ServerClient,
        url: str,
        tokens: Sequence[int],
        *,
        images: Sequence[ImageRef] = (),
        timeout: float,
    ) -> list[float]:
        """Return the log-probability of each token but the first, given the tokens before it, at temperature 1."""
        ...
