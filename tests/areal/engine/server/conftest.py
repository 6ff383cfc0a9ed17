"""Engines over local HTTP servers that misbehave."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from areal.api import GenerationConfig, ModelRequest, WeightUpdateMeta
from areal.engine.checks import RequestLimits
from areal.engine.config import ServerEngineConfig
from areal.engine.server.engine import ServerEngine
from areal.engine.server.updates import ProbeReference
from areal.engine.vllm.adapter import VLLMAdapter
from areal.infra.weights.files import FileCarrier

_spec = importlib.util.spec_from_file_location("misbehaving", Path(__file__).with_name("misbehaving.py"))
misbehaving = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(misbehaving)

WEIGHTS = {"norm.weight": torch.ones(4), "head.weight": torch.arange(8.0).reshape(2, 4)}


class World:
    """Servers and an engine over them."""

    def __init__(self, folder):
        self.folder, self.servers, self.engine, self.pool = folder, [], None, None

    def start(
        self,
        count=1,
        *,
        restarts=10,
        ready=True,
        reference=True,
        paths=misbehaving.PATHS,
        routers=None,
        **options,
    ):
        """Start servers and the engine; options go to ServerEngineConfig."""
        self.servers = [misbehaving.MisbehavingServer() for _ in range(count)]
        for server in self.servers:
            server.paths = paths
        self.pool = misbehaving.Pool(*self.servers, restarts=restarts)
        defaults = {"dtype": "float32", "stall_seconds": 60.0, "wait_seconds": 60.0, "control_seconds": 60.0}
        self.engine = ServerEngine(
            VLLMAdapter(),
            pool=self.pool,
            carrier=FileCarrier(self.folder / "weights"),
            config=ServerEngineConfig(**{**defaults, **options}),
            limits=RequestLimits(context=128, vocab_size=20, eos_token_id=1, tokenizer=None),
            to_hf=dict,
            weights=WEIGHTS,
            reference=ProbeReference(score=lambda tokens, _: [-0.5] * (len(tokens) - 1)) if reference else None,
            routers=routers,
        )
        if ready:
            self.engine.wait_ready()
        return self.engine

    def generate(self, *requests):
        """All at once; exceptions are results."""

        async def main():
            return await asyncio.wait_for(
                asyncio.gather(*map(self.engine.agenerate, requests), return_exceptions=True), 100
            )

        return asyncio.run(main())

    def one(self, **options):
        """Result of a single request; raises what it raises."""
        (result,) = self.generate(self.request(**options))
        if isinstance(result, BaseException):
            raise result
        return result

    async def sent(self, count):
        """Wait until the servers have sent so many tokens since the engine was made."""
        async with asyncio.timeout(60):
            while self.engine.stats()["generated_tokens"] < count:
                await asyncio.sleep(0.005)

    def has_read(self, count):
        """Whether the engine has received so many tokens."""
        return self.engine.stats()["generated_tokens"] >= count

    @staticmethod
    def request(*prompt, new=10, seed=0, **options):
        return ModelRequest(
            input_ids=list(prompt) or [3, 4], gconfig=GenerationConfig(max_new_tokens=new, **options), seed=seed
        )

    def update(self, version, **changes):
        state = {**WEIGHTS, **changes}
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=state))

    def close(self):
        if self.engine is not None:
            self.engine.close()
        for server in self.servers:
            server.close()


@pytest.fixture
def world(tmp_path):
    """Nothing is started yet."""
    world = World(tmp_path)
    yield world
    world.close()
