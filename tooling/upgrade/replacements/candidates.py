"""Describe what is gone, and the candidates to replace it with the evidence for each: definitions compared by their
bodies, their names, and whether the arguments of a use bind.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from tooling.python.access_paths import Attribute, spelled
from tooling.python.source import alone, definition
from tooling.python.symbols.calls import bind
from tooling.python.symbols.symbol import Found, Open, SymbolKind
from tooling.python.symbols.targets import locate
from tooling.upgrade.uses import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tooling.python.symbols.symbol import Absent, Parameter, Signature, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Use


SIMILAR = 0.8
"""Share of equal tokens from which two definitions are one that was edited: of candidates read by hand all at or above
it were right, below it about half."""
_LEAST_TOKENS = 16
"""Shorter definitions look alike by chance."""
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|[^\s\w]")
_DOCSTRING = re.compile(r'^\s*[rRuU]?("""|\'\'\')(?:\\.|(?!\1).)*\1', re.DOTALL)


def tokens(source: str, name: str) -> Counter[str]:
    """The tokens of a definition as a multiset, without docstring, comments and its own name."""
    head, colon, body = source.partition(":\n")
    text = head + colon + _DOCSTRING.sub("", body, count=1)
    text = re.sub(r"#[^\n]*", "", text)
    return Counter(token for token in _TOKEN.findall(text) if token != name)


def similarity(left: Counter[str], right: Counter[str]) -> float:
    """Share of tokens that two multisets have in common; 0 for small ones."""
    sizes = left.total(), right.total()
    if min(sizes) < _LEAST_TOKENS:
        return 0.0
    return 2 * (left & right).total() / sum(sizes)


def is_similar_name(left: str, right: str, least: float = SIMILAR) -> bool:
    """Whether two names differ in little: an ending, a word left out, another case."""
    return SequenceMatcher(None, left.lower(), right.lower()).ratio() >= least


@lru_cache(maxsize=100_000)
def words_of(name: str) -> frozenset[str]:
    """Words of a name, however they are joined: "get_HTTPServer" -> {get, http, server}."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name) if len(word) > 2)


def took_places(old: str, new: str, gone: Iterable[str], fresh: Iterable[str]) -> dict[str, str]:
    """Which of the names that went has which of those that came in its lines, by names that went. Each new one takes
    the place of one old one only: where several fit alike, they were merged or replaced, not renamed."""
    before = {line.strip() for line in old.splitlines()}
    after = {line.strip() for line in new.splitlines()} - before
    lines = {name: _telling_lines(before, name) for name in gone}
    fresh = list(fresh)
    counts = {
        (name, other): len({word.sub(other, line) for line in found} & after)
        for name, (word, found) in lines.items()
        for other in fresh
    }
    places = {}
    for (name, other), count in counts.items():
        rivals = [each for pair, each in counts.items() if (pair[0] == name) != (pair[1] == other)] if count else []
        if count > max(rivals, default=0):
            places[name] = other
    return places


def carries_on(old: str, new: str, name: str, other: str) -> bool:
    """Whether a body does with a new name what it did with an old one: the lines that said what the old one was for
    are all there with the new one. A test for None or a bare `return` tells nothing."""
    after = _statements(new)
    word, lines = _telling_lines(_statements(old), name)
    bare = re.compile(
        rf"(?:(?:el)?if|while|assert)\s+(?:not\s+)?{re.escape(name)}\s*(?:is\s+(?:not\s+)?None)?\s*:?$"
        rf"|return\s+{re.escape(name)}$|del\s+{re.escape(name)}$|[\"']"
    )
    telling = [line for line in lines if not bare.match(line)]
    return bool(telling) and all(word.sub(other, line) in after for line in telling)


def _statements(source: str) -> set[str]:
    """Lines of what a definition does, without its head and docstring; nothing for text that cannot be parsed."""
    node = definition(alone(source))
    if node is None:
        return set()
    start = 0 if ast.get_docstring(node, clean=False) is None else 1
    try:
        return {line.strip() for each in node.body[start:] for line in ast.unparse(each).splitlines()}
    except RecursionError:
        return set()


def _telling_lines(lines: set[str], name: str) -> tuple[re.Pattern[str], list[str]]:
    """A pattern for a name, and the lines that around it as more than a declaration or a keyword passed on: many
    things have the same type and default, and every constructor passes its parameters on."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    idle = re.compile(
        rf"(?:(?:async\s+)?(?:def|class)\s+|self\.)?{re.escape(name)}\s*"
        rf"(?::|\(|,|$|=\s*(?:{re.escape(name)}\b|None|True|False|[\d'\"\[({{]|field))"
    )
    return word, [line for line in lines if name in line and word.search(line) and not idle.match(line)]


_CALLABLE = (SymbolKind.FUNCTION, SymbolKind.CLASS)


def fits(new: Upstream, symbol: Symbol, use: Use, renamed: tuple[str, str] = ("", "")) -> bool:
    """Whether the arguments of a use surely bind to a symbol of the new release. True for uses that pass none.

    renamed: (old, new) keyword."""
    if use.arguments is None or use.action not in (Action.CALL, Action.DECORATE):
        return True
    signature = new.signature(symbol) if symbol.kind in _CALLABLE else Open("it is not callable")
    if isinstance(signature, Open) or not signature.exact:
        return False
    given = tuple(
        replace(argument, name=renamed[1]) if argument.name and argument.name == renamed[0] else argument
        for argument in use.arguments.given
    )
    arguments = replace(use.arguments, given=given)
    return bind(signature, arguments, lambda name: new.keyword(symbol, name)).fits(len(given))


def is_compatible(old: Upstream, before: Symbol, new: Upstream, after: Symbol) -> bool:
    """Whether every call that fits the old one fits the new one, by parameters alone: none went, none is required that
    was not there. True for what is not called."""
    if before.kind is not after.kind:
        return False
    if before.kind not in _CALLABLE:
        return True
    left, right = old.signature(before), new.signature(after)
    if isinstance(left, Open) or isinstance(right, Open):
        return False
    had, has = _named(left), _named(right)
    required = {name for name, parameter in has.items() if parameter.default is None}
    return had.keys() <= has.keys() and required <= had.keys()


def _named(signature: Signature) -> dict[str, Parameter]:
    return {each.name: each for each in signature.parameters if each.kind not in ("star", "double-star")}


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
    wanted = spelled(use.target)
    paths = [wanted] if wanted.startswith(f"{gone}.") else []
    for path in [*paths, gone]:
        found = old.resolve(path)
        if isinstance(found, Found):
            return GoneSymbol(path, found.symbol, found.symbol.deprecated or found.deprecated)
    is_member = isinstance(use.target, Attribute) and use.target.name == absent.name
    symbols = [each.symbol for each in locate(old, use.target).found] if is_member else []
    return GoneSymbol(symbols[0].dotted, symbols[0], symbols[0].deprecated) if symbols else None


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
