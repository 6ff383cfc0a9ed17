"""Records: what one module binds, in a form that is cheap to keep and to load. Expressions are kept as source text."""

from __future__ import annotations

from typing import Any, NamedTuple

SCHEMA = 30
"""Counts up whenever the meaning of kept facts changes."""


class NameBinding(NamedTuple):
    """One binding of a name in a module or class."""

    kind: str
    """"class", "def", "async def", "import", "value", "opaque" (bound in a way that says nothing) or "delete"."""
    line: int
    start: int
    """First line, decorators included."""
    end: int
    where: str
    """"" where it always runs, else "if", "else", "try", "except", "loop"; "typing" where only a type checker looks."""
    source: str = ""
    """Of a value; module of an import; decorators of a definition, joined by null characters."""
    extra: str = ""
    """Annotation of a value; imported name of an import ("" for the module itself); "call" of a class that a
    call makes, as `namedtuple` does."""

    @property
    def decorators(self) -> tuple[str, ...]:
        """Source of each decorator, outermost first."""
        return tuple(self.source.split("\0")) if self.source and self.kind in DEFINITIONS else ()


DEFINITIONS = ("class", "def", "async def")


class Star(NamedTuple):
    """`from module import *`."""

    line: int
    module: str
    """Dotted path; for a copying loop the source of the expression whose `dir` it runs over."""
    where: str
    copies: bool = False
    """A loop over `dir(module)` that writes `globals()`: every name, whatever `__all__` says."""


class BodyTable(NamedTuple):
    """A module or class body."""

    bindings: dict[str, list[NameBinding]]
    stars: list[Star]
    bases: tuple[str, ...] = ()
    """Source of each base of a class."""
    keywords: tuple[tuple[str, str], ...] = ()
    """Keywords of a class statement."""
    name: str = ""
    """Qualified name of a class inside its module."""
    annotated: tuple[str, ...] = ()
    """Names with an annotation in the body, in order: what dataclasses make fields of."""


class ModuleTable(NamedTuple):
    """What one file says at its top level."""

    path: str
    dotted: str
    package: bool
    scope: BodyTable
    classes: dict[int, BodyTable]
    """Class bodies by line of the `class` statement, at any depth outside functions."""
    exports: list[tuple[str, str]]
    """Steps that make `__all__`: ("set", "perhaps" for a set in a branch, or "add"; source)."""
    patches: list[tuple[str, str, int, str]]
    """Assignments to an attribute of a plain name: (name, attribute, line, source of the value)."""
    submodules: tuple[str, ...] = ()
    """Modules that top-level imports load, by dotted path."""
    dynamic: str = ""
    """Why names may exist that stand nowhere."""
    replaced: str = ""
    """Source of the object that the module puts in its own place in `sys.modules`."""
    makes_modules: bool = False
    """Whether it writes `sys.modules` or uses `sys.meta_path`: other modules may exist through it."""
    deprecated: str = ""
    """What importing it warns of in any case."""
    problem: str = ""
    """Why it could not be read."""


class FunctionTable(NamedTuple):
    """What a function's own text says."""

    parameters: list[tuple[str, str, str | None, str]]
    """(name, kind, default's source, annotation's source), `self` and `cls` included."""
    returns: str
    is_async: bool
    is_generator: bool
    values: list[str]
    """Source of each returned value; "" for a bare return."""
    yields: list[str]
    local: dict[str, list[tuple[str, str, str]]]
    """Plain local names: (kind "value", "for", "with" or "opaque", source, annotation)."""
    imports: dict[str, tuple[str, str]]
    """Local imports: (module, name)."""
    refuses: str | None
    """None if the body does more than raise."""
    refusal_type: str
    deprecated: str
    parameter_notes: dict[str, str]
    """Deprecation texts about single parameters."""
    keyword_reads: list[str]
    """Constant keys that are looked up in **kwargs."""
    keyword_forwards: list[tuple[str, list[str], bool]]
    """Callees that get **kwargs, with the keywords that they are given beside it."""
    keyword_open: str
    """Why other keywords may be taken too."""
    keyword_checked: bool
    """Whether what is left over in **kwargs raises."""
    keyword_allowed: list[str]
    """Sources of collections: a keyword of **kwargs that is in none of these raises."""
    inner: dict[str, tuple[list[tuple[str, str, str | None, str]], list[str], list[str], bool, list[str]]]
    """Functions defined inside: (parameters, decorators, returned sources, whether a call gives what is returned,
    keyword reads)."""


class ClassTable(NamedTuple):
    """What a class' methods say of its instances."""

    attributes: dict[str, list[tuple[str, str, str, int]]]
    """Attributes set on `self`: (source, annotation, method, line)."""
    dynamic: str
    """Why instances may have more attributes than stand here: they get one for each of what they are given."""
    of_class: bool
    """The class itself may get them."""


def freeze_table(table: ModuleTable) -> Any:
    """As plain tuples and dicts, which `marshal` takes."""

    def scope(value: BodyTable) -> Any:
        bindings = {name: [tuple(item) for item in items] for name, items in value.bindings.items()}
        return (bindings, [tuple(star) for star in value.stars], *value[2:])

    classes = {line: scope(body) for line, body in table.classes.items()}
    return (*table[:3], scope(table.scope), classes, *table[5:])


def thaw_table(data: Any) -> ModuleTable:
    """Undo `freeze_table`."""

    def scope(value: Any) -> BodyTable:
        bindings = {name: [NameBinding(*item) for item in items] for name, items in value[0].items()}
        return BodyTable(bindings, [Star(*star) for star in value[1]], *value[2:])

    classes = {line: scope(body) for line, body in data[4].items()}
    return ModuleTable._make((*data[:3], scope(data[3]), classes, *data[5:]))
