"""Write down how a value comes about, without saying what it is in any version of a package.

    from vllm import LLM                         Name("vllm.LLM")
    llm = LLM(model)                             Called(Name("vllm.LLM"))
    llm.generate(x)                              a call of Attribute(Called(Name("vllm.LLM")), "generate")
    async for out in engine.generate(x): out.y   Attribute(Iterated(Called(Attribute(...)), asynchronous=True), "y")

Everything is frozen and hashable. An access path never ends in something of nobody's interest: unknown values are
`Unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Name:
    """A dotted path that an import or a plain `import a.b` chain reaches: module, or symbol in it."""

    dotted: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """`base.name`."""

    base: AccessPath
    name: str


@dataclass(frozen=True, slots=True)
class Called:
    """The value of calling `base` (an instance, if it is a class)."""

    base: AccessPath


@dataclass(frozen=True, slots=True)
class InstanceOf:
    """A value annotated with the type expression `base`: `x: LLM`, `self` of a subclass, an `isinstance` branch."""

    base: AccessPath


@dataclass(frozen=True, slots=True)
class SuperOf:
    """`super()` in a class whose bases are these, in order."""

    bases: tuple[AccessPath, ...]


@dataclass(frozen=True, slots=True)
class Awaited:
    """`await base`."""

    base: AccessPath


@dataclass(frozen=True, slots=True)
class Iterated:
    """An element of `base` as a loop or comprehension gives it."""

    base: AccessPath
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class ItemOf:
    """`base[key]`; `key` where it is a constant, else None. Unpacking `a, b = base` gives items 0 and 1."""

    base: AccessPath
    key: str | int | None


@dataclass(frozen=True, slots=True)
class Entered:
    """The target of `with base as x`."""

    base: AccessPath
    asynchronous: bool = False


@dataclass(frozen=True, slots=True)
class ClientClass:
    """A class of the repository with bases among ours. Instances have its own members (not here) and the bases'."""

    dotted: str
    bases: tuple[AccessPath, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several, by branches or assignments."""

    members: tuple[AccessPath, ...]


@dataclass(frozen=True, slots=True)
class Duck:
    """A value that nothing types, on which these attributes are used; whose class has them all may be meant."""

    names: frozenset[str]
    label: str = ""
    """What the code calls it: "tokenizer" is hardly a processor."""


def is_distinctive(name: str) -> bool:
    """Whether a name is of several words, and so few packages share it."""
    return "_" in name.strip("_") and len(name) > 7


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not ours, or beyond inference."""


AccessPath = (
    Name
    | Attribute
    | Called
    | InstanceOf
    | SuperOf
    | Awaited
    | Iterated
    | ItemOf
    | Entered
    | ClientClass
    | Either
    | Duck
    | Unknown
)


def root_of(access_path: AccessPath) -> str:
    """Return the dotted name at the bottom of an access path; "" if it has none."""
    return next(roots_of(access_path), "")


def roots_of(access_path: AccessPath) -> Iterator[str]:
    """Yield all dotted names at the bottom of an access path."""
    match access_path:
        case Name(dotted):
            yield dotted
        case (
            Attribute(base=base)
            | Called(base=base)
            | InstanceOf(base=base)
            | Awaited(base=base)
            | Iterated(base=base)
            | ItemOf(base=base)
            | Entered(base=base)
        ):
            yield from roots_of(base)
        case SuperOf(bases) | ClientClass(bases=bases) | Either(bases):
            for each in bases:
                yield from roots_of(each)


def spelled(access_path: AccessPath, otherwise: str = "") -> str:
    """Write the path a reader would give the thing: "vllm.LLM.generate" for `llm.generate` of a `vllm.LLM`."""
    match access_path:
        case Name(dotted):
            return dotted
        case Attribute(base, name):
            inner = spelled(_class_of(base))
            return f"{inner}.{name}" if inner else otherwise
        case Either(members):
            return next((text for member in members if (text := spelled(member))), otherwise)
    return otherwise


def _class_of(access_path: AccessPath) -> AccessPath:
    """Return the class of an instance or of `super()`, if it has a name; names of classes begin with a capital."""
    match access_path:
        case Called(Name(dotted)) | InstanceOf(Name(dotted)) if dotted.rpartition(".")[2][:1].isupper():
            return Name(dotted)
        case SuperOf((first, *_)) | ClientClass(bases=(first, *_)):
            return _class_of(first) if not isinstance(first, Name) else first
        case Called(ClientClass() as inner) | InstanceOf(ClientClass() as inner):
            return _class_of(inner)
        case Name():
            return access_path
        case Attribute(Name(), _):
            return Name(spelled(access_path))
    return Unknown()


_DOCUMENTED = frozenset(
    {"_asdict", "_field_defaults", "_fields", "_make", "_replace", "_missing_", "_value_", "_name_"}
)
"""Of named tuples and enumerations: the underscore keeps them apart from fields."""


def touches_private(access_path: AccessPath) -> bool:
    """Whether a private part (`_x`, not `__x__`) is named here: in the dotted path, or as the last attribute."""
    match access_path:
        case Attribute(_, name) | Name(name):
            parts = name.split(".")
            hidden = [part for part in parts if part.startswith("_") and part not in _DOCUMENTED]
            return any(not (part.startswith("__") and part.endswith("__")) for part in hidden)
        case Either(members):
            return any(touches_private(member) for member in members)
    return False


def translated(access_path: AccessPath, rename: Callable[[str], str]) -> AccessPath:
    """Return the path with other names. rename: the new dotted path of a name, or the same."""
    match access_path:
        case Name(dotted):
            return Name(rename(dotted))
        case Attribute() | Called() | InstanceOf() | Awaited() | Iterated() | ItemOf() | Entered():
            return replace(access_path, base=translated(access_path.base, rename))
        case SuperOf(bases) | ClientClass(bases=bases):
            return replace(access_path, bases=tuple(translated(each, rename) for each in bases))
        case Either(members):
            return Either(tuple(translated(each, rename) for each in members))
    return access_path
