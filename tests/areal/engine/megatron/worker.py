"""One rank of the comparisons with megatron-core: `--what` names them, rank 0 writes a JSON line for each."""

import argparse
import json
import traceback
from pathlib import Path

import stand_in
import torch

if not torch.cuda.is_available():
    stand_in.install()

import megatron_cases
import torch.distributed as dist

from areal.engine.train.processes import connected


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--split", default="one process")
    parser.add_argument("--what", nargs="+")
    arguments = parser.parse_args()
    with connected(timeout_seconds=120):
        for name in arguments.what or megatron_cases.names(arguments.split):
            try:
                found = megatron_cases.run(name, arguments.folder)
            except Exception:  # noqa: BLE001 - a case that fails is a result, and the others still run
                found = {"case": name, "equal": False, "error": traceback.format_exc()}
            found["threads"] = megatron_cases.num_threads()
            if dist.get_rank() == 0:
                with arguments.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
