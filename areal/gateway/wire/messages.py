"""Anthropic messages: `POST /v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.gateway.conversation import Conversation, FunctionCall, Turn
from areal.gateway.wire import common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.gateway.wire.common import AnswerRequest, RefusalKind, RefusedRequestError, Reply, ReplyChoice

_READ: Final = frozenset(
    {"max_tokens", "messages", "model", "stop_sequences", "stream", "system", "temperature", "tool_choice", "tools"}
    | {"top_p"}
)
_HARMLESS: Final = frozenset(
    {"betas", "cache_control", "context_management", "metadata", "output_config", "service_tier", "thinking"}
)
_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "container": (),
    "mcp_servers": ([],),
    "output_format": (),
    "top_k": (),
}
_THINKING: Final = ("thinking", "redacted_thinking")
_SIGNATURE: Final = "areal"
"""Thinking blocks must be signed; nothing of the signature is read when they come back."""


def parse(body: Mapping[str, Any]) -> AnswerRequest:
    """Read a request. Raises RefusedRequestError."""
    common.refuse_unsupported(body, _REFUSED)
    config = body.get("output_config")
    if config is not None and common.object_field(config, "output_config").get("format") is not None:
        common.refuse("output_config.format", "not supported: grammars are not enforced here")
    tools, unknown = common.offered_tools(
        body.get("tools"),
        "custom",
        lambda tool, _: (tool.get("name"), tool.get("description"), tool.get("input_schema")),
    )
    choice = body.get("tool_choice")
    kind = common.object_field(choice, "tool_choice").get("type") if choice is not None else "auto"
    return common.AnswerRequest(
        conversation=Conversation(_turns(body), () if kind == "none" else tools),
        model=common.text_field(body.get("model"), "model"),
        stream=common.flag_field(body.get("stream"), "stream"),
        max_tokens=common.integer_field(body.get("max_tokens"), "max_tokens"),
        stop=common.stop_field(body.get("stop_sequences"), "stop_sequences"),
        temperature=common.number_field(body.get("temperature"), "temperature"),
        top_p=common.number_field(body.get("top_p"), "top_p"),
        forces_tool=kind in ("any", "tool"),
        unknown=(*common.unknown_fields(body, _READ | _HARMLESS | _REFUSED.keys()), *unknown),
    )


def _turns(body: Mapping[str, Any]) -> tuple[Turn, ...]:
    found = list(_system(body.get("system"), "system"))
    names: dict[str, str] = {}
    messages = common.list_field(body.get("messages"), "messages")
    if not messages:
        common.refuse("messages", "expected at least one")
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role = common.object_field(message, place).get("role")
        content = message.get("content")
        if role == "system":
            found += _system(content, f"{place}.content")
        elif role == "user":
            found += _user(content, f"{place}.content", names)
        elif role == "assistant":
            turn = _assistant(content, f"{place}.content")
            names |= {call.id: call.name for call in turn.calls}
            found.append(turn)
        else:
            common.refuse(f"{place}.role", f"{role!r:.40} is unknown")
    return tuple(found)


def _system(value: Any, place: str) -> list[Turn]:
    """Each block by itself: one of Claude Code's is dropped (`conversation.merged_system`)."""
    if value is None or isinstance(value, str):
        return [Turn("system", value)] if value else []
    blocks = common.list_field(value, place)
    texts = [common.content_text([block], f"{place}[{index}]", ("text",)) for index, block in enumerate(blocks)]
    return [Turn("system", text) for text in texts if text]


def _user(value: Any, place: str, names: Mapping[str, str]) -> list[Turn]:
    if value is None or isinstance(value, str):
        return [Turn("user", value or "")]
    found: list[Turn] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            found.append(Turn("user", "\n".join(texts)))
            texts.clear()

    for index, block in enumerate(common.list_field(value, place)):
        where = f"{place}[{index}]"
        kind = common.object_field(block, where).get("type")
        if kind == "tool_result":
            flush()
            call = common.text_field(block.get("tool_use_id"), f"{where}.tool_use_id").removeprefix("toolu_")
            result = common.content_text(block.get("content"), f"{where}.content", ("text",))
            found.append(Turn("tool", result, name=names.get(call, "")))
        else:
            text = common.content_text([block], where, ("text",))
            texts += [text] if text else []
    flush()
    return found or [Turn("user", "")]


