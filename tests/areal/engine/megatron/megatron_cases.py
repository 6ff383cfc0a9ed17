"""What ranks with megatron-core do in the comparisons, and what one process of ours does that has to be the same."""

import dataclasses
import filecmp
import functools
import os

import torch
import torch.distributed as dist

from areal.api import ArealError
from areal.engine.archon.equality import comparison
from areal.engine.archon.equality.cases import EqualityCase
from areal.engine.config import ArchonConfig, LoraConfig, MegatronConfig, TrainEngineConfig
from areal.engine.megatron.engine import MegatronEngine
from areal.engine.train.checkpoint import ShardedCheckpoints
from areal.engine.train.engine import TrainingEngine
from areal.engine.train.loading import ShardSource
from areal.infra.checkpoint.store import CheckpointStore
from areal.models import from_config, from_pretrained
from areal.models.parallel import meshes
from areal.models.parallel.dims import ParallelDims

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_SHARED = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
CONFIGS = {
    "normed": {**_SHARED, "model_type": "qwen3", "vocab_size": 64, "head_dim": 8, "tie_word_embeddings": False},
    "tied": {**_SHARED, "model_type": "qwen2", "vocab_size": 64, "tie_word_embeddings": True},
    # 65 is a multiple of neither 2 nor 4: shares of the vocabulary are padded.
    "padded": {**_SHARED, "model_type": "qwen2", "vocab_size": 65, "tie_word_embeddings": False},
    "padded tied": {**_SHARED, "model_type": "qwen3", "vocab_size": 65, "head_dim": 12, "tie_word_embeddings": True},
    "deep": {**_SHARED, "model_type": "qwen3", "vocab_size": 66, "head_dim": 8, "num_hidden_layers": 4,
             "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False,
             "rope_parameters": LLAMA3},
}  # fmt: skip
DIMS = [ParallelDims(**sizes) for sizes in (
    {}, {"tp": 2}, {"pp": 2}, {"dp_replicate": 2}, {"tp": 2, "pp": 2}, {"tp": 2, "dp_replicate": 2},
    {"pp": 2, "dp_replicate": 2}, {"tp": 4}, {"pp": 4},
)]  # fmt: skip
OPTIONS = {
    "": {},
    "recomputed": {"gradient_checkpointing": True},
    "offloaded": {"offload_optimizer": True},
    "sgd": {"optimizer": "sgd"},
    "muon": {"optimizer": "muon"},
    "idle ranks": {},
}


# Every group of processes has threads that outlive it: engines of one process share theirs.
meshes.build_meshes = functools.cache(meshes.build_meshes)


def names(described):
    """Of all comparisons of one way of splitting, "what/kind/dims[/more]"."""
    found = []
    for dims in (dims for dims in DIMS if dims.describe() == described):
        if dims.tp == 4 or dims.pp == 4:
            found += [f"{dtype}/deep/{described}" for dtype in ("float32", "float64")]
            continue
        # Of two ways of splitting at once, fewer.
        kinds, options = (
            (list(CONFIGS), list(OPTIONS)[1:]) if dims.world_size < 4 else (["padded tied", "deep"], ["muon"])
        )
        found += [f"{dtype}/{kind}/{described}" for dtype in ("float32", "float64") for kind in kinds if kind != "deep"]
        found += [f"float64/normed/{described}/{option}" for option in options]
        found += [f"float64/deep/{described}", f"smoothed/padded/{described}", f"bfloat16/normed/{described}"]
        found += [f"{what}/{kind}/{described}" for what in ("folder", "bridge") for kind in kinds]
        found += [f"resume/{kind}/{described}" for kind in ("padded tied", "deep")]
    return [*found, "refusals/normed/-"]


def run(name, folder):
    """Run one comparison on all ranks; what rank 0 finds: equal, and what differs by how much."""
    what, kind, described, option = ([*name.split("/"), ""])[:4]
    if what == "refusals":
        return {"case": name, **refusals()}
    (dims,) = [dims for dims in DIMS if dims.describe() == described]
    if what in ("float32", "float64"):
        # The equality case of every way of splitting of ours, with another engine.
        case = EqualityCase(kind="dense", dims=dims, options={"engine": "megatron", **OPTIONS[option]},
                    few_rows=option == "idle ranks")  # fmt: skip
        found = comparison.compare(case, dtype=what, steps=3, make_model=lambda _: model_of(kind))
    else:
        work = {"smoothed": smoothed, "bfloat16": in_bfloat16, "folder": hub_folder, "bridge": bridge, "resume": resume}
        found = work[what](kind, dims, folder / name.replace("/", "-"))
    return {**found, "case": name}


