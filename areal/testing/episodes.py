"""Runs episodes the way training does: many at once, while weights change, and through the rollout executor.

trajectories = run_episodes(workflow, policy.engine, rows)
trajectories = run_while_updating(workflow, policy, rows)
assert_episodes_overlap(build, policy.engine, row)
groups = run_in_executor(workflow, policy.engine, rows, group_size=2)
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from areal.api import Trajectory
from areal.utils import stats
from areal.utils.run_queue import RunQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from areal.api import InferenceEngine, PromptGroup, RolloutWorkflow
    from areal.testing.memorised import MemorisedPolicy

    Row = Mapping[str, Any]


def run_episodes(workflow: RolloutWorkflow, engine: InferenceEngine, rows: Sequence[Row]) -> list[Trajectory]:
    """One episode per row, all at once on one event loop; their trajectories in the order of the rows.

    An episode may give several trajectories or none; their `stats` has what it recorded (`areal.utils.stats`), as in a
    run. The first exception of an episode is raised.
    """
    return asyncio.run(_gather(workflow, engine, rows))


def run_while_updating(
    workflow: RolloutWorkflow, policy: MemorisedPolicy, rows: Sequence[Row], *, every_steps: int = 8
) -> list[Trajectory]:
    """Like `run_episodes`, publishing other weights after every `every_steps` decode steps until all episodes ended.

    Episodes see each new version in the middle of their generations. Raises AssertionError when they ended before the
    first update.
    """

    async def run() -> list[Trajectory]:
        episodes = asyncio.ensure_future(_gather(workflow, policy.engine, rows))
        published_at = policy.engine.stats()["decode_steps"]
        while not episodes.done():
            # Takes turns with the decode steps: each run of a test publishes at the same tokens.
            await asyncio.sleep(0)
            steps = policy.engine.stats()["decode_steps"]
            if steps >= published_at + every_steps:
                policy.publish()
                published_at = steps
        return await episodes

    before = policy.engine.version
    trajectories = asyncio.run(run())
    assert policy.engine.version > before, f"the episodes ended within {every_steps} decode steps, before any update"
    return trajectories


def assert_episodes_overlap(
    build: Callable[[Any], RolloutWorkflow],
    engine: InferenceEngine,
    row: Row,
    *,
    episodes: int = 8,
    seconds: float = 20.0,
    longest_pause: float = 1.0,
) -> None:
    """Check that episodes wait for each other in nothing, and that the event loop goes on meanwhile.

    build: makes the workflow with the given reward. That reward answers only once all `episodes` have asked for it, so
    a workflow that runs them one after another never ends and fails after `seconds`. longest_pause: seconds that the
    event loop may stand still, which is what a blocking call does to it.
    """
    everyone = asyncio.Barrier(episodes)
    arrived = 0

    async def reward(*_: Any, **__: Any) -> float:
        nonlocal arrived
        arrived += 1
        await everyone.wait()
        return 0.0

    async def run() -> float:
        heartbeat = asyncio.ensure_future(_longest_gap())
        try:
            async with asyncio.timeout(seconds):
                await _gather(build(reward), engine, [row] * episodes)
        except TimeoutError:
            raise AssertionError(
                f"only {arrived} of {episodes} episodes reached the reward within {seconds:g} s: do they wait for each "
                f"other?"
            ) from None
        finally:
            heartbeat.cancel()
        return await heartbeat

    pause = asyncio.run(run())
    assert pause <= longest_pause, (
        f"the event loop stood still for {pause:.2f} s: the workflow makes a blocking call; await it, or run it in a "
        f"thread or process"
    )


def run_in_executor(
    workflow: RolloutWorkflow, engine: InferenceEngine, rows: Sequence[Row], *, group_size: int = 2, seed: int = 1
) -> tuple[PromptGroup, ...]:
    """Return the first batch of a rollout executor with every row as a prompt, as the trainer would get it.

    Raises RolloutError when episodes fail, with the reasons.
    """
    from areal.infra.rollout.config import RolloutConfig
    from areal.infra.rollout.executor import RolloutExecutor

    config = RolloutConfig(
        batch_size=len(rows), group_size=group_size, max_head_offpolicyness=0, max_consecutive_failures=1
    )
    with RolloutExecutor(engine=engine, workflow=workflow, rows=_Cycle(rows), config=config, seed=seed) as executor:
        executor.start()
        return executor.next_batch().groups


class _Cycle:
    """A prompt source that begins again after its last row."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, ordinal: int, /) -> Row:
        """See `areal.infra.rollout.schedule.PromptSource`."""
        return self._rows[ordinal % len(self._rows)]


async def _gather(workflow: RolloutWorkflow, engine: InferenceEngine, rows: Sequence[Row]) -> list[Trajectory]:
    episodes = await asyncio.gather(*(_episode(workflow, engine, row) for row in rows))
    return [trajectory for trajectories in episodes for trajectory in trajectories]


async def _episode(workflow: RolloutWorkflow, engine: InferenceEngine, row: Row) -> list[Trajectory]:
    with stats.scope() as recorded:
        result = await workflow.arun_episode(engine, row)
    found = [] if result is None else [result] if isinstance(result, Trajectory) else list(result)
    return [replace(trajectory, stats=stats.means(recorded)) for trajectory in found]


async def _longest_gap() -> float:
    """Seconds between two turns of this task, the longest until it is cancelled; waits for a processor do not count."""
    queue = RunQueue()

    def clock() -> float:
        return time.monotonic() - queue.seconds()

    longest, last = 0.0, clock()
    try:
        while True:
            await asyncio.sleep(0.01)
            now = clock()
            longest, last = max(longest, now - last), now
    except asyncio.CancelledError:
        return longest
