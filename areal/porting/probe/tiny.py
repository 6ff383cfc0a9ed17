"""A tiny config of any architecture that builds, runs, and lets every feature show in the logits.

Fields get values by what their names usually mean (`meanings`), large numbers that remain are shrunk, patterns over
layers are completed, and what the class then refuses is repaired field by field.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedConfig

from areal.porting.outlines import outlined
from areal.porting.probe.instance import build, construct, logits, make_tokens, read
from areal.porting.probe.layer_values import LAYERED, with_layer_values
from areal.porting.probe.meanings import HIDDEN, LAYERS, TOKENS, Repair, hinted, known, meaning, sizes_by_shape
from areal.porting.probe.questions import refuse_dependences
from areal.porting.probe.source import layer_kinds
from areal.porting.records import ArchitectureRefusedError, SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from areal.porting.probe.subject import Subject

    Works = Callable[[dict[str, Any]], bool]


SMALL = 16
LEFT_OUT = object()
MAX_PARAMETERS = 30_000_000
SEQUENCE = 24
COMMON = frozenset(PreTrainedConfig().to_dict()) - {*TOKENS, "tie_word_embeddings"}
"""Fields that every config has and no decoder computes with."""
USUAL_KINDS = ("full_attention",)
"""Kinds of layers to try beside one that fills a whole list."""
UNIMPORTANT = frozenset(
    {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "auto_map", "_attn_implementation"}
)


def tiny_config(subject: Subject) -> dict[str, Any]:
    """Return the content of a config.json for a tiny instance that builds and runs, whole: defaults are written out.

    Raises `SubjectError` when nothing small enough works, or when its logits depend on what a decoder's do not.
    """
    return complete(subject, {})


def complete(subject: Subject, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`kwargs` plus values for all other fields, shrunk. Fields of `kwargs` keep their values.

    Raises `SubjectError` when the result does not build or run, or when its logits depend on what a decoder's do not.

    Example: qwen2. Defaults such as hidden_size 4096 and num_hidden_layers 32 become 64 and 4 by the meaning of their
    names, layer_types gets both kinds, sliding_window becomes 8, rms_norm_eps 2e-3 so that a hard-coded epsilon shows.
    Sizes are distinct where they may be: 4 heads of 24 dimensions in a width of 64, so that head_dim and hidden_size /
    num_heads differ.
    """
    defaults = default_fields(subject)
    # Field to its other names, which often say more about what it means.
    aliases: dict[str, tuple[str, ...]] = {}
    for alias, name in (getattr(subject.config_class, "attribute_map", None) or {}).items():
        aliases[name] = (*aliases.get(name, ()), alias)
    names = {name: (name, *aliases.get(name, ())) for name in defaults}
    depths = (
        value
        for name, value in defaults.items()
        if type(value) is int
        and meaning(names[name], value) == LAYERS
        and re.search(r"layer|block|depth", " ".join(names[name]))
    )
    depth = next(depths, None)
    # Fields of the source's own config.json, but for lists over layers, which depend on other fields.
    skipped = COMMON | UNIMPORTANT | {"model_type", "architectures", LAYERED}
    own = (subject.raw_config or {}).items()
    chosen = {name: value for name, value in own if name not in skipped and not isinstance(value, list)}
    chosen |= _shrink(defaults, aliases, depth, given=frozenset(kwargs))
    # Large integers whose names say nothing.
    unknown = [
        name
        for name, value in defaults.items()
        if type(value) is int and value > 1 and not kwargs.keys() & {*names[name]} and not known(names[name], value)
    ]
    if unknown:
        chosen |= sizes_by_shape(subject, defaults, unknown)
    chosen |= kwargs
    chosen = _woken(subject, defaults, aliases, depth, chosen) | chosen
    chosen = _with_patterns(subject, defaults, chosen, depth, given=frozenset(kwargs))
    starts = _starts(subject, defaults, chosen, aliases, given=frozenset(kwargs))
    models = [
        name
        for name, value in defaults.items()
        if isinstance(value, dict) and {"hidden_size", "num_hidden_layers"} <= value.keys()
    ]
    if len(models) > 1:  # which have to fit each other: no change of one field makes what does not work so work
        complaint = check(subject, starts[0])
        if complaint is not None:
            detail = f"each of {', '.join(models)} is that of a whole model; {complaint}"
            raise ArchitectureRefusedError("several models in one", where=f"config.{models[0]}", detail=detail)
    repaired = Repair(lambda config: check(subject, config), original=defaults, kept=frozenset(kwargs)).run(starts)
    if isinstance(repaired, str):
        raise SubjectError(f"no tiny config of {subject.architecture} works: {repaired}")
    config = whole(subject, repaired)
    if check(subject, config) is not None:  # a class that does not read back its own output
        config = {**repaired, "model_type": subject.model_type, "architectures": [subject.architecture]}
    config = _with_all_kinds(subject, config, given=frozenset(kwargs))
    works, given = (lambda trial: check(subject, trial) is None), frozenset(kwargs)
    config = with_shared_layers(subject, config, given=given, works=works)
    config = crossed(config, given=given, works=works)
    config = with_parts(subject, config, defaults=defaults, given=given, works=works)
    config = with_listed_layers(subject, config, given=given, works=works)
    config = with_layer_values(subject, config, given=given, works=works)
    refuse_dependences(build(subject, config))
    return config


