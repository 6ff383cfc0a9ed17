"""Runs the cases for its number of processes as one rank of the comparison; rank 0 writes a JSON line for each.

Started by `areal.engine.archon.equality.launch`, through torchrun.
"""

from __future__ import annotations

import argparse
import json
import traceback
from pathlib import Path
from typing import Any

import torch.distributed as dist

from areal.engine.archon.equality.cases import CONFIGS, EqualityCase, cases
from areal.engine.archon.equality.comparison import compare
from areal.engine.train.processes import connected
from areal.models.registry import MODELS


def main() -> None:
    """Arguments: as `launch` gives them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--only", action="append", help="part of a name; may be given several times")
    arguments = parser.parse_args()
    with connected("cpu", timeout_seconds=60):
        for case in cases(dist.get_world_size(), quick=arguments.quick):
            if any(part in case.name for part in arguments.only or [""]):
                result = _run(case, arguments.dtype)
                if dist.get_rank() == 0:
                    with arguments.out.open("a", encoding="utf-8") as stream:
                        stream.write(json.dumps(result) + "\n")


def _run(case: EqualityCase, dtype: str) -> dict[str, Any]:
    base = {"case": case.name, "kind": case.kind, "world_size": case.dims.world_size}
    model_type = CONFIGS[case.kind]["model_type"]
    if model_type not in MODELS and not case.is_foreign:
        return base | {"skipped": f"family {model_type} is not in this checkout: areal-new model {model_type}"}
    try:
        return compare(case, dtype=dtype)
    except Exception:  # noqa: BLE001 - a case that fails is a result, and the others still run
        return base | {"equal": False, "error": traceback.format_exc()}


if __name__ == "__main__":
    main()
