"""One side of gpu_step.py: takes optimizer steps as a job file says, and prints one JSON object as its last line."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from memory import PeakMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LEARNING_RATE = 1e-5
WARM_UP_STEPS = 2


def engine_step(job: dict[str, Any], tokens: Tensor, *, archon: bool, stack: ExitStack) -> Callable[[], float]:
    """Make a step of one of our engines."""
    from parallel_worker import policy_loss

    from areal.api import PaddedBatch
    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.engine.train.engine import TrainingEngine
    from areal.models import from_config

    config = TrainEngineConfig(
        lr=LEARNING_RATE,
        dtype="bfloat16",
        device=job["device"],
        max_tokens_per_micro_batch=job["micro_batch"],
        gradient_checkpointing=job["checkpointing"],
    )
    model: Any = from_config(job["model"], seed=1, device=job["device"])
    if archon:
        from areal.engine.train.processes import connected

        stack.enter_context(connected(job["device"], alone=True))
    engine = TrainingEngine(model, config=config, archon=ArchonConfig() if archon else None)
    rows, length = tokens.shape
    ones = torch.ones(rows, length)
    ones[:, 0] = 0
    versions = torch.where(ones > 0, 0, -1)
    batch = PaddedBatch(
        tokens=tokens,
        lengths=torch.full((rows,), length),
        loss_mask=ones,
        logp_behave=torch.zeros(rows, length),
        versions=versions,
        turn_ids=versions,
        rewards=torch.zeros(rows),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
        advantages=torch.ones(rows, length),
    )
    loss_fn = policy_loss(batch)
    return lambda: engine.train_batch(batch, loss_fn).loss


def transformers_step(job: dict[str, Any], tokens: Tensor) -> Callable[[], float]:
    """Make a step of the loop that one writes by hand."""
    from transformers import AutoModelForCausalLM

    from areal.models import from_config, save_pretrained

    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(from_config(job["model"], seed=1), Path(folder))
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(job["device"])
    if job["checkpointing"]:
        model.gradient_checkpointing_enable()
    model.train()
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    parts = tokens.to(job["device"]).split(job["micro_batch"] // job["length"])

    def step() -> float:
        optimizer.zero_grad()
        total = 0.0
        for part in parts:
            with torch.autocast(job["device"], dtype=torch.bfloat16):
                loss = model(input_ids=part, labels=part).loss * len(part) / len(tokens)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return step


def profiled(on_cuda: bool) -> Any:
    """torch's profiler, for as long as the returned context lasts."""
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])])


def per_step(recorder: Any, seconds: list[float], *, on_cuda: bool) -> dict[str, float]:
    """Count what the profiler saw, per step; without this program's own synchronisation, one per step."""
    counts = Counter(event.name for event in recorder.events())
    steps = len(seconds)
    if not on_cuda:
        return {"numbers read": counts["aten::_local_scalar_dense"] / steps}
    waits = sum(counts[name] for name in ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"))
    launches = sum(count for name, count in counts.items() if name.startswith(("cudaLaunchKernel", "cuLaunchKernel")))
    on_device = [event for event in recorder.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    busy = sum(event.self_device_time_total for event in on_device) / 1e6
    return {
        "waits of the host": waits / steps - 1,
        "kernel launches": launches / steps,
        "idle share of the device": max(0.0, 1 - busy / sum(seconds)),
    }


def main() -> None:
    """Measure one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("train", "archon", "transformers"))
    parser.add_argument("job", type=Path)
    arguments = parser.parse_args()
    job = json.loads(arguments.job.read_text())

    from areal.models.flops import training_flops
    from areal.models.loading import blank_model

    torch.set_num_threads(job["threads"])
    on_cuda = job["device"] == "cuda"
    tokens = torch.randint(
        0, job["model"]["vocab_size"], (job["rows"], job["length"]), generator=torch.Generator().manual_seed(0)
    )
    memory = PeakMemory(job["device"])
    memory.forget()
    empty = memory.read()
    with ExitStack() as stack:
        if arguments.side == "transformers":
            step = transformers_step(job, tokens)
        else:
            step = engine_step(job, tokens, archon=arguments.side == "archon", stack=stack)
        seconds, losses, recorder = [], [], None
        for number in range(WARM_UP_STEPS + job["steps"]):
            if number == WARM_UP_STEPS:
                memory.forget()
                recorder = stack.enter_context(profiled(on_cuda)) if job["profile"] else None
            started = time.perf_counter()
            losses.append(step())
            if on_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - started)
    counted = seconds[WARM_UP_STEPS:]
    shape = blank_model(job["model"])
    lengths = [job["length"]] * job["rows"]
    result = {
        "seconds": counted,
        "profile": None if recorder is None else per_step(recorder, counted, on_cuda=on_cuda),
        "first_loss": losses[0],
        "tokens": tokens.numel(),
        "flops": training_flops(shape, lengths, num_predicted=tokens.numel() - len(tokens)),
        "parameters": sum(parameter.numel() for parameter in shape.parameters()),
        "peak_bytes": memory.read() - empty,
        "device": torch.cuda.get_device_name() if on_cuda else "CPU",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
