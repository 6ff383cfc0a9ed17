"""Floating-point operations that a model's matrix products need: the numerator of model FLOPs utilisation (MFU).

    used = training_flops(model, lengths) / seconds / peak_of_the_device

Needed, not done: recomputed activations, padding and what a kernel computes in vain count for nothing, and prompts
that are computed once for several sequences count for each. As PaLM counts them (arXiv 2204.02311, appendix B: 6 per
parameter and token, and attention), with two refinements: a token attends to what it may see, not to the whole
sequence, and of the embedding only its second use, as the projection to the vocabulary, is a product.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from torch import nn

from areal.api import ModelError
from areal.models.blocks.attention import SelfAttention
from areal.models.blocks.experts_beside import ExpertsBeside
from areal.models.blocks.gated_delta import GatedDelta
from areal.models.blocks.latent_attention import LatentAttention
from areal.models.blocks.lightning import LightningAttention
from areal.models.blocks.mamba1 import Mamba1
from areal.models.blocks.mamba2 import Mamba2
from areal.models.blocks.moe import Experts, MixtureOfExperts, Router
from areal.models.blocks.rg_lru import RGLRU, BlockDiagonal
from areal.models.blocks.short_convolution import DepthwiseConvolution, ShortConvolution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.models.blocks.decoder import DecoderModel

_PER_VALUE = 2
_STATEFUL = (GatedDelta, LightningAttention, Mamba1, Mamba2, RGLRU, ShortConvolution)
"""A multiplication and an addition."""


def training_flops(model: DecoderModel, lengths: Sequence[int], *, num_predicted: int | None = None) -> int:
    """Return the operations of a forward and backward pass in which all parameters are trained: three times the forward
    pass, for each product has two more, the gradients of both its factors. Arguments: see `forward_flops`."""
    return 3 * forward_flops(model, lengths, num_predicted=num_predicted)


def forward_flops(model: DecoderModel, lengths: Sequence[int], *, num_predicted: int | None = None) -> int:
    """Return the operations of one forward pass over sequences of these lengths.

    num_predicted: tokens that are projected to the vocabulary; None for all. The model may be on the device "meta".
    """
    tokens = sum(lengths)
    predicted = tokens if num_predicted is None else num_predicted
    products = tokens * matrix_values(model) + predicted * _head_values(model)
    return _PER_VALUE * (products + attention_products(model, lengths))


def matrix_values(model: DecoderModel) -> int:
    """Return the number of values of the matrices between embedding and head that a token is multiplied with; of
    experts, the chosen ones."""
    parts = [*model.layers, *([] if model.layer_embeddings is None else [model.layer_embeddings])]
    body = [module for part in parts for module in part.modules()]
    values = sum(module.weight.numel() for module in body if isinstance(module, (nn.Linear, Router, BlockDiagonal)))
    mixtures = (module for module in body if isinstance(module, (MixtureOfExperts, ExpertsBeside)))
    return values + sum(map(_chosen_values, mixtures))


def attention_products(model: DecoderModel, lengths: Sequence[int]) -> int:
    """Return the multiplications of queries with the keys they see, and of attention weights with their values; of
    mixers with a state, those of filters, and of reading and writing the state, which a token does once; of indexers,
    those of ranking all keys, of which attention sees the chosen ones."""
    total, top_k = 0, None
    counts = Counter(lengths).items()
    for layer in model.layers:
        modules = list(layer.modules())
        found = [module for module in modules if isinstance(module, (SelfAttention, LatentAttention))]
        stateful = [module for module in modules if isinstance(module, _STATEFUL)]
        if not found and not stateful and getattr(layer, "self_attn", layer) is not None:
            raise ModelError(f"{type(layer).__name__} has no attention that is known here; its FLOPs are unknown")
        total += sum(lengths) * sum(_state_values(mixer) for mixer in stateful)
        for attention in found:
            indexer = getattr(attention, "indexer", None)
            if indexer is not None:
                top_k = indexer.top_k
                ranked = indexer.num_heads * (indexer.head_dim + 1)
                total += ranked * sum(count * visible_pairs(length) for length, count in counts)
            windows = [attention.window, top_k if getattr(attention, "selected", False) else None]
            window = min((size for size in windows if size is not None), default=None)
            pairs = sum(count * visible_pairs(length, window, attention.chunk) for length, count in counts)
            total += pairs * _values_per_pair(attention)
    return total


def visible_pairs(length: int, window: int | None = None, chunk: int | None = None) -> int:
    """Return how many (query, key) pairs of a sequence are visible: causal, in a window of so many tokens, within
    chunks."""
    if chunk is not None and chunk < length:
        whole, rest = divmod(length, chunk)
        return whole * visible_pairs(chunk, window) + visible_pairs(rest, window)
    seen = length if window is None else min(window, length)
    return seen * (seen + 1) // 2 + (length - seen) * seen


def _values_per_pair(attention: SelfAttention | LatentAttention) -> int:
    """Return the sizes of query and value, over all heads."""
    if isinstance(attention, SelfAttention):
        values = attention.value_dim if attention.differential is None else 2 * attention.value_dim
        return attention.num_heads * (attention.head_dim + values)
    heads = attention.o_proj.in_features // attention.value_dim
    return heads * (attention.nope_dim + attention.rope_dim + attention.value_dim)


def _state_values(mixer: nn.Module) -> int:
    """Return the values of filters that a token is multiplied with, and of its state, once per use of it."""
    filters = sum(part.weight.numel() for part in mixer.modules() if isinstance(part, DepthwiseConvolution))
    if isinstance(mixer, GatedDelta):
        # What the state says of the key, what is written, and what the query reads.
        return filters + 3 * mixer.num_value_heads * mixer.key_dim * mixer.value_dim
    if isinstance(mixer, LightningAttention):
        return 2 * mixer.num_heads * mixer.head_dim**2
    if isinstance(mixer, Mamba1):
        return filters + 2 * mixer.A_log.numel()
    if isinstance(mixer, RGLRU):
        # A number per channel, which decays and is read.
        return filters + mixer.decay.numel()
    if isinstance(mixer, Mamba2):
        return filters + 2 * mixer.num_heads * mixer.head_dim * mixer.state_size
    return filters


def _chosen_values(mixture: MixtureOfExperts | ExpertsBeside) -> int:
    experts: Experts = mixture.experts
    matrices = sum(parameter.numel() for parameter in experts.parameters() if parameter.dim() == 3)
    return matrices // experts.up_proj.shape[0] * mixture.router.top_k


def _head_values(model: DecoderModel) -> int:
    transform = 0 if model.head_transform is None else sum(p.numel() for p in model.head_transform.parameters())
    return model.embed_tokens.weight.numel() + transform
