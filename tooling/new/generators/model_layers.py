"""The layers inside a block, as constructor calls: attention, feed-forward layers, norms and positions.

A keyword is written where its slot is not the default of the class. Where a slot depends on the config or on the layer,
the call says the attribute or the property of the arguments that decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.new.generators.model_expressions import depends_on_layer
from tooling.new.generators.model_names import literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tooling.new.generators.model_arguments import Arguments

_ALTERNATIVES: Final = {
    "gate": ("none", "elementwise", "headwise"),
    "group_score": ("max", "top2_sum"),
    "order": ("score_first", "select_first"),
    "score": ("softmax", "sigmoid"),
}
"""Keywords that take one of a few words, which a field of a config can name too."""


class LayerCode:
    """Writes calls from the slots of a report."""

    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.slots = arguments.slots

    # --------------------------------------------------------------------------------------------------- attention

    def _attention_type(self) -> str:
        return "LatentAttention" if self._kind("layer.attention") == "latent" else "SelfAttention"

    def _attention(self) -> str:
        return self._latent_attention() if self._kind("layer.attention") == "latent" else self._self_attention()

    def _self_attention(self) -> str:
        path = "layer.attention."
        arguments = ["layer", "args"]
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            if depends_on_layer(self.slots[path + name]):
                arguments.append(f"{name}={self._text(path + name)}")
        if not self._is_same(path + "value_dim", path + "head_dim"):
            arguments.append(f"value_dim={self._text(path + 'value_dim')}")
        arguments += self._biases()
        if not self._is_usual_scale():
            arguments.append(f"scale={self._text(path + 'scale')}")
        arguments += self._query_key_norms()
        arguments += self._keywords("layer.", {"window": None, "chunk": None})
        arguments += self._keywords(path, {"softcap": None, "sinks": False, "clip": None, "gate": "none"})
        arguments += self._alibi()
        return f"SelfAttention({', '.join(arguments)})"

    def _biases(self) -> list[str]:
        path, found = "layer.attention.", []
        query = self.slots[f"{path}query_bias"]
        if query != constant(False):
            found.append(f"qkv_bias={self._text(f'{path}query_bias')}")
        for name in ("key_bias", "value_bias"):
            if self.slots[path + name] != query:
                found.append(f"{name}={self._text(path + name)}")
        if self.slots[f"{path}output_bias"] != constant(False):
            found.append(f"output_bias={self._text(f'{path}output_bias')}")
        return found

    def _is_usual_scale(self) -> bool:
        """Whether the scale is that of the width of a head, which blocks take by default."""
        scale, width = self.slots["layer.attention.scale"], self.slots["layer.attention.head_dim"]
        if scale["kind"] == "constant" and width["kind"] == "constant":
            return bool(abs(scale["value"] - width["value"] ** -0.5) < 1e-9)
        filled = self._filled(width)
        return scale["kind"] == "product" and filled is not None and _is_inverse_root(scale, filled)

    def _filled(self, node: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A width as one product; the field of one that is filled when it is null."""
        if node["kind"] in ("field", "when_null"):
            return {"factor": 1.0, "powers": {node.get("name") or node["field"]: 1.0}}
        return node if node["kind"] == "product" else None

    def _query_key_norms(self) -> list[str]:
        path, found = "layer.attention.", []
        scope = self._kind(f"{path}norm_scope") if f"{path}norm_scope" in self.slots else "head"
        heads = {"query": "args.num_heads", "key": "args.num_kv_heads"}
        for part in ("query", "key"):
            shape = {
                "head": "args.head_dim",
                "each_head": f"({heads[part]}, args.head_dim)",
                "full": f"{heads[part]} * args.head_dim",
            }[scope]
            if self._is_possible(f"{path}{part}_norm"):
                found.append(f"{part}_norm={self._optional_norm(f'{path}{part}_norm', shape)}")
        if found and scope == "full":
            found.append("full_width_norms=True")
        return found + (self._keywords(path, {"norm_after_rotary": False}) if found else [])

    def _alibi(self) -> list[str]:
        node = self.slots.get("layer.attention.alibi", constant(False))
        if node == constant(False):
            return []
        scale = self._text("layer.attention.alibi_scale")
        return [f"alibi={self._choice('layer.attention.alibi', scale)}"]

    def _latent_attention(self) -> str:
        path = "layer.attention."
        arguments = ["layer", "args"]
        for name in ("query_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim"):
            arguments.append(f"{name}={self._text(path + name)}")
        compressed = self._query_norm(path)
        arguments.append(f"query_norm={compressed}")
        arguments.append(f"kv_norm={self._norm(f'{path}kv_norm', self._text(f'{path}kv_rank'))}")
        arguments += self._keywords(path, {"query_bias": False, "kv_bias": False, "output_bias": False})
        arguments.append(f"scale={self._text(f'{path}scale')}")
        arguments += self._keywords(path, {"softcap": None})
        arguments += self._keywords("layer.", {"window": None, "chunk": None})
        arguments += self._keywords(path, {"query_latent_scale": 1.0, "kv_latent_scale": 1.0})
        return f"LatentAttention({', '.join(arguments)})"

    # ------------------------------------------------------------------------------------------------ feed-forward

    def _mlp(self, path: str) -> str:
        gated = self._kind(f"{path}.gated")
        activation = self.slots[f"{path}.activation"]
        arguments = ["args.hidden_size", self._text(f"{path}.intermediate_size")]
        if not gated or activation != constant("silu"):
            arguments.append(f"activation={self._text(f'{path}.activation')}")
        bias, output = self.slots[f"{path}.bias"], self.slots[f"{path}.output_bias"]
        arguments += self._keywords(f"{path}.", {"bias": False})
        if output != bias:
            arguments.append(f"output_bias={self._text(f'{path}.output_bias')}")
        if gated:
            arguments += self._keywords(f"{path}.", {"clamp": None, "up_offset": 0.0})
        if self._is_learned(path):
            arguments.append("learned_activation=True")
        return f"{'GatedMLP' if gated else 'MLP'}({', '.join(arguments)})"

    def _is_learned(self, path: str) -> bool:
        """Whether the activation of a feed-forward layer may have parameters, which are stored somewhere."""
        module = path.replace("layer.feed_forward", "layers.*.mlp").replace(".shared", ".shared_experts")
        stored = [name for row in self.arguments.report["layout"] for name in row["ours"]]
        return any(f"{name}.".startswith(f"{module}.activation.") for name in stored)

    def _mixture(self) -> str:
        path = "layer.feed_forward."
        router = ["args.hidden_size", self._text(f"{path}router.num_experts"), self._text(f"{path}router.top_k")]
        defaults: dict[str, Any] = {"score": "softmax", "order": "score_first", "normalize": False, "scale": 1.0}
        defaults |= {"bias": False, "selection_bias": False, "groups": 1, "top_groups": 1}
        router += self._keywords(f"{path}router.", defaults)
        if self.slots[f"{path}router.groups"] != constant(1):
            router += self._keywords(f"{path}router.", {"group_score": "top2_sum"})
        experts = ["args.hidden_size", self._text(f"{path}experts.intermediate_size"), router[1]]
        experts += self._keywords(f"{path}experts.", {"activation": "silu", "gated": True, "bias": False})
        experts += self._keywords(f"{path}experts.", {"clamp": None, "up_offset": 0.0})
        arguments = [f"router=Router({', '.join(router)})", f"experts=Experts({', '.join(experts)})"]
        if self._is_possible(f"{path}shared"):
            arguments.append(f"shared_experts={self._choice(f'{path}shared', self._mlp(f'{path}shared'))}")
            arguments += self._keywords(path, {"shared_gate": False, "shared_scale": 1.0})
        return f"MixtureOfExperts({', '.join(arguments)})"

    def _query_norm(self, path: str) -> str:
        """The norm of compressed queries, where there are any."""
        rank, node = self._text(f"{path}query_rank"), self.slots[f"{path}query_rank"]
        norm = self._optional_norm(f"{path}query_norm", rank)
        if node["kind"] == "constant" or norm == "None" or " if " in norm:
            return norm
        return f"{norm} if {rank} is not None else None" if self.arguments.can_be_none(node) else norm

    # ----------------------------------------------------------------------------------------- norms and positions

    def _norm(self, path: str, shape: str) -> str:
        arguments = [shape, self._text(f"{path}.eps")]
        if self._kind(f"{path}.kind") == "rms":
            arguments += self._keywords(f"{path}.", {"offset": 0.0, "weight": True})
            return f"RMSNorm({', '.join(arguments)})"
        arguments += self._keywords(f"{path}.", {"offset": 0.0, "weight": True, "bias": True})
        return f"LayerNorm({', '.join(arguments)})"

    def _optional_norm(self, path: str, shape: str) -> str:
        return self._choice(path, self._norm(path, shape)) if self._is_possible(path) else "None"

    def _positions(self) -> str:
        learned = self._kind("positions.kind") == "learned"
        arguments = [self._text("positions.num_positions"), "args.hidden_size"]
        more = {} if learned else {"interleaved": False, "endpoint": False}
        arguments += self._keywords("positions.", {"offset": 0, **more})
        return f"{'LearnedPositions' if learned else 'SinusoidalPositions'}({', '.join(arguments)})"

    def _head_transform(self) -> str:
        path = "head_transform."
        arguments = ["args.hidden_size", f"activation={self._text(f'{path}activation')}"]
        arguments += self._keywords(path, {"bias": False})
        arguments.append(f"norm={self._norm(f'{path}norm', 'args.hidden_size')}")
        return f"HeadTransform({', '.join(arguments)})"

    # ----------------------------------------------------------------------------------------------------- helpers

    def _text(self, slot: str) -> str:
        return self.arguments.access(slot)

    def _kind(self, slot: str) -> Any:
        """The value of a slot that decides which code is written; "mixed" when it depends on the layer."""
        node = self.slots[slot]
        if node["kind"] == "constant":
            return node["value"]
        if slot == "layer.feed_forward":
            return "mixed"
        raise UsageError(
            f"{slot} depends on the config, which the template cannot write",
            where=slot,
            fix="write this family by hand, with `areal-new model NAME --analyze-only` as its checklist",
        )

    def _is_possible(self, slot: str) -> bool:
        """Whether the record of a slot is there for some config."""
        node = self.slots.get(slot)
        return node is not None and node not in (constant(False), constant(None))

    def _is_same(self, first: str, second: str) -> bool:
        return first not in self.slots or self.slots[first] == self.slots.get(second)

    def _choice(self, slot: str, text: str) -> str:
        """The text, or None where the slot of the record says that it is missing."""
        node = self.slots[slot]
        if node["kind"] == "constant":
            return text
        return f"{text} if {self._text(slot)} else None"

    def _keywords(self, path: str, defaults: Mapping[str, Any]) -> list[str]:
        """`name=value` for each slot that is not the block's default."""
        return [
            f"{name}={self._word(path, name) if name in _ALTERNATIVES else self._text(path + name)}"
            for name, default in defaults.items()
            if path + name in self.slots and not _is_constant(self.slots[path + name], default)
        ]

    def _word(self, path: str, name: str) -> str:
        """A keyword that is one of a few words; a field that names one is compared with them."""
        node = self.slots[path + name]
        if node["kind"] != "field":
            return self._text(path + name)
        *words, last = _ALTERNATIVES[name]
        text = literal(last)
        for word in reversed(words):
            chosen = {"kind": "when_equal", "field": node["name"], "value": word}
            text = f"{literal(word)} if {self.arguments.flag(chosen)} else {text}"
        return text


def constant(value: Any) -> dict[str, Any]:
    """The expression that is always this value."""
    return {"kind": "constant", "value": value}


def _is_inverse_root(scale: Mapping[str, Any], width: Mapping[str, Any]) -> bool:
    powers = {name: -2 * float(power) for name, power in scale["powers"].items()}
    wanted = {name: float(power) for name, power in width["powers"].items()}
    return powers == wanted and abs(float(scale["factor"]) - float(width["factor"]) ** -0.5) < 1e-9


def _is_constant(node: Mapping[str, Any], value: Any) -> bool:
    return bool(
        node["kind"] == "constant"
        and node["value"] == value
        and isinstance(node["value"], bool) == isinstance(value, bool)
    )