def num_threads():
    return len(os.listdir("/proc/self/task"))


def model_of(kind, *, seed=3, dtype=torch.float64):
    return from_config(CONFIGS[kind], dtype=dtype, seed=seed, device=DEVICE)


def config_of(**changes):
    options = {"lr": 1e-2, "weight_decay": 0.1, "adam_eps": 1e-3, "dtype": "float64", "device": DEVICE}
    return TrainEngineConfig(**{**options, "max_tokens_per_micro_batch": 24, **changes})


def engine_of(model, dims, *, source=None, **changes):
    archon = ArchonConfig(engine="megatron", parallel=dims)
    return MegatronEngine(model, config=config_of(**changes), archon=archon, source=source)


def step(engine, **options):
    batch = comparison.make_batch()
    return engine.train_batch(batch, comparison.loss_of(batch), with_entropy=True, **options).loss


def largest(one, other):
    """Difference of tensors by name; 0 where there are none, as on ranks above 0."""
    assert one.keys() == other.keys(), one.keys() ^ other.keys()
    return max((float((one[name].double() - other[name].double()).abs().max()) for name in one), default=0.0)


def is_first():
    return dist.get_rank() == 0


def smoothed(kind, dims, _):
    """The mean over the vocabulary leaves padding out."""
    many = engine_of(model_of(kind), dims)
    losses = [step(many, smoothing=0.2) for _ in range(2)]
    weights = dict(many.weights())
    if not is_first():
        return {}
    single = TrainingEngine(model_of(kind), config=config_of())
    differences = {
        "loss": max(abs(step(single, smoothing=0.2) - loss) for loss in losses),
        "parameters": largest(weights, dict(single.weights())),
    }
    return {"differences": differences, "equal": max(differences.values()) < 1e-9}


def in_bfloat16(kind, dims, _):
    """Masters in float32, which megatron's own parameters are rounded copies of after every step."""
    many = engine_of(model_of(kind), dims, dtype="bfloat16")
    losses = [step(many) for _ in range(2)]
    theirs = dict(many._runner.passes._decoder.module.named_parameters())
    is_rounded = all(parameter.dtype == torch.bfloat16 for parameter in theirs.values())
    masters, weights = many.state_dict()["optimizer"]["masters"], dict(many.weights())
    if not is_first():
        return {}
    single = TrainingEngine(model_of(kind), config=config_of(dtype="bfloat16"))
    expected = [step(single) for _ in range(2)]
    differences = {
        "loss": max(abs(one - other) for one, other in zip(losses, expected, strict=True)),
        "masters": largest(masters, single.state_dict()["optimizer"]["masters"]),
    }
    rounded = all(torch.equal(weights[name], master.bfloat16()) for name, master in masters.items())
    # A step of this size moves a parameter by at most 0.02.
    return {"differences": differences, "equal": is_rounded and rounded and max(differences.values()) < 0.04}


def hub_folder(kind, dims, folder):
    """A folder read in shards and written again has the same bytes; so has one of an engine given whole values."""
    if is_first():
        model_of(kind, dtype=torch.float32).save_pretrained(folder / "source")
    dist.barrier()
    source = ShardSource(folder / "source", torch.device(DEVICE))
    engine_of(source.blank(), dims, source=source, dtype="float32").save_pretrained(folder / "read")
    engine_of(model_of(kind, dtype=torch.float32), dims, dtype="float32").save_pretrained(folder / "given")
    files = ["config.json", "model.safetensors"]
    wrong = [
        f"{copy}/{file}"
        for copy in ("read", "given")
        for file in files
        if not filecmp.cmp(folder / "source" / file, folder / copy / file, shallow=False)
    ]
    return {"differences": {"files": wrong}, "equal": not wrong, "bytes_read": source.bytes_read}


_NORMS = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}
"""mbridge knows the names of Transformer Engine."""


