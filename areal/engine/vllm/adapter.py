"""Implements `ServerAdapter` for vLLM's HTTP API. Differences between versions of vLLM are detected by asking the
server and handled here.

Generation goes through /inference/v1/generate (token ids in and out, weight versions per token) if the server has it,
otherwise through /v1/completions. Weights go through methods of our worker extension, called by /collective_rpc.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.engine.server.adapter import Capabilities, Chunk
from areal.engine.server.checks import MODELS_PATH, adapters_among, field_of
from areal.engine.server.errors import (
    BadAnswerError,
    BadStatusError,
    BrokenTokensError,
    ReplacedError,
    ServerRefusedError,
)
from areal.engine.server.images import body_with_images, check_echo, contracted
from areal.engine.vllm.launch import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

    import numpy as np

    from areal.api import GenerationConfig, ImageRef, PublishedWeights, WeightRoute
    from areal.engine.server.adapter import Call
    from areal.engine.server.client import ServerClient
    from areal.engine.server.routes import ServedRouters

GENERATE: Final = "/inference/v1/generate"
COMPLETIONS: Final = "/v1/completions"
_NEEDED: Final = ("/collective_rpc", "/pause", "/resume", "/abort_requests")
_SETTINGS: Final = ("context", "dtype", "logprobs_mode")
_FINISHES: Final = frozenset({"stop", "length", "abort"})
_ARRAY_MAGIC: Final = b"\x93NUMPY"


class VLLMAdapter:
    """Adapter for vLLM. api: "generate", "completions", or "auto" for the best available. owner: holder of the lease on
    servers that other trainers may use too; their labels then distinguish this trainer's weights from all others.
    """

    name = "vllm"
    stages_paused = False

    def __init__(self, *, api: str = "auto", owner: str = "") -> None:
        self._api, self._owner = api, owner

    def unsupported_sampling(self, config: GenerationConfig) -> str:
        """See `ServerAdapter`: `--logprobs-mode processed_logprobs` makes all of them exact."""
        return ""

    def unsupported_images(self) -> str:
        """See `ServerAdapter`."""
        if self._api == "completions":
            return "vllm.api=completions does not say which prompt it makes of images; set vllm.api to auto"
        return ""

    async def probe(self, client: ServerClient, url: str, *, timeout: float) -> Capabilities:
        """See `ServerAdapter`. The server's API description lists its endpoints, so none is tried out."""
        description = await client.get(url, "/openapi.json", timeout=timeout)
        paths = field_of(description, "paths", dict, where=f"{url}/openapi.json")
        missing = [path for path in _NEEDED if path not in paths]
        if missing:
            raise ServerRefusedError(
                f"vLLM at {url} has no {', '.join(missing)}: start it with VLLM_SERVER_DEV_MODE=1, and with a version "
                f"that has these endpoints (0.32 has)"
            )
        native = GENERATE in paths and self._api != "completions"
        if not native and (self._api == "generate" or COMPLETIONS not in paths):
            raise ServerRefusedError(
                f"vLLM at {url} has no {GENERATE}: start it with --enable-scale-out, or set vllm.api=auto"
            )
        version = await client.get(url, "/version", timeout=timeout)
        workers = await self._rpc(client, url, "areal_hello", timeout=timeout)
        return Capabilities(
            version=str(field_of(version, "version", str, where=f"{url}/version")),
            keeps_requests=native and "/update_weight_version" in paths,
            workers=len(workers),
            verifies=True,
            adapters=all(worker.get("adapters") for worker in workers),
            deltas=all(worker.get("deltas") for worker in workers),
            # Streams of the other endpoint leave them out.
            routes=native and all(worker.get("routes") for worker in workers),
            base=_common(str(worker.get("base", "")) for worker in workers),
            incarnation=str(workers[0].get("incarnation", "")),
            labels=native and "/update_weight_version" in paths,
            settings={name: workers[0][name] for name in _SETTINGS if name in workers[0]},
            details={"native": native, "labels": "/update_weight_version" in paths},
        )

    async def stream(
        self, client: ServerClient, url: str, call: Call, *, capabilities: Capabilities, patience: float
    ) -> AsyncIterator[Chunk | None]:
        """See `ServerAdapter`."""
        native = capabilities.details["native"]
        path, body = (GENERATE, await _native_body(call)) if native else (COMPLETIONS, _completion_body(call))
        where = f"{url}{path}"
        if call.images and not native:
            raise ServerRefusedError(
                f"vLLM at {url} has no {GENERATE}, which images need: start it with --enable-scale-out"
            )
        unchecked = bool(call.images)
        async for event in client.events(url, path, body, patience=patience):
            if event is None:
                yield None
                continue
            if unchecked:
                # It comes with the first tokens; none of them count before it was compared.
                check_echo(event, call.prompt, call.images, where=where)
                unchecked = False
            for choice in field_of(event, "choices", list, where=where):
                yield self._native_chunk(choice, call.routers, where) if native else _completion_chunk(choice, where)

    async def abort(self, client: ServerClient, url: str, call_ids: Sequence[str], *, timeout: float) -> None:
        """See `ServerAdapter`. The server puts the name of the endpoint in front of the ids it is given."""
        names = [f"{prefix}{call_id}" for call_id in call_ids for prefix in ("generate-tokens-", "cmpl-")]
        await client.post(url, "/abort_requests", {"request_ids": names}, timeout=timeout)

    async def pause(self, client: ServerClient, url: str, *, capabilities: Capabilities, timeout: float) -> None:
        """See `ServerAdapter`. Caches stay: only `switch` makes them wrong, and clears them."""
        mode = "keep" if capabilities.keeps_requests else "abort"
        await client.post(url, f"/pause?mode={mode}&clear_cache=false", timeout=timeout)

    async def resume(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        await client.post(url, "/resume", timeout=timeout)

    async def stage(
        self, client: ServerClient, url: str, published: PublishedWeights, route: WeightRoute, *, timeout: float
    ) -> None:
        """See `ServerAdapter`."""
        request = json.dumps(
            {"manifest": published.manifest.to_json(), "source": dict(route.source), "owner": self._owner}
        )
        _all_good(await self._rpc(client, url, "areal_stage", request, timeout=timeout), url, "stage")

    async def switch(
        self, client: ServerClient, url: str, published: PublishedWeights, *, clear_cache: bool, timeout: float
    ) -> None:
        """See `ServerAdapter`. Clearing also moves running calls back to the queue, to be computed anew."""
        version = str(published.manifest.version)
        answers = await self._rpc(client, url, "areal_switch", version, timeout=timeout)
        _all_good(answers, url, "switch")
        wrong = [answer for answer in answers if str(answer.get("version")) != version]
        if wrong:
            raise ServerRefusedError(f"{url} says it switched to {wrong[0].get('version')!r}, expected {version}")
        if clear_cache:
            await client.post(url, "/reset_prefix_cache?reset_running_requests=true", timeout=timeout)
            # Features of images that the tower computed with the weights before; text models keep none.
            with _unless_unknown():
                await client.post(url, "/reset_encoder_cache", {}, timeout=timeout)
        # Versions of vLLM without labels cut requests at updates, so that nothing needs one.
        with _unless_unknown():
            label = {"new_version": self._label(version)}
            await client.post(url, "/update_weight_version", label, timeout=timeout)

    async def sleep(self, client: ServerClient, url: str, *, level: int, timeout: float) -> None:
        """See `ServerAdapter`. Needs --enable-sleep-mode."""
        await client.post(url, f"/sleep?level={level}", timeout=timeout)

    async def load_adapter(self, client: ServerClient, url: str, name: str, folder: str, *, timeout: float) -> None:
        """See `ServerAdapter`. Needs --enable-lora; the answer is a sentence."""
        body = {"lora_name": name, "lora_path": folder}
        await client.post_for_text(url, "/v1/load_lora_adapter", body, timeout=timeout)

    async def adapters(self, client: ServerClient, url: str, *, timeout: float) -> list[str]:
        """See `ServerAdapter`: models that have a parent."""
        return adapters_among(await client.get(url, MODELS_PATH, timeout=timeout), where=f"{url}{MODELS_PATH}")

    async def unload_adapter(self, client: ServerClient, url: str, name: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        await client.post_for_text(url, "/v1/unload_lora_adapter", {"lora_name": name}, timeout=timeout)

    async def is_asleep(self, client: ServerClient, url: str, *, timeout: float) -> bool:
        """See `ServerAdapter`."""
        return bool(field_of(await client.get(url, "/is_sleeping", timeout=timeout), "is_sleeping", bool, where=url))

    async def wake(
        self, client: ServerClient, url: str, part: Literal["weights", "kv_cache"], *, timeout: float
    ) -> None:
        """See `ServerAdapter`."""
        await client.post(url, f"/wake_up?tags={part}", timeout=timeout)

    async def clear_cache(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        await client.post(url, "/reset_prefix_cache", timeout=timeout)

    async def score(
        self,
        client: ServerClient,
        url: str,
        tokens: Sequence[int],
        *,
        images: Sequence[ImageRef] = (),
        timeout: float,
    ) -> list[float]:
        """See `ServerAdapter`."""
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        path = GENERATE
        try:
            answer = await client.post(
                url, path, await _prompt_body(tokens, images, {"sampling_params": sampling}), timeout=timeout
            )
            if images:
                check_echo(answer, tokens, images, where=f"{url}{path}")
            found = field_of(answer, "prompt_logprobs", list, where=f"{url}{path}")
        except BadStatusError as error:
            if images or error.status not in {403, 404}:
                raise
            path = COMPLETIONS
            body = {"model": MODEL_NAME, "prompt": list(tokens), **sampling}
            answer = await client.post(url, path, body, timeout=timeout)
            choices = field_of(answer, "choices", list, where=f"{url}{path}")
            found = field_of(choices[0] if choices else None, "prompt_logprobs", list, where=f"{url}{path}")
        return _scores(found, tokens, f"{url}{path}")

    def _label(self, version: str) -> str:
        """Return the label of a version's tokens on the server."""
        return f"{self._owner}-{version}" if self._owner else version

    def _native_chunk(self, choice: object, routers: ServedRouters | None, where: str) -> Chunk:
        tokens = field_of(choice, "token_ids", list, where=where)
        logprobs: list[Any] = []
        if tokens:
            content = field_of(field_of(choice, "logprobs", dict, where=where), "content", list, where=where)
            logprobs = [entry.get("logprob") if isinstance(entry, dict) else None for entry in content]
            named = [entry.get("token_id") if isinstance(entry, dict) else None for entry in content]
            if len(named) == len(tokens) and named != tokens:
                raise BrokenTokensError(
                    f"{where} sent log-probabilities of tokens {named[:8]} with tokens {tokens[:8]}"
                )
        finish = _finish(choice, where)
        spans = self._spans(choice, where) if finish else None
        routes = None
        if routers is not None and _has(choice, "routed_experts"):
            routes = routers.decode(_array(field_of(choice, "routed_experts", str, where=where), where), where=where)
        return Chunk(tokens=tokens, logprobs=logprobs, finish=finish, spans=spans, routes=routes)

    def _spans(self, choice: object, where: str) -> tuple[tuple[int, int, int], ...] | None:
        if not _has(choice, "weight_versions"):
            # No token, or a version of vLLM without labels.
            return None
        spans = field_of(choice, "weight_versions", list, where=where)
        labels = [str(span.get("version")) if isinstance(span, dict) else "" for span in spans]
        foreign = [label for label in labels if not label.startswith(self._label(""))]
        if foreign:
            raise ReplacedError(f"{where} samples with weights {foreign[0]!r}, which it was not sent from here")
        try:
            return tuple(
                (int(label.removeprefix(self._label(""))), int(span["start"]), int(span["end"]))
                for label, span in zip(labels, spans, strict=True)
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BrokenTokensError(f"{where} sent version labels that are none: {error!r}") from error

    async def _rpc(
        self, client: ServerClient, url: str, method: str, *arguments: str, timeout: float
    ) -> list[dict[str, Any]]:
        answer = await client.post(
            url, "/collective_rpc", {"method": method, "args": list(arguments), "timeout": timeout}, timeout=timeout
        )
        results = field_of(answer, "results", list, where=f"{url}/collective_rpc {method}")
        if not results or not all(isinstance(result, dict) for result in results):
            raise BadAnswerError(f"{url}/collective_rpc {method} answered {str(results)[:200]}, expected objects")
        return results


@contextlib.contextmanager
def _unless_unknown() -> Iterator[None]:
    """Go on where a server has no such route."""
    try:
        yield
    except BadStatusError as error:
        if error.status != 404:
            raise


def _common(values: Iterable[str]) -> str:
    """Return what all workers agree on; empty when they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else ""


async def _native_body(call: Call) -> dict[str, Any] | bytes:
    rest = {
        "request_id": call.call_id,
        **({"model": call.adapter} if call.adapter else {}),
        "stream": True,
        "sampling_params": {
            **_sampling(call),
            "stream_interval": call.stream_interval,
            # Of what follows they are sent, with the last tokens, where the server was started to do so.
            **({"routed_experts_prompt_start": call.routes_from} if call.routers else {}),
        },
    }
    return await _prompt_body(call.prompt, call.images, rest)


async def _prompt_body(
    tokens: Sequence[int], images: Sequence[ImageRef], rest: Mapping[str, Any]
) -> dict[str, Any] | bytes:
    """Return a prompt with the other fields of its request."""
    if not images:
        return {"token_ids": list(tokens), **rest}
    # The server puts all placeholders of an image in the place of one.
    return await body_with_images({"token_ids": contracted(tokens, images), "return_token_ids": True, **rest}, images)


def _completion_body(call: Call) -> dict[str, Any]:
    sampling = _sampling(call)
    return {
        "model": call.adapter or MODEL_NAME,
        "request_id": call.call_id,
        "prompt": list(call.prompt),
        "stream": True,
        "return_token_ids": True,
        **{name: value for name, value in sampling.items() if name != "detokenize"},
    }


def _sampling(call: Call) -> dict[str, Any]:
    return {
        "max_tokens": call.max_tokens,
        "min_tokens": call.min_tokens,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "top_k": call.top_k,
        "seed": call.seed,
        "logprobs": 0,  # of the sampled token only
        # All stop tokens are named, so that the model folder's own list cannot end anything in addition.
        "ignore_eos": True,
        "stop_token_ids": list(call.stop_token_ids),
        "detokenize": False,
    }


def _completion_chunk(choice: object, where: str) -> Chunk:
    tokens = field_of(choice, "token_ids", list, where=where) if _has(choice, "token_ids") else []
    logprobs = (
        field_of(field_of(choice, "logprobs", dict, where=where), "token_logprobs", list, where=where) if tokens else []
    )
    return Chunk(tokens=tokens, logprobs=logprobs, finish=_finish(choice, where))


def _finish(choice: object, where: str) -> str:
    reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    if reason is None:
        return ""
    if reason not in _FINISHES:
        raise BadAnswerError(
            f"{where} ended a generation by {reason!r}, expected one of {', '.join(sorted(_FINISHES))}"
        )
    return str(reason)


def _array(text: str, where: str) -> np.ndarray:
    """Return the array of a file in NumPy's format, as base64. Raises BrokenTokensError when it is none."""
    import numpy as np

    try:
        content = base64.b64decode(text, validate=True)
        if not content.startswith(_ARRAY_MAGIC):  # np.load would open an archive as well
            raise ValueError(f"it begins with {content[:6]!r}")
        return np.asarray(np.load(io.BytesIO(content), allow_pickle=False))
    except Exception as error:  # NumPy evaluates the header, which may raise anything
        raise BrokenTokensError(f"{where} sent experts that are no array in NumPy's format: {error}") from error


def _has(choice: object, name: str) -> bool:
    return isinstance(choice, dict) and choice.get(name) is not None


def _all_good(answers: Sequence[Mapping[str, Any]], url: str, action: str) -> None:
    bad = [answer for answer in answers if answer.get("ok") is not True]
    if bad:
        raise ServerRefusedError(f"{url} could not {action}: {bad[0].get('error', bad[0])}")


def _scores(found: Sequence[Any], tokens: Sequence[int], where: str) -> list[float]:
    if len(found) != len(tokens):
        raise BadAnswerError(f"{where} scored {len(found)} tokens, expected {len(tokens)}")
    scores = []
    for token, entry in zip(tokens[1:], found[1:], strict=True):
        value = entry.get(str(token)) if isinstance(entry, dict) else None
        scores.append(float(field_of(value, "logprob", float, where=where)))
    return scores
