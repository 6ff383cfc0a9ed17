"""Implements `areal.api.InferenceEngine` on top of inference servers, independent of the program they run.

    engine = ServerEngine(adapter, pool=supervisor, carrier=carrier, config=config, ...)
    response = await engine.agenerate(ModelRequest(input_ids=[5, 9, 2], gconfig=GenerationConfig(max_new_tokens=8)))

`requests` runs generations, `members` tracks servers, `fleet` routes, `publishing` creates weight versions, `updates`
sends them, and the adapter speaks HTTP. This module combines them and is the only one called from other threads; all
work happens on its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from areal.api import ConfigError, EngineError, ServerInstance, StopReason
from areal.engine.checks import SeedStream
from areal.engine.server.client import ServerClient
from areal.engine.server.errors import ServerError
from areal.engine.server.generation import Generation
from areal.engine.server.loop import EngineLoop
from areal.engine.server.members import ServerMembers
from areal.engine.server.publishing import WeightPublisher
from areal.engine.server.requests import GenerationRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from areal.api import ModelRequest, ModelResponse, PublishedWeights, ServerPool, WeightCarrier, WeightUpdateMeta
    from areal.engine.checks import RequestLimits
    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import ServerAdapter
    from areal.engine.server.fleet import Server
    from areal.engine.server.publishing import AdapterBase
    from areal.engine.server.routes import ServedRouters
    from areal.engine.server.updates import Probe, ProbeReference

_TALLIES = ("requests", "finished", "aborted", "failed", "cancelled", "continued", "failed_calls", "salvaged_tokens",
            "generated_tokens", "weight_updates", "evictions", "starts", "parity_checks", "parity_abs_max")  # fmt: skip
_CLOSE_SECONDS = 5.0


class ServerEngine:
    """Inference engine over servers.

    to_hf: converts native parameters to Hugging Face ones. weights: the servers' first weights, by Hugging Face name;
    every later version must have the same names and shapes. base: given when `weights`, and what `to_hf` returns, are
    factors of adapters on top of it; the base is sent once, and updates are as small as the adapters. reference:
    the trainer's log-probabilities under its current weights; None turns the probe off. routers: of the model; given
    them, responses have `routes`, and a server that does not report any is refused. version: that of the given
    weights. before_waking: called once a version and its probe are made, and before servers take memory for it: at the
    start, and in `update_weights`.

    The constructor starts the servers and returns; requests wait until one is ready (`wait_ready` for all of them).

    Randomness: a token depends on the request's seed and on where its generation was cut (by a weight update on a
    server that does not keep requests, or by a server's end), not on its position alone as in the embedded engine.
    """

    def __init__(  # noqa: PLR0913 - the parts that it combines, each by keyword
        self,
        adapter: ServerAdapter,
        *,
        pool: ServerPool,
        carrier: WeightCarrier,
        config: ServerEngineConfig,
        limits: RequestLimits,
        to_hf: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
        weights: Mapping[str, Tensor],
        base: AdapterBase | None = None,
        reference: ProbeReference | None = None,
        routers: ServedRouters | None = None,
        version: int = 0,
        before_waking: Callable[[], None] = lambda: None,
    ) -> None:
        self._before_waking = before_waking
        self._adapter, self._pool, self._carrier, self._config = adapter, pool, carrier, config
        self._limits, self._reference, self._routers = limits, reference, routers
        self._version = version
        self._closed = False
        self._generations: set[Generation] = set()
        self._seeds = SeedStream()
        self._tally = dict.fromkeys(_TALLIES, 0.0)
        self._client = ServerClient()
        self._publisher = WeightPublisher(carrier, dtype=config.dtype, to_hf=to_hf, weights=weights, base=base)
        published = self._publisher.publish_first(version, weights)
        probe = self._make_probe()
        self._loop = EngineLoop(f"areal-{adapter.name}")
        self._members: ServerMembers = self._loop.run(self._open(published, probe))
        self._runner = GenerationRunner(self._members, adapter, self._client, config)
        before_waking()
        pool.start(self)

    # ---- InferenceEngine

    @property
    def version(self) -> int:
        """Version of the weights that produce the next token."""
        return self._version

    @property
    def context_length(self) -> int:
        """Most tokens of prompt and answer together."""
        return self._limits.context

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """See `InferenceEngine.agenerate`. Cancelling the caller ends the request on the server.

        Raises FaultError(DATA_INVALID) for a request that can never run, FaultError(GENERATION_FAILED) when servers
        keep failing it, ConfigError for what the servers cannot sample exactly, EngineError after `close` or when no
        server is left.
        """
        self._require_open()
        if request.images and (problem := self._images_problem()):
            raise ConfigError(f"request {request.request_id} has images: {problem}")
        self._limits.check(request)
        problem = self._adapter.unsupported_sampling(request.gconfig)
        if problem:
            raise ConfigError(f"{self._adapter.name}: {problem}")
        generation = Generation(
            self._seeds.seeded(request), self._limits, self._config.stream_interval, routers=self._routers
        )
        response = await self._loop.await_here(self._generate(generation))
        self._limits.check_output(request, response.output_tokens)
        return response

    def pause(self) -> None:
        """Return once no token is being computed; none is computed until `resume`. Idempotent."""
        self._require_open()
        self._loop.run(self._members.pause())

    def resume(self) -> None:
        """Continue after `pause`. Idempotent."""
        self._require_open()
        self._loop.run(self._members.resume())

    def sleep(self) -> None:
        """Free the devices of all servers for the learner (servers.sleep_level). Running requests are cut and keep
        their tokens.

        Only `update_weights` wakes them: with all of the weights, then the cache, and the probe before the first
        request. Until then `pause` and `resume` raise EngineError, and new servers wait.
        """
        self._require_open()
        self._loop.run(self._members.sleep(self._config.sleep_level))

    def abort(self, request_ids: Sequence[str] | None = None) -> int:
        """End the given requests (all when None), which return their tokens so far; return how many were ended."""
        self._require_open()
        return self._loop.run(self._abort(None if request_ids is None else frozenset(request_ids)))

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        """Switch all servers to new weights; a server that fails to do so is evicted and restarted.

        Raises EngineError for a version that is not newer, mismatched names or shapes, and when no server accepted
        it; the old weights then stay in use.
        """
        self._require_newer(meta)
        published = self._publisher.publish(meta)
        # Weights from a folder are not those the trainer holds, so there is nothing to compare with.
        probe = self._make_probe() if meta.state_dict is not None else None
        self._before_waking()
        self._loop.run(self._update(published, probe))

    def stats(self) -> Mapping[str, float]:
        """Return counters since the start, and the current state.

        generated_tokens: received. continued: calls cut by a weight update and continued. failed_calls: calls that
        failed; salvaged_tokens: kept from them. evictions, starts: of servers. published_bytes, stage_seconds,
        switch_seconds, probe_abs_max: of the last weight update; base_bytes: sent once to each server. sent_bytes,
        skipped_bytes: of that update, over all servers, each counted as one worker: what travelled, and what they had.
        parity_abs_max: largest difference found by parity checks.
        """
        servers = list(self._members.fleet.servers.values())
        active = sum(len(server.calls) for server in servers)
        now = {
            "active": active,
            "waiting": len(self._generations) - active,
            "version": self._version,
            "servers": sum(server.serving for server in servers),
        }
        parts = {**self._tally, **self._publisher.tally, **self._members.updater.tally, **now}
        return {name: float(value) for name, value in parts.items()}

    def close(self) -> None:
        """End all requests (they return their partial output), stop the servers, free all resources. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(self._end_requests())
            self._loop.run(self._unload_adapters())
        finally:
            self._loop.run(self._end_admissions())
            self._pool.close()
            self._loop.run(self._client.close())
            self._loop.close()
            self._carrier.close()

    # ---- beyond the contract

    def wait_ready(self, *, servers: int | None = None, timeout: float | None = None) -> None:
        """Wait until `servers` servers (None: all) accept requests. Raises EngineError on timeout."""
        wanted = max(1, self._pool.size) if servers is None else servers
        self._loop.run(self._members.wait_ready(wanted, timeout or self._config.wait_seconds))

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter on all servers, beside the weights in use and other adapters, for requests with
        `ModelRequest.adapter`; servers that come later get it, too. Under a name that is loaded already, requests that
        run finish with what they began with.

        folder: that `peft` wrote, under a path that the servers see. Raises ConfigError for more than
        servers.max_adapters and for a folder without one, EngineError when servers refuse it; the name then keeps what
        it had.
        """
        self._require_open()
        self._loop.run(self._members.load_adapter(name, folder))

    def unload_adapter(self, name: str) -> None:
        """Take an adapter from all servers, once the requests that use it have ended. Raises ConfigError for an unknown
        name, EngineError when they do not end within servers.drain_seconds."""
        self._require_open()
        self._loop.run(self._members.unload_adapter(name))

    @property
    def adapters(self) -> list[str]:
        """Names of adapters that requests may ask for."""
        return self._members.named.names

    # ---- ServerListener: called from the pool's threads

    def server_up(self, server: ServerInstance) -> None:
        """Send the server the current weights, then requests."""
        try:
            self._loop.run(self._members.admit(server))
        except ServerError as error:
            raise EngineError(str(error)) from error

    def server_down(self, server: ServerInstance, reason: str) -> None:
        """Remove the server; its requests notice the failure themselves."""
        if not self._closed:
            self._loop.run(self._members.remove(server, reason))

    def server_draining(self, server: ServerInstance) -> None:
        """Send the server no further requests; return when it has none left, or after servers.drain_seconds."""
        if not self._closed:
            self._loop.run(self._members.drain(server))

    def server_retired(self, name: str, reason: str) -> None:
        """Record that the server will not come back; waiting requests fail when none is left."""
        if not self._closed:
            self._loop.run(self._members.retire(name, reason))

    # ---- on the loop

    async def _open(self, published: PublishedWeights, probe: Probe | None) -> ServerMembers:
        return ServerMembers(
            adapter=self._adapter,
            client=self._client,
            pool=self._pool,
            carrier=self._carrier,
            config=self._config,
            tally=self._tally,
            context=self._limits.context,
            records_routes=self._routers is not None,
            published=published,
            probe=probe,
        )

    async def _generate(self, generation: Generation) -> ModelResponse:
        self._generations.add(generation)
        self._tally["requests"] += 1
        outcome = "failed"
        try:
            with self._members.named.used(generation.request.adapter) as generation.adapter:
                response = await self._runner.run(generation)
            outcome = "aborted" if response.stop_reason is StopReason.ABORT else "finished"
            return response
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._generations.discard(generation)
            self._tally[outcome] += 1
            if generation.adapter:
                self._members.adapter_left()

    async def _abort(self, wanted: frozenset[str] | None) -> int:
        chosen = [
            generation
            for generation in self._generations
            if not generation.abort_asked and (wanted is None or generation.request.request_id in wanted)
        ]
        calls: dict[Server, list[str]] = {}
        for generation in chosen:
            generation.abort_asked = True
            for server in self._members.fleet.servers.values():
                if generation.current is not None and generation.current in server.calls:
                    calls.setdefault(server, []).append(generation.current.call.call_id)
        self._members.fleet.changed()
        await self._members.abort(calls)
        return len(chosen)

    async def _update(self, published: PublishedWeights, probe: Probe | None) -> None:
        await self._members.update(published, probe)
        self._version = published.manifest.version
        self._tally["weight_updates"] += 1

    async def _end_admissions(self) -> None:
        self._members.close()

    async def _end_requests(self) -> None:
        """Let requests return their tokens so far; those that take too long are cancelled with the loop."""
        if not self._generations:
            return
        if not self._members.asleep:
            await self._members.resume()
        await self._abort(None)
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self._generations:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            return

    async def _unload_adapters(self) -> None:
        """Leave none on servers that outlive this engine; one that does not answer soon is left to the next engine."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._members.unload_all()

    # ---- in the caller's thread

    def _make_probe(self) -> Probe | None:
        length = min(self._config.probe_tokens, self._limits.context - 1)
        if self._reference is None or length < 2:
            return None
        # Any ids work; these differ from each other and are the same in every run.
        tokens = [(7919 * (index + 1)) % self._limits.vocab_size for index in range(length)]
        tokens = [token for token in tokens if token not in self._limits.refused]
        return self._reference.probe(tokens, with_images=not self._adapter.unsupported_images())

    def _images_problem(self) -> str:
        if not self._limits.reads_images:
            return "the model reads text only; use an image-text model with model.implementation=transformers"
        return self._adapter.unsupported_images()

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError(f"the {self._adapter.name} engine is closed; build a new one")

    def _require_newer(self, meta: WeightUpdateMeta) -> None:
        self._require_open()
        if meta.version <= self._version:
            raise EngineError(
                f"weight update to version {meta.version} refused: the engine is at version {self._version}, "
                f"and versions must increase"
            )
