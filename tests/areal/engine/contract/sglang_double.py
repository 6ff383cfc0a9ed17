"""A stand-in for an SGLang server: its command line and HTTP API, with the embedded engine behind them.

    python sglang_double.py [--fault stale] ARGUMENTS OF sglang.launch_server

Tokens, log-probabilities, versions and weights are real; only the program around them is not. Protocol, limits and
traps are those seen with SGLang 0.5.20 on CPUs, each noted where it is imitated. "stale": new weights are acknowledged,
and not used.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import pickle
import sys
import time
import traceback
from contextlib import aclosing
from pathlib import Path

import torch
from aiohttp import web
from safetensors.torch import load_file

from areal.api import EngineError, FaultError, GenerationConfig, ModelRequest, StopReason

sys.path.insert(0, str(Path(__file__).parent))
from double import Device, Model

from areal.engine.sglang import worker
from areal.engine.sglang.launch import LOADER

HEALTH_SECONDS = 20.0
FLAGS = ("--skip-tokenizer-init", "--incremental-streaming-output", "--enable-deterministic-inference",
         "--disable-overlap-schedule", "--disable-radix-cache", "--enable-return-routed-experts")  # fmt: skip


def parse(arguments):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("--fault", "--model-path", "--load-format", "--host", "--dtype", "--log-level", "--device",
                 "--attention-backend", "--sampling-backend", "--custom-weight-loader"):  # fmt: skip
        parser.add_argument(name, default="")
    for name in ("--port", "--context-length", "--max-running-requests", "--tp-size", "--stream-interval",
                 "--max-total-tokens"):  # fmt: skip
        parser.add_argument(name, type=int, default=1)
    parser.add_argument("--mem-fraction-static", type=float)
    for name in FLAGS:
        parser.add_argument(name, action="store_true")
    return parser.parse_args(arguments)


def refusal(message):
    """What a request that cannot run gets, as the first event of its stream."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": 400, "retryable": False}}


class Loaded:
    """The model as a loader of weights sees it: by the names of a checkpoint, all of them or some."""

    def __init__(self, server):
        self.server, self.tensors = server, {}
        self.modules = server.model.module.modules
        self.named_modules = server.model.module.named_modules
        self.parameters = server.model.module.parameters

    def load_weights(self, weights):
        self.tensors |= {name: tensor.clone() for name, tensor in weights}
        self.server.device.load(len(self.tensors))
        self.server.model.load(self.tensors)


