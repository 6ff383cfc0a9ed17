"""A local server that says about prompts what vLLM says (`prompt_logprobs` of /v1/completions), or SGLang
(`input_top_logprobs` of /generate), with the /v1/models of that program.

The numbers come from a real model. `server.faults` holds what to do with the next requests, one each: "status:503",
"short" (one token too few), "html", "foreign" (not the sampled token).
"""

from __future__ import annotations

import asyncio
import threading

import torch
from aiohttp import web


class TeacherServer:
    """Serves `model`, a decoder, on a thread. program: "vllm" or "sglang"."""

    def __init__(self, model, *, program="vllm", max_logprobs=20):
        self.model, self.program, self.max_logprobs = model, program, max_logprobs
        self.faults: list[str] = []
        self.bodies: list[dict] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self):
        app = web.Application()
        path, handler = {"vllm": ("/v1/completions", self._complete), "sglang": ("/generate", self._generate)}[
            self.program
        ]
        app.add_routes([web.get("/v1/models", self._models), web.post(path, handler)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    async def _models(self, _):
        return web.json_response(
            {"object": "list", "data": [{"id": "teacher", "object": "model", "owned_by": self.program}]}
        )

    async def _next(self, request):
        """Return the body and the fault of a request, and what to answer at once."""
        body = await request.json()
        self.bodies.append(body)
        fault = self.faults.pop(0) if self.faults else ""
        answer = None
        if fault.startswith("status:"):
            answer = web.json_response({"error": {"message": "busy"}}, status=int(fault.split(":")[1]))
        if fault == "html":
            answer = web.Response(text="<html>bad gateway</html>", content_type="text/html")
        return body, fault, answer

    async def _complete(self, request):
        body, fault, answer = await self._next(request)
        if answer is not None:
            return answer
        tokens, k = body["prompt"], body["prompt_logprobs"]
        if k > self.max_logprobs:
            text = f"Requested prompt logprobs of {k}, which is greater than max allowed: {self.max_logprobs}"
            return web.json_response({"error": {"message": text, "code": 400}}, status=400)
        # As vLLM: None for the first token, then the sampled token and the k likeliest, by id.
        entries = [None]
        for token, row in self._rows(tokens):
            order = row.argsort(descending=True).tolist()
            chosen = dict.fromkeys([token, *order[:k]])
            ranks = {index: place for place, index in enumerate(order, start=1)}
            entries.append({str(index): {"logprob": row[index].item(), "rank": ranks[index]} for index in chosen})
        if fault == "short":
            entries = entries[:-1]
        if fault == "foreign":
            entries[-1].pop(str(tokens[-1]))
        choice = {"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": entries}
        return web.json_response({"id": "1", "object": "text_completion", "choices": [choice]})

    async def _generate(self, request):
        body, fault, answer = await self._next(request)
        if answer is not None:
            return answer
        tokens, k = body["input_ids"], body["top_logprobs_num"]
        assert body["return_logprob"]
        assert body["logprob_start_len"] == 0
        last = self.model.args.vocab_size - 1
        # As SGLang: None for the first token; the last id of the vocabulary is written as 0 if it is the token itself.
        own, top = [[None, tokens[0], None]], [None]
        for token, row in self._rows(tokens):
            own.append([row[token].item(), token if token < last else 0, None])
            best = row.topk(k)
            top.append([[row[index].item(), index, None] for index in best.indices.tolist()])
        if fault == "short":
            own.pop()
        if fault == "foreign":
            own[-1][1] = (tokens[-1] % last) + 1
        meta = {"input_token_logprobs": own, "completion_tokens": 1}
        if k:  # Otherwise there is no such key.
            meta["input_top_logprobs"] = top
        return web.json_response({"text": "", "output_ids": [0], "meta_info": meta})

    @torch.no_grad()
    def _rows(self, tokens):
        """Return each token after the first, with the log-probabilities of all tokens in its place."""
        ids = torch.tensor(tokens)
        states = self.model.hidden(
            ids, torch.arange(len(tokens)), torch.tensor([0, len(tokens)], dtype=torch.int32), len(tokens)
        )
        log_p = self.model.project(states).float().log_softmax(-1)
        return zip(tokens[1:], log_p[:-1], strict=True)
