"""Seconds and bytes that it takes rank 0 to give a batch to the other ranks of a run.

    .venv/bin/python benchmarks/batch_dispatch.py [--ranks 2 4 8] [--rows 256] [--length 4096] [--rounds 5] [--json]

whole    every rank is sent all rows, one rank after the other
divided  every rank is sent its own rows, as a run does

Both travel over the connections of `areal.trainer.rank_group`, in turn, after one round that does not count; the other
ranks are processes that only receive. They share the cores of one machine, which on a cluster are many.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
from common import BenchmarkReport, add_output_arguments, markdown, progress, set_thread_environment, spread

from areal.api import PaddedBatch
from areal.engine.train.divided import DividedBatch
from areal.engine.train.packing import divide_rows
from areal.trainer.rank_group import RankGroup
from areal.trainer.wire import WireMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER_RANK = (
    "import sys\nfrom multiprocessing.connection import Connection\nfrom areal.trainer.rank_group import serve\n"
    "raise SystemExit(serve(Connection(int(sys.argv[1]))))\n"
)


def make_batch(rows: int, length: int) -> PaddedBatch:
    """Rows of equal length, each a group of its own."""
    ids, numbers = torch.zeros(rows, length, dtype=torch.int64), torch.rand(rows, length)
    return PaddedBatch(
        tokens=ids,
        lengths=torch.full((rows,), length),
        loss_mask=numbers,
        logp_behave=numbers.clone(),
        versions=ids.clone(),
        turn_ids=ids.clone(),
        rewards=torch.zeros(rows),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
    )


def divide(batch: PaddedBatch, ranks: int) -> DividedBatch:
    """Divide over ranks that all have rows of their own."""
    return DividedBatch(
        lengths=batch.lengths,
        groups=batch.groups,
        rows_per_unit=1,
        width=batch.tokens.shape[1],
        divided=divide_rows(batch, ranks, keep_groups=True),
        holders=tuple((rank, True) for rank in range(ranks)),
        part=batch,
    )


@contextmanager
def group_of(ranks: int) -> Iterator[RankGroup]:
    """Rank 0 of a run with so many ranks, the others of which have nothing to compute."""
    processes, links = [], []
    for _ in range(ranks - 1):
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", OTHER_RANK, str(theirs.fileno())]
        processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
        theirs.close()
        links.append(Connection(ours.detach()))
    group = RankGroup(links)
    try:
        yield group
    finally:
        group.end(0)
        for process in processes:
            process.wait(timeout=30)


def measure(ranks: int, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways in turn, for one number of ranks."""
    batch = make_batch(options.rows, options.length)
    divided = divide(batch, ranks)
    seconds: dict[str, list[float]] = {"whole": [], "divided": []}
    with group_of(ranks) as group:
        sink = group.create(list)
        for number in range(options.rounds + 1):
            for name, value in (("whole", batch), ("divided", divided)):
                started = time.perf_counter()
                sink.run(list.append, value)
                seconds[name] += [time.perf_counter() - started] if number else []
                sink.run(list.clear)
    sent = {
        "whole": (ranks - 1) * WireMessage(batch).num_bytes,
        "divided": sum(WireMessage(divided.for_rank(rank)).num_bytes for rank in range(1, ranks)),
    }
    return {
        "ranks": ranks,
        **{name: {**spread(found), "bytes": sent[name]} for name, found in seconds.items()},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line for each number of ranks."""
    header = ("ranks", "whole: MB", "seconds", "divided: MB", "seconds", "times faster")
    lines = [
        (
            str(row["ranks"]),
            *(
                text
                for name in ("whole", "divided")
                for text in (f"{row[name]['bytes'] / 1e6:.1f}", f"{row[name]['median']:.3f}")
            ),
            f"{row['whole']['median'] / row['divided']['median']:.1f}",
        )
        for row in rows
    ]
    return markdown(header, lines)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="processes, rank 0 included")
    parser.add_argument("--rows", type=int, default=256, help="of the batch")
    parser.add_argument("--length", type=int, default=4096, help="tokens of each row")
    parser.add_argument("--rounds", type=int, default=5, help="that count")
    add_output_arguments(parser)
    options = parser.parse_args()
    set_thread_environment(1)
    torch.set_num_threads(1)
    report = BenchmarkReport("batch_dispatch", options)
    rows = []
    for ranks in options.ranks:
        progress(f"batch_dispatch: {ranks} ranks")
        rows.append(measure(ranks, options))
    report.finish({"results": rows}, table(rows))


if __name__ == "__main__":
    main()
