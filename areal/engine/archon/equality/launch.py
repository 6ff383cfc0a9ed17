"""Starts the processes of a comparison with torchrun and collects what rank 0 writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from areal.api import EngineError


def run_processes(
    program: str, world_size: int, arguments: list[str], *, timeout_seconds: float = 600.0
) -> list[dict[str, Any]]:
    """Run a program, a module or a file "*.py", as `world_size` processes with `--out=FILE` and the arguments; the JSON
    lines of FILE.

    Raises EngineError with the end of their output when they fail or do not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.jsonl"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
        process = subprocess.Popen(
            [*command, *([] if program.endswith(".py") else ["-m"]), program, f"--out={out}", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            # torchrun ends its workers when it is asked to end, not when it is killed.
            process.terminate()
            output, _ = process.communicate()
            raise EngineError(
                f"{world_size} processes did not end in {timeout_seconds:g} s:\n{output[-3000:]}"
            ) from None
        if process.returncode:
            raise EngineError(f"{world_size} processes failed ({process.returncode}):\n{output[-3000:]}")
        return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
