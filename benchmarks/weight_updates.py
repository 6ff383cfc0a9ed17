"""Seconds that new weights take to real vLLM servers while they generate, phase by phase.

    bash scripts/setup_vllm.sh
    .venv/bin/python benchmarks/weight_updates.py [--sizes 0.4M 25M] [--servers 1 2] [--what whole adapters] [--json]

What is compared: the carriers shared_memory, disk and broadcast (gloo), in turn on the same servers, each after one
update that does not count. An update moves all tensors (float32, on a GPU bfloat16) of a Qwen3 with random weights, or
with `--what adapters` those of adapters of rank 16 on all linear layers, while the model stays in the servers. All
checks of an ordinary run are made: digests on both sides, and the probe. Meanwhile requests are in flight at every
server.

publish  the trainer copies the tensors, computes their digests, and writes or holds them
stage    the slowest server fetches them and compares the digests; generation goes on
switch   the slowest server puts them in use
stall    pause to resume at the slowest server: no token is computed
probe    the servers score a fixed sequence, which is compared with the trainer's scores
gap      the longest time without a token of any request during the update, as their callers see it: it has the stall
         and, since caches are computed anew, the time to the next token after it
total    the whole call of update_weights; also has the trainer's own score of the probe and health checks

All of it shares the cores of one machine, or its GPU, so phases take longer than they would on machines of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    VLLM_PYTHON,
    BenchmarkReport,
    add_device_argument,
    add_output_arguments,
    device_dtype,
    markdown,
    progress,
    require,
    require_device,
    set_thread_environment,
    shown,
    spread,
)
from embedded_engine import SIZES, make_prompts, model_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from areal.api import LowRankChange, PublishedWeights, SentWeights, ServerInstance, WeightCarrier, WeightRoute
    from areal.engine.server.adapter import ServerAdapter
    from areal.engine.server.engine import ServerEngine
    from areal.engine.train.engine import TrainingEngine

CARRIERS = ("shared_memory", "disk", "broadcast")
PHASES = ("publish", "stage", "switch", "stall", "probe", "gap", "total")
CONTEXT = 256
STREAM_INTERVAL = 4
"""Tokens per message: reading every token alone would keep the trainer's core busy."""


