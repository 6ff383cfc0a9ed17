"""What a session sampled: a forest of answers, and where a request's conversation continues it.

    forest = Forest(renderer, history="keep")
    place = await forest.place(conversation)        # which answer it continues, and the tokens between
    answers = forest.add(place, response, ...)      # stored before it is sent

A request continues an answer by *message* (its history is the answer's history and the answer), by *extension* (the
client wrote on after a text that a stop string ended), or by *ids* (the rendered history begins with the answer's
tokens). Else it is a root, and the reason is counted. Nothing that was sampled is encoded again.
"""

from __future__ import annotations

import math
import secrets
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import FaultError, FaultKind, StopReason
from areal.gateway.conversation import (
    Conversation,
    Turn,
    digest,
    same_reasoning,
    tools_digest,
    turn_digest,
)
from areal.gateway.parsing import THINK_START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.api import ModelResponse
    from areal.gateway.rendering import Renderer

Continuation = Literal["message", "extension", "ids", "root"]
History = Literal["keep", "template"]

LOGPROB_SLACK: Final = 1e-4
"""Rounding may lift a log-probability this far above 0."""


@dataclass(slots=True, eq=False)
class Answer:
    """One complete generation, with what was between it and the answer that it continues."""

    id: str
    number: int
    """Position in the session, from 0."""
    parent: Answer | None
    added: array[int]
    """Tokens from the end of the parent's output to this one's beginning; of a root, the whole prompt."""
    output: array[int]
    logprobs: array[float]
    versions: array[int]
    stop_reason: StopReason
    turns: tuple[Turn, ...]
    """Messages since the parent's answer."""
    reply: Turn
    """What was sent."""
    raw: str
    """Text of the output, without the token that ended it; a stop string included."""
    closed: bool
    """Whether a stop token ended it."""
    request: bytes
    """Names the conversation it answers."""
    chain: bytes
    """Names that conversation with the answer."""
    how: Continuation
    reason: str
    has_tools: bool
    bare: bytes
    """The same whatever the tools."""
    num_turns: int
    """Of that conversation with the answer."""
    length: int
    """Tokens up to the end of the output."""
    choice: int = 0
    """Which of the `n` answers of its request."""
    num_choices: int = 1
    routes: Tensor | None = None
    """[n, M, K] of the tokens that the model was given since the parent's answer, whose last token it was given here
    (`areal.utils.routes`)."""
    delivered: bool = False
    reward: float | None = None
    children: list[Answer] = field(default_factory=list)

    def transcript(self) -> list[dict[str, Any]]:
        """Return all turns up to this answer: role, text, reasoning, and calls with name and arguments."""
        found: list[dict[str, Any]] = []
        for answer in self.path():
            for turn in (*answer.turns, answer.reply):
                calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in turn.calls]
                found.append({"role": turn.role, "text": turn.text, "reasoning": turn.reasoning, "calls": calls})
        return found

    def path(self) -> list[Answer]:
        """Return the answers from the root to this one."""
        found: list[Answer] = []
        answer: Answer | None = self
        while answer is not None:
            found.append(answer)
            answer = answer.parent
        return found[::-1]

    def tokens(self) -> list[int]:
        """Return all tokens up to the end of the output."""
        found: list[int] = []
        for answer in self.path():
            found.extend(answer.added)
            found.extend(answer.output)
        return found


