"""Special methods: whether Python finds one for an instance or a class, whatever it is written as; and whether an
attribute can be set.

Python looks special methods up in the type, past `__getattr__`. Decorators give some, and take others away."""

from __future__ import annotations

import operator
import re
from contextlib import suppress
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Final

from tooling.python.standard_library import WITHOUT_CONSTRUCTOR, python_class
from tooling.python.symbols.definitions import external
from tooling.python.symbols.symbol import Builtin, Container, Definite, Found, Instance, Symbol, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.python.symbols.fields import Fields
    from tooling.python.symbols.members import Ancestor, ClassLineage, Members
    from tooling.python.symbols.symbol import Type

_BINARY = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor")
_ALTERNATIVES: Final = {
    **{f"__i{name}__": (f"__{name}__",) for name in _BINARY},
    "__contains__": ("__iter__", "__getitem__"),
    "__iter__": ("__getitem__",),
    "__reversed__": ("__getitem__",),
    "__int__": ("__index__", "__trunc__"),
    "__float__": ("__index__",),
}
"""What Python asks for if it does not find the special method."""
_BY_VALUE: Final = frozenset({"__int__", "__float__", "__index__", "__round__", "__hash__"})
"""What a value of Python may have or not, by what is in it: `int("3")`, `hash((1, []))`."""
_ORDER: Final = frozenset({"__lt__", "__le__", "__gt__", "__ge__"})
_CONTAINERS: Final = {
    "list": ("__iter__", "__len__", "__contains__", "__getitem__"),
    "set": ("__iter__", "__len__", "__contains__", "__and__", "__or__", "__sub__", "__xor__"),
    "dict": ("__iter__", "__len__", "__contains__", "__getitem__", "keys"),
    "iterator": ("__iter__", "__contains__"),
    "async-iterator": ("__aiter__",),
    "awaitable": ("__await__",),
    "context": ("__enter__", "__exit__"),
    "async-context": ("__aenter__", "__aexit__"),
}
"""What all have that go by the name of a container."""
_SOME: Final = {
    "list": ("__setitem__", "__delitem__", "__reversed__", "__add__", "__iadd__", "__mul__", "__and__", "__or__"),
    "set": ("__iand__", "__ior__", "__isub__", "__ixor__"),
    "dict": ("__setitem__", "__delitem__", "__reversed__", "__or__", "__ior__", "__sub__", "__and__"),
    "iterator": ("__next__", "__reversed__"),
}
"""What some of them have: a list and the keys of a mapping are both of name "list"."""
_KNOWN: Final = ("str", "bytes", "int", "float", "bool", "NoneType", "tuple", "MappingProxyType")
_ORDERED: Final = re.compile(r"\border\s*=\s*True\b|\battr\.(?:s|attrs)\b")
_FROZEN: Final = re.compile(r"\b(?:frozen|unsafe_hash|hash)\b(?!\s*=\s*(?:False|None))")
_PROTOCOL: Final = re.compile(r"(?:\w+\.)*Protocol\b")
_HASHED: Final = ("dataclass", "attrs", "pydantic-dataclass")
"""Styles of classes that compare by their fields: only what is frozen keeps a hash."""


_REFLECTED: Final = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__"}


def alternatives(operation: str, *, reflected: bool = False) -> tuple[str, ...]:
    """List special methods of which one must be there. reflected: both sides of a comparison are of one class."""
    other = (_REFLECTED[operation],) if reflected and operation in _REFLECTED else ()
    return operation, *_ALTERNATIVES.get(operation, ()), *other


_TEXTS: Final = {"str": "a", "bytes": b"a"}
_SAMPLES: Final[dict[str, object]] = {
    **_TEXTS,
    "NoneType": None,
    "dict": {},
    "float": 1.0,
    "int": 1,
    "list": [],
    "set": set(),
    "slice": slice(None),
    "tuple": (),
}


def partners(value: Type, operation: str) -> frozenset[str] | None:
    """List the types of Python's own values that take part in an operation with a value; None if it is not known."""
    answers = {other: combined(value, operation, other) for other in _SAMPLES}
    return None if None in answers.values() else frozenset(other for other, answer in answers.items() if answer)


