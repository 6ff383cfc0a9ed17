"""A trainer thread that does everything at random times, and clients that check every invariant afterwards."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
import time

import pytest

from areal.api import WeightUpdateMeta
from areal.engine.embedded.engine import StepGate

CLIENTS, REQUESTS = 8, 24


class RandomTrainer:
    """Pauses, aborts and updates until told to stop. `failure` holds what went wrong."""

    def __init__(self, engine, models) -> None:
        self.engine = engine
        self.models = models
        self.chance = random.Random(0)
        self.version = 0
        self.stop = threading.Event()
        self.failure: AssertionError | None = None
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.chance.choice((self.hold, self.abort, self.update, self.update_on_hold))()
                assert self.engine.stats()["active"] <= 4
                time.sleep(0.004 * self.chance.random())
        except AssertionError as error:
            self.failure = error
        finally:
            self.engine.resume()

    def hold(self, *, update: bool = False) -> None:
        self.engine.pause()
        before = self.engine.stats()["generated_tokens"]
        if update:
            self.update()
        time.sleep(0.001 * self.chance.random())
        assert self.engine.stats()["generated_tokens"] == before, "a token was produced while paused"
        self.engine.resume()

    def update_on_hold(self) -> None:
        self.hold(update=True)

    def update(self) -> None:
        self.version += 1
        state = self.models[self.version % len(self.models)].state_dict()
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=self.version, state_dict=state))

    def abort(self) -> None:
        some = [str(self.chance.randrange(CLIENTS * REQUESTS)) for _ in range(5)]
        self.engine.abort(None if self.chance.random() < 0.3 else some)


async def client(world, engine, number: int, responses: list) -> None:
    """Sends requests one after another and loses patience with some."""
    for seed in range(number * REQUESTS, (number + 1) * REQUESTS):
        request = world.request(1 + seed % 23, prompt_seed=seed // 3, seed=seed, new=1 + seed % 40)
        task = asyncio.ensure_future(engine.agenerate(dataclasses.replace(request, request_id=str(seed))))
        if seed % 11 == 0:
            await asyncio.sleep(0.003)
            task.cancel()
        done, _ = await asyncio.wait([task], timeout=60)
        assert done, "a request hangs"
        if not task.cancelled():
            responses.append(task.result())


@pytest.mark.fault(
    row=10,
    injected="pauses, aborts and weight updates at random moments from another thread",
    seen="no request hangs or is lost; each token recomputed under the version on its label fits",
)
def test_random_control_calls_from_another_thread_never_break_an_invariant(world):
    models = [world.build_model(seed=seed) for seed in range(3)]
    engine = world.build_engine(models[0], batch=4)
    trainer = RandomTrainer(engine, models)

    async def main():
        responses: list = []
        trainer.thread.start()
        try:
            await asyncio.gather(*(client(world, engine, number, responses) for number in range(CLIENTS)))
            while trainer.version < 3 and trainer.failure is None:  # however seldom it had its turn
                await asyncio.sleep(0.001)
        finally:
            trainer.stop.set()
            await asyncio.to_thread(trainer.thread.join)
        return responses

    responses = asyncio.run(main())
    if trainer.failure is not None:
        raise trainer.failure
    stats = engine.stats()
    assert stats["active"] == stats["waiting"] == stats["failed"] == 0
    assert stats["requests"] == stats["finished"] + stats["aborted"] + stats["cancelled"] == CLIENTS * REQUESTS
    assert stats["weight_updates"] >= 3
    assert len(responses) >= 0.9 * CLIENTS * REQUESTS
    for response in responses:
        assert response.output_versions == sorted(response.output_versions)
        for version in set(response.output_versions):
            first = response.output_versions.index(version)
            last = first + response.output_versions.count(version)
            assert world.deviation(models[version % 3], response, first=first, last=last) < 1e-5


def test_a_waiting_control_call_goes_before_the_next_step():
    gate = StepGate()
    finish = threading.Event()

    def control():
        with gate.control():
            finish.wait(60)

    thread = threading.Thread(target=control)
    with gate.step() as allowed:
        assert allowed
        thread.start()
        while not gate._claims:
            time.sleep(0.001)
    # However fast the next attempt comes, it must not overtake.
    for _ in range(3):
        with gate.step() as allowed:
            assert not allowed
    finish.set()
    thread.join()
    with gate.step() as allowed:
        assert allowed