@dataclass(frozen=True, slots=True)
class _Names:
    """Digests of one conversation, which are needed when it is placed and again when its answer is stored."""

    turns: tuple[bytes, ...]
    chain: tuple[bytes, ...]
    """Of every beginning: entry k stands for the tools and the first k turns."""
    first: bytes
    """Of the first turn that is not the system's."""

    @classmethod
    def of(cls, conversation: Conversation) -> _Names:
        turns = tuple(turn_digest(turn) for turn in conversation.turns)
        first = next((name for turn, name in zip(conversation.turns, turns, strict=True) if turn.role != "system"), b"")
        return cls(turns, tuple(_chain(tools_digest(conversation.tools), turns)), first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which answer a conversation continues, and with what."""

    parent: Answer | None
    added: list[int]
    turns: tuple[Turn, ...]
    how: Continuation
    reason: str
    """Of a root, why it continues nothing; else ""."""
    request: bytes
    num_turns: int
    has_tools: bool
    in_reasoning: bool
    """Whether the prompt ends where the template has begun the model's reasoning."""
    names: _Names
    conversation: Conversation
    difference: TurnDifference | None = None
    """Of a root, where it parts from what was answered."""

    @property
    def num_cached(self) -> int:
        """Tokens that the continued answer ends with."""
        return self.parent.length if self.parent is not None else 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.num_cached + len(self.added)

    def context(self) -> list[int]:
        """Return the tokens of the prompt."""
        return [*(self.parent.tokens() if self.parent is not None else ()), *self.added]

    def context_bytes(self) -> bytes:
        """Return the tokens of the prompt as those of an array of C ints, without a Python number for each."""
        path = self.parent.path() if self.parent is not None else []
        pieces = [piece.tobytes() for answer in path for piece in (answer.added, answer.output)]
        return b"".join([*pieces, array("i", self.added).tobytes()])


@dataclass(frozen=True, slots=True)
class TurnDifference:
    """Where a conversation that continues nothing parts from one that was answered."""

    position: int
    """Of the first message that differs, from 0."""
    answered: Turn
    """The turn of the conversation that was answered."""
    asked: Turn
    """The turn of the new one."""

    def __str__(self) -> str:
        """Say what differs, without the text of either."""
        place = f"message {self.position} ({self.answered.role})"
        if self.asked.role != self.answered.role:
            return f"{place} is one of role {self.asked.role}"
        for name in ("text", "reasoning"):
            before, now = getattr(self.answered, name), getattr(self.asked, name)
            if before != now:
                same = next((i for i, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), None)
                at = min(len(before), len(now)) if same is None else same
                sizes = f"{len(now)} characters for {len(before)}"
                return f"{place}: its {name} has {sizes}, and differs from character {at} on"
        now, before = len(self.asked.calls), len(self.answered.calls)
        return f"{place}: its calls differ" if now == before else f"{place} has {now} calls for {before}"


class Forest:
    """The answers of one session. Used from one event loop."""

    def __init__(self, renderer: Renderer, *, history: History) -> None:
        self._renderer, self._history = renderer, history
        self.answers: list[Answer] = []
        self.placed: Counter[str] = Counter()
        """Stored answers by how they continue, and roots by their reason ("root/edited")."""
        self._by_chain: dict[bytes, list[Answer]] = {}
        self._by_request: dict[bytes, list[Answer]] = {}
        self.differences: dict[str, TurnDifference] = {}
        """The first one of each reason of roots, as far as there is one."""
        self._next: dict[bytes, Turn] = {}
        """Every beginning of every conversation that was answered, with the turn that came next, the answer included;
        the first one, where several did."""
        self._seen_bare: set[bytes] = set()
        """The same, whatever the tools."""
        self._first_turns: set[bytes] = set()
        """First turns of roots that are not the system's."""

    @property
    def num_roots(self) -> int:
        """Answers that continue no other."""
        return sum(answer.parent is None for answer in self.answers)

    async def place(self, conversation: Conversation) -> Placement:
        """Find what a conversation continues, and the tokens of its prompt. Raises DataError when the template or
        the tokenizer refuses it.
        """
        names = _Names.of(conversation)
        chain = names.chain
        found = await self._by_message(conversation, names) or await self._by_extension(conversation, names)
        if found is not None:
            return found
        size = sum(len(turn.text) + len(turn.reasoning) for turn in conversation.turns)
        size += sum(len(str(tool.parameters)) for tool in conversation.tools)

        def render() -> tuple[str, list[int]]:
            text = self._renderer.render(conversation)
            return text, self._renderer.encode(text)

        text, ids = await self._renderer.off_loop(size, render)
        parent = self._by_ids(ids)
        known = any(entry in self._by_chain for entry in chain)
        return Placement(
            parent=parent,
            added=ids[parent.length :] if parent is not None else ids,
            turns=conversation.turns if parent is None else conversation.turns[parent.num_turns :],
            how="root" if parent is None else "ids",
            reason=self._reason(conversation, names, known=known) if parent is None else "",
            request=chain[-1],
            num_turns=len(conversation.turns),
            has_tools=bool(conversation.tools),
            in_reasoning=_opens_reasoning(text),
            names=names,
            conversation=conversation,
            difference=self._difference(conversation, names) if parent is None else None,
        )

    def add(
        self,
        place: Placement,
        response: ModelResponse,
        *,
        reply: Turn,
        raw: str,
        closed: bool,
        choice: int = 0,
        num_choices: int = 1,
        answer_id: str = "",
    ) -> Answer:
        """Store a complete answer. `response` has been checked (`check_response`). answer_id: "" takes a new one."""
        names, own = place.names.turns, turn_digest(reply)
        # The beginnings of a conversation that is continued by its messages are known already.
        known = place.parent if place.how == "message" else None
        bare = _chain(known.bare, names[known.num_turns :]) if known is not None else _chain(b"", names)
        answer = Answer(
            id=answer_id or secrets.token_hex(12),
            number=len(self.answers),
            parent=place.parent,
            added=array("i", place.added),
            output=array("i", response.output_tokens),
            logprobs=array("d", response.output_logprobs),
            versions=array("i", response.output_versions),
            stop_reason=response.stop_reason,
            turns=place.turns,
            reply=reply,
            raw=raw,
            closed=closed,
            request=place.request,
            chain=digest(place.request, own),
            bare=digest(bare[-1], own),
            how=place.how,
            reason=place.reason,
            has_tools=place.has_tools,
            num_turns=place.num_turns + 1,
            length=place.num_tokens + len(response.output_tokens),
            choice=choice,
            num_choices=num_choices,
            routes=None if response.routes is None else response.routes[max(0, place.num_cached - 1) :],
        )
        self.answers.append(answer)
        if place.parent is not None:
            place.parent.children.append(answer)
        self._by_chain.setdefault(answer.chain, []).append(answer)
        self._by_request.setdefault(answer.request, []).append(answer)
        self._seen_bare.update(bare if known is not None else bare[1:])
        for entry, turn in zip(place.names.chain, (*place.conversation.turns, reply), strict=True):
            self._next.setdefault(entry, turn)
        if place.parent is None:
            self._first_turns.add(place.names.first)
            if place.difference is not None:
                self.differences.setdefault(place.reason, place.difference)
        self.placed[place.how if place.how != "root" else f"root/{place.reason}"] += 1
        return answer

    # ---- the ways to continue

    async def _by_message(self, conversation: Conversation, names: _Names) -> Placement | None:
        turns, chain = conversation.turns, names.chain
        for k in range(len(turns) - 1, 0, -1):
            if turns[k - 1].role != "assistant" or chain[k] not in self._by_chain:
                continue
            fitting = [answer for answer in self._by_chain[chain[k]] if _reasoning_fits(answer, turns)]
            if not fitting:
                continue
            parent = max(fitting, key=lambda answer: (answer.delivered, answer.number))
            return await self._continued(conversation, parent, k, names, how="message", rest="")
        return None

    async def _by_extension(self, conversation: Conversation, names: _Names) -> Placement | None:
        turns, chain = conversation.turns, names.chain
        for k in range(len(turns) - 1, 0, -1):
            echoed = turns[k - 1]
            if echoed.role != "assistant" or echoed.calls or chain[k - 1] not in self._by_request:
                continue
            fitting = [
                answer
                for answer in self._by_request[chain[k - 1]]
                if not answer.closed
                and not answer.reply.reasoning
                and not answer.reply.calls
                and answer.raw
                and echoed.text.startswith(answer.raw)
                and _reasoning_fits(answer, turns)
            ]
            if not fitting:
                continue
            parent = max(fitting, key=lambda answer: (len(answer.raw), answer.delivered, answer.number))
            rest = echoed.text[len(parent.raw) :]
            return await self._continued(conversation, parent, k, names, how="extension", rest=rest)
        return None

    async def _continued(
        self, conversation: Conversation, parent: Answer, k: int, names: _Names, *, how: Continuation, rest: str
    ) -> Placement | None:
        """Bridge from `parent`, whose answer is turn k - 1 (and wrote `rest` no more), to the next answer."""
        new = conversation.turns[k:]
        shape = self._renderer.shape([turn.role for turn in new])
        if self._history == "template" and shape == "rewriting":
            return None

        def bridge() -> tuple[str, list[int]] | None:
            text = self._renderer.bridge(new, conversation.tools)
            if text is None:
                return None
            ids = self._renderer.encode(text)
            if rest:
                return text, [*self._renderer.encode(rest), *ids]
            # A sampled end-of-turn token is not repeated.
            repeated = parent.closed and ids[:1] == list(parent.output[-1:])
            return text, ids[1:] if repeated else ids

        found = await self._renderer.off_loop(sum(len(turn.text) for turn in new) + len(rest), bridge)
        if found is None:
            return None
        text, ids = found
        return Placement(
            parent=parent,
            added=ids,
            turns=new if not rest else (conversation.turns[k - 1], *new),
            how=how,
            reason="",
            request=names.chain[-1],
            num_turns=len(conversation.turns),
            has_tools=bool(conversation.tools),
            in_reasoning=_opens_reasoning(text),
            names=names,
            conversation=conversation,
        )

    def _by_ids(self, ids: Sequence[int]) -> Answer | None:
        """Return the longest answer whose tokens, context included, `ids` begins with, and goes on after."""
        for answer in sorted(self.answers, key=lambda answer: (answer.length, answer.delivered), reverse=True):
            end = answer.length
            # The last token first: it spares most comparisons of whole contexts.
            if end < len(ids) and ids[end - 1] == answer.output[-1] and ids[:end] == answer.tokens():
                return answer
        return None

    def _difference(self, conversation: Conversation, names: _Names) -> TurnDifference | None:
        """Return where the conversation parts from those that were answered; None where it has other tools, or only
        goes on in a way that the template cannot.
        """
        position = max((k for k, entry in enumerate(names.chain) if entry in self._next), default=-1)
        if not 0 <= position < len(conversation.turns):
            return None
        answered, asked = self._next[names.chain[position]], conversation.turns[position]
        if names.turns[position] == turn_digest(answered) and same_reasoning(answered, asked):
            return None
        return TurnDifference(position, answered, asked)

    def _reason(self, conversation: Conversation, names: _Names, *, known: bool) -> str:
        if not self.answers:
            return "first"
        if known:
            return "unbridgeable"
        bare = _chain(b"", names.turns)
        shared = sum(entry in self._next for entry in names.chain[1:])
        if sum(entry in self._seen_bare for entry in bare[1:]) > shared:
            return "tools_changed"
        if not conversation.tools and sum(turn.role != "system" for turn in conversation.turns) == 1:
            return "side"
        if shared and (shared > 1 or conversation.turns[0].role != "system"):
            return "edited"
        return "system_changed" if names.first in self._first_turns else "other"


def check_response(response: ModelResponse, context: Sequence[int]) -> None:
    """Raise FaultError(GENERATION_FAILED) for an answer that could not be trained on."""
    problem = ""
    if response.stop_reason is StopReason.ABORT:
        problem = "the request was aborted and not continued"
    elif not response.output_tokens:
        problem = "the engine returned no tokens"
    elif response.input_tokens != context:
        problem = f"the engine answered another prompt ({len(response.input_tokens)} tokens, {len(context)} were sent)"
    elif not all(math.isfinite(value) and value <= LOGPROB_SLACK for value in response.output_logprobs):
        problem = "a log-probability is not finite, or above 0"
    elif min(response.output_versions) < 0:
        problem = "a token has no version"
    if problem:
        raise FaultError(FaultKind.GENERATION_FAILED, problem)


def _chain(start: bytes, names: Sequence[bytes]) -> list[bytes]:
    found = [start]
    for name in names:
        found.append(digest(found[-1], name))
    return found


def _reasoning_fits(answer: Answer, turns: Sequence[Turn]) -> bool:
    """Return whether no reasoning was changed on the way to an answer whose own messages are the first of `turns`."""
    step: Answer | None = answer
    while step is not None and same_reasoning(step.reply, turns[step.num_turns - 1]):
        # What ids alone connect need not have its messages at the same places.
        step = step.parent if step.how != "ids" else None
        if step is None:
            return True
    return step is None


def _opens_reasoning(prompt: str) -> bool:
    return prompt.rstrip().endswith(THINK_START)
