"""Rows of a family's adapter, and its table of splits for tensor parallelism: report JSON to source text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.new.generators.model_names import literal, malformed, parameter_name, tuple_literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROWS: Final = {
    "renamed": "Renamed",
    "transposed": "Transposed",
    "query_key_value": "QueryKeyValue",
    "rows": "Rows",
    "experts": "Experts",
    "stacked_experts": "StackedExperts",
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
    """The rows of the adapter's table, and constants that several rows share, by name.

    Modules that are stored under "model." and their own name, or as the row of a branch says, need no row.
    """
    entries = [entry for entry in layout if not entry.get("implied") and not _is_usual(entry)]
    shared = _shared_alternatives(entries)
    names = {text: name for name, text in shared.items()}
    return [_row(entry, names) for entry in sorted(entries, key=lambda entry: list(entry["ours"]))], shared


def tensor_parallel(
    layout: Sequence[Mapping[str, Any]], slots: Mapping[str, Mapping[str, Any]], *, untied: bool
) -> dict[str, str]:
    """Module (or stacked parameter) to its split, sorted; also of layers that only other configs than the tiny one
    have. untied: whether some model has a head of its own."""
    names = {_module(parameter_name(name)) for entry in layout for name in entry["ours"]}
    names |= {"lm_head"} if untied else set()
    names |= {f"layers.*.{name}" for name in _possible(slots)}
    found = {name: split for name in sorted(names) if (split := _split(name))}
    return found if untied else {name: split for name, split in found.items() if name != "lm_head"}


def _possible(slots: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Modules of a layer that some config has, though maybe not the tiny one."""
    path = "layer.feed_forward"
    gate = {"gate_proj"} if slots.get(f"{path}.gated") == {"kind": "constant", "value": True} else set()
    if f"{path}.intermediate_size" in slots:
        yield from (f"mlp.{name}" for name in gate | {"up_proj", "down_proj"})
    if slots.get("layer.attention.query_rank", {}).get("kind", "constant") != "constant":
        yield from ("self_attn.q_proj", "self_attn.q_b_proj")


def row_names(rows: Sequence[str], shared: Mapping[str, str]) -> list[str]:
    """Classes that the table uses, sorted."""
    text = "\n".join([*rows, *shared.values()])
    return sorted(name for name in ROWS.values() if f"{name}(" in _without_longer(text, name))


def _without_longer(text: str, name: str) -> str:
    """The text without the classes whose names end like another ("StackedExperts" and "Experts")."""
    for other in ROWS.values():
        if other != name and other.endswith(name):
            text = text.replace(other, "")
    return text


def _is_usual(entry: Mapping[str, Any]) -> bool:
    ours = list(entry["ours"])
    if entry.get("implied"):
        return True
    if entry["kind"] != "renamed" or len(ours) != 1 or entry.get("alternative"):
        return False
    return bool(entry["on_disk"] == (ours[0] if ours[0].startswith("lm_head") else f"model.{ours[0]}"))


def _row(entry: Mapping[str, Any], names: Mapping[str, str]) -> str:
    kind = entry["kind"]
    if kind not in ROWS:
        raise malformed(f"a layout of kind {kind!r}")
    ours = [parameter_name(name) for name in entry["ours"]]
    arguments = [literal(ours[0]) if len(ours) == 1 else tuple_literal(ours), literal(parameter_name(entry["on_disk"]))]
    if kind == "reshaped":
        arguments.append(tuple_literal([int(size) for size in entry["shape"]]))
    if kind not in ("renamed", "transposed", "reshaped", "swapped_halves"):
        if entry.get("arrangement") not in (None, "", "concat"):
            arguments.append(f"arrangement={literal(str(entry['arrangement']))}")
        if entry.get("transposed"):
            arguments.append("transposed=True")
    if entry.get("alternative"):
        text = _row(entry["alternative"], {})
        arguments.append(f"alternative={names.get(text, text)}")
    return f"{ROWS[kind]}({', '.join(arguments)})"


def _shared_alternatives(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Alternatives that stand in several rows, by the name of a constant for each."""
    texts = [_row(entry["alternative"], {}) for entry in entries if entry.get("alternative")]
    owners = {_row(entry["alternative"], {}): entry["alternative"] for entry in entries if entry.get("alternative")}
    found: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        if texts.count(text) > 1:
            name = "_".join(_last(name).removesuffix("_proj").upper() for name in owners[text]["ours"])
            while f"_{name}" in found:
                name += "_"
            found[f"_{name}"] = text
    return found


def _last(name: str) -> str:
    return parameter_name(name).rpartition(".")[2]


def _module(name: str) -> str:
    for suffix in (".weight", ".bias"):
        name = name.removesuffix(suffix)
    return name


def _split(name: str) -> str:
    return next(_endings(name), "")


def _endings(name: str) -> Iterator[str]:
    parts = name.split(".")
    for length in (2, 1):
        split = _SPLITS.get(".".join(parts[-length:]))
        if split:
            yield split
