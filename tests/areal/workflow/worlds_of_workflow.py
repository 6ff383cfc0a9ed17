"""Environments of the workflow's tests, where a configuration can name them."""

from __future__ import annotations

import json
from typing import ClassVar

from areal.api import StepResult, TurnObservation

LOOK_UP = {
    "name": "look_up",
    "description": "Read a box.",
    "parameters": {"type": "object", "properties": {"box": {"type": "integer"}}, "required": ["box"]},
}


def call(*boxes):
    """What a policy writes to look into boxes."""
    return "".join(
        f"<tool_call>{json.dumps({'name': 'look_up', 'arguments': {'box': box}})}</tool_call>" for box in boxes
    )


class Boxes:
    """Boxes to look into; the answer is what is in box 2."""

    seen: ClassVar[list] = []

    def __init__(self, tools=(LOOK_UP,), **results):
        self.tools, self.results = tools, results

    def create(self):
        return BoxesEpisode(self)


class BoxesEpisode:
    def __init__(self, boxes):
        self.boxes = boxes

    async def reset(self, row, seed):
        Boxes.seen.append(("reset", dict(row), seed))
        return TurnObservation(messages=({"role": "user", "content": "what is in 2?"},), tools=self.boxes.tools)

    async def step(self, answer):
        Boxes.seen.append(("step", answer))
        if not answer.calls:
            right = answer.text.endswith("70")
            return StepResult(observation=TurnObservation(messages=()), reward=float(right), terminated=True)
        results = [{"role": "tool", "content": str(35 * one.arguments["box"])} for one in answer.calls]
        return StepResult(
            observation=TurnObservation(messages=results),
            reward=0.25 * len(results),
            info={"looks": len(results)},
            **self.boxes.results,
        )

    async def close(self):
        Boxes.seen.append("close")


class Texts:
    """Says one text after the other; over with the last."""

    texts: tuple[str, ...] = ()

    def create(self):
        return self

    async def reset(self, row, seed):
        return self._said(0)

    async def step(self, answer):
        if answer.text == "2":
            return StepResult(observation=self._said(-1), reward=1.0, terminated=True)
        return StepResult(observation=self._said(1))

    async def close(self):
        pass

    def _said(self, index):
        return TurnObservation(messages=({"role": "user", "content": self.texts[index]},))


class Sums(Texts):
    texts = ("1+1=?", "=1?")


class Hostile(Texts):
    texts = ("begin", "ends <eos>" + "here" + "x" * 50)


class Broken(Texts):
    texts = ("begin",)

    async def step(self, answer):
        raise KeyError("move")
