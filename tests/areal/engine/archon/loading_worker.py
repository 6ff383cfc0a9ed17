"""One rank of the loading tests: engines filled from slices of files, beside engines that had the whole model first."""

import shutil
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from over_ranks import everywhere, message, run
from safetensors.torch import load_file, save_file

from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig, LoraConfig, TrainEngineConfig
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.loading import ShardSource
from areal.engine.train.ranks import local_data
from areal.models import from_config, from_pretrained
from areal.models.parallel import ParallelDims
from areal.models.registry import MODELS
from areal.models.value_head import ValueModel

LORA = LoraConfig(rank=3, alpha=7)
QUICK = [
    ("tied", {"pp": 2}, {}),
    ("mixture", {"dp_shard": 2, "ep": 2}, {}),
    ("uneven", {"dp_shard": 2}, {}),
    ("uneven", {"tp": 2}, {}),
    ("tied", {"tp": 2}, {"lora": LORA}),
    ("mixture", {"dp_shard": 2, "ep": 2}, {"lora": LORA}),
]
CASES = {
    2: [
        *QUICK,
        ("dense", {"pp": 2}, {"pp_schedule": "ZBVZeroBubble"}),
        ("dense", {"pp": 2}, {"lora": LORA}),
        ("tied", {"dp_replicate": 2}, {}),
        ("tied", {"tp": 2}, {}),
        ("mixture", {"tp": 2}, {}),
        ("latent", {"tp": 2}, {}),
        ("latent", {"dp_shard": 2, "ep": 2}, {}),
    ],
    4: [
        ("dense", {"dp_shard": 2, "tp": 2}, {}),
        ("tied", {"dp_shard": 2, "tp": 2}, {"sequence_parallel": True}),
        ("tied", {"pp": 2, "dp_shard": 2}, {}),
        ("mixture", {"dp_shard": 4, "ep": 2}, {}),
        ("mixture", {"dp_shard": 2, "tp": 2, "ep": 2, "etp": 2}, {}),
        ("mixture", {"dp_shard": 2, "tp": 2, "ep": 4}, {}),
        ("latent", {"dp_shard": 2, "tp": 2}, {}),
        ("uneven", {"dp_shard": 2, "tp": 2}, {}),
        ("uneven", {"dp_shard": 4}, {}),
        ("uneven", {"dp_shard": 2, "tp": 2}, {"lora": LORA}),
    ],
}
CPU = torch.device("cpu")
UNEVEN = {**CONFIGS["dense"], "vocab_size": 66, "intermediate_size": 50}
"""Sizes that ranks of dp_shard cannot share equally, also after tp."""
LARGE = {
    "model_type": "qwen3", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}  # fmt: skip


def options(sizes, archon, **config):
    settings = {"lr": 1e-2, "adam_eps": 1e-3, "dtype": "float32", "device": "cpu", **config}
    settings |= {"lora": archon["lora"]} if "lora" in archon else {}
    archon = {name: value for name, value in archon.items() if name != "lora"}
    return {
        "config": TrainEngineConfig(**settings),
        "archon": ArchonConfig(parallel=ParallelDims(**sizes), **archon),
    }


def config_of(kind):
    return UNEVEN if kind == "uneven" else CONFIGS[kind]


def folder_of(kind, root):
    """A checkpoint with the layers that every case needs; written by rank 0, for all."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root / kind
    if dist.get_rank() == 0 and not folder.exists():
        config = LARGE if kind == "large" else {**config_of(kind), "num_hidden_layers": 4}
        from_config(config, dtype=torch.float32, seed=4).save_pretrained(folder, max_shard_bytes=2**18)
    dist.barrier()
    return folder


def same(one, other):
    """Whether this rank's parts are equal bit by bit, of the same names and dtypes."""
    states = one.model.state_dict(), other.model.state_dict()
    return list(states[0]) == list(states[1]) and all(
        tensor.dtype == states[1][name].dtype and torch.equal(local_data(tensor), local_data(states[1][name]))
        for name, tensor in states[0].items()
    )


def from_shards(folder, *, is_critic=False, **settings):
    """An engine whose ranks each read their shards of the checkpoint."""
    source = ShardSource(folder, CPU)
    model = source.blank()
    return TrainingEngine(ValueModel(model) if is_critic else model, source=source, is_critic=is_critic, **settings)


