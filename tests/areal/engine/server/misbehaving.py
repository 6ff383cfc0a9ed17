"""A real local HTTP server that speaks the part of vLLM's API the client uses, and misbehaves on request.

`server.script` holds one behaviour per generation, in order; when it is empty generations are good. Behaviours:

    good, drop:N (connection cut after N tokens, once `may_drop()`), stall:N (silent after N), html, status:CODE,
    truncated, no_end, wrong_count, none, nan, positive, clamped, foreign_token, spans (labels that do not cover the
    tokens), old_label (labels of another version), unfinished (says "stop" without a stop token)
"""

from __future__ import annotations

import asyncio
import json
import math
import threading

from aiohttp import web

PATHS = ("/collective_rpc", "/pause", "/resume", "/abort_requests", "/inference/v1/generate",
         "/update_weight_version", "/reset_prefix_cache")  # fmt: skip


class MisbehavingServer:
    """Runs on a thread; tokens count up from 2 (modulo `vocab`), each with log-probability -0.5."""

    def __init__(self, *, incarnation: str = "", vocab: int = 20) -> None:
        self.incarnation, self.vocab = incarnation, vocab
        self.script: list[str] = []
        self.requests: list[dict] = []
        self.calls: list[str] = []
        self.label = "0"
        self.score = -0.5
        self.versions_in_logprobs = False
        """Log-probabilities tell which version sampled a token: -0.5 - version / 1000."""
        self.delay = 0.0
        """Seconds between two tokens."""
        self.held = math.inf
        """Number of tokens after which answers wait."""
        self.may_drop = lambda: True
        self.refuse_stage = 0
        self.refuse_switch = 0
        self.paths = PATHS
        self.aborted = 0
        """Number of times all generations were cut, as /pause?mode=abort does."""
        self.running = threading.Event()
        self.running.set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.add_routes([web.route("*", "/{path:.*}", self._handle)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.calls.append(path)
        body = await request.json() if request.method == "POST" and request.can_read_body else {}
        if path == "/openapi.json":
            return web.json_response({"paths": {name: {} for name in self.paths}})
        if path == "/version":
            return web.json_response({"version": "0.32.0"})
        if path == "/collective_rpc":
            return self._rpc(body)
        if path == "/update_weight_version":
            self.label = body["new_version"]
        if path == "/pause":
            self.aborted += request.query["mode"] == "abort"
            self.running.clear()
        if path == "/resume":
            self.running.set()
        if path == "/inference/v1/generate" and path in self.paths:
            return await self._generate(request, body)
        if path == "/inference/v1/generate":
            return web.json_response({"detail": "Not Found"}, status=404)
        if path == "/v1/completions":
            return await self._complete(request, body)
        return web.json_response({"status": "ok"})

    def _rpc(self, body: dict) -> web.Response:
        method = body["method"]
        answer = {"ok": True, "version": None}
        if method == "areal_hello":
            answer = {"incarnation": self.incarnation, "rank": 0, "parameters": []}
        elif method == "areal_stage" and self.refuse_stage:
            self.refuse_stage -= 1
            answer = {"ok": False, "error": "norm.weight has other bytes than announced"}
        elif method == "areal_switch":
            answer["version"] = int(body["args"][0])
            if self.refuse_switch:
                self.refuse_switch -= 1
                answer = {"ok": False, "error": "RuntimeError: out of memory", "broken": True}
        return web.json_response({"results": [answer]})

    async def _generate(self, request: web.Request, body: dict) -> web.StreamResponse:
        sampling = body["sampling_params"]
        if "prompt_logprobs" in sampling:
            scores = [None, *({str(token): {"logprob": self.score}} for token in body["token_ids"][1:])]
            return web.json_response({"prompt_logprobs": scores, "choices": []})
        self.requests.append(body)
        behaviour, _, number = (self.script.pop(0) if self.script else "good").partition(":")
        if behaviour == "html":
            return web.Response(text="<html><body>502 Bad Gateway</body></html>", content_type="text/html")
        if behaviour == "status":
            return web.json_response({"error": {"message": "engine is dead"}}, status=int(number))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await self._stream(request, response, body, behaviour, int(number or 0))
        return response

    async def _stream(self, request, response, body, behaviour, number) -> None:
        limit = body["sampling_params"]["max_tokens"]
        first = len(body["token_ids"])
        labels = []
        for index in range(limit):
            if behaviour in {"drop", "stall"} and index == number:
                if behaviour == "stall":
                    await asyncio.sleep(600)
                while not self.may_drop():
                    await asyncio.sleep(0.005)
                request.transport.abort()
                return
            while index >= self.held or not self.running.is_set():
                await asyncio.sleep(0.005)
            await asyncio.sleep(self.delay)
            labels.append(self.label)
            choice = self._choice(first + index, behaviour if index == limit // 2 else "good")
            if index == limit - 1 and behaviour != "no_end":
                choice |= {"finish_reason": "length", "weight_versions": _spans(labels)}
                if behaviour == "spans":
                    choice["weight_versions"] = [{"version": self.label, "start": 0, "end": limit - 1}]
                if behaviour == "old_label":
                    choice["weight_versions"] = [{"version": "default", "start": 0, "end": limit}]
            if behaviour == "unfinished" and index == limit // 2:
                choice |= {"finish_reason": "stop", "weight_versions": _spans(labels)}
            text = json.dumps({"choices": [choice]})
            if behaviour == "truncated" and index == limit // 2:
                text = text[: len(text) // 2]
            await response.write(f"data: {text}\n\n".encode())
            if choice.get("finish_reason"):
                break
        if behaviour != "no_end":
            await response.write(b"data: [DONE]\n\n")

    async def _complete(self, request: web.Request, body: dict) -> web.StreamResponse:
        """As /v1/completions answers: token ids beside the text, no versions."""
        if "prompt_logprobs" in body:
            scores = [None, *({str(token): {"logprob": self.score}} for token in body["prompt"][1:])]
            return web.json_response({"choices": [{"prompt_logprobs": scores}]})
        self.requests.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        limit, cuts = body["max_tokens"], self.aborted
        for index in range(limit):
            while (index >= self.held or not self.running.is_set()) and self.aborted == cuts:
                await asyncio.sleep(0.005)
            token = self._choice(len(body["prompt"]) + index, "good")["token_ids"][0]
            finish = "abort" if self.aborted > cuts else "length" if index == limit - 1 else None
            choice = {"index": 0, "text": "x", "token_ids": [token], "finish_reason": finish,
                      "logprobs": {"token_logprobs": [-0.5], "tokens": ["x"]}}  # fmt: skip
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            if finish:
                break
        await response.write(b"data: [DONE]\n\n")
        return response

    def _choice(self, position: int, behaviour: str) -> dict:
        token = 2 + position % (self.vocab - 2)
        plain = -0.5 - int(self.label) / 1000 if self.versions_in_logprobs else -0.5
        logprob = {"none": None, "nan": float("nan"), "positive": 0.3, "clamped": -9999.0}.get(behaviour, plain)
        content = [{"token_id": token, "logprob": logprob}]
        if behaviour == "wrong_count":
            content = content * 2
        if behaviour == "foreign_token":
            token, content = 10**6, [{"token_id": 10**6, "logprob": -0.5}]
        return {"index": 0, "token_ids": [token], "logprobs": {"content": content}, "finish_reason": None}


def _spans(labels: list[str]) -> list[dict]:
    spans: list[dict] = []
    for index, label in enumerate(labels):
        if not spans or spans[-1]["version"] != label:
            spans.append({"version": label, "start": index, "end": index})
        spans[-1]["end"] = index + 1
    return spans


class Pool:
    """`ServerPool` over servers that run already: announces them, and brings a evicted one back as another life."""

    may_grow = False

    def __init__(self, *servers: MisbehavingServer, restarts: int = 10) -> None:
        self.servers, self.restarts = list(servers), restarts
        self.size = len(servers)
        self.evicted: list[tuple[str, str]] = []
        self.up: set[str] = set()
        self.lives = 0
        self.closed = False

    def start(self, listener) -> None:
        self.listener = listener
        for index in range(self.size):
            threading.Thread(target=self._announce, args=(index,), daemon=True).start()

    def evict(self, instance, reason) -> None:
        if instance.incarnation not in self.up:
            return  # it is being welcomed right now, and that is about to fail
        self.up.discard(instance.incarnation)
        self.evicted.append((instance.name, reason))
        index = int(instance.name.rpartition("-")[2])
        threading.Thread(target=self._again, args=(index, instance, reason), daemon=True).start()

    def close(self) -> None:
        self.closed = True

    def _again(self, index, instance, reason) -> None:
        try:
            self._replace(index, instance, reason)
        except Exception:
            if not self.closed:  # an engine that is gone has no use for news of its servers
                raise

    def _replace(self, index, instance, reason) -> None:
        self.listener.server_down(instance, reason)
        if self.restarts <= 0:
            self.listener.server_retired(instance.name, reason)
            return
        self.restarts -= 1
        self._announce(index)

    def _announce(self, index) -> None:
        from areal.api import ArealError, ServerInstance

        server = self.servers[index]
        self.lives += 1
        server.incarnation = f"life-{self.lives}-{index}"
        instance = ServerInstance(name=f"server-{index}", incarnation=server.incarnation, url=server.url)
        try:
            self.listener.server_up(instance)
            self.up.add(instance.incarnation)
        except ArealError as error:
            if self.restarts <= 0:
                self.listener.server_retired(instance.name, str(error))
            else:
                self.restarts -= 1
                self._announce(index)
