"""OpenAI chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.gateway.conversation import Conversation, FunctionCall, Turn
from areal.gateway.wire import common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.gateway.wire.common import AnswerRequest, RefusedRequestError, Reply, ReplyChoice

_READ: Final = frozenset(
    {"logprobs", "max_completion_tokens", "max_tokens", "messages", "model", "n", "stop", "stream", "stream_options"}
    | {"temperature", "tool_choice", "tools", "top_p"}
)
_HARMLESS: Final = frozenset(
    {"metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort"}
    | {"safety_identifier", "seed", "service_tier", "store", "user", "verbosity"}
)
_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "audio": (),
    "frequency_penalty": (0, 0.0),
    "function_call": (),
    "functions": (),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0, 0.0),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "web_search_options": (),
}
_TEXT: Final = ("text", "refusal")


def parse(body: Mapping[str, Any]) -> AnswerRequest:
    """Read a request. Raises RefusedRequestError."""
    common.refuse_unsupported(body, _REFUSED)
    options = body.get("stream_options")
    limit = body.get("max_completion_tokens")
    offered = [] if body.get("tool_choice") == "none" else body.get("tools")
    tools, unknown = common.offered_tools(offered, "function", _function)
    return common.AnswerRequest(
        conversation=Conversation(_turns(body), tools),
        model=common.text_field(body.get("model"), "model"),
        n=common.integer_field(body.get("n"), "n") or 1,
        stream=common.flag_field(body.get("stream"), "stream"),
        max_tokens=common.integer_field(body.get("max_tokens") if limit is None else limit, "max_tokens"),
        stop=common.stop_field(body.get("stop"), "stop"),
        temperature=common.number_field(body.get("temperature"), "temperature"),
        top_p=common.number_field(body.get("top_p"), "top_p"),
        with_usage=bool(options is not None and common.object_field(options, "stream_options").get("include_usage")),
        with_logprobs=common.flag_field(body.get("logprobs"), "logprobs"),
        forces_tool=body.get("tool_choice") not in {None, "auto", "none"}
        if isinstance(body.get("tool_choice"), (str, type(None)))
        else True,
        unknown=(*common.unknown_fields(body, _READ | _HARMLESS | _REFUSED.keys()), *unknown),
    )


def _turns(body: Mapping[str, Any]) -> tuple[Turn, ...]:
    found: list[Turn] = []
    names: dict[str, str] = {}
    messages = common.list_field(body.get("messages"), "messages")
    if not messages:
        common.refuse("messages", "expected at least one")
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role = common.object_field(message, place).get("role")
        text = common.content_text(message.get("content"), f"{place}.content", _TEXT)
        if role in ("system", "developer"):
            found.append(Turn("system", text))
        elif role == "user":
            found.append(Turn("user", text))
        elif role == "tool":
            call = common.text_field(message.get("tool_call_id"), f"{place}.tool_call_id")
            found.append(Turn("tool", text, name=names.get(call, "")))
        elif role == "assistant":
            calls = tuple(_calls(message, place))
            names |= {call.id: call.name for call in calls}
            thought = message.get("reasoning_content") or message.get("reasoning")
            reasoning = common.text_field(thought, f"{place}.reasoning_content")
            found.append(Turn("assistant", text, reasoning, calls))
        else:
            common.refuse(f"{place}.role", f"{role!r:.40} is unknown")
    return tuple(found)


def _calls(message: Mapping[str, Any], place: str) -> Iterator[FunctionCall]:
    for index, call in enumerate(common.list_field(message.get("tool_calls"), f"{place}.tool_calls")):
        where = f"{place}.tool_calls[{index}]"
        function = common.object_field(common.object_field(call, where).get("function"), f"{where}.function")
        yield FunctionCall(
            common.text_field(function.get("name"), f"{where}.function.name"),
            common.arguments_field(function.get("arguments"), f"{where}.function.arguments"),
            common.text_field(call.get("id"), f"{where}.id"),
        )


def _function(tool: Mapping[str, Any], place: str) -> tuple[Any, Any, Any]:
    function = common.object_field(tool.get("function"), f"{place}.function")
    return function.get("name"), function.get("description"), function.get("parameters")


# ------------------------------------------------------------------------------------------------------- answers


def document(reply: Reply) -> dict[str, Any]:
    """Return the whole answer as one JSON object."""
    choices = [
        {
            "index": index,
            "message": _message(choice),
            "finish_reason": _finish(choice),
            "logprobs": _logprobs(choice),
            "answer_id": choice.answer.id,
        }
        for index, choice in enumerate(reply.choices)
    ]
    return {**_head(reply, "chat.completion"), "choices": choices, "usage": _usage(reply)}


def events(reply: Reply, request: AnswerRequest, *, after: int = 0) -> Iterator[bytes]:
    """Return the answer as server-sent events."""
    del after
    head = _head(reply, "chat.completion.chunk")

    def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None, **more}
        return common.event({**head, "choices": [choice]})

    for index, choice in enumerate(reply.choices):
        turn = choice.answer.reply
        yield chunk(index, {"role": "assistant", "content": ""})
        for piece in common.pieces(turn.reasoning):
            yield chunk(index, {"reasoning_content": piece})
        for piece in common.pieces(turn.text):
            yield chunk(index, {"content": piece})
        for number, call in enumerate(turn.calls):
            first = {"id": _call_id(call), "type": "function", "function": {"name": call.name, "arguments": ""}}
            yield chunk(index, {"tool_calls": [{"index": number, **first}]})
            for piece in common.pieces(common.arguments_text(call.arguments)):
                yield chunk(index, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        yield chunk(index, {}, _finish(choice), logprobs=_logprobs(choice), answer_id=choice.answer.id)
    if request.with_usage:
        yield common.event({**head, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def keep_alive(request: AnswerRequest, reply_id: str, *, number: int) -> bytes:
    """Return a sign of life before the answer is there."""
    del request, reply_id, number
    return b": working\n\n"


def refusal(error: RefusedRequestError) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error."""
    return common.openai_refusal(error)


def refusal_event(error: RefusedRequestError) -> bytes:
    """Return the error as an event of a stream that has begun."""
    return common.event(common.openai_refusal(error)[1])


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": reply.model}


def _message(choice: ReplyChoice) -> dict[str, Any]:
    turn = choice.answer.reply
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if not turn.calls:
        message["content"] = turn.text
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": _call_id(call),
                "type": "function",
                "function": {"name": call.name, "arguments": common.arguments_text(call.arguments)},
            }
            for call in turn.calls
        ]
    return message


def _finish(choice: ReplyChoice) -> str:
    if choice.answer.reply.calls:
        return "tool_calls"
    return "length" if choice.was_cut else "stop"


def _logprobs(choice: ReplyChoice) -> dict[str, Any] | None:
    if not choice.tokens:
        return None
    return {
        "content": [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in choice.tokens
        ],
        "refusal": None,
    }


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _call_id(call: FunctionCall) -> str:
    return f"call_{call.id}"