def with_fewer_parts(subject: Subject, config: dict[str, Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a completed config without parts that there are none of by default. kwargs: as `complete` got them."""
    return without_parts(config, defaults=default_fields(subject), given=frozenset(kwargs))


def default_fields(subject: Subject) -> dict[str, Any]:
    """Return every field with its value in the source's config.json, or its default."""
    fields: dict[str, Any] = dict(subject.raw_config or {})
    try:
        fields = read(subject, fields).to_dict() | fields
    except SubjectError:  # defaults that contradict each other
        declared = getattr(subject.config_class, "__dataclass_fields__", {})
        simple = {
            name: field.default for name, field in declared.items() if isinstance(field.default, (int, float, str))
        }
        fields = simple | fields
    return _without_common(fields)


def _without_common(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those of all configs, in configs inside the config as well."""
    return {
        name: _without_common(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in COMMON | UNIMPORTANT
    }


def whole(subject: Subject, config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with every field written out, as `save_pretrained` would."""
    content = read(subject, config).to_dict()
    kept = {name: value for name, value in content.items() if name not in COMMON | UNIMPORTANT}
    kept |= {name: value for name, value in config.items() if name not in kept and name not in UNIMPORTANT}
    return {**kept, "model_type": subject.model_type, "architectures": [subject.architecture]}


def check(subject: Subject, config: dict[str, Any]) -> str | None:
    """Return why an instance of the config cannot be used, or None."""
    try:
        hf_config = read(subject, config)
        complaint = _wrong_size(subject, hf_config)
        if complaint:
            return complaint
        instance = build(subject, config)
        found = logits(instance, make_tokens(instance, batch=2, length=SEQUENCE, seed=1))
    except SubjectError as error:
        return str(error)
    return None if bool(torch.isfinite(found).all()) else "logits are not finite"


def _wrong_size(subject: Subject, hf_config: Any) -> str | None:
    try:
        with outlined():
            model = construct(subject, hf_config)
    except SubjectError:  # not every class builds without data; the real attempt decides
        return None
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    empty = [name for name, size in sizes.items() if size == 0]
    if empty:
        return f"{empty[0]} is empty"
    size = sum(sizes.values())
    return f"{size:,} parameters are too many" if size > MAX_PARAMETERS else None


def _shrink(
    fields: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]], depth: int | None, *, given: frozenset[str]
) -> dict[str, Any]:
    """Return small values for all fields that need one; lists over layers come later."""
    chosen: dict[str, Any] = {}
    for name, default in fields.items():
        names = (name, *aliases.get(name, ()))
        if given & set(names) or isinstance(default, list):
            continue
        value = _small(default, names, depth)
        if value != default or type(value) is not type(default):
            chosen[name] = value
    return chosen


def _woken(
    subject: Subject,
    fields: Mapping[str, Any],
    aliases: Mapping[str, tuple[str, ...]],
    depth: int | None,
    chosen: dict[str, Any],
) -> dict[str, Any]:
    """Return small values for fields that the class keeps from view until a switch is on: a window of 4096
    tokens."""
    try:
        seen = read(subject, chosen).to_dict()
    except SubjectError:
        return {}
    asleep = [name for name, value in fields.items() if value in (None, 0) and value is not False]
    woken = {name: seen[name] for name in asleep if name not in chosen and type(seen.get(name)) is int}
    return _shrink({name: value for name, value in woken.items() if value}, aliases, depth, given=frozenset())


def _with_patterns(
    subject: Subject, fields: Mapping[str, Any], chosen: dict[str, Any], depth: int | None, *, given: frozenset[str]
) -> dict[str, Any]:
    """Add lists over layers where the class does not fill them, or fills them without every kind of layer."""
    lists = {name: value for name, value in fields.items() if isinstance(value, list) and name not in given}
    try:
        filled = read(subject, chosen).to_dict()
    except SubjectError:
        filled = {}
    added: dict[str, Any] = {}
    for name, values in lists.items():
        wanted = cut(values, depth)
        found = filled.get(name)
        right = isinstance(found, list) and len(found) == len(wanted)
        if right and not (_is_size(values) and _is_size(found)):
            right = all(kind in found for kind in kinds(values))
        if wanted != values and not right:
            added[name] = wanted
    return chosen | added


def _is_size(values: list[Any]) -> bool:
    """Return whether a list over layers says the same size for each, such as a number of heads."""
    return len(values) > 1 and type(values[0]) is int and values[0] > 1 and len(set(values)) == 1


def _with_all_kinds(subject: Subject, config: dict[str, Any], *, given: frozenset[str]) -> dict[str, Any]:
    """Add to lists over layers the kinds of layers that only the source knows, where the class takes them."""
    for name, values in list(config.items()):
        is_listed = isinstance(values, list) and len(values) > 1 and all(isinstance(value, str) for value in values)
        if not is_listed or name in given or name in UNIMPORTANT:
            continue
        present = kinds(values)
        usual = USUAL_KINDS if name.endswith("types") and len(present) == 1 else ()
        for kind in dict.fromkeys((*layer_kinds(subject.source_files, name), *usual)):
            if kind in present or len(present) == len(values):
                continue
            changed = {**config, name: [[*present, kind][place % (len(present) + 1)] for place in range(len(values))]}
            if check(subject, changed) is None:
                config, present = changed, [*present, kind]
    return config


def _starts(
    subject: Subject,
    fields: Mapping[str, Any],
    chosen: dict[str, Any],
    aliases: Mapping[str, tuple[str, ...]],
    *,
    given: frozenset[str],
) -> list[dict[str, Any]]:
    """Return the chosen config, then with what classes commonly insist on, alone and together: fields that follow from
    others left out, fields that were null left out, as many key heads as heads, heads that divide the hidden size."""
    named = {name: " ".join((name, *aliases.get(name, ()))) for name in chosen if name not in given}
    heads = next((value for name, value in chosen.items() if "num_attention_heads" in named.get(name, "")), None)
    rotated = next((value for name, value in chosen.items() if re.fullmatch(r"qk_rope_\w*dim", name)), None)
    head_dim = rotated or HIDDEN // (heads or 4)  # latent attention calls its rotated part so
    rules: list[dict[str, Any]] = [
        dict.fromkeys(_derived(subject, fields, chosen) - given, LEFT_OUT),
        dict.fromkeys([name for name in named if fields.get(name, 0) is None], LEFT_OUT),
        _with_equal_heads(chosen, named, heads),
        {name: head_dim for name, all_names in named.items() if re.fullmatch(r"head_dim", all_names)},
    ]
    starts = []
    for picked in sorted(range(2 ** len(rules)), key=int.bit_count):
        changes = {
            name: value for place, rule in enumerate(rules) if picked >> place & 1 for name, value in rule.items()
        }
        config = {name: value for name, value in (chosen | changes).items() if value is not LEFT_OUT}
        if config not in starts:
            starts.append(config)
    # Lists over layers that a class cannot do without though its default is null, filled in turn from its source.
    found: list[dict[str, Any]] = []
    for name in (name for name, value in fields.items() if value is None and name not in given):
        if name.endswith(("types", "pattern")):
            kinds_of_source = layer_kinds(subject.source_files, name)
            if kinds_of_source:
                found.append({name: [kinds_of_source[place % len(kinds_of_source)] for place in range(LAYERS)]})
    # One entry of rope_parameters for each kind of layers, where a class that has kinds says nothing about them.
    if "rope_parameters" not in given and fields.get("rope_parameters") == {}:
        kinds = enumerate(layer_kinds(subject.source_files, "layer_types"), 1)
        entries = {kind: {"rope_type": "default", "rope_theta": 10000.0 * place} for place, kind in kinds}
        found += [{"rope_parameters": entries}] if entries else []
    return starts + [config | each for config in starts[:1] for each in found]


def _with_equal_heads(config: Mapping[str, Any], names: Mapping[str, str], heads: int | None) -> dict[str, Any]:
    """Return the numbers of key heads that equal the number of heads, in configs inside the config as well."""
    changed: dict[str, Any] = {}
    for name in config if heads else ():
        value = config[name]
        if isinstance(value, dict):
            inner = _with_equal_heads(value, {str(key): str(key) for key in value}, heads)
            changed |= {name: {**value, **inner}} if inner else {}
        elif re.search(r"(key_value|kv)_heads", names.get(name, "")):
            changed[name] = heads
    return changed


def _derived(subject: Subject, fields: Mapping[str, Any], chosen: dict[str, Any]) -> set[str]:
    """Return the fields that the class computes from the others when they are not given."""
    found = set()
    for name in (name for name, value in chosen.items() if not isinstance(value, dict)):
        try:
            value = getattr(read(subject, {key: item for key, item in chosen.items() if key != name}), name, None)
        except SubjectError:
            continue
        entries = chosen[name] if isinstance(chosen[name], list) else []
        if isinstance(value, list) and any(kind not in value for kind in kinds(entries)):
            continue  # so few layers would lose a kind
        if name in fields and value is not None and value != fields[name]:
            found.add(name)
    return found


def _small(default: Any, names: tuple[str, ...], depth: int | None) -> Any:
    if isinstance(default, dict):
        return {
            key: _small(value, (str(key),), depth)
            for key, value in default.items()
            if key not in UNIMPORTANT | COMMON and not (str(key).isdigit() and depth and int(key) >= LAYERS)
        }
    if isinstance(default, list):
        return cut(default, depth)
    value = meaning(names, default)
    if isinstance(value, int) and not isinstance(value, bool) and value > SMALL and not known(names, default):
        return SMALL
    return value


def cut(values: list[Any], depth: int | None) -> list[Any]:
    """Return a list of one entry per layer, or of layer numbers, for a model of few layers that still has every
    entry."""
    if depth is None:
        return values
    if len(values) == depth and depth > LAYERS:
        # The first entries when they hold every kind of entry there is, else all kinds in turn.
        first, distinct = values[:LAYERS], kinds(values)
        if all(kind in first for kind in distinct):
            return first
        return [distinct[place % len(distinct)] for place in range(LAYERS)]
    if (
        values
        and all(type(value) is int for value in values)
        and max(values) < depth
        and len(set(values)) == len(values)
    ):
        return [value for value in values if value < LAYERS] or [1, 2][: len(values)]  # no kind of layer is lost
    return values


def kinds(values: list[Any]) -> list[Any]:
    """Return the distinct entries in order of appearance."""
    return [value for place, value in enumerate(values) if value not in values[:place]]


# ----------------------------------------------------------------------------------------------------------- observable

# Changes to a tiny config that works, so that more of the architecture shows in it, and each choice on its own.


def with_parts(
    subject: Subject, config: dict[str, Any], *, defaults: Mapping[str, Any], given: frozenset[str], works: Works
) -> dict[str, Any]:
    """Return the config with counts of parts that are 0 by default, where the model then has further weights besides
    all that it had: shared experts. given: fields that stay as they are."""
    absent = [name for name, value in config.items() if type(value) is int and value == 0 and name not in given]
    for name, value in [(name, int(hinted(name))) for name in absent if _is_count(name, defaults)]:
        before, after = _weights(subject, config), _weights(subject, {**config, name: value})
        if before < after and works({**config, name: value}):
            config = {**config, name: value}
    return config


def with_shared_layers(
    subject: Subject, config: dict[str, Any], *, given: frozenset[str], works: Works
) -> dict[str, Any]:
    """Return the config with half of its layers taking something over from earlier ones, where a count of such layers
    is 0 by default and these then lack weights. Lists over layers have all their kinds in the first half, too."""
    for name, value in list(config.items()):
        if type(value) is not int or value or name in given or not re.search(r"shared_layers|layers_shared", name):
            continue
        lists = {
            other: [kinds(entries)[place % len(kinds(entries))] for place in range(LAYERS)]
            for other, entries in config.items()
            if isinstance(entries, list) and len(entries) == LAYERS and other not in given
        }
        sharing = {**config, **lists, name: LAYERS // 2}
        if _weights(subject, sharing) < _weights(subject, config) and works(sharing):
            config = sharing
    return config


def with_listed_layers(
    subject: Subject, config: dict[str, Any], *, given: frozenset[str], works: Works
) -> dict[str, Any]:
    """Return the config with lists of layer numbers that are null by default, where some layers then have other weights
    than before: all layers of a hybrid are of one kind until such a list names others."""
    declared = getattr(subject.config_class, "__dataclass_fields__", {})
    for name in [name for name, value in config.items() if value is None and name not in {*given, *TOKENS}]:
        if name not in declared or not re.search(r"(list|List|Sequence)\[int\]", str(declared[name].type)):
            continue
        listed = {**config, name: [1, 2]}
        if _weights(subject, config) not in (set(), _weights(subject, listed)) and works(listed):
            config = listed
    return config


def without_parts(config: dict[str, Any], *, defaults: Mapping[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """Return the config with the counts of parts that `with_parts` may have added at 0 again."""
    zeros = {name: 0 for name, value in config.items() if type(value) is int and _is_count(name, defaults)}
    return {**config, **{name: zero for name, zero in zeros.items() if name not in given}}


def crossed(config: dict[str, Any], *, given: frozenset[str], works: Works) -> dict[str, Any]:
    """Return the config with lists over layers that do not change their entries in step: what follows from one of them
    would seem to follow from the other. given: fields that stay as they are."""
    seen: list[list[int]] = []
    for name, entries in list(config.items()):
        # Texts of more than one kind, and enough of them for two such lists to differ.
        texts = isinstance(entries, list) and all(isinstance(entry, str) for entry in entries)
        if not texts or len(entries) < 4 or len(set(entries)) < 2:
            continue
        partition = _partition(entries)
        if partition in seen and name not in given:
            blocks = {**config, name: sorted(entries, key=entries.index)}
            if _partition(blocks[name]) not in seen and works(blocks):
                config, partition = blocks, _partition(blocks[name])
        seen.append(partition)
    return config


def _is_count(name: str, defaults: Mapping[str, Any]) -> bool:
    return type(defaults.get(name)) is int and defaults[name] == 0 and hinted(name) > 0


def _weights(subject: Subject, config: dict[str, Any]) -> set[str]:
    """Return the names of all parameters; none where nothing builds."""
    try:
        with torch.device("meta"):
            return {name for name, _ in construct(subject, read(subject, config)).named_parameters()}
    except SubjectError:
        return set()


def _partition(entries: list[str]) -> list[int]:
    """Return the pattern of equal entries, whatever they are called."""
    return [entries.index(entry) for entry in entries]
