"""What one config of a decoder architecture computes, as plain values: the hypothesis that parity judges.

A spec is independent of names on disk and of config fields. `reference.build(spec)` makes the model of it out of
`areal.models.blocks`, with the parameter names that are written here beside each part ("canonical names").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """A normalisation over the last dimension. Canonical names: `weight`, `bias`."""

    kind: Literal["rms", "layer"]
    eps: float
    weight: bool = True
    """Whether it has a scale."""
    bias: bool = False
    offset: float = 0.0
    """Added to the weight before scaling; 1.0 in the Gemma families."""


@dataclass(frozen=True, kw_only=True)
class RotarySpec:
    """One table of rotations. The first `dim` dimensions of a head are rotated, the others kept."""

    dim: int
    theta: float
    type: str = "default"
    """"default", "linear", "llama3", "yarn", "longrope" or "proportional"."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """Of the type, as in a config's rope_parameters, null entries left out."""
    interleaved: bool = False
    """Whether dimension 2j is paired with 2j + 1 (GPT-J) instead of j with j + dim / 2 (GPT-NeoX)."""
    query_growth: float = 0.0
    """Queries are multiplied by 1 + query_growth * log(1 + floor(position / growth_length))."""
    growth_length: int | None = None
    """None where queries do not grow."""
    growth_shift: int = 0
    """Added to the position, for this alone: 1 in Llama 4. A table of 0 dimensions lets queries grow, and no more."""
    growth_power: bool = False
    """Queries are multiplied by (1 + (position + growth_shift) / growth_length) ** query_growth instead (Beam)."""


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention. Canonical names: q_proj, k_proj, v_proj, o_proj (weight, bias), q_norm, k_norm, sinks
    ([num_heads]), gate_proj.weight, gate_bias ([num_heads]), output_norm ([num_heads * value_dim]), differential.*"""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    query_bias: bool = False
    key_bias: bool = False
    value_bias: bool = False
    output_bias: bool = False
    query_norm: NormSpec | None = None
    key_norm: NormSpec | None = None
    value_norm: NormSpec | None = None
    """Of the values of each head, one weight [value_dim] for all. Canonical name: v_norm (Gemma 4)."""
    keys_as_values: bool = False
    """Values are what k_proj gives, before norm and rotation; there is no v_proj (Gemma 4)."""
    shares_keys: bool = False
    """Attends to the keys and values of the last earlier layer that has its own and the same window and chunk; what is
    said of keys and values holds there, and the layer has no k_proj, v_proj, k_norm, v_norm (Gemma 4)."""
    norm_scope: Literal["head", "each_head", "full"] = "head"
    """"head": one weight [head_dim] for all heads; "each_head": weights [heads, head_dim], statistics per head;
    "full": over all heads together, weight [heads * head_dim]."""
    norm_after_rotary: bool = False
    scale: float
    """Factor on query-key products."""
    softcap: float | None = None
    sinks: bool = False
    clip: float | None = None
    """Queries, keys and values are clamped to [-clip, clip] after projection."""
    value_scale: float = 1.0
    """Factor on values."""
    gate: Literal["none", "elementwise", "headwise"] = "none"
    """Attended values times f(gate_proj(layer input)) before o_proj: one gate per element, or per head."""
    gate_function: Literal["sigmoid", "softplus"] = "sigmoid"
    """The f."""
    gate_bias: bool = False
    """Whether a number of each head is added to what f gets."""
    output_norm: NormSpec | None = None
    """Of the attended values of all heads together, before o_proj (BitNet)."""
    alibi: bool = False
    """Adds -slope * distance to the scores (arXiv 2108.12409), slopes as in the paper for any number of heads."""
    alibi_scale: float = 1.0
    """Factor on these biases (Falcon scales them together with the scores)."""
    differential_eps: float | None = None
    """Of the norm of what one half of the heads attends to less what the other does; None where they are not taken from
    each other. See `areal.models.blocks.differential`."""


@dataclass(frozen=True, kw_only=True)
class IndexerSpec:
    """What chooses the tokens that attention is restricted to: see `areal.models.blocks.indexer`. Canonical names below
    indexer: q_proj, k_proj, k_norm, weight_proj."""

    num_heads: int
    head_dim: int
    top_k: int
    """Tokens that are attended to."""
    norm_eps: float
    """Of the LayerNorm of its keys."""
    interleaved: bool
    """Whether the dimensions that it turns, those of the rotation beside it, are paired with their neighbours."""


@dataclass(frozen=True, kw_only=True)
class LatentAttentionSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). Canonical names: q_proj, or q_a_proj, q_a_norm,
    q_b_proj; kv_a_proj, kv_a_norm, kv_b_proj; o_proj, gate_proj.weight; indexer.*"""

    num_heads: int
    query_rank: int | None
    """None: one q_proj."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    query_norm: NormSpec | None
    """Of the compressed query."""
    kv_norm: NormSpec
    query_bias: bool = False
    kv_bias: bool = False
    """Bias of the compressing projections q_a_proj (query_bias) and kv_a_proj."""
    output_bias: bool = False
    scale: float
    softcap: float | None = None
    query_latent_scale: float = 1.0
    kv_latent_scale: float = 1.0
    """Factors on the normed compressed query and key-value (LongCat)."""
    gate: Literal["none", "elementwise", "headwise"] = "none"
    """As of `AttentionSpec`."""
    indexer: IndexerSpec | None = None
    """Restricts attention to what it chooses."""
    shares_selection: bool = False
    """Whether attention is restricted to what the last layer with an indexer chose."""


@dataclass(frozen=True, kw_only=True)
class ShortConvolutionSpec:
    """A gated short convolution (LFM2): out_proj(C * convolve(B * x)). Canonical names: in_proj (rows of B, then C,
    then x, hidden_size each), conv.weight [hidden_size, kernel_size], conv.bias, out_proj."""

    kernel_size: int
    """Tokens that a token sees, itself included."""
    bias: bool = False
    """Of both projections and the convolution."""


@dataclass(frozen=True, kw_only=True)
class GatedDeltaSpec:
    """A gated delta rule: see `areal.models.blocks.gated_delta`. Canonical names: q_proj, k_proj, v_proj, q_conv,
    k_conv, v_conv, decay_proj, rate_proj, gate_proj, A_log, dt_bias, norm, o_proj; decay_down, gate_down."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel_size: int
    norm_eps: float
    """Of the norm of what the rule gives, per head."""
    conv_activation: str = "silu"
    max_rate: float = 1.0
    """Factor on the rate; 2.0 lets the state change its sign (OLMo Hybrid)."""
    gate: Literal["silu", "sigmoid"] = "silu"
    by_channel: bool = False
    """Whether each channel of the key decays by itself, dt_bias [heads * key_dim]."""
    decay_floor: float | None = None
    """The log decay is this number times a sigmoid; None: it has no lower bound."""
    decay_rank: int | None = None
    gate_rank: int | None = None
    """Inner size of projections of decays and gates that are products of two matrices."""


