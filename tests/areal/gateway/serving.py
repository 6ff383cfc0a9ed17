"""A gateway over a scripted engine, and a client that speaks its dialects."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass

import aiohttp
import templates

from areal.api import GenerationConfig
from areal.gateway.config import GatewayConfig
from areal.gateway.rendering import Renderer
from areal.gateway.server import Gateway
from areal.testing.scripted import ScriptedEngine, ambiguous_tokenizer

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}]

_renderers = {}


def renderer_of(template, *, enable_thinking=False):
    if (template, enable_thinking) not in _renderers:
        tokenizer = ambiguous_tokenizer(template)
        made = Renderer(tokenizer, enable_thinking=enable_thinking, template_date="2026-01-01")
        _renderers[template, enable_thinking] = (made, tokenizer)
    return _renderers[template, enable_thinking]


@dataclass
class Served:
    """A gateway with one open session."""

    gateway: Gateway
    engine: ScriptedEngine
    session: object
    http: aiohttp.ClientSession

    async def post(self, path, body, *, key=None, **options):
        headers = {"Authorization": f"Bearer {key or self.session.key}", **options.pop("headers", {})}
        async with self.http.post(f"{self.gateway.address}{path}", json=body, headers=headers, **options) as response:
            data = await response.read()
            return response.status, json.loads(data) if data[:1] in (b"{", b"[") else data.decode()

    async def get(self, path, *, key=None):
        headers = {"Authorization": f"Bearer {key or self.session.key}"}
        async with self.http.get(f"{self.gateway.address}{path}", headers=headers) as response:
            return response.status, await response.json()

    async def chat(self, messages, **fields):
        status, body = await self.post("/v1/chat/completions", {"model": "m", "messages": messages, **fields})
        assert status == 200, body
        return body

    async def say(self, messages, **fields):
        """Send a chat and return it with the answer, as a client that echoes it would go on."""
        body = await self.chat(messages, **fields)
        return [*messages, body["choices"][0]["message"]]


@contextlib.asynccontextmanager
async def serving(
    answer, *, template=templates.PLAIN, gconfig=None, limits=None, may_score=False, engine=None, **config
):
    renderer, tokenizer = renderer_of(template)
    engine = engine or ScriptedEngine(answer, tokenizer)
    gateway = Gateway(renderer, GatewayConfig(drain_seconds=config.pop("drain_seconds", 0.2), **config))
    async with gateway.running(), aiohttp.ClientSession() as http:
        chosen = gconfig or GenerationConfig(max_new_tokens=2000)
        session = gateway.open(engine, chosen, limits=limits, may_score=may_score)
        yield Served(gateway, engine, session, http)


def user(text):
    return {"role": "user", "content": text}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def assert_exact(session, trajectories):
    """Every trained token is one that the engine said there, once over all leaves, with its own log-probability."""
    from areal.testing.scripted import scripted_logprob

    trained = 0
    for trajectory in trajectories:
        start = None
        for index, sampled in enumerate(trajectory.loss_mask):
            if not sampled:
                start = None
                continue
            start = index if start is None or trajectory.turn_ids[index] != trajectory.turn_ids[index - 1] else start
            expected = scripted_logprob(trajectory.tokens[index], index - start)
            assert abs(trajectory.logprobs[index] - expected) < 1e-12
            trained += 1
    assert trained == session.trained_tokens
