"""Makes the micro-batches of a step so small that every rank has memory for them.

A process that is alone finds out by running out of memory, and starts the step again. Where ranks wait for each other
in the middle of a pass, one that runs out of memory cannot take its part back. So each rank first reserves what it
expects its largest micro-batch to need, in one piece, and frees that again; when anyone fails, all halve the
micro-batches together. What is expected is what earlier steps took, where the device can tell, and before that an
estimate from the sizes of the model. A step that takes more than expected, or memory that another program takes
meanwhile, is not caught by this.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist

from areal.api import EngineError
from areal.engine.train.packing import cuts_of, tokens_of
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

    from areal.api import PaddedBatch
    from areal.engine.config import TrainEngineConfig
    from areal.engine.train.ranks import Ranks
    from areal.models.parallel.plan import ParallelPlan

_logger = getLogger(__name__)

Pass = Literal["forward", "training"]


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

    def __init__(self, expectation: Expectation, ranks: Ranks, *, holds_all: bool, budget: int) -> None:
        """holds_all: a pipeline starts all passes before the first comes back; budget: tokens of a micro-batch."""
        self._expectation = expectation
        self._ranks = ranks
        self._holds_all = holds_all
        self._budget = budget

    def run(
        self,
        kind: Pass,
        batch: PaddedBatch,
        divided: list[list[int]],
        work: Callable[[list[list[int]]], None],
        *,
        reset: Callable[[], None],
    ) -> None:
        """Call `work` with this rank's micro-batches; divided: rows of each data rank.

        Where one process is on its own, `reset` is called and everything starts again with half the tokens when memory
        runs out. Raises EngineError, on all ranks, when not even the longest sequence fits; and on the one rank that
        runs out while others wait for it.
        """
        cuts = cuts_of(batch, divided, self._budget)
        if not self._ranks.is_alone:
            cuts = self._reserved(kind, batch, divided, cuts)
        while True:
            own = cuts[self._ranks.place("data")]
            failure: str | None = None
            try:
                with self._recorded(kind, batch, own):
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
                    f"{tokens_of(batch, own)} tokens, where other ranks wait for it, so that the step cannot be "
                    f"repeated: {failure}. Lower max_tokens_per_micro_batch or logprob_chunk_size, set "
                    f"gradient_checkpointing, or use more ranks; the last checkpoint has the run"
                )
            reset()
            release()
            cuts = self._halved(batch, divided, cuts, failure)

    def _reserved(
        self, kind: Pass, batch: PaddedBatch, divided: list[list[int]], cuts: list[list[list[int]]]
    ) -> list[list[list[int]]]:
        """Cuts that every rank has reserved memory for."""
        ranks = self._ranks
        while True:
            needed = self._expectation.bytes_for(kind, self._held(kind, batch, cuts[ranks.place("data")]))
            missing = torch.zeros(ranks.size, dtype=torch.int64, device=ranks.device)
            if not can_reserve(needed, ranks.device):
                missing[ranks.rank] = needed
            dist.all_reduce(missing)
            failed = [f"rank {rank} has no {size / 1e9:.2f} GB" for rank, size in enumerate(missing.tolist()) if size]
            if not failed:
                return cuts
            cuts = self._halved(batch, divided, cuts, ", ".join(failed[:4]))

    def _halved(
        self, batch: PaddedBatch, divided: list[list[int]], cuts: list[list[list[int]]], failure: str
    ) -> list[list[list[int]]]:
        """Cuts of half the size, the same on every rank."""
        tried = tokens_of(batch, [rows for cut in cuts for rows in cut])
        smaller = cuts_of(batch, divided, max(1, tried // 2))
        tokens = tokens_of(batch, [rows for cut in smaller for rows in cut])
        if smaller == cuts:
            raise EngineError(
                f"out of memory with micro-batches of {tried} tokens, which cannot be cut further: {failure}. "
                f"Lower logprob_chunk_size, set gradient_checkpointing, use more ranks, or allow shorter sequences "
                f"(the longest of this batch has {int(batch.lengths.max())} tokens)"
            )
        _logger.warning(
            "out of memory with %d tokens (%s); this batch is run again with at most %d", tried, failure, tokens
        )
        return smaller

    def _held(self, kind: Pass, batch: PaddedBatch, own: list[list[int]]) -> int:
        """Tokens whose activations a rank holds at once."""
        stages = self._ranks.count("pp")
        if stages == 1 or kind == "forward":
            return tokens_of(batch, own)
        return tokens_of(batch, own) * (len(own) if self._holds_all else min(len(own), stages))

    @contextmanager
    def _recorded(self, kind: Pass, batch: PaddedBatch, own: list[list[int]]) -> Iterator[None]:
        """Record what the passes inside take, where that is asked for and the device counts."""
        device = self._ranks.device
        if self._ranks.is_alone or device.type == "cpu":
            yield
            return
        before = torch.accelerator.memory_allocated(device)
        torch.accelerator.reset_peak_memory_stats(device)
        yield
        taken = torch.accelerator.max_memory_allocated(device) - before
        self._expectation.record(kind, self._held(kind, batch, own), taken)


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
        torch.accelerator.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a failed allocation; torch's CPU allocator reports one as a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