@dataclass(frozen=True, kw_only=True)
class Mamba1Spec:
    """Mamba-1: see `areal.models.blocks.mamba1`. Canonical names: z_proj, x_proj, conv, step_proj, b_proj, c_proj,
    dt_proj, dt_bias, A_log, D, o_proj; step_norm, b_norm, c_norm."""

    inner_size: int
    state_size: int
    step_rank: int
    kernel_size: int
    norm_eps: float | None = None
    """Of the norms of steps, B and C; None where there are none."""
    norm_weights: bool = False
    """Whether these norms scale."""
    bias: bool = False
    """Of the first projections and the last one."""
    conv_bias: bool = True
    conv_activation: str = "silu"


@dataclass(frozen=True, kw_only=True)
class Mamba2Spec:
    """Mamba-2: see `areal.models.blocks.mamba2`. Canonical names: z_proj, x_proj, b_proj, c_proj, dt_proj, x_conv,
    b_conv, c_conv, A_log, dt_bias, D, norm, o_proj."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel_size: int
    norm_eps: float | None = None
    """Of the norm of what is given; None where there is none."""
    norm_groups: int = 1
    """In how many groups that norm has its statistics."""
    norm_first: bool = False
    """Whether that norm comes before the gate."""
    bias: bool = False
    """Of the first projections."""
    output_bias: bool = False
    """Of o_proj."""
    conv_bias: bool = True
    conv_activation: str = "silu"
    step_limits: tuple[float, float] = (0.0, math.inf)
    """Bounds of the steps."""
    multipliers: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Of what z_proj, x_proj, b_proj, c_proj and dt_proj give (Falcon-H1)."""


