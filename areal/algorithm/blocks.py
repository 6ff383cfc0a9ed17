"""Builds the blocks of an objective from what a configuration says, and describes them. Torch-free.

A block is a frozen dataclass that holds the fields of one method. A configuration names it in one of three ways:

    surrogate: sapo                              # the class of that name, with its defaults
    surrogate: {name: sapo, tau_pos: 2}          # the same with changes; `name` may be a path, my_module:MyLoss
    surrogate: {clip_high: 0.28}                 # no name: the preset's block with changes
"""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Annotated, Any, Final, Literal

from areal.algorithm import registry
from areal.api import ArealError, Config, ConfigError, RegistryError, check_ranges, load
from areal.utils.suggest import did_you_mean


class _CheckedByMakeBlock:
    """Tells pydantic to accept anything: `make_block` has the better messages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Be asked by pydantic for the schema of a field."""
        from pydantic_core import core_schema

        return core_schema.any_schema()


BlockChoice = Annotated[str | dict[str, Any] | None, _CheckedByMakeBlock()]
"""What a configuration holds for a block; None keeps the preset's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKind:
    """One kind of block."""

    contract: str
    """ "module:class" that every block of this kind derives from."""
    table: Mapping[str, str]
    """Name to class; empty when there is one class only."""


KINDS: Final[dict[str, BlockKind]] = {
    "advantage": BlockKind(contract="areal.algorithm.advantages:Advantage", table=registry.ADVANTAGES),
    "aggregation": BlockKind(contract="areal.algorithm.aggregations:Aggregation", table=registry.AGGREGATIONS),
    "correction": BlockKind(contract="areal.algorithm.corrections:Correction", table=registry.CORRECTIONS),
    "kl": BlockKind(contract="areal.algorithm.kl:KL", table={}),
    "surrogate": BlockKind(contract="areal.algorithm.surrogates:Surrogate", table=registry.SURROGATES),
}
"""Field of an objective to the kind of block it holds."""

_TYPES: Final[dict[Any, str]] = {
    bool: "true or false",
    float: "a number",
    int: "an integer",
    str: "text",
    NoneType: "null",
}


def block_classes(kind: str) -> dict[str, type[Config]]:
    """Name to class of every block of a kind that comes with this package; the name is "" where there is only one."""
    table = KINDS[kind].table
    return {name: load_class(kind, name) for name in table} or {"": load("contract", KINDS[kind].contract, {})}


def load_class(kind: str, name: str) -> type[Config]:
    """Return the class that `name`, an entry of the kind's table or an importable path, stands for.

    Raises RegistryError when there is no such thing, ConfigError when it is not a block of this kind.
    """
    try:
        found = load(kind, name, KINDS[kind].table)
    except ArealError:
        raise
    except (Exception, SystemExit) as error:
        from areal.utils.user_code import blame

        if (caught := blame(error)) is None:
            raise
        raise RegistryError(
            f"{kind} {name!r} cannot be loaded: {caught.text}", where=caught.place, fix=caught.fix_of_import
        ) from error
    contract = load("contract", KINDS[kind].contract, {})
    expected = f"expected a class derived from {contract.__module__}.{contract.__name__}"
    if not (isinstance(found, type) and issubclass(found, contract)):
        raise ConfigError(f"{kind} {name!r} is {_kind_of(found)}; {expected}, as in docs/algorithms.md")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise ConfigError(f"{kind} {name!r}: class {found.__name__} does not define {', '.join(missing)}(); {expected}")
    if "__dataclass_fields__" not in vars(found):
        raise ConfigError(
            f"{kind} {name!r}: class {found.__name__} is not a dataclass, so its fields could not be set; put "
            f"@dataclass(frozen=True, kw_only=True) above it"
        )
    return found


def make_block(kind: str, choice: object, default: Config) -> Config:
    """Return the block that `choice` describes (see the top of this module); `default` is the preset's.

    A block itself is returned as it is. Raises ConfigError (or RegistryError for a name) that starts with the key.
    """
    if choice is None or isinstance(choice, Config):
        return default if choice is None else choice
    named = bool(KINDS[kind].table)
    if isinstance(choice, str) and named:
        choice = {"name": choice}
    if not isinstance(choice, Mapping):
        example = "a name such as" if named else "a section such as"
        raise ConfigError(f"{kind} is {choice!r}, expected {example} {describe_block(default)}")
    changes = dict(choice)
    cls, own_name = type(default), named and "name" in changes
    if own_name:
        name = changes.pop("name")
        if not isinstance(name, str):
            raise ConfigError(f"{kind}.name is {name!r}, expected text")
        cls = load_class(kind, name)
    known = [item.name for item in fields(cls) if item.init]
    for key in changes:
        if key not in known:
            raise ConfigError(_unknown_field(kind, key, cls, known))
    try:
        return cls(**changes) if own_name else replace(default, **changes)
    except TypeError as error:  # a class of the user's with a field that has no default
        raise ConfigError(f"{kind} {block_name(cls)!r}: {error}") from error


def block_name(block: Config | type[Config]) -> str:
    """Name of a block in its table, or its path when it has none."""
    cls = block if isinstance(block, type) else type(block)
    target = f"{cls.__module__}:{cls.__qualname__}"
    entries = (entry for kind in KINDS.values() for entry in kind.table.items())
    return next((name for name, known in entries if known == target), target)


def describe_block(block: Config) -> dict[str, Any]:
    """Name (where its kind has several classes) and all fields, plain values: what a configuration may say for it."""
    name = block_name(block)
    own = {item.name: getattr(block, item.name) for item in fields(block)}
    return own if name == KINDS["kl"].contract else {"name": name, **own}


def check_fields(block: Config, kind: str = "") -> None:
    """Refuse values of the wrong type or out of range: text for numbers, numbers for switches, unknown choices.

    kind: opens the message, "surrogate.clip_high is ...". Checked are numbers, switches, texts and literals; a field of
    another type is its owner's business.
    """
    prefix = f"{kind}." if kind else ""
    _check_types(block, prefix)
    check_ranges(block, prefix)


def _check_types(block: Config, prefix: str) -> None:
    cls: Any = type(block)
    for name, hint in _hints(cls).items():
        value = getattr(block, name)
        options = typing.get_args(hint) if typing.get_origin(hint) not in (None, Literal) else (hint,)
        if any(_fits(value, option) for option in options):
            if isinstance(value, float) and not math.isfinite(value):
                raise ConfigError(f"{prefix}{name} is {value}, expected a finite number")
            continue
        texts = [text for option in options if typing.get_origin(option) is Literal for text in typing.get_args(option)]
        words = [f"one of {', '.join(texts)}"] if texts else []
        words += [_TYPES.get(option) or option.__name__ for option in options if isinstance(option, type)]
        near = did_you_mean(value, texts) if isinstance(value, str) else ""
        raise ConfigError(f"{prefix}{name} is {value!r}, expected {' or '.join(words)}{f'; {near}' if near else ''}")


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    """Types of the fields of a class; types that are known to a type checker only count as any."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:
        return {}
    return {item.name: hints[item.name] for item in fields(cls)}


def _fits(value: object, option: Any) -> bool:
    if typing.get_origin(option) is Literal:
        return value in typing.get_args(option)
    if option is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool)
    checked = option in _TYPES or (isinstance(option, type) and issubclass(option, Config))
    return isinstance(value, option) if checked else True


def _unknown_field(kind: str, key: str, cls: type[Config], known: list[str]) -> str:
    """Message for a field that a block does not have: who has it, or what was probably meant."""
    owners = [name for name, other in block_classes(kind).items() if key in {item.name for item in fields(other)}]
    if owners:
        return f"{kind}.{key} has no effect with {kind} {block_name(cls)!r}; it belongs to {', '.join(sorted(owners))}"
    hint = did_you_mean(key, known)
    return f"{kind}.{key} is an unknown key; {f'{hint} ' if hint else ''}known keys are {', '.join(known) or '(none)'}"


def _kind_of(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "a function" if inspect.isroutine(value) else f"an object of type {type(value).__name__}"
