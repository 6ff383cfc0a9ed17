"""OpenAI responses: `POST /v1/responses`, without state of our own: the client sends its whole history each time."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Final

from areal.gateway.conversation import Conversation, FunctionCall, Turn
from areal.gateway.wire import common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from areal.gateway.wire.common import AnswerRequest, RefusedRequestError, Reply

_READ: Final = frozenset(
    {"input", "instructions", "max_output_tokens", "model", "stream", "temperature", "tool_choice", "tools", "top_p"}
)
_HARMLESS: Final = frozenset(
    {"client_metadata", "include", "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention"}
    | {"reasoning", "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user"}
)
_REFUSED: Final[dict[str, tuple[Any, ...]]] = {
    "background": (False,),
    "conversation": (),
    "max_tool_calls": (),
    "previous_response_id": (),
    "prompt": (),
    "top_logprobs": (0,),
}
_TEXT: Final = ("input_text", "output_text", "text", "refusal")


def parse(body: Mapping[str, Any]) -> AnswerRequest:
    """Read a request. Raises RefusedRequestError."""
    common.refuse_unsupported(body, _REFUSED)
    text = body.get("text")
    if text is not None and (form := common.object_field(text, "text").get("format")) not in (None, {"type": "text"}):
        common.refuse("text.format", f"{form!s:.40} is not supported: grammars are not enforced here")
    choice = body.get("tool_choice")
    tools, unknown = common.offered_tools(
        [] if choice == "none" else body.get("tools"),
        "function",
        lambda tool, _: (tool.get("name"), tool.get("description"), tool.get("parameters")),
    )
    return common.AnswerRequest(
        conversation=Conversation(_turns(body), tools),
        model=common.text_field(body.get("model"), "model"),
        stream=common.flag_field(body.get("stream"), "stream"),
        max_tokens=common.integer_field(body.get("max_output_tokens"), "max_output_tokens"),
        temperature=common.number_field(body.get("temperature"), "temperature"),
        top_p=common.number_field(body.get("top_p"), "top_p"),
        forces_tool=choice == "required" or isinstance(choice, dict),
        unknown=(*common.unknown_fields(body, _READ | _HARMLESS | _REFUSED.keys() | {"text"}), *unknown),
    )


def _turns(body: Mapping[str, Any]) -> tuple[Turn, ...]:
    found: list[Turn] = []
    if instructions := common.text_field(body.get("instructions"), "instructions"):
        found.append(Turn("system", instructions))
    given = body.get("input")
    if isinstance(given, str):
        return (*found, Turn("user", given))
    items = common.list_field(given, "input")
    if not items:
        common.refuse("input", "expected a text, or at least one item")
    names: dict[str, str] = {}
    said: _AssistantTurn | None = None
    for index, item in enumerate(items):
        place = f"input[{index}]"
        kind = common.object_field(item, place).get("type", "message")
        role = item.get("role")
        if kind in ("reasoning", "function_call") or (kind == "message" and role == "assistant"):
            said = said or _AssistantTurn()
            said.add(kind, item, place, names)
            continue
        if said is not None:
            found.append(said.turn())
            said = None
        if kind == "message" and role in ("user", "system", "developer"):
            text = common.content_text(item.get("content"), f"{place}.content", _TEXT)
            found.append(Turn("user" if role == "user" else "system", text))
        elif kind == "function_call_output":
            call = common.text_field(item.get("call_id"), f"{place}.call_id")
            text = common.content_text(item.get("output"), f"{place}.output", _TEXT)
            found.append(Turn("tool", text, name=names.get(call, "")))
        else:
            common.refuse(f"{place}.type", f"{kind!r:.40} with role {role!r:.40} is not supported")
    return (*found, said.turn()) if said is not None else tuple(found)


class _AssistantTurn:
    """Items that came from one answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[FunctionCall] = []

    def add(self, kind: str, item: Mapping[str, Any], place: str, names: dict[str, str]) -> None:
        if kind == "function_call":
            name = common.text_field(item.get("name"), f"{place}.name")
            call = common.text_field(item.get("call_id"), f"{place}.call_id")
            names[call] = name
            arguments = common.arguments_field(item.get("arguments"), f"{place}.arguments")
            self._calls.append(FunctionCall(name, arguments, call))
        elif kind == "reasoning":
            kinds = ("summary_text", "reasoning_text", "text")
            self._thoughts.append(common.content_text(item.get("content"), f"{place}.content", kinds))
        else:
            self._texts.append(common.content_text(item.get("content"), f"{place}.content", _TEXT))

    def turn(self) -> Turn:
        thought = "\n".join(text for text in self._thoughts if text)
        return Turn("assistant", "\n".join(text for text in self._texts if text), thought, tuple(self._calls))


