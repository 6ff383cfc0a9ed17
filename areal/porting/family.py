"""What all configs of a model type compute: slots of a spec as expressions over config fields. The report's core.

A slot is a place in `ArchitectureSpec`, written "layer.attention.scale" ("layer" stands for every layer), e.g.

    {"hidden_size": Field("hidden_size"),
     "layer.attention.scale": Product(1.0, {"query_pre_attn_scalar": -0.5}),
     "layer.window": PerLayer(Listed("layer_types", ["sliding_attention"]), Field("sliding_window"), Constant(None))}

The slots of a report are the paths of all plain values in `ArchitectureSpec`, with "layer" for every layer, norms by
their canonical names, and these additions:

    num_layers              number of layers
    layer.rotary            a RotaryField, or Constant(None) for layers without rotation, or a choice between such; with
                            layer.rotary.dim and layer.rotary.interleaved (absent where no layer rotates)
    layer.attention         Constant("attention"), Constant("latent"), Constant("short_convolution"), or a choice
                            between them; below it the values of the first two. Those of mixers with a state have a
                            place of their own (layer.convolution.kernel_size), since a model has them beside others
    layer.feed_forward      Constant("mlp"), Constant("moe"), or a choice between them (usually PerLayer); below it the
                            values of MlpSpec (layer.feed_forward.intermediate_size) and of MoeSpec
                            (layer.feed_forward.router.top_k, layer.feed_forward.experts.intermediate_size)
    a record that may be missing (final_norm, embedding_norm, positions, layer.attention.query_norm,
    layer.feed_forward.shared, ...)
                            has a slot of its own path: Constant(True), Constant(False), or a choice (WhenEqual)

Values below a record that is never there are left out. A missing number (`softcap`, `window`) is Constant(None).
Everything here has a JSON form (`to_json`), which is all that the tools see.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

# ------------------------------------------------------------------------------------------------------ expressions


@dataclass(frozen=True)
class Constant:
    """The same for every config. JSON: {"kind": "constant", "value": ...}."""

    value: Any


@dataclass(frozen=True)
class Field:
    """The value of a field. JSON: {"kind": "field", "name": ...}. A dot reaches into an object: "ffn_config.top_k"."""

    name: str


@dataclass(frozen=True)
class Entry:
    """What a list over layers, of whole numbers, holds for a layer. JSON: {"kind": "entry", "field": "heads"}."""

    field: str


@dataclass(frozen=True)
class Product:
    """factor times fields to their powers. JSON: {"kind": "product", "factor": 1.0, "powers": {"head_dim": -0.5},
    "integer": false}; integer: rounded down, as `//` and `int()` do."""

    factor: float
    powers: tuple[tuple[str, float], ...]
    integer: bool = False


@dataclass(frozen=True)
class Sum:
    """Of expressions. JSON: {"kind": "sum", "terms": [...]}."""

    terms: tuple[Expression, ...]


@dataclass(frozen=True)
class Power:
    """factor times an expression to a power, for what is not a product of fields: (nope + rope) ** -0.5.
    JSON: {"kind": "power", "factor": 1.0, "base": ..., "exponent": -0.5}."""

    factor: float
    base: Expression
    exponent: float


@dataclass(frozen=True)
class RoundedUp:
    """An expression times a field, rounded down, and up again to a multiple of another field; scale "": not scaled.
    JSON: {"kind": "rounded_up", "base": ..., "scale": "multiplier", "multiple": "multiple_of"}."""

    base: Expression
    scale: str
    multiple: str


@dataclass(frozen=True)
class Narrowed:
    """An expression in bfloat16, where a factor is kept in it whatever the weights are in (RecurrentGemma).
    JSON: {"kind": "narrowed", "base": ...}."""

    base: Expression


@dataclass(frozen=True)
class Ceiling:
    """A field over a whole number, rounded up: ceil(hidden_size / 16). JSON: {"kind": "ceiling", "of": "hidden_size",
    "divisor": 16}."""

    of: str
    divisor: int


@dataclass(frozen=True)
class AllLayers:
    """The numbers of all layers, for a list of layers that is null. JSON: {"kind": "all_layers", "depth":
    "num_hidden_layers"}."""

    depth: str


@dataclass(frozen=True)
class Length:
    """The number of entries of a list: of the kinds of all layers, where no field counts them. JSON: {"kind": "length",
    "field": "layers_block_type"}."""

    field: str


@dataclass(frozen=True)
class Range:
    """Two bounds. JSON: {"kind": "range", "low": ..., "high": ...}."""

    low: Expression
    high: Expression


@dataclass(frozen=True)
class RotaryScaled:
    """An expression times `RotaryArgs.score_factor`: DeepSeek's attention sharpens its scores by the YaRN temperature
    of mscale_all_dim, squared. JSON: {"kind": "rotary_scaled", "base": ...}."""

    base: Expression


@dataclass(frozen=True)
class WhenNull:
    """The field, or something else where it is null or absent. JSON: {"kind": "when_null", "field", "otherwise"}."""

    field: str
    otherwise: Expression


@dataclass(frozen=True)
class WhenEqual:
    """Depends on the value of a field (a flag: True). JSON: {"kind": "when_equal", "field", "value", "then",
    "otherwise"}."""

    field: str
    value: Any
    then: Expression
    otherwise: Expression


@dataclass(frozen=True)
class PerLayer:
    """Depends on the layer. JSON: {"kind": "per_layer", "condition", "then", "otherwise"}."""

    condition: Condition
    then: Expression
    otherwise: Expression


@dataclass(frozen=True)
class RotaryField:
    """Everything of a `RotarySpec` but `dim` and `interleaved`, read as transformers reads rope_parameters and its
    older spellings. JSON: {"kind": "rotary", "layer_type": null, "types": ["default", "yarn"], "theta": null,
    "extra": [], "thetas": ""}.

    layer_type: the entry to take where rope_parameters has one per layer type. types: the rotary types that were
    proven; others are refused at load. theta: only for configs without rope_parameters (types is ("default",) then):
    where theta comes from, e.g. Field("rotary_base"). extra: numbers in rope_parameters that no rotary type has; where
    slots read them it is as Field("rope_parameters.NAME"). thetas: a list with the theta of each layer, in place of the
    one in rope_parameters; layers whose entry is 0 are not rotated. stretch: beside a theta of its own, by what
    positions are divided, Field("rope_stretch") say; null where they are not."""

    layer_type: str | None
    types: tuple[str, ...]
    theta: Expression | None = None
    extra: tuple[str, ...] = ()
    thetas: str = ""
    stretch: Expression | None = None


Arithmetic = Ceiling | Constant | Field | Narrowed | Product | Sum | Power | RoundedUp | RotaryScaled
Expression = Arithmetic | AllLayers | Entry | Length | Range | WhenNull | WhenEqual | PerLayer | RotaryField

# ------------------------------------------------------------------------------------------------ conditions on layers


@dataclass(frozen=True)
class Listed:
    """field[layer] is one of `values`. JSON: {"kind": "listed", "field", "values"}."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Cycled:
    """field[layer % its length] is one of `values`: a pattern that is repeated. JSON: {"kind": "cycled", "field",
    "values"}."""

    field: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class AtLeast:
    """layer >= field. JSON: {"kind": "at_least", "field"}."""

    field: str


