"""One rank of the tests on image-text models over data ranks: steps, states, checkpoints, exports."""

from dataclasses import replace

import torch
import torch.distributed as dist
from over_ranks import config_of, difference, everywhere, message, run, weights_of

from areal.algorithm.packing import collate
from areal.api import ImageRef, LossOutput, StopReason, Trajectory
from areal.engine.config import ArchonConfig, LoraConfig, VisionTrainConfig
from areal.engine.hf import loading
from areal.engine.train.checkpoint import ShardedCheckpoints
from areal.engine.train.engine import TrainingEngine
from areal.infra.checkpoint.store import CheckpointStore
from areal.models.parallel import ParallelDims
from tests.support.vision import MODELS, noisy_image

QUICK = (("llava", "all"),)
CASES = tuple((kind, train) for kind in MODELS for train in ("none", "projector", "all"))
WAYS = {way: ArchonConfig(parallel=ParallelDims(**{way: 2})) for way in ("tp", "cp", "pp")}
COMBINED = {
    "tp cp": ArchonConfig(parallel=ParallelDims(tp=2, cp=2)),
    "pp tp": ArchonConfig(parallel=ParallelDims(pp=2, tp=2)),
    "dp cp": ArchonConfig(parallel=ParallelDims(dp_shard=2, cp=2)),
}
DIVIDED = ("qwen3_vl", "qwen2_5_vl", "llava")
# The first image of this model begins in column 0, where blank work of a rank begins as well.
SIZES = {"llava": ((8, 8), (8, 8), (8, 8)), "grid": ((16, 24), (8, 16), (24, 8))}


def row_of(vision, images, text, *, group):
    """Images with a token between them, then text, of which the last four are an answer."""
    sizes = [(image.height, image.width) for image in images]
    ids, spans = vision.place([[] if number == 0 else [5] for number in range(len(images) + 1)], sizes)
    tokens = [*ids, *text]
    prompt = len(tokens) - 4
    return Trajectory(
        tokens=tokens,
        loss_mask=[0] * prompt + [1] * 4,
        logprobs=[0.0] * prompt + [-1.0] * 4,
        versions=[-1] * prompt + [0] * 4,
        turn_ids=[-1] * prompt + [0] * 4,
        reward=0.0,
        stop_reason=StopReason.STOP,
        group_id=group,
        images=tuple(
            ImageRef(image=image, start=start, length=length)
            for image, (start, length) in zip(images, spans, strict=True)
        ),
    )


