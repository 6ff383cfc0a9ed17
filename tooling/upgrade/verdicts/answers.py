"""What to write instead where the definition stayed and its form changed; `replacements` knows where names went.

certain is what keeps the meaning: a default written out, a keyword that had no effect left out, a parameter added to an
override. What only points the way (a parameter that must be passed now, a record that took several) is offered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.python.operations import UNKNOWN, literal
from tooling.python.symbols.symbol import Found, Open, SymbolKind
from tooling.upgrade.findings import Replacement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.python.symbols.symbol import Parameter, Signature, Symbol
    from tooling.upgrade.releases import Upstream
    from tooling.upgrade.uses import Argument, ClientMethod, PassedArguments

LEAVE_OUT = "leave out "
"""How a replacement begins that takes an argument away."""
_STARRED = ("star", "double-star")
_BY_POSITION = ("positional", "positional-only")
_WORD = re.compile(r"[A-Za-z_][\w.]*")
_DEEPEST = 4
"""Aliases of types that are followed inside each other."""


def old_default(was: Parameter, now: Parameter, arguments: PassedArguments) -> Replacement | None:
    """`f(x)` -> `f(x, size=1)`: the default that the call relied on, where it can be written down."""
    if was.folded is None or now.kind not in ("positional", "keyword-only"):
        return None
    constant = literal(was.folded) is not UNKNOWN
    text = f"{now.name}={was.folded if constant else was.default}"
    open_ended = arguments.has_star or arguments.has_double_star
    return Replacement(text, "the default as it was, written out", certain=constant and not open_ended)


def left_out(name: str, was: Parameter | None, argument: Argument, *, is_idle: bool) -> Replacement | None:
    """A keyword that may go: it has no effect any more, or it passed what the default was."""
    if argument.name is None:
        return None
    if is_idle:
        return Replacement(f"{LEAVE_OUT}{name}", "it has no effect any more", certain=True)
    default = None if was is None else was.folded or was.default
    if default is not None and argument.literal is not None:
        given, usual = literal(argument.literal), literal(default)
        if given is not UNKNOWN and type(given) is type(usual) and given == usual:
            return Replacement(f"{LEAVE_OUT}{name}", "it passes what the default was", certain=True)
    return None


def by_position(after: Signature, arguments: PassedArguments, name: str) -> Replacement:
    """`f(1, b=2)` -> `f(1, 2)`: certain where all that stands before it is passed in the same order."""
    order = [each.name for each in after.parameters if each.kind in _BY_POSITION]
    first = sum(argument.name is None for argument in arguments.given)
    named = [argument.name for argument in arguments.given if argument.name is not None]
    in_order = named[: order.index(name) - first + 1] == order[first : order.index(name) + 1]
    written = not any(argument.from_mapping for argument in arguments.given)
    return Replacement(name, "by position", certain=in_order and written and not arguments.has_star)


def adapted_override(name: str, method: ClientMethod, after: Signature) -> Replacement:
    """The head of an override that fits the hook as it is called now.

    It is certain where the hook only takes more: what comes is added behind what the override has, with a default, so
    that whoever called it before still may."""
    own = [each.name for each in method.signature.parameters if each.kind not in _STARRED]
    hook = [each for each in after.parameters if each.kind not in _STARRED]
    added = [each for each in hook if each.name not in own]
    in_order = own == [each.name for each in hook][: len(own)]
    certain = bool(added) and in_order and not method.decorated and method.binding in ("method", "classmethod")
    first = {"classmethod": ["cls"], "staticmethod": []}.get(method.binding, ["self"])
    values = {each.name: each.folded or each.default or "None" for each in added}
    usual = {name: value if literal(value) is not UNKNOWN else "None" for name, value in values.items()}
    parts = [*first, *(f"{each.name}={usual[each.name]}" if each in added else each.name for each in hook)]
    return Replacement(f"def {name}({', '.join(parts)})", "the hook's own parameters", certain=certain)


def new_method(name: str, signature: Signature | Open) -> Replacement:
    """What a class must define now."""
    text = signature.text(name) if not isinstance(signature, Open) else f"{name}(...)"
    head, bracket, rest = text.partition("(")
    return Replacement(
        f"def {head}{bracket}self{'' if rest.startswith(')') else ', '}{rest}", "the base demands it", certain=False
    )


def inside_of_another(new: Upstream, after: Symbol, had: Signature, has: Signature, name: str) -> Replacement | None:
    """`send(group=g)` -> `send(settings=Settings(group=g))`: a parameter that went into a record another one takes."""
    old = {each.name: each.annotation for each in had.parameters}
    # What is new first, then what takes other types than it did
    fresh = sorted((each for each in has.parameters if each.annotation), key=lambda each: each.name in old)
    for parameter in fresh:
        for record in _records(new, after, parameter.annotation):
            fields = new.signature(record)
            if not isinstance(fields, Open) and any(each.name == name for each in fields.parameters):
                short = record.name
                text = f"{parameter.name}={short}({name}=...)"
                return Replacement(text, f"a field of {record.dotted}, which {parameter.name} takes", certain=False)
    return None


def _records(new: Upstream, around: Symbol, annotation: str) -> Iterator[Symbol]:
    """Classes that an annotation names, through aliases of types."""
    waiting = [(annotation, around, 0)]
    seen: set[str] = set()
    while waiting:
        text, place, depth = waiting.pop(0)
        for word in _WORD.findall(text):
            container = (place.owner or place.dotted).rpartition(".")[0]
            found = new.resolve(f"{container}.{word}")  # what the name means in the module of the definition
            if not isinstance(found, Found) or found.symbol.dotted in seen:
                continue
            symbol = found.symbol
            seen.add(symbol.dotted)
            if symbol.kind is SymbolKind.CLASS:
                yield symbol
            elif symbol.kind is SymbolKind.VALUE and depth < _DEEPEST:
                waiting.append((symbol.value, symbol, depth + 1))


def advised(new: Upstream, symbol: Symbol, spelled: str, names: Iterable[str]) -> tuple[str, Symbol] | None:
    """The path and definition that a text about a definition means by a name: beside it first, then where it says.

    spelled: how the code names the definition, never the answer; where its package has the same definition, the answer
    is given from there: numpy.vstack, not numpy.lib._shape_base_impl.vstack."""
    beside = symbol.owner or symbol.dotted.rpartition(".")[0]
    kinds = (SymbolKind.CLASS, SymbolKind.FUNCTION, SymbolKind.VALUE)
    for name in names:
        last = name.rpartition(".")[2]
        module = new.resolve(name)
        full = name
        if isinstance(module, Found) and module.symbol.kind is SymbolKind.MODULE:  # "import it from `up.layers`"
            last = spelled.rpartition(".")[2]
            full = f"{name}.{last}"
        for path in (full, f"{beside}.{last}", f"{beside}.{full}"):
            found = new.resolve(path) if "." in path and path != spelled else None
            if isinstance(found, Found) and found.symbol.kind in kinds and (found.symbol != symbol or path == full):
                near = f"{spelled.rpartition('.')[0]}.{last}"
                met = new.resolve(near) if near not in (spelled, f".{last}") and not symbol.owner else None
                return near if isinstance(met, Found) and met.symbol == found.symbol else path, found.symbol
    return None
