"""One rank of the test of compilation: the same steps by one process as it is, and by many with compiled blocks."""

import argparse
import json
from pathlib import Path

import torch.distributed as dist
from torch._dynamo.utils import counters

from areal.engine.archon.equality.cases import EqualityCase
from areal.engine.archon.equality.comparison import compare
from areal.engine.train.processes import connected
from areal.models.parallel import ParallelDims

SIZES = ({"tp": 2}, {"dp_shard": 2})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    # A rank may compile for minutes while the other waits.
    with connected("cpu", timeout_seconds=300):
        for sizes in SIZES:
            counters.clear()
            case = EqualityCase(kind="dense", dims=ParallelDims(**sizes), options={"compile": True})
            result = compare(case, dtype="float32") | {"compiled": counters["frames"]["ok"]}
            if dist.get_rank() == 0:
                with arguments.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