def batch_of(vision, *, is_apart):
    """Rows with images and rows of text; is_apart: so long that one rank gets all of the images, the other none."""
    one, two, three = (
        noisy_image(*size, seed=seed) for seed, size in enumerate(SIZES["grid" if vision.has_grid else "llava"])
    )
    text = torch.randint(0, 20, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    if is_apart:
        rows = [row_of(vision, [one], text[:50], group=0), row_of(vision, [], text[:5], group=1),
                row_of(vision, [], text[5:28], group=2)]  # fmt: skip
    else:
        rows = [row_of(vision, images, text[5 * number : 5 * number + 7 + 3 * number], group=number // 2)
                for number, images in enumerate(([one], [one], [two, three], [], [three], [one, two]))]  # fmt: skip
    return collate(rows)


def loss_fn(logp, _, part):
    return LossOutput(loss=-(logp * part.loss_mask).sum() / 20)


def engine_of(kind, train="none", *, many, seed=3, archon=None, **changes):
    archon = archon or ArchonConfig(parallel=ParallelDims(dp_shard=2), keep_groups=False)
    config = config_of(weight_decay=0.1, **changes)
    return TrainingEngine(
        loading.from_config(MODELS[kind], dtype=getattr(torch, config.dtype), seed=seed),
        config=replace(config, vision=VisionTrainConfig(train=train)),
        archon=archon if many else None,
    )


def steps(quick):
    """Two steps of one process and of two ranks, with scores before and after; also cut into single rows."""
    found = {}
    for kind, train in QUICK if quick else CASES:
        for is_apart in (True, False):
            single, many, cut = (
                engine_of(kind, train, many=number > 0, max_tokens_per_micro_batch=16384 if number < 2 else 1)
                for number in range(3)
            )
            batch = batch_of(single.model.vision, is_apart=is_apart)
            scored, losses, norms = [], [], []
            for engine in (single, many, cut):
                scored.append([engine.forward_logp(batch)])
                stats = [engine.train_batch(batch, loss_fn) for _ in range(2)]
                losses.append([item.loss for item in stats])
                norms.append([item.grad_norm for item in stats])
                scored[-1].append(engine.forward_logp(batch))
            own = many.divide(batch).divided[dist.get_rank()]
            rows = set(batch.images.row.tolist())
            found[f"{kind} {train} {'apart' if is_apart else 'mixed'}"] = {
                "logp": [max(float((scored[0][place] - other[place]).abs().max()) for other in scored[1:])
                         for place in range(2)],
                "loss": max(abs(ours - theirs) for other in losses[1:]
                            for ours, theirs in zip(losses[0], other, strict=True)),
                "norm": max(abs(ours - theirs) for other in norms[1:]
                            for ours, theirs in zip(norms[0], other, strict=True)),
                "parameters": max(difference(weights_of(other), single.weights()) for other in (many, cut)),
                "image rows": everywhere(len(rows & set(own))),
                "towers run": everywhere(many.model.tower.num_computed),
            }  # fmt: skip
    return found


def low_precision():
    """Steps in bfloat16 of ranks and of one process, which continue what ranks have saved."""
    found = {}
    for name, archon in (("dp_shard", None), *WAYS.items()):
        options = {"archon": archon, "dtype": "bfloat16", "adam_eps": 0.1}
        engines = [engine_of("qwen3_vl", "all", many=is_many, **options) for is_many in (True, False)]
        batch = batch_of(engines[0].model.vision, is_apart=False)
        losses = [[engine.train_batch(batch, loss_fn).loss for _ in range(2)] for engine in engines]
        state = engines[0].state_dict()
        later = [engine_of("qwen3_vl", "all", many=is_many, seed=9, **options) for is_many in (True, False)]
        for engine in later:
            engine.load_state_dict(state)
        continued = [engine.train_batch(batch, loss_fn).loss for engine in (engines[0], *later)]
        found[name] = {
            "losses": losses,
            "dtypes": sorted({str(tensor.dtype) for tensor in state["parameters"].values()}),
            "again": abs(continued[0] - continued[1]),
            "weights": difference(weights_of(engines[0]), weights_of(later[0])),
            "one process": abs(continued[0] - continued[2]),
        }
    return found


def states(folder, quick):
    """What ranks save, one process and other ranks continue, images included, bit by bit where rows are the same."""
    found = {}
    lora = LoraConfig(rank=2, alpha=4)
    for name, kind, train, changes in (
        ("tower", "qwen3_vl", "all", {}),
        ("matrices", "qwen3_vl", "all", {"archon": WAYS["tp"]}),
        ("sequences", "qwen2_5_vl", "projector", {"archon": WAYS["cp"]}),
        ("layers", "llava", "all", {"archon": WAYS["pp"]}),
        ("adapters and matrices", "qwen3_vl", "none", {"archon": WAYS["tp"], "lora": lora}),
        ("adapters and layers", "qwen3_vl", "none", {"archon": WAYS["pp"], "lora": lora}),
        ("frozen tower", "llava", "none", {}),
        ("adapters", "llava", "none", {"lora": lora}),
        ("adapters everywhere", "llava", "none", {"lora": replace(lora, scope=["language", "projector", "tower"])}),
    ):
        if quick and name != "frozen tower":
            continue
        many, single = (engine_of(kind, train, many=is_many, **changes) for is_many in (True, False))
        batch = batch_of(many.model.vision, is_apart=False)
        many.train_batch(batch, loss_fn)
        seed = 3 if "lora" in changes else 9
        store = CheckpointStore(folder / name, keep=2) if dist.get_rank() == 0 else None
        saved = ShardedCheckpoints(many, store)
        saved.save(1)
        path = saved.wait()
        again = engine_of(kind, train, many=True, seed=seed, **changes)
        again.forward_logp(batch)  # features of other weights are kept from here on
        ShardedCheckpoints(again, store).load(path)
        whole = engine_of(kind, train, many=True, seed=seed, **changes)
        whole.forward_logp(batch)
        state = many.state_dict()
        for engine in (whole, single):
            engine.load_state_dict(state)
        losses = [engine.train_batch(batch, loss_fn).loss for engine in (many, again, whole, single)]
        many.save_pretrained(folder / name / "exported")
        dtype = torch.float64
        read = TrainingEngine(loading.from_pretrained(folder / name / "exported", dtype=dtype), config=config_of())
        found[name] = {
            "continued": max(abs(losses[0] - loss) for loss in losses[1:3]),
            "weights": max(difference(weights_of(many), weights_of(other)) for other in (again, whole)),
            "one process": abs(losses[0] - losses[3]),
            "exported": float((read.forward_logp(batch) - many.forward_logp(batch)).abs().max()),
        }
    return found


def ways(quick, combined):
    """Two steps of one process and of ranks among which the language half is divided."""
    found = {}
    chosen = COMBINED if combined else WAYS
    for kind in DIVIDED[:1] if quick else DIVIDED:
        for way, archon in chosen.items():
            if quick and way != "cp":
                continue
            for train in ("all",) if quick else ("none", "all"):
                single, many = (
                    engine_of(kind, train, many=is_many, archon=archon, max_tokens_per_micro_batch=96)
                    for is_many in (False, True)
                )
                batch = batch_of(single.model.vision, is_apart=False)
                scored = [[engine.forward_logp(batch)] for engine in (single, many)]
                stats = [[engine.train_batch(batch, loss_fn) for _ in range(2)] for engine in (single, many)]
                for engine, results in zip((single, many), scored, strict=True):
                    results.append(engine.forward_logp(batch))
                found[f"{kind} {way} {train}"] = {
                    "logp": [float((ours - theirs).abs().max()) for ours, theirs in zip(*scored, strict=True)],
                    "loss": max(abs(ours.loss - theirs.loss) for ours, theirs in zip(*stats, strict=True)),
                    "norm": max(abs(ours.grad_norm - theirs.grad_norm) for ours, theirs in zip(*stats, strict=True)),
                    "parameters": difference(weights_of(many), single.weights()),
                }
    return found


def refusals():
    def attempt(config, **dims):
        return message(
            TrainingEngine,
            loading.from_config(config, dtype=torch.float64),
            config=config_of(),
            archon=ArchonConfig(parallel=ParallelDims(**dims)),
        )

    odd = {**MODELS["llava"], "text_config": {**MODELS["llava"]["text_config"], "num_key_value_heads": 1}}
    deep = {**MODELS["qwen3_vl"]}
    deep["vision_config"] = {**deep["vision_config"], "deepstack_visual_indexes": [0, 1]}
    return {"heads": attempt(odd, tp=2), "deep": attempt(deep, pp=2)}


def main(arguments):
    if arguments.what:
        return {"ways": ways(arguments.quick, combined=True)}
    return {
        "ways": ways(arguments.quick, combined=False),
        "steps": steps(arguments.quick),
        "low precision": {} if arguments.quick else low_precision(),
        "states": states(arguments.folder / "states", arguments.quick),
        "refusals": refusals(),
    }


if __name__ == "__main__":
    run(main)
