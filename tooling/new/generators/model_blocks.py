"""The code of a family's `model.py`: its blocks, their choice by layer and config, and the tables of rotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.new.generators.model_expressions import depends_on_layer
from tooling.new.generators.model_layers import LayerCode, constant

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.new.generators.model_arguments import Arguments

BLOCKS: Final = {
    "pre": ("PreNormBlock", ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")),
    "post": ("PostNormBlock", ("self_attn", "post_attention_layernorm", "mlp", "post_feedforward_layernorm")),
    "sandwich": (
        "SandwichBlock",
        (
            "input_layernorm",
            "self_attn",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "mlp",
            "post_feedforward_layernorm",
        ),
    ),
    "parallel": ("ParallelBlock", ("input_layernorm", "self_attn", "mlp")),
    "parallel_two_norms": ("ParallelBlock", ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")),
    "post_residual": ("PostResidualBlock", ("self_attn", "input_layernorm", "mlp", "post_attention_layernorm")),
}
"""Kind of block to its class and its children, in the order in which they act."""

MODULES: Final = {
    "areal.models.blocks.attention": ("SelfAttention",),
    "areal.models.blocks.block": (
        "ParallelBlock",
        "PostNormBlock",
        "PostResidualBlock",
        "PreNormBlock",
        "SandwichBlock",
    ),
    "areal.models.blocks.decoder": ("DecoderModel",),
    "areal.models.blocks.head": ("HeadTransform",),
    "areal.models.blocks.latent_attention": ("LatentAttention",),
    "areal.models.blocks.mlp": ("MLP", "GatedMLP"),
    "areal.models.blocks.moe": ("Experts", "MixtureOfExperts", "Router"),
    "areal.models.blocks.norms": ("LayerNorm", "RMSNorm"),
    "areal.models.blocks.positions": ("LearnedPositions", "SinusoidalPositions"),
    "areal.models.blocks.rotary": ("Rotary",),
    "areal.models.rotary_args": ("RotaryArgs",),
}
"""Where the classes in the code come from."""

_HELPER_USES: Final = 3
"""From so many equal norms on, the family gets a function for them."""


class ModelCode(LayerCode):
    """Writes the body of `model.py` from the slots of a report."""

    def __init__(self, arguments: Arguments, pascal: str) -> None:
        super().__init__(arguments)
        self.pascal = pascal
        self._is_shared = False
        """Whether two kinds of block are made of the same layers, which then get functions."""

    # ------------------------------------------------------------------------------------------------- whole model

    def decoder_keywords(self) -> list[str]:
        """Keywords of `DecoderModel.__init__` behind the arguments."""
        lines = ["layers=(_block(args, layer) for layer in range(args.num_layers))"]
        lines.append(f"norm={self._optional_norm('final_norm', 'args.hidden_size')}")
        lines.append(f"rotary={self._rotary()}")
        lines += self._keywords("", {"embedding_multiplier": 1.0})
        if self._is_possible("positions"):
            lines.append(f"embed_positions={self._choice('positions', self._positions())}")
        if self._is_possible("embedding_norm"):
            lines.append(f"embed_norm={self._optional_norm('embedding_norm', 'args.hidden_size')}")
        if self._is_possible("head_transform"):
            lines.append(f"head_transform={self._choice('head_transform', self._head_transform())}")
        lines += self._keywords("", {"head_bias": False, "logit_multiplier": 1.0, "logit_softcap": None})
        return lines

    def functions(self) -> list[str]:
        """The functions behind the class, as source."""
        block = self._block_function()
        parts = [block, *self._rotary_functions()]
        if "_attention(" in block:
            parts.append(self._function("_attention", f"return {self._attention()}", self._attention_type()))
        if "_feed_forward(" in block:
            parts.append(self._feed_forward_function())
        return parts

    # ------------------------------------------------------------------------------------------------------ blocks

    def _block_function(self) -> str:
        node = self.slots["layer.block"]
        kinds = _constants(node)
        names = sorted({BLOCKS[kind][0] for kind in kinds})
        if node["kind"] == "constant":
            body = f"return {self._block(kinds[0])}"
        elif node["kind"] == "when_equal":
            then, otherwise = node["then"], node["otherwise"]
            condition = self.arguments.flag(node)
            body = self._either_block(condition, _one(then), _one(otherwise))
        else:
            raise UsageError(
                "the kind of block depends on the layer, which the template cannot write",
                where="layer.block",
                fix="write this family by hand, with `areal-new model NAME --analyze-only` as its checklist",
            )
        return self._function("_block", body, " | ".join(names))

    def _either_block(self, condition: str, then: str, otherwise: str) -> str:
        """The body of a function that makes one of two kinds of block."""
        (first, children), (second, other_children) = BLOCKS[then], BLOCKS[otherwise]
        if set(children) == set(other_children):
            choice = f"block: type[{first} | {second}] = {first} if {condition} else {second}"
            return f"{choice}\n    return {self._block(otherwise, 'block')}"
        self._is_shared = True
        return f"if {condition}:\n        return {self._block(then)}\n    return {self._block(otherwise)}"

    def _block(self, kind: str, name: str = "") -> str:
        name, children = name or BLOCKS[kind][0], BLOCKS[kind][1]
        arguments = []
        for child in children:
            if child == "self_attn":
                arguments.append(f"self_attn={self._attention_call()}")
            elif child == "mlp":
                arguments.append(f"mlp={self._feed_forward_call()}")
            else:
                slot = f"layer.norms.{child}"
                text = self._norm(slot, "args.hidden_size")
                arguments.append(f"{child}={self._choice(slot, text) if slot in self.slots else text}")
        arguments += self._keywords("layer.", {"residual_multiplier": 1.0})
        return f"{name}({', '.join(arguments)})"

    def _attention_call(self) -> str:
        text = self._attention()
        return text if text.count("=") <= _SHORT and not self._is_shared else "_attention(args, layer)"

    def _feed_forward_call(self) -> str:
        if self._kind("layer.feed_forward") == "mlp" and not self._is_shared:
            return self._mlp("layer.feed_forward")
        return f"_feed_forward(args{', layer' if self._feed_forward_needs_layer() else ''})"

    # ------------------------------------------------------------------------------------------------ feed-forward

    def _feed_forward_function(self) -> str:
        node = self.slots["layer.feed_forward"]
        needs_layer = self._feed_forward_needs_layer()
        if node["kind"] == "constant":
            text = self._mixture() if node["value"] == "moe" else self._mlp("layer.feed_forward")
            return self._function("_feed_forward", f"return {text}", text.partition("(")[0], needs_layer)
        dense, is_dense = self._mlp("layer.feed_forward"), self._dense_condition(node)
        body = f"if {is_dense}:\n        return {dense}\n    return {self._mixture()}"
        kind = f"{dense.partition('(')[0]} | MixtureOfExperts"
        return self._function("_feed_forward", body, kind, needs_layer)

    def _dense_condition(self, node: Mapping[str, Any]) -> str:
        """The text of "this layer has no experts", over a property that says that it has."""
        experts = {**node, "then": _truth(node["then"], "moe"), "otherwise": _truth(node["otherwise"], "moe")}
        text = self.arguments.write(experts, "layer.feed_forward")
        return text.removeprefix("not ") if text.startswith("not ") else f"not {text}"

    def _feed_forward_needs_layer(self) -> bool:
        below = [node for slot, node in self.slots.items() if slot.startswith("layer.feed_forward")]
        return any(map(depends_on_layer, below))

    # ---------------------------------------------------------------------------------------------------- rotation

    def _rotary(self) -> str:
        tables = self.arguments.tables
        if not tables:
            return "None"
        by_list = any(table.thetas for table in tables)
        if (
            self.slots["layer.rotary"]["kind"] == "rotary"
            and not by_list
            and not depends_on_layer(self.slots["layer.rotary.dim"])
        ):
            return self._table(self.slots["layer.rotary"])
        return "_rotary(args)"

    def _rotary_functions(self) -> Iterator[str]:
        if self._rotary() != "_rotary(args)":
            return
        node = self.slots["layer.rotary"]
        if node.get("thetas"):
            yield self._tables_by_list(node)
            return
        names: dict[str, str] = {}
        lines = []
        for table in self.arguments.tables:
            names[table.attribute] = table.attribute if len(self.arguments.tables) > 1 else "rotary"
            leaf = {"kind": "rotary", "layer_type": table.layer_type, "types": list(table.types), "theta": table.theta}
            lines.append(f"{names[table.attribute]} = {self._table(leaf)}")
        choice = self._rotary_choice(node, names)
        kind = "list[Rotary | None]" if "None" in choice else "list[Rotary]"
        lines.append(f"return [{choice} for layer in range(args.num_layers)]")
        body = "\n    ".join(lines)
        yield f"def _rotary(args: {self.pascal}Args) -> {kind}:\n    {body}\n"

    def _tables_by_list(self, node: Mapping[str, Any]) -> str:
        """A table for each theta in a list over layers."""
        attribute = self.arguments.tables[0].attribute
        table = self._table(node).replace(f"args.{attribute}", f"args.{attribute}.with_theta(theta)", 1)
        thetas = f"args.{self.arguments.attribute_of(node['thetas'])}"
        return (
            f"def _rotary(args: {self.pascal}Args) -> list[Rotary | None]:\n"
            f"    tables = {{theta: {table} for theta in set({thetas}) if theta}}\n"
            f"    return [tables.get(theta) for theta in {thetas}]\n"
        )

    def _rotary_choice(self, node: Mapping[str, Any], names: Mapping[str, str]) -> str:
        if node["kind"] == "rotary":
            tables = self.arguments.tables
            found = next(table for table in tables if table.layer_type == node.get("layer_type"))
            return names[found.attribute]
        if node["kind"] == "constant":
            return "None"
        if len(names) == 1 and any(node[key]["kind"] not in ("rotary", "constant") for key in ("then", "otherwise")):
            condition = self.arguments.write(_is_table(node), "layer.rotary")
            return f"{next(iter(names.values()))} if {condition} else None"
        then, otherwise = (self._rotary_choice(node[key], names) for key in ("then", "otherwise"))
        then = f"({then})" if " if " in then else then
        if node["kind"] == "when_equal":
            return f"{then} if {self.arguments.flag(node)} else {otherwise}"
        slot = "layer.rotary" if "None" in (then, otherwise) else "layer.rotary.is_sliding"
        if then == "None":
            condition = self.arguments.condition({"kind": "not", "condition": node["condition"]}, slot)
            return f"{otherwise} if {condition} else None"
        return f"{then} if {self.arguments.condition(node['condition'], slot)} else {otherwise}"

    def _table(self, node: Mapping[str, Any]) -> str:
        table = next(table for table in self.arguments.tables if table.layer_type == node.get("layer_type"))
        settings = f"args.{table.attribute}"
        if table.theta is not None:
            settings = f"RotaryArgs(theta={self.arguments.write(table.theta, 'layer.rotary.theta')})"
        path = "layer.rotary."
        dim = "args.head_dim" if self._is_same(f"{path}dim", "layer.attention.head_dim") else self._text(f"{path}dim")
        arguments = [settings, dim, *self._keywords(path, {"interleaved": False, "query_growth": 0.0})]
        arguments += self._keywords(path, {"growth_length": None})
        return f"Rotary({', '.join(arguments)})"

    # ----------------------------------------------------------------------------------------------------- helpers

    def _function(self, name: str, body: str, returns: str, needs_layer: bool = True) -> str:
        parameters = f"args: {self.pascal}Args{', layer: int' if needs_layer else ''}"
        return f"def {name}({parameters}) -> {returns}:\n    {body}\n"


_SHORT: Final = 4
"""An attention layer with more keywords than this gets a function of its own."""


def _is_table(node: Mapping[str, Any]) -> dict[str, Any]:
    """The choice of a table as the question whether there is one."""
    if node["kind"] in ("rotary", "constant"):
        return {"kind": "constant", "value": node["kind"] == "rotary"}
    return {**node, **{key: _is_table(node[key]) for key in ("then", "otherwise")}}


def with_norm_function(code: str, pascal: str) -> str:
    """The code with a function for the norm that it has most often, where that is often."""
    calls = [text for text in _norm_calls(code) if text.startswith(("RMSNorm(args.hidden_size", "LayerNorm(args.h"))]
    if not calls:
        return code
    common = max(calls, key=calls.count)
    if calls.count(common) < _HELPER_USES:
        return code
    function = f"def _norm(args: {pascal}Args) -> {common.partition('(')[0]}:\n    return {common}\n"
    return f"{code.replace(common, '_norm(args)')}\n\n{function}"


def _norm_calls(code: str) -> Iterator[str]:
    """Calls of norms without calls inside."""
    for name in ("RMSNorm(", "LayerNorm("):
        start = code.find(name)
        while start >= 0:
            end = code.index(")", start)
            if "(" not in code[start + len(name) : end]:
                yield code[start : end + 1]
            start = code.find(name, end)


def _constants(node: Mapping[str, Any]) -> list[Any]:
    if node["kind"] == "constant":
        return [node["value"]]
    return [value for key in ("then", "otherwise") for value in _constants(node[key])]


def _one(node: Mapping[str, Any]) -> Any:
    (value,) = _constants(node)
    return value


def _truth(node: Mapping[str, Any], wanted: Any) -> dict[str, Any]:
    """A choice between kinds as a choice between true and false."""
    if node["kind"] == "constant":
        return constant(node["value"] == wanted)
    return {**node, "then": _truth(node["then"], wanted), "otherwise": _truth(node["otherwise"], wanted)}


def imports_of(code: str, modules: Mapping[str, Sequence[str]] = MODULES) -> list[str]:
    """The import lines for the names that stand in the code."""
    import re

    words = set(re.findall(r"\w+", code))
    found = []
    for module, names in modules.items():
        used = sorted(name for name in names if name in words)
        if used:
            found.append(f"from {module} import {', '.join(used)}")
    return found