@dataclass(frozen=True)
class AtMost:
    """layer <= field. JSON: {"kind": "at_most", "field"}."""

    field: str


@dataclass(frozen=True)
class FromEnd:
    """It is one of the last `field` layers of `depth`, another field; 1: it is the last one. JSON: {"kind": "from_end",
    "field", "depth"}."""

    field: str | Literal[1]
    depth: str


@dataclass(frozen=True)
class First:
    """It is the first layer. JSON: {"kind": "first"}."""


@dataclass(frozen=True)
class Multiple:
    """(layer + shift) is a multiple of `of`, a field or a number. JSON: {"kind": "multiple", "of", "shift"}."""

    of: str | int
    shift: int


@dataclass(frozen=True)
class Remainder:
    """layer % field `of` is field `to`. JSON: {"kind": "remainder", "of", "to"}."""

    of: str
    to: str


@dataclass(frozen=True)
class LayerInField:
    """layer is in the list `field`. JSON: {"kind": "member", "field"}."""

    field: str


@dataclass(frozen=True)
class FieldEquals:
    """field equals value, whatever the layer. JSON: {"kind": "flag", "field", "value"}."""

    field: str
    value: Any


@dataclass(frozen=True)
class Negation:
    """JSON: {"kind": "not", "condition"}."""

    condition: Condition


