"""Methods of the repository as signatures, and whether calls fit them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tooling.upgrade.symbols import Keyword, Parameter, Signature
from tooling.upgrade.uses import Argument, Arguments, Place
from tooling.upgrade.verdicts.binding import bind, takes

if TYPE_CHECKING:
    from tooling.upgrade.uses import ClientMethod

_NOWHERE = Place("", 0, 0, 0, 0)


def signature_of(method: ClientMethod) -> Signature:
    """How a method of the repository is called."""
    return Signature(
        tuple(
            Parameter(each.name, each.kind, (each.default or "...") if each.has_default else None)
            for each in method.parameters
        )
    )


def call_arguments(source: str, name: str) -> Arguments | None:
    """Arguments of a call `x.name(...)` given as text; None if it is something else or hides some of them."""
    try:
        node = ast.parse(source.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    while isinstance(node, ast.Await):
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != name:
        return None
    if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
        return None
    given = [Argument(_NOWHERE, None, index) for index in range(len(node.args))]
    given += [Argument(_NOWHERE, each.arg, -1) for each in node.keywords]
    return Arguments(tuple(given))


def receiver_is_self(source: str, name: str) -> bool:
    """Whether it is a call `self.name(...)` or `cls.name(...)`."""
    text = source.strip().removeprefix("await ").lstrip("( ")
    return text.startswith((f"self.{name}(", f"cls.{name}("))


def fits(signature: Signature, arguments: Arguments) -> bool:
    """Whether the call raises no TypeError."""
    lenient = Keyword.READ if takes(signature, "double-star") else Keyword.REFUSED
    bound = bind(signature, arguments, lambda _name: lenient)
    return bound.fits(len(arguments.given)) and not bound.by_keyword_only


def everything(signature: Signature, *, optional: str) -> Arguments:
    """A call that passes each parameter. optional: those with a default "left out", "by position" or "by keyword"."""
    given: list[Argument] = []
    for parameter in signature.parameters:
        is_optional = parameter.default is not None
        if parameter.kind in ("star", "double-star") or (is_optional and optional == "left out"):
            continue
        by_name = is_optional and optional == "by keyword" and parameter.kind == "positional"
        if parameter.kind == "keyword-only" or by_name:
            given.append(Argument(_NOWHERE, parameter.name, -1))
        else:
            given.append(Argument(_NOWHERE, None, len(given)))
    return Arguments(tuple(given))


def misfit(method: ClientMethod, target: Signature) -> str:
    """Why a method cannot stand where something of that signature is called; "" if it can."""
    own = signature_of(method)
    if not fits(own, everything(target, optional="left out")):
        return "it cannot be called with the required arguments alone"
    if not any(fits(own, everything(target, optional=how)) for how in ("by position", "by keyword")):
        return "it does not take all arguments that may be passed"
    return ""
