"""Conversations as tokens: whole ones, and bridges from the end of an answer to the start of the next one.

    renderer = Renderer(tokenizer, enable_thinking=False, template_date="2026-01-01")
    ids = renderer.encode(renderer.render(conversation))
    text = renderer.bridge(new_turns, tools)        # None: this template cannot go on after an answer in this way

A bridge is the difference of two renders of a made-up conversation, so that nothing sampled is ever rendered. Which
sequences of new turns ("shapes") a template can be continued with is found out by probing it: a shape is *append_only*
when full renders agree with bridges, *rewriting* when only what the template shows of the answer itself changes, and
*unbridgeable* when the bridge depends on the answer or on earlier turns.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import re
import secrets
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from areal.api import ConfigError, DataError
from areal.dataset.encoding import encode_text, has_chat_template
from areal.gateway.conversation import ControlTokens, Conversation, FunctionCall, OfferedTool, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Shape = Literal["append_only", "rewriting", "unbridgeable"]
_Result = TypeVar("_Result")

_ON_LOOP_CHARACTERS: Final = 4000
"""Text of this length takes about 2 ms to render and encode; longer ones go to a thread."""
_CLOCK_NAME: Final = "strftime_now"
_CLOCK: Final = re.compile(_CLOCK_NAME + r"""\(\s*(['"])(.*?)\1\s*\)""")
_SHAPES_KEPT: Final = 256
_SHOWN_SHAPES: Final[dict[str, tuple[str, ...]]] = {
    "user": ("user",),
    "tool": ("tool",),
    "tool x2": ("tool", "tool"),
    "tool, user": ("tool", "user"),
    "system, user": ("system", "user"),
}
_PROBE_HISTORY: Final = (Turn("user", "areal-probe-question"),)
_PROBE_TOOL: Final = OfferedTool("probe", "A probe.", {"type": "object", "properties": {"x": {"type": "string"}}})


class Renderer:
    """Chat template and tokenizer of a policy. Methods may be called from several threads."""

    def __init__(self, tokenizer: Any, *, enable_thinking: bool, template_date: str) -> None:
        """Raise ConfigError for a tokenizer without a chat template, and for a template that cannot hold a chat."""
        if not has_chat_template(tokenizer):
            raise ConfigError(
                "the tokenizer has no chat template, so no conversation can be served with it",
                fix="use an instruct model's tokenizer, or save one with tokenizer.chat_template set",
            )
        # The engine decodes with the caller's; a fast tokenizer cannot be used while it encodes elsewhere.
        self._tokenizers = (copy.deepcopy(tokenizer), copy.deepcopy(tokenizer))
        self._locks = (threading.Lock(), threading.Lock())
        self._loop_thread = threading.get_ident()
        self.control = ControlTokens(tokenizer.all_special_tokens)
        self._options = {"enable_thinking": enable_thinking}
        for own in self._tokenizers:
            own.chat_template = _frozen(own.chat_template, datetime.date.fromisoformat(template_date))
        self._mark = f"areal-probe-{secrets.token_hex(8)}"
        self._shapes: dict[tuple[str, ...], tuple[Shape, bool]] = {}
        self._ends: dict[int, tuple[str, str]] = {}
        """What ends an answer, by the results that follow it, where the offered tools do not matter."""
        self._system_as_user = False
        self._check()
        self.shapes = {name: self.shape(roles) for name, roles in _SHOWN_SHAPES.items()}
        """What the template can be continued with, for reports."""

    @property
    def eos_token_id(self) -> int:
        """The token that ends every answer."""
        found: int = self._tokenizers[0].eos_token_id
        return found

    @property
    def renders_system_as_user(self) -> bool:
        """Whether system turns after the first turn become user turns, since the template refuses or drops them."""
        return self._system_as_user

    async def off_loop(self, size: int, function: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call `function`, in a thread when the text it works on has more than a few thousand characters."""
        if size <= _ON_LOOP_CHARACTERS:
            return function(*arguments)
        return await asyncio.to_thread(function, *arguments)

    def render(self, conversation: Conversation, *, add_generation_prompt: bool = True) -> str:
        """Return the text of a prompt. Raises DataError when the template refuses the conversation."""
        messages = [
            _message(Turn("user", turn.text) if self._system_as_user and turn.role == "system" and index else turn)
            for index, turn in enumerate(conversation.turns)
        ]
        tools = [tool.as_schema() for tool in conversation.tools] or None
        try:
            text: str = self._using(
                lambda tokenizer: tokenizer.apply_chat_template(
                    messages,
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    **self._options,
                )
            )
        except RecursionError as error:
            raise DataError("the conversation is nested too deep for the chat template") from error
        except Exception as error:  # templates raise on purpose, or fail in any way for what they did not expect
            raise DataError(f"the chat template refuses the conversation: {error}") from error
        return text

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, control tokens included. Raises DataError for text without an encoding."""
        return self._using(partial(encode_text, text))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens included."""
        text: str = self._using(
            lambda tokenizer: tokenizer.decode(
                list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )
        return text

    def shape(self, roles: Sequence[str]) -> Shape:
        """Return what becomes of an answer that turns of these roles follow."""
        return self._probed(tuple(roles))[0]

    def bridge(self, new: Sequence[Turn], tools: Sequence[OfferedTool]) -> str | None:
        """Return the text from the end of an answer to the next one, with `new` turns between; None if there is none.

        It begins with what ends a turn. Nothing of the answer, or of what was before it, takes part.
        """
        kind, needs_tools = self._probed(tuple(turn.role for turn in new))
        if kind == "unbridgeable":
            return None
        results = _num_results(new)
        offered = tuple(tools) if needs_tools else ()
        ends = self._ends.get(results) if not offered else None
        if ends is None:
            ends = self._answer_ends(_PROBE_HISTORY, results, offered, self._mark)
            if not offered and len(self._ends) < _SHAPES_KEPT:
                self._ends[results] = ends
        return self._bridge(_PROBE_HISTORY, new, offered, self._mark, ends)[1]

    # ---- probing

    def _check(self) -> None:
        """Raise ConfigError for a template that shows no answers; learn what it makes of later system turns."""
        question, answer = Turn("user", "areal-probe-question"), Turn("assistant", self._mark)
        try:
            shown = self.render(Conversation((question, answer, question)))
        except DataError as error:
            raise ConfigError(f"the chat template cannot hold a conversation: {error}") from error
        if self._mark not in shown:
            raise ConfigError("the chat template drops the assistant turn, so a conversation cannot go on")
        if self.render(Conversation((question,))) != self.render(Conversation((question,))):
            raise ConfigError("the chat template renders the same conversation in two ways; it reads a clock or draws")
        try:
            shown = self.render(Conversation((question, question, Turn("system", self._mark), question)))
        except DataError:
            shown = ""
        self._system_as_user = self._mark not in shown

    def _probed(self, roles: tuple[str, ...]) -> tuple[Shape, bool]:
        """Return the kind of a shape, and whether its bridge depends on the tools that are offered."""
        if roles in self._shapes:
            return self._shapes[roles]
        found = self._probe(roles)
        if len(self._shapes) < _SHAPES_KEPT:
            self._shapes[roles] = found
        return found

    def _probe(self, roles: tuple[str, ...]) -> tuple[Shape, bool]:
        new = [Turn(role, f"areal-probe-{role}-{index}") for index, role in enumerate(roles)]  # type: ignore[arg-type]  # roles of turns
        question = Turn("user", "areal-probe-question")
        before = (question, Turn("assistant", "areal-probe-earlier"), Turn("user", "areal-probe-again"))
        called = Turn("assistant", "", calls=(FunctionCall("probe", {"x": "1"}),))
        histories: list[tuple[tuple[Turn, ...], tuple[OfferedTool, ...]]] = [
            ((question,), ()),
            (before, ()),
            ((question,), (_PROBE_TOOL,)),
            ((Turn("system", "areal-probe-system"), *before), (_PROBE_TOOL,)),
            ((*before, called, Turn("tool", "areal-probe-result", name="probe")), (_PROBE_TOOL,)),
        ]
        results = _num_results(new)
        bridges: list[tuple[bool, str]] = []
        agrees = True
        for history, tools in histories:
            for suffix in ("", " It is 42."):
                said = f"{self._mark}{suffix}"
                try:
                    prompt = self.render(Conversation(tuple(history), tools))
                    head, bridge = self._bridge(
                        history, new, tools, said, self._answer_ends(history, results, tools, said)
                    )
                except DataError:
                    if len(history) == 1 and not tools:
                        return "unbridgeable", False
                    continue  # a template without system turns, for one
                if bridge is None:
                    return "unbridgeable", False
                bridges.append((bool(tools), bridge))
                agrees = agrees and head == prompt
        plain = {bridge for with_tools, bridge in bridges if not with_tools}
        tooled = {bridge for with_tools, bridge in bridges if with_tools}
        if len(plain) != 1 or len(tooled) > 1:
            return "unbridgeable", False
        if agrees and not self._keeps_reasoning(new):
            agrees = False
        return ("append_only" if agrees else "rewriting"), bool(tooled) and tooled != plain

    def _answer_ends(
        self, history: Sequence[Turn], results: int, tools: tuple[OfferedTool, ...], said: str
    ) -> tuple[str, str]:
        """Return what ends the answer `said` as the last turn, and the same of one that calls a tool `results` times.

        Some templates refuse results that no call asked for.
        """
        close = self._after(Conversation((*history, Turn("assistant", said)), tools), said)[1]
        if not results:
            return close, close
        return close, self._after(Conversation((*history, _probe_answer(said, results)), tools), said)[1]

    def _bridge(
        self,
        history: Sequence[Turn],
        new: Sequence[Turn],
        tools: tuple[OfferedTool, ...],
        said: str,
        ends: tuple[str, str],
    ) -> tuple[str, str | None]:
        """Return what precedes the answer, and the bridge; None if the end of the answer depends on what follows."""
        close, ended = ends
        results = _num_results(new)
        full = Conversation((*history, _probe_answer(said, results), *new), tools)
        head, tail = self._after(full, said, add_generation_prompt=True)
        return head, close + tail[len(ended) :] if tail.startswith(ended) else None

    def _after(self, conversation: Conversation, said: str, *, add_generation_prompt: bool = False) -> tuple[str, str]:
        text = self.render(conversation, add_generation_prompt=add_generation_prompt)
        head, _, tail = text.partition(said)
        return head, tail

    def _keeps_reasoning(self, new: Sequence[Turn]) -> bool:
        """Return whether the template still shows what an answer thought, or never does."""
        thought = Turn("assistant", "areal-probe-said", self._mark)
        question = Turn("user", "areal-probe-question")
        alone = self.render(Conversation((question, thought)), add_generation_prompt=False)
        return self._mark not in alone or self._mark in self.render(Conversation((question, thought, *new)))

    # ---- turns and tokenizers

    def _using(self, function: Callable[[Any], _Result]) -> _Result:
        """Call with the tokenizer of this thread's kind: the loop never waits for what a thread renders."""
        kind = 0 if threading.get_ident() == self._loop_thread else 1
        with self._locks[kind]:
            return function(self._tokenizers[kind])

    def serve_from_this_thread(self) -> None:
        """Note that this thread runs the event loop."""
        self._loop_thread = threading.get_ident()


def _num_results(new: Sequence[Turn]) -> int:
    """Return how many results of tools the new turns begin with."""
    return next((index for index, turn in enumerate(new) if turn.role != "tool"), len(new))


def _probe_answer(said: str, results: int) -> Turn:
    return Turn("assistant", said, calls=tuple(FunctionCall("probe", {"x": "1"}) for _ in range(results)))


def _frozen(template: Any, day: datetime.date) -> Any:
    """Return the template, or the templates by name, with a fixed day in place of the clock."""
    if isinstance(template, dict):
        return {name: _frozen(text, day) for name, text in template.items()}
    fixed = _CLOCK.sub(lambda found: repr(day.strftime(found[2])), str(template))
    if _CLOCK_NAME in fixed.replace(f"{_CLOCK_NAME} is defined", ""):
        raise ConfigError(
            "the chat template reads the clock in a way that cannot be frozen: a prompt would differ from day to day",
            fix="write the date into the template",
        )
    return fixed


def _message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.text}
    if turn.reasoning:
        message["reasoning_content"] = turn.reasoning
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in turn.calls
        ]
    if turn.name:
        message["name"] = turn.name
    return message
