"""Seconds, bytes and memory of a version on its way from the trainer's ranks to the workers of servers, over gloo.

    .venv/bin/python benchmarks/weight_streams.py [--ranks 1 2 4] [--workers 2] [--megabytes 128] [--rounds 5] [--json]

broadcast  rank 0, which has the whole model already, copies it, computes digests and broadcasts it (weights.carrier
           broadcast); gathering it from the ranks would come on top
shards     the ranks stream their shards through collectors that take turns (weights.carrier shards)

Both in turn, after one round that does not count. Workers verify the digests of both. All processes share the cores of
one machine. memory: how far the resident memory of rank 0 rises above what it has before, measured by the kernel;
planned: what `areal plan` counts for it, buffers of gloo aside.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from common import BenchmarkReport, add_output_arguments, markdown, progress, set_thread_environment, spread

from areal.api import ServerInstance
from areal.engine.server.receiver import WeightReceiver
from areal.infra.weights.broadcast import BroadcastCarrier
from areal.infra.weights.layout import ParameterLayout, TransferUnit, merge_holdings, plan_stream
from areal.infra.weights.shards import ShardCarrier
from areal.infra.weights.stream import GroupLinks, OwnPart, ShardStream, StreamModel

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from areal.infra.weights.stream import StreamOrder, StreamOutcome

WIDTH = 1024
"""Of every matrix; one of WIDTH x WIDTH has 2 MiB in bfloat16."""
TIMEOUT_SECONDS = 120.0


class Rank:
    """One rank's shards, cut by rows, and its part in streams."""

    def __init__(self, rank: int, ranks: int, options: argparse.Namespace) -> None:
        self.rank, self.links, self.session = rank, None, 0
        shapes = {f"layer.{index}": (WIDTH, WIDTH) for index in range(options.megabytes * 2**20 // (2 * WIDTH**2))}
        share = WIDTH // ranks
        bounds = [((each * share, (each + 1) * share), (0, WIDTH)) for each in range(ranks)]
        units = [
            TransferUnit(
                parameters=(ParameterLayout(name=name, shape=shape, width=2),),
                stored=(name,),
                stored_bytes=(2 * WIDTH**2,),
                in_place=True,
            )
            for name, shape in shapes.items()
        ]
        layout = plan_stream(
            units,
            merge_holdings(dict.fromkeys(shapes, part) for part in bounds),
            num_ranks=ranks,
            bucket_bytes=options.bucket * 2**20,
            max_collectors=8,
        )
        self.model = StreamModel(
            layout=layout,
            wire=((torch.bfloat16,),) * len(units),
            convert=lambda number, values: dict(values),
            entries={name: {"dtype": "bfloat16", "shape": list(shape)} for name, shape in shapes.items()},
        )
        self.own = {
            name: OwnPart(tensor=torch.randn(share, WIDTH), bounds=bounds[rank], dtype=torch.float32) for name in shapes
        }

    def stream(self, order: StreamOrder, store: Any = None) -> StreamOutcome:
        """Do this rank's part."""
        if order.session != self.session:
            self.links, self.session = GroupLinks(order, self.model.layout, self.rank, store=store), order.session
        return ShardStream(self.model, self.own, self.links, rank=self.rank, device="cpu").run()


class Leader:
    """`StreamingRanks` of rank 0 here and the others at the other ends of connections."""

    def __init__(self, own: Rank, others: list[Connection]) -> None:
        self._own, self._others = own, others

    def layout(self) -> Any:
        return self._own.model.layout

    def is_at(self, version: int) -> bool:
        return True

    def stream(self, order: StreamOrder, store: Any) -> StreamOutcome:
        for other in self._others:
            other.send(order)
        outcome = self._own.stream(order, store)
        for other in self._others:
            other.recv()
        return outcome


def follow(connection: Connection, rank: int, ranks: int, options: argparse.Namespace) -> None:
    """Be a rank other than 0."""
    torch.set_num_threads(1)
    own = Rank(rank, ranks, options)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        own.stream(order)
        connection.send("done")


def receive(connection: Connection) -> None:
    """Be a worker of a server."""
    torch.set_num_threads(1)
    receiver = WeightReceiver(worker_index=0, device=torch.device("cpu"))
    connection.send("ready")
    while (asked := connection.recv()) is not None:
        receiver.stage(*asked)
        receiver.discard()
        connection.send("done")


def measure(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways in turn, for one number of ranks."""
    context = get_context("spawn")
    links, processes = [], []
    for number in range(options.workers + ranks - 1):
        ours, theirs = context.Pipe()
        is_worker = number < options.workers
        target = receive if is_worker else follow
        arguments = (theirs,) if is_worker else (theirs, number - options.workers + 1, ranks, options)
        processes.append(context.Process(target=target, args=arguments, daemon=True))
        processes[-1].start()
        links.append(ours)
    for link in links:
        link.recv()
    workers, others = links[: options.workers], links[options.workers :]
    own = Rank(0, ranks, options)
    whole = {name: torch.randn(WIDTH, WIDTH).to(torch.bfloat16) for name in own.own}
    blank = {name: torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16, device="meta") for name in own.own}
    common = {"backend": "gloo", "device": "cpu", "timeout_seconds": TIMEOUT_SECONDS}
    carriers = {
        "broadcast": (BroadcastCarrier(bucket_bytes=options.bucket * 2**20, **common), whole),
        "shards": (ShardCarrier(Leader(own, others), **common), blank),
    }
    servers = [ServerInstance(name=f"s{index}", incarnation=f"{index}", url="") for index in range(options.workers)]
    seconds: dict[str, list[float]] = {name: [] for name in carriers}
    memory = dict.fromkeys(carriers, 0.0)
    for number in range(options.rounds + 1):
        for name, (carrier, tensors) in carriers.items():
            before = resident(reset=True)
            started = time.perf_counter()
            published = carrier.publish(number, tensors)
            routes = carrier.routes(published, servers, [1] * options.workers)
            for link, route in zip(workers, routes, strict=True):
                link.send((published.manifest.to_json(), dict(route.source)))
            carrier.send()
            for link in workers:
                link.recv()
            seconds[name] += [time.perf_counter() - started] if number else []
            memory[name] = max(memory[name], resident() - before)
            carrier.keep_only(-2)
    for link in links:
        link.send(None)
    for process in processes:
        process.join(30)
    layout = own.model.layout
    return {
        "ranks": ranks,
        "bytes": layout.stream_bytes,
        "sent_by_rank_0": {
            "broadcast": layout.stream_bytes,
            "shards": layout.sent_to_collectors()[0] + layout.sent_to_workers()[0],
        },
        "memory": memory,
        "planned": layout.peak_bytes(0),
        **{name: spread(found) for name, found in seconds.items()},
    }


def resident(*, reset: bool = False) -> float:
    """Return this process's memory now, and begin to watch its peak; or the peak since then. In bytes."""
    if reset:
        # What was freed goes back to the system first, or it would be taken from there without a rise.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    name = "VmRSS:" if reset else "VmHWM:"
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(name))) * 1024


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line for each number of ranks."""
    header = (
        "ranks", "MB", "broadcast: seconds", "rank 0 sends, MB", "memory, MB", "shards: seconds", "rank 0 sends, MB",
        "memory, MB", "planned, MB", "speed of broadcast",
    )  # fmt: skip
    lines = [
        (
            str(row["ranks"]),
            f"{row['bytes'] / 1e6:.0f}",
            *(
                text
                for name in ("broadcast", "shards")
                for text in (
                    f"{row[name]['median']:.2f}",
                    f"{row['sent_by_rank_0'][name] / 1e6:.0f}",
                    f"{row['memory'][name] / 1e6:.0f}",
                )
            ),
            f"{row['planned'] / 1e6:.0f}",
            f"{row['broadcast']['median'] / row['shards']['median']:.2f}x",
        )
        for row in rows
    ]
    return markdown(header, lines)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="of the trainer")
    parser.add_argument("--workers", type=int, default=2, help="of servers")
    parser.add_argument("--megabytes", type=int, default=128, help="of the model, as it is served")
    parser.add_argument("--bucket", type=int, default=8, help="MiB of a bucket")
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    add_output_arguments(parser)
    options = parser.parse_args()
    set_thread_environment(1)
    torch.set_num_threads(1)
    report = BenchmarkReport("weight_streams", options)
    rows = []
    for ranks in options.ranks:
        progress(f"weight_streams: {ranks} ranks")
        rows.append(measure(ranks, options))
    report.finish({"results": rows}, table(rows))


if __name__ == "__main__":
    main()
