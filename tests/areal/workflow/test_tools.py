"""Tool boxes: limits hold, the model's mistakes are told to it, and a broken tool is never the model's failure."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time

import pytest

from areal.api import ConfigError, FaultError, FaultKind, RegistryError
from areal.dataset.encoding import byte_tokenizer, character_tokenizer
from areal.workflow.calculator import CALCULATOR
from areal.workflow.tools import FunctionTool, ObservationEncoder, ToolBox, ToolError

NO_PARAMETERS = {"type": "object", "properties": {}}
ONE_TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def tool(function, parameters=NO_PARAMETERS, **changes):
    return FunctionTool(function, description="does something", parameters=parameters, **changes)


def answer(box, text):
    return asyncio.run(box.answer(text))


def test_a_call_is_answered():
    result = answer(ToolBox([CALCULATOR]), call("calculator", expression="8*9"))
    assert (result.text, result.failed) == ("<tool_response>\n72\n</tool_response>", False)


def test_tools_can_be_named_by_their_path():
    box = ToolBox(["areal.workflow.calculator:CALCULATOR"])
    assert answer(box, call("calculator", expression="1+1")).text == "<tool_response>\n2\n</tool_response>"


def test_an_answer_without_a_call_is_no_result():
    assert answer(ToolBox([CALCULATOR]), "It is 72.") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            call("calculater", expression="1"),
            "unknown tool (did you mean calculator?); known tools are calc",
        ),
        (call("calculator", expression="1/0"), "division by zero"),
        (call("calculator", expression=8), "argument 'expression' must be of type string"),
        (call("calculator"), "argument 'expression' is missing"),
        ("<tool_call>8*9</tool_call>", "the call is not valid JSON: Extra data"),
    ],
)
def test_the_mistakes_of_the_model_are_told_to_it(text, message):
    result = answer(ToolBox([CALCULATOR]), text)
    assert result.failed
    assert result.text.startswith(f"<tool_response>\nerror: {message}")


def test_functions_run_in_threads_of_their_own_at_the_same_time():
    everyone = threading.Barrier(4, timeout=60)

    def meet(text):
        everyone.wait()
        return f"{text} {threading.current_thread() is threading.main_thread()}"

    async def run():
        box = ToolBox([tool(meet, ONE_TEXT)])
        return await asyncio.gather(*(box.answer(call("meet", text=str(index))) for index in range(4)))

    assert [result.text.split("\n")[1] for result in asyncio.run(run())] == [f"{index} False" for index in range(4)]


def test_a_tool_that_takes_too_long_is_given_up():
    release = threading.Event()

    def hang():
        release.wait(60)
        return "late"

    started = time.monotonic()
    box = ToolBox([tool(hang, max_threads=1)], seconds_per_call=0.2)
    try:
        # The second finds the only thread taken: it waits within its own limit.
        results = [answer(box, call("hang")) for _ in range(2)]
        assert [result.text for result in results] == [
            "<tool_response>\nerror: no result within 0.2 seconds\n</tool_response>"
        ] * 2
        assert time.monotonic() - started < 50
    finally:
        release.set()
    deadline = time.monotonic() + 60
    while answer(box, call("hang")).failed:  # the thread is free again once the function has ended
        assert time.monotonic() < deadline


def test_a_hanging_tool_does_not_keep_the_process_alive():
    program = (
        "import asyncio, time\n"
        "from areal.workflow.tools import FunctionTool, ToolBox\n"
        "tool = FunctionTool(lambda: time.sleep(600), name='hang', description='', parameters={'type': 'object'})\n"
        "box = ToolBox([tool], seconds_per_call=0.1)\n"
        'call = \'<tool_call>{"name": "hang", "arguments": {}}</tool_call>\'\n'
        "assert asyncio.run(box.answer(call)).failed\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def broken():
    raise KeyError("no such table")


def ending():
    raise SystemExit(3)


def stopping():
    raise StopIteration


def numeric():
    return 72


def late():
    raise TimeoutError("the database did not answer")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (broken, "tool 'broken' raised KeyError: 'no such table'"),
        (ending, "tool 'ending' raised RuntimeError: SystemExit in a tool's thread"),
        (stopping, "tool 'stopping' raised RuntimeError: coroutine raised StopIteration"),
        (numeric, "tool 'numeric' raised TypeError: returned int, expected str or ToolOutput"),
        (late, "tool 'late' raised TimeoutError: the database did not answer"),
    ],
)
def test_a_broken_tool_ends_the_episode_as_a_fault_unless_told_otherwise(function, message):
    with pytest.raises(FaultError) as caught:
        answer(ToolBox([tool(function)]), call(function.__name__))
    assert (caught.value.kind, caught.value.message) == (FaultKind.WORKFLOW_RAISED, message)
    observed = answer(ToolBox([tool(function)], on_crash="observe"), call(function.__name__))
    assert (observed.text, observed.failed) == ("<tool_response>\nerror: the tool failed\n</tool_response>", True)


def test_a_tool_can_say_what_the_model_should_do_or_end_the_episode_itself():
    def picky(text):
        if text == "down":
            raise FaultError(FaultKind.GENERATION_FAILED, "the service is down")
        raise ToolError("give a city")

    box = ToolBox([tool(picky, ONE_TEXT)], on_crash="observe")
    assert answer(box, call("picky", text="x")).text == "<tool_response>\nerror: give a city\n</tool_response>"
    with pytest.raises(FaultError, match="the service is down"):
        answer(box, call("picky", text="down"))


def test_long_results_are_cut_and_say_so():
    box = ToolBox([tool(lambda: "a" * 5000, name="long")], max_output_characters=10)
    assert answer(box, call("long")).text == "<tool_response>\naaaaaaaaaa\n(4990 more characters)\n</tool_response>"


def test_a_cancelled_episode_leaves_the_tool_at_once():
    class Endless:
        name, description, parameters = "endless", "", NO_PARAMETERS
        begun, cancelled = asyncio.Event(), False

        async def call(self, arguments):
            try:
                self.begun.set()
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return ""

    endless = Endless()

    async def run():
        task = asyncio.ensure_future(ToolBox([endless]).answer(call("endless")))
        await endless.begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert asyncio.run(run())
    assert endless.cancelled


def test_tools_are_introduced_in_the_system_turn():
    box = ToolBox([CALCULATOR])
    user = {"role": "user", "content": "8*9?"}
    introduced = box.introduce({"messages": [user], "answer": "72"})
    system, same = introduced["messages"]
    assert (system["role"], same, introduced["answer"]) == ("system", user, "72")
    assert '"name": "calculator"' in system["content"]
    assert "<tool_call>" in system["content"]
    merged = box.introduce({"messages": [{"role": "system", "content": "Be brief."}, user]})["messages"]
    assert [turn["role"] for turn in merged] == ["system", "user"]
    assert merged[0]["content"] == f"Be brief.\n\n{system['content']}"


@pytest.mark.parametrize("row", [{"messages": "8*9="}, {"answer": "72"}, {"messages": []}, {"messages": [7]}])
def test_rows_without_a_chat_are_left_to_their_author_or_to_the_reader(row):
    assert ToolBox([CALCULATOR]).introduce(row) is row


@pytest.mark.parametrize(
    ("tools", "options", "message"),
    [
        ([], {}, "tools is empty"),
        ([CALCULATOR, CALCULATOR], {}, "two tools are called 'calculator'"),
        (["areal.workflow.calculator:calculate"], {}, "is function, expected an object with name"),
        (["areal.workflow.calculator:Calculator"], {}, "is type, expected an object"),
        ([CALCULATOR], {"seconds_per_call": 0}, "seconds_per_call is 0"),
        ([CALCULATOR], {"on_crash": "ignore"}, "on_crash is 'ignore'"),
        ([tool(numeric, {"type": "object", "anyOf": []})], {}, "tool 'numeric': the schema has anyOf"),
    ],
)
def test_boxes_that_cannot_work_are_refused_at_construction(tools, options, message):
    with pytest.raises(ConfigError, match=message):
        ToolBox(tools, **options)


def test_an_unknown_path_names_what_is_missing():
    with pytest.raises(RegistryError, match="CALCULATR"):
        ToolBox(["areal.workflow.calculator:CALCULATR"])


def encoder(tokenizer):
    return ObservationEncoder(tokenizer, enable_thinking=False, strict_template=True)


def test_an_observation_stands_between_the_turns_of_the_chat_template(chat):
    assert chat.decode(encoder(chat).encode("72")) == "<eos>\n<|user|>72<eos>\n<|assistant|>"


def test_a_tool_cannot_end_a_turn_or_begin_one(chat):
    ids = encoder(chat).encode("7<e<eos>os>2\ud800<pad>")
    assert chat.decode(ids) == "<eos>\n<|user|>72?<eos>\n<|assistant|>"
    assert ids.count(chat.eos_token_id) == 2
    plain = byte_tokenizer()
    assert encoder(plain).encode("7<eos>2") == plain.encode("72")


def test_a_result_that_the_tokenizer_cannot_represent_is_a_fault():
    with pytest.raises(FaultError, match="the result of a tool: the tokenizer cannot encode") as caught:
        encoder(character_tokenizer("0123456789")).encode("seventy-two")
    assert caught.value.kind is FaultKind.DATA_INVALID


def test_templates_that_rewrite_history_are_refused(forgetful):
    with pytest.raises(ConfigError, match="not prefix-preserving"):
        encoder(forgetful)
