"""Turns an architecture report into the pieces that `templates/model` puts together: one table per generated file.

The arguments and the model come from `arguments` and `code`; the rows of the adapter, the table of splits
for tensor parallelism, and what the generated tests run (tiny config, proven variants, refused values) are made here.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import from_json
from areal.porting.family import Constant, FieldUse
from areal.porting.records import ReportError
from areal.porting.spec import PLACES
from areal.porting.write.arguments import Arguments, is_among, proven_values, section_variable
from areal.porting.write.code import ModelCode, imports_of
from areal.porting.write.fields import CANONICAL, plan_fields
from areal.porting.write.names import (
    class_name,
    field_name,
    literal,
    model_type_name,
    one_line,
    parameter_name,
    tuple_literal,
)
from areal.porting.write.shared_norms import with_norm_function
from areal.porting.write.words import describe
from areal.porting.write.wrapper import wrapper_pieces

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.porting.family import Expression
    from areal.porting.write.fields import FieldPlans


_MAX_LINE: Final = 110
FAMILY: Final = "__Family__"
"""Placeholder for the name of the unit, so that the pieces outlive a rename."""
_ARGUMENT_MODULES: Final = {
    "areal.models.config_fields": ("ConfigFields",),
    "areal.models.decoder_args": ("DecoderArgs", "RotaryArgs", "as_bfloat16", "rotary_to_hf", "take_rotary"),
}


def family(report: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Return the pieces, as JSON values. unit: what the family is called where its architecture has no name of its own.

    Raises ReportError for what cannot be written.
    """
    model_type_name(report["model_type"])
    wrapper = {"wrapper": wrapper_pieces(report["wrapper"])} if "wrapper" in report else {}
    if wrapper and report["wrapper"]["registered"]:
        title = class_name(report["wrapper"]["architecture"])
        summary = f"checkpoints of several models around {report['model_type']}"
        return {"title": title, "sentence": f"{title}: {summary}.", "summary": summary, **wrapper}
    slots = {slot: from_json(node) for slot, node in report["slots"].items()}
    uses = [_field_use(use) for use in report["fields"]]
    plans = plan_fields(slots, uses)
    arguments = Arguments(report["architecture"], slots, uses, plans, _auto_map(report))
    writer = ModelCode(arguments, report["layout"], FAMILY)
    keywords = writer.decoder_keywords()
    mark = "\x00"  # the two parts are looked at together: a norm may stand in both
    code = with_norm_function(mark.join(["\n".join(keywords), "\n\n".join(writer.functions())]), FAMILY)
    head, _, functions = code.partition(mark)
    imports = imports_of(code + "\nDecoderModel")
    model = {"imports": imports, "keywords": head.split("\n"), "functions": functions.rstrip("\n")}
    rows, shared = table(report["layout"])
    title = re.sub(r"(ForCausalLM|LMHeadModel|Model)$", "", class_name(report["architecture"])) or unit
    summary = describe(slots, {use.name: use.default for use in uses})
    return {
        "title": title,
        "sentence": "\n".join(textwrap.wrap(one_line(f"{title}: {summary}."), _MAX_LINE)),
        "summary": summary,
        "args": _arguments(arguments),
        "model": model,
        "adapter": {
            "names": ", ".join([*row_names(rows, shared), "TableAdapter"]),
            "constants": [[name, text] for name, text in shared.items()],
            "rows": rows,
            "skipped": [literal(pattern) for pattern in report.get("skipped", ())],
        },
        "splits": [
            [name, split]
            for name, split in tensor_parallel(
                report["layout"],
                slots,
                untied=slots["tied"] != Constant(True),
            ).items()
        ],
        "tests": checks(report, uses, plans),
        **wrapper,
    }


def _field_use(entry: Mapping[str, Any]) -> FieldUse:
    """Read the JSON of a `FieldUse`; what is not said is as usual."""
    said: dict[str, Any] = {each.name: entry[each.name] for each in fields(FieldUse) if each.name in entry}
    for name in ("aliases", "allowed", "refused", "rotated", "unread"):
        said[name] = tuple(said.get(name) or ())
    rule = said.get("default_rule")
    return FieldUse(**said | {"name": field_name(entry["name"]), "default_rule": rule and from_json(rule)})


_CODE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
_MODELS: Final = ("AutoConfig", "AutoModelForCausalLM")
"""Keys of auto_map that say what a causal model computes."""


