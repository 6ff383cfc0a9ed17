"""Texts by which a package announces that something goes: in warnings and in decorators."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.upgrade.upstream.execute import text_of
from tooling.upgrade.upstream.parsing import dotted_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CATEGORIES = ("DeprecationWarning", "FutureWarning", "PendingDeprecationWarning", "VisibleDeprecationWarning")
_CALLS = ("warn", "warning", "warning_once", "warn_once", "warning_advice", "rank_zero_warn", "rank_zero_deprecation")
_WORDS = re.compile(r"deprecat|will be removed|is going away|no longer be supported", re.IGNORECASE)
_VERSION = r"(?:v|version\s*|transformers\s*|vllm\s*|torch\s*)?\s*(\d+\.\d+(?:\.\d+)*)"
_REMOVED = re.compile(
    rf"(?:remov|delet|drop|unsupported|error|disappear|gone|disallow)\w*[^.]{{0,80}}?\b{_VERSION}"
    rf"|(?:until|before|by)\s+{_VERSION}"
    rf"|\bin\s+{_VERSION}[^.]{{0,40}}(?:remov|delet|drop|error)",
    re.IGNORECASE,
)


def removed_in(text: str) -> str:
    """The version in which a text says that something goes; "" if it names none."""
    match = _REMOVED.search(text)
    return next(filter(None, match.groups()), "") if match else ""


def warned(body: Sequence[ast.stmt], texts: dict[str, str]) -> Iterator[tuple[str, list[ast.expr]]]:
    """Deprecation warnings of a function body: the text, and the conditions it stands under.

    texts: messages that local names hold.
    """
    yield from _visit(body, [], texts)


def _visit(
    body: Sequence[ast.stmt], tests: list[ast.expr], texts: dict[str, str]
) -> Iterator[tuple[str, list[ast.expr]]]:
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _visit(statement.body, [*tests, statement.test], texts)
            yield from _visit(statement.orelse, [*tests, statement.test], texts)
        elif isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
            yield from _visit(statement.body, tests, texts)
        elif isinstance(statement, ast.For):
            yield from _visit(statement.body, [*tests, statement.iter], texts)
        elif isinstance(statement, ast.Assign):
            _remember(statement, texts)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            text = warning_text(statement.value, texts)
            if text:
                yield text, tests


def _remember(statement: ast.Assign, texts: dict[str, str]) -> None:
    text = text_of(statement.value)
    for target in statement.targets:
        if text and isinstance(target, ast.Name):
            texts[target.id] = text


def warning_text(call: ast.Call, texts: dict[str, str]) -> str:
    """Text of a call that warns of a deprecation; "" for any other call."""
    name = dotted_name(call.func) or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
    last = name.rpartition(".")[2]
    if last not in _CALLS and not last.startswith("deprecat") and not last.startswith("_deprecat"):
        return ""
    message = call.args[0] if call.args else next((word.value for word in call.keywords if word.arg == "message"), None)
    text = texts.get(message.id, "") if isinstance(message, ast.Name) else text_of(message)
    category = any(
        dotted_name(value).rpartition(".")[2] in CATEGORIES
        for value in [*call.args[1:], *(word.value for word in call.keywords if word.arg == "category")]
    )
    if category or last not in _CALLS or _WORDS.search(text):
        return " ".join(text.split()) or "deprecated"
    return ""


def of_decorator(source: ast.expr) -> str | None:
    """Text of a decorator that deprecates what it stands on; None if it does not.

    Decorators for single parameters (`deprecate_kwarg`) are not among them.
    """
    if not isinstance(source, ast.Call):
        return "deprecated" if dotted_name(source).rpartition(".")[2] == "deprecated" else None
    name = dotted_name(source.func).rpartition(".")[2].lower().lstrip("_")
    if not name.startswith("deprecat") or re.search(r"arg|param|kw", name):
        return None
    parts = [text_of(value) for value in [*source.args, *(word.value for word in source.keywords)]]
    return " ".join(" ".join(part for part in parts if part).split()) or "deprecated"


def renamed_parameter(source: ast.expr) -> tuple[str, str, str] | None:
    """(old name, new name or "", text) of a decorator such as `deprecate_kwarg("old", new_name="new")`."""
    if not isinstance(source, ast.Call):
        return None
    name = dotted_name(source.func).rpartition(".")[2].lower()
    if not ("deprecat" in name and re.search(r"arg|param|kw", name)):
        return None
    words = {word.arg: word.value for word in source.keywords if word.arg}
    texts = [text_of(value) for value in source.args]
    old = texts[0] if texts else text_of(next((words[key] for key in words if key.startswith("old")), None))
    new = next((text_of(words[key]) for key in words if key.startswith("new")), "")
    if not old.isidentifier():
        return None
    version = next((text_of(words[key]) for key in words if "version" in key), "") or "".join(texts[1:2])
    text = f"{old} is deprecated" + (f", use {new}" if new else "")
    return old, new, text + (f"; removed in {version}" if version[:1].isdigit() else "")