def _assistant(value: Any, place: str) -> Turn:
    if value is None or isinstance(value, str):
        return Turn("assistant", value or "")
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[FunctionCall] = []
    for index, block in enumerate(common.list_field(value, place)):
        where = f"{place}[{index}]"
        kind = common.object_field(block, where).get("type")
        if kind in _THINKING:
            thoughts.append(common.text_field(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            name = common.text_field(block.get("name"), f"{where}.name")
            call = common.text_field(block.get("id"), f"{where}.id").removeprefix("toolu_")
            calls.append(FunctionCall(name, common.arguments_field(block.get("input"), f"{where}.input"), call))
        else:
            texts.append(common.content_text([block], where, ("text",)))
    thought = "\n".join(text for text in thoughts if text)
    return Turn("assistant", "\n".join(text for text in texts if text), thought, tuple(calls))


# ------------------------------------------------------------------------------------------------------- answers


def document(reply: Reply) -> dict[str, Any]:
    """Return the whole answer as one JSON object."""
    choice = reply.choices[0]
    return {
        **_head(reply),
        "content": _blocks(choice),
        "stop_reason": _stop_reason(choice),
        "stop_sequence": choice.stop_string or None,
        "usage": _usage(reply, reply.completion_tokens),
    }


def events(reply: Reply, request: AnswerRequest, *, after: int = 0) -> Iterator[bytes]:
    """Return the answer as server-sent events."""
    del request, after
    choice = reply.choices[0]

    def send(kind: str, **fields: Any) -> bytes:
        return common.event({"type": kind, **fields}, kind)

    started = {**_head(reply), "content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(reply, 0)}
    yield send("message_start", message=started)
    for index, block in enumerate(_blocks(choice)):
        kind = block["type"]
        if kind == "tool_use":
            yield send("content_block_start", index=index, content_block={**block, "input": {}})
            text = common.arguments_text(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in common.pieces(text)]
        elif kind == "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            yield send("content_block_start", index=index, content_block=empty)
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in common.pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        else:
            yield send("content_block_start", index=index, content_block={"type": "text", "text": ""})
            deltas = [{"type": "text_delta", "text": piece} for piece in common.pieces(block["text"])]
        for delta in deltas:
            yield send("content_block_delta", index=index, delta=delta)
        yield send("content_block_stop", index=index)
    end = {"stop_reason": _stop_reason(choice), "stop_sequence": choice.stop_string or None}
    yield send("message_delta", delta=end, usage={"output_tokens": reply.completion_tokens})
    yield send("message_stop")


def keep_alive(request: AnswerRequest, reply_id: str, *, number: int) -> bytes:
    """Return a sign of life before the answer is there."""
    del request, reply_id, number
    return common.event({"type": "ping"}, "ping")


def refusal(error: RefusedRequestError) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error."""
    status, kind = _ANTHROPIC[error.kind]
    return status, {"type": "error", "error": {"type": kind, "message": error.message}}


def refusal_event(error: RefusedRequestError) -> bytes:
    """Return the error as an event of a stream that has begun."""
    return common.event(refusal(error)[1], "error")


_ANTHROPIC: Final[dict[RefusalKind, tuple[int, str]]] = {
    "auth": (403, "permission_error"),
    "closed": (403, "permission_error"),
    "context": (400, "invalid_request_error"),
    "failed": (500, "api_error"),
    "invalid": (400, "invalid_request_error"),
    "missing": (404, "not_found_error"),
    "overloaded": (529, "overloaded_error"),
    "too_large": (413, "request_too_large"),
    "too_many": (429, "rate_limit_error"),
}
"""Claude Code repeats a 401 six times, a 403 once."""


def _head(reply: Reply) -> dict[str, Any]:
    return {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": reply.model}


def _blocks(choice: ReplyChoice) -> list[dict[str, Any]]:
    turn = choice.answer.reply
    found: list[dict[str, Any]] = []
    if turn.reasoning:
        found.append({"type": "thinking", "thinking": turn.reasoning, "signature": _SIGNATURE})
    if turn.text:
        found.append({"type": "text", "text": turn.text})
    for call in turn.calls:
        found.append({"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": dict(call.arguments)})
    return found


def _stop_reason(choice: ReplyChoice) -> str:
    if choice.answer.reply.calls:
        return "tool_use"
    if choice.was_cut:
        return "max_tokens"
    return "stop_sequence" if choice.stop_string else "end_turn"


def _usage(reply: Reply, output: int) -> dict[str, int]:
    # Of an answer's tokens the cached ones are counted apart: the client adds all of them up.
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": output,
    }