@dataclass(frozen=True, kw_only=True)
class LightningSpec:
    """Lightning attention: see `areal.models.blocks.lightning`. Canonical names: q_proj, k_proj, v_proj, gate_proj,
    norm, o_proj, and the tables slope_rate, query_decay, key_decay, diagonal_decay."""

    num_heads: int
    head_dim: int
    num_layers: int
    """Of the whole model, which slopes depend on."""
    table_size: int
    """Tokens in the tables."""
    norm_eps: float
    activation: str = "silu"
    """Of queries, keys and values."""


@dataclass(frozen=True, kw_only=True)
class RGLRUSpec:
    """A gated linear recurrent unit: see `areal.models.blocks.rg_lru`. Canonical names: gate_proj, x_proj, conv,
    input_gate, decay_gate, decay, o_proj."""

    width: int
    """Channels."""
    num_blocks: int
    """Of the matrices of both gates."""
    kernel_size: int
    activation: str
    """Of what the output is multiplied with."""
    bias: bool = True
    """Of the first projections."""
    output_bias: bool = True
    """Of o_proj."""
    conv_bias: bool = True


Stateful = ShortConvolutionSpec | GatedDeltaSpec | LightningSpec | Mamba1Spec | Mamba2Spec | RGLRUSpec
"""A mixer that sees earlier tokens through a state of fixed size: without rotation, window or chunks."""

Mixer = AttentionSpec | LatentAttentionSpec | Stateful
"""How the tokens of a document are mixed in a layer. Every mixer is called `self_attn` in its block, so that blocks,
adapters and splits are the same for all families."""

STATEFUL: Final = (ShortConvolutionSpec, GatedDeltaSpec, LightningSpec, Mamba1Spec, Mamba2Spec, RGLRUSpec)
"""All kinds of `Stateful`."""

PLACES: Final[dict[type, str]] = {
    GatedDeltaSpec: "delta",
    LightningSpec: "lightning",
    Mamba1Spec: "mamba1",
    Mamba2Spec: "mamba",
    RGLRUSpec: "rglru",
    ShortConvolutionSpec: "convolution",
}
"""Mixer with a state to what rows of an adapter's table call it in place of `self_attn`."""


@dataclass(frozen=True, kw_only=True)
class MlpSpec:
    """A feed-forward layer. Canonical names: gate_proj, up_proj, down_proj when gated, else up_proj, down_proj."""

    gated: bool
    activation: str
    """Name in `areal.models.blocks.mlp`. One with parameters has the canonical names activation.*."""
    intermediate_size: int
    bias: bool = False
    """Of gate and up."""
    output_bias: bool = False
    clamp: float | None = None
    """gpt-oss: gate is clamped from above, up to [-clamp, clamp]."""
    up_offset: float = 0.0
    """Added to up before the product; 1.0 in gpt-oss."""
    inner_norm: NormSpec | None = None
    """Of what the last matrix reads (BitNet); experts have none. Canonical name: inner_norm."""
    multipliers: tuple[float, float] = (1.0, 1.0)
    """Of what gate and down give (Falcon-H1); only where there is a gate, and not of experts."""


@dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """Which experts a token uses and with which weights. Canonical names: weight [experts, hidden], bias,
    selection_bias [experts]."""

    num_experts: int
    top_k: int
    score: Literal["softmax", "sigmoid", "sparse_mixer"]
    order: Literal["score_first", "select_first"]
    """"select_first": the top-k logits are chosen and only those are scored."""
    jitter: float = 0.0
    """Of `areal.models.blocks.moe.sparse_mixer`, which chooses and weighs in one."""
    selection_bias: bool = False
    """Added to scores for the choice only."""
    bias: bool = False
    """Bias of the linear layer."""
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2_sum"] = "top2_sum"
    """How a group of experts is judged; only the best `top_groups` take part."""
    normalize: bool = False
    """Rescale the chosen weights to sum to 1."""
    scale: float = 1.0
    """Factor on the weights, after normalising."""


@dataclass(frozen=True, kw_only=True)
class MoeSpec:
    """Experts in place of a feed-forward layer. Canonical names: router.*, experts.{gate,up,down}_proj
    [experts, out, in] and experts.{gate,up,down}_bias [experts, out], shared_experts.*, shared_gate.weight."""

    router: RouterSpec
    experts: MlpSpec
    shared: MlpSpec | None = None
    """One feed-forward layer for all tokens, added to the experts' output."""
    shared_gate: bool = False
    """Its output is multiplied by sigmoid(shared_gate(x))."""
    shared_scale: float = 1.0
    """Its output is multiplied by this number."""
    weigh_inputs: bool = False
    """Routing weights multiply what experts get, not what they give (Llama 4)."""


BlockKind = Literal[
    "pre", "post", "sandwich", "parallel", "parallel_two_norms", "post_residual", "one_part", "normed_stream"
]
"""How norms, attention and feed-forward are wired, with r = residual multiplier and canonical norm names:

pre                 h = x + r attn(input_layernorm(x));
                    h + r post_feedforward_layernorm(mlp(post_attention_layernorm(h)))
post                h = x + r post_attention_layernorm(attn(x));  h + r post_feedforward_layernorm(mlp(h))
sandwich            h = x + r post_attention_layernorm(attn(input_layernorm(x)));
                    h + r post_feedforward_layernorm(mlp(pre_feedforward_layernorm(h)))
parallel            n = input_layernorm(x);  x + r attn(n) + r mlp(n)
parallel_two_norms  x + r attn(input_layernorm(x)) + r mlp(post_attention_layernorm(x))
post_residual       h = input_layernorm(x + attn(x));  post_attention_layernorm(h + mlp(h))
one_part            x + r part(input_layernorm(x)), the part being attn or mlp
normed_stream       n = input_layernorm(x);  h = a n + b attn(n);
                    m = post_attention_layernorm(h);  c m + d mlp(m), with a to d in `StreamFactorsSpec`
"""


class BlockRow(NamedTuple):
    """One kind of block, in the only table of them."""

    name: str
    """Class of `areal.models.blocks.block`."""
    children: tuple[str, ...]
    """Keywords of the class, in the order in which the parts are applied."""
    wiring: str
    """Where the norms are, as a report says it."""
    words: str
    """The blocks in the sentence on a family."""


