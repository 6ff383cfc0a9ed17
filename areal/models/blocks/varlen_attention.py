"""Attention over runs of packed tokens of any lengths, without padding and masks, where the device has such kernels.

A `VarlenKernel` attends to the keys of runs, and returns beside its output the log-sum-exp of each query's scores. So a
query whose keys are in several places needs no copy of them in one. Outputs o_i over parts of the keys are merged as

    s = log sum_i exp s_i,    o = sum_i exp(s_i - s) o_i

with s_i the log-sum-exps, in float32. The gradient of the merged attention is that of the kernel for each part, given o
and s in the place of o_i and s_i: a key's weight exp(score - s) and the sum over the gradient times o are then those of
all keys together (the same holds for keys over several devices: Ring Attention, arXiv 2310.01889).

Example: two answers of 3 and 2 tokens to a prompt of 4 attend to `KeyRuns([0, 5], [0, 4])`, all of the prompt's keys,
and to `KeyRuns([0, 3, 5], [0, 3, 5], causal=True)`, what each of them has before itself.

Shape letters: Q query tokens, K key tokens, H query heads (a multiple of the key heads), D head size.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import torch

from areal.utils.transfers import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from areal.models.blocks.padded_attention import AttentionOptions

_LARGEST_HEAD: Final = 256
_HEAD_MULTIPLE: Final = 8
_LARGE_HEADS: Final = range(193, 225)
"""Sizes whose backward needs the shared memory of `_LARGE_HEAD_GPUS`; torch refuses it on others."""
_LARGE_HEAD_GPUS: Final = ((8, 0), (9, 0))


class KeyRuns(NamedTuple):
    """Runs of queries, and the run of keys that each of them attends to."""

    query_bounds: Tensor
    """int32 [R + 1], from 0 to Q, on the device."""
    key_bounds: Tensor
    """int32 [R + 1], from 0 to K, on the device."""
    most_queries: int
    """Of a run."""
    most_keys: int
    causal: bool
    """Whether the last query sees all keys, and each one before it one key less; else all see all."""
    used: Tensor | None = None
    """int32 [R], how many of each run's keys count, from its first on; None for all. Without a gradient."""

    @classmethod
    def of(
        cls, query_lengths: Sequence[int], key_lengths: Sequence[int], device: torch.device, *, causal: bool
    ) -> Self:
        """Lengths of the runs, at least 1 each."""
        bounds = torch.tensor([[0, *itertools.accumulate(each)] for each in (query_lengths, key_lengths)])
        queries, keys = upload(bounds.to(torch.int32), device).unbind()
        return cls(queries, keys, max(query_lengths), max(key_lengths), causal)


class VarlenKernel(Protocol):
    """Attention within runs. window: keys that a query sees, itself counted; None for all. Of causal runs only."""

    def suits(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Whether it takes these dtypes, sizes and devices."""
        ...

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, runs: KeyRuns, *, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return output [Q, H, D] and log-sum-exp, float32 [H, Q] (float64 for float64 queries)."""
        ...

    def backward(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sum: Tensor,
        runs: KeyRuns,
        *,
        scale: float,
        window: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of query, key and value, given that of the output."""
        ...


class FlashKernel:
    """FlashAttention-2 (arXiv 2307.08691) as torch carries it, for NVIDIA GPUs from Ampere on."""

    def suits(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """See `VarlenKernel.suits`."""
        size = query.shape[-1]
        fits = size == value.shape[-1] <= _LARGEST_HEAD and size % _HEAD_MULTIPLE == 0
        if not (
            fits
            and query.dtype in (torch.bfloat16, torch.float16)
            and query.dtype == key.dtype == value.dtype
            and torch.version.hip is None
        ):
            return False
        capability = torch.cuda.get_device_capability(query.device)
        return capability >= (8, 0) and (size not in _LARGE_HEADS or capability in _LARGE_HEAD_GPUS)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, runs: KeyRuns, *, scale: float, window: int | None
    ) -> tuple[Tensor, Tensor]:
        """See `VarlenKernel.forward`."""
        output, log_sum, *_ = torch.ops.aten._flash_attention_forward(
            query, key, value, *runs[:4], 0.0, runs.causal, False,
            scale=scale, seqused_k=runs.used, **_window(window),
        )  # fmt: skip
        return output, log_sum

    def backward(
        self,
        gradient: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        output: Tensor,
        log_sum: Tensor,
        runs: KeyRuns,
        *,
        scale: float,
        window: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `VarlenKernel.backward`."""
        # The state of the generator, for a dropout that there is not.
        unused = torch.zeros(2, dtype=torch.uint64, device=query.device)
        of_query, of_key, of_value = torch.ops.aten._flash_attention_backward(
            gradient, query, key, value, output, log_sum, *runs[:4], 0.0, runs.causal, unused, unused[:0],
            scale=scale, **_window(window),
        )  # fmt: skip
        return of_query, of_key, of_value


KERNELS: Final[dict[str, VarlenKernel]] = {"cuda": FlashKernel()}
"""By type of device; others attend in padded rectangles."""


def find_kernel(
    query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions, *, longest: int
) -> VarlenKernel | None:
    """Return the kernel for what a layer asks of sequences of up to `longest` tokens; None without one."""
    kernel = KERNELS.get(query.device.type)
    plain = options.softcap is None and options.sinks is None and options.alibi is None and not options.selected
    chunked = options.chunk is not None and options.chunk < longest
    return kernel if kernel is not None and plain and not chunked and kernel.suits(query, key, value) else None


def attend_runs(
    kernel: VarlenKernel,
    query: Tensor,
    parts: Sequence[tuple[Tensor, Tensor, KeyRuns]],
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attend with [Q, H, D] over all of some parts of the keys, each [K, key heads, D] and values alike."""
    pairs = [tensor for key, value, _ in parts for tensor in (key, value)]
    attended: Tensor = _AttendRuns.apply(kernel, [runs for *_, runs in parts], scale, window, query, *pairs)
    return attended


class _AttendRuns(torch.autograd.Function):
    """See the module."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: VarlenKernel,
        runs: list[KeyRuns],
        scale: float,
        window: int | None,
        query: Tensor,
        *pairs: Tensor,
    ) -> Tensor:
        ctx.kernel, ctx.runs, ctx.options = kernel, runs, {"scale": scale, "window": window}
        found = [
            kernel.forward(query, key, value, each, scale=scale, window=window)
            for key, value, each in zip(pairs[::2], pairs[1::2], runs, strict=True)
        ]
        output, log_sum = found[0]
        for more, its_sum in found[1:]:
            share = (its_sum - log_sum).sigmoid().t()[..., None]
            output = torch.lerp(output.to(share.dtype), more.to(share.dtype), share).to(output.dtype)
            log_sum = torch.logaddexp(log_sum, its_sum)
        ctx.save_for_backward(query, output, log_sum, *pairs)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, output, log_sum, *pairs = ctx.saved_tensors
        gradient, of_query, of_pairs = gradient.contiguous(), None, []
        for key, value, runs in zip(pairs[::2], pairs[1::2], ctx.runs, strict=True):
            of_part, *of_pair = ctx.kernel.backward(gradient, query, key, value, output, log_sum, runs, **ctx.options)
            of_query = of_part if of_query is None else of_query + of_part
            of_pairs += of_pair
        return None, None, None, None, of_query, *of_pairs


def _window(window: int | None) -> dict[str, int]:
    """Keys before and after the query's own that flash attention looks at; -1: no bound."""
    return {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}
