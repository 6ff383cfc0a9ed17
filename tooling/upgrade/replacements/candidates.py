"""Describe what is gone, and the candidates to replace it with the evidence for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, Name
from tooling.python.symbols.symbol import Definite, Found, Instance, Open, SymbolKind, Values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.access_paths import AccessPath
    from tooling.python.symbols.symbol import Absent, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Use


class Reason(Enum):
    """A piece of evidence: its weight, and its wording. Weights order evidence, they are not probabilities: what the
    package says outweighs what its code does, which outweighs what merely looks alike."""

    ADVICE = 32, "a release says to use it"
    STAYED = 16, "the definition itself stayed there"
    """Only a re-export went."""
    STOOD_FOR = 14, "the old one only passed on to it"
    IMPORTERS = 12, "the package's own importers changed alike"
    SAME_BODY = 10, "same body"
    SAME_VALUE = 6, "same value"
    SUBSTITUTED = 6, "it stands where the old name stood"
    """Lines that had the old name are there with this one."""
    SAME_NAME = 5, "only new definition of that name"
    SIMILAR_BODY = 4, "almost the same body"
    SAME_PLACE = 4, "same place and type"
    """Same position with the same default, or the same type at the same place."""
    SIMILAR_NAME = 3, "almost the same name"
    ONLY_ONE = 2, "one went and one came"
    COMPATIBLE = 2, ""
    """It can be called as the old one could."""
    SHARED_WORDS = 1, ""

    @property
    def weight(self) -> int:
        """How much it counts."""
        return self.value[0]

    @property
    def words(self) -> str:
        """How a report tells it; "" for what is only an aside."""
        return self.value[1]


@dataclass(slots=True)
class Candidate:
    """One of several that may stand for what is gone."""

    text: str
    """What to write: dotted path, or name of a parameter."""
    reasons: set[Reason] = field(default_factory=set)
    is_doubtful: bool = False
    """Whether a person should look, whatever the weight."""

    @property
    def weight(self) -> int:
        """How much speaks for it."""
        return sum(reason.weight for reason in self.reasons)

    @property
    def why(self) -> str:
        """The evidence in words, the strongest first."""
        told = sorted(
            (reason for reason in self.reasons if reason.words), key=lambda reason: (-reason.weight, reason.name)
        )
        return ", ".join(reason.words for reason in told[:3])


def best(candidates: Iterable[Candidate], least: int) -> Candidate | None:
    """The one candidate that more speaks for than for any other; None if nothing reaches `least` or two are equal."""
    ranked = sorted(candidates, key=lambda candidate: (-candidate.weight, len(candidate.text), candidate.text))
    if not ranked or ranked[0].weight < least:
        return None
    if len(ranked) > 1 and ranked[1].weight == ranked[0].weight:
        return None
    return ranked[0]


@dataclass(frozen=True, slots=True)
class GoneSymbol:
    """A symbol that the new release lacks."""

    path: str
    """As the use names it, or where it is defined: "vllm.utils.FlexibleArgumentParser"."""
    symbol: Symbol
    deprecated: str
    """What the old release says about it, or about the way to it."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def module(self) -> str:
        """The module it is defined in."""
        container = self.symbol.owner or self.symbol.dotted.rpartition(".")[0]
        return container if not self.symbol.owner else container.rpartition(".")[0]


def subject_of(absent: Absent, old: Upstream, use: Use) -> GoneSymbol | None:
    """The symbol a use is about. Where a whole module went, that is what the use wants of it."""
    gone = f"{absent.container}.{absent.name}"
    wanted = _spelled(use.target)
    paths = [wanted] if wanted.startswith(f"{gone}.") else []
    for path in [*paths, gone]:
        found = old.resolve(path)
        if isinstance(found, Found):
            return GoneSymbol(path, found.symbol, found.symbol.deprecated or found.deprecated)
    symbol = _followed(old, use.target, absent.name)
    return GoneSymbol(symbol.dotted, symbol, symbol.deprecated) if symbol is not None else None


def callable_of(absent: Absent, old: Upstream, use: Use) -> Symbol | None:
    """The function or class whose parameter is gone, if it is a parameter that is gone."""
    found = old.resolve(absent.container)
    if not isinstance(found, Found) or found.symbol.kind not in (SymbolKind.FUNCTION, SymbolKind.CLASS):
        return None
    if found.symbol.kind is SymbolKind.FUNCTION:
        return found.symbol
    if use.arguments is None or (isinstance(use.target, Attribute) and use.target.name == absent.name):
        return None
    # A class has members too: a name is a parameter of it only where something is passed for it.
    signature = old.signature(found.symbol)
    names = [] if isinstance(signature, Open) else [parameter.name for parameter in signature.parameters]
    named = {argument.name for argument in use.arguments.given}
    return found.symbol if absent.name in named or (absent.name in names and None in named) else None


def _followed(old: Upstream, target: AccessPath, name: str) -> Symbol | None:
    if not isinstance(target, Attribute) or target.name != name:
        return None
    outcome = old.follow(target.base)
    for each in outcome.types if isinstance(outcome, Values) else ():
        if not isinstance(each, Definite | Instance) or each.symbol.kind not in (SymbolKind.CLASS, SymbolKind.MODULE):
            continue
        found = old.member(each.symbol, name)
        if isinstance(found, Found):
            return found.symbol
    return None


def _spelled(target: AccessPath) -> str:
    if isinstance(target, Name):
        return target.dotted
    if isinstance(target, Attribute):
        inner = _spelled(target.base)
        return f"{inner}.{target.name}" if inner else ""
    return ""
