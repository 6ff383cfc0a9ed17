"""Run each kind of collective once over all ranks, without anything of this project, and print what every rank has.

    torchrun --nproc-per-node 2 collective.py                             # NCCL on accelerators, gloo on CPUs
    torchrun --nproc-per-node 4 collective.py --mesh dp=2,tp=2            # also along each dimension of a mesh
    torchrun --nproc-per-node 2 collective.py --leave-out 1 --seconds 10  # what it looks like when a rank stays away

It fails the way a run fails: if this hangs too, the cause is the network or the devices, not the training code.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SWITCHES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_SHOW_CPP_STACKTRACES",
)
"""Variables that say how processes talk, and how much they say about it."""
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that say which of the processes this one is, and where the others are."""


def fingerprint(tensor: torch.Tensor) -> str:
    """Return a short hash of the values of a tensor, to compare it across ranks without sending it."""
    values = tensor.detach().to("cpu").contiguous().view(torch.uint8)
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:12]


def describe(name: str, tensor: torch.Tensor) -> str:
    """Return rank, shape, dtype, device and hash of a tensor; of a DTensor also its mesh and its placements."""
    text = f"rank {dist.get_rank()}: {name} {tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"
    if hasattr(tensor, "placements"):
        local = tensor.to_local()
        text += f", mesh {tensor.device_mesh}, placements {tensor.placements}, local {tuple(local.shape)}"
        tensor = local
    return f"{text}, {fingerprint(tensor)}"


def disagreement(name: str, tensor: torch.Tensor) -> str:
    """Return which ranks hold other values than rank 0, "" when all agree. Every rank has to call it."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, fingerprint(tensor))
    others = [rank for rank, one in enumerate(found) if one != found[0]]
    return f"{name} differs from rank 0 on ranks {others}" if others else ""


def exchange(device: torch.device, elements: int) -> dict[str, str]:
    """Run one collective of each kind over all ranks; returns what is wrong by name, "" where nothing is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ours = torch.full((elements,), float(rank), device=device)
    total = ours.clone()
    dist.all_reduce(total)
    pieces = [torch.empty_like(ours) for _ in range(size)]
    dist.all_gather(pieces, ours)
    first = ours.clone()
    dist.broadcast(first, src=0)
    wanted = {
        "all_reduce": (total, float(sum(range(size)))),
        "all_gather": (torch.stack([piece[0] for piece in pieces]), torch.arange(size, device=device)),
        "broadcast": (first, 0.0),
    }
    problems = {name: "" if bool((found == right).all()) else f"got {found}" for name, (found, right) in wanted.items()}
    problems["agreement"] = disagreement("the sum", total)
    return problems


def along(mesh: DeviceMesh, device: torch.device) -> dict[str, str]:
    """Sum once along each dimension of a mesh, and split a tensor over the last; returns what is wrong by name."""
    problems = {}
    for position, name in enumerate(mesh.mesh_dim_names or ()):
        one = torch.ones(1, device=device)
        dist.all_reduce(one, group=mesh.get_group(name))
        size = mesh.size(position)
        problems[f"all_reduce along {name}"] = "" if float(one) == size else f"got {float(one)}, expected {size}"
    whole = torch.arange(8.0 * mesh.size(mesh.ndim - 1), device=device).reshape(-1, 4)
    placements = [Replicate()] * (mesh.ndim - 1) + [Shard(0)]
    split = distribute_tensor(whole, mesh, placements)
    print(describe("split over the last dimension", split), flush=True)
    problems["full_tensor"] = "" if bool((split.full_tensor() == whole).all()) else "differs from what was split"
    return problems


def main() -> int:
    """Return 0 when every collective gave every rank the right numbers, 1 when one did not; 2 without ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("auto", "gloo", "nccl"), default="auto")
    parser.add_argument("--elements", type=int, default=1024, metavar="N", help="of each tensor (1024)")
    parser.add_argument("--seconds", type=float, default=60.0, help="until a rank gives up waiting (60)")
    parser.add_argument("--mesh", default="", metavar="NAME=N,...", help="dimensions, outermost first")
    parser.add_argument("--leave-out", type=int, default=-1, metavar="RANK", help="a rank that takes no part")
    parser.add_argument("--out", type=Path, help="gets what rank 0 found, as a line of JSON")
    options = parser.parse_args()
    missing = [name for name in PLACE if name not in os.environ]
    if missing:
        parser.error(
            f"{', '.join(missing)} not set: this process does not know the other ranks; start it with "
            f"`areal launch --ranks 2 -- python {sys.argv[0]}` or `torchrun --nproc-per-node 2 {sys.argv[0]}`"
        )
    accelerated = options.backend != "gloo" and torch.accelerator.is_available()
    device = torch.device("cpu")
    if accelerated:
        torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
        device = torch.device(
            torch.accelerator.current_accelerator() or "cpu", torch.accelerator.current_device_index()
        )
    backend = options.backend if options.backend != "auto" else ("nccl" if device.type == "cuda" else "gloo")
    dist.init_process_group(backend, timeout=timedelta(seconds=options.seconds))
    try:
        rank, size = dist.get_rank(), dist.get_world_size()
        shown = {name: os.environ[name] for name in SWITCHES if name in os.environ}
        print(f"rank {rank} of {size}: {socket.gethostname()}, process {os.getpid()}, {device}, {backend}, {shown}")
        if rank == options.leave_out:
            return 0
        problems = exchange(device, options.elements)
        if options.mesh:
            sizes = {name: int(number) for name, _, number in (part.partition("=") for part in options.mesh.split(","))}
            mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
            print(f"rank {rank}: at {dict(zip(sizes, mesh.get_coordinate() or (), strict=True))}", flush=True)
            problems |= along(mesh, device)
        for name, problem in problems.items():
            print(f"rank {rank}: {name}: {problem or 'right'}", flush=True)
        if rank == 0 and options.out is not None:
            options.out.write_text(json.dumps({"size": size, "backend": backend, "problems": problems}) + "\n")
        return 1 if any(problems.values()) else 0
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    raise SystemExit(main())
