"""A stand-in for an inference server: the HTTP API of vLLM, served by a process of its own, with the embedded engine
behind it. Tokens, log-probabilities, versions and weights are real; only the program around them is not.

    python double.py vllm FOLDER PORT [FAULT [HOST]]      # FOLDER has a config.json; for SGLang see sglang_double.py

It follows the answers of vLLM 0.32, field by field, as far as the adapter reads them. FAULT "stale": new weights are
acknowledged, and not used; "stale_tower": those of the image half are not used; "small": images are resized to their
fewest pixels; "no_echo": what was made of a prompt is not said; "refuse": new weights are not taken. With
AREAL_TEST_ROUTES it reports the experts that routers choose, as servers do that were started with
--enable-return-routed-experts. While FOLDER has a file "hold", no answer gets further than HELD_TOKENS tokens.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import os
import sys
import tempfile
import uuid
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import device_ledger
import numpy as np
import torch
from aiohttp import web
from safetensors.torch import load_file, save_file

from areal.api import (
    EngineError,
    FaultError,
    GenerationConfig,
    ImageRef,
    ModelRequest,
    PackedImage,
    StopReason,
    WeightUpdateMeta,
)
from areal.dataset.pixels import ImageLimits, decode_image, image_of
from areal.engine.config import EmbeddedEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver
from areal.models import from_config
from areal.models.registry import get_spec
from areal.utils.routes import join_routes

INCARNATION = os.environ.get("AREAL_SERVER_INCARNATION", "") or uuid.uuid4().hex[:12]
ROUTES = bool(os.environ.get("AREAL_TEST_ROUTES"))
PAUSE = float(os.environ.get("AREAL_TEST_PAUSE", "0"))
HELD_TOKENS = 16
VLLM_PATHS = ("/collective_rpc", "/pause", "/resume", "/abort_requests", "/inference/v1/generate",
              "/update_weight_version", "/reset_prefix_cache")  # fmt: skip


class ImageTextModel:
    """Stands for the family of a model of `transformers`: reads weights as a checkpoint."""

    def __init__(self, config):
        from areal.engine.hf import loading

        self._loading, self._config = loading, config
        self.module = loading.from_config(config, seed=12345)

    def from_hf(self, tensors):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(self._config))
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, f"{folder}/model.safetensors")
            return self._loading.from_pretrained(folder).state_dict()


class Model:
    """The engine behind the API. Calls are generated in slices, so that they can be streamed, cut and aborted."""

    def __init__(self, folder, fault, routes=False):
        config = json.loads((Path(folder) / "config.json").read_text())
        if "vision_config" in config:
            self.adapter = ImageTextModel(config)
            self.module = self.adapter.module
        else:
            self.module = from_config(config, seed=12345)
            self.adapter = get_spec(config["model_type"]).state_dict_adapter(self.module.args)
        self.engine = EmbeddedEngine(
            self.module, config=EmbeddedEngineConfig(max_batch_size=64), eos_token_id=None, version=0,
            record_routes=routes,
        )  # fmt: skip
        self.fault = fault
        self.named, self.tensors = {}, {}
        self.settings = {"logprobs_mode": "processed_logprobs", "dtype": config.get("dtype", "float32"),
                         "context": config.get("text_config", config)["max_position_embeddings"]}  # fmt: skip
        self.labels = {0: "default"}
        self.aborted = set()
        self.live = set()
        self.hold = Path(folder) / "hold"
        self.admitting = asyncio.Event()
        self.admitting.set()
        self.seeds = {}
        self.slice_of = {}

    def load(self, tensors):
        if self.fault == "stale" and self.engine.version > 0:
            return
        self.tensors = dict(tensors)
        state = self.adapter.from_hf(tensors)
        if self.fault == "stale_tower" and self.engine.version > 0:
            kept = self.module.state_dict()
            state = {name: kept[name] if "visual" in name or "vision" in name else state[name] for name in state}
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=self.engine.version + 1, state_dict=state))
        for folder, engine in self.named.values():
            mine = self.adapted(folder)
            engine.update_weights(WeightUpdateMeta(kind="memory", version=self.engine.version, state_dict=mine))
        self.module.load_state_dict(state, strict=False)

    def adapted(self, folder):
        """Return the state of the model with a PEFT folder on top of its weights."""
        config = json.loads((Path(folder) / "adapter_config.json").read_text())
        factors = load_file(Path(folder) / "adapter_model.safetensors")
        merged = dict(self.tensors)
        for key in [key for key in factors if key.endswith(".lora_A.weight")]:
            target = key.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
            product = factors[key.replace("lora_A", "lora_B")] @ factors[key]
            merged[target] = merged[target] + product * config["lora_alpha"] / config["r"]
        return self.adapter.from_hf(merged)

    def add_adapter(self, name, folder):
        """Compute requests for `name` with an engine of their own."""
        module = copy.deepcopy(self.module)
        module.load_state_dict(self.adapted(folder), strict=False)
        engine = EmbeddedEngine(
            module, config=EmbeddedEngineConfig(max_batch_size=64), eos_token_id=None, version=self.engine.version
        )
        self.named[name] = (folder, engine)

    @property
    def engines(self):
        return [self.engine, *(engine for _, engine in self.named.values())]

    def lose_weights(self):
        """Compute with other weights from now on, as fluently as before."""
        generator = torch.Generator().manual_seed(99)
        named = self.module.named_parameters()
        state = {name: torch.randn(value.shape, generator=generator) for name, value in named}
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=self.engine.version + 1, state_dict=state))
        self.module.load_state_dict(state, strict=False)

    def prompt(self, body):
        """Token ids with all placeholders, and images. Each image takes the next placeholder, whatever follows it."""
        tokens, images, vision = [], [], getattr(self.module, "vision", None)
        waiting = [self.image(part["url"]) for part in body.get("content_parts") or ()]
        for token in body["token_ids"]:
            if waiting and token == vision.placeholder:
                image = waiting.pop(0)
                length = vision.num_placeholders(image.height, image.width)
                images.append(ImageRef(image=image, start=len(tokens), length=length))
                tokens += [token] * length
            else:
                tokens.append(token)
        assert not waiting, "fewer placeholders than images"
        return tokens, tuple(images)

    def image(self, url):
        vision = self.module.vision
        if self.fault == "small":
            vision = replace(vision, size=(vision.size[0], vision.size[0]))
        content = base64.b64decode(url.removeprefix("data:image/png;base64,"))
        return image_of(np.asarray(vision.fit(decode_image(content, ImageLimits()))))

    def echo(self, body, tokens, images):
        if not body.get("return_token_ids") or self.fault == "no_echo":
            return {}
        places = [{"offset": ref.start, "length": ref.length} for ref in images]
        return {"prompt_token_ids": tokens, "mm_placeholders": {"image": places} if images else None}

    def score(self, tokens, images=()):
        ids = torch.tensor(tokens)
        length = len(ids)
        packed = [
            PackedImage(
                digest=ref.image.digest, pixels=torch.tensor(ref.image.pixels), start=ref.start, length=ref.length
            )
            for ref in images
        ]
        with torch.no_grad():
            states = self.module.hidden(
                ids, torch.arange(length), torch.tensor([0, length], dtype=torch.int32), length,
                **({"images": packed} if packed else {}),
            )  # fmt: skip
            logits = self.module.project(states).float()
        logp = torch.log_softmax(logits, dim=-1)[:-1]
        return [None, *logp.gather(1, ids[1:, None])[:, 0].tolist()]

    def experts_of(self, parts, start):
        """Experts of every layer, zeros where there is no router, of all tokens but the last one: [T, layers, k]."""
        routes = join_routes(parts)[start:]
        found = np.zeros((len(routes), len(self.module.layers), routes.shape[2]), dtype=np.uint8)
        for layer, numbers in enumerate(self.module.router_numbers):
            for number in numbers:
                found[:, layer] = routes[:, number]
        return found

    async def admitted(self):
        """Wait until the server takes calls. A pause may follow a resume before a waiting call has run: look again."""
        while not self.admitting.is_set():
            await self.admitting.wait()

    async def slices(self, call_id, prompt, sampling, interval, images=(), adapter=""):
        """Yield (response, finish) of an admitted call; the last one has a finish."""
        engine = self.named[adapter][1] if adapter else self.engine
        config = dict(sampling)
        limit, done, least = config.pop("max"), 0, config.pop("min")
        tokens = list(prompt)
        self.live.add(call_id)
        try:
            while True:
                size = min(1 if done == 0 else interval, limit - done)
                request = ModelRequest(
                    input_ids=tokens,
                    gconfig=GenerationConfig(
                        max_new_tokens=size, min_new_tokens=min(size, max(0, least - done)), **config
                    ),
                    request_id=f"{call_id}/{done}",
                    seed=self.seeds.get(call_id, 0),
                    sampled_before=done,
                    images=images,
                )
                self.slice_of[call_id] = request.request_id
                generation = asyncio.ensure_future(engine.agenerate(request))
                await asyncio.sleep(0)  # It is in the engine now, so that an abort finds it.
                if call_id in self.aborted:
                    engine.abort([request.request_id])
                response = await generation
                tokens = [*tokens, *response.output_tokens]
                done += len(response.output_tokens)
                finish = ""
                if response.stop_reason is StopReason.STOP:
                    finish = "stop"
                elif call_id in self.aborted:
                    finish = "abort"
                elif done >= limit:
                    finish = "length"
                yield response, finish
                if finish:
                    return
                await asyncio.sleep(PAUSE)
                await self.held(done, lambda: call_id in self.aborted)
        finally:
            self.live.discard(call_id)
            self.aborted.discard(call_id)

    async def held(self, done, is_aborted):
        """Wait before the next slice of an answer of `done` tokens while answers are held."""
        while done >= HELD_TOKENS and self.hold.exists() and not is_aborted():
            await asyncio.sleep(0.005)

    def abort(self, ids):
        chosen = set(self.live) if ids is None else self.live & set(ids)
        self.aborted |= chosen
        for engine in self.engines:
            engine.abort([self.slice_of[call_id] for call_id in chosen])


class Device:
    """Memory of which every byte is accounted for: what is held, the most there was, and what happened in order."""

    def __init__(self, model):
        self.sizes = {"weights": sum(each.nbytes for each in model.module.parameters()), "kv_cache": 10**6}
        if ledger := os.environ.get("AREAL_TEST_DEVICE"):
            self.sizes["kv_cache"] = device_ledger.CACHE
        self.ledger, self.held, self.log = ledger, dict(self.sizes), []
        self.peak = sum(self.held.values())
        self.write()

    def write(self):
        """Account for it among all processes on the device."""
        if self.ledger:
            device_ledger.hold(self.ledger, "server", sum(self.held.values()))

    def sleep(self, level):
        self.log.append(f"sleep {level}")
        self.held = dict.fromkeys(self.sizes, 0)
        self.write()

    def wake(self, part):
        self.log.append(f"wake {part}")
        self.held[part] = self.sizes[part]
        self.peak = max(self.peak, sum(self.held.values()))
        self.write()

    def load(self, version):
        assert self.held["weights"], "there is no memory for weights"
        self.log.append(f"load {version}")

    def generate(self):
        assert all(self.held.values()), "the device is asleep"
        self.log.append("generate")


async def events(request, generator):
    """Send objects as server-sent events."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    # Closed at once when the client has gone: what waits for the garbage collector counts as running until then.
    async with aclosing(generator):
        async for event in generator:
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    return response