# ------------------------------------------------------------------------------------------------------- answers


def document(reply: Reply) -> dict[str, Any]:
    """Return the whole answer as one JSON object."""
    cut = reply.choices[0].was_cut and not reply.choices[0].answer.reply.calls
    return {
        **_head(reply.id, reply.model, reply.created),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(reply),
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens},
            "output_tokens": reply.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        },
    }


def events(reply: Reply, request: AnswerRequest, *, after: int = 0) -> Iterator[bytes]:
    """Return the answer as server-sent events; the last one has the same items that went before."""
    del request
    numbers = itertools.count(after + 1 if after else 0)

    def send(kind: str, **fields: Any) -> bytes:
        return common.event({"type": kind, "sequence_number": next(numbers), **fields}, kind)

    whole = document(reply)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    if not after:
        yield send("response.created", response=begun)
        yield send("response.in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        yield send("response.output_item.added", output_index=index, item=_empty(item))
        if item["type"] == "function_call":
            for piece in common.pieces(item["arguments"]):
                yield send("response.function_call_arguments.delta", **place, delta=piece)
            arguments = item["arguments"]
            yield send("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
        else:
            part = item["content"][0]
            name = "output_text" if part["type"] == "output_text" else "reasoning_text"
            place["content_index"] = 0
            more: dict[str, Any] = {"logprobs": []} if name == "output_text" else {}
            yield send("response.content_part.added", **place, part={**part, "text": ""})
            for piece in common.pieces(part["text"]):
                yield send(f"response.{name}.delta", **place, delta=piece, **more)
            yield send(f"response.{name}.done", **place, text=part["text"], **more)
            yield send("response.content_part.done", **place, part=part)
        yield send("response.output_item.done", output_index=index, item=item)
    yield send(f"response.{whole['status']}", response=whole)


def keep_alive(request: AnswerRequest, reply_id: str, *, number: int) -> bytes:
    """Return a sign of life before the answer is there: Codex's clock does not look at comments."""
    begun = {
        **_head(reply_id, request.model, int(time.time())),
        "status": "in_progress",
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }
    kinds = ["response.created", "response.in_progress"] if number == 0 else ["response.in_progress"]
    first = 0 if number == 0 else number + 1
    return b"".join(
        common.event({"type": kind, "sequence_number": first + index, "response": begun}, kind)
        for index, kind in enumerate(kinds)
    )


def refusal(error: RefusedRequestError) -> tuple[int, dict[str, Any]]:
    """Return status and body of an error."""
    return common.openai_refusal(error)


def refusal_event(error: RefusedRequestError) -> bytes:
    """Return the error as an event of a stream that has begun."""
    said = common.openai_refusal(error)[1]["error"]
    failed = {"status": "failed", "error": {"code": said["code"], "message": said["message"]}, "output": []}
    head = _head("failed", "", int(time.time()))
    kind = "response.failed"
    return common.event({"type": kind, "sequence_number": 1 << 20, "response": {**head, **failed}}, kind)


def _head(reply_id: str, model: str, created: int) -> dict[str, Any]:
    return {
        "id": f"resp_{reply_id}",
        "object": "response",
        "created_at": created,
        "model": model,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
    }


def _items(reply: Reply) -> list[dict[str, Any]]:
    answer = reply.choices[0].answer
    turn, cut = answer.reply, reply.choices[0].was_cut
    found: list[dict[str, Any]] = []
    if turn.reasoning:
        thought = [{"type": "reasoning_text", "text": turn.reasoning}]
        found.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": [], "content": thought})
    if turn.text or not turn.calls:
        part = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
        status = "incomplete" if cut and not turn.calls else "completed"
        said = {"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": status, "content": [part]}
        found.append(said)
    for call in turn.calls:
        called = {"name": call.name, "arguments": common.arguments_text(call.arguments)}
        ids = {"id": f"fc_{call.id}", "call_id": f"call_{call.id}"}
        found.append({"type": "function_call", **ids, **called, "status": "completed"})
    return found


def _empty(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as it is announced, without what comes piece by piece."""
    if item["type"] == "function_call":
        return {**item, "arguments": "", "status": "in_progress"}
    return {**item, "content": [], **({"status": "in_progress"} if "status" in item else {})}