def _auto_map(report: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the classes in modeling files that the report is about. Raises ReportError for odd ones."""
    named = (report.get("code") or {}).get("auto_map") or {}
    found = {name: str(named[name]).rpartition("--")[2] for name in _MODELS if name in named}
    for name, code in found.items():
        if not _CODE.fullmatch(code):
            raise ReportError(f"the analysis reports {code!r} as the code of {name}; expected FILE.CLASS")
    return found


def _arguments(arguments: Arguments) -> dict[str, Any]:
    aliases, ignored = arguments.plans.aliases, arguments.ignored()
    top = {name: reason for name, reason in ignored.items() if "." not in name}
    reading = [f"fields = ConfigFields(config{', aliases=ALIASES' if aliases else ''})"]
    reading += [f"{section_variable(name)} = fields.section({literal(name)})" for name in arguments.sections()]
    reading += arguments.omissions()
    reading += [f"{name} = {text}" for name, text in arguments.locals()]
    reading.append(f"args = cls({', '.join(f'{name}={text}' for name, text in arguments.values())})")
    reading += arguments.requirements()
    for section in arguments.sections():
        inner = sorted(name.partition(".")[2] for name in ignored if name.startswith(f"{section}."))
        harmless = f"{{{', '.join(map(literal, inner))}}}" if inner else ""
        reading.append(f"{section_variable(section)}.finish({harmless})")
    reading += [f"fields.finish({'IGNORED' if top else ''})", "return args"]
    exported = [f"{literal(name)}: {text}" for name, text in arguments.exported()]
    exported += [arguments.exported_rotary()] if arguments.exported_rotary() else []
    exported += ["**self.remote_code()"] if arguments.auto_map else []
    exported.append("**self.token_ids")
    properties = [
        {
            "name": made.name,
            "annotation": made.annotation,
            "documentation": made.documentation,
            "text": made.text,
            "of_layer": made.of_layer,
        }
        for made in arguments.properties.values()
    ]
    attributes = _attributes(arguments)
    auto_map = [[literal(name), literal(code)] for name, code in sorted(arguments.auto_map.items())]
    texts = (str(item["annotation"]) for item in attributes)
    code = "\n".join(
        [*reading, *exported, *texts, *(made.text for made in arguments.properties.values()), "DecoderArgs"]
    )
    return {
        "imports": [*(["import sys"] if "sys.maxsize" in code else []), *imports_of(code, _ARGUMENT_MODULES)],
        **({"auto_map": auto_map} if auto_map else {}),
        "aliases": [[literal(other), literal(name)] for other, name in sorted(aliases.items())],
        "ignored": [[literal(name), literal(reason)] for name, reason in sorted(top.items())],
        "attributes": attributes,
        "reading": reading,
        "exported": exported,
        "properties": properties,
    }


def _attributes(arguments: Arguments) -> list[dict[str, Any]]:
    base = set(CANONICAL.values()) - {"intermediate_size", "norm_eps"}
    found: list[dict[str, Any]] = [
        {"name": plan.attribute, "annotation": plan.annotation, "documentation": plan.documentation}
        for plan in arguments.plans
        if plan.attribute not in base
    ]
    for name, rotary in arguments.tables.items():
        if rotary.theta is None:
            kind = one_line(rotary.layer_type or "", 60)
            documentation = f"How layers of type {kind} are rotated." if kind else "How queries and keys are rotated."
            found.append({"name": name, "annotation": "RotaryArgs", "documentation": documentation})
    return found


ROWS: Final = {
    "renamed": "Renamed",
    "transposed": "Transposed",
    "query_key_value": "QueryKeyValue",
    "rows": "Rows",
    "experts": "SeparateExperts",
    "stacked_experts": "StackedExperts",
    "filter_pieces": "FilterPieces",
    "filters": "Filters",
    "reshaped": "Reshaped",
    "swapped_halves": "SwappedHalves",
}
"""Kind of a layout entry to its class in `areal.models.adapter`."""
_SPLITS: Final = {
    "down_proj": "ROW",
    "embed_tokens": "COLUMN",
    "experts.down_proj": "EXPERT_ROW",
    "experts.gate_bias": "EXPERT_COLUMN",
    "experts.gate_proj": "EXPERT_COLUMN",
    "experts.up_bias": "EXPERT_COLUMN",
    "experts.up_proj": "EXPERT_COLUMN",
    "gate_bias": "COLUMN",
    "gate_proj": "COLUMN",
    "k_proj": "COLUMN",
    "kv_b_proj": "COLUMN",
    "lm_head": "COLUMN",
    "o_proj": "ROW",
    "q_b_proj": "COLUMN",
    "q_proj": "COLUMN",
    "sinks": "COLUMN",
    "up_proj": "COLUMN",
    "v_proj": "COLUMN",
}
"""End of a canonical name to how it is split; everything else is replicated."""


def table(layout: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Return the rows of the adapter's table, and constants that several rows share, by name.

    Modules that are stored under "model." and their own name, or as the row of a branch says, need no row.
    """
    entries = []
    for entry in layout:
        first = entry["ours"][0]
        usual = first if first.startswith("lm_head") else f"model.{first}"
        is_usual = entry["kind"] == "renamed" and len(entry["ours"]) == 1 and entry["on_disk"] == usual
        if not entry.get("implied") and (not is_usual or entry.get("alternative")):
            entries.append(entry)
    alternatives = [entry["alternative"] for entry in entries if entry.get("alternative")]
    texts = [_row(alternative, {}) for alternative in alternatives]
    names: dict[str, str] = {}
    for text, alternative in zip(texts, alternatives, strict=True):
        if texts.count(text) > 1 and text not in names:
            parts = [
                parameter_name(name).rpartition(".")[2].removesuffix("_proj").upper() for name in alternative["ours"]
            ]
            name = f"_{'_'.join(parts)}"
            while name in names.values():
                name += "_"
            names[text] = name
    rows = [_row(entry, names) for entry in sorted(entries, key=lambda entry: list(entry["ours"]))]
    return rows, {name: text for text, name in names.items()}


def tensor_parallel(
    layout: Sequence[Mapping[str, Any]], slots: Mapping[str, Expression], *, untied: bool
) -> dict[str, str]:
    """Map each module (or stacked parameter) to its split, sorted; also those that only other configs than the tiny one
    have. untied: whether some model has a head of its own."""
    names = {parameter_name(name) for entry in layout for name in entry["ours"]}
    # Mixers with a state are split by what they are, whatever a table says.
    places = tuple(f"layers.*.{place}." for place in (*PLACES.values(), "beside"))
    names = {name for name in names if not name.startswith(places)}
    # What chooses tokens is whole on every rank: all of them have to choose the same.
    names = {name for name in names if ".indexer." not in name}
    names = {name.removesuffix(".weight").removesuffix(".bias") for name in names} - {"lm_head"}
    names |= {"lm_head"} if untied else set()
    path = "layer.feed_forward"
    if f"{path}.intermediate_size" in slots:
        gate = ["gate_proj"] if slots.get(f"{path}.gated") == Constant(True) else []
        names |= {f"layers.*.mlp.{name}" for name in (*gate, "up_proj", "down_proj")}
    if not isinstance(slots.get("layer.attention.query_rank", Constant(None)), Constant):
        names |= {"layers.*.self_attn.q_proj", "layers.*.self_attn.q_b_proj"}
    ends = {name: (".".join(name.split(".")[-2:]), name.rpartition(".")[2]) for name in sorted(names)}
    return {name: _SPLITS.get(two) or _SPLITS[one] for name, (two, one) in ends.items() if {two, one} & _SPLITS.keys()}


def row_names(rows: Sequence[str], shared: Mapping[str, str]) -> list[str]:
    """Return classes that the table uses, sorted."""
    text = "\n".join([*rows, *shared.values()])
    return sorted(name for name in ROWS.values() if re.search(rf"\b{name}\(", text))


def _row(entry: Mapping[str, Any], names: Mapping[str, str]) -> str:
    kind = entry["kind"]
    if kind not in ROWS:
        raise ReportError(f"the analysis reports a layout of kind {kind!r}")
    ours = [parameter_name(name) for name in entry["ours"]]
    arguments = [literal(ours[0]) if len(ours) == 1 else tuple_literal(ours), literal(parameter_name(entry["on_disk"]))]
    if kind == "reshaped":
        arguments.append(tuple_literal([int(size) for size in entry["shape"]]))
    if kind not in ("renamed", "transposed", "reshaped", "swapped_halves", "filters", "filter_pieces"):
        if entry.get("arrangement") not in (None, "", "concat"):
            arguments.append(f"arrangement={literal(str(entry['arrangement']))}")
        if entry.get("transposed"):
            arguments.append("transposed=True")
    if entry.get("alternative"):
        text = _row(entry["alternative"], {})
        arguments.append(f"alternative={names.get(text, text)}")
    return f"{ROWS[kind]}({', '.join(arguments)})"


_OF_CALLERS: Final = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"})
"""Fields that say who wrote a config or how it is used, not what it computes."""
_MAX_REFUSED: Final = 8
_NUM_RELOADED: Final = 2


def checks(report: Mapping[str, Any], uses: Sequence[FieldUse], plans: FieldPlans) -> dict[str, Any]:
    """Return pieces of the test, as Python source."""
    by_name, tiny = {use.name: use for use in uses}, report["tiny_config"]
    # Without what says who wrote a config, or only what its absence means.
    config = {
        name: value
        for name, value in tiny.items()
        if name not in _OF_CALLERS
        and (name not in by_name or by_name[name].required or not is_among(value, [by_name[name].default]))
    }
    required = {name: config[name] for name in config if name in by_name and _must_be_said(by_name[name])}
    for use in uses:
        if "." in use.name and _must_be_said(use):
            section, _, inner = use.name.partition(".")
            required.setdefault(section, {})[inner] = tiny[section][inner]
    depth = plans.by_attribute("num_layers")
    has_lists = any(plan.per_layer and plan.name in required for plan in plans)  # one entry per layer
    if has_lists and depth is not None and depth.name in tiny:
        required[depth.name] = tiny[depth.name]
    never_null = {plan.name for plan in plans if plan.type == "bool" and not plan.use.nullable}
    variants = [
        variant
        for variant in report["variants"]
        if not any(value is None and name in never_null for name, value in variant["overrides"].items())
    ]
    # Numbers that are large by default, and what a config cannot do without.
    large = {use.name: use.default for use in uses if type(use.default) is int}
    small = {
        name: value
        for name, value in config.items()
        if name in ("model_type", "architectures")
        or name.endswith("_token_id")
        or (type(value) is int and large.get(name, value) > value)
    } | required
    most_changed = sorted(variants, key=lambda variant: -len(variant["overrides"]))[:_NUM_RELOADED]
    return {
        "config": _items(config),
        "variants": [
            [literal(one_line(variant["name"], 60)), literal(dict(variant["overrides"]))] for variant in variants
        ],
        "small": _items(small),
        "reloaded": [literal("tiny"), *(literal(one_line(variant["name"], 60)) for variant in most_changed)],
        "defaults": literal({"model_type": report["model_type"], **required}),
        "refused": _refused(plans, counted=report["slots"]["num_layers"].get("kind") == "length"),
        "recorded": bool(report.get("reference")),
    }


def _must_be_said(use: FieldUse) -> bool:
    """Return whether a config without the field is refused: its absence means nothing known, or an unproven value."""
    if use.required:
        return True
    if use.status == "used" and use.allowed and not isinstance(use.default, list | dict):
        return use.default is not None and not is_among(use.default, use.allowed)
    if use.status != "fixed" or not use.allowed or isinstance(use.default, list | dict):
        return False
    return not is_among(use.default, proven_values(use))


def _items(config: Mapping[str, Any]) -> list[list[str]]:
    ordered = sorted(config, key=lambda name: (name != "model_type", name))
    return [[literal(name), literal(config[name])] for name in ordered]


def _refused(plans: FieldPlans, *, counted: bool) -> list[list[str]]:
    """Return fields with a value that the family does not take, as source. counted: whether a list over layers says how
    many there are, so that no length of it is wrong."""
    found: list[list[str]] = []
    for use in plans.fixed:
        other = _other(use.allowed)
        if other is not None and "." not in use.name:
            found.append([literal(use.name), literal(other)])
    for plan in plans:
        if "." in plan.name:
            continue
        if plan.attribute in ("hidden_size", "vocab_size"):
            found.append([literal(plan.name), literal("many")])
        elif plan.attribute == "num_layers":
            found.append([literal(plan.name), "0"])
        elif plan.per_layer and not counted:
            found.append([literal(plan.name), literal(list(plan.allowed[:1]))])
        elif plan.per_layer and _other(plan.allowed) is not None:
            found.append([literal(plan.name), literal([*plan.allowed, _other(plan.allowed)])])
    return found[:_MAX_REFUSED]


def _other(allowed: Any) -> Any:
    """Return a value of the same type that is not allowed; None when none comes to mind."""
    for value in allowed:
        if isinstance(value, bool):
            return None if (not value) in allowed else not value
        if isinstance(value, int | float):
            return max(number for number in allowed if isinstance(number, int | float)) + 1
        if isinstance(value, str):
            return "mystery"
    return None
