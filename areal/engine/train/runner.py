"""Runs a model over whole batches: rows are divided over the ranks that share it, cut into micro-batches, and computed.

What trained engines and frozen models have in common. It updates nothing; `FrozenModel` needs nothing else.

Micro-batches are made so small that every rank has memory for them. A process that is alone finds out by running out
of memory, and starts the step again. Where ranks wait for each other
in the middle of a pass, one that runs out of memory cannot take its part back. So each rank first reserves what it
expects its largest micro-batch to need, in one piece, and frees that again; when anyone fails, all halve the
micro-batches together. What is expected is what earlier steps took, where the device can tell, and before that an
estimate from the sizes of the model. A step that takes more than expected, or memory that another program takes
meanwhile, is not caught by this.
"""

from __future__ import annotations

import copy
import gc
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import torch
import torch.distributed as dist

from areal.api import ConfigError, EngineError, TeacherScores
from areal.engine.config import TrainEngineConfig
from areal.engine.precision import with_concrete_dtype
from areal.engine.train.divided import DividedBatch
from areal.engine.train.packing import Cutter
from areal.engine.train.passes import Scoring, SequentialPasses, Totals, score_dtype_of
from areal.engine.train.ranks import Ranks, local_data
from areal.models.parallel.plan import ParallelPlan
from areal.utils.computing import training
from areal.utils.logging import getLogger
from areal.utils.transfers import WHOLE_DEVICE, upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from areal.api import LossFunction, PaddedBatch
    from areal.engine.config import ArchonConfig
    from areal.engine.train.candidates import Top
    from areal.engine.train.loading import ShardSource
    from areal.engine.train.passes import BatchTotals, Keep, Predicted, Scored

    MakePasses = Callable[[nn.Module, ParallelPlan, Ranks], "Passes"]

_logger = getLogger(__name__)

Pass = Literal["forward", "training"]


class Passes(Protocol):
    """A model, or this rank's part of it, and how micro-batches go through it."""

    model: nn.Module
    partial_over_tp: frozenset[str]
    """Parameters whose gradients are terms of a sum over tp."""
    copies: frozenset[str]
    """Parameters that another rank of the pipeline has as well, with the same gradients."""

    def forward(self, batch: DividedBatch, micro: list[list[int]], scoring: Scoring, keep: Keep) -> None:
        """Scores of this data rank's micro-batches."""
        ...

    def backward(
        self, batch: DividedBatch, micro: list[list[int]], loss_fn: LossFunction, scoring: Scoring, totals: Totals
    ) -> None:
        """Gradients of this data rank's micro-batches, summed over data ranks."""
        ...

    def all_totals(self, totals: Totals, gradient_norm: Tensor) -> BatchTotals:
        """Totals of all ranks, read from the device together with the norm of all gradients."""
        ...

    def share(self, result: Tensor) -> None:
        """Hand scores to the ranks of a pipeline that did not see them."""
        ...


