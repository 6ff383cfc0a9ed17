"""What the programs of one rank share: engines, whole weights, differences, refusals, and how results get out."""

import argparse
import json
from pathlib import Path

import torch.distributed as dist

from areal.api import CheckpointError, ConfigError, EngineError, ModelError
from areal.engine.config import TrainEngineConfig
from areal.engine.train.processes import connected


def config_of(**changes):
    # With this offset AdamW follows the size of gradients, not their sign only.
    return TrainEngineConfig(**{"lr": 1e-2, "adam_eps": 1e-3, "dtype": "float64", "device": "cpu", **changes})


def weights_of(engine):
    """Copies of the whole parameters, on rank 0; {} on others."""
    return {name: tensor.clone() for name, tensor in engine.weights().items()}


def difference(one, other):
    """The largest that rank 0 sees, on all ranks."""
    assert not one or one.keys() == other.keys(), one.keys() ^ other.keys()
    found = [max((float((one[name].double() - other[name].double()).abs().max()) for name in one), default=0.0)]
    dist.broadcast_object_list(found)
    return found[0]


def everywhere(value):
    """The values of all ranks."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def message(attempt, *arguments, **options):
    """What is said of an attempt that fails; "" when it does not."""
    try:
        attempt(*arguments, **options)
    except (CheckpointError, ConfigError, EngineError, ModelError) as error:
        return str(error)
    return ""


def run(work, *, writer=0):
    """Give `work` the command line, among the ranks; one of them writes what it returns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--what", nargs="+")
    arguments = parser.parse_args()
    with connected("cpu", timeout_seconds=60):
        found = work(arguments)
        if dist.get_rank() == writer:
            arguments.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