class Stopwatch:
    """Seconds by phase, of the update under way; calls of several servers overlap, and the slowest counts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = max(self.seconds[name], time.perf_counter() - started)


class TimedAdapter:
    """A `ServerAdapter` around another one, that measures the calls of weight updates."""

    def __init__(self, inner: ServerAdapter, watch: Stopwatch) -> None:
        self._inner, self._watch = inner, watch
        self._paused: dict[str, float] = {}

    def __getattr__(self, name: str) -> Any:
        """Hand on what is not measured."""
        return getattr(self._inner, name)

    async def pause(self, client: Any, url: str, **options: Any) -> None:
        self._paused[url] = time.perf_counter()
        await self._inner.pause(client, url, **options)

    async def resume(self, client: Any, url: str, **options: Any) -> None:
        await self._inner.resume(client, url, **options)
        stall = time.perf_counter() - self._paused.pop(url)
        self._watch.seconds["stall"] = max(self._watch.seconds["stall"], stall)

    async def stage(self, *arguments: Any, **options: Any) -> None:
        with self._watch.phase("stage"):
            await self._inner.stage(*arguments, **options)

    async def switch(self, *arguments: Any, **options: Any) -> None:
        with self._watch.phase("switch"):
            await self._inner.switch(*arguments, **options)

    async def score(self, *arguments: Any, **options: Any) -> list[float]:
        with self._watch.phase("probe"):
            return await self._inner.score(*arguments, **options)


class ChosenCarrier:
    """A `WeightCarrier` that is one of several: `chosen` publishes next, and what it published travels with it."""

    def __init__(self, carriers: Mapping[str, WeightCarrier], watch: Stopwatch) -> None:
        self._carriers, self._watch = carriers, watch
        self.chosen = next(iter(carriers))
        self._publisher: dict[int, str] = {}
        self._sender = self.chosen

    def publish(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        *,
        base: PublishedWeights | None = None,
        changes: Sequence[LowRankChange] = (),
    ) -> PublishedWeights:
        self._publisher[version] = self.chosen
        with self._watch.phase("publish"):
            return self._carriers[self.chosen].publish(version, tensors, base=base, changes=changes)

    def can_send(self, published: PublishedWeights) -> bool:
        return True

    def keep_only(self, version: int) -> None:
        for carrier in self._carriers.values():
            carrier.keep_only(version)

    def routes(
        self, published: PublishedWeights, servers: Sequence[ServerInstance], workers: Sequence[int]
    ) -> list[WeightRoute]:
        self._sender = self._publisher[published.manifest.version]
        return self._carriers[self._sender].routes(published, servers, workers)

    def send(self) -> None:
        self._carriers[self._sender].send()

    def sent(self) -> SentWeights:
        return self._carriers[self._sender].sent()

    def close(self) -> None:
        for carrier in self._carriers.values():
            carrier.close()


class Traffic:
    """Requests that are always in flight, and the longest time between two tokens of all of them."""

    def __init__(self, engine: ServerEngine, *, requests: int) -> None:
        self._engine, self._requests, self._ended = engine, requests, threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._generate, self._watch)]
        self.longest_gap = 0.0

    def __enter__(self) -> Traffic:
        before = self._tokens()
        for thread in self._threads:
            thread.start()
        while self._tokens() < before + 4 * self._requests:
            if self._ended.wait(0.02):
                raise SystemExit("the servers generate nothing; their logs were shown above")
        self.longest_gap = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._engine.abort()
        for thread in self._threads:
            thread.join()

    def _tokens(self) -> float:
        return self._engine.stats()["generated_tokens"]

    def _generate(self) -> None:
        try:
            asyncio.run(self._keep_busy())
        finally:
            self._ended.set()

    async def _keep_busy(self) -> None:
        from areal.api import GenerationConfig, ModelRequest

        config = GenerationConfig(max_new_tokens=CONTEXT // 2)

        async def stream(number: int) -> None:
            count = 0
            while not self._ended.is_set():
                prompt = make_prompts(1, (16, 16), seed=10_000 * number + count)[0]
                await self._engine.agenerate(ModelRequest(input_ids=prompt, gconfig=config, seed=count))
                count += 1

        await asyncio.gather(*(stream(number) for number in range(self._requests)))

    def _watch(self) -> None:
        seen, since = self._tokens(), time.perf_counter()
        while not self._ended.wait(0.005):
            now, tokens = time.perf_counter(), self._tokens()
            self.longest_gap = max(self.longest_gap, now - since)
            if tokens != seen:
                seen, since = tokens, now


def measure(size: str, servers: int, what: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures per carrier, all on the same servers."""
    from servers import vllm_engine

    from areal.engine.vllm.adapter import VLLMAdapter

    actor, watch = _actor(size, what, options.device), Stopwatch()
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in options.carriers}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        carrier = ChosenCarrier(_carriers(options.carriers, folder / "weights"), watch)
        engine = vllm_engine(
            actor,
            folder,
            context=CONTEXT,
            cores=("",) * servers,
            on_cuda=options.device == "cuda",
            dtype=device_dtype(options.device),
            carrier=carrier,
            adapter=TimedAdapter(VLLMAdapter(), watch),
            max_concurrent=16,
            stream_interval=STREAM_INTERVAL,
        )
        try:
            for number in range(options.rounds + 1):
                for chosen in options.carriers:
                    carrier.chosen = chosen
                    found = _update(engine, actor, watch, requests=options.requests * servers)
                    if number:
                        seconds[chosen].append(found)
        finally:
            engine.close()
    megabytes = sum(tensor.numel() * tensor.element_size() for tensor in actor.weights().values()) / 1e6
    return [
        {
            "size": size,
            "what": what,
            "servers": servers,
            "carrier": name,
            "megabytes": round(megabytes, 2),
            "seconds": {phase: spread([each[phase] for each in found]) for phase in PHASES},
        }
        for name, found in seconds.items()
    ]


