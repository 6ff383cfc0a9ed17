"""The `when` of a question in words.

    condition("{{ style == 'regex' }}")         # "style == 'regex'"
    occasion("{{ style == 'regex' }}")          # "style regex"; for help pages, where a short word is enough

Whether it holds is `tooling.kit.template.expressions`' matter.
"""

from __future__ import annotations

import ast
from typing import Final

ELSE: Final = "depends on other answers"
"""Said of what has no short form."""


def condition(when: str | bool) -> str:
    """The expression of a `when` without its braces; "" for a question that is always (or never) asked."""
    if isinstance(when, bool):
        return ""
    text = when.strip()
    inner = text.removeprefix("{{").removesuffix("}}").strip()
    return inner if "{" not in inner and "}" not in inner else text


def occasion(when: str | bool) -> str:
    """`condition` for people: "style regex", "style a or b", "style other than a or b"; ELSE when it is no simple
    comparison, "" for a question that is always asked."""
    text = condition(when)
    if not text:
        return ""
    try:
        return _phrase(ast.parse(text, mode="eval").body) or ELSE
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ELSE


def _phrase(node: ast.expr) -> str:
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.left, ast.Name)):
        return ""
    values = " or ".join(_values(node.comparators[0]))
    if not values:
        return ""
    if isinstance(node.ops[0], ast.Eq | ast.In):
        return f"{node.left.id} {values}"
    return f"{node.left.id} other than {values}" if isinstance(node.ops[0], ast.NotEq | ast.NotIn) else ""


def _values(node: ast.expr) -> list[str]:
    """Texts and numbers of a constant or a list of them; [] for anything else."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    constants = [item.value for item in items if isinstance(item, ast.Constant) and item.value not in (None, "")]
    return [str(value) for value in constants] if len(constants) == len(items) else []
