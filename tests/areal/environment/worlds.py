"""Environments of the tests: one that is right, and one for each way to be wrong."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time

from areal.api import AssistantTurn, StepResult, TurnObservation


def said(text, role="user"):
    return TurnObservation(messages=({"role": role, "content": text},))


class Counter:
    """Adds up the numbers the policy says until they reach `goal`; rewards each step with its number / 10."""

    def __init__(self, goal=3):
        self.goal = goal

    def create(self):
        return CounterEpisode(self.goal)


class CounterEpisode:
    def __init__(self, goal):
        self.goal, self.total, self.over = goal, 0, True

    async def reset(self, row, seed):
        self.total, self.over = 0, False
        self.start = random.Random(seed).randint(0, 999)
        return said(f"{row.get('question', 'count')} {self.start}")

    async def step(self, answer):
        if self.over:
            raise RuntimeError("the episode is over")
        await asyncio.sleep(0)
        text = answer.text.strip()
        if not text.isdigit():
            return StepResult(observation=said("not a number"), reward=-0.5)
        self.total += int(text)
        self.over = self.total >= self.goal
        return StepResult(
            observation=said(f"{self.total}"), reward=int(text) / 10, terminated=self.over, info={"total": self.total}
        )

    async def close(self):
        self.over = True


class Adder:
    """A counter that is stepped by calls of a tool, and does not understand words."""

    def create(self):
        return AdderEpisode(3)


class AdderEpisode(CounterEpisode):
    async def step(self, answer):
        numbers = [str(call.arguments["number"]) for call in answer.calls if call.name == "add"]
        return await super().step(AssistantTurn(text=numbers[0] if numbers else "nothing"))


class Slow:
    """A counter that computes until some time has passed: little, where it has to wait for a processor."""

    def create(self):
        return SlowEpisode(3)


class SlowEpisode(CounterEpisode):
    async def step(self, answer):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        return await super().step(answer)


class Lasting:
    """Counters that say they reset fully, of which `forgetful` ones do not; the first observation says how many there
    were."""

    num_made = 0

    def __init__(self, forgetful=False, says=True):
        self.forgetful, self.says = forgetful, says

    def create(self):
        type(self).num_made += 1
        return (LastingEpisode if self.says else CounterEpisode)(3 + self.forgetful * 97)


class LastingEpisode(CounterEpisode):
    resets_fully = True

    async def reset(self, row, seed):
        before = self.total
        await super().reset(row, seed)
        self.total = before if self.goal == 100 else 0
        return said(f"made {Lasting.num_made}")


class Telling:
    """Says what arguments its process was started with."""

    def create(self):
        return _TellingEpisode(3)


class _TellingEpisode(CounterEpisode):
    async def reset(self, row, seed):
        await super().reset(row, seed)
        return said(f"{sys.argv[1:]}")


class Misbehaving:
    """Does `what` in the method `where`."""

    def __init__(self, what, where="step", marker=""):
        self.what, self.where, self.marker = what, where, marker

    def create(self):
        return _MisbehavingEpisode(self.what, self.where, self.marker)


SHARED = random.Random(5)


class _MisbehavingEpisode(CounterEpisode):
    def __init__(self, what, where, marker):
        super().__init__(3)
        self.what, self.where, self.marker = what, where, marker

    async def misbehave(self, where):  # noqa: C901 - one branch per way to be wrong
        if where != self.where:
            return None
        if self.what == "raise":
            raise ValueError("a bug of mine")
        if self.what == "hang":
            await asyncio.sleep(3600)
        if self.what == "block":
            time.sleep(1.5)
        if self.what == "spin":
            while True:
                pass
        if self.what == "die":
            os.write(2, b"going down\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "print":
            os.write(1, b"noise on standard output\n")
        if self.what == "nan":
            return StepResult(observation=said("?"), reward=float("nan"))
        if self.what == "number":
            return StepResult(observation=said("?"), info={"speed": "high"})
        if self.what == "role":
            return StepResult(observation=said("?", role="narrator"))
        if self.what == "none":
            return "none at all"
        if self.what == "flood":
            return StepResult(observation=said("x" * 3_000_000))
        if self.what == "random":
            return StepResult(observation=said(str(SHARED.random())))
        if self.what == "fork":  # a grandchild in a session of its own that would outlive everybody
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            with open(self.marker, "w", encoding="utf-8") as file:
                file.write(str(child.pid))
            await asyncio.sleep(3600)
        return None

    async def reset(self, row, seed):
        await self.misbehave("reset")
        return await super().reset(row, seed)

    async def step(self, answer):
        found = await self.misbehave("step")
        return await super().step(answer) if found is None else found

    async def close(self):
        await self.misbehave("close")
        await super().close()