class ModelRunner:
    """A model, whole or this rank's part of it, and how batches go through it."""

    def __init__(
        self,
        model: nn.Module,
        config: TrainEngineConfig,
        archon: ArchonConfig | None = None,
        *,
        is_critic: bool = False,
        source: ShardSource | None = None,
        first_values: Mapping[str, Tensor] | None = None,
        make_passes: MakePasses | None = None,
    ) -> None:
        """Split `model` as `archon` says, in place; without, this process is alone with it where it is.

        source: fills a model without memory once it is split; first_values: of parameters that it does not have.
        make_passes: takes the place of PyTorch's ways of splitting.
        """
        self.is_critic = is_critic
        self._keeps_groups = archon is None or archon.keep_groups
        if is_critic == hasattr(model, "project"):
            raise EngineError(
                f"is_critic={is_critic} does not fit {type(model).__name__}: a critic is an "
                f"areal.models.value_head.ValueModel around a decoder, an actor is the decoder itself"
            )
        self.passes: Passes
        options: dict[str, Any] = {"chunk": config.logprob_chunk_size, "is_critic": is_critic}
        options["replays"] = config.router_replay
        if config.router_replay:
            check_replay(model, config)
        if archon is None:
            self.ranks = Ranks(next(model.parameters()).device)
            plan = ParallelPlan(activation_checkpointing=config.gradient_checkpointing, compile=config.compile)
            self.passes = SequentialPasses(model, plan, self.ranks, **options)
        else:
            plan = _plan_of(model, config, archon, source)
            assert plan.meshes is not None, "just built"
            self.ranks = Ranks(plan.meshes.device, plan.meshes)
            if make_passes is not None:
                self.passes = make_passes(model, plan, self.ranks)
            elif plan.dims.pp > 1:
                from areal.engine.train.pipeline import PipelinePasses

                self.passes = PipelinePasses(model, plan, self.ranks, config, archon, is_critic=is_critic)
            else:
                self.passes = SequentialPasses(model, plan, self.ranks, **options)
        if source is not None:
            source.fill(self.model, first_values or {}, self.ranks)
        trained = (parameter for parameter in self.model.parameters() if parameter.requires_grad)
        num_gradients = sum(local_data(parameter).numel() for parameter in trained)
        self._micro_batches = MicroBatches(
            Expectation(model, config, plan, num_gradients=num_gradients),
            self.ranks,
            holds_all=archon is not None and archon.pp_schedule == "GPipe",
            budget=config.max_tokens_per_micro_batch,
            # Other ways of splitting lay out every row in full.
            sharing_limit=getattr(model, "length_limit", None) if make_passes is None else 0,
        )

    @property
    def model(self) -> nn.Module:
        """The live model, or this rank's part of it."""
        return self.passes.model

    def divide(self, batch: PaddedBatch) -> DividedBatch:
        """Divide the rows over the data ranks."""
        return DividedBatch.of(batch, self.ranks, keep_groups=self._keeps_groups)

    def receive(self, batch: PaddedBatch | DividedBatch) -> DividedBatch:
        """Return a batch with the rows of this rank on its device; every rank calls it."""
        divided = batch if isinstance(batch, DividedBatch) else self.divide(batch)
        return divided.received(self.ranks)

    @torch.no_grad()
    def forward_logp(self, batch: PaddedBatch | DividedBatch, *, temperature: float, only_masked: bool) -> Tensor:
        """See `TrainingEngine.forward_logp`."""
        if self.is_critic:
            raise EngineError(
                "forward_logp needs a language model head and this engine trains a critic; use forward_values"
            )
        scoring = Scoring(temperature=temperature, only_masked=only_masked)
        return self._forward(batch, scoring, lambda scored: scored.scores.logp if scored.scores else None)

    @torch.no_grad()
    def forward_values(self, batch: PaddedBatch | DividedBatch) -> Tensor:
        """See `TrainingEngine.forward_values`."""
        if not self.is_critic:
            raise EngineError(
                "forward_values needs a value head; build the engine around a ValueModel with is_critic=True"
            )
        return self._forward(batch, Scoring(), lambda scored: scored.values)

    @torch.no_grad()
    def forward_top(self, batch: PaddedBatch | DividedBatch, top: Top, *, temperature: float) -> TeacherScores:
        """See `FrozenModel.forward_top`."""
        dtype = score_dtype_of(self.model)

        def read(scored: Scored) -> Tensor | None:
            if scored.scores is None or scored.scores.top is None:
                return None
            ids_NK, logp_NK = scored.scores.top
            # Ids as numbers beside the others, so that all goes through one pass: float32 holds them up to 2^24.
            return torch.cat([scored.scores.logp[:, None], logp_NK, ids_NK.to(dtype)], dim=1)

        scoring = Scoring(temperature=temperature, only_masked=True, top=top)
        found = self._forward(batch, scoring, read, sizes=(1 + 2 * top.k,))
        return TeacherScores(
            logp=found[..., 0],
            candidate_logp=found[..., 1 : 1 + top.k].contiguous(),
            candidates=found[..., 1 + top.k :].to(torch.int64),
        )

    def _forward(
        self,
        batch: PaddedBatch | DividedBatch,
        scoring: Scoring,
        read: Callable[[Scored], Tensor | None],
        *,
        sizes: tuple[int, ...] = (),
    ) -> Tensor:
        """[S, L, *sizes] of what `read` takes from the scores of all rows, on every rank, on the device of `batch`; on
        the CPU for a divided one."""
        home = torch.device("cpu") if isinstance(batch, DividedBatch) else batch.tokens.device
        received = self.receive(batch)
        dtype = score_dtype_of(self.model)
        shape = (received.lengths.shape[0], received.width, *sizes)
        result_SL = torch.zeros(shape, dtype=dtype, device=self.ranks.device)

        def keep(rows: list[int], predicted: Predicted, scored: Scored) -> None:
            if (values_N := read(scored)) is not None:
                row_N = upload(torch.tensor(rows), self.ranks.device)[predicted.rows]
                result_SL[row_N, predicted.columns] = values_N.to(dtype)

        self._micro_batches.run(
            "forward",
            received,
            lambda micro: self.passes.forward(received, micro, scoring, keep),
            reset=lambda: None,
        )
        # Each row is on one data rank, and 0 on the others.
        self.ranks.sum(result_SL, "data")
        self.passes.share(result_SL)
        return result_SL.to(home)

    def backward(
        self,
        batch: DividedBatch,
        loss_fn: LossFunction,
        scoring: Scoring,
        *,
        zero_grad: Callable[[], None],
        gradient_norm: Callable[[], Tensor] | None = None,
    ) -> BatchTotals:
        """Gradients of all rows; each rank has received its own. Totals are those of all ranks. gradient_norm: called
        when all gradients are there; the norm is 0 without it."""
        totals = Totals()

        def reset() -> None:
            zero_grad()
            totals.clear()

        reset()
        self._micro_batches.run(
            "training",
            batch,
            lambda micro: self.passes.backward(batch, micro, loss_fn, scoring, totals),
            reset=reset,
        )
        norm = torch.zeros((), device=self.ranks.device) if gradient_norm is None else gradient_norm()
        return self.passes.all_totals(totals, norm)


