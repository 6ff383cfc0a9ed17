"""Bind the arguments of a call to a signature, as Python does when it is run.

f(1, size=2)       of def f(name, *, size=0)     BoundCall({0: "name", 1: "size"})
f(1, 2, width=3)   of the same                   1 and 2 land nowhere, and keyword "width" is refused
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from tooling.python.source import POSITIONAL, each_parameter
from tooling.python.symbols.symbol import Keyword, Parameter, Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STAR = "*"
"""A slot: the argument lands in `*args`."""
STARS = "**"
"""A slot: the argument lands in `**kwargs`, or in the extra fields of a pydantic model."""


class NamedOrPlaced(Protocol):
    """One argument of a call."""

    @property
    def name(self) -> str | None:
        """Keyword; None for a positional one."""
        ...

    @property
    def position(self) -> int:
        """Of a positional one."""
        ...


class PassedValues(Protocol):
    """What a call passes; `self` and `cls` are not among it."""

    @property
    def given(self) -> Sequence[NamedOrPlaced]:
        """The arguments that are seen."""
        ...

    @property
    def has_star(self) -> bool:
        """Whether there may be more positional ones: `*x`."""
        ...

    @property
    def has_double_star(self) -> bool:
        """Whether there may be more keywords: `**x`."""
        ...

    @property
    def partial(self) -> bool:
        """Whether more may come later, so that none is missing."""
        ...


@dataclass(frozen=True, slots=True)
class BoundCall:
    """How a call fits a signature."""

    slots: Mapping[int, str]
    """Index of an argument to the parameter it lands on; STAR, STARS. Arguments that land nowhere are missing."""
    keywords: Mapping[int, Keyword] = field(default_factory=dict)
    """What becomes of keywords that no parameter is named after."""
    by_keyword_only: frozenset[int] = frozenset()
    """Keywords that name a positional-only parameter."""
    missing: tuple[Parameter, ...] = ()
    """Parameters without default that nothing is passed for, and nothing hidden may be."""
    omitted: frozenset[str] = frozenset()
    """Parameters that surely nothing is passed for."""

    def fits(self, count: int) -> bool:
        """Tell whether a call of so many arguments raises no TypeError."""
        landed = len(self.slots) == count and Keyword.REFUSED not in self.keywords.values()
        named = [slot for slot in self.slots.values() if slot not in (STAR, STARS)]
        return landed and not self.missing and len(named) == len(set(named))


def bind(signature: Signature, arguments: PassedValues, accepts: Callable[[str], Keyword]) -> BoundCall:
    """Find where each argument lands. accepts: what becomes of a keyword that only `**kwargs` can take."""
    slots: dict[int, str] = {}
    keywords: dict[int, Keyword] = {}
    wrong: set[int] = set()
    by_position = positional(signature)
    for index, argument in enumerate(arguments.given):
        if argument.name is None:
            fits = argument.position < len(by_position)
            slot = by_position[argument.position].name if fits else STAR if takes(signature, "star") else ""
        else:
            parameter = named(signature, argument.name)
            slot = parameter.name if parameter is not None and parameter.kind != "positional-only" else ""
            if not slot and parameter is not None and not takes(signature, "double-star"):
                wrong.add(index)
            elif not slot:
                if signature.extra:
                    beyond = {"forbid": Keyword.REFUSED, "allow": Keyword.READ}.get(signature.extra, Keyword.IGNORED)
                else:
                    beyond = accepts(argument.name) if takes(signature, "double-star") else Keyword.REFUSED
                keywords[index] = beyond
                slot = "" if keywords[index] is Keyword.REFUSED else STARS
        if slot:
            slots[index] = slot
    filled = set(slots.values())
    omitted = [each for each in signature.parameters if _may_be_absent(each, arguments) and each.name not in filled]
    missing = tuple(each for each in omitted if each.default is None) if not arguments.partial else ()
    return BoundCall(slots, keywords, frozenset(wrong), missing, frozenset(each.name for each in omitted))


def positional(signature: Signature) -> list[Parameter]:
    """Return the parameters that take positional arguments, in order."""
    return [each for each in signature.parameters if each.kind in POSITIONAL]


def named(signature: Signature, name: str) -> Parameter | None:
    """Return the parameter of that name, aliases included; None if there is none."""
    for each in signature.parameters:
        if each.kind not in ("star", "double-star") and (each.name == name or name in each.aliases):
            return each
    return None


def takes(signature: Signature, kind: str) -> bool:
    """Tell whether it has `*args` ("star") or `**kwargs` ("double-star")."""
    return any(each.kind == kind for each in signature.parameters)


def _may_be_absent(parameter: Parameter, arguments: PassedValues) -> bool:
    """Tell whether nothing hidden (`*x`, `**x`) may be passed for a parameter that no visible argument lands on."""
    if parameter.kind in ("star", "double-star"):
        return False
    if arguments.has_star and parameter.kind in POSITIONAL:
        return False
    return not (arguments.has_double_star and parameter.kind != "positional-only")


# --------------------------------------------------------------------------------------------------- calls as trees


@dataclass(frozen=True, slots=True)
class WrittenArgument:
    """One argument of a call in a tree."""

    name: str | None
    position: int


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """What a call in a tree passes."""

    given: tuple[WrittenArgument, ...]
    has_star: bool = False
    has_double_star: bool = False
    partial: bool = False


def written_call(call: ast.Call) -> WrittenCall:
    """Read what a call in a tree passes."""
    plain = [each for each in call.args if not isinstance(each, ast.Starred)]
    named_ones = [each.arg for each in call.keywords if each.arg is not None]
    given = [WrittenArgument(None, position) for position in range(len(plain))]
    given += [WrittenArgument(name, -1) for name in named_ones]
    return WrittenCall(tuple(given), len(plain) < len(call.args), len(named_ones) < len(call.keywords))


def every_argument(signature: Signature, *, optional: str) -> WrittenCall:
    """Make a call that passes each parameter. optional: those with a default "left out", "by position" or
    "by keyword"."""
    given: list[WrittenArgument] = []
    for parameter in signature.parameters:
        is_optional = parameter.default is not None
        if parameter.kind in ("star", "double-star") or (is_optional and optional == "left out"):
            continue
        by_name = is_optional and optional == "by keyword" and parameter.kind == "positional"
        if parameter.kind == "keyword-only" or by_name:
            given.append(WrittenArgument(parameter.name, -1))
        else:
            given.append(WrittenArgument(None, len(given)))
    return WrittenCall(tuple(given))


def written_signature(arguments: ast.arguments, *, bound: bool = False) -> Signature:
    """Read the signature that a `def` writes down. bound: without its first parameter."""
    rows = [
        Parameter(
            entry.arg,
            kind,
            None if default is None else ast.unparse(default),
            annotation="" if entry.annotation is None else ast.unparse(entry.annotation),
        )
        for entry, kind, default in each_parameter(arguments)
    ]
    # `def step(*args)` takes the object among the others.
    own = 1 if bound and rows and rows[0].kind in POSITIONAL else 0
    return Signature(tuple(rows[own:]))


def fits(signature: Signature, arguments: PassedValues) -> bool:
    """Tell whether a call raises no TypeError, by the signature alone."""
    bound = bind(signature, arguments, lambda _: Keyword.READ)
    return bound.fits(len(arguments.given)) and not bound.by_keyword_only


def misfit(own: Signature, target: Signature) -> str:
    """Say why a function cannot stand where something of another signature is called; "" if it can."""
    if not fits(own, every_argument(target, optional="left out")):
        return "it cannot be called with the required arguments alone"
    if not any(fits(own, every_argument(target, optional=how)) for how in ("by position", "by keyword")):
        return "it does not take all arguments that may be passed"
    return ""


def why_refused(signature: Signature, call: ast.Call, *, partial: bool = False) -> str:
    """Say why a call raises TypeError; "" if it does not, or if `*x` and `**x` may hide what it passes. partial: more
    arguments come later."""
    written = replace(written_call(call), partial=partial)
    if written.has_star or written.has_double_star:
        return ""
    found = bind(signature, written, lambda _: Keyword.READ)
    lost = [each for index, each in enumerate(written.given) if index not in found.slots]
    refused = [each.name for each in lost if each.name is not None]
    if refused:
        return f"takes no `{min(refused)}`"
    if lost:
        return f"takes {len(positional(signature))} positional arguments, {len(call.args)} are passed"
    return f"needs `{min(each.name for each in found.missing)}`" if found.missing else ""