@dataclass(frozen=True)
class All:
    """Every condition holds. JSON: {"kind": "all", "conditions"}."""

    conditions: tuple[Condition, ...]


Condition = (
    Listed
    | Cycled
    | AtLeast
    | AtMost
    | FromEnd
    | First
    | Multiple
    | Remainder
    | LayerInField
    | FieldEquals
    | Negation
    | All
)

# ---------------------------------------------------------------------------------------------------- config accounting


@dataclass(frozen=True, kw_only=True)
class FieldUse:
    """What becomes of one config field."""

    name: str
    status: Literal["used", "fixed", "ignored"]
    """used: some slot's expression reads it. fixed: only `allowed` values are proven, others are refused at load; with
    a default_rule and nothing allowed, only what the rule says.
    ignored: cannot change a logit; `reason` says how that is known."""
    type: Literal["int", "float", "bool", "str", "list", "dict", "any"] = "any"
    nullable: bool = False
    required: bool = False
    """Whether a config.json without it is refused, since no default is known."""
    default: Any = None
    """What transformers takes when it is absent (an expression is in the slots as WhenNull)."""
    default_rule: Expression | None = None
    """How transformers fills it when it is null or absent with a default of null; a list of one entry per layer is
    evaluated for each layer. Expressions that cannot say WhenNull themselves (powers of a Product, conditions) mean the
    filled value. A slot that is this field alone says WhenNull with the same expression."""
    allowed: tuple[Any, ...] = ()
    """Values (for lists: entries) that were proven; () where expressions hold for any."""
    refused: tuple[Any, ...] = ()
    """Values of a used number that are known not to do what the expressions say: refused at load."""
    minimum: int | None = None
    """The smallest whole number that was proven, or that the class itself writes beside proven values of other fields,
    where that is below 1."""
    aliases: tuple[str, ...] = ()
    """Other spellings that transformers accepts (attribute_map)."""
    count: str = ""
    """Of a list over all layers: an undeclared field that says its length once more."""
    letters: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of a list over all layers: an undeclared field that spells it with one letter for each entry, by its name."""
    layered: dict[str, str] = field(default_factory=dict)
    """Of a field that only layers of one kind have in place of another field, and that `per_layer_config` says too:
    "attribute", the other field; "kinds", the list over layers, and "kind", its entry; "flag", a field that has to be
    true for it, or ""."""
    words: dict[str, str] = field(default_factory=dict)
    """Of a list of texts: older words that the class takes for those of today."""
    placeholder: str = ""
    """Of a number: the text that means that it is absent ("auto")."""
    reason: str = ""
    example: Any = None
    """A value that was proven."""
    rotated: tuple[str, ...] = ()
    """For rope_parameters: an undeclared field for the number of rotated dimensions, and the field that it is a part
    of. The class makes partial_rotary_factor of both where that is not said."""
    unread: tuple[str, ...] = ()
    """For rope_parameters: older spellings that the class overlooks in configs without it: rope_theta alone,
    rope_scaling, rope_theta beside that ("rope_scaling+rope_theta"); or one that it writes beside it and that does not
    count ("rope_parameters+rope_theta")."""


# ------------------------------------------------------------------------------------------------------- names on disk


@dataclass(frozen=True, kw_only=True)
class LayoutEntry:
    """One row of the adapter's table; `*` in names stands for the layer number.

    kind, with `ours` (canonical module or parameter names) and `on_disk`:
      renamed            one module or parameter, same tensors (".weight" and ".bias" follow)
      transposed         the matrix is stored [in, out] (the bias follows unchanged)
      query_key_value    ours = (q_proj, k_proj, v_proj) stored as one matrix; arrangement:
                         "concat"     [q; k; v]
                         "per_head"   for every head: its q, k, v rows (query heads = key heads)
                         "per_group"  for every kv head: its query heads' rows, then k, then v
                         others in `areal.models.adapter.QueryKeyValue`; `ours` may be in another order, or some
                         of the three, or query and gate
      rows               ours = modules stacked along dimension 0 in one matrix; arrangement "concat", "interleaved" or
                         "per_key_head"
      experts            ours = one or two (gate, up) stacked parameters; on_disk has {expert}: one matrix per expert
      stacked_experts    ours = one or two (gate, up) stacked parameters, on_disk one tensor [experts, ...];
                         arrangement "concat" or "interleaved" for two, "flattened" for [experts * out, in]
      filters            ours = convolutions whose filters are stacked in one tensor, [channels, 1, taps] on disk
      filter_pieces      the same in several tensors, cut anywhere, with names between braces in on_disk: {q,k,v}_conv
      reshaped           the same numbers, on disk in `shape` (-1: what is left)
      swapped_halves     of every head, the second half of the features is stored before the first
    transposed: matrices are stored [in, out]. in_memory: the name transformers 5 holds it under in `state_dict()` when
    that layout differs; accepted on reading (entry of its own kind in `alternative`)."""

    kind: Literal[
        "renamed",
        "transposed",
        "query_key_value",
        "rows",
        "experts",
        "stacked_experts",
        "filters",
        "filter_pieces",
        "reshaped",
        "swapped_halves",
    ]
    ours: tuple[str, ...]
    on_disk: str
    arrangement: str = ""
    transposed: bool = False
    alternative: LayoutEntry | None = None
    shape: tuple[int, ...] = ()
    implied: bool = False
    """Said already by the row of a branch, or usual ("model." and our name): listed, so that the layout names every
    module, but no row of the adapter's table."""


