"""Everything at once: updates, pauses, aborts, cancelled requests and servers that break, over and over.

Servers write the version that sampled a token into its log-probability, so that every label is checked against the
truth.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from areal.api import FaultError, StopReason

REQUESTS = 120
HURRY = 0.35
"""What happens in every run of the tests happens in this part of the time; the exhaustive tests take theirs."""


def good_tokens(prompt_length, count):
    return [2 + (prompt_length + index) % 18 for index in range(count)]


def check(request, response, oldest, newest):
    length = len(request.input_ids)
    assert response.output_tokens == good_tokens(length, len(response.output_tokens))
    truth = [round((-0.5 - logprob) * 1000) for logprob in response.output_logprobs]
    assert response.output_versions == truth, "a token is labelled with a version that did not sample it"
    assert response.output_versions == sorted(response.output_versions)
    assert all(oldest <= version <= newest for version in response.output_versions)
    if response.stop_reason is StopReason.LENGTH:
        assert len(response.output_tokens) == request.gconfig.max_new_tokens


class Chaos:
    """What happens to an engine, in an order that a seed decides."""

    def __init__(self, world, seed, pace):
        self.world, self.chance, self.pace, self.done = world, random.Random(seed), pace, Counter()

    async def sleep(self, seconds):
        await asyncio.sleep(seconds * self.pace)

    async def run(self):
        work = asyncio.ensure_future(self.requests())
        others = [asyncio.create_task(self.break_servers(work)), asyncio.create_task(self.change_engine(work))]
        await asyncio.wait_for(work, 200)
        await asyncio.wait_for(asyncio.gather(*others), 60)

    async def requests(self):
        """All at once, and again until enough has happened: how much that is in one round depends on the machine."""
        while True:
            await asyncio.gather(*map(self.request, range(REQUESTS)))
            failed = self.world.engine.stats()["failed_calls"]
            if min(self.done["versions"], self.done["mixed"], failed) > 5:
                return

    async def request(self, number):
        await self.sleep(number * 0.04)
        engine, chance = self.world.engine, self.chance
        request = self.world.request(*([3] * chance.randint(1, 9)), new=chance.randint(5, 60), seed=number)
        oldest = engine.version
        task = asyncio.create_task(engine.agenerate(request))
        if chance.random() < 0.1:
            await self.sleep(chance.random() * 0.3)
            task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(result, asyncio.CancelledError):
            return
        if isinstance(result, FaultError):
            self.done["faults of other kinds"] += "nan" not in str(result)
            return
        if isinstance(result, BaseException):
            raise result
        check(request, result, oldest, engine.version)
        self.done["answers"] += 1
        self.done["mixed"] += len(set(result.output_versions)) > 1

    async def break_servers(self, until):
        while not until.done():
            await self.sleep(0.05 + self.chance.random() * 0.15)
            server, number = self.chance.choice(self.world.servers), self.chance.randint(0, 30)
            kinds = [f"drop:{number}", f"drop:{number}", "html", "status:500", "truncated", "no_end", "nan"]
            server.script.append(self.chance.choice(kinds))
            if self.chance.random() < 0.05:
                server.script.append(f"stall:{number}")

    async def change_engine(self, until):
        while not until.done():
            await self.sleep(0.1 + self.chance.random() * 0.2)
            kind = self.chance.random()
            if kind < 0.6:
                self.chance.choice(self.world.servers).refuse_switch = int(self.chance.random() < 0.2)
                await self.update()
            elif kind < 0.8:
                await asyncio.to_thread(self.world.engine.pause)
                if self.chance.random() < 0.5:
                    await self.update()
                await asyncio.to_thread(self.world.engine.resume)
            else:
                await asyncio.to_thread(self.world.engine.abort)

    async def update(self):
        await asyncio.to_thread(self.world.update, self.world.engine.version + 1)
        self.done["versions"] += 1


@pytest.mark.fault(
    row=10,
    injected="120 requests on 3 servers that break off, answer nonsense or fall silent, under updates, pauses and "
    "aborts at random moments; log-probabilities tell which version sampled a token",
    seen="every label is the truth, every answer what an undisturbed server gives, none hangs or is lost",
)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "pace"), [(0, HURRY), *(pytest.param(seed, 1.0, marks=pytest.mark.exhaustive) for seed in range(3))]
)
def test_every_token_has_its_true_version_whatever_happens(world, seed, pace):
    world.start(3, reference=False, affinity_tokens=2, restarts=10**6, max_attempts=50, stall_seconds=0.6)
    for server in world.servers:
        server.versions_in_logprobs, server.delay = True, 0.004 * pace
    chaos = Chaos(world, seed, pace)
    asyncio.run(chaos.run())
    stats = world.engine.stats()
    assert chaos.done["answers"] > REQUESTS // 2
    assert chaos.done["faults of other kinds"] == 0
    assert stats["requests"] == stats["finished"] + stats["aborted"] + stats["failed"] + stats["cancelled"]
    assert stats["active"] == 0
