"""Looks at the text of a template before it is rendered for what would make its output depend on the machine.

    scan(text, where="templates/reward/template/x.py.jinja")     # UsageError with "...:7" for line 7

Refused are copier's own variables (paths of temporary folders, the clock, random secrets), the filters that read the
disk, the clock or the environment, and the inclusion of files that nobody looked at: only names that end in ".jinja"
may be included. It is no sandbox: rendering (`tooling.kit.template.rendering`) happens in one, and finds the rest.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.kit.template.expressions import FORBIDDEN_FILTERS, FORBIDDEN_GLOBALS, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jinja2.nodes import Expr, Template

SUFFIX = ".jinja"
"""What marks a file as one that is rendered."""
FORBIDDEN_VARIABLES = frozenset({"_external_data", "_folder_name", "make_secret", "now"}) | FORBIDDEN_GLOBALS
_FILTERS_BY_NAME = frozenset({"map"})
"""Filters whose first argument names another filter."""
_WORDS = "|".join(sorted(FORBIDDEN_VARIABLES | FORBIDDEN_FILTERS | _FILTERS_BY_NAME))
_PLAIN_INCLUSION = r"""(?:'[\w/.-]+\.jinja'|"[\w/.-]+\.jinja")\s*(?:[-+]?%}|(?:as|ignore|import|with|without)\b)"""
_SUSPICIOUS = re.compile(
    rf"_copier|\b({_WORDS})\b|{{%[-+]?\s*(?:extends|from|import|include)\b(?!\s*{_PLAIN_INCLUSION})"
)
"""Texts without any of these need not be parsed."""


def scan(text: str, *, where: str) -> None:
    """Raises UsageError with "where:line" for variables and filters that may not be used, and for files that may not be
    included."""
    if not _SUSPICIOUS.search(text):
        return
    from jinja2 import TemplateSyntaxError

    try:
        tree = environment().parse(text)
    except TemplateSyntaxError as error:
        place = f"{where}:{error.lineno}"
        raise UsageError(f"is no valid template: {error.message}", where=place, fix="correct the template") from error
    except RecursionError as error:
        raise UsageError("is nested too deeply", where=where, fix="correct the template") from error
    for line, name in _variables(tree):
        if name in FORBIDDEN_VARIABLES or name.startswith("_copier"):
            message = f"{name!r} would differ between machines or runs"
            raise UsageError(message, where=f"{where}:{line}", fix="make it a question, or leave it out")
    for line, name in _filters(tree):
        if name not in environment().filters:
            fix = did_you_mean(name, environment().filters) or "use a filter that only looks at its arguments"
            raise UsageError(f"there is no filter {name!r} here", where=f"{where}:{line}", fix=fix)
    for line, included in _included(tree):
        if not _ends_in_suffix(included):
            fix = f"let its name end in {SUFFIX!r}, as in 'partials/' ~ style ~ '{SUFFIX}'"
            raise UsageError("may include a file that was not looked at", where=f"{where}:{line}", fix=fix)


def _variables(tree: Template) -> Iterator[tuple[int, str]]:
    from jinja2.nodes import Name

    for node in tree.find_all(Name):
        yield node.lineno, node.name


def _filters(tree: Template) -> Iterator[tuple[int, str]]:
    """(line, name) of every filter; "(computed)" for one whose name is not written in the template."""
    from jinja2.nodes import Const, Filter, FilterBlock

    for node in tree.find_all(Filter):
        yield node.lineno, node.name
        if node.name in _FILTERS_BY_NAME and node.args:
            named = node.args[0]
            yield node.lineno, str(named.value) if isinstance(named, Const) else "(computed)"
    for block in tree.find_all(FilterBlock):
        yield block.lineno, block.filter.name


def _included(tree: Template) -> Iterator[tuple[int, Expr]]:
    """(line, name of the file) of every file that another statement brings in."""
    from jinja2.nodes import Extends, FromImport, Import, Include

    for node in tree.find_all((Extends, FromImport, Import, Include)):
        assert isinstance(node, Extends | FromImport | Import | Include)
        yield node.lineno, node.template


def _ends_in_suffix(name: Expr) -> bool:
    """Whether an expression can only name files with the suffix, all of which are looked at."""
    from jinja2.nodes import Add, Concat, CondExpr, Const, List, Tuple

    if isinstance(name, Const):
        return isinstance(name.value, str) and name.value.endswith(SUFFIX)
    if isinstance(name, Concat):
        return _ends_in_suffix(name.nodes[-1])
    if isinstance(name, Add):
        return _ends_in_suffix(name.right)
    if isinstance(name, CondExpr):
        return name.expr2 is not None and _ends_in_suffix(name.expr1) and _ends_in_suffix(name.expr2)
    return isinstance(name, List | Tuple) and all(_ends_in_suffix(item) for item in name.items)
