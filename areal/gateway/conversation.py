"""The canonical form of a conversation: what three dialects mean, without what they only carry along.

Equal are null, "" and absent, a string and one text part, and JSON with other spacing or key order. Ids of items and
calls, cache marks and signatures are not part of it. Any other change of text makes another conversation.

    name = digest(tools_digest(tools), turn_digest(turn))     # of a conversation of one turn

Control tokens of the tokenizer in text of a client are taken out: what a tool returns never ends a turn.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Role = Literal["system", "user", "assistant", "tool"]

_DIGEST_BYTES: Final = 16
_BILLING_LINE: Final = "x-anthropic-billing-header:"
"""A block of Claude Code's system text that differs with every prompt."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool that an assistant turn calls. The id only travels on the wire: nothing that is rendered depends on it."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message. role tool: `text` is the result, `name` the tool's."""

    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[FunctionCall, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that the client offers."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_schema(self) -> dict[str, Any]:
        """Return it as chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the model is to continue."""

    turns: tuple[Turn, ...]
    tools: tuple[OfferedTool, ...] = ()


def canonical_json(value: Any) -> str:
    """Return one text for all ways to write the same JSON value."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def digest(*parts: bytes | str) -> bytes:
    """Return 16 bytes; where one part ends and the next begins makes a difference."""
    # One call for all parts: most are short, and a request has dozens of digests.
    pieces: list[bytes] = []
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        pieces += (len(data).to_bytes(8), data)
    return blake2b(b"".join(pieces), digest_size=_DIGEST_BYTES).digest()


def turn_digest(turn: Turn) -> bytes:
    """Name a turn, without its reasoning: many clients cannot send that back (see `same_reasoning`)."""
    calls = [digest(call.name, canonical_json(dict(call.arguments))) for call in turn.calls]
    return digest(turn.role, turn.text, *calls)


def tools_digest(tools: Sequence[OfferedTool]) -> bytes:
    """Name what the client offers, in its order."""
    return digest(*(canonical_json(tool.as_schema()) for tool in tools))


def same_reasoning(sampled: Turn, echoed: Turn) -> bool:
    """Return whether a client sent an answer's reasoning back unchanged, or not at all."""
    return not echoed.reasoning or echoed.reasoning.strip() == sampled.reasoning.strip()


def merged_system(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Join the system turns at the front, of which most templates take one, and drop empty ones and billing lines."""
    head: list[str] = []
    rest: list[Turn] = []
    for turn in turns:
        if turn.role == "system" and (not turn.text or turn.text.startswith(_BILLING_LINE)):
            continue
        if turn.role == "system" and not rest:
            head.append(turn.text)
        else:
            rest.append(turn)
    return (Turn("system", "\n\n".join(head)), *rest) if head else tuple(rest)


def cleaned_value(value: Any, clean: Callable[[str], str]) -> Any:
    """Return a JSON value with `clean` applied to all its text, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): cleaned_value(inner, clean) for key, inner in value.items()}
    if isinstance(value, list):
        return [cleaned_value(inner, clean) for inner in value]
    return value


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError: NaN and the infinities, which Python reads, are no JSON (`parse_constant`)."""
    raise ValueError(f"{name} is not JSON")


class ControlTokens:
    """Takes the control tokens of a tokenizer out of text, and lone surrogates, which have no encoding."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = tuple(sorted({token for token in tokens if token}, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self._tokens))) if self._tokens else None
        self.removed = 0
        """How many were taken out so far."""

    def clean(self, text: str) -> str:
        """Return the text without them. Taking one out may join the halves of another, which goes as well."""
        if not text.isascii():
            text = text.encode(errors="replace").decode()
        if self._pattern is None or not self._pattern.search(text):
            return text
        kept: list[str] = []
        for character in text:
            kept.append(character)
            for token in self._tokens:
                # Linear in the text, whatever is nested: only what just ended here can have become whole.
                if character == token[-1] and "".join(kept[-len(token) :]) == token:
                    del kept[-len(token) :]
                    self.removed += 1
                    break
        return "".join(kept)

    def cleaned(self, conversation: Conversation) -> Conversation:
        """Return the conversation without them, in text, reasoning and arguments; tools' descriptions included."""
        turns = tuple(
            Turn(
                turn.role,
                self.clean(turn.text),
                self.clean(turn.reasoning),
                tuple(
                    FunctionCall(call.name, cleaned_value(call.arguments, self.clean), call.id) for call in turn.calls
                ),
                turn.name,
            )
            for turn in conversation.turns
        )
        tools = tuple(
            OfferedTool(self.clean(tool.name), self.clean(tool.description), cleaned_value(tool.parameters, self.clean))
            for tool in conversation.tools
        )
        return Conversation(merged_system(turns), tools)