def bridge(kind, dims, folder):
    """Every parameter of megatron's is what mbridge makes of the same folder for this rank."""
    from mbridge import AutoBridge

    if is_first():
        model_of(kind, dtype=torch.float32).save_pretrained(folder)
    dist.barrier()
    engine = engine_of(model_of(kind, dtype=torch.float32), dims, dtype="float32")
    stored = from_pretrained(folder)
    on_disk = {name if name.startswith("lm_head") else f"model.{name}": value for name, value in
               stored.state_dict().items()}  # fmt: skip
    oracle = AutoBridge.from_pretrained(str(folder), dtype=torch.float32, make_vocab_size_divisible_by=dims.tp)
    # The table of the class keeps what a tied model changed in it.
    head = "model.embed_tokens.weight" if stored.lm_head is None else "lm_head.weight"
    oracle._DIRECT_MAPPING = {**oracle._DIRECT_MAPPING, "output_layer.weight": head}
    oracle.vocab_size = stored.args.vocab_size
    oracle.padded_vocab_size = -(-oracle.vocab_size // dims.tp) * dims.tp
    passes = engine._runner.passes
    place, stage = passes._ranks.place("tp"), passes._ranks.place("pp")
    wrong, count = [], 0
    for local_name, parameter in passes._decoder.module.named_parameters():
        name = local_name
        if name.startswith("decoder.layers."):
            *_, index = name.split(".")[:3]
            first = stage * stored.args.num_layers // dims.pp
            name = name.replace(f"layers.{index}.", f"layers.{int(index) + first}.", 1)
        for own, theirs in _NORMS.items():
            if name.endswith(f".{own}"):
                name = name.removesuffix(own) + theirs
        if name == "output_layer.weight" and stored.lm_head is None:
            name = "embedding.word_embeddings.weight"  # the last stage's copy
        sources = oracle._weight_name_mapping_mcore_to_hf(name)
        whole = oracle._weight_to_mcore_format(name, [on_disk[source] for source in sources])
        expected = oracle._weight_split_across_tp(name, whole, parameter, dims.tp)[place]
        back = oracle._weight_to_hf_format(name, whole)
        same = all(torch.equal(on_disk[source], value) for source, value in zip(*back, strict=True))
        if not torch.equal(expected, parameter) or not same:
            wrong.append(local_name)
        count += 1
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, wrong)
    return {
        "differences": {"parameters": [name for names in found for name in names]},
        "equal": not any(found),
        "compared": count,
    }


def resume(kind, dims, folder):
    """Two steps, saved both ways; what continues them, with megatron, with another split, or natively, is the same."""
    engine = engine_of(model_of(kind), dims)
    checkpoints = ShardedCheckpoints(engine, CheckpointStore(folder, keep=2) if is_first() else None)
    step(engine), step(engine)
    whole = engine.state_dict()
    checkpoints.save(2)
    published = checkpoints.wait()
    loss = step(engine)
    after = {name: tensor.clone() for name, tensor in engine.weights().items()}
    differences = {}

    def note(what, other, result):
        values = dict(other.weights())
        differences[what] = max(abs(result - loss), largest(after, values) if is_first() else 0.0)
        assert other.num_steps == 3

    for what in ("whole", "shards"):
        again = engine_of(model_of(kind, seed=7), dims)
        if what == "whole":
            again.load_state_dict(whole)
        else:
            ShardedCheckpoints(again, CheckpointStore(folder, keep=2) if is_first() else None).load(published)
        note(f"megatron, {what}", again, step(again))
    native = dataclasses.replace(dims, dp_replicate=1, dp_shard=dims.dp_replicate)
    other = TrainingEngine(model_of(kind, seed=7), config=config_of(), archon=ArchonConfig(parallel=native))
    ShardedCheckpoints(other, CheckpointStore(folder, keep=2) if is_first() else None).load(published)
    note("native, shards", other, step(other))
    exact = differences["megatron, whole"] == differences["megatron, shards"] == 0.0
    return {"differences": differences, "equal": exact and differences["native, shards"] < 1e-9}


def refusals():
    """What is said on every rank, of settings, of models, and of a second arrangement."""
    everything = ArchonConfig(
        engine="megatron", parallel=ParallelDims(dp_shard=2, cp=2, ep=2), pp_schedule="GPipe",
        sequence_parallel=True,
    )  # fmt: skip
    moe = {**_SHARED, "model_type": "qwen3_moe", "vocab_size": 64, "head_dim": 8, "num_experts": 4,
           "num_experts_per_tok": 2, "moe_intermediate_size": 8}  # fmt: skip
    plain = ArchonConfig(engine="megatron", parallel=ParallelDims(dp_replicate=dist.get_world_size()))
    attempts = {
        "settings": (CONFIGS["normed"], everything, {"lora": LoraConfig()}),
        "mixture": (moe, plain, {}),
        "transformer engine": (CONFIGS["normed"], dataclasses.replace(
            plain, megatron=MegatronConfig(transformer_engine=True)), {}),
    }  # fmt: skip
    found = {}
    for what, (content, archon, changes) in attempts.items():
        try:
            MegatronEngine(from_config(content), config=config_of(**changes), archon=archon)
        except ArealError as error:
            found[what] = str(error)
    return {"messages": found, "equal": found.keys() == attempts.keys()}