def _actor(size: str, what: str, device: str) -> TrainingEngine:
    from areal.engine.config import LoraConfig, TrainEngineConfig
    from areal.engine.train.engine import TrainingEngine
    from areal.models import from_config

    lora = LoraConfig(rank=16) if what == "adapters" else None
    model: Any = from_config(model_config(size), seed=1)
    return TrainingEngine(model, config=TrainEngineConfig(device=device, dtype=device_dtype(device), lora=lora))


def _carriers(names: Sequence[str], folder: Path) -> dict[str, WeightCarrier]:
    from areal.infra.weights.building import build_carrier
    from areal.infra.weights.config import WeightTransferConfig

    def build(name: Any) -> WeightCarrier:
        # gloo, also from a GPU: NCCL refuses two processes on one.
        config = WeightTransferConfig(carrier=name, backend="gloo")
        return build_carrier(config, run_directory=folder, device="cpu", model_config={})

    return {name: build(name) for name in names}


def _update(engine: ServerEngine, actor: TrainingEngine, watch: Stopwatch, *, requests: int) -> dict[str, float]:
    import torch

    from areal.api import WeightUpdateMeta

    with torch.no_grad():
        for tensor in actor.weights().values():
            tensor.add_(1e-5)
    with Traffic(engine, requests=requests) as traffic:
        watch.seconds.clear()
        started = time.perf_counter()
        engine.update_weights(WeightUpdateMeta(kind="memory", version=engine.version + 1, state_dict=actor.weights()))
        total = time.perf_counter() - started
        _wait_for_tokens(engine)
        return dict.fromkeys(PHASES, 0.0) | watch.seconds | {"gap": traffic.longest_gap, "total": total}


def _wait_for_tokens(engine: ServerEngine) -> None:
    """End the gap with the next token."""
    before, deadline = engine.stats()["generated_tokens"], time.monotonic() + 60
    while engine.stats()["generated_tokens"] == before and time.monotonic() < deadline:
        time.sleep(0.002)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Seconds of all phases: medians; of stall and total also the range."""
    ranged: dict[str, Callable[[Any], str]] = dict.fromkeys(("stall", "total"), lambda each: shown(each, ".3f"))
    header = ["parameters", "what travels", "servers", "carrier", "MB", *PHASES]
    return markdown(
        header,
        [
            [
                row["size"],
                row["what"],
                str(row["servers"]),
                row["carrier"],
                f"{row['megabytes']:.3g}",
                *(ranged.get(phase, lambda each: f"{each['median']:.3f}")(row["seconds"][phase]) for phase in PHASES),
            ]
            for row in rows
        ],
    )


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=sorted(SIZES), default=["0.4M", "25M", "100M"], metavar="SIZE")
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 2], metavar="N", help="numbers of servers (1 2)")
    parser.add_argument(
        "--what",
        nargs="+",
        choices=("whole", "adapters"),
        default=["whole"],
        metavar="WHAT",
        help="whole, adapters (with the smallest number of servers only); default: whole",
    )
    parser.add_argument("--carriers", nargs="+", choices=CARRIERS, default=list(CARRIERS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="updates by each carrier that count (5)")
    parser.add_argument("--requests", type=int, default=4, help="in flight at each server (4)")
    add_device_argument(parser)
    add_output_arguments(parser)
    return parser.parse_args()


def main() -> None:
    """Measure and report."""
    options = parse()
    require("weight_updates", VLLM_PYTHON)
    set_thread_environment(1)
    require_device("weight_updates", options.device)
    report = BenchmarkReport("weight_updates", options)
    rows = []
    for size in options.sizes:
        for what in options.what:
            for servers in options.servers if what == "whole" else [min(options.servers)]:
                progress(f"weight_updates: {size} parameters, {what}, {servers} servers")
                rows += measure(size, servers, what, options)
    report.finish({"results": rows}, table(rows))


if __name__ == "__main__":
    main()
