"""Writes calls of classes of `areal.models.blocks`: keywords by slots that are not the default, norms, choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.porting.family import Constant, Field, WhenEqual
from areal.porting.records import ReportError
from areal.porting.write.arguments import is_among
from areal.porting.write.names import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.porting.write.arguments import Arguments


class Calls:
    """What writes the calls in a family's `model.py` from the slots of a report."""

    def __init__(self, arguments: Arguments, layout: Sequence[Mapping[str, Any]], pascal: str) -> None:
        self.arguments = arguments
        self.layout = layout
        self.slots = arguments.slots
        self.pascal = pascal

    def function(self, name: str, body: str, returns: str, needs_layer: bool = True) -> str:
        return f"def {name}(args: {self.pascal}Args{', layer: int' if needs_layer else ''}) -> {returns}:\n    {body}\n"

    def norm(self, path: str, shape: str) -> str:
        arguments = [shape, self.text(f"{path}.eps")]
        if self.kind(f"{path}.kind") == "rms":
            arguments += self.keywords(f"{path}.", {"offset": 0.0, "weight": True})
            return f"RMSNorm({', '.join(arguments)})"
        arguments += self.keywords(f"{path}.", {"offset": 0.0, "weight": True, "bias": True})
        return f"LayerNorm({', '.join(arguments)})"

    def optional_norm(self, path: str, shape: str) -> str:
        return self.choice(path, self.norm(path, shape)) if self.is_possible(path) else "None"

    def text(self, slot: str) -> str:
        return self.arguments.access(slot)

    def kind(self, slot: str) -> Any:
        """Return the value of a slot that decides which code is written; "mixed" when it depends on the layer."""
        node = self.slots[slot]
        if isinstance(node, Constant):
            return node.value
        if slot == "layer.feed_forward":
            return "mixed"
        raise ReportError(
            f"{slot} depends on the config, which the template cannot write",
            where=slot,
            fix="write this family by hand, with `areal-new model NAME --analyze-only` as its checklist",
        )

    def is_possible(self, slot: str) -> bool:
        """Whether the record of a slot is there for some config."""
        node = self.slots.get(slot)
        return node is not None and node not in (Constant(False), Constant(None))

    def is_same(self, first: str, second: str) -> bool:
        return first not in self.slots or self.slots[first] == self.slots.get(second)

    def choice(self, slot: str, text: str) -> str:
        """Return the text, or None where the slot of the record says that it is missing."""
        node = self.slots[slot]
        if isinstance(node, Constant):
            return text
        return f"{text} if {self.text(slot)} else None"

    def keywords(self, path: str, defaults: Mapping[str, Any]) -> list[str]:
        """`name=value` for each slot that is not the block's default."""
        return [
            f"{name}={self._word(path, name) if name in _ALTERNATIVES else self.text(path + name)}"
            for name, default in defaults.items()
            if path + name in self.slots
            and not (isinstance(node := self.slots[path + name], Constant) and is_among(node.value, [default]))
        ]

    def _word(self, path: str, name: str) -> str:
        """Return a keyword that is one of a few words; a field that names one is compared with them."""
        node = self.slots[path + name]
        if not isinstance(node, Field):
            return self.text(path + name)
        *words, last = _ALTERNATIVES[name]
        text = literal(last)
        for word in reversed(words):
            chosen = WhenEqual(node.name, word, Constant(True), Constant(False))
            text = f"{literal(word)} if {self.arguments.flag(chosen)} else {text}"
        return text


_ALTERNATIVES: Final = {
    "gate": ("none", "elementwise", "headwise"),
    "gate_function": ("sigmoid", "softplus"),
    "group_score": ("max", "top2_sum"),
    "order": ("score_first", "select_first"),
    "score": ("softmax", "sigmoid", "sparse_mixer"),
}
"""Keywords that take one of a few words, which a field of a config can name too."""
