"""Writes what is around a text model as source: the `Wrapper` of a unit, and the config its tests run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from areal.porting.write.names import class_name, field_name, literal, model_type_name, parameter_name, tuple_literal

if TYPE_CHECKING:
    from collections.abc import Mapping


def wrapper_pieces(wrapper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of the `Wrapper` and the tests' config, as JSON values. Raises ReportError."""
    keywords = {
        "model_type": literal(model_type_name(wrapper["model_type"])),
        "inner_types": tuple_literal([model_type_name(each) for each in wrapper["inner_types"]]),
        "layouts": _tuple([_layout(each) for each in wrapper["layouts"]]),
        "tied": _tuple([tuple_literal(each) for each in wrapper["tied"]]),
        "placeholders": _named(wrapper["placeholders"]),
        "sections": tuple_literal(map(field_name, wrapper["sections"])),
        "idle": tuple_literal(map(field_name, wrapper["idle"])),
        "fixed": _fixed(wrapper["fixed"]),
        "text_fixed": _fixed(wrapper["text_fixed"]),
        "replaced": _named(wrapper["replaced"]),
    }
    usual = {"sections": "()", "idle": "()", "fixed": "{}", "text_fixed": "{}", "replaced": "{}"}
    config = {field_name(name): value for name, value in sorted(wrapper["tiny_config"].items())}
    return {
        "architecture": class_name(wrapper["architecture"]),
        "keywords": [[name, text] for name, text in keywords.items() if usual.get(name) != text],
        "config": [[literal(name), literal(value)] for name, value in config.items()],
    }


def _layout(layout: Mapping[str, Any]) -> str:
    for name in (*layout["kept"], *(part for pair in layout["prefixes"] for part in pair)):
        parameter_name(name.removesuffix(".") or "x")
    prefixes = _tuple([tuple_literal(pair) for pair in layout["prefixes"]])
    return f"NameLayout(prefixes={prefixes}, kept={tuple_literal(layout['kept'])})"


def _tuple(texts: list[str]) -> str:
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _named(values: Mapping[str, Any]) -> str:
    return literal({field_name(name): value for name, value in values.items()})


def _fixed(values: Mapping[str, Any]) -> str:
    items = [f"{literal(field_name(name))}: {tuple_literal(each)}" for name, each in sorted(values.items())]
    return f"{{{', '.join(items)}}}"