def compare(kind, sizes, archon, root):
    folder = folder_of(kind, root)
    parts = from_shards(folder, **options(sizes, archon))
    whole = TrainingEngine(from_pretrained(folder, dtype=torch.float32), **options(sizes, archon))
    found = {"same": all(everywhere(same(parts, whole))) and parts.state.base == whole.state.base}
    batch = make_batch()
    losses = [engine.train_batch(batch, loss_of(batch)).loss for engine in (parts, whole)]
    return found | {"losses": losses, "stays the same": all(everywhere(same(parts, whole)))}


def critic(root):
    folder = folder_of("tied", root)
    parts = from_shards(folder, is_critic=True, **options({"dp_shard": 2}, {}))
    model = ValueModel(from_pretrained(folder, dtype=torch.float32))
    whole = TrainingEngine(model, is_critic=True, **options({"dp_shard": 2}, {}))
    head = parts.model.head.weight.detach().full_tensor()
    return {"same": all(everywhere(same(parts, whole))), "head": float(head.abs().sum())}


class Watch:
    """The most memory that this process had for itself, beyond what it had before; mapped files are not counted."""

    def __enter__(self):
        self.before = self.now()
        self.most, self.is_over = self.before, False
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        while not self.is_over:
            self.most = max(self.most, self.now())
            time.sleep(0.001)

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()

    @property
    def grown(self):
        return max(self.most, self.now()) - self.before

    @staticmethod
    def now():
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def memory(root):
    """What reading takes on each rank, beside the whole model; and how much of the files it reads."""
    folder = folder_of("large", root)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    found = {}
    for name, sizes in (("dp_shard", {"dp_shard": 4}), ("dp_shard tp", {"dp_shard": 2, "tp": 2}), ("pp", {"pp": 4})):
        with Watch() as watch:
            engine = from_shards(folder, **options(sizes, {}))
        held = sum(local_data(tensor).nbytes for tensor in engine.model.state_dict().values())
        found[name] = {"grown": everywhere(watch.grown / size), "held": everywhere(held / size)}
        source = ShardSource(folder, CPU)
        engine = TrainingEngine(source.blank(), source=source, **options(sizes, {}))
        found[name]["read"] = everywhere(source.bytes_read / size)
        del engine
    return found


def refusals(root):
    """Checkpoints that do not fit: the same words as of a whole model, on every rank."""
    original = folder_of("dense", root)
    tensors = {}
    for file in original.glob("*.safetensors"):
        tensors |= load_file(file)
    norm = "model.layers.0.input_layernorm.weight"
    changes = {
        "missing": {name: tensor for name, tensor in tensors.items() if name != norm},
        "unexpected": {**tensors, "model.extra": torch.zeros(2)},
        "misshapen": {**tensors, norm: torch.zeros(3)},
    }
    found = {}
    for name, changed in changes.items():
        folder = root / name
        if dist.get_rank() == 0:
            folder.mkdir()
            shutil.copy(original / "config.json", folder)
            save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        dist.barrier()
        found[name] = messages_of(folder)
    tied = folder_of("tied", root)
    folder = root / "differs"
    if dist.get_rank() == 0:
        shutil.copytree(tied, folder)
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        whole = {}
        for file in tied.glob("*.safetensors"):
            whole |= load_file(file)
        head = whole["model.embed_tokens.weight"].clone()
        head[-1] += 1
        save_file({**whole, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    dist.barrier()
    # Only one of the ranks has the row that differs.
    found["differs"] = messages_of(folder)
    return {"messages": found, "same": all(other == found for other in everywhere(found))}


def messages_of(folder):
    """What is said of a folder that is read in parts, and of one that is read whole."""
    return [message(from_shards, folder, **options({"dp_shard": 2}, {})), message(from_pretrained, folder)]


def main(arguments):
    size = dist.get_world_size()
    results = {
        f"{kind} {ParallelDims(**sizes).describe()} {archon}": compare(kind, sizes, archon, arguments.folder)
        for kind, sizes, archon in (QUICK if arguments.quick else CASES[size])
        if config_of(kind)["model_type"] in MODELS
    }
    found = {"cases": results}
    if arguments.quick:
        found |= {"critic": critic(arguments.folder), "refusals": refusals(arguments.folder)}
    elif size == 4:
        found["memory"] = memory(arguments.folder)
    return found


if __name__ == "__main__":
    run(main)
