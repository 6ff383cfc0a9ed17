"""One rank of the memory tests: the second one may map only so much memory, and its allocator then really fails."""

import argparse
import ctypes
import gc
import json
import logging
import os
import resource
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from over_ranks import config_of, difference, everywhere, message, weights_of
from torch.distributed.fsdp import FSDPModule

from areal.api import EngineError, PaddedBatch
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig
from areal.engine.train import runner as engine_module
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.processes import connected
from areal.models import from_config
from areal.models.parallel import ParallelDims

BUDGET = 1024
M_ARENA_MAX = -8
WIDE = {**CONFIGS["dense"], "intermediate_size": 4096, "max_position_embeddings": 2048}


def engine_of(**sizes):
    config = config_of(max_tokens_per_micro_batch=BUDGET, logprob_chunk_size=64)
    archon = ArchonConfig(parallel=ParallelDims(**sizes))
    return TrainingEngine(from_config(WIDE, dtype=torch.float64, seed=0), config=config, archon=archon)


def batch_of(rows, length):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (rows, length), generator=generator)
    mask = torch.ones(rows, length)
    mask[:, 0] = 0
    return PaddedBatch(
        tokens=ids,
        lengths=torch.full((rows,), length),
        loss_mask=mask,
        logp_behave=torch.zeros(rows, length),
        versions=torch.where(mask > 0, 0, -1),
        turn_ids=torch.where(mask > 0, 0, -1),
        rewards=torch.zeros(rows),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
        advantages=torch.randn(rows, length, generator=generator),
    )


@contextmanager
def room_for(num_bytes):
    """On the second rank, so much more address space than it has now."""
    if dist.get_rank() != 1:
        yield
        return
    gc.collect()  # what is freed later would be room as well
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    held = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmSize:"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + int(num_bytes), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Messages(logging.Handler):
    def __init__(self):
        super().__init__()
        self.found = []

    def emit(self, record):
        self.found.append(record.getMessage())


def needed_by(engine):
    """Bytes that micro-batches of the budget, and of half of it, are expected to take."""
    expectation = engine._runner._micro_batches._expectation
    return [expectation.bytes_for("training", tokens) for tokens in (BUDGET, BUDGET // 2)]


def halves(way):
    """A step in too little memory, compared with an undisturbed one."""
    messages, batch = Messages(), batch_of(64, 32)
    logging.getLogger("areal.engine.train.runner").addHandler(messages)
    free, tight = engine_of(**way), engine_of(**way)
    expected = free.train_batch(batch, loss_of(batch), with_entropy=True)
    needs = needed_by(tight)
    with room_for(sum(needs) / 2):
        stats = tight.train_batch(batch, loss_of(batch), with_entropy=True)
    return {
        "megabytes": [need / 1e6 for need in needs],
        "micro_batches": [expected.num_micro_batches, stats.num_micro_batches],
        "loss": abs(expected.loss - stats.loss),
        "parameters": difference(weights_of(free), weights_of(tight)),
        "messages": messages.found,
    }


def nothing_fits():
    """A step in which one sequence is too long for the memory there is, and one more."""
    free, tight = engine_of(dp_shard=2), engine_of(dp_shard=2)
    long, batch = batch_of(2, BUDGET), batch_of(4, 32)
    with room_for(sum(needed_by(tight)) / 2):
        refused = message(tight.train_batch, long, loss_of(long), with_entropy=True)
    after = [engine.train_batch(batch, loss_of(batch), with_entropy=True).loss for engine in (free, tight)]
    return {"refused": refused, "after": abs(after[0] - after[1])}


def parameters_on_host(arrangements):
    """FSDP2's way of keeping parameters in host memory, which here is all there is: the numbers stay what they are."""
    found = {}
    for kind, sizes in arrangements:
        batch, states = make_batch(), []
        for offloaded in (False, True):
            config = config_of(optimizer="muon")
            archon = ArchonConfig(parallel=ParallelDims(**sizes), offload_parameters=offloaded)
            # What is refused without an accelerator, and would be of no use, still shows that the parts fit together.
            with mock.patch.object(engine_module, "check_offload"):
                engine = TrainingEngine(from_config(CONFIGS[kind], dtype=torch.float64), config=config, archon=archon)
            for _ in range(2):
                engine.train_batch(batch, loss_of(batch), with_entropy=True)
            states.append(weights_of(engine))
            policies = {type(group.offload_policy).__name__ for group in groups_of(engine.model)}
        found[f"{kind} {sizes}"] = {"policies": sorted(policies), "difference": difference(*states)}
    return found


def groups_of(model):
    """What FSDP2 gathers together."""
    units = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
    return [group for unit in units if (group := unit._get_fsdp_state()._fsdp_param_group) is not None]


def middle(batch):
    """One rank runs out where the others are waiting: an error that says so, and nobody waits for ever."""
    engine = engine_of(dp_shard=2)
    if dist.get_rank() == 1:
        layer = engine.model.layers[1]
        layer.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")))
    try:
        engine.train_batch(batch, loss_of(batch))
    except EngineError as error:
        return str(error)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return ""


def alone():
    """A process of its own runs out of memory, and starts the step again with half the tokens."""
    batch, engines, found = make_batch(), [], {}
    for _ in range(2):
        config = config_of()
        model = from_config(CONFIGS["dense"], dtype=torch.float64, seed=0)
        engines.append(TrainingEngine(model, config=config, archon=ArchonConfig()))
    hidden = engines[1].model.hidden
    limit = 40

    def refuse(tokens, *rest, **options):
        if tokens.shape[0] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden(tokens, *rest, **options)

    engines[1].model.hidden = refuse
    stats = [engine.train_batch(batch, loss_of(batch), with_entropy=True) for engine in engines]
    found["micro_batches"] = [found.num_micro_batches for found in stats]
    found["loss"] = abs(stats[0].loss - stats[1].loss)
    found["parameters"] = difference(*map(weights_of, engines))
    limit = 0
    found["refused"] = message(engines[1].train_batch, batch, loss_of(batch))
    offloaded = ArchonConfig(offload_parameters=True)
    found["offload"] = message(TrainingEngine, model, config=config, archon=offloaded)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if os.environ["WORLD_SIZE"] == "1":
        with connected("cpu", alone=True):
            arguments.out.write_text(json.dumps(alone()) + "\n", encoding="utf-8")
        return
    # glibc gives threads arenas of 64 MB of address space when they first ask for memory; in the middle of a step that
    # took the room that halved micro-batches had left.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    on_host = [("mixture", {"dp_shard": 2, "ep": 2}), ("dense", {"dp_shard": 2}), ("dense", {"tp": 2})]
    with connected("cpu", timeout_seconds=60):
        results = {} if arguments.quick else {name: halves({name: 2}) for name in ("dp_shard", "tp")}
        results["on host"] = parameters_on_host(on_host[: 1 if arguments.quick else 3])
        results["nothing fits"] = everywhere(nothing_fits())
        batch = batch_of(64, 32)
        if dist.get_rank() == 1:
            results["middle"] = middle(batch)
            arguments.out.write_text(json.dumps(results) + "\n", encoding="utf-8")
            # The end of this process is what the other one gets to see.
            return
        assert middle(batch).startswith("RuntimeError")


if __name__ == "__main__":
    main()
