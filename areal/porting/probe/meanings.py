"""What names of config fields usually mean, as values for a tiny config. Hints only: building and running decide."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from areal.models.config_fields import TRAINING_NOISE
from areal.porting.outlines import outlined
from areal.porting.probe.instance import construct, read
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from areal.porting.probe.subject import Subject


# Sizes of different roles differ, and so do their usual products (4 heads x 24, 2 x 40), so that shapes tell fields.
VOCABULARY = 136
HIDDEN = 64
LAYERS = 4
WINDOW = 8
EPSILON = 2e-3
SMALLEST_STEP = 0.3
"""Bounds of the steps of a recurrence: some are smaller without one."""
SMALLEST_EPSILON, LARGEST_EPSILON = 1e-8, 1e-4
"""Positive numbers between these are what norms add to variances, whatever they are called. Smaller ones guard sums
against being zero: made visible, they would show in few tokens only."""

INTEGERS: tuple[tuple[str, int], ...] = (
    (r"(nextn_predict|mtp).*", 0),
    (r".*multiple_of.*", 12),
    (r".*_ff_dim", 88),
    (r"hidden_size_per_layer.*", 28),
    (r".*conv.*(kernel|width|cache).*|.*d_conv", -1),
    (r"(mamba|ssm)_(d|head)_(head|dim)", 32),
    (r"(mamba|ssm)_(n|num)_groups", 2),
    (r"(mamba|ssm)_(d_state|state_size|state_dim)", 12),
    (r"linear_(num_|n_)?(k|key)_heads|linear_(num_|n_)key_value_heads", 2),
    (r"linear_(num_|n_)?(v|value)_heads", 4),
    (r"linear_(k|key)_head_dim", 12),
    (r"linear_(v|value)_head_dim", 20),
    (r".*(type|language|audio|hash|ngram|per_layer|pronunciation|shape).*vocab.*", 16),
    (r"(.*_)?(vocab(ulary)?(_size)?(_per_layer_input)?|n_vocab|vocab_dim|(num|n)_tokens|token_count)", VOCABULARY),
    (r"index(er)?_(top_?k|num_tokens|k|budget)", 8),
    (r"index(er)?_(n_|num_)?heads", 16),
    (r"index(er)?_head_dim", 12),
    (r".*original_max_position.*", 16),
    (r".*(max_position|n_positions|n_ctx|max_seq|context_length|model_max_length|max_len|max_ctx).*", 64),
    (r".*rope.*head.*|.*rotary_head.*|rotary_dim|rotary_ndims|rope_dim|rotary_dims?", 8),
    (r".*nope.*(head|dim).*", 16),
    (r"(v|value)(_head)?_(dim|size|channels)", 20),
    (r"(qk|q|query|key)_head_dim", 24),
    (r"(q|query)_(lora|latent|compress\w*|down)?_?(rank|dim|size|lora)", 28),
    (r"(kv|key_value)_(lora|latent|compress\w*|down)?_?(rank|dim|size|lora)", 36),
    (r".*(lora_rank|low_?rank|_rank)", 12),
    (r".*(first|leading|initial|num|n).*dense.*(replace|layers?|blocks?|steps?)?|first_k_dense.*|dense_prefix.*", 1),
    (r".*moe_layer_(start|end|interval|freq).*|decoder_sparse_step|moe_layer_freq", -1),
    (r".*layer_offset", 1),
    (r".*(shared|common|always).*(expert)?.*(intermediate|ffn|hidden|inner|mlp|dim|size|width).*", 56),
    (r".*(n|num|count)_?.*(shared|common|always).*|.*shared_experts?", 2),
    (
        r"(top_?k|topk|num|n)_?(limited_|selected_|active_|chosen_)?(expert_)?groups?(_topk|_top_k|_active|_per_tok)?",
        -2,
    ),
    (r".*(top_?k|active|chosen|selected).*groups?.*|.*groups?_(top_?k|active|chosen|selected|kept).*", 1),
    (r".*(expert|moe|routing|router).*groups?.*|n_groups?", 4),
    (
        r".*(experts?_per|top_?k|(active|chosen|selected|used)_experts?|experts?_(active|used|chosen|selected)|moe_k|num_selected|experts_top).*",
        2,
    ),
    (r"(.*_)?(moe|experts?)_.*(intermediate|ffn|hidden|inner|mlp|dim|size|width).*", 40),
    (r".*(num|n|count|local|routed|total).*experts?.*|experts?(_(count|total|number|num))?", 8),
    (r".*dense_intermediate.*|intermediate_size_mlp", 88),
    (
        r".*(intermediate|ffn|n_inner|feed_?forward|dff|d_ff|dim_ff|mlp_(dim|size|hidden|width|inner)|inner_(dim|size)).*",
        112,
    ),
    (
        r".*(kv|key|key_value|value)_?(n_)?(heads?|groups?)|.*heads?_(kv|key|k|key_value)|num_query_groups|.*query_groups?",
        2,
    ),
    (r".*(head_?(dim|size|width)|dim_head|d_head|kv_channels|per_head).*", 24),
    (r".*heads?.*", 4),
    (r".*(max_window_layers)", 2),
    (r".*(every|interval|period|pattern|each).*", 2),
    (r".*(sliding|window|local_attention|attention_chunk|chunk_size|span|floor_scale).*", WINDOW),
    (r"(num_|n_|total_|decoder_)?(hidden_)?(layers?|blocks?|depth)(_count|_num)?", LAYERS),
    (r"(.*_)?(hidden_size|n_embd|d_model|emb_dim|embed_dim|embedding_(dim|size)|model_dim|width|dim)", HIDDEN),
    (r"word_embed_proj_dim", HIDDEN),
    (r"query_pre_attn_scalar", 20),
    (r".*conv.*states?.*", -1),
    (r".*(theta|seed|base|tp|bos|eos|pad|token_id|index|idx|iters|cutoff|id)(_\w+)?", -1),
)
"""Pattern of a whole name to a value; the first that fits counts. -1: leave as it is. -2: 4, or 2 with "top"."""

FLOATS: tuple[tuple[str, float], ...] = (
    (TRAINING_NOISE.pattern, 0.0),
    (r"att\w*_.*cap.*", 4.0),
    (r".*(final|logit|output|head).*(soft_?cap|cap).*", 6.0),
    (r".*soft_?cap.*", 4.0),
    (r".*(swiglu|glu|gate)_(limit|clamp).*", 1.0),
    (r".*(clip_qkv|qkv_clip|clamp_qkv).*", 1.5),
    (r".*(eps|epsilon)(_\w+)?", EPSILON),
    (r"time_step_min|(mamba_)?dt_min", SMALLEST_STEP),
    (r"embed\w*_(multiplier|scale|factor)|emb_scale", 6.0),
    (r"residual_(multiplier|scale|factor)", 0.4),
    (r".*(ffn?|mlp|hidden)_dim_multiplier", 1.25),
    (r"attention_(multiplier|scale)", 0.2),
    (r"logits?_(scaling|divisor)", 4.0),
    (r"logits?_(scale|multiplier)|lm_head_multiplier", 0.25),
    (r"(moe_)?(rout\w+)_.*(scal\w+|factor|multiplier)", 1.5),
)
"""As `INTEGERS`, for fields whose default is a float; a value of 0.0 that switches something off is left."""

LARGEST_THETA = 5e6
"""With a larger base, the slowest pairs of a head do not visibly turn within a short sequence."""

NEUTRAL_FACTOR = re.compile(r".*(multiplier|scal(e|ing|ar)|gain|strength|temperature)(_\w+)?")
"""Factors of 1.0 cannot be seen: they get another value."""

FLAGS: tuple[tuple[str, bool], ...] = (
    (r"use_sliding_window", True),
    (r"use_(qk|query_key)_norm|qk_layernorm|qk_norm", True),
    (r"mup_enabled", True),
    (r"use_double_wide_mlp", True),
    (r"use_cache|output_router_logits", False),
)
"""Switches of features that hide other fields while they are off."""

NULLABLE = re.compile(
    r".*(heads?|head_?dim|dim_head|kv_channels|n_inner|intermediate\w*|ffn\w*|experts?(_per\w*)?|top_?k\w*|n_group|group"
    r"|sliding_window|window_size)"
)
"""Sizes that a class computes when they are null, and windows that are off: they get a value of their own."""

TOKENS = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}


def meaning(names: tuple[str, ...], default: Any) -> Any:
    """Return the hinted value of a field with these names (its own first, then aliases), or `default` where nothing is
    known.

    Only values of the default's own kind are hinted: a switch that is null or a list stays what it is.
    """
    for name in names:
        plain = name.lower().strip("_")
        if plain.endswith(("token_id", "token_index")):
            return None if default is None else TOKENS.get(plain, 3)
        found = _hint(plain, default)
        if found is not None:
            return found
    return default


def known(names: tuple[str, ...], default: Any) -> bool:
    """Return whether the vocabulary says anything about the field, be it to leave it."""
    table: tuple[tuple[str, Any], ...] = FLOATS if isinstance(default, float) else INTEGERS
    return any(re.fullmatch(pattern, name.lower().strip("_")) for name in names for pattern, _ in table)


def hinted(name: str) -> int:
    """Return the whole number that a name asks for where its feature is on; 0 where the vocabulary says nothing or to
    leave it."""
    return max(0, _first(INTEGERS, name.lower().strip("_")) or 0)


def _hint(name: str, default: Any) -> Any:
    if isinstance(default, bool):
        return _first(FLAGS, name)
    if isinstance(default, int | float) and "theta" in name and default > LARGEST_THETA:
        return type(default)(LARGEST_THETA / 10)
    if isinstance(default, int):
        return _integer(name, default)
    if isinstance(default, float):
        value: float | None = _first(FLOATS, name)
        if value is None and default == 1.0 and NEUTRAL_FACTOR.fullmatch(name):
            return 1.5
        if value is None and SMALLEST_EPSILON <= default <= LARGEST_EPSILON:
            return EPSILON
        if value == EPSILON and default > 1e-2:
            return None
        return None if default == 0.0 and value else value
    return _integer(name, 1) if default is None and NULLABLE.fullmatch(name) else None


def _integer(name: str, default: int) -> int | None:
    value = _first(INTEGERS, name)
    if value == -2:
        value = 1 if "top" in name or "limited" in name or "active" in name else 4
    switched_off = default == 0 and value not in (0, None)
    return None if value in (-1, None) or switched_off else int(value)


def _first(table: tuple[tuple[str, Any], ...], name: str) -> Any:
    return next((value for pattern, value in table if re.fullmatch(pattern, name)), None)


# --------------------------------------------------------------------------------------------------------------- repair

# Turns a config that a class refuses into one that it takes, by changing as few fields as possible.


MAX_ROUNDS = 6
MAX_CHECKS = 250
"""Of fields that a complaint names, and as many of others. A count and no clock, so that what is found depends on
neither the machine nor what else it does."""


class Repair:
    """A search over single changes; a change that leads to another complaint is kept, and the search goes on."""

    def __init__(
        self,
        check: Callable[[dict[str, Any]], str | None],
        *,
        original: Mapping[str, Any],
        kept: frozenset[str] = frozenset(),
    ) -> None:
        """check: the complaint about a config, or None. original: what fields were before they were shrunk.
        kept: fields that must not change."""
        self.check = check
        self.original = original
        self.kept = kept
        self.checks = {"named": 0, "other": 0}

    def run(self, starts: list[dict[str, Any]]) -> dict[str, Any] | str:
        """Return a config that passes, or the complaint about the first of `starts`: those about what was tried in its
        place say nothing of the source. The search goes on from the last."""
        seen: set[str] = set()
        first: str | None = None
        for start in starts:
            config, complaint = start, self.check(start)
            first = first or complaint
            seen.add(_plain(complaint))
            if complaint is None:
                return config
        for _ in range(MAX_ROUNDS):
            if complaint is None:
                return config
            step = self._step(config, complaint, seen)
            if step is None:
                break
            config, complaint = step
            seen.add(_plain(complaint))
        return config if complaint is None else first or complaint

    def _step(self, config: dict[str, Any], complaint: str, seen: set[str]) -> tuple[dict[str, Any], str | None] | None:
        """Return the first change that satisfies the class, else the first that changes the complaint: one that gives a
        field a value rather than null, which what belongs to the field may miss next."""
        for changed in _with_missing({**self.original, **config}, config, complaint):
            answer = self.check(changed)
            if answer is None or _plain(answer) not in seen:  # nothing else can help
                return changed, answer
        progress: tuple[dict[str, Any], str | None] | None = None
        emptied, named = progress, self._named(config, complaint)
        for changed in self._changes(config, complaint):
            kind = "named" if any(changed.get(name) != config.get(name) for name in named) else "other"
            if self.checks[kind] >= MAX_CHECKS:
                continue
            self.checks[kind] += 1
            answer = self.check(changed)
            if answer is None:
                return changed, None
            if _plain(answer) in seen:
                continue
            nulls = [name for name, value in changed.items() if value is None and config.get(name) is not None]
            if not nulls:
                progress = progress or (changed, answer)
            else:
                emptied = emptied or (changed, answer)
        return progress or emptied

    def _changes(self, config: dict[str, Any], complaint: str) -> Iterator[dict[str, Any]]:
        fields = [name for name in {**self.original, **config} if name not in self.kept]
        named = self._named(config, complaint)
        unset = [name for name in named if {**self.original, **config}[name] is None]
        if len(unset) > 1:  # fields that make sense only together
            yield {**config, **{name: meaning((name,), 1) for name in unset}}
            yield {**config, **{name: max(2, meaning((name,), 2)) for name in unset}}
        yield from _with_values_for_null({**self.original, **config}, config)
        shrunk = [name for name in config if name in fields and name not in named]
        for name in (*named, *reversed(shrunk)):
            for value in self._alternatives(name, config):
                if value is None and name in config and config[name] is None:
                    continue
                yield {**config, name: value}
        for name in (*named, *reversed(shrunk)):
            if name in config:
                yield {key: value for key, value in config.items() if key != name}

    def _named(self, config: Mapping[str, Any], complaint: str) -> list[str]:
        """Return the fields that a complaint names: their checks are counted apart, whatever else was tried."""
        fields = [name for name in {**self.original, **config} if name not in self.kept]
        return [name for name in fields if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", complaint)]

    def _alternatives(self, name: str, config: Mapping[str, Any]) -> list[Any]:
        """Return the values to try for a field: what it was, then small ones of its kind."""
        before = self.original.get(name)
        now = config.get(name, before)
        options: list[Any] = [] if type(before) is int and before > 1024 else [before]
        if isinstance(now, bool):
            options += [not now]
        elif isinstance(now, int) or (now is None and isinstance(before, int)):
            options += [4, 2, 8, 1, 16, 32, 64]
        elif now is None and before is None and hinted(name):
            options.append(hinted(name))
        elif isinstance(now, list) and now:
            options += [now * 2, now[: len(now) // 2]]
        return [value for place, value in enumerate(options) if value != now and value not in options[:place]]


def _with_missing(fields: Mapping[str, Any], config: dict[str, Any], complaint: str) -> Iterator[dict[str, Any]]:
    """Yield the configs with the attribute that a config object lacks: in the config, or in a config inside it."""
    found = re.search(r"Config\w*' object has no attribute '(\w+)'", complaint)
    if found is None:
        return
    name = found.group(1)
    value = 10000.0 if "theta" in name else meaning((name,), 1)
    yield {**config, name: value}
    for part, content in fields.items():
        if isinstance(content, dict):
            yield {**config, part: {**content, name: value}}


def _with_values_for_null(fields: Mapping[str, Any], config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the configs where one field that is null has a value: some classes cannot do without, whatever their
    defaults."""
    for name, value in fields.items():
        inner = value if isinstance(value, dict) else {}
        for part, current in (*inner.items(), (name, value)):
            hint = None if current is not None else meaning((str(part),), 1.0) or meaning((str(part),), 1)
            if hint in (None, 1, 1.0):
                continue
            yield {**config, name: {**inner, part: hint}} if part in inner else {**config, name: hint}


