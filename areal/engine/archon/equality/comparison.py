"""Compares one case: the same steps by one process and by all, and the largest difference of every result."""

from __future__ import annotations

import math
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import LossOutput, PaddedBatch
from areal.engine.config import ArchonConfig, TrainEngineConfig
from areal.engine.registry import training_engine
from areal.engine.train.engine import TrainingEngine
from areal.models import from_config
from areal.models.blocks.routing import count_experts, routers_of
from areal.models.value_head import ValueModel
from areal.utils.routes import route_dtype, unrecorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from areal.api import LossFunction
    from areal.engine.archon.equality.cases import EqualityCase

STEPS: Final = 2
TEMPERATURE: Final = 0.8
_ARCHON_FIELDS: Final = frozenset(item.name for item in fields(ArchonConfig))
_PART_OF_FIRST_GRADIENT: Final = {"exp_avg": 0.1, "momentum_buffer": 0.05}
"""What is in a moment after one step: 1 - beta1 of AdamW, 1 - momentum of Muon; all of it for SGD."""
TOLERANCES: Final = {"float64": 1e-9, "float32": 2e-5}
"""Largest difference of any value: loss, gradient norm, log-probabilities, gradients, parameters after the steps."""


def compare(
    case: EqualityCase,
    *,
    dtype: str = "float64",
    make_model: Callable[[EqualityCase], nn.Module] | None = None,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Compare, on rank 0: differences by what was compared, seconds, and whether all are within the tolerance.

    make_model: gives the same model each time; None for that of the case's kind.
    """
    started = time.perf_counter()
    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.5, "adam_eps": 1e-3, "device": "cpu"}
    options |= {"dtype": dtype, "max_tokens_per_micro_batch": 24, "logprob_chunk_size": 7}
    options |= {name: value for name, value in case.options.items() if name not in _ARCHON_FIELDS}
    config = TrainEngineConfig(**options)
    archon = ArchonConfig(
        parallel=case.dims, **{name: value for name, value in case.options.items() if name in _ARCHON_FIELDS}
    )
    make_model = make_model or _model
    many = training_engine(archon)(make_model(case), config=config, archon=archon, is_critic=case.is_critic)
    batch = make_batch(few_rows=case.few_rows)
    if config.router_replay:
        batch = with_routes(batch, case)
    single = None
    if many.ranks.rank == 0:
        single = TrainingEngine(make_model(case), config=config, is_critic=case.is_critic)
    differences: dict[str, float] = {}
    for step in range(steps):
        found = _observe(case, many, batch, is_first=step == 0)
        expected = {} if single is None else _observe(case, single, batch, is_first=step == 0)
        for what, values in expected.items():
            assert values.keys() == found[what].keys(), values.keys() ^ found[what].keys()
            worst = max((_difference(value, found[what][name]) for name, value in values.items()), default=0.0)
            differences[what] = max(differences.get(what, 0.0), worst)
    tolerance = TOLERANCES[dtype]
    return {
        "case": case.name,
        "kind": case.kind,
        "world_size": case.dims.world_size,
        "differences": differences,
        "tolerance": tolerance,
        "parameters_of_rank": sum(shard.numel() for shard in many.optimizer.shards.values()),
        "equal": all(value <= tolerance for value in differences.values()),
        "seconds": round(time.perf_counter() - started, 3),
    }


def make_batch(*, few_rows: bool = False) -> PaddedBatch:
    """Make groups that share prompts, lengths from 1 to 17, rows without a trained token, unequal groups."""
    lengths, prompts, groups = [9, 14, 11, 1, 7, 5, 17, 6], [6, 6, 6, 1, 3, 3, 4, 6], [0, 0, 0, 1, 2, 2, 3, 4]
    if few_rows:
        lengths, prompts, groups = [8, 10], [3, 3], [0, 0]
    generator = torch.Generator().manual_seed(0)
    rows, width = len(lengths), max(lengths)
    columns, sizes, starts = torch.arange(width), torch.tensor(lengths), torch.tensor(prompts)
    tokens = torch.randint(0, 64, (rows, width), generator=generator)
    for row, group in enumerate(groups):
        tokens[row, : prompts[row]] = tokens[groups.index(group), : prompts[row]]
    mask = ((columns >= starts[:, None]) & (columns < sizes[:, None])).float()
    return PaddedBatch(
        tokens=tokens,
        lengths=sizes,
        loss_mask=mask,
        logp_behave=torch.zeros(rows, width),
        versions=torch.where(mask > 0, 0, -1),
        turn_ids=torch.where(mask > 0, 0, -1),
        rewards=torch.randn(rows, generator=generator),
        groups=torch.tensor(groups),
        truncated=torch.zeros(rows, dtype=torch.bool),
        advantages=torch.randn(rows, width, generator=generator),
        returns=torch.randn(rows, width, generator=generator),
    )


def with_routes(batch: PaddedBatch, case: EqualityCase) -> PaddedBatch:
    """Add routes that no router would choose, equal where prompts are shared, but for a row of the first group whose
    prompt other experts computed, and with a row that has none."""
    layers = _model(case).layers
    experts = count_experts(layers)
    kinds = [router for layer in layers for router in routers_of(layer)]
    rows, width = batch.tokens.shape
    generator = torch.Generator().manual_seed(5)
    scores = torch.rand(rows, width, len(kinds), experts, generator=generator)
    first_of_group = [batch.groups.tolist().index(group) for group in batch.groups.tolist()]
    prompt = (batch.loss_mask.cumsum(1) == 0)[..., None, None]
    scores = torch.where(prompt, scores[first_of_group], scores)
    scores[1, :2] = 1 - scores[0, :2]
    routes = scores.argsort(-1)[..., : kinds[0].top_k].to(route_dtype(experts))
    routes[-1] = unrecorded(routes.dtype)
    return replace(batch, routes=routes)


def loss_of(batch: PaddedBatch) -> LossFunction:
    """Return a policy loss with entropy (for values a squared error), with the denominators of the whole batch."""
    total = batch.loss_mask.sum().clamp_min(1.0)

    def loss_fn(scores: Tensor, entropy: Tensor | None, part: PaddedBatch, /) -> LossOutput:
        assert part.advantages is not None
        loss = -(part.advantages * scores * part.loss_mask).sum() / total
        if entropy is None:
            loss = loss + (scores.square() * part.loss_mask).sum() / total
        else:
            loss = loss - 0.3 * (entropy * part.loss_mask).sum() / total
        metrics = {"score": (scores * part.loss_mask).sum().detach() / total, "length_max": part.lengths.max()}
        return LossOutput(loss=loss, metrics=metrics)

    return loss_fn


def _model(case: EqualityCase) -> Any:
    model: Any
    if case.is_foreign:
        from areal.engine.hf import loading

        model = loading.from_config(case.config, dtype=torch.float64, seed=3)
    else:
        model = from_config(case.config, dtype=torch.float64, seed=3)
    if not case.is_critic:
        return model
    critic = ValueModel(model)
    torch.nn.init.normal_(critic.head.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    return critic


def _observe(
    case: EqualityCase, engine: TrainingEngine, batch: PaddedBatch, *, is_first: bool
) -> dict[str, dict[str, Any]]:
    """Take one step; return everything that comes out of it. Parameters are complete on rank 0."""
    scores = engine.forward_values(batch) if case.is_critic else engine.forward_logp(batch, temperature=TEMPERATURE)
    result = engine.train_batch(batch, loss_of(batch), temperature=TEMPERATURE, with_entropy=not case.is_critic)
    observed: dict[str, dict[str, Any]] = {
        "scores": {"": scores},
        "loss": {"": result.loss},
        "gradient norm": {"": result.grad_norm},
        "metrics": {name: value for name, value in result.metrics.items() if "tokens" not in name},
    }
    if is_first:
        observed["gradients"] = {
            f"{name} {key}": moment[key] / part
            for name, moment in engine.state_dict()["optimizer"]["moments"].items()
            for key, part in _PART_OF_FIRST_GRADIENT.items()
            if key in moment
        }
    observed["parameters"] = dict(engine.weights())
    return observed


def _difference(one: Any, other: Any) -> float:
    if not isinstance(one, torch.Tensor):
        worst = abs(one - other)
    else:
        assert one.dtype == other.dtype, f"one process has {one.dtype}, many have {other.dtype}"
        worst = float((one.double() - other.double()).abs().max()) if one.numel() else 0.0
    # NaN is a difference, never an equality.
    return math.inf if math.isnan(worst) else worst
