"""A virtual engine: real asyncio, chosen latencies, tokens that depend on (seed, position) only, as promised."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter

import pytest

from areal.api import (
    FaultError,
    FaultKind,
    GenerationConfig,
    ModelRequest,
    ModelResponse,
    RolloutWorkflow,
    StopReason,
    Trajectory,
)
from areal.infra.rollout.episode import derive_seed


class VirtualEngine:
    """latency(request) -> seconds for the whole generation; fault(request) may raise instead of generating."""

    def __init__(self, *, latency=None, fault=None, version=0, num_tokens=4):
        self._version = version
        self._latency = latency or (lambda request: 0.0)
        self._fault = fault or (lambda request: None)
        self._num_tokens = num_tokens
        self._abort_count = 0
        self._running = threading.Event()
        self._running.set()
        self.requests: list[ModelRequest] = []
        self.active = 0
        self.max_active = 0
        self.counts = Counter()

    @property
    def version(self):
        return self._version

    def publish(self, version):
        """A weight update that cuts whatever is in flight, like a backend that cannot swap weights under a request."""
        assert version > self._version
        self._version = version
        self.abort()

    async def agenerate(self, request):
        self.requests.append(request)
        self.active += 1
        self.max_active = max(self.max_active, self.active)
        try:
            return await self._generate(request)
        finally:
            self.active -= 1

    async def _generate(self, request):
        before = self._abort_count
        self._fault(request)
        total = min(self._num_tokens, request.sampled_before + request.gconfig.max_new_tokens)
        seconds = self._latency(request)
        tokens, versions = [], []
        reason = StopReason.STOP
        for position in range(request.sampled_before, total):
            if seconds:
                await asyncio.sleep(seconds / self._num_tokens)
            while not self._running.is_set():
                await asyncio.sleep(0.001)
            if self._abort_count != before:
                reason = StopReason.ABORT
                break
            tokens.append(derive_seed("token", request.seed, position) % 1000)
            versions.append(self._version)
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=tokens,
            output_logprobs=[-0.5] * len(tokens),
            output_versions=versions,
            stop_reason=reason,
        )

    def pause(self):
        self._running.clear()

    def resume(self):
        self._running.set()

    def abort(self, request_ids=None):
        self.counts["abort_all" if request_ids is None else "abort_some"] += 1
        if request_ids is None:
            self._abort_count += 1
        return 0

    def update_weights(self, meta):
        self._version = meta.version

    def stats(self):
        return {}

    def close(self):
        pass


class OneCall(RolloutWorkflow):
    """Prompt in, one generation, reward from the tokens. fault(data) may raise, or return "reject"."""

    def __init__(self, *, fault=None, reward=None):
        self._fault = fault or (lambda data: None)
        self._reward = reward or (lambda data, tokens: float(tokens[0] % 7))

    async def arun_episode(self, engine, data):
        prompt = [data["id"] + 1]
        response = await engine.agenerate(ModelRequest(input_ids=prompt, gconfig=GenerationConfig(max_new_tokens=8)))
        if self._fault(data) == "reject":
            return None
        count = len(response.output_tokens)
        return Trajectory(
            tokens=prompt + response.output_tokens,
            loss_mask=[0] + [1] * count,
            logprobs=[0.0, *response.output_logprobs],
            versions=[-1, *response.output_versions],
            turn_ids=[-1] + [0] * count,
            reward=self._reward(data, response.output_tokens),
            stop_reason=response.stop_reason,
        )


class Rows:
    """Endless rows {"id": ordinal}; `length` per epoch."""

    def __init__(self, length=1000):
        self.length = length
        self.asked: list[int] = []

    def __len__(self):
        return self.length

    def row(self, ordinal, /):
        self.asked.append(ordinal)
        return {"id": ordinal % self.length}


class World:
    """What tests build from."""

    VirtualEngine, OneCall, Rows = VirtualEngine, OneCall, Rows
    FaultError, FaultKind = FaultError, FaultKind

    @staticmethod
    def random_latency(seed, mean):
        generator = random.Random(seed)
        return lambda request: mean * generator.lognormvariate(0.0, 1.0)

    @staticmethod
    def content(groups):
        """All that training would see of some groups, without versions."""
        return [(group.ordinal, [(t.sample_index, t.tokens, t.reward) for t in group.trajectories]) for group in groups]


@pytest.fixture
def world():
    return World
