"""Writes the code of a family's `model.py`: blocks and layers, their choice by layer and config, and rotations."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from areal.porting.bind.expressions import depends_on_layer, walk
from areal.porting.family import Constant, Field, Negation, PerLayer, Product, RotaryField, WhenEqual, WhenNull
from areal.porting.records import ReportError
from areal.porting.spec import BLOCKS, EXTRA_NORMS
from areal.porting.write.arguments import part_of
from areal.porting.write.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from areal.porting.family import Expression
    from areal.porting.spec import BlockKind


MODULES: Final = {
    "areal.models.blocks.attention": ("SelfAttention",),
    "areal.models.blocks.block": tuple(dict.fromkeys(row.name for row in BLOCKS.values())),
    "areal.models.blocks.decoder": ("DecoderModel",),
    "areal.models.blocks.experts_beside": ("ExpertsBeside",),
    "areal.models.blocks.gated_delta": ("GatedDelta",),
    "areal.models.blocks.indexer": ("TokenIndexer",),
    "areal.models.blocks.latent_attention": ("LatentAttention",),
    "areal.models.blocks.layer_embeddings": ("LayerEmbeddings", "LayerInput"),
    "areal.models.blocks.lightning": ("LightningAttention",),
    "areal.models.blocks.mamba1": ("Mamba1",),
    "areal.models.blocks.mamba2": ("Mamba2",),
    "areal.models.blocks.mlp": ("MLP", "GatedMLP", "HeadTransform"),
    "areal.models.blocks.moe": ("Experts", "MixtureOfExperts", "Router"),
    "areal.models.blocks.norms": ("LayerNorm", "RMSNorm"),
    "areal.models.blocks.positions": ("LearnedPositions", "SinusoidalPositions"),
    "areal.models.blocks.rg_lru": ("RGLRU",),
    "areal.models.blocks.rotary": ("QueryGrowth", "Rotary"),
    "areal.models.blocks.short_convolution": ("ShortConvolution",),
    "areal.models.decoder_args": ("RotaryArgs",),
}
"""Where the classes in the code come from."""

STATES: Final = {
    "delta": "layer.delta",
    "lightning": "layer.lightning",
    "mamba": "layer.mamba",
    "mamba1": "layer.mamba1",
    "rglru": "layer.rglru",
    "short_convolution": "layer.convolution",
}
"""Kind of mixer with a state to the slot of its values."""


class ModelCode(Calls):
    """Writes the body of `model.py` from the slots of a report.

    A keyword is written where its slot is not the default of the class. Where a slot depends on the config or on the
    layer, the call says the attribute or the property of the arguments that decides.
    """

    _is_shared = False
    """Whether two kinds of block are made of the same layers, which then get functions."""

    # ------------------------------------------------------------------------------------------------- whole model

    def decoder_keywords(self) -> list[str]:
        """Keywords of `DecoderModel.__init__` behind the arguments."""
        lines = ["layers=(_block(args, layer) for layer in range(args.num_layers))"]
        lines.append(f"norm={self.optional_norm('final_norm', 'args.hidden_size')}")
        lines.append(f"rotary={self._rotary()}")
        lines += self.keywords("", {"embedding_multiplier": 1.0})
        if self.is_possible("positions"):
            lines.append(f"embed_positions={self.choice('positions', self._positions())}")
        if self.is_possible("embedding_norm"):
            lines.append(f"embed_norm={self.optional_norm('embedding_norm', 'args.hidden_size')}")
        if self.is_possible("layer_embeddings"):
            path = "layer_embeddings."
            names = ("vocab_size", "size", "multiplier", "projection_multiplier", "sum_multiplier")
            given = ["args.hidden_size", "args.num_layers", *(f"{name}={self.text(path + name)}" for name in names)]
            given.append(f"norm={self.norm(f'{path}norm', self.text(f'{path}size'))}")
            text = f"LayerEmbeddings({', '.join(given)})"
            lines.append(f"layer_embeddings={self.choice('layer_embeddings', text)}")
        if self.is_possible("head_transform"):
            lines.append(f"head_transform={self.choice('head_transform', self._head_transform())}")
        lines += self.keywords("", {"head_bias": False, "logit_multiplier": 1.0, "logit_softcap": None})
        return lines

    def functions(self) -> list[str]:
        """Return the functions behind the class, as source."""
        block = self._block_function()
        parts = [block, *self._rotary_functions()]
        if "_attention(" in block:
            text = self._mixer(self._mixers()[0])
            parts.append(self.function("_attention", f"return {text}", text.partition("(")[0]))
        if "_mixer(" in block:
            parts.append(self._mixer_function())
        if "_feed_forward(" in block:
            parts.append(self._feed_forward_function())
        return parts

    # ------------------------------------------------------------------------------------------------------ blocks

    def _block_function(self) -> str:
        slot = "layer.block"
        node = self.slots[slot]
        if isinstance(node, Constant):
            kinds = [node.value]
            body = f"return {self._block(node.value)}"
        elif isinstance(node, WhenEqual) and isinstance(node.then, Constant) and isinstance(node.otherwise, Constant):
            kinds = [node.then.value, node.otherwise.value]
            then, otherwise = (BLOCKS[kind] for kind in kinds)
            condition = self.arguments.flag(node)
            if set(self._children(kinds[0])) == set(self._children(kinds[1])):
                choice = (
                    f"block: type[{then.name} | {otherwise.name}] = {then.name} if {condition} else {otherwise.name}"
                )
                body = f"{choice}\n    return {self._block(kinds[1], 'block')}"
            else:
                self._is_shared = True
                body = f"if {condition}:\n        return {self._block(kinds[0])}\n    return {self._block(kinds[1])}"
        elif isinstance(node, PerLayer) and isinstance(node.then, Constant) and isinstance(node.otherwise, Constant):
            kinds = [node.then.value, node.otherwise.value]
            first = _mapped(node, lambda leaf: leaf == node.then)
            # Kinds of blocks often are those of mixers.
            same = (STATES[kind] for kind in self._mixers() if kind in STATES and self._is_kind(kind) == first)
            is_first = self.arguments.write(first, next(same, f"{slot}.is_{kinds[0]}"))
            self._is_shared = True
            body = f"if {is_first}:\n        return {self._block(kinds[0])}\n    return {self._block(kinds[1])}"
        else:
            raise ReportError(
                "the kind of block depends on the layer in a way that the template cannot write",
                where=slot,
                fix="write this family by hand, with `areal-new model NAME --analyze-only` as its checklist",
            )
        return self.function("_block", body, " | ".join(sorted({BLOCKS[kind].name for kind in kinds})))

    def _block(self, kind: BlockKind, name: str = "") -> str:
        name = name or BLOCKS[kind].name
        arguments = []
        for child in self._children(kind):
            if child == "mlp" and self.slots["layer.feed_forward"] == Constant("none"):
                arguments.append("mlp=None")
            elif child == "self_attn":
                arguments.append(f"self_attn={self._self_attn()}")
            elif child == "mlp" and self.kind("layer.feed_forward") == "mlp" and not self._is_shared:
                arguments.append(f"mlp={self._mlp('layer.feed_forward')}")
            elif child == "mlp":
                arguments.append(f"mlp=_feed_forward(args{', layer' if self._feed_forward_needs_layer() else ''})")
            else:
                slot = f"layer.norms.{child}"
                text = self.norm(slot, "args.hidden_size")
                arguments.append(f"{child}={self.choice(slot, text) if slot in self.slots else text}")
        arguments += self._beside()
        arguments += self._stream_factors() if kind == "normed_stream" else []
        arguments += self.keywords("layer.", {"residual_multiplier": 1.0})
        arguments += self.keywords("layer.", {"output_scale": False}) if kind == "sandwich" else []
        if kind == "sandwich" and self.is_possible("layer.experts_beside"):
            path = "layer.experts_beside"
            given = self._router_and_experts(f"{path}.")
            names = ("router_norm", "mlp_norm", "input_norm", "output_norm")
            given += [f"{name}={self.norm(f'{path}.{name}', 'args.hidden_size')}" for name in names]
            given += self.keywords(f"{path}.", {"router_multiplier": 1.0})
            text = f"ExpertsBeside({', '.join(given)})"
            arguments.append(f"experts_beside={self.choice(path, text)}")
        if kind == "sandwich" and self.is_possible("layer.layer_input"):
            path = "layer.layer_input"
            given = ["args.hidden_size", self.text(f"{path}.size"), f"activation={self.text(f'{path}.activation')}"]
            given.append(f"norm={self.norm(f'{path}.norm', 'args.hidden_size')}")
            text = f"LayerInput({', '.join(given)})"
            arguments.append(f"layer_input={self.choice(path, text)}")
        if kind == "sandwich" and self.is_possible("layer.counted_sums"):
            arguments.append(f"first_sum={self.choice('layer.counted_sums', '2 * layer + 2')}")
        return f"{name}({', '.join(arguments)})"

    def _stream_factors(self) -> list[str]:
        """Return the keywords of a block whose sums multiply what they add."""
        found = []
        for part in ("attention", "mlp"):
            pair = [f"layer.factors.{part}_{of}" for of in ("stream", "branch")]
            if any(self.slots[slot] != Constant(1.0) for slot in pair):
                found.append(f"{part}_factors=({', '.join(self.text(slot) for slot in pair)})")
        return found

    def _beside(self) -> list[str]:
        """Return the keywords of a block for a mixer beside its attention."""
        if "layer.beside" not in self.slots:
            return []
        path = "layer.beside."
        found = [f"beside={self._mixer(self.kind('layer.beside'))}"]
        for name, prefix in (("attention_multipliers", f"{path}attention_"), ("beside_multipliers", path)):
            pair = [f"{prefix}{part}_multiplier" for part in ("input", "output")]
            if any(self.slots[slot] != Constant(1.0) for slot in pair):
                found.append(f"{name}=({', '.join(self.text(slot) for slot in pair)})")
        return found

    def _children(self, kind: BlockKind) -> list[str]:
        """Return the keywords of a block."""
        extra = (name for name in EXTRA_NORMS.get(kind, ()) if self.is_possible(f"layer.norms.{name}"))
        return [*BLOCKS[kind].children, *extra]

    # ------------------------------------------------------------------------------------------------ feed-forward

    def _feed_forward_function(self) -> str:
        node = self.slots["layer.feed_forward"]
        needs_layer = self._feed_forward_needs_layer()
        if isinstance(node, Constant):
            text = self._mixture() if node.value == "moe" else self._mlp("layer.feed_forward")
            return self.function("_feed_forward", f"return {text}", text.partition("(")[0], needs_layer)
        kinds = {part.value for part in walk(node) if isinstance(part, Constant)}
        body, classes = "", []
        if "none" in kinds:
            there = _mapped(node, lambda leaf: leaf != Constant("none"))
            condition = self.arguments.write(there, "layer.feed_forward.there")
            body += f"if {_negated(condition)}:\n        return None\n    "
        if "mlp" in kinds:
            dense = self._mlp("layer.feed_forward")
            classes.append(dense.partition("(")[0])
            if "moe" in kinds:
                # The property says that a layer has experts; the code asks whether it has none.
                experts = _mapped(node, lambda leaf: leaf == Constant("moe"))
                has_experts = self.arguments.write(experts, "layer.feed_forward")
                body += f"if {_negated(has_experts)}:\n        return {dense}\n    "
        body += f"return {self._mixture()}" if "moe" in kinds else f"return {dense}"
        classes += (["MixtureOfExperts"] if "moe" in kinds else []) + (["None"] if "none" in kinds else [])
        return self.function("_feed_forward", body, " | ".join(classes), needs_layer)

    def _feed_forward_needs_layer(self) -> bool:
        below = [node for slot, node in self.slots.items() if slot.startswith("layer.feed_forward")]
        return any(map(depends_on_layer, below))

    # ---------------------------------------------------------------------------------------------------- rotation

    def _rotary(self) -> str:
        tables = self.arguments.tables
        if not tables:
            return self._growth()
        node = self.slots["layer.rotary"]
        if isinstance(node, RotaryField) and not node.thetas and not depends_on_layer(self.slots["layer.rotary.dim"]):
            return self._table(node)
        return "_rotary(args)"

    def _rotary_functions(self) -> Iterator[str]:
        if self._rotary() != "_rotary(args)":
            return
        node, tables = self.slots["layer.rotary"], self.arguments.tables
        if isinstance(node, RotaryField) and node.thetas:  # a table for each theta in a list over layers
            settings = f"args.{next(iter(tables))}"
            table = self._table(node).replace(settings, f"{settings}.with_theta(theta)", 1)
            thetas = f"args.{self.arguments.attribute_of(node.thetas)}"
            growth = self._growth()
            found = "tables.get(theta)" if growth == "None" else f"tables.get(theta, {growth})"
            kind = "Rotary | None" if growth == "None" else "Rotary | QueryGrowth | None"
            yield (
                f"def _rotary(args: {self.pascal}Args) -> list[{kind}]:\n"
                f"    tables = {{theta: {table} for theta in set({thetas}) if theta}}\n"
                f"    return [{found} for theta in {thetas}]\n"
            )
            return
        names = {repr(table): attribute if len(tables) > 1 else "rotary" for attribute, table in tables.items()}
        lines = [f"{names[repr(table)]} = {self._table(table)}" for table in tables.values()]
        choice = self._rotary_choice(node, names)
        growth = self._growth()
        kind = "list[Rotary | None]" if "None" in choice else "list[Rotary]"
        if growth != "None":
            lines.append(f"growth = {growth}")
            choice = re.sub(r"\bNone\b", "growth", choice)
            kind = f"list[Rotary | QueryGrowth{' | None' if growth.endswith('None') else ''}]"
        lines.append(f"return [{choice} for layer in range(args.num_layers)]")
        body = "\n    ".join(lines)
        yield f"def _rotary(args: {self.pascal}Args) -> {kind}:\n    {body}\n"

    def _rotary_choice(self, node: Expression, names: Mapping[str, str]) -> str:
        """names: text of a table to its variable."""
        if isinstance(node, RotaryField):
            return names[repr(node)]
        if not isinstance(node, PerLayer | WhenEqual):
            return "None"
        if len(names) == 1 and any(isinstance(part, PerLayer | WhenEqual) for part in (node.then, node.otherwise)):
            condition = self.arguments.write(_mapped(node, lambda leaf: isinstance(leaf, RotaryField)), "layer.rotary")
            return f"{next(iter(names.values()))} if {condition} else None"
        then, otherwise = self._rotary_choice(node.then, names), self._rotary_choice(node.otherwise, names)
        then = f"({then})" if " if " in then else then
        if isinstance(node, WhenEqual):
            return f"{then} if {self.arguments.flag(node)} else {otherwise}"
        slot = "layer.rotary" if "None" in (then, otherwise) else "layer.rotary.is_sliding"
        if then == "None":
            return f"{otherwise} if {self.arguments.condition(Negation(node.condition), slot)} else None"
        if "sliding" in otherwise and "sliding" not in then:  # what is asked is whether windows slide
            return f"{otherwise} if {self.arguments.condition(Negation(node.condition), slot)} else {then}"
        return f"{then} if {self.arguments.condition(node.condition, slot)} else {otherwise}"

    def _table(self, node: RotaryField) -> str:
        tables = self.arguments.tables
        settings = next(f"args.{name}" for name, table in tables.items() if table == node)
        if node.theta is not None:
            theta = f"theta={self.arguments.write(node.theta, 'layer.rotary.theta')}"
            if node.stretch is not None:
                stretch = self.arguments.write(node.stretch, "layer.rotary.stretch")
                theta += f', rotary_type="linear", parameters={{"factor": {stretch}}}'
            settings = f"RotaryArgs({theta})"
        path = "layer.rotary."
        dim = "args.head_dim"
        if depends_on_layer(self.slots[f"{path}dim"]) or not self.is_same(f"{path}dim", "layer.attention.head_dim"):
            dim = self._rotated(node)
        defaults = {"interleaved": False, "query_growth": 0.0, "growth_length": None, **_OF_GROWTH}
        return f"Rotary({', '.join([settings, dim, *self.keywords(path, defaults)])})"

    def _rotated(self, table: RotaryField) -> str:
        """Return how many dimensions a table turns: of one for a kind of layers, its part of a head."""
        part = part_of(table)
        for node in walk(self.slots["layer.rotary.dim"]):
            if isinstance(node, Product) and part in dict(node.powers):
                settings = next(name for name, each in self.arguments.tables.items() if each == table)
                return f"args.{settings}.rotated_dim(args.head_dim)"
        if not depends_on_layer(self.slots["layer.rotary.dim"]):
            return self.text("layer.rotary.dim")
        dim = _beside(self.slots["layer.rotary"], self.slots["layer.rotary.dim"], table)
        if dim is None or depends_on_layer(dim):
            raise ReportError(
                "layers of one rotary table turn different numbers of dimensions, which the template cannot write",
                where="layer.rotary.dim",
                fix="write this family by hand, with `areal-new model NAME --analyze-only` as its checklist",
            )
        return self.arguments.write(dim, "layer.rotary.dim")

    def _growth(self) -> str:
        """Return what lets queries grow in layers that are not rotated; "None" where they never do."""
        if not self.is_possible("layer.growth"):
            return "None"
        path = "layer.growth."
        if any(depends_on_layer(node) for slot, node in self.slots.items() if slot.startswith("layer.growth")):
            raise ReportError(
                "queries of layers that are not rotated grow differently, which the template cannot write",
                where="layer.growth",
                fix="write this family by hand, with `areal-new model NAME --analyze-only` as its checklist",
            )
        arguments = [self.text(f"{path}query_growth"), self.text(f"{path}growth_length")]
        arguments += self.keywords(path, _OF_GROWTH)
        return self.choice("layer.growth", f"QueryGrowth({', '.join(arguments)})")

    # --------------------------------------------------------------------------------------------------- attention

    def _self_attn(self) -> str:
        """Return the mixer of a block: itself where it is short, or the call of a function."""
        kinds = self._mixers()
        if len(kinds) > 1:
            return "_mixer(args, layer)"
        text = self._mixer(kinds[0])
        return text if text.count("=") <= _SHORT and not self._is_shared else "_attention(args, layer)"

    def _mixers(self) -> list[str]:
        """Return the kinds of mixers that layers have."""
        leaves = (part.value for part in walk(self.slots["layer.attention"]) if isinstance(part, Constant))
        return list(dict.fromkeys(leaves))

    def _mixer(self, kind: str) -> str:
        return {
            "none": lambda: "None",
            "attention": self._self_attention,
            "latent": self._latent_attention,
            "delta": self._gated_delta,
            "lightning": self._lightning,
            "mamba": self._mamba,
            "mamba1": self._mamba1,
            "rglru": self._rg_lru,
            "short_convolution": self._short_convolution,
        }[kind]()

    def _is_kind(self, kind: str) -> Expression:
        """Return whether a layer has this kind of mixer."""
        return _mapped(self.slots["layer.attention"], lambda leaf: isinstance(leaf, Constant) and leaf.value == kind)

    def _mixer_function(self) -> str:
        """Return the function that chooses between mixers: those with a state are asked for, softmax is the rest."""
        node, kinds = self.slots["layer.attention"], self._mixers()
        *asked, last = sorted(kinds, key=lambda kind: (kind != "none", kind not in STATES))
        body = ""
        for kind in asked:
            if kind == "none":
                flag = _mapped(node, lambda leaf: leaf != Constant("none"))
                condition = self.arguments.write(flag, "layer.attention")
                body += f"if {_negated(condition)}:\n        return None\n    "
                continue
            condition = self.arguments.write(self._is_kind(kind), STATES.get(kind, "layer.attention.is_latent"))
            body += f"if {condition}:\n        return {self._mixer(kind)}\n    "
        classes = {self._mixer(kind).partition("(")[0] for kind in kinds}
        annotation = " | ".join(sorted(classes, key=lambda name: (name == "None", name)))
        return self.function("_mixer", f"{body}return {self._mixer(last)}", annotation)

    def _sized(self, name: str, path: str, sizes: Sequence[str], defaults: dict[str, Any]) -> str:
        """Return the call of a mixer with these values, and with those that differ from the defaults."""
        given = ["layer", "args", *(f"{size}={self.text(path + size)}" for size in sizes)]
        return f"{name}({', '.join([*given, *self.keywords(path, defaults)])})"

    def _gated_delta(self) -> str:
        sizes = ("num_key_heads", "num_value_heads", "key_dim", "value_dim", "kernel_size", "norm_eps")
        defaults: dict[str, Any] = {"conv_activation": "silu", "max_rate": 1.0, "by_channel": False}
        defaults |= {"decay_floor": None, "decay_rank": None, "gate_rank": None, "gate": "silu"}
        return self._sized("GatedDelta", "layer.delta.", sizes, defaults)

    def _lightning(self) -> str:
        sizes = ("num_heads", "head_dim", "num_layers", "table_size", "norm_eps")
        return self._sized("LightningAttention", "layer.lightning.", sizes, {"activation": "silu"})

    def _mamba(self) -> str:
        path = "layer.mamba."
        sizes = ("num_heads", "head_dim", "num_groups", "state_size", "kernel_size", "norm_eps")
        arguments = ["layer", "args", *(f"{name}={self.text(path + name)}" for name in sizes)]
        if not self.is_same(f"{path}norm_groups", f"{path}num_groups"):
            arguments.append(f"norm_groups={self.text(f'{path}norm_groups')}")
        arguments += self.keywords(path, {"norm_first": False, "bias": False})
        if not self.is_same(f"{path}output_bias", f"{path}bias"):
            arguments.append(f"output_bias={self.text(f'{path}output_bias')}")
        defaults: dict[str, Any] = {"conv_bias": True, "conv_activation": "silu", "step_limits": [0.0, math.inf]}
        arguments += self.keywords(path, {**defaults, "multipliers": [1.0] * 5})
        return f"Mamba2({', '.join(arguments)})"

    def _mamba1(self) -> str:
        sizes = ("inner_size", "state_size", "step_rank", "kernel_size")
        defaults: dict[str, Any] = {"norm_eps": None, "norm_weights": False, "bias": False, "conv_bias": True}
        return self._sized("Mamba1", "layer.mamba1.", sizes, {**defaults, "conv_activation": "silu"})

    def _rg_lru(self) -> str:
        sizes = ("width", "num_blocks", "kernel_size", "activation")
        return self._sized("RGLRU", "layer.rglru.", sizes, dict.fromkeys(("bias", "output_bias", "conv_bias"), True))

    def _short_convolution(self) -> str:
        return self._sized("ShortConvolution", "layer.convolution.", ("kernel_size", "bias"), {})

    def _self_attention(self) -> str:
        path = "layer.attention."
        arguments = ["layer", "args"]
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            if depends_on_layer(self.slots[path + name]):
                arguments.append(f"{name}={self.text(path + name)}")
        if not self.is_same(path + "value_dim", path + "head_dim"):
            arguments.append(f"value_dim={self.text(path + 'value_dim')}")
        arguments += self._biases()
        if not self._is_usual_scale():
            arguments.append(f"scale={self.text(path + 'scale')}")
        arguments += self._query_key_norms()
        if self.is_possible(f"{path}value_norm"):
            width = self._width("value_dim" if f"{path}value_dim" in self.slots else "head_dim")
            arguments.append(f"value_norm={self.optional_norm(f'{path}value_norm', width)}")
        arguments += self.keywords(path, {"keys_as_values": False, "shares_keys": False})
        arguments += self.keywords("layer.", {"window": None, "chunk": None})
        arguments += self.keywords(path, {"softcap": None, "sinks": False, "clip": None, "value_scale": 1.0})
        arguments += self.keywords(path, {"gate": "none", "gate_function": "sigmoid", "gate_bias": False})
        arguments += self.keywords(path, {"differential_eps": None})
        if self.is_possible(f"{path}output_norm"):
            sizes = (self.text(path + name) for name in ("num_heads", "value_dim"))
            size = " * ".join(f"({text})" if " " in text else text for text in sizes)
            arguments.append(f"output_norm={self.optional_norm(f'{path}output_norm', size)}")
        if self.is_possible(f"{path}alibi"):
            arguments.append(f"alibi={self.choice(f'{path}alibi', self.text(f'{path}alibi_scale'))}")
        return f"SelfAttention({', '.join(arguments)})"

    def _biases(self) -> list[str]:
        path, found = "layer.attention.", []
        query = self.slots[f"{path}query_bias"]
        if query != Constant(False):
            found.append(f"qkv_bias={self.text(f'{path}query_bias')}")
        for name in ("key_bias", "value_bias"):
            if self.slots[path + name] != query:
                found.append(f"{name}={self.text(path + name)}")
        if self.slots[f"{path}output_bias"] != Constant(False):
            found.append(f"output_bias={self.text(f'{path}output_bias')}")
        return found

    def _is_usual_scale(self) -> bool:
        """Return whether the scale is that of the width of a head, which blocks take by default."""
        scale, width = self.slots["layer.attention.scale"], self.slots["layer.attention.head_dim"]
        if isinstance(scale, Constant) and isinstance(width, Constant):
            return bool(abs(scale.value - width.value**-0.5) < 1e-9)
        if isinstance(width, Field | WhenNull):  # the field of one that is filled when it is null
            name = width.name if isinstance(width, Field) else width.field
            width = Product(1.0, ((name, 1.0),))
        if not isinstance(scale, Product) or not isinstance(width, Product):
            return False
        # The width to the power -1/2: Product(0.125, (("head_dim", -0.5),)) of Product(64.0, (("head_dim", 1.0),)).
        powers = {name: -2 * power for name, power in scale.powers}
        return powers == dict(width.powers) and abs(scale.factor - width.factor**-0.5) < 1e-9

    def _query_key_norms(self) -> list[str]:
        path, found = "layer.attention.", []
        scope = self.kind(f"{path}norm_scope") if f"{path}norm_scope" in self.slots else "head"
        heads, width = {"query": "num_heads", "key": "num_kv_heads"}, self._width("head_dim")
        for part in ("query", "key"):
            number = f"args.{heads[part]}"
            if scope != "head" and depends_on_layer(self.slots[path + heads[part]]):
                number = self.text(path + heads[part])
            shape = {"head": width, "each_head": f"({number}, {width})", "full": f"{number} * {width}"}[scope]
            if self.is_possible(f"{path}{part}_norm"):
                found.append(f"{part}_norm={self.optional_norm(f'{path}{part}_norm', shape)}")
        if found and scope == "full":
            found.append("full_width_norms=True")
        return found + (self.keywords(path, {"norm_after_rotary": False}) if found else [])

    def _width(self, name: str) -> str:
        """Return the width of a head, or of a value head."""
        path = "layer.attention."
        if not depends_on_layer(self.slots[path + name]) and self.is_same(path + name, f"{path}head_dim"):
            return "args.head_dim"
        return self.text(path + name)

    def _latent_attention(self) -> str:
        path = "layer.attention."
        arguments = ["layer", "args"]
        for name in ("query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"):
            arguments.append(f"{name}={self.text(path + name)}")
        rank, node = self.text(f"{path}query_rank"), self.slots[f"{path}query_rank"]
        norm = self.optional_norm(f"{path}query_norm", rank)
        if (
            not isinstance(node, Constant)
            and norm != "None"
            and " if " not in norm
            and self.arguments.can_be_none(node)
        ):
            norm = f"{norm} if {rank} is not None else None"
        arguments.append(f"query_norm={norm}")
        arguments.append(f"kv_norm={self.norm(f'{path}kv_norm', self.text(f'{path}kv_rank'))}")
        arguments += self.keywords(path, {"query_bias": False, "kv_bias": False, "output_bias": False})
        arguments.append(f"scale={self.text(f'{path}scale')}")
        arguments += self.keywords(path, {"softcap": None})
        arguments += self.keywords("layer.", {"window": None, "chunk": None})
        arguments += self.keywords(path, {"query_latent_scale": 1.0, "kv_latent_scale": 1.0, "gate": "none"})
        if self.is_possible(f"{path}indexer"):
            arguments.append(f"indexer={self.choice(f'{path}indexer', self._token_indexer(rank))}")
        arguments += self.keywords(path, {"shares_selection": False})
        return f"LatentAttention({', '.join(arguments)})"

    def _token_indexer(self, query_rank: str) -> str:
        path = "layer.attention.indexer."
        sizes = ("num_heads", "head_dim", "top_k", "norm_eps")
        arguments = ["args.hidden_size", query_rank, *(f"{name}={self.text(path + name)}" for name in sizes)]
        arguments.append(f"rope_dim={self.text('layer.attention.rope_dim')}")
        arguments.append(f"interleaved={self.text(f'{path}interleaved')}")
        return f"TokenIndexer({', '.join(arguments)})"

    # ------------------------------------------------------------------------------------------------ feed-forward

    def _mlp(self, path: str) -> str:
        gated = self.kind(f"{path}.gated")
        activation = self.slots[f"{path}.activation"]
        arguments = ["args.hidden_size", self.text(f"{path}.intermediate_size")]
        if not gated or activation != Constant("silu"):
            arguments.append(f"activation={self.text(f'{path}.activation')}")
        bias, output = self.slots[f"{path}.bias"], self.slots[f"{path}.output_bias"]
        arguments += self.keywords(f"{path}.", {"bias": False})
        if output != bias:
            arguments.append(f"output_bias={self.text(f'{path}.output_bias')}")
        if gated:
            arguments += self.keywords(f"{path}.", {"clamp": None, "up_offset": 0.0, "multipliers": [1.0, 1.0]})
        if self.is_possible(f"{path}.inner_norm"):
            arguments.append(f"inner_norm={self.optional_norm(f'{path}.inner_norm', arguments[1])}")
        module = path.replace("layer.feed_forward", "layers.*.mlp").replace(".shared", ".shared_experts")
        if any(f"{name}.".startswith(f"{module}.activation.") for row in self.layout for name in row["ours"]):
            arguments.append("learned_activation=True")  # a parameter of the activation is stored
        return f"{'GatedMLP' if gated else 'MLP'}({', '.join(arguments)})"

    def _mixture(self) -> str:
        path = "layer.feed_forward."
        arguments = self._router_and_experts(path)
        if self.is_possible(f"{path}shared"):
            arguments.append(f"shared_experts={self.choice(f'{path}shared', self._mlp(f'{path}shared'))}")
            arguments += self.keywords(path, {"shared_gate": False, "shared_scale": 1.0})
        return f"MixtureOfExperts({', '.join(arguments)})"

    def _router_and_experts(self, path: str) -> list[str]:
        numbers = []
        for slot in ("router.num_experts", "router.top_k", "experts.intermediate_size"):
            # Where there are no experts, these may be null; a router of none refuses to be made.
            optional = " or 0" if self.arguments.can_be_none(self.slots[path + slot]) else ""
            numbers.append(f"{self.text(path + slot)}{optional}")
        router = ["args.hidden_size", *numbers[:2]]
        defaults: dict[str, Any] = {"score": "softmax", "order": "score_first", "normalize": False, "scale": 1.0}
        defaults |= {"bias": False, "selection_bias": False, "groups": 1, "top_groups": 1}
        router += self.keywords(f"{path}router.", defaults | {"jitter": 0.0})
        if self.slots[f"{path}router.groups"] != Constant(1):
            router += self.keywords(f"{path}router.", {"group_score": "top2_sum"})
        experts = ["args.hidden_size", numbers[2], numbers[0]]
        experts += self.keywords(f"{path}experts.", {"activation": "silu", "gated": True, "bias": False})
        experts += self.keywords(f"{path}experts.", {"clamp": None, "up_offset": 0.0})
        experts += self.keywords(path, {"weigh_inputs": False})
        return [f"router=Router({', '.join(router)})", f"experts=Experts({', '.join(experts)})"]

    # --------------------------------------------------------------------------------------------------- positions

    def _positions(self) -> str:
        learned = self.kind("positions.kind") == "learned"
        arguments = [self.text("positions.num_positions"), "args.hidden_size"]
        more = {} if learned else {"interleaved": False, "endpoint": False}
        arguments += self.keywords("positions.", {"offset": 0, **more})
        return f"{'LearnedPositions' if learned else 'SinusoidalPositions'}({', '.join(arguments)})"

    def _head_transform(self) -> str:
        path = "head_transform."
        arguments = ["args.hidden_size", f"activation={self.text(f'{path}activation')}"]
        arguments += self.keywords(path, {"bias": False})
        arguments.append(f"norm={self.norm(f'{path}norm', 'args.hidden_size')}")
        return f"HeadTransform({', '.join(arguments)})"


_OF_GROWTH: Final = {"growth_shift": 0, "growth_power": False}
_SHORT: Final = 4  # keywords of an attention layer; one with more gets a function of its own


def _mapped(node: Expression, truth: Callable[[Expression], bool]) -> Expression:
    """Return a choice between things as the same choice between true and false."""
    if isinstance(node, PerLayer | WhenEqual):
        then, otherwise = _mapped(node.then, truth), _mapped(node.otherwise, truth)
        return then if then == otherwise else replace(node, then=then, otherwise=otherwise)
    return Constant(truth(node))


def _beside(choice: Expression, other: Expression, leaf: Expression) -> Expression | None:
    """Return what a second choice by the same conditions has where the first one has `leaf`; None where they do not
    choose alike."""
    if choice == leaf or not depends_on_layer(other):
        return other
    if isinstance(choice, PerLayer) and isinstance(other, PerLayer) and choice.condition == other.condition:
        found = (_beside(choice.then, other.then, leaf), _beside(choice.otherwise, other.otherwise, leaf))
        there = [leaf in walk(part) for part in (choice.then, choice.otherwise)]
        return found[there.index(True)] if there.count(True) == 1 else None
    return None


def _negated(condition: str) -> str:
    """Return the negation of a condition that is one name, call or negation."""
    return condition.removeprefix("not ") if condition.startswith("not ") else f"not {condition}"


def imports_of(code: str, modules: Mapping[str, Sequence[str]] = MODULES) -> list[str]:
    """Return the import lines for the names that stand in the code."""
    words = set(re.findall(r"\w+", code))
    found = []
    for module, names in modules.items():
        used = sorted(name for name in names if name in words)
        if used:
            found.append(f"from {module} import {', '.join(used)}")
    return found
