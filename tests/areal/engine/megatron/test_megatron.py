"""Ranks with megatron-core compute, save and load what one process of ours does.

They run with the interpreter of .venv-megatron, and a stand-in for `torch.cuda` where there is no GPU: layers,
schedules and sums are megatron-core's own, over gloo. Each way of splitting is a start of processes.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / ".venv-megatron/bin/python"
WORKER = Path(__file__).with_name("worker.py")
SPLITS = [
    (1, "one process"), (2, "tp=2"), (2, "pp=2"), (2, "dp_replicate=2"), (4, "pp=2 tp=2"), (4, "dp_replicate=2 tp=2"),
    (4, "pp=2 dp_replicate=2"), (4, "tp=4"), (4, "pp=4"),
]  # fmt: skip

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not PYTHON.is_file(), reason="no megatron-core here: bash scripts/setup_megatron.sh"),
]


def run_ranks(count, folder, *what, python=PYTHON):
    out = folder / "results.jsonl"
    command = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", WORKER]
    command += [f"--out={out}", f"--folder={folder}", *what]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(("count", "split"), SPLITS)
def test_megatron_computes_what_one_process_of_ours_computes(tmp_path, count, split):
    results = run_ranks(count, tmp_path, f"--split={split}")
    wrong = {found["case"]: found.get("error") or found.get("differences") for found in results if not found["equal"]}
    assert wrong == {}
    # Groups of processes are shared: their threads outlive them.
    assert max(found["threads"] for found in results) < 200
    if split in ("tp=4", "pp=4"):
        return
    whats = {found["case"].split("/")[0] for found in results}
    assert whats == {"float32", "float64", "smoothed", "bfloat16", "folder", "bridge", "resume", "refusals"}
    for found in results:
        if found["case"].startswith("bridge/"):
            assert found["compared"] >= 8  # no rank is without parameters
    (refused,) = [found["messages"] for found in results if found["case"].startswith("refusals/")]
    assert "archon.parallel.cp is 2" in refused["settings"]
    assert "archon.pp_schedule is GPipe" in refused["settings"]
    assert "MixtureOfExperts" in refused["mixture"]
    assert "Transformer Engine is not installed" in refused["transformer engine"]


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no GPU: on one, run python -m pytest tests/areal/engine/megatron -k gpu -m ''",
)
def test_kernels_of_a_gpu_agree_in_bfloat16(tmp_path):
    (found,) = run_ranks(1, tmp_path, "--what", "bfloat16/normed/one process")
    assert found["equal"], found
