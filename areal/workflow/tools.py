"""Define tools that a model may call during an episode, and run their calls within limits.

    toolbox = ToolBox(["areal.workflow.calculator:CALCULATOR"])
    row = toolbox.introduce({"messages": [{"role": "user", "content": "8*9?"}], "answer": "72"})
    result = await toolbox.answer('<tool_call>{"name": "calculator", "arguments": {"expression": "8*9"}}</tool_call>')
    result.text                       # "<tool_response>\n72\n</tool_response>"

Who is at fault decides what happens. The model's own mistakes (a call that is not in the format, an unknown tool, wrong
arguments, a `ToolError`, a call that takes too long) are answered with an error it can read and learn from. A tool that
breaks is not the model's doing: by default the episode ends as a fault and is left out, never scored.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Protocol, runtime_checkable

from areal.api import ConfigError, DataError, FaultError, FaultKind, load
from areal.dataset.encoding import encode_text, has_chat_template
from areal.dataset.images import IMAGE_MARK
from areal.utils.logging import getLogger
from areal.workflow.feedback import after_answer, feedback_frame, frame_of, images_after_answer
from areal.workflow.tool_calls import (
    CALL_END,
    CALL_START,
    ToolCall,
    ToolError,
    check_arguments,
    check_parameters,
    read_call,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.api import ImageRef
    from areal.workflow.pixels import PixelPrompts

__all__ = [
    "CALL_END",
    "FunctionTool",
    "ObservationEncoder",
    "Tool",
    "ToolBox",
    "ToolError",
    "ToolOutput",
    "ToolResult",
    "instructions",
]

logger = getLogger(__name__)

RESULT_START: Final = "<tool_response>"
RESULT_END: Final = "</tool_response>"


@runtime_checkable
class Tool(Protocol):
    """Something a model can call. One instance serves all episodes at once: it keeps nothing of any of them."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def description(self) -> str:
        """What it does, for the model."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """JSON schema of the arguments; see `areal.workflow.tool_calls.check_parameters`."""
        ...

    async def call(self, arguments: Mapping[str, Any]) -> str | ToolOutput:
        """Return the result for the model. Arguments fit the schema. Must not block the event loop; may be cancelled at
        any await. Raises ToolError for what the model can correct, anything else when the tool itself is broken.
        """
        ...


class FunctionTool:
    """A tool from an ordinary, blocking Python function, which runs in a thread of its own.

    A thread cannot be killed: what hangs is given up and goes on in the background, without keeping the process alive.
    At most `max_threads` run at once, further calls wait within their own time limit. For code that a model wrote use
    `areal.reward.execution`, which confines and kills it.
    """

    def __init__(
        self,
        function: Callable[..., str | ToolOutput],
        *,
        description: str,
        parameters: Mapping[str, Any],
        name: str = "",
        max_threads: int = 8,
    ) -> None:
        self.name = name or function.__name__
        self.description = description
        self.parameters = parameters
        self._function = function
        self._threads = threading.BoundedSemaphore(max_threads)

    async def call(self, arguments: Mapping[str, Any]) -> str | ToolOutput:
        """Call the function with the arguments as keywords."""
        while not self._threads.acquire(blocking=False):
            await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

        def work() -> None:
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = self._function(**arguments), None
            except BaseException as error:  # noqa: BLE001 - handed over to the caller's task, which raises it
                outcome = None, error
            finally:
                self._threads.release()
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile: nobody waits any more
                loop.call_soon_threadsafe(_settle, done, outcome)

        threading.Thread(target=work, name=f"tool-{self.name}", daemon=True).start()
        output, error = await done
        result: str | ToolOutput = output
        if isinstance(error, Exception):
            raise error
        if error is not None:  # SystemExit and the like end a thread, never the process
            raise RuntimeError(f"{type(error).__name__} in a tool's thread") from error
        return result


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A result with images, for models that read them."""

    text: str
    """Has one "<image>" for each image."""
    images: Sequence[bytes | str]
    """Files, as bytes or base64."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model reads about a call."""

    text: str
    failed: bool
    """Whether it is an error of the model's making."""
    images: tuple[bytes | str, ...] = ()
    """One for each "<image>" of the text."""