BLOCKS: Final[dict[BlockKind, BlockRow]] = {
    "pre": BlockRow(
        "PreNormBlock",
        ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
        "norms before each sub-layer",
        "pre-norm blocks",
    ),
    "post": BlockRow(
        "PostNormBlock",
        ("self_attn", "post_attention_layernorm", "mlp", "post_feedforward_layernorm"),
        "norms after each sub-layer",
        "blocks with norms behind their layers",
    ),
    "sandwich": BlockRow(
        "SandwichBlock",
        (
            *("input_layernorm", "self_attn", "post_attention_layernorm"),
            *("pre_feedforward_layernorm", "mlp", "post_feedforward_layernorm"),
        ),
        "norms before and after each sub-layer",
        "blocks with norms around their layers",
    ),
    "parallel": BlockRow(
        "ParallelBlock",
        ("input_layernorm", "self_attn", "mlp"),
        "attention and feed-forward side by side",
        "parallel blocks",
    ),
    "parallel_two_norms": BlockRow(
        "ParallelBlock",
        ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
        "attention and feed-forward side by side, each with its own norm",
        "parallel blocks with a norm for each layer",
    ),
    "post_residual": BlockRow(
        "PostResidualBlock",
        ("self_attn", "input_layernorm", "mlp", "post_attention_layernorm"),
        "norms on the residual stream",
        "post-norm blocks",
    ),
    "one_part": BlockRow(
        "OnePartBlock",
        ("input_layernorm", "self_attn", "mlp"),
        "one part behind a norm in each layer",
        "blocks of one part each",
    ),
    "normed_stream": BlockRow(
        "NormedStreamBlock",
        ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
        "norms in the residual stream, before each sub-layer",
        "blocks with norms in the residual stream",
    ),
}

BLOCK_NORMS: Final[dict[BlockKind, tuple[str, ...]]] = {
    kind: tuple(child for child in row.children if child not in ("self_attn", "mlp")) for kind, row in BLOCKS.items()
}
"""Canonical names of the norms of each kind of block, in the order in which they are applied."""

OPTIONAL_NORMS: Final[dict[BlockKind, frozenset[str]]] = {"pre": frozenset({"input_layernorm"})}
"""Of these, those that a layer may lack."""

EXTRA_NORMS: Final[dict[BlockKind, tuple[str, ...]]] = {"pre": ("post_feedforward_layernorm",)}
"""Norms beside these that a layer may have, and most have not."""


@dataclass(frozen=True, kw_only=True)
class BesideSpec:
    """A second mixer, which reads the same norm as the attention of a "pre" block; what both give is added (Falcon-H1).
    Canonical name: beside.*"""

    mixer: Stateful
    input_multiplier: float = 1.0
    output_multiplier: float = 1.0
    """Of what the mixer reads, and of what it gives."""
    attention_input_multiplier: float = 1.0
    attention_output_multiplier: float = 1.0
    """The same, of the attention."""


@dataclass(frozen=True, kw_only=True)
class StreamFactorsSpec:
    """What the two sums of a "normed_stream" block multiply."""

    attention_stream: float = 1.0
    attention_branch: float = 1.0
    mlp_stream: float = 1.0
    mlp_branch: float = 1.0


@dataclass(frozen=True, kw_only=True)
class ExpertsBesideSpec:
    """Experts beside the feed-forward layer of a "sandwich" block: see `areal.models.blocks.experts_beside`, which has
    the formula. Canonical names below experts_beside: router.weight, router_norm.*, expert_scale [experts],
    experts.* as of `MoeSpec`, mlp_norm.*, input_norm.*, output_norm.*"""

    router: RouterSpec
    experts: MlpSpec
    router_norm: NormSpec
    router_multiplier: float
    mlp_norm: NormSpec
    input_norm: NormSpec
    output_norm: NormSpec


