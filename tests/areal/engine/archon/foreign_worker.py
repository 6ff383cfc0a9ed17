"""One rank of the tests on models of transformers and on adapters: training, states, checkpoints, exports, refusals."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from over_ranks import config_of, difference, everywhere, message, run, weights_of
from torch import nn
from torch.distributed.tensor import DTensor

from areal.api import PaddedBatch
from areal.engine.archon.equality.cases import CONFIGS
from areal.engine.archon.equality.comparison import loss_of, make_batch
from areal.engine.config import ArchonConfig, LoraConfig
from areal.engine.hf import loading
from areal.engine.train.checkpoint import ShardedCheckpoints
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.passes import Scoring
from areal.infra.checkpoint.store import CheckpointStore
from areal.models import from_config
from areal.models.parallel import ParallelDims

LORA = LoraConfig(rank=3, alpha=7, rank_stabilized=True)
STATES = (
    ("tied", "transformers gpt2", {}),
    ("tied in bfloat16", "transformers gpt2", {"dtype": "bfloat16", "adam_eps": 0.1}),
    ("adapters", "dense", {"lora": LORA}),
    ("adapters in bfloat16", "dense", {"lora": LORA, "dtype": "bfloat16", "adam_eps": 0.1}),
)
EXPORTS = (
    ("gpt2", "transformers gpt2", {"dp_shard": 2}, {}),
    ("mixtral", "transformers mixtral", {"dp_shard": 2}, {}),
    ("gpt2 adapters", "transformers gpt2", {"dp_shard": 2}, {"lora": LORA}),
    ("dense adapters", "dense", {"tp": 2}, {"lora": LORA}),
    ("pipeline adapters", "dense", {"pp": 2}, {"lora": LORA}),
    ("mixture adapters in bfloat16", "mixture", {"dp_shard": 2, "ep": 2}, {"lora": LORA, "dtype": "bfloat16"}),
)
QUICK = ("tied in bfloat16", "adapters", "gpt2 adapters", "dense adapters")
"""In every run of the tests."""


def chosen(cases, quick):
    return [case for case in cases if case[0] in QUICK or not quick]


def model_of(kind, *, seed=0):
    build = loading.from_config if kind.startswith("transformers ") else from_config
    return build(CONFIGS[kind], dtype=torch.float64, seed=seed)


def decaying(**changes):
    return config_of(weight_decay=0.1, **changes)


def single_of(kind, *, seed=0, **changes):
    return TrainingEngine(model_of(kind, seed=seed), config=decaying(**changes))


def many_of(kind, sizes=None, *, seed=0, model=None, **changes):
    options = {"sequence_parallel": changes.pop("sequence_parallel", False)}
    archon = ArchonConfig(parallel=ParallelDims(**(sizes or {"dp_shard": 2})), keep_groups=False, **options)
    return TrainingEngine(model or model_of(kind, seed=seed), config=decaying(**changes), archon=archon)


def step(engine, batch=None):
    batch = batch or make_batch()
    return engine.train_batch(batch, loss_of(batch), with_entropy=True)


def batch_of(lengths, seed=0):
    """Rows without a common beginning."""
    generator = torch.Generator().manual_seed(seed)
    rows, width = len(lengths), max(lengths)
    columns, sizes = torch.arange(width), torch.tensor(lengths)
    mask = ((columns >= 1) & (columns < sizes[:, None])).float()
    zeros = torch.zeros(rows, width)
    return PaddedBatch(
        tokens=torch.randint(0, 64, (rows, width), generator=generator),
        lengths=sizes,
        loss_mask=mask,
        logp_behave=zeros,
        versions=zeros.long(),
        turn_ids=zeros.long(),
        rewards=torch.randn(rows, generator=generator),
        groups=torch.arange(rows),
        truncated=torch.zeros(rows, dtype=torch.bool),
        advantages=torch.randn(rows, width, generator=generator),
    )


class ExpertList(nn.Module):
    """The experts of a Mixtral layer as modules of which only those run that a token goes to."""

    def __init__(self, stacked):
        super().__init__()
        self.activation = stacked.act_fn
        pairs = zip(stacked.gate_up_proj.detach(), stacked.down_proj.detach(), strict=True)
        self.experts = nn.ModuleList(nn.ParameterList([gate_up.clone(), down.clone()]) for gate_up, down in pairs)

    def forward(self, hidden, chosen, weights):
        mixed = torch.zeros_like(hidden)
        for number, (gate_up, down) in enumerate(self.experts):
            tokens, place = (chosen == number).nonzero(as_tuple=True)
            if len(tokens):
                gate, up = (hidden[tokens] @ gate_up.T).chunk(2, -1)
                computed = (self.activation(gate) * up) @ down.T * weights[tokens, place, None]
                mixed = mixed.index_add(0, tokens, computed.to(mixed.dtype))
        return mixed


def unequal_work():
    """One rank runs the body of the model once, the other several times; experts run on one rank only."""

    def with_lists():
        model = model_of("transformers mixtral")
        for layer in model.inner.model.layers:
            layer.mlp.experts = ExpertList(layer.mlp.experts)
        return model

    found = {}
    for name, build, lengths in (
        ("rectangles", lambda: model_of("transformers llama"), (40, 3, 9, 3, 2, 19)),
        ("listed experts", with_lists, (25, 2)),
    ):
        batch = batch_of(lengths)
        single = TrainingEngine(build(), config=decaying())
        many = many_of("", model=build())
        counts = []
        body = many.model.inner.base_model
        body.register_forward_hook(lambda *_, counts=counts: counts.append(1))
        losses = [(step(engine, batch).loss, step(engine, batch).loss) for engine in (single, many)]
        runs = everywhere([len(counts), len(many._runner.divide(batch).divided[dist.get_rank()])])
        found[name] = {
            "loss": max(abs(one - other) for one, other in zip(*losses, strict=True)),
            "parameters": difference(weights_of(many), single.weights()),
            "runs and rows": runs,
            # An expert that no token of a step goes to has no gradient on one process, and one of zeros on many.
            "all used": all(single.state_dict()["optimizer"]["moments"].values()),
        }
    return found


def states(quick):
    """What one engine saves the other continues; tied embeddings and bfloat16 included."""
    found = {}
    for name, kind, changes in chosen(STATES, quick):
        single, many = single_of(kind, **changes), many_of(kind, **changes)
        losses = [step(engine).loss for engine in (single, many)]
        crossed = single_of(kind, **changes), many_of(kind, **changes)
        saved = [many.state_dict()]
        for engine in crossed:
            engine.load_state_dict(saved[0])
            saved.append(engine.state_dict())
        found[name] = {
            "loss": abs(losses[0] - losses[1]),
            "reloaded": max(difference(saved[0]["parameters"], state["parameters"]) for state in saved[1:]),
            "masters": max(
                (difference(saved[0]["optimizer"]["masters"], state["optimizer"]["masters"]) for state in saved[1:])
                if saved[0]["optimizer"]["masters"]
                else [0.0]
            ),
            "dtypes": sorted({str(tensor.dtype) for tensor in saved[0]["parameters"].values()}),
            "continued": abs(step(many).loss - step(crossed[1]).loss),
        }
        if "lora" in changes:
            other = many_of(kind, seed=5, **changes), many_of(kind, dtype=changes.get("dtype", "float64"))
            found[name]["refused"] = [message(engine.load_state_dict, saved[0]) for engine in other]
    return found


def frozen_base():
    """In low precision the base is kept as it is computed with, in shards, and has neither gradients nor moments."""
    engine = many_of("dense", lora=LORA, dtype="bfloat16")
    batch = make_batch()
    scoring = Scoring(only_masked=True, with_entropy=True)
    engine._backward(engine._runner.receive(batch), loss_of(batch), scoring)
    named = dict(engine.model.named_parameters())
    frozen = {name: parameter for name, parameter in named.items() if ".lora_" not in name}
    found = {
        "frozen": sorted({str(parameter.dtype) for parameter in frozen.values()}),
        "trained": sorted({str(parameter.dtype) for name, parameter in named.items() if name not in frozen}),
        "whole": [name for name, parameter in named.items() if not isinstance(parameter, DTensor)],
        "gradients": sorted({".lora_" in name for name, parameter in named.items() if parameter.grad is not None}),
    }
    step(engine)
    found["moments"] = sorted({".lora_" in name for name in engine.state_dict()["optimizer"]["moments"]})
    return found


def checkpoints(folder):
    """Saved by two ranks in one arrangement, continued in another; adapters without their base."""
    found = {}
    for name, kind, sizes, changes in (
        ("transformers", "transformers llama", [{"dp_shard": 2}, {"dp_replicate": 2}], {}),
        ("adapters", "dense", [{"dp_shard": 2}, {"tp": 2}], {"lora": LORA}),
    ):
        engine = many_of(kind, sizes[0], **changes)
        step(engine)
        saved = ShardedCheckpoints(engine, _store(folder / name))
        saved.save(1)
        path = saved.wait()
        again = many_of(kind, sizes[1], **changes)
        ShardedCheckpoints(again, _store(folder / name)).load(path)
        found[name] = {
            "parameters": difference(weights_of(engine), weights_of(again)),
            "loss": abs(step(engine).loss - step(again).loss),
            "bytes": sum(file.stat().st_size for file in path.rglob("*.distcp")),
        }
        if changes:
            others = many_of(kind, sizes[0], seed=5, **changes), many_of(kind, sizes[0])
            loaders = [ShardedCheckpoints(other, _store(folder / name)) for other in others]
            found[name]["refused"] = [message(loader.load, path) for loader in loaders]
    return found


def _store(folder):
    return CheckpointStore(folder, keep=2) if dist.get_rank() == 0 else None


def exports(folder, quick):
    """Folders from shards and from one process with the same state; `test_foreign` reads them with other libraries."""
    found = {}
    for name, kind, sizes, changes in chosen(EXPORTS, quick):
        engine = many_of(kind, sizes, **changes)
        for _ in range(2):
            step(engine)
        single = single_of(kind, **changes)
        single.load_state_dict(engine.state_dict())
        engine.save_pretrained(folder / name / "many" / "whole")
        if dist.get_rank() == 0:
            single.save_pretrained(folder / name / "one" / "whole")
        if changes:
            engine.save_adapter(folder / name / "many" / "adapter", base=str(folder / name / "base"))
            if dist.get_rank() == 0:
                single.save_adapter(folder / name / "one" / "adapter", base=str(folder / name / "base"))
                base = model_of(kind)
                base.save_pretrained(folder / name / "base")
        batch = make_batch()
        found[name] = {"tokens": batch.tokens[1, :14].tolist(), "logp": engine.forward_logp(batch)[1, :14].tolist()}
    return found


def refusals():
    """What cannot be built, each with its reason."""
    foreign = "transformers llama"
    return {
        **{way: message(many_of, "transformers gpt2", {way: 2}) for way in ("tp", "cp", "pp")},
        "sequence_parallel": message(many_of, foreign, {"tp": 2}, sequence_parallel=True),
        "ep": message(many_of, "transformers mixtral", {"dp_shard": 2, "ep": 2}),
        "compile": message(many_of, foreign, compile=True),
        "no adapter": message(many_of("dense").save_adapter, Path(tempfile.gettempdir()) / "none", base=""),
        "targets": message(many_of, "dense", lora=LoraConfig(targets=["query"])),
    }


def main(arguments):
    return {
        "unequal work": unequal_work(),
        "states": states(arguments.quick),
        "frozen base": frozen_base(),
        "checkpoints": checkpoints(arguments.folder / "checkpoints"),
        "exports": exports(arguments.folder, arguments.quick),
        "refusals": refusals(),
    }


if __name__ == "__main__":
    run(main)
