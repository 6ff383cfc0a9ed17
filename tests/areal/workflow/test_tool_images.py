"""Images that tools return, and images of prompts, in the workflow of tools: placeholders, pixels, what is refused."""

from __future__ import annotations

import asyncio
import base64

import pytest
from examples.tools.calculator_workflow import CalculatorWorkflow
from scripted import Judge, ScriptedEngine

from areal.algorithm.packing import collate
from areal.api import FaultError, FaultKind, GenerationConfig
from areal.dataset.encoding import byte_tokenizer
from areal.engine.config import TrainEngineConfig
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.models.vision import vision_format
from areal.workflow.tools import FunctionTool, ToolBox, ToolOutput
from tests.areal.workflow.test_environment import TOOLS_TEMPLATE
from tests.areal.workflow.test_environment_images import FILES, WIDE

CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
LENGTH = vision_format(WIDE).num_placeholders(8, 8)
ROW = {"messages": [{"role": "user", "content": "<image>what?"}], "images": [base64.b64encode(FILES[0]).decode()]}


def look(output):
    parameters = {"type": "object", "properties": {}}
    return FunctionTool(lambda: output, name="look", description="looks", parameters=parameters)


def run(output, row=ROW, *, processor=WIDE, **options):
    """(trajectory, engine, tokenizer) of an episode with one call, whose result is `output`."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TOOLS_TEMPLATE
    answers = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in (CALL, "a cat")]
    engine = ScriptedEngine(*answers, stop_token=tokenizer.eos_token_id)
    workflow = CalculatorWorkflow(
        Judge(), GenerationConfig(max_new_tokens=200), tokenizer, tools=[look(output)], processor=processor, **options
    )
    return asyncio.run(workflow.arun_episode(engine, row)), engine, tokenizer


def test_images_of_prompt_and_result_have_their_placeholders_and_are_not_learned():
    found, engine, tokenizer = run(ToolOutput("seen: <image> and <image>!", FILES))
    assert [ref.length for ref in found.images] == [LENGTH] * 3
    assert len({ref.image.digest for ref in found.images}) == 2
    for ref in found.images:
        assert set(found.tokens[ref.start : ref.end]) == {300}
        assert not any(found.loss_mask[ref.start : ref.end])
    assert found.tokens.count(300) == 3 * LENGTH
    first, second, third = found.images
    assert tokenizer.decode(found.tokens[second.end : third.start]) == " and "
    assert tokenizer.decode(found.tokens[: second.start][-len("seen: ") :]) == "seen: "
    learned = [token for token, mask in zip(found.tokens, found.loss_mask, strict=True) if mask]
    assert tokenizer.decode(learned) == f"{CALL}<eos>a cat<eos>"
    assert [request.images for request in engine.requests] == [(first,), found.images]
    assert engine.requests[1].input_ids == found.tokens[: len(engine.requests[1].input_ids)]


def test_the_trainer_takes_the_record():
    found, *_ = run(ToolOutput("<image>!", FILES[1:]))
    trainer = TrainingEngine(loading.from_config(WIDE, seed=3), config=TrainEngineConfig(device="cpu"))
    batch = collate([found, run("nothing", {**ROW, "messages": "<image>what?"})[0]])
    assert batch.images.index.tolist() == [0, 1, 0]
    assert bool((trainer.forward_logp(batch, only_masked=True)[batch.loss_mask > 0] < 0).all())


@pytest.mark.parametrize(
    ("output", "row", "options", "kind", "words"),
    [
        (ToolOutput("<image>!", [b"<svg/>"]), ROW, {}, FaultKind.DATA_INVALID, r"a tool: images\[0\]: .*decoded"),
        (ToolOutput("none", FILES), ROW, {}, FaultKind.WORKFLOW_RAISED, "0 <image> marks in the first 2000 characters"),
        (ToolOutput("x" * 9 + "<image>", FILES[:1]), ROW, {"max_output_characters": 12}, FaultKind.WORKFLOW_RAISED,
         "0 <image> marks in the first 12 characters for 1 images"),
        ("text", ROW, {"processor": None}, FaultKind.DATA_INVALID, "the row has images, and the model is not known"),
        (ToolOutput("<image>", FILES[:1]), {"messages": ROW["messages"]}, {"processor": None}, FaultKind.DATA_INVALID,
         "result of a tool: 1 images, and the model is not known to read any"),
    ],
    ids=["broken", "no mark", "cut mark", "row", "tool"],
)  # fmt: skip
def test_images_that_cannot_be_shown_are_faults(output, row, options, kind, words):
    with pytest.raises(FaultError, match=words) as caught:
        run(output, row, **options)
    assert caught.value.kind is kind


def test_a_model_may_read_that_a_tool_failed_to_show_its_image():
    box = ToolBox([look(ToolOutput("none", FILES))], on_crash="observe")
    result = asyncio.run(box.answer(CALL))
    assert (result.failed, result.images) == (True, ())
    assert "error: the tool failed" in result.text