@dataclass(frozen=True, kw_only=True)
class LayerInputSpec:
    """How a "sandwich" block adds what it gets of its tokens: see `areal.models.blocks.layer_embeddings.LayerInput`.
    Canonical names below layer_input: gate.weight, projection.weight, norm.*"""

    size: int
    """As in `LayerEmbeddingsSpec`."""
    activation: str
    """Name in `areal.models.blocks.mlp`."""
    norm: NormSpec
    """Of what is added."""


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One block. Canonical names: layers.N.{self_attn, mlp, norms of the block kind}.*"""

    block: BlockKind
    norms: dict[str, NormSpec]
    """Canonical norm name to its spec, exactly those of the block kind; of a "pre" block, the input_layernorm may be
    missing (ModernBERT norms the embeddings in place of the first layer's), and the post_feedforward_layernorm usually
    is (A.X K1 norms what experts give)."""
    attention: Mixer | None
    """The mixer, softmax attention or another; None in layers of one part that is a feed-forward layer."""
    feed_forward: MlpSpec | MoeSpec | None
    """None in layers of one part that is a mixer."""
    residual_multiplier: float = 1.0
    output_scale: bool = False
    """Whether what a "sandwich" block gives is multiplied by a stored number, which is not trained. Canonical name:
    output_scale [1]."""
    counted_sums: bool = False
    """Whether the sums of a "sandwich" block are weighted by how many there were, those of layer n being number 2 n + 2
    and 2 n + 3: see `areal.models.blocks.block` (Beam)."""
    experts_beside: ExpertsBesideSpec | None = None
    layer_input: LayerInputSpec | None = None
    """In all layers where the model has `layer_embeddings`, else in none."""
    rotary: int | None = None
    """Index into `ArchitectureSpec.rotaries`; None: no rotation in this layer."""
    window: int | None = None
    """A token sees itself and window - 1 tokens before it; None: all."""
    chunk: int | None = None
    """A token sees only tokens of its own chunk of this many positions; None: all."""
    beside: BesideSpec | None = None
    """A mixer with a state beside the attention."""
    factors: StreamFactorsSpec | None = None
    """Of "normed_stream" blocks, and no others."""


@dataclass(frozen=True, kw_only=True)
class PositionSpec:
    """Absolute positions added to token embeddings. Canonical name: embed_positions.weight when learned."""

    kind: Literal["learned", "sinusoidal"]
    num_positions: int
    offset: int = 0
    """Row of position 0 (2 in OPT)."""
    interleaved: bool = False
    """Sinusoidal: sine and cosine alternate instead of standing in halves."""
    endpoint: bool = False
    """Sinusoidal: the last frequency is 1/10000 itself (tensor2tensor, XGLM) instead of one step before it."""


@dataclass(frozen=True, kw_only=True)
class LayerEmbeddingsSpec:
    """What each layer gets of the tokens beside the hidden states: see
    `areal.models.blocks.layer_embeddings.LayerEmbeddings`, which has the formula. Canonical names below
    layer_embeddings: table.weight, projection.weight, norm.*"""

    vocab_size: int
    size: int
    """Numbers of a token in one layer."""
    multiplier: float
    """Of the table."""
    projection_multiplier: float
    """Of what is projected from the embeddings, before its norm."""
    sum_multiplier: float
    norm: NormSpec


@dataclass(frozen=True, kw_only=True)
class HeadTransformSpec:
    """norm(activation(dense(x))) between the final norm and the head. Canonical names: dense.{weight, bias}, norm.*"""

    activation: str
    """Name in `areal.models.blocks.mlp`."""
    norm: NormSpec
    bias: bool = False
    """Of the matrix."""


@dataclass(frozen=True, kw_only=True)
class ArchitectureSpec:
    """A whole decoder. Canonical names: embed_tokens.weight, embed_positions.weight, embed_norm.*, layer_embeddings.*,
    norm.*, head_transform.*, lm_head.{weight, bias} (no weight when tied)."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec | None
    tied: bool
    rotaries: tuple[RotarySpec, ...] = ()
    embedding_multiplier: float = 1.0
    positions: PositionSpec | None = None
    embedding_norm: NormSpec | None = None
    layer_embeddings: LayerEmbeddingsSpec | None = None
    head_transform: HeadTransformSpec | None = None
    head_bias: bool = False
    logit_multiplier: float = 1.0
    logit_softcap: float | None = None
    """After the multiplier."""
