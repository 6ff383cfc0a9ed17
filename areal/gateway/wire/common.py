"""What the dialects share: a request and an answer without a dialect, refusals, and reading of untrusted JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol

from areal.api import ArealError, StopReason
from areal.gateway.conversation import Conversation, OfferedTool, refuse_constant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from areal.gateway.capture import Answer

RefusalKind = Literal[
    "invalid", "auth", "closed", "context", "overloaded", "too_many", "too_large", "missing", "failed"
]

PIECE_CHARACTERS: Final = 80
"""Streams go out in pieces of about twenty tokens, once the answer is complete."""
MOST_TOOLS: Final = 1024


class RefusedRequestError(ArealError):
    """A request is not answered; each dialect says it in its own form."""

    code = "refused"

    def __init__(self, kind: RefusalKind, message: str, *, param: str = "") -> None:
        """param: the field of the request that is at fault."""
        super().__init__(message)
        self.kind, self.message, self.param = kind, message, param


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """What a client asks for."""

    conversation: Conversation
    model: str
    n: int = 1
    stream: bool = False
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    with_usage: bool = False
    """Whether a chat stream ends with a chunk of usage."""
    with_logprobs: bool = False
    forces_tool: bool = False
    """Whether a call is demanded, which is not enforced."""
    unknown: tuple[str, ...] = ()
    """Fields and kinds of tools that mean nothing here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyChoice:
    """One answer on its way to the client."""

    answer: Answer
    stop_string: str = ""
    """The one that ended it."""
    tokens: Sequence[tuple[str, float]] = ()
    """Text and log-probability of each token, when the client asked for them."""

    @property
    def was_cut(self) -> bool:
        """Whether the budget or the context ended it."""
        return self.answer.stop_reason is StopReason.LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """All answers to one request."""

    id: str
    model: str
    choices: tuple[ReplyChoice, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    replay: bytes = b""
    """Names the request, for one that comes again since its answer did not arrive."""
    created: int = field(default_factory=lambda: int(time.time()))


class Dialect(Protocol):
    """What a module of this package provides."""

    def parse(self, body: Mapping[str, Any]) -> AnswerRequest:
        """Read a request. Raises RefusedRequestError."""
        ...

    def document(self, reply: Reply) -> dict[str, Any]:
        """Return the whole answer as one JSON object."""
        ...

    def events(self, reply: Reply, request: AnswerRequest, *, after: int = 0) -> Iterator[bytes]:
        """Return the answer as server-sent events. after: signs of life that went before."""
        ...

    def keep_alive(self, request: AnswerRequest, reply_id: str, *, number: int) -> bytes:
        """Return a sign of life before the answer is there, the `number`-th from 0."""
        ...

    def refusal(self, error: RefusedRequestError) -> tuple[int, dict[str, Any]]:
        """Return status and body of an error."""
        ...

    def refusal_event(self, error: RefusedRequestError) -> bytes:
        """Return the error as an event of a stream that has begun."""
        ...


# ------------------------------------------------------------------------------------------------------- reading


def read_json(data: bytes) -> dict[str, Any]:
    """Read the body of a request. Raises RefusedRequestError for anything but one JSON object."""
    try:
        found = json.loads(data, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise RefusedRequestError("invalid", f"the body is not valid JSON: {reason:.200}") from error
    if not isinstance(found, dict):
        raise RefusedRequestError("invalid", f"the body is {type(found).__name__}, expected an object")
    return found


def refuse(param: str, what: str) -> NoReturn:
    """Raise the error of a field that is wrong or not supported."""
    raise RefusedRequestError("invalid", f"{param}: {what}", param=param)


def refuse_unsupported(body: Mapping[str, Any], fields: Mapping[str, Collection[Any]]) -> None:
    """Raise for fields that would change the answer and are not supported. fields: name to values that change
    nothing; None and absent never do.
    """
    for name, harmless in fields.items():
        value = body.get(name)
        if value is not None and not any(value == one and type(value) is type(one) for one in harmless):
            refuse(name, "not supported here")


def text_field(value: Any, param: str) -> str:
    """Return a string; None is empty."""
    if value is None:
        return ""
    if not isinstance(value, str):
        refuse(param, f"is {type(value).__name__}, expected a string")
    return value


def object_field(value: Any, param: str) -> dict[str, Any]:
    """Return an object."""
    if not isinstance(value, dict):
        refuse(param, f"is {type(value).__name__}, expected an object")
    return value


def list_field(value: Any, param: str) -> list[Any]:
    """Return a list; None is empty."""
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(param, f"is {type(value).__name__}, expected a list")
    return value


def integer_field(value: Any, param: str, *, at_least: int = 1) -> int | None:
    """Return an integer, or None for null."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        refuse(param, f"is {value!r:.40}, expected an integer of at least {at_least}")
    return value


def number_field(value: Any, param: str) -> float | None:
    """Return a number of at least 0, or None for null."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        refuse(param, f"is {value!r:.40}, expected a number of at least 0")
    return float(value)


def flag_field(value: Any, param: str) -> bool:
    """Return a boolean; None is False."""
    if value is not None and not isinstance(value, bool):
        refuse(param, f"is {value!r:.40}, expected true or false")
    return bool(value)


def stop_field(value: Any, param: str) -> tuple[str, ...]:
    """Return stop strings, given as one or as a list."""
    given = [value] if isinstance(value, str) else list_field(value, param)
    if len(given) > 16 or not all(isinstance(one, str) and len(one) <= 1000 for one in given):
        refuse(param, "expected at most 16 strings of at most 1000 characters")
    return tuple(one for one in given if one)


def content_text(value: Any, param: str, kinds: Collection[str]) -> str:
    """Return the text of a message: a string, or a list of parts of the given kinds, joined by line breaks."""
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for index, part in enumerate(list_field(value, param)):
        place = f"{param}[{index}]"
        kind = object_field(part, place).get("type")
        if kind not in kinds:
            refuse(f"{place}.type", f"{kind!r:.40} is not supported, only text is")
        texts.append(text_field(part.get("text", part.get("refusal")), f"{place}.text"))
    return "\n".join(text for text in texts if text)


def arguments_field(value: Any, param: str) -> dict[str, Any]:
    """Return the arguments of a call, given as an object or as its JSON text; text that is none stays one argument."""
    if isinstance(value, str):
        if not value.strip():
            return {}
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            refuse(param, "is not valid JSON")
    return object_field(value, param) if value is not None else {}


def offered_tools(
    value: Any, kind: str, fields: Callable[[dict[str, Any], str], tuple[Any, Any, Any]]
) -> tuple[tuple[OfferedTool, ...], list[str]]:
    """Return the tools of `kind` that a client offers, and the names of the other kinds, which cannot be called here.

    fields: gives name, description and parameters of one, from its object and its place in the request.
    """
    given = list_field(value, "tools")
    if len(given) > MOST_TOOLS:
        refuse("tools", f"{len(given)} are too many")
    tools: list[OfferedTool] = []
    others: list[str] = []
    for index, tool in enumerate(given):
        place = f"tools[{index}]"
        found = object_field(tool, place).get("type") or kind
        if found != kind:
            others.append(f"tools.{found!s:.40}")
            continue
        name, description, parameters = fields(tool, place)
        if not isinstance(name, str) or not name:
            refuse(f"{place}.name", "expected a name")
        schema = {"type": "object", "properties": {}} if parameters is None else object_field(parameters, place)
        tools.append(OfferedTool(name, text_field(description, f"{place}.description"), schema))
    return tuple(tools), others


def unknown_fields(body: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """Return fields that nobody here has heard of, to be logged once."""
    return tuple(sorted(str(name)[:60] for name in body.keys() - known)[:20])


# ------------------------------------------------------------------------------------------------------- writing


def pieces(text: str) -> Iterator[str]:
    """Cut a text into what one event of a stream carries."""
    for start in range(0, len(text), PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as clients get them."""
    return json.dumps(arguments, ensure_ascii=False)


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """Return one server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def openai_refusal(error: RefusedRequestError) -> tuple[int, dict[str, Any]]:
    """Return status and body in the form of both OpenAI dialects."""
    status, kind, code = _OPENAI[error.kind]
    return status, {"error": {"message": error.message, "type": kind, "param": error.param or None, "code": code}}


_OPENAI: Final[dict[RefusalKind, tuple[int, str, str]]] = {
    "auth": (401, "authentication_error", "invalid_api_key"),
    "closed": (400, "invalid_request_error", "session_closed"),
    "context": (400, "invalid_request_error", "context_length_exceeded"),
    "failed": (500, "server_error", "internal_error"),
    "invalid": (400, "invalid_request_error", "invalid_request"),
    "missing": (404, "invalid_request_error", "not_found"),
    "overloaded": (503, "server_error", "overloaded"),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "too_many": (429, "rate_limit_error", "rate_limit_exceeded"),
}
"""Codex repeats 401 and 404 six times and a 400 once, so that what no repetition mends is a 400."""
