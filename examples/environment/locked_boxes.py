"""The environment of locked_boxes_grpo.yaml: a digit lies in the last of a chain of boxes, and each names the next one.

    areal env check examples.environment.locked_boxes:LockedBoxes --answer 7

The chain is drawn from the seed of the episode, so that no weights can know it: without what the tool shows, one answer
in ten is right. There are as many look-ups as boxes, hence a look-up in a wrong order costs the digit.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import StepResult, TurnObservation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from datasets import Dataset

    from areal.api import AssistantTurn

KEYS: Final = "abcdefgh"
DEPTHS: Final = (1, 2, 3)
OPEN: Final[dict[str, Any]] = {
    "name": "open",
    "description": "Look into a box: it has the key of the next box, or the digit.",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}
RIGHT_ORDER: Final = 0.2
"""Share of the demonstrated look-ups, after the first, that open the box named last; others open one again."""


def draw_chain(draw: random.Random, depth: int) -> dict[str, str]:
    """Return what is in each box, in order: `depth` - 1 keys, then the digit."""
    keys = draw.sample(KEYS, depth)
    return dict(zip(keys, [*keys[1:], str(draw.randrange(10))], strict=True))


class LockedBoxes:
    """Open boxes until a digit turns up, and answer it: reward 1."""

    def __init__(self, shown: Literal["true", "other", "nothing"] = "true") -> None:
        """shown: what look-ups show. "other" and "nothing" are controls: the contents of another chain of the same
        length, whose digit says nothing about the answer, or a question mark.
        """
        if shown not in ("true", "other", "nothing"):
            raise ValueError(f"shown is {shown!r}, expected true, other or nothing")
        self.shown = shown

    def create(self) -> LockedBoxesEpisode:
        """Return a new environment."""
        return LockedBoxesEpisode(self.shown)


class LockedBoxesEpisode:
    """One chain of boxes."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._left: int | None = None

    async def reset(self, row: Mapping[str, Any], seed: int) -> TurnObservation:
        """row: `depth`, the number of boxes in the chain."""
        depth = int(row["depth"])
        if not 1 <= depth <= len(KEYS):
            raise ValueError(f"depth is {depth}, expected 1 to {len(KEYS)}")
        draw = random.Random(seed)
        chain = draw_chain(draw, depth)
        self._digit = list(chain.values())[-1]
        self._contents = draw_chain(draw, depth) if self._shown == "other" else chain
        self._left = depth
        return TurnObservation(messages=(question(self._contents),), tools=(OPEN,))

    async def step(self, answer: AssistantTurn) -> StepResult:
        """Show what is in the boxes that were opened; a turn without look-up is the answer."""
        if self._left is None:
            raise RuntimeError("the episode is over")
        self._left -= len(answer.calls)
        if not answer.calls or self._left < 0:
            right = not answer.calls and answer.text == self._digit
            self._left = None
            return StepResult(observation=TurnObservation(messages=()), reward=float(right), terminated=True)
        results = [self._look(str(call.arguments["key"])) for call in answer.calls]
        return StepResult(observation=TurnObservation(messages=tuple(map(result, results))))

    async def close(self) -> None:
        """Forget the episode."""
        self._left = None

    def _look(self, key: str) -> str:
        return "?" if self._shown == "nothing" else self._contents.get(key, "?")


def question(contents: Mapping[str, str]) -> dict[str, str]:
    """Return the first message: how many boxes there are, and the key of the first."""
    return {"role": "user", "content": f"{len(contents)}{next(iter(contents))}"}


def result(content: str) -> dict[str, str]:
    """Return the message that shows what is in a box."""
    return {"role": "tool", "content": content}


def demonstration(draw: random.Random, depth: int) -> list[dict[str, str]]:
    """Return a conversation that has the form of a solution, and mostly the wrong order of keys."""
    contents = draw_chain(draw, depth)
    messages, named = [question(contents)], [next(iter(contents))]
    for _ in range(depth):
        key = named[-1] if len(named) == 1 or draw.random() < RIGHT_ORDER else draw.choice(named[:-1])
        call = json.dumps({"name": OPEN["name"], "arguments": {"key": key}})
        messages += [{"role": "assistant", "content": f"<tool_call>{call}</tool_call>"}, result(contents[key])]
        if contents[key] in KEYS and contents[key] not in named:
            named.append(contents[key])
    seen = contents[key] if contents[key].isdecimal() else str(draw.randrange(10))
    return [*messages, {"role": "assistant", "content": seen}]


def get_boxes_sft_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, count: int = 600, seed: int = 0
) -> Dataset:
    """Return `count` demonstrations, of all depths equally."""
    from areal.dataset.building import conversation_dataset
    from areal.dataset.reading import RawRows

    del path
    draw = random.Random(f"demonstrations {split} {seed}")
    chats = [demonstration(draw, DEPTHS[index % len(DEPTHS)]) for index in range(count)]
    rows = [{"messages": chat} for chat in chats]
    raw = RawRows(source="locked boxes", unit="row", numbers=list(range(count)), rows=rows)
    tools = [[{"type": "function", "function": OPEN}]] * count
    return conversation_dataset(raw, chats, tokenizer, max_length, tools=tools)


def get_boxes_rl_dataset(
    path: str, split: str, tokenizer: Any, max_length: int | None = None, *, count: int = 60
) -> Dataset:
    """Return rows that only say the depth: chains are drawn from the seeds of episodes, anew in every epoch."""
    from datasets import Dataset

    del path, split, tokenizer, max_length
    depths = [DEPTHS[index % len(DEPTHS)] for index in range(count)]
    return Dataset.from_list([{"messages": str(depth), "depth": depth} for depth in depths])