def combined(value: Type, operation: str, other: str) -> bool | None:
    """Whether Python's own values take part in an operation with a literal of this type; None if it is not known."""
    name = operation.strip("_")
    reflected = not hasattr(operator, name) and name.startswith("r")
    function = getattr(operator, {"and": "and_", "or": "or_"}.get(plain := name[reflected:], plain), None)
    if function is None or name.endswith("mod"):  # `%` depends on what the text holds
        return None
    kind = (value.exact if isinstance(value, Container) else "") or getattr(value, "name", "")
    if not isinstance(value, Builtin | Container) or not {kind, other} <= _SAMPLES.keys():
        return None
    if other == "slice" and kind == "dict":
        return False
    sides = copy(_SAMPLES[kind]), copy(_SAMPLES[other])  # `+=` changes a list
    with suppress(TypeError):
        with suppress(LookupError):
            function(*(reversed(sides) if reflected else sides))
        return True
    # Other things go by the names of containers too, but nothing else by that of a tuple, and none by texts as keys.
    return False if isinstance(value, Builtin) or kind == "tuple" or (name, other) == ("getitem", "str") else None


def refuses(value: Type, method: str, given: Sequence[str]) -> bool | None:
    """Whether a method of texts and bytes refuses literals of these types; None if it is not known."""
    if not isinstance(value, Builtin) or not given or not {value.name, *given} <= _TEXTS.keys():
        return None
    bound = getattr(_TEXTS[value.name], method, None)
    if bound is None:
        return None
    try:
        bound(*(_TEXTS[each] for each in given))
    except (ValueError, LookupError):
        return False
    except TypeError:
        return True
    return False