class SGLang:
    """The server. `live`: requests that it works on, by id; each is a dict with `aborted` and `slice`."""

    def __init__(self, options):
        self.options = options
        self.model = Model(options.model_path, options.fault, routes=options.enable_return_routed_experts)
        # A class of models may have stop tokens by default; null is what has none.
        assert json.loads((Path(options.model_path) / "config.json").read_text())["eos_token_id"] is None
        self.device = Device(self.model)
        self.loaded = Loaded(self)
        self.live = {}
        self.label = "default"
        self.running = asyncio.Event()
        self.running.set()

    def routes(self):
        posts = {"/generate": self.generate, "/pause_generation": self.pause, "/continue_generation": self.resume,
                 "/abort_request": self.abort, "/update_weights_from_disk": self.update,
                 "/update_weights_from_tensor": self.update_from_tensor,
                 "/release_memory_occupation": self.release, "/resume_memory_occupation": self.take,
                 "/load_lora_adapter": self.load_adapter, "/unload_lora_adapter": self.unload_adapter,
                 "/flush_cache": self.flush}  # fmt: skip
        gets = {"/memory": self.memory, "/server_info": self.info, "/health": self.health, "/v1/models": self.models}
        return [web.post(path, handler) for path, handler in posts.items()] + [
            web.get(path, handler) for path, handler in gets.items()
        ]

    # ---- control

    async def info(self, request):
        seeded = self.options.enable_deterministic_inference
        return web.json_response({"version": "0.5.20", "tp_size": 1, "enable_deterministic_inference": seeded,
                                  "enable_return_routed_experts": self.options.enable_return_routed_experts,
                                  "custom_weight_loader": [self.options.custom_weight_loader],
                                  "weight_version": self.label})  # fmt: skip

    async def health(self, request):
        """It generates a token, unless told otherwise: while the server is paused there is none."""
        if os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "1").lower() in {"0", "false"}:
            return web.Response()
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                await self.running.wait()
        except TimeoutError:
            return web.Response(status=503)
        return web.Response()

    async def pause(self, request):
        mode = (await request.json()).get("mode", "abort")
        if mode not in {"abort", "retract", "in_place"}:
            return web.json_response({"object": "error", "message": "2 validation errors", "code": 400}, status=400)
        self.running.clear()
        if mode != "abort":
            for engine in self.model.engines:
                await asyncio.to_thread(engine.pause)
        while mode == "abort":
            self.abort_all()
            if not self.live:
                break
            await asyncio.sleep(1.0)  # The real one waits as long.
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request):
        for engine in self.model.engines:
            engine.resume()
        self.running.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def abort(self, request):
        body = await request.json()
        if body.get("abort_all"):
            self.abort_all()
        elif body["rid"] in self.live:  # An unknown id is no error. A known one ends all that begin alike.
            self.end([rid for rid in self.live if rid.startswith(body["rid"])])
        return web.Response(content_type="application/octet-stream")

    def abort_all(self):
        self.end(list(self.live))

    def end(self, ids):
        for rid in ids:
            self.live[rid]["aborted"] = True
        for engine in self.model.engines:
            engine.abort([self.live[rid]["slice"] for rid in ids])

    async def memory(self, request):
        return web.json_response({**vars(self.device), "adapters": sorted(self.model.named)})

    async def load_adapter(self, request):
        body = await request.json()
        known, problem = self.model.named, ""
        if body["lora_name"] in known:
            problem = f"LoRA with name {body['lora_name']} already exists."
        else:
            try:
                self.model.add_adapter(body["lora_name"], body["lora_path"])
            except (OSError, KeyError, RuntimeError) as error:
                problem = f"{error}"
        answer = {"success": not problem, "error_message": problem, "loaded_adapters": dict.fromkeys(known, "")}
        return web.json_response(answer, status=400 if problem else 200)

    async def models(self, request):
        names = [{"id": "policy", "parent": None}, *({"id": name, "parent": "policy"} for name in self.model.named)]
        return web.json_response({"object": "list", "data": names})

    async def unload_adapter(self, request):
        found = self.model.named.pop((await request.json())["lora_name"], None)
        return web.json_response({"success": found is not None}, status=400 if found is None else 200)

    async def release(self, request):
        assert not self.live, "a request is running"
        assert sorted((await request.json())["tags"]) == ["kv_cache", "weights"]
        self.device.sleep(2)
        self.model.lose_weights()
        return web.json_response(None)

    async def take(self, request):
        for part in (await request.json())["tags"]:
            self.device.wake(part)
        return web.json_response(None)

    async def flush(self, request):
        return web.Response(status=400 if self.live else 200)

    async def update(self, request):
        body = await request.json()
        self.device.load(body["weight_version"])
        problem = ""
        if body.get("load_format", self.options.load_format) == "dummy":
            problem = "Failed to get model loader: <DummyModelLoader object>."
        else:
            try:
                self.model.load(load_file(f"{body['model_path']}/model.safetensors"))
            except (OSError, EngineError) as error:
                problem = f"Failed to get weights iterator: {error}"
        if problem:
            answer = {"success": False, "message": problem, "num_paused_requests": 0}
            return web.json_response(answer, status=400)
        if body.get("flush_cache", True) and self.live:
            os._exit(1)  # AssertionError: Cache flush failed after updating weights
        self.label = body["weight_version"]
        return web.json_response({"success": True, "num_paused_requests": 0,
                                  "message": "Succeeded to update model weights."})  # fmt: skip

    async def update_from_tensor(self, request):
        """Waits for all requests unless it is paused; a loader that raises ends the server."""
        body = await request.json()
        while self.running.is_set() and self.live:
            await asyncio.sleep(0.01)
        assert body["load_format"] == LOADER == self.options.custom_weight_loader
        (payload,) = body["serialized_named_tensors"]
        try:
            await asyncio.to_thread(worker.load, self.loaded, pickle.loads(base64.b64decode(payload, validate=True)))
        except Exception:  # noqa: BLE001 - the real one ends, whatever it is
            traceback.print_exc()
            os._exit(1)
        if body.get("flush_cache", True) and self.live:
            os._exit(1)
        message = "Success"
        if body.get("weight_version") is not None:
            self.label = body["weight_version"]
            message += f" Weight version updated to {self.label}."
        return web.json_response({"success": True, "message": message})

    # ---- generation

    async def generate(self, request):
        body = await request.json()
        if body.get("logprob_start_len") == 0:
            self.device.generate()
            scores = self.model.score(body["input_ids"])
            last = self.model.module.args.vocab_size - 1  # Its id is written as 0: higher ones are parts of images.
            listed = [
                [score, token if token < last else 0, None]
                for score, token in zip(scores, body["input_ids"], strict=True)
            ]
            return web.json_response({"output_ids": [0], "meta_info": {"input_token_logprobs": listed}})
        while not self.running.is_set():  # A pause may follow a resume before this has run.
            await self.running.wait()
        self.device.generate()
        # From here on a pause waits for it.
        self.live[body["rid"]] = {"aborted": False, "slice": ""}
        try:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
            await response.prepare(request)
            # Closed at once when the client has gone, not when the garbage is collected.
            async with aclosing(self.chunks(body)) as chunks:
                async for event in chunks:
                    await response.write(f"data: {json.dumps(event)}\n\n".encode())
        finally:
            del self.live[body["rid"]]
        await response.write(b"data: [DONE]\n\n")
        return response

    def problem(self, body):
        """Why the server refuses a request; empty when it does not."""
        sampling, length = body["sampling_params"], len(body["input_ids"])
        if sampling.get("min_new_tokens"):
            return "min_new_tokens is unavailable when skip_tokenizer_init=True (requires tokenizer for eos_token_id)."
        if length >= self.options.context_length:
            return f"The input ({length} tokens) is longer than the model's context length."
        if length + sampling["max_new_tokens"] > self.options.context_length:
            return "Requested token count exceeds the model's maximum context length."
        return ""

    async def chunks(self, body):
        if problem := self.problem(body):
            yield refusal(problem)
            return
        rid, begun = body["rid"], time.monotonic()
        entries, sent, label, parts = [], 0, self.label, []
        try:
            async for response, finish in self.slices(body):
                entries += [
                    [logprob, token, None]
                    for logprob, token in zip(response.output_logprobs, response.output_tokens, strict=True)
                ]
                if response.output_tokens:
                    parts.append(response.routes)
                # Cut while paused, it ends in the queue: with all tokens again, and the last of their ids only.
                queued = finish == "abort" and not self.running.is_set()
                shown = entries[sent:] if self.options.incremental_streaming_output and not queued else entries
                sent = len(entries)
                meta = {"id": rid, "finish_reason": None, "weight_version": label, "output_token_logprobs": shown,
                        "output_token_logprobs_length": len(entries), "completion_tokens": len(entries)}  # fmt: skip
                if finish:
                    meta["finish_reason"] = self.reason(finish, queued, entries)
                    meta["weight_versions"] = [{"version": label, "start": 0, "end": len(entries)}]
                    meta["e2e_latency"] = time.monotonic() - begun
                    # What is cut in the queue has lost its place in the cache, and with it the experts.
                    if body.get("return_routed_experts") and parts and not queued:
                        experts = self.model.experts_of(parts, body["routed_experts_start_len"])
                        meta["routed_experts"] = base64.b64encode(experts.astype("<i4").tobytes()).decode()
                ids = [entry[1] for entry in shown]
                yield {"output_ids": ids[-1:] if queued else ids, "meta_info": meta}
        except FaultError as error:
            yield refusal(str(error))

    @staticmethod
    def reason(finish, queued, entries):
        if finish == "abort":
            rest = {"message": "Abort in waiting queue"} if queued else {"message": "Aborted", "status_code": None}
        else:
            rest = {"matched": entries[-1][1]} if finish == "stop" else {"length": len(entries)}
        return {"type": finish, **rest}

    async def slices(self, body):
        """Yield (response, finish) in pieces of the stream interval, the first one of one token."""
        sampling, rid, prompt = body["sampling_params"], body["rid"], body["input_ids"]
        # The last two places of the context stay empty.
        limit = min(sampling["max_new_tokens"], self.options.context_length - len(prompt) - 2)
        greedy = sampling["temperature"] == 0
        # Stop tokens count only without ignore_eos. A bias is imitated where it forbids tokens.
        stop = () if sampling.get("ignore_eos") else tuple(sampling["stop_token_ids"])
        forbidden = tuple(int(token) for token in sampling.get("logit_bias", {}))
        seed = sampling.get("sampling_seed", 42) if self.options.enable_deterministic_inference else time.time_ns()
        tokens, done, finish = list(prompt), 0, ""
        while not finish:
            size = min(self.options.stream_interval if done else 1, limit - done)
            call = ModelRequest(
                input_ids=tokens,
                gconfig=GenerationConfig(
                    max_new_tokens=size, min_new_tokens=size if forbidden else 0, greedy=greedy,
                    temperature=1.0 if greedy else sampling["temperature"], stop_token_ids=forbidden or stop,
                ),
                request_id=f"{rid}/{done}", seed=seed, sampled_before=done,
            )  # fmt: skip
            self.live[rid]["slice"] = call.request_id
            name = body.get("lora_path", "")
            engine = self.model.named[name][1] if name else self.model.engine
            generation = asyncio.ensure_future(engine.agenerate(call))
            await asyncio.sleep(0)  # It is in the engine now, so that an abort finds it.
            if self.live[rid]["aborted"]:
                engine.abort([call.request_id])
            response = await generation
            tokens, done = [*tokens, *response.output_tokens], done + len(response.output_tokens)
            if response.stop_reason is StopReason.STOP:
                finish = "stop"
            elif self.live[rid]["aborted"]:
                finish = "abort"
            elif done >= limit:
                finish = "length"
            yield response, finish
            await self.model.held(done, lambda: self.live[rid]["aborted"])


async def main(arguments):
    torch.set_num_threads(1)
    options = parse(arguments)
    app = web.Application(client_max_size=2**28)
    app.add_routes(SGLang(options).routes())
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
