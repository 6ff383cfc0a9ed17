"""Access paths of a client followed through a tree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tooling.python.access_paths import (
    AccessPath,
    Attribute,
    Awaited,
    Called,
    ClientClass,
    Either,
    Entered,
    InstanceOf,
    ItemOf,
    Iterated,
    Name,
    SuperOf,
    Unknown,
)
from tooling.python.symbols.annotations import OPEN, AnnotationReader, after, container_method, union
from tooling.python.symbols.definitions import Where, external
from tooling.python.symbols.symbol import (
    Absent,
    Builtin,
    Container,
    Definite,
    Gone,
    Instance,
    Open,
    Outcome,
    SymbolKind,
    Values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.inference import TypeInference
    from tooling.python.symbols.symbol import Resolution

MAX_DEPTH = 60


class PathFollower:
    """Follows access paths; answers are kept for the run."""

    def __init__(self, model: Model, inference: TypeInference) -> None:
        self.model = model
        self.inference = inference
        self._answers: dict[AccessPath, Outcome] = {}
        self._depth = 0

    def follow(self, access_path: AccessPath) -> Outcome:
        """Return the value of a client's expression on this release."""
        found = self._answers.get(access_path)
        if found is None:
            if self._depth > MAX_DEPTH:
                return Open("too long to follow")
            self._depth += 1
            try:
                found = getattr(self, f"_on_{type(access_path).__name__.lower()}")(access_path)
            finally:
                self._depth -= 1
            assert found is not None, "each step gives an outcome"
            if isinstance(found, Values) and not found.types:
                found = Open("its type is not known")
            self._answers[access_path] = found
        return found

    def _on_unknown(self, step: Unknown) -> Outcome:
        return Open("not ours, or beyond inference")

    def _on_name(self, step: Name) -> Outcome:
        return self._resolved(step, self.model.resolve(step.dotted))

    def _resolved(self, step: AccessPath, found: Resolution) -> Outcome:
        if isinstance(found, Absent):
            return Gone(step, found)
        if isinstance(found, Open):
            return found
        outside = external(found)
        return Open(f"{outside} is not part of this distribution") if outside else Values((Definite(found.symbol),))

    def _on_attribute(self, step: Attribute) -> Outcome:
        bases = _client_bases(step.base)
        if bases is not None:
            return self._inherited(step, bases[0], bases[1])
        base = self.follow(step.base)
        if not isinstance(base, Values):
            return base
        values, absent = self.inference.attribute(base, step.name)
        if absent:
            partly = bool(values.types) or values.open or base.open
            return Gone(step, absent[0], partly)
        return values

    def _inherited(self, step: Attribute, bases: Sequence[AccessPath], instances: bool) -> Outcome:
        """Find an attribute of `super()`, or of a class of the client: by its bases in order."""
        gone: Gone | None = None
        unknown: Open | None = None
        for base in bases:
            outcome = self.follow(Attribute(InstanceOf(base) if instances else base, step.name))
            if isinstance(outcome, Values):
                return replace(outcome, open=outcome.open or unknown is not None)
            if isinstance(outcome, Open):
                unknown = unknown or outcome
            else:
                gone = gone or replace(outcome, step=step if outcome.step != step.base else outcome.step)
        if unknown is not None or gone is None:
            return unknown or Open("no base is known")
        return gone

    def _on_called(self, step: Called) -> Outcome:
        if isinstance(step.base, ClientClass):
            return self._client_instance(step.base)
        if isinstance(step.base, Attribute):
            inner = self.follow(step.base.base)
            if isinstance(inner, Values):
                known = container_method(self.inference.settled(inner), step.base.name)
                if known is not None:
                    return known
        base = self.follow(step.base)
        return self.inference.called(base) if isinstance(base, Values) else base

    def _client_instance(self, client: ClientClass) -> Outcome:
        parts = [self.follow(InstanceOf(base)) for base in client.bases]
        return _first_known(parts, several=len(parts) > 1)

    def _on_clientclass(self, step: ClientClass) -> Outcome:
        return _first_known([self.follow(base) for base in step.bases], several=True)

    def _on_superof(self, step: SuperOf) -> Outcome:
        return _first_known([self.follow(InstanceOf(base)) for base in step.bases], several=len(step.bases) > 1)

    def _on_instanceof(self, step: InstanceOf) -> Outcome:
        base = step.base
        if isinstance(base, ClientClass):
            return self._client_instance(base)
        if isinstance(base, Either):
            return self._united([self.follow(InstanceOf(member)) for member in base.members])
        outcome = self.follow(base)
        if not isinstance(outcome, Values):
            return outcome
        return union(self._instance(kind) for kind in outcome.types) if outcome.types else OPEN

    def _instance(self, kind: object) -> Values:
        """Return the value of something annotated with what this is."""
        if not isinstance(kind, Definite):
            return OPEN
        if kind.symbol.kind is SymbolKind.CLASS:
            return Values((Instance(kind.symbol),))
        located = self.model.definitions.locate(kind.symbol)
        if kind.symbol.kind is not SymbolKind.VALUE or located is None:
            return OPEN
        return AnnotationReader(self.model, Where(located.table, located.classes)).read(located.binding.source)

    def _on_awaited(self, step: Awaited) -> Outcome:
        base = self.follow(step.base)
        return self.inference.awaited(self._forced(base)) if isinstance(base, Values) else base

    def _on_iterated(self, step: Iterated) -> Outcome:
        base = self.follow(step.base)
        return self.inference.looped(base, asynchronous=step.asynchronous) if isinstance(base, Values) else base

    def _on_itemof(self, step: ItemOf) -> Outcome:
        base = self.follow(step.base)
        if not isinstance(base, Values):
            return base
        missing = self._missing_item(base, step.key)
        return Gone(step, missing) if missing is not None else self.inference.item(base, step.key)

    def _missing_item(self, base: Values, key: str | int | None) -> Absent | None:
        """Find a key that the one typed dict, or an index that the one named tuple, does not have."""
        kinds = self._forced(base).types
        if base.open or key is None or len(kinds) != 1 or not isinstance(kinds[0], Instance):
            return None
        symbol = kinds[0].symbol
        names = self.inference.fields.names(symbol)
        if names is None or not self.model.bases(symbol)[1]:
            return None
        there = key in names if isinstance(key, str) else -len(names) <= key < len(names)
        return None if there else Absent(symbol.dotted, str(key), symbol.file, symbol.line)

    def _on_entered(self, step: Entered) -> Outcome:
        base = self.follow(step.base)
        return self.inference.entered(base) if isinstance(base, Values) else base

    def _on_either(self, step: Either) -> Outcome:
        return self._united([self.follow(member) for member in step.members])

    def _united(self, outcomes: Sequence[Outcome]) -> Outcome:
        gone = [outcome for outcome in outcomes if isinstance(outcome, Gone)]
        if gone:
            whole = len(gone) == len(outcomes) and not any(outcome.partly for outcome in gone)
            return gone[0] if whole else replace(gone[0], partly=True)
        parts = [outcome if isinstance(outcome, Values) else OPEN for outcome in outcomes]
        return union(parts)

    def _forced(self, values: Values) -> Values:
        """Names replaced by the values behind them."""
        parts = [
            self.inference.force(kind)
            if isinstance(kind, Definite) and kind.symbol.kind in (SymbolKind.VALUE, SymbolKind.FUNCTION)
            else Values((kind,))
            for kind in values.types
        ]
        return after(values, parts)

    def unpacked(self, access_path: AccessPath) -> int | None:
        """How many values it unpacks into, where that is sure."""
        outcome = self.follow(access_path)
        if not isinstance(outcome, Values):
            return None
        values = self._forced(outcome)
        counts = {self._count(kind) for kind in values.types if kind != Builtin("NoneType")}
        return counts.pop() if len(counts) == 1 and not values.open else None

    def _count(self, kind: object) -> int | None:
        if isinstance(kind, Container):
            return len(kind.items) if kind.name == "tuple" else None
        if isinstance(kind, Instance):
            style = self.inference.fields.style(kind.symbol)
            names = self.inference.fields.names(kind.symbol)
            return len(names) if names is not None and style is not None and style.name == "namedtuple" else None
        return None


def _client_bases(base: AccessPath) -> tuple[tuple[AccessPath, ...], bool] | None:
    """Bases of a class of the client behind an access path, and whether it is an instance."""
    if isinstance(base, SuperOf):
        return base.bases, True
    if isinstance(base, ClientClass):
        return base.bases, False
    if isinstance(base, Called | InstanceOf) and isinstance(base.base, ClientClass):
        return base.base.bases, True
    return None


def _first_known(outcomes: Sequence[Outcome], *, several: bool) -> Outcome:
    known = next((outcome for outcome in outcomes if isinstance(outcome, Values)), None)
    if known is None:
        return outcomes[0] if outcomes else Open("no base is known")
    return replace(known, open=known.open or several)
