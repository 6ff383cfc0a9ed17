"""The one operation of vLLM that SGLang calls where it has no kernel of its own: rotary positions on CPUs.

The name and its arguments are those SGLang imports; what it computes is exact, and plain torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, cos_sin_cache: Tensor, is_neox: bool
) -> None:
    """Turn query and key in place.

    positions: [tokens]. query, key: [tokens, heads * head_size]. cos_sin_cache: [positions, rotated size], cosines
    before sines. is_neox: whether the halves of a head form the pairs, else its neighbours.
    """
    cos, sin = cos_sin_cache.index_select(0, positions.flatten())[:, None, :].chunk(2, dim=-1)
    for tensor in (query, key):
        rotated = tensor.view(positions.numel(), -1, head_size)[..., : 2 * cos.shape[-1]]
        first, second = rotated.chunk(2, dim=-1) if is_neox else (rotated[..., ::2], rotated[..., 1::2])
        turned = first * cos - second * sin, second * cos + first * sin
        first.copy_(turned[0])
        second.copy_(turned[1])
