"""What the tests of a generated family run: its tiny config, the proven variants of it, and values that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.new.generators.model_names import field_name, literal, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tooling.new.generators.model_fields import FieldPlans

_OF_CALLERS: Final = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version", "use_cache"})
"""Fields that say who wrote a config or how it is used, not what it computes."""
_MAX_REFUSED: Final = 8
_NUM_RELOADED: Final = 2


def checks(report: Mapping[str, Any], plans: FieldPlans) -> dict[str, Any]:
    """Pieces of the test, as Python source."""
    uses = {use["name"]: use for use in report["fields"]}
    config = {name: value for name, value in report["tiny_config"].items() if _is_telling(name, value, uses)}
    required = {name: config[name] for name in config if _must_be_said(uses.get(name, {}))}
    for name in (name for name, use in uses.items() if "." in name and _must_be_said(use)):
        section, _, inner = name.partition(".")
        required.setdefault(section, {})[inner] = report["tiny_config"][section][inner]
    depth = plans.by_attribute("num_layers")
    has_lists = any(plan.per_layer and plan.name in required for plan in plans)  # one entry per layer
    if has_lists and depth is not None and depth.name in report["tiny_config"]:
        required[depth.name] = report["tiny_config"][depth.name]
    never_null = {plan.name for plan in plans if plan.type == "bool" and not plan.use.get("nullable")}
    variants = [
        variant
        for variant in report["variants"]
        if not any(value is None and name in never_null for name, value in variant["overrides"].items())
    ]
    small = {name: value for name, value in config.items() if _is_size(name, value, uses)} | required
    return {
        "config": _items(_ordered(config)),
        "variants": [
            [literal(one_line(variant["name"], 60)), literal(dict(variant["overrides"]))] for variant in variants
        ],
        "small": _items(_ordered(small)),
        "reloaded": [literal(name) for name in ("tiny", *_most_changed(variants))],
        "defaults": literal({"model_type": report["model_type"], **required}),
        "refused": _refused(config, plans),
        "recorded": bool(report.get("reference")),
    }


def _must_be_said(use: Mapping[str, Any]) -> bool:
    """Whether a config without the field is refused: its absence means nothing known, or a value that is not proven."""
    if use.get("required"):
        return True
    allowed, default = use.get("allowed") or (), use.get("default")
    if use.get("status") != "fixed" or not allowed or isinstance(default, list | dict):
        return False
    return not any(default == value and isinstance(default, bool) == isinstance(value, bool) for value in allowed)


def _is_size(name: str, value: Any, uses: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a field has to be said for the model to be tiny: a number that is large by default."""
    default = uses.get(name, {}).get("default")
    if name in ("model_type", "architectures") or name.endswith("_token_id"):
        return True
    return type(value) is int and type(default) is int and default > value


def _most_changed(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the variants that differ most from the tiny config: those that are worth writing and reading again."""
    ordered = sorted(variants, key=lambda variant: -len(variant["overrides"]))
    return [one_line(variant["name"], 60) for variant in ordered[:_NUM_RELOADED]]


def _is_telling(name: str, value: Any, uses: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a field of the tiny config is not what its absence means."""
    if name in _OF_CALLERS:
        return False
    use = uses.get(name)
    if use is None or use.get("required") or "default" not in use:
        return True
    default = use["default"]
    return not (default == value and isinstance(default, bool) == isinstance(value, bool))


def _ordered(config: Mapping[str, Any]) -> dict[str, Any]:
    first = {"model_type": config["model_type"]} if "model_type" in config else {}
    return {**first, **{name: config[name] for name in sorted(config) if name not in first}}


def _items(config: Mapping[str, Any]) -> list[list[str]]:
    return [[literal(name), literal(value)] for name, value in config.items()]


def _refused(config: Mapping[str, Any], plans: FieldPlans) -> list[list[str]]:
    """Fields with a value that the family does not take, as source."""
    found: list[list[str]] = []
    for use in plans.fixed:
        other = _other(use.get("allowed") or ())
        if other is not None and "." not in use["name"]:
            found.append([literal(field_name(use["name"])), literal(other)])
    for plan in plans:
        if "." in plan.name:
            continue
        if plan.attribute in ("hidden_size", "vocab_size"):
            found.append([literal(plan.name), literal("many")])
        elif plan.attribute == "num_layers":
            found.append([literal(plan.name), "0"])
        elif plan.per_layer:
            found.append([literal(plan.name), literal(list(plan.allowed[:1]))])
    return found[:_MAX_REFUSED]


def _other(allowed: Any) -> Any:
    """A value of the same type that is not allowed; None when none comes to mind."""
    for value in allowed:
        if isinstance(value, bool):
            return None if (not value) in allowed else not value
        if isinstance(value, int | float):
            return max(number for number in allowed if isinstance(number, int | float)) + 1
        if isinstance(value, str):
            return "mystery"
    return None
