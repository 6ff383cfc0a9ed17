"""Scopes during the walk: what their names hold at this point of it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable


class ElementOf(ast.Subscript):
    """What one name of `major, minor = value` is assigned: `(value)[0]`, which stands nowhere."""

    def __init__(self, value: ast.expr, index: int) -> None:
        super().__init__(value, ast.Constant(index), ast.Load())
        self.index = index
        ast.copy_location(self, value)


@dataclass(slots=True)
class DictEntry:
    """A key of a dict whose content is known."""

    key: ast.expr | ast.keyword
    """Where the keyword stands."""
    name: str
    value: int
    literal: str | None
    conditions: tuple[int, ...]


@dataclass(slots=True)
class KnownDict:
    """A local dict made of constant keys."""

    entries: dict[str, list[DictEntry]] = field(default_factory=dict)
    more: bool = False
    """Whether it may have keys that are not seen."""
    rests: tuple[int, ...] = ()
    """Values that the keys that are not seen come from: `**kwargs`, a parameter, what a function returned."""
    dropped: frozenset[str] = frozenset()
    """Keys of the rests that were taken out; ANY if nobody knows which."""
    ANY: ClassVar = "*"

    def copy(self) -> KnownDict:
        """As it is now: later changes to one do not touch the other."""
        entries = {name: list(entries) for name, entries in self.entries.items()}
        return KnownDict(entries, self.more, self.rests, self.dropped)

    def drop(self, name: str) -> None:
        """Take a key out."""
        self.entries.pop(name, None)
        self.dropped |= {name}


@dataclass(slots=True)
class Frame:
    """One scope during the walk."""

    kind: str
    """"module", "class" or "function"."""
    qualname: str
    parent: Frame | None
    bound: frozenset[str] = frozenset()
    """Names that are local here wherever they are bound, as Python's own symbol table says."""
    outer: frozenset[str] = frozenset()
    """Names declared `global`."""
    nonlocals: frozenset[str] = frozenset()
    owner: str = ""
    """Of a method: the class it belongs to."""
    receiver: str = ""
    """Of a method: its first parameter."""
    inline: bool = False
    """A lambda or comprehension: walked where it stands, so it sees what names hold there."""
    defined: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Functions by line: qualified name, and the conditions of the definition."""
    values: dict[str, int] = field(default_factory=dict)
    """What each name holds at this point; also "self.x" where that was narrowed."""
    origins: dict[str, ast.expr | None] = field(default_factory=dict)
    """The expression a name was bound to; None if there were several."""
    history: dict[str, list[int]] = field(default_factory=dict)
    dicts: dict[str, KnownDict] = field(default_factory=dict)
    strings: dict[str, list[ast.Constant]] = field(default_factory=dict)
    """Names that are bound to a list of strings, or to each of its elements in turn."""
    dict_made: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Conditions that each of `dicts` was made under."""
    reads_annotations: bool = False
    """A class whose fields are made from its annotations: even those in strings are evaluated."""
    marks: tuple[int, ...] = ()
    """Conditions of `pytestmark`: all functions below run under them."""
    returns: list[int] = field(default_factory=list)
    yields: list[int] = field(default_factory=list)
    is_generator: bool = False
    later: list[Callable[[], None]] = field(default_factory=list)
    """Bodies to walk when this scope is complete."""

    def state(self) -> FrameState:
        """Return a copy of what its names hold."""
        return dict(self.values), {name: known.copy() for name, known in self.dicts.items()}

    def restore(self, state: FrameState) -> None:
        """Let names hold what they held; the state may be used again."""
        self.values, self.dicts = dict(state[0]), {name: known.copy() for name, known in state[1].items()}


FrameState = tuple[dict[str, int], dict[str, KnownDict]]
"""Values and known dicts by name."""
