"""A local server that speaks what vLLM says about prompts: /v1/models, and `prompt_logprobs` of /v1/completions.

The numbers come from a real model. `server.faults` holds what to do with the next completions, one each: "status:503",
"short" (one token too few), "html", "foreign" (not the sampled token).
"""

from __future__ import annotations

import asyncio
import threading

import torch
from aiohttp import web


class TeacherServer:
    """Serves `model`, a decoder, on a thread."""

    def __init__(self, model, *, max_logprobs=20):
        self.model, self.max_logprobs = model, max_logprobs
        self.faults: list[str] = []
        self.bodies: list[dict] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self):
        app = web.Application()
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/completions", self._complete)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def _models(self, _):
        return web.json_response({"object": "list", "data": [{"id": "teacher", "object": "model"}]})

    async def _complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        fault = self.faults.pop(0) if self.faults else ""
        if fault.startswith("status:"):
            return web.json_response({"error": {"message": "busy"}}, status=int(fault.split(":")[1]))
        if fault == "html":
            return web.Response(text="<html>bad gateway</html>", content_type="text/html")
        tokens, k = body["prompt"], body["prompt_logprobs"]
        if k > self.max_logprobs:
            text = f"Requested prompt logprobs of {k}, which is greater than max allowed: {self.max_logprobs}"
            return web.json_response({"error": {"message": text, "code": 400}}, status=400)
        entries = self._entries(tokens, k)
        if fault == "short":
            entries = entries[:-1]
        if fault == "foreign":
            entries[-1].pop(str(tokens[-1]))
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": entries}
        return web.json_response({"id": "1", "object": "text_completion", "choices": [choice]})

    @torch.no_grad()
    def _entries(self, tokens, k):
        """As vLLM: None for the first token, then the sampled token and the k likeliest, by id."""
        ids = torch.tensor(tokens)
        states = self.model.hidden(
            ids, torch.arange(len(tokens)), torch.tensor([0, len(tokens)], dtype=torch.int32), len(tokens)
        )
        log_p = self.model.project(states).float().log_softmax(-1)
        entries = [None]
        for token, row in zip(tokens[1:], log_p[:-1], strict=True):
            order = row.argsort(descending=True).tolist()
            chosen = dict.fromkeys([token, *order[:k]])
            ranks = {index: place for place, index in enumerate(order, start=1)}
            entries.append({str(index): {"logprob": row[index].item(), "rank": ranks[index]} for index in chosen})
        return entries