class ToolBox:
    """The tools of a workflow, and the limits of their use.

    tools: each an instance, or where one is, "module:object". seconds_per_call: of wall time. max_output_characters:
    longer results are cut, and say so. on_crash: what an exception other than ToolError does; "fault" ends the episode
    as WORKFLOW_RAISED (counted, not scored), "observe" answers that the tool failed, which then affects the
    reward.
    """

    def __init__(
        self,
        tools: Sequence[str | Tool],
        *,
        seconds_per_call: float = 10.0,
        max_output_characters: int = 2000,
        on_crash: Literal["fault", "observe"] = "fault",
    ) -> None:
        if seconds_per_call <= 0 or max_output_characters < 1:
            raise ConfigError(
                f"seconds_per_call is {seconds_per_call} and max_output_characters {max_output_characters}; expected "
                f"> 0 and at least 1"
            )
        if on_crash not in {"fault", "observe"}:
            raise ConfigError(f"on_crash is {on_crash!r}, expected 'fault' or 'observe'")
        self._tools: dict[str, Tool] = {}
        for named in tools:
            tool = _tool(named)
            if tool.name in self._tools:
                raise ConfigError(f"two tools are called {tool.name!r}")
            check_parameters(tool.name, tool.parameters)
            self._tools[tool.name] = tool
        if not self._tools:
            raise ConfigError("tools is empty, expected at least one")
        self._seconds = seconds_per_call
        self._max_characters = max_output_characters
        self._on_crash = on_crash

    def introduce(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with a system turn that says which tools there are and how to call them, after the chat's own
        one.

        Plain strings and other rows that are not a chat stay as they are: their author decides what the model reads.
        """
        messages = data.get("messages")
        if not isinstance(messages, list) or not messages or not isinstance(messages[0], dict):
            return data
        if messages[0].get("role") != "system":
            return {**data, "messages": [{"role": "system", "content": self.instructions}, *messages]}
        content = f"{messages[0].get('content', '')}\n\n{self.instructions}"
        return {**data, "messages": [{**messages[0], "content": content}, *messages[1:]]}

    @property
    def instructions(self) -> str:
        """What the model reads about the tools and the format of calls."""
        return instructions(
            [
                {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
                for tool in self._tools.values()
            ]
        )

    async def answer(self, text: str) -> ToolResult | None:
        """Run the call in a model's text; None when it has none.

        Raises FaultError(WORKFLOW_RAISED) when the tool breaks and `on_crash` is "fault".
        """
        try:
            call = read_call(text)
            if call is None:
                return None
            tool = self._find(call)
            check_arguments(tool.parameters, call.arguments)
            output = await self._run(tool, call)
            shortened = self._shortened(output.text)
            if output.images and shortened.count(IMAGE_MARK) != len(output.images):
                problem = ValueError(
                    f"{shortened.count(IMAGE_MARK)} {IMAGE_MARK} marks in the first {self._max_characters} characters "
                    f"for {len(output.images)} images, expected one each"
                )
                self._crashed(tool, problem)
        except ToolError as error:
            return _result(self._shortened(f"error: {error}"), failed=True)
        return _result(shortened, failed=False, images=tuple(output.images))

    def _find(self, call: ToolCall) -> Tool:
        if call.name in self._tools:
            return self._tools[call.name]
        near = get_close_matches(call.name, self._tools, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ToolError(f"unknown tool{hint}; known tools are {', '.join(sorted(self._tools))}")

    async def _run(self, tool: Tool, call: ToolCall) -> ToolOutput:
        try:
            async with asyncio.timeout(self._seconds) as limit:
                output = await tool.call(call.arguments)
        except ToolError:
            raise
        except TimeoutError as error:
            if limit.expired():
                raise ToolError(f"no result within {self._seconds:g} seconds") from error
            self._crashed(tool, error)
        except FaultError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is handled by the policy for crashes
            self._crashed(tool, error)
        if isinstance(output, str):
            return ToolOutput(output, ())
        if not isinstance(output, ToolOutput):
            self._crashed(tool, TypeError(f"returned {type(output).__name__}, expected str or ToolOutput"))
        return output

    def _crashed(self, tool: Tool, error: Exception) -> NoReturn:
        if self._on_crash == "fault":
            message = f"tool {tool.name!r} raised {type(error).__name__}: {error}"
            raise FaultError(FaultKind.WORKFLOW_RAISED, message) from error
        logger.warning("tool %s raised; the model gets an error as its result", tool.name, exc_info=error)
        raise ToolError("the tool failed")

    def _shortened(self, output: str) -> str:
        left = len(output) - self._max_characters
        return output if left <= 0 else f"{output[: self._max_characters]}\n({left} more characters)"


class ObservationEncoder:
    """Token ids of what a tool answered, from the end of the model's turn to the start of its next one.

    Control tokens of the tokenizer are taken out of the text first: a tool's output never ends a turn or begins one.
    Raises ConfigError, when it is built, for a chat template that cannot be continued (see `areal.workflow.feedback`).
    """

    def __init__(self, tokenizer: Any, *, enable_thinking: bool, strict_template: bool) -> None:
        self._tokenizer = tokenizer
        self._options = {"enable_thinking": enable_thinking}
        self._frames: dict[tuple[str, ...], list[str] | None] = {}
        """Roles of messages to what the template writes around their contents; None where it cannot."""
        self._before, self._after = feedback_frame(
            tokenizer, enable_thinking=enable_thinking, strict_template=strict_template
        )
        self._control = tuple(token for token in tokenizer.all_special_tokens if token)

    def encode_messages(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of several messages, see `text_of`. Raises FaultError(DATA_INVALID)."""
        return self._encoded(self.text_of(messages))

    def text_of(self, messages: Sequence[Mapping[str, Any]], *, keep: str = "") -> str:
        """Return what stands for several messages, tool results in the chat template's own format.

        A template without one gets a user turn with each result in its tags. keep: a control token that stays.
        """
        contents = [self._cleaned(str(message["content"]), keep) for message in messages]
        if not has_chat_template(self._tokenizer):
            return "".join(contents)
        roles = tuple(str(message["role"]) for message in messages)
        if roles not in self._frames:
            self._frames[roles] = None if roles == ("user",) else frame_of(self._tokenizer, roles, **self._options)
        frame = self._frames[roles]
        if frame is None:
            tagged = [
                f"{RESULT_START}\n{content}\n{RESULT_END}" if role == "tool" else content
                for role, content in zip(roles, contents, strict=True)
            ]
            return self._framed("\n".join(tagged))
        pieces = [piece for pair in zip(frame, [*contents, ""], strict=True) for piece in pair]
        return "".join(pieces)

    def _framed(self, text: str) -> str:
        return f"{self._before}{text}{self._after}"

    def _encoded(self, text: str) -> list[int]:
        try:
            return encode_text(text, self._tokenizer)
        except ValueError as error:
            raise FaultError(FaultKind.DATA_INVALID, f"the result of a tool: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Raise FaultError(DATA_INVALID) when the tokenizer cannot represent the text."""
        return self._encoded(self._framed(self._cleaned(text)))

    async def encode_result(
        self, result: ToolResult, prompts: PixelPrompts | None, answer: Sequence[int]
    ) -> tuple[list[int], tuple[ImageRef, ...]]:
        """Token ids of a result that follows the tokens `answer`, and its images.

        prompts: what reads images; None for a model of text. Raises FaultError(DATA_INVALID) as `encode`, and for
        images that cannot be used.
        """
        if not result.images:
            return after_answer(self.encode(result.text), answer), ()
        try:
            if prompts is None:
                raise DataError(
                    f"{len(result.images)} images, and the model is not known to read any",
                    fix="set workflow_options.processor to the checkpoint of an image-text model",
                )
            text = self._framed(self._cleaned(result.text, IMAGE_MARK))
            files = [base64.b64encode(file).decode() if isinstance(file, bytes) else file for file in result.images]
            ids, images = await prompts.place(text.split(IMAGE_MARK), files)
        except DataError as error:
            raise FaultError(FaultKind.DATA_INVALID, f"the result of a tool: {error}") from error
        return images_after_answer(ids, images, answer)

    def _cleaned(self, text: str, keep: str = "") -> str:
        text = text.encode(errors="replace").decode()  # half surrogate pairs, which JSON can spell, have no encoding
        # Again and again: taking one out may join the halves of another.
        control = [token for token in self._control if token != keep]
        while any(token in text for token in control):
            for token in control:
                text = text.replace(token, "")
        return text


def instructions(tools: Sequence[Mapping[str, Any]], *, parallel: bool = False) -> str:
    """Return what a model reads about tools (name, description, parameters) where its chat template says nothing.

    parallel: a turn may hold several calls.
    """
    number = "as many calls in a turn as you need" if parallel else "one call at a time"
    return "\n".join(
        [
            f"You can use these tools, {number}:",
            *(json.dumps(dict(tool)) for tool in tools),
            "To call one, end your turn with its name and arguments as JSON, like this:",
            f'{CALL_START}\n{{"name": "...", "arguments": {{...}}}}\n{CALL_END}',
            f"The result comes back in {RESULT_START}...{RESULT_END}. An answer without a call ends the task.",
        ]
    )


def _tool(named: str | Tool) -> Tool:
    found = load("tool", named, {}) if isinstance(named, str) else named
    if not isinstance(found, Tool) or isinstance(found, type):
        raise ConfigError(
            f"tool {named!r} is {type(found).__name__}, expected an object with name, description, parameters and an "
            f"async call(arguments); wrap a function in areal.workflow.tools.FunctionTool"
        )
    return found


def _result(output: str, *, failed: bool, images: tuple[bytes | str, ...] = ()) -> ToolResult:
    return ToolResult(f"{RESULT_START}\n{output}\n{RESULT_END}", failed, images)


def _settle(done: asyncio.Future[Any], outcome: Any) -> None:
    if not done.done():  # else it was given up meanwhile
        done.set_result(outcome)
