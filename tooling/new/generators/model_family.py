"""From an architecture report to the pieces that `templates/model` puts together: one table per generated file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from tooling.new.generators.model_arguments import Arguments, section_variable
from tooling.new.generators.model_blocks import ModelCode, imports_of, with_norm_function
from tooling.new.generators.model_checks import checks
from tooling.new.generators.model_fields import CANONICAL, plan_fields
from tooling.new.generators.model_layout import row_names, table, tensor_parallel
from tooling.new.generators.model_names import class_name, literal, one_line
from tooling.new.generators.model_words import describe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tooling.kit.names import Names

_MAX_LINE: Final = 110
FAMILY: Final = "__Family__"
"""Stands in the pieces where the template puts the name of the unit, so that they outlive a rename."""
_ARGUMENT_MODULES: Final = {
    "areal.models.config_fields": ("ConfigFields",),
    "areal.models.decoder_args": ("DecoderArgs",),
    "areal.models.rotary_args": ("RotaryArgs", "rotary_to_hf", "take_rotary"),
}


def family(report: Mapping[str, Any], names: Names, root: Path) -> dict[str, Any]:
    """The pieces, as JSON values. root: of the repository. Raises UsageError for what cannot be written."""
    plans = plan_fields(report, root)
    arguments = Arguments(report, plans)
    model = _model(arguments, FAMILY)
    rows, shared = table(report["layout"])
    title = family_title(report, names)
    summary = describe(report["slots"], {use["name"]: use.get("default") for use in report["fields"]})
    return {
        "title": title,
        "sentence": _wrapped(f"{title}: {summary}."),
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
                report["layout"], report["slots"], untied=_may_be_untied(report["slots"])
            ).items()
        ],
        "tests": checks(report, plans),
    }


def family_title(report: Mapping[str, Any], names: Names) -> str:
    """What the family is called in words: "Qwen3Moe"."""
    architecture = class_name(report["architecture"])
    found = re.sub(r"(ForCausalLM|LMHeadModel|Model)$", "", architecture)
    return found or names.pascal


def _arguments(arguments: Arguments) -> dict[str, Any]:
    aliases, ignored = arguments.plans.aliases, arguments.ignored()
    top = {name: reason for name, reason in ignored.items() if "." not in name}
    reading = [f"fields = ConfigFields(config{', aliases=ALIASES' if aliases else ''})"]
    reading += [f"{section_variable(name)} = fields.section({literal(name)})" for name in arguments.sections()]
    reading += [f"{name} = {text}" for name, text in arguments.locals()]
    reading.append(f"args = cls({', '.join(f'{name}={text}' for name, text in arguments.values())})")
    reading += arguments.requirements()
    for section in arguments.sections():
        inner = [name.partition(".")[2] for name in ignored if name.startswith(f"{section}.")]
        reading.append(f"{section_variable(section)}.finish({_set(inner)})")
    reading += [f"fields.finish({'IGNORED' if top else ''})", "return args"]
    exported = [f"{literal(name)}: {text}" for name, text in arguments.exported()]
    exported += [arguments.exported_rotary()] if arguments.exported_rotary() else []
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
    code = "\n".join([*reading, *exported, *(str(item["annotation"]) for item in attributes), "DecoderArgs"])
    return {
        "imports": [*(["import sys"] if "sys.maxsize" in code else []), *imports_of(code, _ARGUMENT_MODULES)],
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
    for rotary in arguments.tables:
        if rotary.theta is None:
            kind = one_line(rotary.layer_type or "", 60)
            documentation = f"How layers of type {kind} are rotated." if kind else "How queries and keys are rotated."
            found.append({"name": rotary.attribute, "annotation": "RotaryArgs", "documentation": documentation})
    return found


def _model(arguments: Arguments, pascal: str) -> dict[str, Any]:
    writer = ModelCode(arguments, pascal)
    keywords = writer.decoder_keywords()
    mark = "\x00"  # the two parts are looked at together: a norm may stand in both
    code = with_norm_function(mark.join(["\n".join(keywords), "\n\n".join(writer.functions())]), pascal)
    head, _, functions = code.partition(mark)
    imports = imports_of(code + "\nDecoderModel")
    return {"imports": imports, "keywords": head.split("\n"), "functions": functions.rstrip("\n")}


def _may_be_untied(slots: Mapping[str, Any]) -> bool:
    return bool(slots["tied"] != {"kind": "constant", "value": True})


def _set(names: list[str]) -> str:
    return f"{{{', '.join(literal(name) for name in sorted(names))}}}" if names else ""


def _wrapped(sentence: str) -> str:
    """A sentence as the lines of a docstring."""
    import textwrap

    return "\n".join(textwrap.wrap(one_line(sentence), _MAX_LINE))