def _plain(complaint: str | None) -> str:
    """Return a complaint without its numbers: "16 is too small" after "8 is too small" is not progress."""
    return re.sub(r"\d+", "#", complaint or "")


# --------------------------------------------------------------------------------------------------------------- shapes

# What config fields with unknown names do to the shapes of a model: their meaning for a tiny config.


EXPERTS = 8
HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 24
SIZES = (112, 40, 56, 28, 36, 20, 88)
"""For sizes of no known role, in the order of the fields, largest original first."""
MANY_HEADS = 64
LONG = 256

Shapes = dict[str, tuple[int, ...]]


def sizes_by_shape(subject: Subject, fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return small values for the integer fields `names`, by what changes when each of them changes.

    The model is built without data, at its original size; a config that does not build at all gives nothing.
    """
    fields = dict(fields)
    before = _shapes(subject, fields)
    if before is None:
        return {}
    embedding, shapes = before
    found: dict[str, Any] = {}
    direct: list[str] = []
    counts: list[str] = []
    for name in sorted(names, key=lambda name: int(fields[name])):
        changed = _changed(subject, fields, name, shapes)
        value = int(fields[name])
        if changed is None:
            continue
        if not changed:
            # It changes no shape: long ones are windows, short ones are numbers of heads or of chosen experts.
            found[name] = WINDOW if value >= LONG else min(value, HEADS)
            continue
        role = _role(changed, shapes, embedding, value)
        if role is not None:
            found[name] = role
            fewer = _shapes(subject, {**fields, name: role}) if role == LAYERS else None
            if fewer is not None:  # the rest goes faster with few layers
                fields[name], shapes = role, fewer[1]
        else:
            sizes = [  # of the dimensions that changed, before they did
                old
                for key, shape in changed.items()
                if key in shapes and len(shape) == len(shapes[key])
                for old, new in zip(shapes[key], shape, strict=True)
                if old != new
            ]
            is_factor = all(size % value == 0 and size > value for size in sizes)
            (counts if is_factor else direct).append(name)
    # Of factors of sizes, many are a head's width, few are numbers of heads, fewer of key heads.
    most = max((int(fields[name]) for name in counts if int(fields[name]) < MANY_HEADS), default=0)
    for name in counts:
        value = int(fields[name])
        found[name] = HEAD_DIM if value >= MANY_HEADS else HEADS if value == most else KEY_HEADS
    ordered = sorted(direct, key=lambda name: -int(fields[name]))
    return found | {name: SIZES[place % len(SIZES)] for place, name in enumerate(ordered)}


def _role(changed: Shapes, before: Shapes, embedding: str, value: int) -> int | None:
    """Return a value for layers, experts, the vocabulary and the hidden size; None for other roles."""
    added = [name for name in changed if name not in before]
    if added:
        first = [re.search(r"\.(\d+)\.", name) for name in added]
        layers = {int(match.group(1)) for match in first if match}
        return LAYERS if layers and min(layers) >= value else EXPERTS
    stacked = [name for name, shape in changed.items() if len(shape) >= 3 and shape[0] != before[name][0]]
    if stacked and all(before[name][0] == value for name in stacked):
        return EXPERTS
    if embedding in changed:
        return VOCABULARY if changed[embedding][0] != before[embedding][0] else HIDDEN
    return None


def _changed(subject: Subject, fields: Mapping[str, Any], name: str, before: Shapes) -> Shapes | None:
    """Return the parameters that have another shape or are new when the field is larger; None when it does not
    build."""
    value = int(fields[name])
    for other in (2 * value, value // 2, value + 1):
        after = _shapes(subject, {**fields, name: other}) if other else None
        if after is not None:
            return {key: shape for key, shape in after[1].items() if before.get(key) != shape}
    return None


def _shapes(subject: Subject, config: dict[str, Any]) -> tuple[str, Shapes] | None:
    """Return the name of the embedding, and the shape of every parameter and buffer; None when the model does not
    build."""
    try:
        with outlined():
            model = construct(subject, read(subject, config))
    except SubjectError:
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict(keep_vars=True).items()}
    table = model.get_input_embeddings().weight
    embedding = next((name for name, tensor in model.named_parameters() if tensor is table), "")
    return embedding, shapes
