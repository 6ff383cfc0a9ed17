"""Memory of a rank and bytes it sends in a step, from its shards: what is certain, and what is a rule of thumb.

Certain are parameters, gradients, moments and what FSDP2 gathers. Activations are estimated; kernels, fragments and the
communication library's buffers are not in it, for which `reserve` keeps room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.engine.archon.planning.timeline import timeline
from areal.engine.precision import concrete_dtype
from areal.engine.train.runner import activation_values

if TYPE_CHECKING:
    from areal.engine.archon.planning.shards import Shards
    from areal.engine.config import TrainEngineConfig
    from areal.models.parallel.dims import ParallelDims
    from areal.models.parallel.schedules import PipelineLayout

_BYTES: Final = {"float32": 4, "bfloat16": 2, "float64": 8}
RESERVE: Final = 0.1
"""Part of a device's memory that a plan leaves free."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One use of memory, or one kind of communication."""

    name: str
    num_bytes: int
    """Held at the peak; or sent by a rank in a step."""
    formula: str
    """How the number came about, in words."""
    collectives: int = 0
    """Calls in a step."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a rank computes in a step."""

    config: TrainEngineConfig
    dims: ParallelDims
    layout: PipelineLayout
    micro_batches: int
    """Of each data rank."""
    sequence_parallel: bool
    reshard_after_forward: bool
    offload_parameters: bool = False
    """Parameters, gradients and moments are in host memory, and what is gathered is not."""

    @property
    def passes(self) -> int:
        """Micro-batches that are run: blank ones fill a pipeline."""
        return self.micro_batches + -self.micro_batches % self.layout.num_ranks

    @property
    def is_gathered_throughout(self) -> bool:
        """Whether parameters are gathered, and gradients summed, once in a step."""
        return self.layout.num_ranks > 1 and self.layout.kind.splits_backward

    @property
    def stored(self) -> int:
        """Bytes of a parameter between passes: masters are float32."""
        return max(4, _BYTES[concrete_dtype(self.config)])

    @property
    def computed(self) -> int:
        """Bytes of a parameter, or an activation, in computation."""
        return _BYTES[concrete_dtype(self.config)]

    @property
    def tokens(self) -> int:
        """Of a micro-batch on a rank."""
        return -(-self.config.max_tokens_per_micro_batch // self.dims.cp)


def memory(shards: Shards, work: Work) -> list[Item]:
    """Estimate what a rank holds at its peak."""
    stored, computed, trained = work.stored, work.computed, shards.trained
    inner = [unit.gathered for unit in shards.units if unit.name]
    outer = sum(unit.gathered for unit in shards.units if not unit.name)
    sharded = any(unit.ways * unit.copies > 1 for unit in shards.units) or computed < stored
    blocks = _per_block(shards)
    largest = max(blocks.values(), default=0)
    graded_blocks = _per_block(shards, "gathered_trained")
    throughout = work.is_gathered_throughout
    held = 2 * largest if work.reshard_after_forward and not throughout else sum(inner)
    graded = sum(graded_blocks.values()) if throughout else max(graded_blocks.values(), default=0)
    graded += sum(unit.gathered_trained for unit in shards.units if not unit.name)
    chunk = min(work.config.logprob_chunk_size, work.config.max_tokens_per_micro_batch)
    vocabulary = shards.args.vocab_size // work.dims.tp
    kept = [
        _parameters(shards, work),
        Item(name="gradients", num_bytes=trained * stored, formula=f"{trained} x {stored} bytes"),
        _moments(shards, work),
    ]
    items = [
        *([_in_host_memory(item) for item in kept] if work.offload_parameters else kept),
        Item(
            name="logits",
            num_bytes=2 * chunk * vocabulary * 4,
            formula=f"{chunk} tokens x {vocabulary} vocabulary x 4 bytes, and their gradient",
        ),
        _activations(shards, work),
    ]
    if sharded or work.offload_parameters:
        what = "two blocks" if held == 2 * largest else "all blocks"
        grades = "all blocks" if throughout else "one block"
        items.insert(
            3,
            Item(
                name="gathered",
                num_bytes=(held + outer) * computed + graded * stored,
                formula=f"{held} of {what} and {outer} outside x {computed} bytes; gradients of {grades} and outside",
            ),
        )
    return items


def communication(shards: Shards, work: Work) -> list[Item]:
    """Estimate what a rank sends in a step; a ring sends (n - 1) / n of what it gathers, twice that of what it sums."""
    rounds = 1 if work.is_gathered_throughout else work.passes
    gathers = 2 if work.reshard_after_forward and not work.is_gathered_throughout else 1
    items = []
    gathered = scattered = copied = calls = 0
    for unit in shards.units:
        times = rounds * (gathers if unit.name else 1)
        gathered += times * _ring(unit.gathered * work.computed, unit.ways)
        scattered += rounds * _ring(unit.gathered_trained * work.stored, unit.ways)
        copied += rounds * 2 * _ring(unit.trained * work.stored, unit.copies)
        sums = rounds if unit.gathered_trained else 0
        calls += (times + sums) * (unit.ways > 1) + sums * (unit.copies > 1)
    if gathered or copied:
        items.append(
            Item(
                name="fsdp",
                num_bytes=gathered + scattered + copied,
                formula=f"{gathered} gathered of parameters, {scattered} scattered of gradients, {copied} for copies",
                collectives=calls,
            )
        )
    others = (
        _pipeline(shards, work),
        _regions(shards, work),
        _context(shards, work),
        _experts(shards, work),
        _matrices(shards, work),
    )
    return [*items, *(item for item in others if item is not None)]


def _regions(shards: Shards, work: Work) -> Item | None:
    """Count the sums at the end of attention and feed-forward layers, and their adjoints."""
    if work.dims.tp == 1:
        return None
    layers, hidden = shards.num_layers, shards.args.hidden_size
    repeats = 3 if work.config.gradient_checkpointing else 2
    one = 2 * _ring(work.tokens * hidden * work.computed, work.dims.tp)
    calls = work.passes * layers * 2 * repeats
    pieces = " (as gathers and scatters)" if work.sequence_parallel else ""
    return Item(
        name="tensor parallel",
        num_bytes=calls * one,
        formula=f"{calls} sums of {work.tokens} tokens x {hidden} x {work.computed} bytes over {work.dims.tp}{pieces}",
        collectives=calls,
    )


def _pipeline(shards: Shards, work: Work) -> Item | None:
    """Hidden states to the next piece, and their gradients to the one before: of the rank that sends most."""
    if work.dims.pp == 1:
        return None
    tokens = work.tokens // (work.dims.tp if work.sequence_parallel else 1)
    calls = work.passes * max(_neighbours(work.layout, rank) for rank in range(work.dims.pp))
    return Item(
        name="pipeline",
        num_bytes=calls * tokens * shards.args.hidden_size * work.computed,
        formula=f"{calls} times {tokens} tokens x {shards.args.hidden_size} x {work.computed} bytes",
        collectives=calls,
    )


def _context(shards: Shards, work: Work) -> Item | None:
    """Tokens for heads, and back, around attention."""
    if work.dims.cp == 1:
        return None
    args: Any = shards.args
    # At least one key-value head per rank travels.
    heads = 2 * args.num_heads // work.dims.tp + 2 * max(work.dims.cp, args.num_kv_heads // work.dims.tp)
    repeats = 3 if work.config.gradient_checkpointing else 2
    calls = work.passes * shards.num_layers * 4 * repeats
    values = work.tokens * heads * args.head_dim
    return Item(
        name="context parallel",
        num_bytes=work.passes * shards.num_layers * repeats * _ring(values * work.computed, work.dims.cp),
        formula=f"{work.tokens} tokens x {heads} heads x {args.head_dim} x {work.computed} bytes, {repeats} a layer",
        collectives=calls,
    )


def _experts(shards: Shards, work: Work) -> Item | None:
    """Tokens to their experts and back."""
    mixtures = sum(unit.name.endswith("experts") for unit in shards.units)
    if work.dims.ep == 1 or not mixtures:
        return None
    top_k = int(getattr(shards.args, "num_experts_per_tok", 1))
    tokens = work.tokens if work.dims.etp > 1 else -(-work.tokens // work.dims.tp)
    repeats = 3 if work.config.gradient_checkpointing else 2
    calls = work.passes * mixtures * (2 * repeats + 1)
    one = _ring(tokens * top_k * shards.args.hidden_size * work.computed, work.dims.ep)
    return Item(
        name="expert parallel",
        num_bytes=work.passes * mixtures * 2 * repeats * one,
        formula=f"{tokens} tokens x {top_k} experts x {shards.args.hidden_size} x {work.computed} bytes, there and "
        f"back, {repeats} times in each of {mixtures} layers",
        collectives=calls,
    )


def _matrices(shards: Shards, work: Work) -> Item | None:
    """Parts of matrices to the ranks that make them orthogonal, and back; once per step."""
    if work.config.optimizer != "muon" or not shards.gathered_turned:
        return None
    width = 8 if work.config.dtype == "float64" else 2
    return Item(
        name="muon",
        num_bytes=2 * shards.gathered_turned * width,
        formula=f"{shards.gathered_turned} of matrices that no rank has, there and back x {width} bytes",
        collectives=2,
    )


def _parameters(shards: Shards, work: Work) -> Item:
    """Count the parameters; frozen ones are kept in the dtype they are computed with."""
    frozen, trained = shards.kept - shards.trained, shards.trained
    formula = f"{trained} x {work.stored} bytes"
    return Item(
        name="parameters",
        num_bytes=frozen * work.computed + trained * work.stored,
        formula=f"{frozen} frozen x {work.computed} bytes, {formula}" if frozen else formula,
    )


def _in_host_memory(item: Item) -> Item:
    if not item.num_bytes:
        return item
    return replace(item, num_bytes=0, formula=f"in host memory: {item.formula}")


def _moments(shards: Shards, work: Work) -> Item:
    """Two of AdamW, one of the others; muon leaves vectors and tokens to AdamW."""
    config, kept = work.config, shards.trained
    count = {"adamw": 2 * kept, "muon": 2 * kept - shards.turned, "sgd": kept if config.momentum else 0}[
        config.optimizer
    ]
    if not config.offload_optimizer:
        what = f"{kept} x 2" if config.optimizer == "adamw" else f"{count} of {config.optimizer}"
        return Item(name="moments", num_bytes=count * work.stored, formula=f"{what} x {work.stored} bytes")
    on_host = (count + kept) * work.stored
    formula = f"in host memory: {count} and {kept} masters x {work.stored} bytes, {on_host / 2**30:.2f} GiB"
    return Item(name="moments", num_bytes=0, formula=formula)


def _activations(shards: Shards, work: Work) -> Item:
    """As `areal.trainer.configuration.memory` counts them, per rank."""
    checkpointed = work.config.gradient_checkpointing
    values = activation_values(
        shards.args,
        shards.num_layers,
        tp=work.dims.tp,
        sequence_parallel=work.sequence_parallel,
        recomputed=checkpointed,
    )
    # A rank starts so many passes before the first of them comes back, each of one of its pieces.
    pieces = work.layout.pieces_per_rank
    at_once = timeline(work.layout, work.micro_batches).held if work.layout.num_ranks > 1 else pieces
    return Item(
        name="activations",
        num_bytes=work.tokens * values * work.computed * at_once // pieces,
        formula=f"roughly, {work.tokens} tokens x {values} values x {work.computed} bytes"
        + (", recomputed" if checkpointed else "")
        + (f", {at_once / pieces:g} micro-batches at once" if at_once > pieces else ""),
    )


def _neighbours(layout: PipelineLayout, rank: int) -> int:
    """Pieces on other ranks that follow those of a rank, or come before them."""
    own = layout.pieces_of(rank)
    others = {piece for piece in range(layout.num_pieces) if piece not in own}
    return sum(neighbour in others for piece in own for neighbour in (piece - 1, piece + 1))


def _per_block(shards: Shards, field: Literal["gathered", "gathered_trained"] = "gathered") -> dict[str, int]:
    """Values of each block while it computes, its experts included."""
    blocks: dict[str, int] = {}
    for unit in shards.units:
        if unit.name:
            block = ".".join(unit.name.split(".")[:2])
            blocks[block] = blocks.get(block, 0) + getattr(unit, field)
    return blocks


def _ring(num_bytes: int, ranks: int) -> int:
    return num_bytes * (ranks - 1) // ranks
