"""Images that an environment shows, in its prompt and as results of tools: where their placeholders are, which pixels
the engine and the trainer get, and what is refused."""

from __future__ import annotations

import asyncio
import base64

import pytest
from scripted import Judge, ScriptedEngine
from worlds_of_workflow import LOOK_UP, call

from areal.algorithm.packing import collate
from areal.api import FaultError, FaultKind, GenerationConfig, StepResult, TurnObservation
from areal.dataset.encoding import byte_tokenizer, load_tokenizer
from areal.engine.config import EmbeddedEngineConfig, TrainEngineConfig
from areal.engine.embedded.engine import EmbeddedEngine
from areal.engine.hf import loading
from areal.engine.train.engine import TrainingEngine
from areal.environment.wire import observation_from_plain, observation_to_plain
from areal.models.vision import vision_format
from areal.workflow.environment import EnvironmentWorkflow
from tests.areal.workflow.test_environment import TOOLS_TEMPLATE
from tests.support.vision import LLAVA, encoded, noise

# The ids of bytes end at 257; those of images begin behind them.
WIDE = {**LLAVA, "image_token_index": 300, "text_config": {**LLAVA["text_config"], "vocab_size": 320}}
FILES = [encoded(noise(9, 9, seed=seed)) for seed in range(2)]
LENGTH = vision_format(WIDE).num_placeholders(8, 8)


class Gallery:
    """Shows a picture, then one more for each look."""

    def __init__(self, tools=(LOOK_UP,), prompt="<image>what is it?", result="seen: <image>!", files=None):
        self.tools, self.prompt, self.result = tools, prompt, result
        self.files = FILES if files is None else files

    def create(self):
        return self

    async def reset(self, row, seed):
        images = self.files[:1] * self.prompt.count("<image>")
        return TurnObservation(messages=({"role": "user", "content": self.prompt},), tools=self.tools, images=images)

    async def step(self, answer):
        if not answer.calls:
            return StepResult(observation=TurnObservation(messages=()), reward=1.0, terminated=True)
        message = {"role": "tool", "content": self.result}
        image = base64.b64encode(self.files[1]).decode()
        return StepResult(observation=TurnObservation(messages=(message,), images=(image,)))

    async def close(self):
        pass


@pytest.fixture(scope="module")
def chat():
    made = byte_tokenizer()
    made.chat_template = TOOLS_TEMPLATE
    return made


def workflow_of(tokenizer, *, processor=WIDE, host="process", **options):
    return EnvironmentWorkflow(
        Judge(), GenerationConfig(max_new_tokens=1000), tokenizer, environment=f"{__name__}:Gallery",
        environment_options=options, processor=processor, host=host,
    )  # fmt: skip


def run(tokenizer, *texts, **options):
    """(trajectory, engine) of an episode in which the policy says `texts`."""
    answers = [[*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id] for text in texts]
    engine = ScriptedEngine(*answers, stop_token=tokenizer.eos_token_id)
    return asyncio.run(workflow_of(tokenizer, **options).arun_episode(engine, {"question": 3})), engine


def test_a_tools_image_stands_where_its_mark_was_and_is_not_learned(chat):
    found, engine = run(chat, call(1), "a cat")
    first, second = found.images
    assert [ref.length for ref in found.images] == [LENGTH, LENGTH]
    assert first.image != second.image
    for ref in found.images:
        assert set(found.tokens[ref.start : ref.end]) == {300}
        assert not any(found.loss_mask[ref.start : ref.end])
    assert found.tokens.count(300) == 2 * LENGTH
    texts = [token for token in found.tokens if token != 300]
    text = chat.decode(texts)
    assert text.endswith(f"{call(1)}<eos>\n<|user|>[seen: !]<eos>\n<|assistant|>a cat<eos>")
    before = chat.decode([token for token in found.tokens[: second.start] if token != 300])
    assert before.endswith("[seen: ")
    # The engine is sent what the record holds, images of earlier turns included.
    assert [len(request.images) for request in engine.requests] == [1, 2]
    assert engine.requests[1].images == found.images
    assert engine.requests[1].input_ids == found.tokens[: len(engine.requests[1].input_ids)]
    assert found.turn_rewards == {0: 0.0, 1: 1.0}


def test_the_trainer_computes_what_was_sampled(chat):
    """Free answers of the real engine; random weights sample placeholders now and then, which is a fault."""
    model = loading.from_config(WIDE, seed=3)
    engine = EmbeddedEngine(model, config=EmbeddedEngineConfig(max_seq_len=120), eos_token_id=chat.eos_token_id)
    workflow = workflow_of(chat, tools=())

    async def episodes():
        return await asyncio.gather(*(workflow.arun_episode(engine, {}) for _ in range(12)), return_exceptions=True)

    found = asyncio.run(episodes())
    faults = [item.kind for item in found if isinstance(item, FaultError)]
    assert set(faults) <= {FaultKind.GENERATION_FAILED}
    usable = [item for item in found if not isinstance(item, Exception)]
    assert len(usable) + len(faults) == len(found)
    batch = collate(usable)
    assert batch.images is not None
    trainer = TrainingEngine(model, config=TrainEngineConfig(device="cpu"))
    logp = trainer.forward_logp(batch, only_masked=True)
    assert float((logp - batch.logp_behave)[batch.loss_mask > 0].abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"processor": None}, "the first observation: the environment shows 1 images, and the model is not known"),
        ({"processor": None, "prompt": "what?"}, "an observation: the environment shows 1 images"),
        ({"result": "nothing"}, "an observation: 0 <image> marks for 1 images"),
        ({"files": [FILES[0], b"<svg/>"]}, r"an observation: images\[0\]: .*cannot be decoded"),
    ],
)
def test_images_that_cannot_be_shown_are_faults(chat, options, words):
    with pytest.raises(FaultError, match=words) as caught:
        run(chat, call(1), "a cat", **options)
    assert caught.value.kind is FaultKind.DATA_INVALID


def test_marks_in_texts_without_images_stay_text(chat):
    found, _ = run(chat, "a cat", prompt="what?", processor=None)
    assert found.images == ()
    plain = load_tokenizer("bytes:")
    found, _ = run(plain, "a cat", prompt="<image>what?\n", tools=())
    assert [ref.start for ref in found.images] == [0]


def test_images_leave_the_process_of_an_environment():
    shown = TurnObservation(messages=({"role": "user", "content": "<image><image>"},), images=(FILES[0], "abcd"))
    again = observation_from_plain(observation_to_plain(shown))
    assert again.images == (base64.b64encode(FILES[0]).decode(), "abcd")
    with pytest.raises(ValueError, match="image 0 is int, expected a file"):
        observation_from_plain({"messages": [], "tools": [], "images": [3]})
