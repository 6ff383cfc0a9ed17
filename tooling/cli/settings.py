"""Reads `[tool.areal.NAME]` of a project's pyproject.toml into a pydantic model.

    class CommitSettings(Settings):
        header_length: PositiveInt = 72
        types: Strings = ()

    settings = read_settings(CommitSettings, root, "commit")

Unknown keys and wrong values raise UsageError: the key, what was found, what is expected, the nearest known key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, StringConstraints, ValidationError

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic_core import ErrorDetails


class Settings(BaseModel):
    """Base of all settings: immutable, strict about types, and without keys that nobody knows."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)


Model = TypeVar("Model", bound=Settings)


def _from_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Text = Annotated[str, StringConstraints(min_length=1)]
"""Not empty."""
Strings = Annotated[tuple[Text, ...], BeforeValidator(_from_list)]
"""A TOML array of strings."""
_EXPECTED = {
    "bool_type": ("true or false", "true"),
    "dict_type": ("a table", "{ ... }"),
    "float_type": ("a number", "1.5"),
    "int_type": ("a whole number", "72"),
    "model_type": ("a table", "{ ... }"),
    "string_type": ("a text", '"..."'),
    "tuple_type": ("a list of texts", '["..."]'),
}
"""What pydantic's kinds of errors mean in TOML: what is expected, and an example."""


def read_settings(model: type[Model], root: Path, name: str) -> Model:
    """Read `[tool.areal.NAME]` of the project at `root`; without the file or the table, all defaults.

    Raises UsageError for a file that is not TOML, for unknown keys, and for values of the wrong type or range.
    """
    try:
        content = (root / "pyproject.toml").read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        raise UsageError(f"cannot be read: {error}", where="pyproject.toml", fix="make it readable") from error
    return parse_settings(model, content, name)


def parse_settings(model: type[Model], content: bytes, name: str) -> Model:
    """Read `[tool.areal.NAME]` of the content of a pyproject.toml. Raises as `read_settings`."""
    try:
        table: Any = parse_toml(content)
    except TOMLError as error:
        raise UsageError(f"is not TOML: {error}", where="pyproject.toml", fix="correct the syntax there") from error
    for key in ("tool", "areal", name):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise UsageError("expected a table", where=section(name), fix=f"write `{key}` as a table")
    return validate(model, table, section(name))


def section(*names: str) -> str:
    """Name a table for messages: section("commit", "scopes") -> "pyproject.toml: [tool.areal.commit.scopes]"."""
    return f"pyproject.toml: [{'.'.join(('tool.areal', *names))}]"


def validate(model: type[Model], table: Mapping[str, Any], where: str) -> Model:
    """Return the model of a table. Raises UsageError about the first wrong key; where: the table, for its message."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        raise _explained(error.errors(include_url=False)[0], model, where) from error


def _explained(problem: ErrorDetails, model: type[Settings], where: str) -> UsageError:
    """Turn pydantic's first error into one of ours.

    Example: header_length = "72" -> "`header_length` is '72', expected a whole number; write header_length = 72".
    """
    path = [part for part in problem["loc"] if part != "[key]"]
    key = ".".join(str(part) for part in path if isinstance(part, str))
    last = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
    if problem["type"] == "extra_forbidden":
        known = sorted(_known_keys(model, path[:-1]))
        return UsageError(
            f"unknown setting {key!r}",
            where=where,
            fix=did_you_mean(last, known) or f"known settings: {', '.join(known)}",
        )
    if problem["type"] == "value_error":
        cause = problem.get("ctx", {}).get("error")
        return cause if isinstance(cause, UsageError) else UsageError(_said(key, str(cause)), where=where)
    if problem["type"] == "missing":
        return UsageError(f"`{key}` is missing", where=where, fix=f"add {last} = ...")
    expected, example = _EXPECTED.get(problem["type"], ("", ""))
    if problem["type"] == "string_too_short":
        least = problem.get("ctx", {}).get("min_length", 1)
        expected, example = (
            "a text" + (f" of {least} characters or more" if least > 1 else " that is not empty"),
            '"..."',
        )
    if not expected:  # "Input should be greater than 0" -> "expected greater than 0"
        expected = problem["msg"].removeprefix("Input should be ").removeprefix("String should ")
    fix = f"write {last} = {example}" if example else f"change {last}"
    return UsageError(f"`{key}` is {_shown(problem['input'])}, expected {expected}", where=where, fix=fix)


def _said(key: str, message: str) -> str:
    return f"`{key}` {message}" if key else message


def _shown(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return repr(value)


def _known_keys(model: type[Settings], path: list[str | int]) -> set[str]:
    """Return the keys of the table at `path`: for ["scopes", "ci"], those of the model that `scopes` maps names to."""
    keys = set(model.model_fields)
    if not path:
        return keys
    annotation = model.model_fields[str(path[0])].annotation if path[0] in keys else None
    inner = [each for each in (annotation, *getattr(annotation, "__args__", ())) if isinstance(each, type)]
    models = [each for each in inner if issubclass(each, Settings)]
    return set(models[0].model_fields) if models else keys
