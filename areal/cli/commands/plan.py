"""Say what training a model over many processes costs each of them: memory, and bytes sent in a step. Starts nothing.

examples:
  areal plan run.yaml
  areal plan run.yaml --parallel "dp_shard=8 tp=8"
  areal plan run.yaml --parallel "dp_shard=-1 tp=4 ep=8" --world-size 64 --memory 141
  areal plan run.yaml actor.gradient_checkpointing=true --parallel dp_shard=4 --micro-batches 8 --json
  areal plan run.yaml --parallel "pp=4 dp_shard=2" --pp-schedule Interleaved1F1B --pp-pieces 2 --micro-batches 16

CONFIG is a configuration of `areal train`: its model, actor.dtype, gradient_checkpointing, logprob_chunk_size and
max_tokens_per_micro_batch, and archon, which the options below change. Sizes of shards are those of the real plan,
applied to a model without memory over processes that are only pretended; activations are estimated. Of a pipeline it
says for which share of a step ranks wait. With weights.carrier=shards, it adds what a version costs on its way to
servers, with servers.sleep_level what is left for servers on the same devices. A plan that does not fit into --memory,
less a tenth, is refused (exit code 2) with what it would need. docs/parallel.md explains the ways of splitting.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api.errors import ConfigError, UsageError
from areal.cli.output import CommandReport
from areal.models.parallel.schedules import SCHEDULES, pipeline_layout

if TYPE_CHECKING:
    import argparse

    from areal.engine.archon.planning.estimate import Item, Work
    from areal.engine.archon.planning.shards import Shards
    from areal.engine.config import ArchonConfig
    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.schedules import PipelineLayout
    from areal.trainer.config import RunConfig


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `areal plan`."""
    parser.add_argument("config", metavar="CONFIG.yaml", type=Path, help="configuration of `areal train`")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="change one value of it; the last one wins")
    parser.add_argument(
        "--parallel",
        default="",
        metavar="SIZES",
        help='ranks along each way, e.g. "dp_shard=8 tp=8 ep=8"; also dp_replicate, cp, etp, pp',
    )
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of processes, for dp_shard=-1 or as a check"
    )
    parser.add_argument("--memory", type=float, default=80.0, metavar="GIB", help="of each rank's device (80)")
    parser.add_argument("--micro-batches", type=int, default=1, metavar="N", help="of each rank in a step (1)")
    parser.add_argument("--pp-schedule", choices=tuple(SCHEDULES), help="order of passes in a pipeline")
    parser.add_argument(
        "--pp-pieces", type=int, metavar="N", help="pieces of a rank, where the schedule is interleaved"
    )
    parser.add_argument("--sequence-parallel", action="store_true", help="ranks of tp keep pieces of the tokens")
    parser.add_argument(
        "--no-reshard", action="store_true", help="blocks keep what they gathered for the backward pass"
    )


