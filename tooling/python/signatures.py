"""Read how functions are called from their text: parameters in order, with kinds and defaults.

def f(a, /, b=1, *rest, c, **more): ...
# a positional-only, b positional, rest star, c keyword-only, more double-star
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator

POSITIONAL = ("positional-only", "positional")


def each_parameter(arguments: ast.arguments) -> Iterator[tuple[ast.arg, str, ast.expr | None]]:
    """Yield parameters in order, with their kinds and defaults.

    Kinds are "positional-only", "positional", "star", "keyword-only" and "double-star".
    """
    positional = [(entry, "positional-only") for entry in arguments.posonlyargs]
    positional += [(entry, "positional") for entry in arguments.args]
    missing = len(positional) - len(arguments.defaults)
    for index, (entry, kind) in enumerate(positional):
        yield entry, kind, arguments.defaults[index - missing] if index >= missing else None
    if arguments.vararg is not None:
        yield arguments.vararg, "star", None
    for entry, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield entry, "keyword-only", default
    if arguments.kwarg is not None:
        yield arguments.kwarg, "double-star", None


def parameter_names(arguments: ast.arguments) -> list[str]:
    """List the parameters that an argument can be named after, in order."""
    return [entry.arg for entry in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
