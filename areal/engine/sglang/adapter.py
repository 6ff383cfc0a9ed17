"""SGLang's HTTP API as a `ServerAdapter`. What differs between versions of SGLang is found out by asking, and stays
here.

Requests are cut before a weight update and continued after it: a call then has one version, which the server names in
its answers. Weights come from a folder that the server reads (carriers disk and shared_memory). The server does not
compare them with the manifest; the probe after each update is what finds a server that did not take them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.engine.server.adapter import Capabilities, Chunk
from areal.engine.server.checks import field_of
from areal.engine.server.errors import BadAnswerError, BadStatusError, BrokenTokensError, RefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from areal.api import GenerationConfig, PublishedWeights, WeightRoute
    from areal.engine.server.adapter import Call
    from areal.engine.server.client import ServerClient

_INFO_PATHS: Final = ("/server_info", "/get_server_info")
_FINISHES: Final = frozenset({"stop", "length", "abort"})


class SGLangAdapter:
    """See the module."""

    name = "sglang"

    def unsupported_sampling(self, config: GenerationConfig) -> str:
        """SGLang's log-probabilities are taken before top-p and top-k, so they are not those of what was sampled."""
        if not config.greedy and (config.top_p < 1 or config.top_k > 0):
            return (
                f"gconfig has top_p {config.top_p} and top_k {config.top_k}, but SGLang returns log-probabilities of "
                f"the unfiltered distribution; sample without filters, or use vllm"
            )
        return ""

    async def probe(self, client: ServerClient, url: str, *, timeout: float) -> Capabilities:
        """See `ServerAdapter`."""
        info: Any = None
        for path in _INFO_PATHS:
            try:
                info = await client.get(url, path, timeout=timeout)
                break
            except BadStatusError as error:
                if error.status != 404:
                    raise
        if not isinstance(info, dict):
            raise RefusedError(f"SGLang at {url} has none of {', '.join(_INFO_PATHS)}; use a version that has one")
        return Capabilities(
            version=str(info.get("version", "unknown")),
            keeps_requests=False,
            workers=int(info.get("tp_size") or 1),
            details={"seeded": bool(info.get("enable_deterministic_inference"))},
        )

    async def stream(
        self, client: ServerClient, url: str, call: Call, *, capabilities: Capabilities, patience: float
    ) -> AsyncIterator[Chunk | None]:
        """See `ServerAdapter`. Events repeat what came before (unless the server streams increments): only the new part
        of each is passed on."""
        where = f"{url}/generate"
        body = _body(call, seeded=capabilities.details["seeded"])
        done = 0
        async for event in client.events(url, "/generate", body, patience=patience):
            if event is None:
                yield None
                continue
            chunk, done = _chunk(event, done, where)
            yield chunk

    async def abort(self, client: ServerClient, url: str, call_ids: Sequence[str], *, timeout: float) -> None:
        """See `ServerAdapter`."""
        for call_id in call_ids:
            await client.post(url, "/abort_request", {"rid": call_id}, timeout=timeout)

    async def pause(self, client: ServerClient, url: str, *, capabilities: Capabilities, timeout: float) -> None:
        """See `ServerAdapter`. The other modes of SGLang fail when weights are updated with a flush of the cache."""
        await client.post(url, "/pause_generation", {"mode": "abort"}, timeout=timeout)

    async def resume(self, client: ServerClient, url: str, *, timeout: float) -> None:
        """See `ServerAdapter`."""
        await client.post(url, "/continue_generation", {}, timeout=timeout)

    async def stage(
        self, client: ServerClient, url: str, published: PublishedWeights, route: WeightRoute, *, timeout: float
    ) -> None:
        """See `ServerAdapter`: the folder is the stage."""
        if published.folder is None:
            raise RefusedError("SGLang takes weights from folders only: set weights.carrier to shared_memory or disk")

    async def switch(
        self, client: ServerClient, url: str, published: PublishedWeights, *, clear_cache: bool, timeout: float
    ) -> None:
        """See `ServerAdapter`."""
        version = str(published.manifest.version)
        body = {"model_path": str(published.folder), "flush_cache": clear_cache, "weight_version": version}
        answer = await client.post(url, "/update_weights_from_disk", body, timeout=timeout)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise RefusedError(f"{url} could not switch: {answer!r}")

    async def score(self, client: ServerClient, url: str, tokens: Sequence[int], *, timeout: float) -> list[float]:
        """See `ServerAdapter`."""
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
        return [_logprob(entry, token, where) for entry, token in zip(found[1:], tokens[1:], strict=True)]


def _body(call: Call, *, seeded: bool) -> dict[str, Any]:
    sampling: dict[str, Any] = {
        "max_new_tokens": call.max_tokens,
        "min_new_tokens": call.min_tokens,
        "temperature": call.temperature,
        "stop_token_ids": list(call.stop_token_ids),
        # All stop tokens are named, so that the model folder's own list cannot end anything in addition.
        "ignore_eos": True,
    }
    if seeded:
        sampling["sampling_seed"] = call.seed % 2**31
    return {
        "rid": call.call_id,
        "input_ids": list(call.prompt),
        "sampling_params": sampling,
        "return_logprob": True,
        "stream": True,
    }


def _chunk(event: Mapping[str, Any], done: int, where: str) -> tuple[Chunk, int]:
    meta = field_of(event, "meta_info", dict, where=where)
    entries = field_of(meta, "output_token_logprobs", list, where=where)
    total = int(field_of(meta, "completion_tokens", int, where=where))
    new = total - done
    if new < 0 or len(entries) not in {new, total}:
        raise BrokenTokensError(
            f"{where} sent {len(entries)} log-probabilities for {total} tokens, {done} known before"
        )
    entries = entries[len(entries) - new :] if new else []
    finish = meta.get("finish_reason")
    reason = ""
    if finish is not None:
        reason = str(field_of(finish, "type", str, where=where))
        if reason not in _FINISHES:
            raise BadAnswerError(f"{where} ended a generation by {finish!r}")
        if reason == "abort" and finish.get("status_code") == 400:
            raise BadStatusError(400, where, str(finish.get("message")))
    chunk = Chunk(
        tokens=[_part(entry, 1, where) for entry in entries],
        logprobs=[_part(entry, 0, where) for entry in entries],
        finish=reason,
        spans=_spans(meta, total, where) if reason else None,
    )
    return chunk, total


def _part(entry: object, index: int, where: str) -> Any:
    if not isinstance(entry, list) or len(entry) < 2:
        raise BrokenTokensError(f"{where} sent {entry!r} as a log-probability, expected [logprob, token, text]")
    return entry[index]


def _spans(meta: Mapping[str, Any], total: int, where: str) -> tuple[tuple[int, int, int], ...] | None:
    """The server names one version per call: right, since no call lives through an update."""
    label = meta.get("weight_version")
    if label is None or not total:
        return None
    try:
        return ((int(label), 0, total),)
    except ValueError as error:
        raise BrokenTokensError(f"{where} names weight version {label!r}, which was never sent to it") from error


def _logprob(entry: object, token: int, where: str) -> float:
    value, found = _part(entry, 0, where), _part(entry, 1, where)
    if found != token or not isinstance(value, float):
        raise BadAnswerError(f"{where} scored token {found!r} as {value!r}, expected token {token}")
    return value