class Operators:
    """Looks special methods up."""

    def __init__(self, members: Members, fields: Fields) -> None:
        self.members = members
        self.fields = fields

    def goes(self, value: Type, names: Sequence[str]) -> bool | None:
        """Whether a value has one of these special methods; None if it is not known."""
        operation = names[0]
        match value:
            case Instance(symbol):
                return self._any(self.of_instance(symbol, name) for name in names)
            case Definite(symbol) if symbol.kind is SymbolKind.CLASS:
                return self._any(self.of_class(symbol, name) for name in names)
            case Definite(symbol) if symbol.kind is SymbolKind.FUNCTION:
                return operation in ("__call__", "__hash__")
            case Container(exact="", name=name) if name in _CONTAINERS:
                if any(each in _CONTAINERS[name] for each in names):
                    return True
                return None if operation in _SOME.get(name, ()) or operation in _BY_VALUE | _ORDER else False
            case Container(name="tuple" as name) | Container(exact=name) | Builtin(name):
                if name in ("set", "frozenset") or (name in _KNOWN and operation not in _BY_VALUE):
                    return any(_has(_python(name), each) for each in names)
        return None

    @staticmethod
    def _any(answers: Iterable[bool | None]) -> bool | None:
        found = list(answers)
        return True if True in found else None if None in found else False

    def of_instance(self, symbol: Symbol, name: str) -> bool | None:
        """Whether the class of an instance has a special method of its own: `object` answers for none but the hash."""
        if not symbol.dotted:
            return None
        lineage = self.members.lineage(symbol)
        for ancestor in lineage.ancestors:
            found = self._says(ancestor, name)
            if found is not None:
                return found
        if not lineage.complete or any(self.members.dynamic(each, instances=False) for each in lineage.classes):
            return None
        return name == "__hash__"

    def _says(self, ancestor: Ancestor, name: str) -> bool | None:
        if isinstance(ancestor, str):
            known = python_class(ancestor)
            return _has(known, name) if known is not None and _is_own(known, name) else None
        written = self.members.own(ancestor, name)
        if written is not None:
            is_none = isinstance(written, Found) and written.symbol.kind is SymbolKind.VALUE
            return not (is_none and written.symbol.value == "None") if isinstance(written, Found) else None
        found = self._by_decorators(ancestor, name)
        if found is None and name == "__hash__" and self.members.own(ancestor, "__eq__") is not None:
            return False
        return found

    def as_python(self, value: Type, name: str) -> Type:
        """Return Python's own class for an instance of one that derives from it and leaves a special method to it."""
        for ancestor in self.members.lineage(value.symbol).ancestors if isinstance(value, Instance) else ():
            known = python_class(ancestor) if isinstance(ancestor, str) else None
            if known is not None and _has(known, name) and not hasattr(known, "__missing__"):
                return next((Builtin(kind) for kind, sample in _SAMPLES.items() if known is type(sample)), value)
            if known is None and (isinstance(ancestor, str) or self.members.own(ancestor, name) is not None):
                break
        return value

    def refusal(self, symbol: Symbol, name: str, verb: str, *, derived: bool = False) -> str | None:
        """Why an attribute of an instance cannot be set, or deleted; "" if it can, None if it is not known.

        verb: "setter" or "deleter". derived: the instance is of a class that derives from this one."""
        lineage = self.members.lineage(symbol)
        hook = "__setattr__" if verb == "setter" else "__delattr__"
        if any(self.members.own(each, hook) is not None for each in lineage.classes):
            return None
        if any(map(self.fields.is_frozen, lineage.classes)):
            return f"{symbol.name} is frozen"
        names = self.fields.names(symbol)
        if names is not None and name in names:
            return f"{symbol.name} is a tuple"
        for ancestor in lineage.ancestors:
            found = self.members.own(ancestor, name)
            if isinstance(found, Found) and "property" in found.symbol.binding and isinstance(ancestor, Symbol):
                scope = self.members.definitions.scope(ancestor)
                items = scope.bindings.get(name, []) if scope is not None else []
                if found.symbol.binding == "cached-property" or not items or items[-1].kind == "value":
                    return ""
                accessor = next((item for item in reversed(items) if f"{name}.{verb}" in item.decorators), None)
                located = self.members.definitions.locate(ancestor)
                facts = self.members.store.function(located.table, accessor) if accessor and located else None
                only = (
                    f" only raises {facts.refuses or facts.refusal_type}" if facts and facts.refuses is not None else ""
                )
                return f"it is a property without a {verb}" if facts is None else only and f"its {verb}{only}"
            if found is not None:
                return ""
        if not lineage.complete:
            return None
        return f"{symbol.name} has slots, and none of this name" if not derived and self._has_slots(lineage) else ""

    def unmade(self, symbol: Symbol) -> str:
        """Why there can be no instance of a class: it is a protocol, or has abstract methods; "" if there can."""
        lineage = self.members.lineage(symbol)
        scope = self.members.definitions.scope(symbol)
        if scope is not None and any(_PROTOCOL.match(base) for base in scope.bases):
            return "it is a protocol"
        found = [each for ancestor in lineage.classes for each in self.members.metaclasses(ancestor)]
        enforced = {"abc.ABC", "abc.ABCMeta"} & {*lineage.outside, *map(external, found)}
        scopes = map(self.members.definitions.scope, lineage.classes if enforced else ())
        for name in dict.fromkeys(name for each in scopes if each is not None for name in each.bindings):
            met = self.members.member(symbol, name)
            if isinstance(met, Found) and met.symbol.is_abstract:
                return f"{name} is abstract"
        return ""

    def _has_slots(self, lineage: ClassLineage) -> bool:
        """Whether instances have room for nothing but what the slots name."""
        for ancestor in lineage.ancestors:
            if isinstance(ancestor, str):
                if ancestor not in WITHOUT_CONSTRUCTOR:
                    return False
                continue
            slots = self.members.own(ancestor, "__slots__")
            located = self.members.definitions.locate(ancestor)
            decorators = located.binding.decorators if located is not None else ()
            made = any("slots=True" in each.replace(" ", "") for each in decorators)
            if not made and (not isinstance(slots, Found) or "__dict__" in slots.symbol.value):
                return False
        return True

    def _by_decorators(self, symbol: Symbol, name: str) -> bool | None:
        """Tell what `@dataclass` and its like make of the body."""
        if name not in _ORDER and name != "__hash__":
            return None
        located = self.members.definitions.locate(symbol)
        text = " ".join(located.binding.decorators) if located is not None else ""
        style = self.fields.own_style(symbol)
        if name in _ORDER:
            ordered = "total_ordering" in text or (style is not None and _ORDERED.search(text))
            return True if ordered else None
        if style is None or style.name not in _HASHED or "eq=False" in text.replace(" ", ""):
            return None
        return _FROZEN.search(text) is not None

    def of_class(self, symbol: Symbol, name: str) -> bool | None:
        """Whether the metaclass has a special method, or the class itself one for its subscripts."""
        if name == "__hash__" or _has(type, name):
            return True
        if name == "__getitem__" and (subscripted := self.of_instance(symbol, "__class_getitem__")) is not False:
            return subscripted
        lineage = self.members.lineage(symbol)
        for ancestor in lineage.ancestors:
            if isinstance(ancestor, str):
                known = python_class(ancestor)
                if known is not None and _has(type(known), name):
                    return True
                continue
            for metaclass in self.members.metaclasses(ancestor):
                kind = metaclass.symbol if isinstance(metaclass, Found) else None
                outside = python_class(external(metaclass)) if external(metaclass) else None
                found = _has(outside, name) if outside is not None else self.of_instance(kind, name) if kind else None
                if found is not False:
                    return found
        return False if lineage.complete else None


@cache
def _python(name: str) -> type:
    return python_class(f"builtins.{name}") or python_class(f"types.{name}") or object


def _has(known: type, name: str) -> bool:
    return _is_own(known, name) and getattr(known, name) is not None


def _is_own(known: type, name: str) -> bool:
    return any(name in vars(kind) for kind in known.__mro__[:-1])  # without `object`, which refuses nearly all