# -------------------------------------------------------------------------------------------------------------- report


@dataclass(frozen=True, kw_only=True)
class ProvenVariant:
    """A config that differs from the tiny one, proven by parity: the generated test runs it again."""

    name: str
    overrides: dict[str, Any]
    parity: float
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class ArchitectureReport:
    """The result of an analysis. `status`: "proven", or "unsupported" with `missing`, or "static" (source not run)."""

    status: Literal["proven", "unsupported", "static", "unproven"]
    model_type: str
    architecture: str
    """Class name in transformers, "LlamaForCausalLM"."""
    source: str
    """"transformers 5.23.0", or the folder."""
    title: str = ""
    """One sentence on what the family is, from its features."""
    tiny_config: dict[str, Any] = field(default_factory=dict)
    """A whole config.json of the tiny instance."""
    spec: dict[str, Any] = field(default_factory=dict)
    """`ArchitectureSpec` of the tiny instance as nested JSON."""
    slots: dict[str, Any] = field(default_factory=dict)
    """Slot to the JSON of its expression."""
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The kinds of block that `slots["layer.block"]` can be: {"pre": {"class": "PreNormBlock", "module":
    "areal.models.blocks.block", "children": ["input_layernorm", "self_attn", ...]}}. Children are keywords of the
    class, in the order in which they are applied."""
    fields: list[dict[str, Any]] = field(default_factory=list)
    """`FieldUse` of every field of the config class, as JSON."""
    layout: list[dict[str, Any]] = field(default_factory=list)
    """`LayoutEntry`s as JSON, sorted; modules whose name on disk is "model." + ours (or equal, for lm_head) included.
    """
    skipped: list[str] = field(default_factory=list)
    """Regular expressions of names on disk that hold nothing to load."""
    variants: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Unsupported features: {"feature", "where", "detail"}."""
    nearest: list[dict[str, Any]] = field(default_factory=list)
    """For unknown types: [{"model_type", "differences": [{"field", "theirs", "ours"}]}]."""
    reference: dict[str, Any] = field(default_factory=dict)
    """For types that the installed transformers lacks: what a test compares with instead of the live model:
    {"shapes": {name on disk: [..]}, "seed", "tokens": [[..]], "logits": [[[..]]]}."""
    code: dict[str, Any] = field(default_factory=dict)
    """For modeling code beside a checkpoint: {"auto_map": {...} of its config.json, "files": {name: SHA-256}}."""
    seconds: dict[str, float] = field(default_factory=dict)
