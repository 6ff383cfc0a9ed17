"""Implements `ServerAdapter` for SGLang's HTTP API. Differences between versions of SGLang are detected by asking the
server and handled here.

Requests are cut before a weight update and continued after it: otherwise they would continue with keys and values of
the old weights, because SGLang drops its cache only when it has no requests. Whole weights in a folder are read by the
server itself, which does not compare them with the manifest; the probe after each update detects a server that did not
load them. All other versions (broadcast, from shards, adapters, only what changed) are taken by our loader in its
workers (see `worker`), which verifies them. It is called while the server is paused, and answers through files: servers
of this program are always on the trainer's machine.

Tested with SGLang 0.5.20; comments beside the code describe the behaviour it depends on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import pickle
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.engine.server.adapter import Capabilities, Chunk
from areal.engine.server.checks import MODELS_PATH, adapters_among, field_of
from areal.engine.server.errors import BadAnswerError, BadStatusError, BrokenTokensError, ServerRefusedError
from areal.engine.sglang.launch import LOADER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from torch import Tensor

    from areal.api import GenerationConfig, ImageRef, PublishedWeights, WeightRoute
    from areal.engine.server.adapter import Call
    from areal.engine.server.client import ServerClient
    from areal.engine.server.routes import ServedRouters

_INFO_PATHS: Final = ("/server_info", "/get_server_info")
_FINISHES: Final = frozenset({"stop", "length", "abort"})
_FORBIDDEN: Final = -1e9
"""Added to the logits of tokens that must not be sampled; JSON cannot express infinity."""
_DRAIN_SECONDS: Final = 2.0
"""Longest wait for cut answers to arrive; see `SGLangAdapter.pause`."""
_POLL_SECONDS: Final = 0.02
_UNKNOWN_MODE: Final = frozenset({400, 404, 422})


class SGLangAdapter:
    """Adapter for SGLang."""

    name = "sglang"
    stages_paused = True

    def unsupported_sampling(self, config: GenerationConfig) -> str:
        """Reject top-p and top-k: SGLang's log-probabilities are computed before these filters."""
        if not config.greedy and (config.top_p < 1 or config.top_k > 0):
            return (
                f"gconfig has top_p {config.top_p} and top_k {config.top_k}, but SGLang returns log-probabilities of "
                f"the unfiltered distribution; sample without filters, or use vllm"
            )
        return ""

    def unsupported_images(self) -> str:
        """Reject images: SGLang does not say which prompt it made of them, so that nothing could be compared."""
        return "SGLang does not say which prompt it makes of images, so they are not sent to it; use vllm or embedded"

    async def probe(self, client: ServerClient, url: str, *, timeout: float) -> Capabilities:
        """See `ServerAdapter`."""
        info = await _info(client, url, timeout=timeout)
        loads = LOADER in (info.get("custom_weight_loader") or ())
        return Capabilities(
            version=str(info.get("version", "unknown")),
            keeps_requests=False,
            workers=int(info.get("tp_size") or 1),
            verifies=loads,
            adapters=loads,
            deltas=loads,
            routes=bool(info.get("enable_return_routed_experts")),
            details={"seeded": bool(info.get("enable_deterministic_inference")), "open": set()},
        )

    async def stream(
        self, client: ServerClient, url: str, call: Call, *, capabilities: Capabilities, patience: float
    ) -> AsyncIterator[Chunk | None]:
        """See `ServerAdapter`. A call with a minimum number of tokens is two requests: SGLang's own option needs a
        tokenizer, so the first request forbids the stop tokens and the second one ends with them."""
        mark, details = object(), capabilities.details
        details["open"].add(mark)
        requests = self._requests(client, url, call, seeded=details["seeded"], patience=patience)
        try:
            async with contextlib.aclosing(requests):
                async for chunk in requests:
                    yield chunk
        finally:
            details["open"].discard(mark)

    async def _requests(
        self, client: ServerClient, url: str, call: Call, *, seeded: bool, patience: float
    ) -> AsyncGenerator[Chunk | None, None]:
        where = f"{url}/generate"
        least = min(call.min_tokens, call.max_tokens) if call.stop_token_ids else 0
        begun: tuple[tuple[int, int, int], ...] | None = ()
        tokens: list[int] = []
        routed = call.routes_from
        for limit, forbid in ((least, True), (call.max_tokens - least, False)):
            if limit == 0:
                continue
            body = _body(call, tokens, limit, forbid=forbid, seeded=seeded, routed=routed)
            before, finish = len(tokens), ""
            events = client.events(url, "/generate", body, patience=patience)
            async with contextlib.aclosing(events):  # type: ignore[type-var]  # written as an async generator
                async for event in events:
                    if event is None:
                        yield None
                        continue
                    chunk = _chunk(event, len(tokens) - before, call.routers, where)
                    tokens += chunk.tokens
                    routed += 0 if chunk.routes is None else chunk.routes.shape[0]
                    finish = chunk.finish
                    if finish:
                        begun = _joined(begun, chunk.spans, before)
                        goes_on = forbid and finish == "length" and len(tokens) < call.max_tokens
                        chunk = replace(chunk, finish="" if goes_on else finish, spans=None if goes_on else begun)
                    yield chunk
            if finish != "length":
                return

    async def abort(self, client: ServerClient, url: str, call_ids: Sequence[str], *, timeout: float) -> None:
        """See `ServerAdapter`."""
        for call_id in call_ids:
            await client.post(url, "/abort_request", {"rid": _request_id(call_id)}, timeout=timeout)

    async def pause(self, client: ServerClient, url: str, *, capabilities: Capabilities, timeout: float) -> None:
        """See `ServerAdapter`. Mode "abort" makes an update safe: it returns when no request is left, and an update
        that finds a request while dropping the cache ends the server.

        SGLang polls for remaining requests only once a second, which would delay every update. Therefore the requests
        are first put back into the queue and cut there, so that none is left by the time it polls.
        """
        try:
            await client.post(url, "/pause_generation", {"mode": "retract"}, timeout=timeout)
            await client.post(url, "/abort_request", {"rid": "", "abort_all": True}, timeout=timeout)
            await _drain(capabilities.details["open"])
        except BadStatusError as error:
            if error.status not in _UNKNOWN_MODE:  # older servers know no modes but "abort"
                raise
        await client.post(url, "/pause_generation", {"mode": "abort"}, timeout=timeout)

    async def resume(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        await client.post(url, "/continue_generation", {}, timeout=timeout)

    async def stage(
        self, client: ServerClient, url: str, published: PublishedWeights, route: WeightRoute, *, timeout: float
    ) -> None:
        """See `ServerAdapter`: a folder is its own stage."""
        if not _reads_folder(published):
            request = {"action": "stage", "manifest": published.manifest.to_json(), "source": dict(route.source)}
            await self._ask_workers(client, url, request, timeout=timeout)

    async def switch(
        self, client: ServerClient, url: str, published: PublishedWeights, *, clear_cache: bool, timeout: float
    ) -> None:
        """See `ServerAdapter`."""
        version = str(published.manifest.version)
        if not _reads_folder(published):
            request = {"action": "switch", "version": published.manifest.version}
            more = {"flush_cache": clear_cache, "weight_version": version}
            await self._ask_workers(client, url, request, timeout=timeout, **more)
            return
        body = {
            "model_path": str(published.folder),
            # Without it the server loads as it did at its start, where it made the weights up.
            "load_format": "auto",
            "flush_cache": clear_cache,
            "weight_version": version,
        }
        answer = await client.post(url, "/update_weights_from_disk", body, timeout=timeout)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise ServerRefusedError(f"{url} could not switch: {answer!r}")

    async def _ask_workers(
        self, client: ServerClient, url: str, request: Mapping[str, Any], *, timeout: float, **more: Any
    ) -> None:
        """Have the loader in each worker do something. Raises ServerRefusedError with what the first says that did not.

        The server is paused: else SGLang would wait for all of its requests.
        """
        count = int((await _info(client, url, timeout=timeout)).get("tp_size") or 1)
        with tempfile.TemporaryDirectory(prefix="areal-answers-") as folder:
            answers = [Path(folder, f"{rank}.json") for rank in range(count)]
            asked = [
                json.dumps({**request, "rank": rank, "answer": str(answer)}) for rank, answer in enumerate(answers)
            ]
            body = {
                "serialized_named_tensors": list(map(_as_name, asked)),
                "load_format": LOADER,
                "flush_cache": False,
                **more,
            }
            path = "/update_weights_from_tensor"
            answer = await client.post(url, path, body, timeout=timeout)
            if not isinstance(answer, dict) or answer.get("success") is not True:
                raise ServerRefusedError(f"{url}{path} could not {request['action']}: {answer!r}")
            for rank, answer_file in enumerate(answers):
                said = json.loads(answer_file.read_text()) if answer_file.exists() else {"error": "it did not answer"}
                if said.get("ok") is not True:
                    raise ServerRefusedError(
                        f"worker {rank} of {url} could not {request['action']}: {said.get('error')}"
                    )

    async def sleep(self, client: ServerClient, url: str, *, level: int, timeout: float) -> None:
        """See `ServerAdapter`: weights are always dropped. Needs --enable-memory-saver."""
        await client.post(url, "/release_memory_occupation", {"tags": ["kv_cache", "weights"]}, timeout=timeout)

    async def load_adapter(self, client: ServerClient, url: str, name: str, folder: str, *, timeout: float) -> None:
        """See `ServerAdapter`. Needs --enable-lora."""
        path = "/load_lora_adapter"
        _require_success(
            await client.post(url, path, {"lora_name": name, "lora_path": folder}, timeout=timeout), f"{url}{path}"
        )

    async def adapters(self, client: ServerClient, url: str, *, timeout: float) -> list[str]:
        """See `ServerAdapter`: models that have a parent."""
        return adapters_among(await client.get(url, MODELS_PATH, timeout=timeout), where=f"{url}{MODELS_PATH}")

    async def unload_adapter(self, client: ServerClient, url: str, name: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        path = "/unload_lora_adapter"
        _require_success(await client.post(url, path, {"lora_name": name}, timeout=timeout), f"{url}{path}")

    async def is_asleep(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """See `ServerAdapter`: nothing tells it. A server whose run is gone has ended with it."""

    async def wake(
        self, client: ServerClient, url: str, part: Literal["weights", "kv_cache"], *, timeout: float
    ) -> None:
        """See `ServerAdapter`."""
        await client.post(url, "/resume_memory_occupation", {"tags": [part]}, timeout=timeout)

    async def clear_cache(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        await client.post(url, "/flush_cache", {}, timeout=timeout)

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
        assert not images, "servers of this program are sent none"
        body = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        where = f"{url}/generate"
        answer = await client.post(url, "/generate", body, timeout=timeout)
        meta = field_of(answer, "meta_info", dict, where=where)
        found = field_of(meta, "input_token_logprobs", list, where=where)
        if len(found) != len(tokens):
            raise BadAnswerError(f"{where} scored {len(found)} tokens, expected {len(tokens)}")
        return [scored(entry, token, where) for entry, token in zip(found[1:], tokens[1:], strict=True)]


def _require_success(answer: Any, where: str) -> None:
    if not isinstance(answer, dict) or answer.get("success") is not True:
        raise ServerRefusedError(f"{where} failed: {str(answer)[:200]}")


async def _drain(streams: set[object]) -> None:
    """Wait until the current streams have ended. New ones may begin: they wait in the server until it resumes."""
    present, deadline = set(streams), time.monotonic() + _DRAIN_SECONDS
    while present & streams and time.monotonic() < deadline:
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(_POLL_SECONDS)  # The last answer leaves the server's books right after it was sent.


async def _info(client: ServerClient, url: str, *, timeout: float) -> dict[str, Any]:
    """Return what a server says of itself. Raises ServerRefusedError when it has no such endpoint."""
    for path in _INFO_PATHS:
        try:
            info = await client.get(url, path, timeout=timeout)
        except BadStatusError as error:
            if error.status != 404:
                raise
            continue
        if isinstance(info, dict):
            return info
    raise ServerRefusedError(f"SGLang at {url} has none of {', '.join(_INFO_PATHS)}; use a version that has one")


def _reads_folder(published: PublishedWeights) -> bool:
    """Return whether the server loads a version by itself."""
    manifest = published.manifest
    return published.folder is not None and not (manifest.keep or manifest.base or manifest.identity)


def _as_name(text: str) -> str:
    """Return named tensors as SGLang takes them: one, whose name is the text."""
    import torch

    return base64.b64encode(pickle.dumps([(text, torch.zeros(1))])).decode()


def _request_id(call_id: str) -> str:
    """Return the id with an end mark: SGLang aborts every request whose id begins with the given one, e.g. "a.12" for
    "a.1"."""
    return f"{call_id};"


def _body(call: Call, sampled: Sequence[int], limit: int, *, forbid: bool, seeded: bool, routed: int) -> dict[str, Any]:
    """Return the body of a request for `limit` further tokens. forbid: whether stop tokens must not be sampled. routed:
    number of tokens whose experts are known."""
    sampling: dict[str, Any] = {"max_new_tokens": limit, "temperature": call.temperature}
    if forbid:
        sampling["logit_bias"] = {str(token): _FORBIDDEN for token in call.stop_token_ids}
    # "ignore_eos" ignores the stop tokens of a request too. The model folder has none of its own (see `launch`).
    sampling |= {"ignore_eos": True} if forbid else {"stop_token_ids": list(call.stop_token_ids)}
    if seeded:
        sampling["sampling_seed"] = call.seed % 2**31
    return {
        "rid": _request_id(call.call_id),
        "input_ids": [*call.prompt, *sampled],
        "sampling_params": sampling,
        "return_logprob": True,
        "stream": True,
        **({"lora_path": call.adapter} if call.adapter else {}),
        **({"return_routed_experts": True, "routed_experts_start_len": routed} if call.routers else {}),
    }


def _chunk(event: Mapping[str, Any], done: int, routers: ServedRouters | None, where: str) -> Chunk:
    """Return the new part of an event: some contain all tokens of the request, some only those since the previous
    event."""
    meta = field_of(event, "meta_info", dict, where=where)
    entries = field_of(meta, "output_token_logprobs", list, where=where)
    total = int(field_of(meta, "completion_tokens", int, where=where))
    new = total - done
    if new < 0 or len(entries) < new:
        raise BrokenTokensError(
            f"{where} sent {len(entries)} log-probabilities for {total} tokens, {done} known before"
        )
    entries = entries[len(entries) - new :]
    tokens = [part_of(entry, 1, where) for entry in entries]
    reason = _finish(meta, where)
    # An answer that was cut in the queue ends with an event that names its last token once more.
    compared = min(new, 1) if reason == "abort" else new
    named = field_of(event, "output_ids", list, where=where)
    if named[len(named) - compared :] != tokens[new - compared :]:
        raise BrokenTokensError(f"{where} sent tokens {named[-8:]} with log-probabilities of {tokens[-8:]}")
    return Chunk(
        tokens=tokens,
        logprobs=[part_of(entry, 0, where) for entry in entries],
        finish=reason,
        spans=_spans(meta, total, where) if reason else None,
        # Sent with the last tokens; not of a request that was cut in the queue.
        routes=None if routers is None or not meta.get("routed_experts") else _routes(meta, routers, where),
    )


def _routes(meta: Mapping[str, Any], routers: ServedRouters, where: str) -> Tensor:
    import numpy as np

    try:
        content = base64.b64decode(field_of(meta, "routed_experts", str, where=where), validate=True)
        reported = np.frombuffer(content, dtype="<i4")
    except ValueError as error:
        raise BrokenTokensError(f"{where} sent experts that are no 32-bit integers in base64: {error}") from error
    return routers.decode(reported, where=where)


def _finish(meta: Mapping[str, Any], where: str) -> str:
    finish = meta.get("finish_reason")
    if finish is None:
        return ""
    reason = str(field_of(finish, "type", str, where=where))
    if reason not in _FINISHES:
        raise BadAnswerError(f"{where} ended a generation by {finish!r}")
    if reason == "abort" and finish.get("status_code"):
        raise BadStatusError(int(finish["status_code"]), where, str(finish.get("message")))
    return reason


def _spans(meta: Mapping[str, Any], total: int, where: str) -> tuple[tuple[int, int, int], ...] | None:
    """Return the versions of the tokens. Servers before 0.5.20 report one per request, which is correct because no
    request survives an update."""
    if not total:
        return ()
    labels = meta.get("weight_versions")
    if labels is None and meta.get("weight_version") is not None:
        labels = [{"version": meta["weight_version"], "start": 0, "end": total}]
    if labels is None:
        return None
    try:
        return tuple((int(label["version"]), int(label["start"]), int(label["end"])) for label in labels)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenTokensError(f"{where} names weight versions {labels!r}, which were never sent to it") from error


def _joined(
    begun: tuple[tuple[int, int, int], ...] | None, spans: tuple[tuple[int, int, int], ...] | None, before: int
) -> tuple[tuple[int, int, int], ...] | None:
    """Join the spans of a call's requests. before: number of tokens of the earlier requests."""
    if begun is None or spans is None:
        return None
    return (*begun, *((version, start + before, end + before) for version, start, end in spans))


def part_of(entry: object, index: int, where: str) -> Any:
    """Return a part of a triple. Raises BrokenTokensError unless it is one."""
    if not isinstance(entry, list) or len(entry) < 2:
        raise BrokenTokensError(f"{where} sent {entry!r} as a log-probability, expected [logprob, token, text]")
    return entry[index]


def scored(entry: object, token: int, where: str) -> float:
    """Return the log-probability of a token of the prompt. Raises BadAnswerError when it is that of another token.

    SGLang writes 0 as the id of the vocabulary's last token, an id it uses for images; the value is right.
    """
    value, found = part_of(entry, 0, where), part_of(entry, 1, where)
    if found not in {token, 0} or not isinstance(value, float):
        raise BadAnswerError(f"{where} scored token {found!r} as {value!r}, expected token {token}")
    return value
