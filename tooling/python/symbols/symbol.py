"""What a tree of source defines, as records. Three answers everywhere: found, absent, open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tooling.python.access_paths import AccessPath


class SymbolKind(StrEnum):
    """What a symbol is."""

    MODULE = "module"
    CLASS = "class"
    FUNCTION = "function"
    """Functions, methods and properties: see `Symbol.binding`."""
    VALUE = "value"
    """Constants, enum members, fields of dataclasses, attributes set on `self`."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as it is written."""

    name: str
    kind: str
    """"positional-only", "positional", "star", "keyword-only" or "double-star"."""
    default: str | None = None
    """Source of the default; None if there is none. "..." in stubs."""
    folded: str | None = None
    """The default's value as `repr`, folded through constants of the tree and enum members; None if not known."""
    annotation: str = ""
    aliases: tuple[str, ...] = ()
    """Other keywords that are accepted for it (pydantic aliases, deprecate_kwarg)."""
    deprecated: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """How something is called, without `self` or `cls`."""

    parameters: tuple[Parameter, ...]
    returns: str = ""
    """Annotation, as written."""
    exact: bool = True
    """False if a decorator may have changed it: nothing breaking may be said."""
    extra: str = ""
    """What pydantic does with unknown keywords: "forbid", "ignore" or "allow"; "" elsewhere."""

    def text(self, name: str) -> str:
        """One line, as in the source: "name(a, *, b=1) -> int"."""
        parts: list[str] = []
        starred = False
        for index, parameter in enumerate(self.parameters):
            if parameter.kind == "star":
                starred = True
            elif parameter.kind == "keyword-only" and not starred:
                parts.append("*")
                starred = True
            mark = {"star": "*", "double-star": "**"}.get(parameter.kind, "")
            annotated = f": {parameter.annotation}" if parameter.annotation else ""
            equals = " = " if parameter.annotation else "="
            default = "" if parameter.default is None else f"{equals}{parameter.default}"
            parts.append(f"{mark}{parameter.name}{annotated}{default}")
            following = self.parameters[index + 1] if index + 1 < len(self.parameters) else None
            if parameter.kind == "positional-only" and (following is None or following.kind != "positional-only"):
                parts.append("/")
        returned = f" -> {self.returns}" if self.returns else ""
        return f"{name}({', '.join(parts)}){returned}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A definition in a release, or a module of it."""

    kind: SymbolKind
    dotted: str
    """Where it is defined, not where it was found: "vllm.entrypoints.llm.LLM.generate"."""
    file: str
    line: int
    end_line: int = 0
    owner: str = ""
    """Dotted path of the class a member is defined in."""
    binding: str = "function"
    """Of a FUNCTION: "function", "method", "classmethod", "staticmethod", "property" or "cached-property"."""
    is_async: bool = False
    is_generator: bool = False
    is_abstract: bool = False
    refuses: str = ""
    """The body does nothing but raise: its message. Not for NotImplementedError in an abstract class."""
    deprecated: str = ""
    """The deprecation's text, from a decorator, a warning in the body or in the `__getattr__` branch that gives it."""
    removed_in: str = ""
    """Version that text names."""
    digest: str = ""
    """Of the body without docstring and own name: equal for a definition that was only moved or renamed."""
    value: str = ""
    """Source of a VALUE, and of an enum member; folded as `repr` where possible."""

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.dotted.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Found:
    """It exists."""

    symbol: Symbol
    through: tuple[str, ...] = ()
    """Dotted paths of the re-exports on the way, outermost first."""
    deprecated: str = ""
    """The way itself is deprecated (a `__getattr__` branch that warns)."""


class Provider(StrEnum):
    """What may still give a name that nothing defines, in words."""

    BASE = "a base of another distribution"
    COMPUTED = "code that computes names"
    HOOK = "its __getattr__"
    ITEMS = "the items that its __getattr__ looks in"
    METACLASS = "the __getattr__ of its metaclass"
    STAR = "a star import"
    STUB = "the compiled class"
    VALUES = "what it is given"
    """`setattr(self, key, value)` for what is passed."""


@dataclass(frozen=True, slots=True)
class Absent:
    """It does not exist."""

    container: str
    """Dotted path of the innermost module or class that does exist."""
    name: str
    """What that lacks."""
    file: str = ""
    line: int = 0
    said: str = ""
    """What the exception says that a module's `__getattr__` raises for it."""
    provider: Provider | None = None
    """Of an `Open`: what may give it all the same."""


@dataclass(frozen=True, slots=True)
class Open:
    """Not known."""

    why: str
    beside: Absent | None = None
    """What would be absent if no base class outside of the tree had it, and no `__getattr__` gave it."""
    of_class: Absent | None = None
    """What a class itself lacks, whatever its instances may have."""
    compiled: str = ""
    """Dotted path of a name of a compiled module, whose nature nobody can read."""


Resolution = Found | Absent | Open


# --------------------------------------------------------------------------------------------------- types of values


@dataclass(frozen=True, slots=True)
class Definite:
    """The object itself: a module, class, function or value, as `symbol` says. `bound`: reached through an instance or
    a class, so that `self` or `cls` is filled in."""

    symbol: Symbol
    bound: bool = False
    receiver: str = ""
    """Dotted path of the class it was reached through."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance of a class of the tree."""

    symbol: Symbol


@dataclass(frozen=True, slots=True)
class Container:
    """Values around others. name: "list", "set", "dict", "tuple", "awaitable", "iterator", "async-iterator", "context",
    "async-context", or "function" of one that another function made."""

    name: str
    items: tuple[Values, ...]
    """One for all but "tuple" (one each; a tuple of any length has name "list") and "dict" (key, value). The second of
    an "iterator" is what the generator returns."""
    exact: str = ""
    """The class of Python that it surely is, where others of that name have more methods: "tuple", "frozenset"."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """Something of the standard library or None: "str", "int", "NoneType", ..."""

    name: str


Type = Definite | Instance | Container | Builtin


@dataclass(frozen=True, slots=True)
class Values:
    """What an expression may be: one of `types`; of anything else too if `open`."""

    types: tuple[Type, ...]
    open: bool = False
    inferred: bool = False
    """Through return statements of unannotated code somewhere on the way: lower confidence."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Following an access path failed: at `step`, because of `absent`; `partly` if some members of a union go on."""

    step: AccessPath
    absent: Absent
    partly: bool = False


Outcome = Values | Gone | Open


class Keyword(StrEnum):
    """Whether a callable takes a keyword."""

    NAMED = "named"
    READ = "read"
    """Popped or looked up in **kwargs, or forwarded to something that takes it."""
    REFUSED = "refused"
    IGNORED = "ignored"
    """Taken and never used."""
    OPEN = "open"
