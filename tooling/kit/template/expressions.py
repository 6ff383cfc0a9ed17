"""Jinja for manifests, defaults and validators: the rules that templates are rendered with, applied to one string.

    evaluate("{{ snake }}_reward", {"snake": "digits"}, where="template.toml: symbols")  # "digits_reward"
    holds("style == 'code'", {"style": "code"}, where="template.toml: files[2].when")    # True

The environment is copier's: a sandbox, with its filters, of which those are missing that read the disk or the
environment, or that answer differently each time. It is not the renderer of files (`tooling.kit.template.rendering`).
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jinja2 import Template
    from jinja2.environment import TemplateExpression
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
    """The sandbox; unknown variables are errors, unknown (and forbidden) filters are syntax errors."""
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
    """The text with its expressions filled in. Raises UsageError with `where` for a mistake in the template."""
    if "{" not in text:
        return text
    with _mistakes_in(text, where):
        return _template(text).render(context)


def holds(condition: str | bool, context: Mapping[str, Any], *, where: str) -> bool:
    """Whether a `when` holds: a bool, an expression ("style == 'code'"), or a template that renders a bool word.

    Raises UsageError with `where` when it cannot be evaluated.
    """
    if isinstance(condition, bool):
        return condition
    if "{{" in condition or "{%" in condition:
        return _truth(evaluate(condition, context, where=where), where)
    with _mistakes_in(condition, where):
        return bool(_condition(condition)(context))


@functools.lru_cache(maxsize=1024)
def _template(text: str) -> Template:
    """Compiled once: the same defaults and conditions are evaluated for every answer that is completed."""
    return environment().from_string(text)


@functools.lru_cache(maxsize=1024)
def _condition(text: str) -> TemplateExpression:
    return environment().compile_expression(text, undefined_to_none=False)


def rendering_errors() -> tuple[type[Exception], ...]:
    """What rendering a faulty template may raise: Jinja's own errors, those of operators and filters, and those of the
    Python that Jinja makes of it (nested too deeply, a number too large)."""
    import re

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


def _truth(word: str, where: str) -> bool:
    folded = word.strip().lower()
    if folded in TRUE_WORDS or folded in FALSE_WORDS:
        return folded in TRUE_WORDS
    raise UsageError(f"renders {word!r}, expected true or false", where=where, fix="correct the condition")


@contextmanager
def _mistakes_in(text: str, where: str) -> Iterator[None]:
    try:
        yield
    except rendering_errors() as error:
        raise UsageError(f"{text!r} cannot be evaluated: {error}", where=where, fix="correct the template") from error