class FrozenModel:
    """Scores batches with weights that never change; the numbers come from the same code as the training engine's.

    reference = FrozenModel.copy_of(engine.model, config=engine.config)   # before the first step
    logp_ref = reference.forward_logp(batch, temperature=1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainEngineConfig | None = None,
        archon: ArchonConfig | None = None,
        source: ShardSource | None = None,
    ) -> None:
        """Take over `model` where it is: gradients are switched off. config: micro-batch and chunk sizes; defaults if
        None. archon, source: as of a `TrainingEngine`, on every rank."""
        settings = with_concrete_dtype(config or TrainEngineConfig())
        settings = replace(settings, lora=None, gradient_checkpointing=False, router_replay=False)
        holder: Any = model
        if getattr(holder, "vision", None) is not None:
            holder.freeze_vision("none")
        self.vocab_size = int(holder.args.vocab_size)
        """Embeddings of the whole model."""
        self._runner = ModelRunner(model.requires_grad_(False), settings, archon, source=source)

    @classmethod
    def copy_of(cls, model: nn.Module, *, config: TrainEngineConfig | None = None) -> Self:
        """Freeze a copy; the original stays trainable and the copy is not affected by its updates."""
        return cls(copy.deepcopy(model), config=config)

    def forward_logp(
        self, batch: PaddedBatch | DividedBatch, *, temperature: float = 1.0, only_masked: bool = False
    ) -> Tensor:
        """See `TrainingEngine.forward_logp`."""
        return self._runner.forward_logp(batch, temperature=temperature, only_masked=only_masked)

    def device_tensors(self) -> list[Tensor]:
        """Return what it has on its device."""
        return [*self._runner.model.parameters(), *self._runner.model.buffers()]

    def forward_top(self, batch: PaddedBatch | DividedBatch, top: Top, *, temperature: float = 1.0) -> TeacherScores:
        """Log-probability of each token with loss_mask 1 given its prefix, and of the likeliest tokens in its place."""
        return self._runner.forward_top(batch, top, temperature=temperature)


def _plan_of(
    model: nn.Module, config: TrainEngineConfig, archon: ArchonConfig, source: ShardSource | None
) -> ParallelPlan:
    """Build the groups of processes, and bring the parameters into the dtype in which they are stored."""
    from areal.models.parallel.meshes import build_meshes

    device = next(model.parameters()).device if source is None else source.device
    if archon.offload_parameters:
        check_offload(device, is_loaded=source is None)
    # Without a group, `build_meshes` says what to do.
    dims = archon.parallel.resolved(dist.get_world_size() if dist.is_initialized() else 1)
    # For bfloat16 the parameters stay float32: they are the master weights, and FSDP2 rounds what it gathers.
    stored = torch.float64 if config.dtype == "float64" else torch.float32
    for parameter in model.parameters():
        if parameter.requires_grad or config.lora is None:
            parameter.data = parameter.data.to(stored)
    return ParallelPlan(
        dims=dims,
        meshes=build_meshes(dims, device.type),
        sequence_parallel=archon.sequence_parallel,
        activation_checkpointing=config.gradient_checkpointing,
        compile=config.compile,
        param_dtype="bfloat16" if config.dtype == "bfloat16" else None,
        reshard_after_forward=archon.reshard_after_forward,
        offload_parameters=archon.offload_parameters,
    )


def check_replay(model: nn.Module, config: TrainEngineConfig) -> None:
    """Raise ConfigError where routers cannot be given the experts that they chose before."""
    numbers: Any = getattr(model, "router_numbers", ())
    if not any(numbers):
        raise ConfigError(
            f"router_replay gives routers of a mixture of experts the choices that were recorded while sampling, and "
            f"{type(model).__name__} has no router of ours",
            where="actor.router_replay",
            fix="leave it false; for a mixture that runs by transformers, generate a family (docs/models.md)",
        )
    if config.compile:
        raise ConfigError(
            "router_replay changes what compiled blocks compute with every micro-batch",
            where="actor.router_replay",
            fix="set actor.compile to false",
        )


def check_offload(device: torch.device, *, is_loaded: bool) -> None:
    """Raise ConfigError where parameters cannot be moved to the host."""
    if device.type == "cpu":
        raise ConfigError(
            "offload_parameters moves parameters from an accelerator to the host; this model is on the host already"
        )
    if not is_loaded:
        raise ConfigError(
            "offload_parameters takes a model that is loaded as a whole, and this one is read in shards; load it by "
            "from_pretrained, or use offload_optimizer"
        )


class Expectation:
    """Bytes that a rank needs for micro-batches, beside its parameters and moments."""

    def __init__(self, model: nn.Module, config: TrainEngineConfig, plan: ParallelPlan, *, num_gradients: int) -> None:
        """model: one whose `args` do not have the sizes of its layers is not estimated. num_gradients: values of the
        rank's gradients."""
        self._args, self._config, self._plan = getattr(model, "args", None), config, plan
        self._num_gradients = num_gradients
        self._seen: dict[Pass, dict[int, int]] = {"forward": {}, "training": {}}

    def record(self, kind: Pass, tokens: int, num_bytes: int) -> None:
        """Take note of what passes over micro-batches of at most so many tokens took."""
        seen = self._seen[kind]
        seen[tokens] = max(num_bytes, seen.get(tokens, 0))

    def bytes_for(self, kind: Pass, tokens: int) -> int:
        """For micro-batches of at most so many tokens; 0 when nothing is known."""
        seen = self._seen[kind]
        if not seen:
            return self._estimate(kind, tokens)
        largest, smallest = max(seen), min(seen)
        # What does not grow with tokens is in the smaller one as well; with one of them only, everything grows.
        if largest > smallest:
            slope = max(0.0, (seen[largest] - seen[smallest]) / (largest - smallest))
        else:
            slope = seen[largest] / max(1, largest)
        return max(0, int(seen[largest] + slope * (tokens - largest)))

    def _estimate(self, kind: Pass, tokens: int) -> int:
        args: Any = self._args
        dims = self._plan.dims
        if not all(hasattr(args, name) for name in ("hidden_size", "num_layers", "num_heads", "head_dim")):
            return 0
        computed = getattr(torch, self._config.dtype).itemsize
        scored = max(4, computed)
        split: dict[str, Any] = {"tp": dims.tp, "sequence_parallel": self._plan.sequence_parallel}
        # The layer at work: of the forward pass it is all there is, and in the backward pass it has gradients as well.
        values = activation_values(args, 1, **split)
        if kind == "training":
            layers, recomputed = -(-args.num_layers // dims.pp), self._plan.activation_checkpointing
            values += activation_values(args, layers, **split, recomputed=recomputed)
        logits = min(self._config.logprob_chunk_size, tokens) * args.vocab_size // dims.tp
        gradients = self._num_gradients * scored if kind == "training" else 0
        return -(-tokens // dims.cp) * values * computed + 2 * logits * scored + gradients


class MicroBatches:
    """Runs the micro-batches of a batch, as large as every rank has memory for. All ranks call it together."""

    def __init__(
        self, expectation: Expectation, ranks: Ranks, *, holds_all: bool, budget: int, sharing_limit: int | None
    ) -> None:
        """holds_all: a pipeline starts all passes before the first comes back. budget: tokens of a micro-batch.
        sharing_limit: tokens of a row up to which rows share a beginning, as `CausalModel.length_limit`."""
        self._expectation = expectation
        self._ranks = ranks
        self._holds_all = holds_all
        self._budget = budget
        self._sharing_limit = sharing_limit

    def run(
        self,
        kind: Pass,
        batch: DividedBatch,
        work: Callable[[list[list[int]]], None],
        *,
        reset: Callable[[], None],
    ) -> None:
        """Call `work` with this rank's micro-batches.

        Where one process is on its own, `reset` is called and everything starts again with half the tokens when memory
        runs out. Raises EngineError, on all ranks, when not even the longest sequence fits; and on the one rank that
        runs out while others wait for it.
        """
        divided = batch.divided
        shares = self._sharing_limit is None or int(batch.lengths.max()) <= self._sharing_limit
        cutter = Cutter(batch, batch.beginnings if shares else None)
        cuts = cutter.cut_all(self._budget, divided)
        if not self._ranks.is_alone:
            cuts = self._reserved(kind, cutter, divided, cuts)
        while True:
            own = cuts[self._ranks.place("data")]
            failure: str | None = None
            try:
                with self._recorded(kind, cutter, own), training():
                    work(own)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                # Not the error: its traceback would keep the tensors alive.
                failure = str(error) or type(error).__name__
            if failure is None:
                return
            if self._ranks.size > 1:
                raise EngineError(
                    f"rank {self._ranks.rank} ran out of memory in the middle of micro-batches of "
                    f"{cutter.largest(own)} tokens, where other ranks wait for it, so that the step cannot be "
                    f"repeated: {failure}. Lower max_tokens_per_micro_batch or logprob_chunk_size, set "
                    f"gradient_checkpointing, or use more ranks; the last checkpoint has the run"
                )
            reset()
            release()
            cuts = self._halved(cutter, divided, cuts, failure)

    def _reserved(
        self, kind: Pass, cutter: Cutter, divided: list[list[int]], cuts: list[list[list[int]]]
    ) -> list[list[list[int]]]:
        """Cuts that every rank has reserved memory for."""
        ranks = self._ranks
        while True:
            needed = self._expectation.bytes_for(kind, self._held(kind, cutter, cuts[ranks.place("data")]))
            missing = torch.zeros(ranks.size, dtype=torch.int64, device=ranks.device)
            if not can_reserve(needed, ranks.device):
                missing[ranks.rank] = needed
            dist.all_reduce(missing)
            failed = [f"rank {rank} has no {size / 1e9:.2f} GB" for rank, size in enumerate(missing.tolist()) if size]
            if not failed:
                return cuts
            cuts = self._halved(cutter, divided, cuts, ", ".join(failed[:4]))

    def _halved(
        self, cutter: Cutter, divided: list[list[int]], cuts: list[list[list[int]]], failure: str
    ) -> list[list[list[int]]]:
        """Cuts of half the size, the same on every rank."""
        tried = cutter.largest([rows for cut in cuts for rows in cut])
        smaller = cutter.cut_all(max(1, tried // 2), divided)
        tokens = cutter.largest([rows for cut in smaller for rows in cut])
        if smaller == cuts:
            raise EngineError(
                f"out of memory with micro-batches of {tried} tokens, which cannot be cut further: {failure}. "
                f"Lower logprob_chunk_size, set gradient_checkpointing, use more ranks, or allow shorter sequences "
                f"(the longest of this batch has {cutter.longest} tokens)"
            )
        _logger.warning(
            "out of memory with %d tokens (%s); this batch is run again with at most %d", tried, failure, tokens
        )
        return smaller

    def _held(self, kind: Pass, cutter: Cutter, own: list[list[int]]) -> int:
        """Tokens whose activations a rank holds at once."""
        stages = self._ranks.count("pp")
        if stages == 1 or kind == "forward":
            return cutter.largest(own)
        return cutter.largest(own) * (len(own) if self._holds_all else min(len(own), stages))

    @contextmanager
    def _recorded(self, kind: Pass, cutter: Cutter, own: list[list[int]]) -> Iterator[None]:
        """Record what the passes inside take, where that is asked for and the device counts."""
        device = self._ranks.device
        if self._ranks.is_alone or device.type == "cpu":
            yield
            return
        before = torch.accelerator.memory_allocated(device)
        torch.accelerator.reset_peak_memory_stats(device)
        yield
        taken = torch.accelerator.max_memory_allocated(device) - before
        self._expectation.record(kind, self._held(kind, cutter, own), taken)


def activation_values(
    args: Any, num_layers: int, *, tp: int = 1, sequence_parallel: bool = False, recomputed: bool = False
) -> int:
    """Estimate the values per token that the backward pass of `num_layers` layers reads on a rank of tp, with one layer
    at work where they are recomputed: a rule of thumb, from the sizes of the model alone.

    Four vectors of hidden_size (block inputs and norms), queries and attention output, keys and values, and four of the
    inner size of the feed-forward layer, as `areal.trainer.configuration.memory` counts them.
    """
    between = args.hidden_size // (tp if sequence_parallel else 1)
    query, key_value = args.num_heads * args.head_dim // tp, max(1, args.num_kv_heads // tp) * args.head_dim
    inner = int(getattr(args, "intermediate_size", 4 * args.hidden_size))
    if getattr(args, "moe_intermediate_size", None) is not None:
        experts = int(getattr(args, "num_experts_per_tok", 1)) + int(getattr(args, "n_shared_experts", 0) or 0)
        inner = int(args.moe_intermediate_size) * experts  # of all experts that a token passes through
    per_layer = 4 * between + 2 * query + 2 * key_value + 4 * (inner // tp)
    return int(num_layers * between + per_layer if recomputed else num_layers * per_layer)


def can_reserve(num_bytes: int, device: torch.device) -> bool:
    """Whether so much memory is available in one piece; it is freed at once."""
    if num_bytes <= 0:
        return True
    for attempt in range(2):
        try:
            # Not a tensor: nothing fills this.
            torch.UntypedStorage(num_bytes, device=device)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if attempt == 0:
                release()
        else:
            return True
    return False


def release() -> None:
    """Give back what nobody uses any more: cycles of objects, and memory that the device's allocator keeps."""
    gc.collect()
    if torch.accelerator.is_available():
        with WHOLE_DEVICE:
            torch.accelerator.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation; torch's CPU allocator reports one as a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