def run(arguments: argparse.Namespace) -> CommandReport:
    """Estimate, and refuse what does not fit."""
    from areal.trainer.configuration import source
    from areal.trainer.configuration.validation import read_model_config

    if arguments.micro_batches < 1 or arguments.memory <= 0:
        raise UsageError("--micro-batches has to be at least 1 and --memory above 0")
    config = source.load_config(arguments.config, list(arguments.overrides)).config
    archon = _archon(arguments, config)
    dims = archon.parallel
    dims = dims.resolved(arguments.world_size) if arguments.world_size is not None else dims
    layout = pipeline_layout(archon.pp_schedule, dims.pp, archon.pp_pieces)
    from areal.engine.archon.planning import estimate
    from areal.engine.archon.planning.shards import shards_of
    from areal.engine.archon.planning.timeline import timeline

    shards = shards_of(read_model_config(config.model), dims, layout, lora=config.actor.lora)
    idle = timeline(layout, arguments.micro_batches).idle_share if dims.pp > 1 else 0.0
    work = estimate.Work(
        config=config.actor,
        dims=dims,
        layout=layout,
        micro_batches=arguments.micro_batches,
        sequence_parallel=archon.sequence_parallel,
        reshard_after_forward=archon.reshard_after_forward,
        offload_parameters=archon.offload_parameters,
    )
    held, sent = estimate.memory(shards, work), estimate.communication(shards, work)
    limit = int(arguments.memory * (1 - estimate.RESERVE) * 2**30)
    needed = sum(item.num_bytes for item in held)
    tables = ["", "memory per rank", *_rows(held), "", "sent per rank and step", *(_rows(sent) or ["  nothing"])]
    streamed, rows = _streamed(config, dims, layout)
    shared, shared_rows = _shared(config, held, limit=limit, needed=needed)
    tables += [*rows, *shared_rows]
    text = "\n".join([*_head(work, shards, idle), *tables])
    if needed > limit:
        raise ConfigError(
            f"{text}\n\nthis does not fit: {_size(needed)} of {_size(limit)} ({arguments.memory:g} GiB less a tenth). "
            f"{_advice(held, arguments, config.actor.gradient_checkpointing)}"
        )
    data = {
        "parallel": {name: getattr(dims, name) for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")},
        "world_size": dims.world_size,
        "parameters": shards.total,
        "parameters_per_rank": shards.kept,
        "pipeline": None
        if dims.pp == 1
        else {
            "schedule": layout.schedule,
            "pieces_per_rank": layout.pieces_per_rank,
            "blank_micro_batches": work.passes - work.micro_batches,
            "idle_share": idle,
        },
        "memory": [_record(item) for item in held],
        "memory_bytes": needed,
        "limit_bytes": limit,
        "communication": [_record(item) for item in sent],
        "communication_bytes": sum(item.num_bytes for item in sent),
        "weights": streamed,
        "shared_device": shared,
    }
    return CommandReport(text=f"{text}\n\nfits: {_size(needed)} of {_size(limit)}", data=data)


def _streamed(config: RunConfig, dims: ParallelDims, layout: PipelineLayout) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what one version costs on its way to servers, also as rows; None where it is not streamed from shards."""
    from areal.trainer.config import PPOConfig

    if not isinstance(config, PPOConfig) or config.rollout.engine == "embedded" or config.weights.carrier != "shards":
        return None, []
    from areal.trainer.configuration.validation import read_model_config
    from areal.trainer.stream_plan import planned_stream, stream_numbers

    numbers = stream_numbers(planned_stream(config, read_model_config(config.model), dims, layout))
    count = len(numbers["collectors"])
    lines = [
        ("to every worker", "stream_bytes", f"in {numbers['buckets']} buckets, by {count} collectors in turn"),
        ("to collectors", "sent_by_rank_bytes", "at most, by one rank"),
        ("by a collector", "broadcast_by_collector_bytes", "at most, once for all workers"),
        (
            "held by a collector",
            "collector_peak_bytes",
            "at most, beside the model: two buckets and what it puts together",
        ),
        ("held by another", "other_peak_bytes", "at most, beside the model: a part that it sends"),
    ]
    width = max(len(name) for name, _, _ in lines)
    rows = [f"  {name:<{width}}  {_size(numbers[key]):>10}  {text}" for name, key, text in lines]
    return numbers, ["", "weights to servers, at every version", *rows]


def _shared(config: RunConfig, held: list[Item], *, limit: int, needed: int) -> tuple[dict[str, int] | None, list[str]]:
    """Return what servers and learner leave each other of a device that they share, also as rows; None where they do
    not share one."""
    from areal.trainer.config import PPOConfig

    if not isinstance(config, PPOConfig) or not config.servers_take_turns:
        return None, []
    staying = sum(item.num_bytes for item in held if item.name in ("parameters", "gradients", "moments"))
    moved = staying if config.servers.sleep_learner else 0
    stays = staying - moved
    rows = [
        "",
        "one device for servers and learner (servers.sleep_level)",
        f"  while it learns   {_size(needed):>10}  servers are asleep",
        f"  while they sample {_size(stays):>10}  stays of the learner",
        f"  left for servers  {_size(limit - stays):>10}  weights and cache",
    ]
    if moved:
        rows.append(f"  in host memory    {_size(moved):>10}  of the learner, meanwhile (servers.sleep_learner)")
    else:
        rows.append(f"  or                {_size(limit):>10}  with servers.sleep_learner, of a learner of one process")
    return {
        "learning_bytes": needed,
        "staying_bytes": stays,
        "in_host_bytes": moved,
        "left_for_servers_bytes": limit - stays,
    }, rows


def _archon(arguments: argparse.Namespace, config: RunConfig) -> ArchonConfig:
    """How the model is split: as the configuration says, and the options say otherwise."""
    from areal.engine.config import ArchonConfig

    changes: dict[str, Any] = {}
    if arguments.parallel:
        changes["parallel"] = parse_sizes(arguments.parallel)
    if arguments.sequence_parallel:
        changes["sequence_parallel"] = True
    if arguments.no_reshard:
        changes["reshard_after_forward"] = False
    for name in ("pp_schedule", "pp_pieces"):
        if getattr(arguments, name) is not None:
            changes[name] = getattr(arguments, name)
    return replace(config.archon or ArchonConfig(), **changes)


def parse_sizes(text: str) -> ParallelDims:
    """ "dp_shard=8 tp=2", with spaces or commas; every size that is not given is 1."""
    from areal.models.parallel.dims import ParallelDims

    sizes: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        name, _, number = word.partition("=")
        if name not in ParallelDims.__dataclass_fields__ or not number.lstrip("-").isdigit():
            known = ", ".join(ParallelDims.__dataclass_fields__)
            raise UsageError(f"--parallel: {word!r} is not a size; expected NAME=NUMBER with a name of {known}")
        sizes[name] = int(number)
    return ParallelDims(**sizes)


def _head(work: Work, shards: Shards, idle: float) -> list[str]:
    lines = [
        f"{work.dims.world_size} processes: {work.dims.describe()}",
        f"{shards.total / 1e9:.3g} B parameters, {shards.kept / 1e9:.3g} B per rank",
    ]
    if work.dims.pp == 1:
        return lines
    layout, blank = work.layout, work.passes - work.micro_batches
    pieces = f"{layout.pieces_per_rank} piece{'s' * (layout.pieces_per_rank > 1)} per rank"
    filled = f" and {blank} blank ones" if blank else ""
    return [
        *lines,
        f"{layout.schedule}, {pieces}: ranks are idle for {idle:.1%} of a step of {work.micro_batches} micro-batches"
        f"{filled}, if all passes cost the same",
    ]


def _rows(items: list[Item]) -> list[str]:
    width = max((len(item.name) for item in items), default=0)
    rows = [
        f"  {item.name:<{width}}  {_size(item.num_bytes):>10}  "
        f"{f'{item.collectives} calls: ' if item.collectives else ''}{item.formula}"
        for item in items
    ]
    return [*rows, f"  {'sum':<{width}}  {_size(sum(item.num_bytes for item in items)):>10}"] if items else []


def _advice(held: list[Item], arguments: argparse.Namespace, checkpointed: bool) -> str:
    """Say what lowers the largest item."""
    largest = max(held, key=lambda item: item.num_bytes).name
    if largest == "activations":
        ways = [] if checkpointed else ["actor.gradient_checkpointing=true"]
        ways += [] if arguments.sequence_parallel else ["--sequence-parallel"]
        return f"Activations are most of it: try {', '.join([*ways, 'a larger cp', 'fewer tokens per micro-batch'])}"
    if largest == "logits":
        return "Logits are most of it: lower actor.logprob_chunk_size, or raise tp"
    if largest == "gathered":
        return "Gathered parameters are most of it: raise tp or ep, and leave out --no-reshard"
    return f"{largest.capitalize()} are most of it: raise dp_shard, tp or ep, with more processes"


def _record(item: Item) -> dict[str, Any]:
    return {
        "name": item.name, "bytes": item.num_bytes, "formula": item.formula, "collectives": item.collectives,
    }  # fmt: skip


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.2f} MiB"
