"""How much wall time asynchronous rollout saves over synchronous, with simulated generation and training.

    python benchmarks/async_vs_sync.py [--steps 30] [--sigma 0.5] [--train-ratio 1.0] [--gate 1.8] [--json]

The scheduling is real: `RolloutExecutor` with its thread, admission and policies. Only the two loads are sleeps, which
makes the ratio a property of the runtime and not of the machine. Generation takes a lognormal time per sample with the
given mean, as many at a time as are admitted; training a batch takes `train-ratio` times that mean. 1.0 is the balanced
case. Every setting generates the same samples with the same durations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
from typing import TYPE_CHECKING, Any

from areal.api import GenerationConfig, ModelRequest, ModelResponse, RolloutWorkflow, StopReason, Trajectory
from areal.infra.rollout.config import RolloutConfig
from areal.infra.rollout.executor import RolloutExecutor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import WeightUpdateMeta


class SleepingEngine:
    """One token per request, after a lognormal time that depends on the request's seed only."""

    def __init__(self, mean_seconds: float, sigma: float) -> None:
        self._mean_seconds, self._sigma = mean_seconds, sigma
        self.version = 0

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        normal = random.Random(request.seed).gauss(0.0, 1.0)
        # The shift by sigma^2 / 2 makes the mean, not the median, equal to mean_seconds.
        await asyncio.sleep(self._mean_seconds * math.exp(self._sigma * normal - self._sigma**2 / 2))
        return ModelResponse(
            input_tokens=request.input_ids,
            output_tokens=[1],
            output_logprobs=[0.0],
            output_versions=[self.version],
            stop_reason=StopReason.STOP,
        )

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self, request_ids: Sequence[str] | None = None) -> int:
        return 0

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        self.version = meta.version

    def stats(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None: ...


class OneToken(RolloutWorkflow):
    """The smallest episode there is."""

    async def arun_episode(self, engine: Any, data: Mapping[str, Any]) -> Trajectory:
        response = await engine.agenerate(ModelRequest(input_ids=[0], gconfig=GenerationConfig(max_new_tokens=1)))
        return Trajectory(
            tokens=[0, 1],
            loss_mask=[0, 1],
            logprobs=[0.0, 0.0],
            versions=[-1, response.output_versions[0]],
            turn_ids=[-1, 0],
            reward=0.0,
            stop_reason=response.stop_reason,
        )


class Endless:
    """Empty rows."""

    def __len__(self) -> int:
        return 1 << 30

    def row(self, ordinal: int, /) -> Mapping[str, Any]:
        return {}


def measure(arguments: argparse.Namespace, staleness: int, consume: str) -> dict[str, float]:
    """Seconds per step in steady state, and how old what was trained was."""
    engine = SleepingEngine(arguments.mean_seconds, arguments.sigma)
    config = RolloutConfig(
        batch_size=arguments.batch_size,
        group_size=1,
        max_head_offpolicyness=staleness,
        consume=consume,
        max_concurrent_prompts=arguments.slots,
    )
    oldest, warm_up = 0, staleness + 1
    with RolloutExecutor(engine=engine, workflow=OneToken(), rows=Endless(), config=config, seed=1) as rollout:
        rollout.start()
        started = time.monotonic()
        for version in range(arguments.steps + warm_up):
            if version == warm_up:
                started = time.monotonic()
            batch = rollout.next_batch()
            oldest = max(oldest, *batch.staleness)
            time.sleep(arguments.train_ratio * arguments.mean_seconds)
            engine.version = version + 1
            rollout.advance(version + 1)
        seconds = (time.monotonic() - started) / arguments.steps
        dropped = rollout.stats().get("dropped/stale", 0.0)
    return {"seconds_per_step": seconds, "oldest": float(oldest), "dropped": dropped}


def throughput(episodes: int) -> float:
    """Episodes per second through the runtime when generation costs nothing."""
    config = RolloutConfig(batch_size=64, group_size=8, max_head_offpolicyness=1)
    engine = SleepingEngine(0.0, 0.0)
    with RolloutExecutor(engine=engine, workflow=OneToken(), rows=Endless(), config=config, seed=1) as rollout:
        rollout.start()
        started, steps = time.monotonic(), max(1, episodes // 512)
        for version in range(steps):
            rollout.next_batch()
            engine.version = version + 1
            rollout.advance(version + 1)
        return steps * 512 / (time.monotonic() - started)


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="training steps measured per setting")
    parser.add_argument("--batch-size", type=int, default=32, help="prompts per step")
    parser.add_argument(
        "--slots", type=int, default=0, help="prompts in flight at once; 0: as many as the bound admits"
    )
    parser.add_argument("--sigma", type=float, default=0.5, help="spread of the lognormal generation time")
    parser.add_argument("--mean-seconds", type=float, default=0.05, help="mean generation time of one sample")
    parser.add_argument("--train-ratio", type=float, default=1.0, help="training time over mean generation time")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2], help="bounds to compare with 0")
    parser.add_argument("--consume", nargs="+", default=["fifo", "deadline", "drop"], help="policies to compare")
    parser.add_argument("--gate", type=float, default=0.0, help="exit 1 when the best lossless speed-up is below this")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser.parse_args()


def main() -> None:
    """Measure and report."""
    arguments = parse()
    baseline = measure(arguments, 0, "fifo")
    rows = [{"consume": "(synchronous)", "staleness": 0, "speedup": 1.0, **baseline}]
    for staleness in arguments.staleness:
        for consume in arguments.consume:
            result = measure(arguments, staleness, consume)
            speedup = baseline["seconds_per_step"] / result["seconds_per_step"]
            rows.append({"consume": consume, "staleness": staleness, "speedup": speedup, **result})
    overhead = throughput(20_000)
    if arguments.json:
        report = {"settings": vars(arguments), "results": rows, "overhead_episodes_per_second": overhead}
        print(json.dumps(report, indent=2))
    else:
        show(rows, overhead)
    lossless = [row["speedup"] for row in rows if not row["dropped"]]
    if max(lossless) < arguments.gate:
        sys.exit(f"speed-up {max(lossless):.2f}x is below the gate of {arguments.gate:g}x")


def show(rows: list[dict[str, Any]], overhead: float) -> None:
    """Return the table."""
    print(f"{'policy':<14} {'bound':>5} {'s/step':>8} {'speed-up':>9} {'oldest':>6} {'dropped':>7}")
    for row in rows:
        print(
            f"{row['consume']:<14} {row['staleness']:>5} {row['seconds_per_step']:>8.4f} {row['speedup']:>8.2f}x "
            f"{row['oldest']:>6.0f} {row['dropped']:>7.0f}"
        )
    print(f"runtime alone: {overhead:,.0f} episodes per second")


if __name__ == "__main__":
    main()
