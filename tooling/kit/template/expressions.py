"""Evaluates the Jinja of manifests, defaults and validators, and refuses templates whose output depends on the machine.

    evaluate("{{ snake }}_reward", {"snake": "digits"}, where="template.toml: symbols")  # "digits_reward"
    holds("style == 'code'", {"style": "code"}, where="template.toml: files[2].when")    # True
    scan(text, where="templates/reward/template/x.py.jinja")     # UsageError with "...:7" for line 7

The environment is copier's: a sandbox, with its filters, of which those are missing that read the disk or the
environment, or that answer differently each time. `scan` refuses copier's own variables (paths of temporary folders,
the clock, random secrets), those filters, and the inclusion of files that nobody looked at: only names that end in
".jinja" may be included. Files are rendered by `tooling.kit.template.rendering`.
"""

from __future__ import annotations

import functools
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jinja2 import Template
    from jinja2.environment import TemplateExpression
    from jinja2.nodes import Expr
    from jinja2.nodes import Template as Parsed
    from jinja2.sandbox import SandboxedEnvironment


FORBIDDEN_FILTERS = frozenset(
    {
        "ans_random",
        "expanduser",
        "expandvars",
        "fileglob",
        "random",
        "random_mac",
        "realpath",
        "relpath",
        "shuffle",
        "strftime",
        "to_datetime",
    }
)
"""Of copier's filters: these read the disk, the clock or the environment, or are random."""
FORBIDDEN_GLOBALS = frozenset({"lipsum"})
FALSE_WORDS = frozenset({"", "0", "f", "false", "n", "no", "none", "null", "off", "~"})
TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})


@functools.cache
def environment() -> SandboxedEnvironment:
    """Return the sandbox; unknown variables are errors, unknown (and forbidden) filters are syntax errors."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    made = SandboxedEnvironment(
        extensions=["jinja2_ansible_filters.AnsibleCoreFiltersExtension"],  # what copier loads for every template
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    for name in FORBIDDEN_FILTERS:
        made.filters.pop(name, None)
    for name in FORBIDDEN_GLOBALS:
        made.globals.pop(name, None)
    return made


def evaluate(text: str, context: Mapping[str, Any], *, where: str) -> str:
    """Return the text with its expressions filled in. Raises UsageError with `where` for a mistake in the template."""
    if "{" not in text:
        return text
    with _mistakes_in(text, where):
        return _template(text).render(context)


def holds(condition: str | bool, context: Mapping[str, Any], *, where: str) -> bool:
    """Check whether a `when` holds: a bool, an expression ("style == 'code'"), or a template that renders a bool word.

    Raises UsageError with `where` when it cannot be evaluated.
    """
    if isinstance(condition, bool):
        return condition
    if "{{" in condition or "{%" in condition:
        word = evaluate(condition, context, where=where)
        folded = word.strip().lower()
        if folded in TRUE_WORDS or folded in FALSE_WORDS:
            return folded in TRUE_WORDS
        raise UsageError(f"renders {word!r}, expected true or false", where=where, fix="correct the condition")
    with _mistakes_in(condition, where):
        return bool(_condition(condition)(context))


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> Template:
    """Compile once: the same defaults and conditions are evaluated for every answer that is completed."""
    return environment().from_string(text)


@functools.lru_cache(maxsize=1024)
def _condition(text: str) -> TemplateExpression:
    return environment().compile_expression(text, undefined_to_none=False)


def rendering_errors() -> tuple[type[Exception], ...]:
    """Return what rendering a faulty template may raise.

    Jinja's own errors, those of operators and filters, and those of the Python that Jinja makes of it (nested too
    deeply, a number too large).
    """
    from jinja2 import TemplateError
    from yaml import YAMLError

    return (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        NameError,
        RecursionError,
        SyntaxError,
        TypeError,
        ValueError,
        YAMLError,
        re.error,
    )


@contextmanager
def _mistakes_in(text: str, where: str) -> Iterator[None]:
    try:
        yield
    except rendering_errors() as error:
        raise UsageError(f"{text!r} cannot be evaluated: {error}", where=where, fix="correct the template") from error


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
    """Raise UsageError with "where:line" for variables, filters and inclusions that are not allowed."""
    if not _SUSPICIOUS.search(text):
        return
    from jinja2 import TemplateSyntaxError
    from jinja2.nodes import Extends, FromImport, Import, Include, Name

    try:
        tree = environment().parse(text)
    except TemplateSyntaxError as error:
        place = f"{where}:{error.lineno}"
        raise UsageError(
            f"is not a valid template: {error.message}", where=place, fix="correct the template"
        ) from error
    except RecursionError as error:
        raise UsageError("is nested too deeply", where=where, fix="correct the template") from error
    for variable in tree.find_all(Name):
        if variable.name in FORBIDDEN_VARIABLES or variable.name.startswith("_copier"):
            message = f"{variable.name!r} would differ between machines or runs"
            raise UsageError(message, where=f"{where}:{variable.lineno}", fix="make it a question, or leave it out")
    for line, name in _filters(tree):
        if name not in environment().filters:
            fix = did_you_mean(name, environment().filters) or "use a filter that only looks at its arguments"
            raise UsageError(f"there is no filter {name!r} here", where=f"{where}:{line}", fix=fix)
    for node in tree.find_all((Extends, FromImport, Import, Include)):
        assert isinstance(node, Extends | FromImport | Import | Include)
        if not _ends_in_suffix(node.template):
            fix = f"let its name end in {SUFFIX!r}, as in 'partials/' ~ style ~ '{SUFFIX}'"
            raise UsageError("may include a file that was not looked at", where=f"{where}:{node.lineno}", fix=fix)


def _filters(tree: Parsed) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every filter; "(computed)" for one whose name is not written in the template."""
    from jinja2.nodes import Const, Filter, FilterBlock

    for node in tree.find_all(Filter):
        yield node.lineno, node.name
        if node.name in _FILTERS_BY_NAME and node.args:
            named = node.args[0]
            yield node.lineno, str(named.value) if isinstance(named, Const) else "(computed)"
    for block in tree.find_all(FilterBlock):
        yield block.lineno, block.filter.name


def _ends_in_suffix(name: Expr) -> bool:
    """Check whether an expression can only name files with the suffix, all of which are looked at."""
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
