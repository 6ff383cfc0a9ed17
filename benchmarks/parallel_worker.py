"""One rank of parallel_scaling.py: trains the cases of its number of processes; rank 0 writes a JSON line for each.

Started through `areal.engine.archon.equality.launch`, which is what sets --out.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from memory import PeakMemory
from torch.utils._python_dispatch import TorchDispatchMode

from areal.api import LossOutput, PaddedBatch
from areal.engine.config import ArchonConfig, TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.processes import connected
from areal.models import from_config
from areal.models.parallel.dims import ParallelDims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from areal.api import LossFunction

PROMPT, ANSWER, GROUP = 64, 64, 4
MICRO_BATCH: Final = 2 * GROUP * (PROMPT + ANSWER)
VOCABULARY: Final = 2048
_DENSE: Final = {
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": PROMPT + ANSWER,
    "tie_word_embeddings": False,
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "dense": _DENSE,
    "mixture": _DENSE
    | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 384},
}
TRAINING: Final = TrainEngineConfig(lr=1e-4, device="cpu", max_tokens_per_micro_batch=MICRO_BATCH)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, and how it is split."""

    model: str
    dims: ParallelDims

    @property
    def name(self) -> str:
        """E.g. "dense, tp=2"."""
        return f"{self.model}, {self.dims.describe()}"


def cases(world_size: int) -> list[Case]:
    """Every dimension alone; experts are split over ranks that also have rows of their own."""
    if world_size == 1:
        return [Case(model=model, dims=ParallelDims()) for model in MODELS]
    alone = ("dp_shard", "dp_replicate", "tp", "cp", "pp")
    splits = [Case(model="dense", dims=ParallelDims(**{name: world_size})) for name in alone]
    return [*splits, Case(model="mixture", dims=ParallelDims(dp_shard=world_size, ep=world_size))]


class SentBytes(TorchDispatchMode):
    """Bytes this rank sends in collectives, if they were rings, and how many calls there were of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            kind = func._schema.name.partition("::")[2]
            self.calls[kind] = self.calls.get(kind, 0) + 1
            self.num_bytes += _sent(kind, args)
        return func(*args, **(kwargs or {}))


def _sent(kind: str, args: Any) -> int:
    tensors = [argument for argument in _flat(args) if isinstance(argument, torch.Tensor)]
    if not tensors or kind.startswith(("recv", "barrier")):
        return 0
    size = [tensor.numel() * tensor.element_size() for tensor in tensors]
    ranks = next(dist.ProcessGroup.unbox(item).size() for item in args if isinstance(item, torch.ScriptObject))
    if kind == "send":
        return sum(size)
    if kind.startswith("allreduce"):
        return 2 * sum(size) * (ranks - 1) // ranks
    # Output and input, of which gathers, scatters and exchanges pass on the larger one, less the rank's own part.
    return max(size) * (ranks - 1) // ranks


def _flat(arguments: Any) -> Iterator[Any]:
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from _flat(argument)
        else:
            yield argument


def make_batch(groups: int) -> PaddedBatch:
    """Make groups of samples of one prompt each, all of one length: ranks with rows of their own have equal work."""
    generator = torch.Generator().manual_seed(0)
    rows, width = groups * GROUP, PROMPT + ANSWER
    tokens = torch.randint(0, VOCABULARY, (rows, width), generator=generator)
    tokens[:, :PROMPT] = tokens[::GROUP, :PROMPT].repeat_interleave(GROUP, dim=0)
    mask = (torch.arange(width) >= PROMPT).float().expand(rows, width).contiguous()
    return PaddedBatch(
        tokens=tokens,
        lengths=torch.full((rows,), width),
        loss_mask=mask,
        logp_behave=torch.zeros(rows, width),
        versions=torch.where(mask > 0, 0, -1),
        turn_ids=torch.where(mask > 0, 0, -1),
        rewards=torch.zeros(rows),
        groups=torch.arange(groups).repeat_interleave(GROUP),
        truncated=torch.zeros(rows, dtype=torch.bool),
        advantages=torch.randn(rows, width, generator=generator),
    )


def policy_loss(batch: PaddedBatch) -> LossFunction:
    """Log-probabilities times advantages."""
    total = batch.loss_mask.sum()

    def loss_fn(logp: Tensor, _: Tensor | None, part: PaddedBatch, /) -> LossOutput:
        assert part.advantages is not None
        return LossOutput(loss=-(part.advantages * logp * part.loss_mask).sum() / total, metrics={})

    return loss_fn


def run(case: Case, batch: PaddedBatch, steps: int) -> dict[str, Any]:
    """Seconds of every step, peak memory of every rank beyond the empty process, and what rank 0 sends in a step."""
    memory = PeakMemory()
    memory.forget()
    empty = memory.read()
    engine = TrainingEngine(
        from_config(MODELS[case.model], seed=1), config=TRAINING, archon=ArchonConfig(parallel=case.dims)
    )
    loss_fn, seconds = policy_loss(batch), []
    loss = engine.train_batch(batch, loss_fn).loss  # warms up, and does not count
    memory.forget()
    for _ in range(steps):
        dist.barrier()
        started = time.perf_counter()
        engine.train_batch(batch, loss_fn)
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    peaks: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(peaks, memory.read() - empty)
    with SentBytes() as sent:
        engine.train_batch(batch, loss_fn)
    return {
        "case": case.name,
        "model": case.model,
        "world_size": dist.get_world_size(),
        "seconds": seconds,
        "peak_bytes": peaks,
        "sent_bytes": sent.num_bytes,
        "calls": sent.calls,
        "loss": loss,
    }


def main() -> None:
    """Arguments: as parallel_scaling.py gives them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    batch = make_batch(arguments.groups)
    with connected("cpu", timeout_seconds=300):
        for case in cases(dist.get_world_size()):
            if arguments.only not in case.name:
                continue
            result = run(case, batch, arguments.steps)
            if dist.get_rank() == 0:
                with arguments.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
