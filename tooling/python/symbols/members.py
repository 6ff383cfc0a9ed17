"""Classes: method resolution order, attributes of classes and instances."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tooling.python.once import once
from tooling.python.source import dotted_name, parse_expression
from tooling.python.standard_library import has_member, may_set, python_class, tells_all
from tooling.python.symbols.definitions import INITVAR, Where, external
from tooling.python.symbols.symbol import Absent, Found, Open, Provider, Symbol, SymbolKind
from tooling.python.tables import BodyTable, NameBinding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.modules import ModuleFollower
    from tooling.python.symbols.symbol import Resolution

MAX_CLASSES = 200
Ancestor = Symbol | str
"""A class of the tree, or the dotted path of one that is not."""
_HOOKS = ("__getattr__", "__getattribute__")
_WRAPPERS = ("classmethod", "staticmethod", "property")
_NO_NAMES = re.compile(r'"""[\s\S]*?"""|\bLiteral\[[^\]]*\]')
"""Strings that name no attribute: what functions document, and what arguments may be."""
_STRING = re.compile(r"[\"'](\w+)[\"']")
_HOOK = re.compile(r"def\s+__getattr(?:ibute)?__\(\s*(\w+)\s*,\s*(\w+)")
_OWN_NAMES = r"\bfor\s+(\w+)\b[^\n:]*\bin\s[^\n]*(?:\b(?:dir|vars|getmembers)\(|\.__dict__\b)"
"""Loops over what a class has already."""
_EMPTY = BodyTable({}, [])


@dataclass(frozen=True)
class ClassLineage:
    """A method resolution order."""

    ancestors: tuple[Ancestor, ...]
    complete: bool
    """False if a base is of another distribution, or computed."""

    @property
    def classes(self) -> list[Symbol]:
        """Those of the tree."""
        return [ancestor for ancestor in self.ancestors if isinstance(ancestor, Symbol)]

    @property
    def outside(self) -> list[str]:
        """Those that are not."""
        return [ancestor for ancestor in self.ancestors if isinstance(ancestor, str)]


class Gap(NamedTuple):
    """Why a class may have what stands nowhere, and what may give it, where that can be said."""

    why: str
    provider: Provider | None = None


class Members:
    """Looks attributes up in classes."""

    def __init__(self, model: Model, modules: ModuleFollower) -> None:
        self.model = model
        self.modules = modules
        self.definitions = model.definitions
        self.store = model.store
        self._lineages: dict[str, ClassLineage] = {}

    # Bases

    def lineage(self, symbol: Symbol) -> ClassLineage:
        """Return the method resolution order of a class, itself first."""
        key = f"{symbol.dotted}:{symbol.line}"
        found = self._lineages.get(key)
        if found is None:
            self._lineages[key] = ClassLineage((symbol,), False)  # a class that derives from itself
            found = self._lineages[key] = self._linearised(symbol)
        return found

    def _linearised(self, symbol: Symbol) -> ClassLineage:
        scope = self.definitions.scope(symbol)
        if scope is None:
            return ClassLineage((symbol,), False)
        where = self._before(symbol)
        direct: list[Ancestor] = []
        complete = True
        for source in scope.bases:
            base = self._base(where, source)
            if base is None or base == symbol:
                complete = False
            elif base not in direct and base != "builtins.object":  # which comes last whoever derives from it
                direct.append(base)
        lines: list[list[Ancestor]] = []
        for base in direct:
            if isinstance(base, str):
                lines.append([base])
                complete = complete and tells_all(base)
            else:
                inner = self.lineage(base)
                lines.append(list(inner.ancestors))
                complete = complete and inner.complete
        return ClassLineage((symbol, *_merge([*lines, direct])), complete)

    def around(self, symbol: Symbol) -> Where:
        """Where the bases and decorators of a class stand."""
        located = self.definitions.locate(symbol)
        assert located is not None, "only classes of the tree have a scope"
        return Where(located.table, located.classes[:-1])

    def _before(self, symbol: Symbol) -> Where:
        """Where the bases stand: `class Engine(Engine)` derives from what had the name before."""
        located = self.definitions.locate(symbol)
        assert located is not None, "checked by the caller"
        where, name = self.around(symbol), symbol.name
        scope = where.table.classes[where.classes[-1]] if where.classes else where.table.scope
        items = scope.bindings.get(name, [])
        earlier = items.index(located.binding) if located.binding in items else 0
        return replace(where, name=name, before=earlier) if earlier else where

    def _base(self, where: Where, source: str) -> Ancestor | None:
        node = parse_expression(source)
        if isinstance(node, ast.Subscript):
            node = node.value
        made = dotted_name(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if made in ("namedtuple", "NamedTuple"):
            return "typing.NamedTuple"
        if isinstance(node, ast.Call) and made == "with_metaclass":
            node = node.args[1] if len(node.args) == 2 else None  # six: `with_metaclass(Meta, Base)` derives from Base
        match node:
            case ast.Call(args=[_, ast.Tuple(elts=[base]), ast.Dict(keys=[])]) if made in ("type", "ABCMeta"):
                node = base  # `ABCMeta("Base", (object,), {})`
        name = dotted_name(node)
        found = self.model.expression(where, name) if name else None
        if isinstance(found, Found) and found.symbol.kind is SymbolKind.VALUE and found.symbol.value:
            located = self.definitions.locate(found.symbol)
            value = found.symbol.value if located is not None and located.binding.source else ""
            named = "(" in value or value == "object"  # which a type checker may take for something else
            return self._base(Where(located.table), value) if located is not None and named else None
        if isinstance(found, Open):
            return found.compiled or None
        if not isinstance(found, Found):
            return None
        if found.symbol.kind is SymbolKind.CLASS:
            return found.symbol
        return external(found) or None

    # Attributes

    @once()
    def member(self, symbol: Symbol, name: str) -> Resolution:
        """Find an attribute of a class or of its instances."""
        lineage = self.lineage(symbol)
        for ancestor in lineage.ancestors:
            found = self.own(ancestor, name)
            if found is not None:
                return found
        found = self._by_metaclass(lineage, name)
        if found is not None:
            return found
        decorated = self._decorated(lineage, name)
        gap = decorated or self._gap(lineage, name)
        if gap is not None:
            of_base = gap.provider is Provider.BASE or not lineage.complete
            by_items = not of_base and self._refused(lineage, name)
            likely = self._bases_are_named(lineage) if of_base else by_items is not None
            provider = Provider.ITEMS if by_items else gap.provider
            absent = Absent(symbol.dotted, name, symbol.file, symbol.line, provider=provider)
            on_class = (self.dynamic(each, instances=False) is None for each in lineage.classes)
            certain = lineage.complete and not decorated and all(on_class)
            return Open(gap.why, absent if likely else None, absent if certain else None)
        if hasattr(object, name) or name in ("__dict__", "__module__", "__name__", "__qualname__", "__annotations__"):
            return Found(self.definitions.outside(f"builtins.object.{name}"))
        return Absent(symbol.dotted, name, symbol.file, symbol.line)

    def _bases_are_named(self, lineage: ClassLineage) -> bool:
        """Whether nothing but names from outside keeps a lineage from being known."""
        for ancestor in lineage.classes:
            scope = self.definitions.scope(ancestor)
            if scope is None or self.dynamic(ancestor):
                return False
            around = self.around(ancestor)
            if any(self._base(around, source) is None for source in scope.bases):
                return False
        return True

    def _refused(self, lineage: ClassLineage, name: str) -> bool | None:
        """Whether `__getattr__` looks in items of the instance for a name that nothing else may give; None if it may
        give this one in another way. It raises for some, asks nothing else, and its file does not hold this one as a
        string, not even without an ending that it cuts off: `pad_token_id` for "pad_token" and "_id"."""
        hooked = [(each, gap) for each in lineage.classes if (gap := self.dynamic(each)) is not None]
        known = (python_class(each) for each in lineage.ancestors if isinstance(each, str))
        is_mapping = any(each is not None and issubclass(each, Mapping) for each in known)
        by_items = False
        for ancestor, gap in hooked:
            located, scope = self.definitions.locate(ancestor), self.definitions.scope(ancestor)
            hooks = [item for hook in _HOOKS for item in (scope.bindings.get(hook, ()) if scope is not None else ())]
            if not hooks and gap.provider in (Provider.STUB, Provider.VALUES):
                continue  # a stub that may lack something, `setattr(self, key, value)`: no methods that were there
            if located is None or not hooks:
                return None
            blocks = [self.store.block(located.table.path, item.start, item.end) for item in hooks]
            asked = [_looks_in_items(block, is_mapping=is_mapping) for block in blocks]
            if None in asked:
                return None
            by_items = by_items or True in asked
            body = "".join(blocks)
            endings = ["", *(text for text in _STRING.findall(body) if name.endswith(text))]
            held = _STRING.findall(_NO_NAMES.sub("", self.store.source.read(ancestor.file).decode("utf-8", "replace")))
            raises = "AttributeError" in body or "object.__getattribute__(" in body
            if not raises or {name.removesuffix(ending) for ending in endings} & set(held):
                return None
        return by_items if hooked else None

    def own(self, ancestor: Ancestor, name: str) -> Resolution | None:
        """Find an attribute in one class, without its bases; None if it says nothing of it."""
        if isinstance(ancestor, str):
            known = python_class(ancestor)
            if known is not None and has_member(known, name) and not hasattr(object, name):
                return Found(self.definitions.outside(f"{ancestor}.{name}"))
            return None
        located = self.definitions.locate(ancestor)
        scope = self.definitions.scope(ancestor)
        if located is None or scope is None:
            return None
        where = Where(located.table, located.classes)
        items = scope.bindings.get(name)
        if items and (items[-1].source or not INITVAR.match(items[-1].extra)):
            found = self.modules.of_bindings(where, name, items)
            if found is None:
                # `if TYPE_CHECKING: fields: ClassVar[dict[str, Field]]` tells what a metaclass puts there
                told = [item._replace(where="") for item in items if item.where == "typing" and item.extra]
                found = self.modules.of_bindings(where, name, told) if told else None
            if found is not None:
                # `forward = _forward`, `with_args = classmethod(_with_args)` in a class body
                binding = items[-1]
                if (
                    not isinstance(found, Found)
                    or found.symbol.kind is not SymbolKind.FUNCTION
                    or not found.symbol.file
                ):
                    return found
                if binding.kind != "value" or (found.symbol.owner and not binding.source.startswith(_WRAPPERS)):
                    return found
                wrapper = binding.source.partition("(")[0]
                kind = wrapper if wrapper in _WRAPPERS else found.symbol.binding if found.symbol.owner else "method"
                return replace(found, symbol=self.definitions.rebound(found.symbol, ancestor.dotted, kind))
        return self._patched(ancestor, where, name) or self._on_instances(ancestor, where, name)

    def _patched(self, symbol: Symbol, where: Where, name: str) -> Resolution | None:
        """`Class.name = value` beside the class."""
        simple = symbol.name
        for target, attribute, line, source in where.table.patches:
            if target == simple and attribute == name:
                binding = NameBinding("value", line, line, line, "", source)
                found = self.model.expression(Where(where.table), source)
                if isinstance(found, Found) and found.symbol.file:
                    return found
                return Found(self.definitions.make(where.table, name, binding, where.classes))
        return None

    def _on_instances(self, symbol: Symbol, where: Where, name: str) -> Resolution | None:
        """`self.name = value` in a method, or a slot of that name."""
        located = self.definitions.locate(symbol)
        assert located is not None, "checked by the caller"
        set_here = self.store.instance(located.table, located.binding).attributes.get(name)
        if not set_here:
            scope = self.definitions.scope(symbol)
            slots = scope.bindings.get("__slots__", ()) if scope is not None else ()
            named = next((each for each in slots if name in _STRING.findall(each.source)), None)
            return (
                Found(self.definitions.make(where.table, name, named._replace(source=""), where.classes))
                if named
                else None
            )
        source, annotation, _, line = next((item for item in set_here if item[1]), set_here[0])
        binding = NameBinding("value", line, line, line, "self", source, annotation)
        return Found(self.definitions.make(where.table, name, binding, where.classes))

    def assignments(self, symbol: Symbol, name: str) -> Sequence[tuple[str, str, str, int]]:
        """All (source, annotation, method, line) of `self.name = value` in a class itself."""
        located = self.definitions.locate(symbol)
        if located is None or symbol.kind is not SymbolKind.CLASS:
            return ()
        return self.store.instance(located.table, located.binding).attributes.get(name, ())

    # What may be there although it stands nowhere

    def _by_metaclass(self, lineage: ClassLineage, name: str) -> Resolution | None:
        """Look in the metaclass: a class has its attributes too, but for what it has from `object`."""
        if name in vars(object):
            return None
        for ancestor in lineage.classes:
            for metaclass in self.metaclasses(ancestor):
                if isinstance(metaclass, Found) and metaclass.symbol.kind is SymbolKind.CLASS:
                    found = self.member(metaclass.symbol, name)
                    if isinstance(found, Found) and found.symbol.file:
                        return found
        return None

    def _gap(self, lineage: ClassLineage, name: str) -> Gap | None:
        if not lineage.complete or any(may_set(each, name) for each in lineage.outside):
            why = f"{lineage.classes[0].dotted} has a base that is not part of this distribution"
            return Gap(why, Provider.BASE)
        return next((gap for each in lineage.classes if (gap := self.dynamic(each)) is not None), None)

    def _decorated(self, lineage: ClassLineage, name: str) -> Gap | None:
        """Why a decorator of a class may put the name on it: `cls.name = ...`, `setattr(cls, name, ...)`, if that does
        not go through what the class has: `for name in dir(cls)`."""
        puts = rf"\.{re.escape(name)}\s*=[^=]|\bsetattr\([^\n]*[\"']{re.escape(name)}[\"']"
        for ancestor in lineage.classes:
            located = self.definitions.locate(ancestor)
            for source in located.binding.decorators if located is not None else ():
                found = self.model.expression(self.around(ancestor), source.partition("(")[0])
                if not isinstance(found, Found) or found.symbol.kind is not SymbolKind.FUNCTION:
                    continue
                made = self.definitions.locate(found.symbol)
                if made is None:
                    continue
                block = self.store.block(made.table.path, made.binding.start, made.binding.end)
                computed = set(re.findall(r"\bsetattr\(\s*\w+\s*,\s*(\w+)", block))
                if re.search(puts, block) or not computed <= set(re.findall(_OWN_NAMES, block)):
                    return Gap(f"{ancestor.dotted} is changed by @{source.partition('(')[0]}")
        return None

    def dynamic(self, symbol: Symbol, *, instances: bool = True) -> Gap | None:
        """Why a class may have what stands nowhere; None if it has not. instances: what only they may have counts."""
        located = self.definitions.locate(symbol)
        scope = self.definitions.scope(symbol)
        if located is None or scope is None:
            return Gap("unknown class")
        if located.table.path.endswith(".pyi"):
            return Gap(f"{symbol.dotted} is compiled, and its stub may lack something", Provider.STUB)
        if instances and any(hook in scope.bindings for hook in _HOOKS):
            hook = next(hook for hook in _HOOKS if hook in scope.bindings)
            return Gap(f"{symbol.dotted} has a {hook}", Provider.HOOK)
        instance = self.store.instance(located.table, located.binding)
        if instance.dynamic and (instances or instance.of_class):
            return Gap(f"{symbol.dotted}.{instance.dynamic}", Provider.VALUES)
        simple = symbol.name
        if any(target == simple and attribute == "*" for target, attribute, _, _ in located.table.patches):
            return Gap(f"{symbol.dotted} gets attributes with computed names")
        if scope.stars or any(self._strange(where_source) for where_source in self.metaclasses(symbol)):
            return Gap(f"{symbol.dotted} has a metaclass with __getattr__", Provider.METACLASS)
        where = self.around(symbol)
        for source in located.binding.decorators:
            if not self.model.keeps(where, source):
                return Gap(f"{symbol.dotted} is changed by @{source.partition('(')[0]}")
        return None

    def metaclasses(self, symbol: Symbol) -> Iterator[Resolution]:
        """Metaclasses that a class names itself: one at most."""
        for word, source in (self.definitions.scope(symbol) or _EMPTY).keywords:
            if word == "metaclass":
                yield self.model.expression(self.around(symbol), source)

    def _strange(self, metaclass: Resolution) -> bool:
        if isinstance(metaclass, Found) and metaclass.symbol.kind is SymbolKind.CLASS:
            return any(
                hook in (self.definitions.scope(ancestor) or _EMPTY).bindings
                for ancestor in self.lineage(metaclass.symbol).classes
                for hook in _HOOKS
            )
        known = external(metaclass)
        return not known or python_class(known) is None

    def constructor_hook(self, symbol: Symbol) -> bool:
        """Whether a metaclass decides what calling the class means."""
        for ancestor in self.lineage(symbol).classes:
            for metaclass in self.metaclasses(ancestor):
                known = external(metaclass)
                if known:
                    if python_class(known) is None:
                        return True
                elif not isinstance(metaclass, Found) or metaclass.symbol.kind is not SymbolKind.CLASS:
                    return True
                elif isinstance(met := self.member(metaclass.symbol, "__call__"), Found):
                    own = python_class(external(met).rpartition(".")[0])
                    return own is None or (own is not object and own.__call__ != type.__call__)
        return False


def _looks_in_items(hook: str, *, is_mapping: bool) -> bool | None:
    """Whether a `__getattr__` looks for the name in items that the instance has: `self.fields[name]`; None if it asks
    another object or a table of the module: `getattr(self.inner, name)`, `TABLE[name]`.

    pandas asks the object itself, `self[name]`: that finds columns, and no method. A mapping has items by its names."""
    found = _HOOK.search(hook)
    own, name = (found[1], rf"\s*{found[2]}\b") if found else ("(?!)", "(?!)")
    if re.search(rf"\bgetattr\(\s*[^\n]*,{name}", hook):
        return None
    tables = re.findall(rf"(?<![\w.])([\w.]*)(?:\[|\.get\(){name}", hook)
    tables = [each for each in tables if is_mapping or each != own]
    roots = {each.partition(".")[0] for each in tables}
    own_roots = all(root == own or re.search(rf"\b{root}(?: in\b| = )", hook) for root in roots)
    return bool(tables) if own_roots else None


def _merge(lines: list[list[Ancestor]]) -> list[Ancestor]:
    """C3 linearisation; where the bases contradict each other, in the order they are met."""
    found: list[Ancestor] = []
    lines = [list(line) for line in lines if line]
    while lines and len(found) < MAX_CLASSES:
        head = next((line[0] for line in lines if not any(line[0] in other[1:] for other in lines)), lines[0][0])
        found.append(head)
        lines = [rest for line in lines if (rest := [item for item in line if item != head])]
    return found