class VLLM:
    """The part of vLLM's API that the adapter uses."""

    def __init__(self, model):
        self.model = model
        self.receiver = WeightReceiver(worker_index=0, device=torch.device("cpu"))
        self.version = None
        self.device = Device(model)

    def routes(self):
        posts = {"/sleep": self.sleep, "/wake_up": self.wake,
                 "/collective_rpc": self.rpc, "/inference/v1/generate": self.generate, "/pause": self.pause,
                 "/resume": self.resume, "/abort_requests": self.abort, "/reset_prefix_cache": self.ok,
                 "/v1/load_lora_adapter": self.load_adapter, "/v1/unload_lora_adapter": self.unload_adapter,
                 "/update_weight_version": self.set_label}  # fmt: skip
        gets = {
            "/memory": self.memory,
            "/v1/models": self.models,
            "/is_sleeping": self.is_sleeping,
            "/openapi.json": self.describe,
            "/version": self.describe_version,
        }
        return [web.post(path, handler) for path, handler in posts.items()] + [
            web.get(path, handler) for path, handler in gets.items()
        ]

    async def describe(self, request):
        return web.json_response({"paths": {path: {} for path in VLLM_PATHS}})

    async def describe_version(self, request):
        return web.json_response({"version": "0.32.0"})

    async def ok(self, request):
        return web.json_response({"success": True})

    async def set_label(self, request):
        label = (await request.json())["new_version"]
        self.model.labels[self.model.engine.version] = label
        return web.json_response({"success": True, "new_version": label})

    async def pause(self, request):
        self.model.admitting.clear()
        if request.query["mode"] == "abort":
            self.model.abort(None)
            while self.model.live:  # The real one answers when they have ended, too.
                await asyncio.sleep(0.001)
        for engine in self.model.engines:
            engine.pause()
        return web.json_response({"status": "paused"})

    async def resume(self, request):
        for engine in self.model.engines:
            engine.resume()
        self.model.admitting.set()
        return web.json_response({"status": "resumed"})

    async def abort(self, request):
        ids = (await request.json()).get("request_ids")
        self.model.abort(None if ids is None else [name.removeprefix("generate-tokens-") for name in ids])
        return web.json_response({"status": "aborted"})

    async def memory(self, request):
        return web.json_response({**vars(self.device), "adapters": sorted(self.model.named)})

    async def sleep(self, request):
        level = int(request.query["level"])
        assert not self.model.live, "a request is running"
        self.device.sleep(level)
        if level == 2:
            self.model.lose_weights()
        return web.json_response({})

    async def load_adapter(self, request):
        body = await request.json()
        if body["lora_name"] in self.model.named:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        try:
            self.model.add_adapter(body["lora_name"], body["lora_path"])
        except (OSError, KeyError, RuntimeError) as error:
            return web.json_response({"error": {"message": str(error), "code": 404}}, status=404)
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def models(self, request):
        names = [{"id": "policy", "object": "model", "parent": None}]
        names += [{"id": name, "object": "model", "parent": "policy"} for name in self.model.named]
        return web.json_response({"object": "list", "data": names})

    async def unload_adapter(self, request):
        name = (await request.json())["lora_name"]
        if self.model.named.pop(name, None) is None:
            return web.json_response({"error": {"message": f"no adapter '{name}'", "code": 404}}, status=404)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def is_sleeping(self, request):
        return web.json_response({"is_sleeping": not all(self.device.held.values())})

    async def wake(self, request):
        self.device.wake(request.query["tags"])
        return web.json_response({})

    async def rpc(self, request):
        body = await request.json()
        arguments = body.get("args", [])
        answer = {"ok": True, "version": self.version}
        try:
            if body["method"] == "areal_hello":
                answer = {"incarnation": INCARNATION, "rank": 0, "version": self.version, "adapters": True,
                          "deltas": True, "routes": ROUTES, "base": self.receiver.base,
                          **self.model.settings}  # fmt: skip
            elif body["method"] == "areal_identity":
                self.receiver.lease.hear(arguments[0])
                answer = {"incarnation": INCARNATION, "owner": self.receiver.lease.owner}
            elif body["method"] == "areal_release":
                self.receiver.lease.release(arguments[0])
            elif body["method"] == "areal_stage":
                asked = json.loads(arguments[0])
                if self.model.fault == "refuse" and self.version is not None:
                    raise RefusedWeightsError("there is no memory for another version")
                await asyncio.to_thread(
                    self.receiver.stage, asked["manifest"], asked["source"], owner=asked.get("owner", "")
                )
            elif body["method"] == "areal_switch":
                self.device.load(arguments[0])
                self.model.load(self.receiver.take(int(arguments[0])))
                self.version = answer["version"] = int(arguments[0])
        except (RefusedWeightsError, EngineError) as error:
            answer = {"ok": False, "error": str(error)}
        return web.json_response({"results": [answer]})

    async def generate(self, request):
        body = await request.json()
        sampling = body["sampling_params"]
        tokens, images = self.model.prompt(body)
        if "prompt_logprobs" in sampling:
            await self.model.admitted()
            self.device.generate()
            scores = self.model.score(tokens, images)
            listed = [None] + [
                {str(token): {"logprob": score}} for token, score in zip(tokens[1:], scores[1:], strict=True)
            ]
            echo = self.model.echo(body, tokens, images)
            return web.json_response({"prompt_logprobs": listed, "choices": [], **echo})
        return await events(request, self.chunks(body, sampling))

    async def chunks(self, body, sampling):
        greedy = sampling["temperature"] == 0
        config = {"temperature": 1.0 if greedy else sampling["temperature"], "top_p": sampling["top_p"],
                  "top_k": sampling["top_k"], "greedy": greedy, "stop_token_ids": tuple(sampling["stop_token_ids"]),
                  "max": sampling["max_tokens"], "min": sampling["min_tokens"]}  # fmt: skip
        self.model.seeds[body["request_id"]] = sampling["seed"]
        spans, total, parts = [], 0, []
        start = sampling.get("routed_experts_prompt_start", 0)
        tokens, images = self.model.prompt(body)
        echo = self.model.echo(body, tokens, images)
        try:
            # A call on its way in while the server falls asleep waits, and counts as running from here on.
            await self.model.admitted()
            self.device.generate()
            async for response, finish in self.model.slices(
                body["request_id"], tokens, config, sampling["stream_interval"], images, body.get("model", "")
            ):
                for version in response.output_versions:
                    label = self.model.labels[version]
                    if not spans or spans[-1]["version"] != label:
                        spans.append({"version": label, "start": total, "end": total})
                    total += 1
                    spans[-1]["end"] = total
                if response.output_tokens:
                    parts.append(response.routes)
                content = [
                    {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}
                    for token, logprob in zip(response.output_tokens, response.output_logprobs, strict=True)
                ]
                choice = {
                    "index": 0,
                    "token_ids": response.output_tokens,
                    "logprobs": {"content": content},
                    "finish_reason": finish or None,
                    "weight_versions": spans if finish and total else None,
                    "routed_experts": numpy_file(self.model.experts_of(parts, start))
                    if ROUTES and finish and parts
                    else None,
                }
                yield {"request_id": body["request_id"], "choices": [choice], **echo}
                echo = {}
        except FaultError as error:
            yield {"error": {"message": str(error), "type": "BadRequestError", "code": 400}}


def numpy_file(array):
    """An array in NumPy's format, as base64."""
    with io.BytesIO() as file:
        np.save(file, array, allow_pickle=False)
        return base64.b64encode(file.getvalue()).decode()


async def health(request):
    return web.Response()


async def main(api, folder, port, fault="", host="127.0.0.1"):
    torch.set_num_threads(1)
    served = {"vllm": VLLM}[api](Model(folder, fault, routes=ROUTES))
    app = web.Application(client_max_size=2**28)
    app.add_routes([web.get("/health", health), *served.routes()])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, host, int(port)).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
