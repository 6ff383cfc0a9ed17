"""Values followed to where they come from: the rules for each kind of row in a file's table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.python.access_paths import Attribute, Awaited, Called, Entered, InstanceOf, ItemOf, Iterated, Name, SuperOf
from tooling.python.once import once
from tooling.python.standard_library import CONTAINERS
from tooling.upgrade.usage.facts import NONE, FileFacts
from tooling.upgrade.usage.link.classes import (
    UNKNOWN,
    UNTYPED,
    Alternative,
    Alternatives,
    Held,
    Keys,
    Lineages,
    LinkedModule,
    OfUntyped,
    Ours,
    OwnClass,
    OwnFunction,
    OwnInstance,
    Super,
    Untyped,
    Value,
    ValueRow,
    guarded,
    joined,
    one,
)
from tooling.upgrade.usage.link.flows import Flows
from tooling.upgrade.usage.scan.containers import CONTENTS, SLICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tooling.python.access_paths import AccessPath
    from tooling.upgrade.usage.link.store import FactsStore

_NAMING = frozenset({"attr", "either", "guarded"})
"""Rows at which an untyped value gets another name, by what is used on it there."""
_DEEPEST = 60
"""Answers that wait for each other, a dozen calls of Python's thousand each; what lies deeper is not known."""
_TAKEN_OUT = {
    "async-context": "enter",
    "async-iterator": "iter",
    "awaitable": "await",
    "context": "enter",
    "dict": "dict",
    "iterator": "iter",
    "list": "iter",
}
"""What a generic type is -> how values come out of it."""
_GIVEN_BY = {
    "Callable": "call",
    **dict.fromkeys(("ContextVar", "LifoQueue", "PriorityQueue", "Queue", "SimpleQueue"), "iter"),
}
"""Further generic types whose methods give values, or which do when they are called."""
_ASKED = {
    ("enter", False): "__enter__",
    ("enter", True): "__aenter__",
    ("item", False): "__getitem__",
    ("iter", False): "__iter__",
    ("iter", True): "__aiter__",
}
"""The special method of the repository's own classes that a step calls, by whether it is asynchronous."""
_ONE_OF = "if the key is that of this one"
_DISPLAYS = frozenset({"unknown", "none", "list", "dict", "keys"})
"""Kinds of values that a container may begin as which the repository fills."""
_CONTEXT_MAKERS = frozenset({"contextlib.contextmanager", "contextlib.asynccontextmanager"})


class Resolver:
    """Values of all files."""

    def __init__(self, store: FactsStore, packages: Sequence[str]) -> None:
        self._store = store
        self._packages = tuple(sorted(packages, key=len, reverse=True))
        self._known: dict[Any, Alternatives] = {}
        self._flowed: dict[Any, Alternatives] = {}
        """Those that depend on the files which values may flow through."""
        self._busy: dict[Any, int] = {}
        """Answers that are being worked out, and how many wait for each, itself included."""
        self._cut = 0
        """The first of them that was asked for again."""
        self._loose: dict[Any, tuple[Alternatives, Any, bool]] = {}
        """Answers that were cut short: for each the first of the busy that it asked for again, and whether it depends
        on the files that values may flow through. They serve until that one is answered, so that a circle of functions
        is walked once for each of its members and not once for each way through it."""
        self.lineages = Lineages(store, self.value)
        self.lineage = self.lineages.of
        self.flows = Flows(store, self.value, self.result, self.lineages)

    def look_in(self, files: Iterable[str]) -> None:
        """Files that values may flow through; what was said without knowing them is forgotten."""
        self.flows.look_in(files)
        self._flowed.clear()

    @once()
    def package_of(self, dotted: str) -> str:
        """The package asked for that a dotted path lies in; ""."""
        return next((one for one in self._packages if dotted == one or dotted.startswith(f"{one}.")), "")

    def value(self, path: str, number: int) -> Alternatives:
        """What a row of a file's table may be."""
        if number <= NONE:
            return UNKNOWN
        key = path, number
        found = self._known.get(key)  # most are
        return found if found is not None else self._once(key, self._row, path, number)

    def _row(self, path: str, number: int) -> Alternatives:
        row = self._store.facts(path).nodes[number]
        found = _RULES[row[0]](self, path, row)
        if any(isinstance(each.value, Untyped) for each in found):  # it goes by where it is read
            named = Untyped(path, number)
            found = tuple(
                replace(each, value=named)
                if each.value is UNTYPED or (isinstance(each.value, Untyped) and row[0] in _NAMING)
                else each
                for each in found
            )
        return found

    def _once(self, key: Any, rule: Callable[..., Alternatives], *given: Any) -> Alternatives:
        """An answer that is kept; UNKNOWN for one that is asked for while it is worked out."""
        found = self._known.get(key)
        if found is None and (found := self._flowed.get(key)) is not None:
            self.flows.asked = True
        if found is None and key in self._loose:
            found, first, flowed = self._loose[key]
            while first not in self._busy:  # it was cut short itself
                first = self._loose[first][1]
            self.flows.asked |= flowed
            self._cut = min(self._cut, self._busy[first])
        if found is None:
            level = len(self._busy) + 1
            if key in self._busy or level > _DEEPEST:
                self._cut = min(self._cut, self._busy.get(key, 1))
                return UNKNOWN
            self._busy[key] = level
            asked, cut, loose = self.flows.asked, self._cut, len(self._loose)
            self.flows.asked, self._cut = False, level
            found = rule(*given)
            del self._busy[key]
            if self._cut == level:
                (self._flowed if self.flows.asked else self._known)[key] = found
                while len(self._loose) > loose:  # with this answer they can say more
                    self._loose.popitem()
            else:  # it says less than it will when nothing waits for it
                first = next(each for each, waits in self._busy.items() if waits == self._cut)
                self._loose[key] = found, first, self.flows.asked
            self.flows.asked |= asked
            self._cut = min(cut, self._cut) if self._cut < level else cut
        return found

    def _each(self, alternatives: Alternatives, rule: Callable[[Value], Alternatives]) -> Alternatives:
        """A rule applied to each alternative, guards kept."""
        parts = []
        for entry in alternatives:
            results = UNKNOWN if entry.value is None else rule(entry.value)
            if entry.guards:
                results = guarded(results, *entry.guards)
            if entry.evidence:
                results = tuple(replace(each, evidence=each.evidence or entry.evidence) for each in results)
            parts.append(results)
        return joined(parts)

    # ------------------------------------------------------------------------------------------------------- names

    def imported(self, path: str, row: Any) -> Alternatives:
        """An absolute import."""
        return self.absolute(path, row[1])

    def absolute(self, path: str, dotted: str) -> Alternatives:
        """A dotted path as a file sees it. Packages that are asked for win over folders of the same name."""
        if self.package_of(dotted):
            return one(Ours(Name(dotted)))
        return self._located(self._store.checkout.find(path, dotted))

    def relative(self, path: str, row: Any) -> Alternatives:
        """A relative import."""
        return self._located(self._store.checkout.find(path, row[2], row[1]))

    def _located(self, found: tuple[str, tuple[str, ...]] | None) -> Alternatives:
        if found is None:
            return UNKNOWN
        module, rest = found
        return self.symbol(module, rest)

    def symbol(self, path: str, parts: Sequence[str]) -> Alternatives:
        """What a path inside a module leads to."""
        result = one(LinkedModule(path))
        for part in parts:
            result = self.attribute(result, part)
        return result

    def module_name(self, path: str, name: str) -> Alternatives:
        """A module's own name, whatever binds it: the last unconditional binding and all conditional ones after it."""
        return self._once(("name", path, name), self._bound, path, name)

    def _bound(self, path: str, name: str) -> Alternatives:
        facts = self._store.facts(path)
        rows = facts.bindings.get(name)
        if rows is None:
            inside = self._store.checkout.find(path, name, 1) if path.endswith("__init__.py") else None
            if inside is not None and not inside[1] and inside[0] != path:
                return one(LinkedModule(inside[0]))
            return self._from_stars(path, name, facts)
        start = max((index for index, row in enumerate(rows) if _is_plain(facts, row[1])), default=0)
        parts = []
        for number, context, _ in rows[start:]:
            if number == NONE and len(rows) > 1:
                continue
            found = self.value(path, number)
            if not _is_plain(facts, context):
                found = guarded(found, (path, context))
            parts.append(found)
        made = self._filled(path, facts.bindings, name)
        return joined([*(part for part in parts if not made or part != UNKNOWN), *made] or [UNKNOWN])

    def _filled(self, path: str, kept: Mapping[str, Sequence[Any]], name: str) -> list[Alternatives]:
        """What a name or attribute is made by what was put into it: a list, a mapping; [] for what is more than a
        display. kept: values, or rows that begin with one, by name, and by name with a mark of contents."""
        made: list[Alternatives] = []
        if not self._is_display(path, kept.get(name, ())):
            return made
        for mark, how in CONTENTS:
            rows = kept.get(f"{name}{mark}", ())
            inside = [self.value(path, each[0] if isinstance(each, tuple) else each) for each in rows]
            inside += [] if rows or "}" in name or "]" in name else self._filled(path, kept, f"{name}{mark}")
            made += [one(Held(how, joined(inside)))] if inside else []
        return made

    def _is_display(self, path: str, kept: Sequence[Any]) -> bool:
        """Whether all that a name is bound to may be an empty container, or one that is written out."""
        numbers = [each[0] if isinstance(each, tuple) else each for each in kept]
        return {self._store.facts(path).nodes[number][0] for number in numbers} <= _DISPLAYS

    def _from_stars(self, path: str, name: str, facts: FileFacts) -> Alternatives:
        """A name that only star imports can supply."""
        if name.startswith("__"):
            return UNKNOWN
        return self._once(("star", path, name), self._starred, path, name, facts.stars)

    def _starred(self, path: str, name: str, stars: Sequence[int]) -> Alternatives:
        outside: list[Alternatives] = []
        for star in stars:
            for entry in self.value(path, star):
                if isinstance(entry.value, LinkedModule):
                    found = self._exported(entry.value.path, name)
                    if found is not None:
                        return found
                elif isinstance(entry.value, Ours) and isinstance(entry.value.access_path, Name):
                    outside.append(one(Ours(Name(f"{entry.value.access_path.dotted}.{name}"))))
        return joined(outside) if outside else UNKNOWN

    def _exported(self, path: str, name: str) -> Alternatives | None:
        facts = self._store.facts(path)
        if name.startswith("_") and name not in (facts.exports or ()):
            return None
        if facts.exports is not None and name not in facts.exports and name not in facts.bindings:
            return None
        found = self.module_name(path, name)
        return None if found == UNKNOWN and name not in facts.bindings else found

    def star(self, path: str, row: Any) -> Alternatives:
        """A name that a star import supplied."""
        return self._from_stars(path, row[1], self._store.facts(path))

    def own(self, path: str, row: Any) -> Alternatives:
        """A class or function of the file."""
        facts = self._store.facts(path)
        if row[1] in facts.classes:
            return one(OwnClass(path, row[1]))
        qualname = row[1]
        return one(OwnFunction(path, qualname)) if qualname in facts.functions else UNKNOWN

    # ----------------------------------------------------------------------------------------------------- members

    def member(self, holder: OwnClass | OwnInstance | Super, name: str) -> Alternatives:
        """An attribute: of the repository's own classes first, then what packages' bases may have."""
        return self._once((holder, name), self._member, holder, name)

    def _member(self, holder: OwnClass | OwnInstance | Super, name: str) -> Alternatives:
        owner = OwnClass(holder.path, holder.qualname)
        lineage = self.lineage(owner)
        instance = not isinstance(holder, OwnClass)
        own = lineage.own[1:] if isinstance(holder, Super) else lineage.own
        for entry in own:
            found = self._declared(entry, name, instance=instance)
            if found is None:
                continue
            if instance and all(each.value is None for each in found):
                found = self.flows.attribute(entry, name)
            facts = self._store.facts(entry.path).classes[entry.qualname]
            typed = name in facts.methods or facts.annotations.get(name)
            if typed or not self._is_display(entry.path, facts.attributes.get(name, ())):
                return found
            for each in own:
                made = self._filled(each.path, self._store.facts(each.path).classes[each.qualname].attributes, name)
                if made:
                    return joined([tuple(one for one in found if isinstance(one.value, Held | Keys)), *made])
            return found
        delegated = self._delegated(lineage.own, name) if instance else []
        if delegated:
            return joined(delegated)
        if not lineage.ours:
            if not instance or lineage.foreign:
                return UNKNOWN
            return self.flows.beside(owner, name) if isinstance(holder, Super) else self.flows.attribute(owner, name)
        base: AccessPath = SuperOf(tuple(lineage.ours))
        if not isinstance(holder, Super):
            client = self.lineages.client_class(owner)
            assert client is not None  # it has bases of packages
            base = client if isinstance(holder, OwnClass) else InstanceOf(client)
        inherited = one(Ours(Attribute(base, name)))
        return joined([inherited, (Alternative(None),)]) if lineage.foreign else inherited

    def _delegated(self, own: Sequence[OwnClass], name: str) -> list[Alternatives]:
        """What `__getattr__` asks another object for: `return getattr(self.engine, name)`."""
        for each in own:
            facts = self._store.facts(each.path)
            method = facts.functions.get(facts.classes[each.qualname].methods.get("__getattr__", ""))
            asked = facts.given(method) if method is not None else []
            found = [self.attribute(self.value(each.path, row[1]), name) for row in asked if row[0] == "named"]
            if found:
                return [
                    tuple(replace(one, evidence=one.evidence or "its __getattr__ asks for it") for one in part)
                    for part in found
                ]
        return []

    def _declared(self, owner: OwnClass, name: str, *, instance: bool) -> Alternatives | None:
        """A member that the class itself has."""
        facts = self._store.facts(owner.path).classes[owner.qualname]
        method = facts.methods.get(name)
        if method is not None:
            function = OwnFunction(owner.path, method)
            binding = self._store.facts(owner.path).functions[method].binding
            return self.result(function) if binding == "property" and instance else one(function)
        if facts.annotations.get(name):
            return self.value(owner.path, facts.annotations[name])
        numbers = [number for number in facts.attributes.get(name, ()) if number != NONE]
        if numbers:
            return joined(self.value(owner.path, number) for number in numbers)
        return UNKNOWN if name in facts.annotations or name in facts.attributes else None

    # ------------------------------------------------------------------------------------------------------- steps

    def attribute(self, base: Alternatives, name: str) -> Alternatives:
        """`base.name`."""

        def rule(value: Value) -> Alternatives:
            if isinstance(value, Ours):
                return one(Ours(Attribute(value.access_path, name)))
            if isinstance(value, LinkedModule):
                return self.module_name(value.path, name)
            if isinstance(value, OwnClass | OwnInstance | Super):
                return self.member(value, name)
            if isinstance(value, OwnFunction):  # `@app.task` makes an object of it
                makers = self._store.facts(value.path).functions[value.qualname].makers
                made = self.called(self.value(value.path, makers[0])) if makers else UNKNOWN
                objects = tuple(each for each in made if not isinstance(each.value, OwnFunction))
                return self.attribute(objects, name) if objects else UNKNOWN
            return one(OfUntyped(value, name)) if isinstance(value, Untyped) else UNKNOWN

        return self._each(base, rule)

    def attribute_of(self, path: str, row: Any) -> Alternatives:
        """`base.name` in a file. What an untyped value has is untyped again, by what is used on it."""
        base = self.value(path, row[1])
        if any(isinstance(each.value, OfUntyped) for each in base):
            here = Untyped(path, row[1])
            base = tuple(replace(each, value=here) if isinstance(each.value, OfUntyped) else each for each in base)
        return self.attribute(base, row[2])

    def called(self, base: Alternatives) -> Alternatives:
        """`base(...)`."""

        def rule(value: Value) -> Alternatives:
            if isinstance(value, Ours):
                return one(Ours(Called(value.access_path)))
            if isinstance(value, OwnClass):
                return one(OwnInstance(value.path, value.qualname))
            if isinstance(value, OwnFunction):
                return self.result(value)
            if isinstance(value, OwnInstance):
                made = one(value)  # whose `__call__` may be an instance of the same class
                return self._once(("call", value), lambda: self.called(self.attribute(made, "__call__")))
            if isinstance(value, Held) and value.how in ("call", "partial"):
                return value.inside if value.how == "call" else self.called(value.inside)
            return one(UNTYPED) if isinstance(value, OfUntyped) else UNKNOWN

        return self._each(base, rule)

    def result(self, function: OwnFunction) -> Alternatives:
        """What a function of the repository gives when it is called."""
        return self._once(("result", function), self._given, function)

    def _given(self, function: OwnFunction) -> Alternatives:
        facts = self._store.facts(function.path).functions[function.qualname]
        path = function.path
        kept = [number for number in facts.decorators if not self._passes_on(path, number)]
        decorators = [self._store.facts(path).nodes[number] for number in kept]
        makes_context = any(row[0] == "name" and row[1] in _CONTEXT_MAKERS for row in decorators)
        if facts.annotated:
            given = self.value(path, facts.annotation)
            yielded = self._unwrapped(given, "iter")
        else:
            given = joined(self.value(path, number) for number in facts.returns if number != NONE)
            yielded = joined(self.value(path, number) for number in facts.yields)
        if makes_context:
            return one(Held("enter", yielded))
        if decorators:
            own = any(
                isinstance(each.value, OwnFunction | OwnClass | OwnInstance)
                for at in kept
                for each in self.value(path, at)
            )
            if own or facts.is_generator or facts.is_async:
                return UNKNOWN
            return tuple(
                replace(each, evidence=each.evidence or "unless its decorator changes what it gives") for each in given
            )
        if facts.is_generator:
            return one(Held("iter", yielded))
        return one(Held("await", given)) if facts.is_async else given

    def _passes_on(self, path: str, decorator: int) -> bool:
        """Whether a decorator of the repository gives a function that gives what the decorated one gives."""
        for each in self.value(path, decorator):
            if not isinstance(each.value, OwnFunction):
                return False
            facts = self._store.facts(each.value.path)
            parameters = facts.functions[each.value.qualname].parameters
            first = ("arg", each.value.qualname, parameters[0][0] if parameters else "")
            called = ("call", facts.nodes.index(first)) if first in facts.nodes else None
            given = facts.given(facts.functions[each.value.qualname])
            inner = [row for row in given if row != first]
            if given and not inner:
                continue  # `REGISTRY.append(function); return function`
            made = [facts.functions[row[1]] for row in inner if row[0] == "own" and row[1] in facts.functions]
            given = [row for one in made for row in facts.given(one)]
            given = [facts.nodes[row[1]] if row[0] == "await" else row for row in given]
            if not given or len(made) < len(inner) or any(row != called for row in given):
                return False
        return True

    def _unwrapped(self, base: Alternatives, how: str) -> Alternatives:
        def rule(value: Value) -> Alternatives:
            if isinstance(value, Held) and value.how == how:
                return value.inside
            if isinstance(value, ValueRow) and how == "iter":
                return joined(value.members)
            return UNKNOWN

        return self._each(base, rule)

    def step(self, path: str, row: Any) -> Alternatives:
        """`await`, loops, subscripts, `with`."""
        kind = row[0]

        def rule(value: Value) -> Alternatives:
            if isinstance(value, Ours):
                return one(Ours(_STEPS[kind](value.access_path, row)))
            if isinstance(value, ValueRow) and kind == "item" and isinstance(row[2], int):
                return value.members[row[2]] if -len(value.members) <= row[2] < len(value.members) else UNKNOWN
            if isinstance(value, Untyped) and kind == "await":
                return one(UNTYPED)
            if isinstance(value, Keys) and kind == "item":
                return self._of_key(value, row[2])
            if isinstance(value, Held) and kind == "item" and row[2] != SLICE:
                return value.inside if value.how in ("iter", "dict") else UNKNOWN
            if isinstance(value, OwnInstance) and kind != "await":
                return self._asked(value, row)
            if row[2:] == (SLICE,):
                return one(value) if isinstance(value, Held) and value.how == "iter" else UNKNOWN
            return self._unwrapped(one(value), kind)

        before = self._store.facts(path).nodes[row[1]]
        if kind == "await" and before[0] == "view":  # `await queue.get()`
            held = [each.value for each in self.value(path, before[1])]
            if all(isinstance(each, Held) and each.how == "iter" for each in held):
                return self.value(path, row[1])
        found = self._each(self.value(path, row[1]), rule)
        of_keywords = kind == "item" and self._store.facts(path).nodes[row[1]][0] in ("kwargs", "without")
        return one(UNTYPED) if of_keywords and not any(each.value is not None for each in found) else found

    def _of_key(self, mapping: Keys, key: str | int | None) -> Alternatives:
        """What a mapping holds under a key; under None, a key that nobody knows, any of its values."""
        entries = [entry for entry in mapping.entries if key in (None, entry.name) or entry.name == f"*{key}"]
        parts = [self.value(entry.path, entry.value) for entry in entries]
        if key is not None or not parts:
            return joined(parts) if parts else UNKNOWN
        return tuple(  # of mappings that become keywords one is chosen; what is called is any of them
            replace(each, evidence=each.evidence or _ONE_OF) if isinstance(each.value, Keys) else each
            for each in joined([*parts, UNKNOWN])
        )

    def _asked(self, value: OwnInstance, row: Any) -> Alternatives:
        """What a special method of the repository's class gives, or a field of a named tuple by its place."""
        facts = self._store.facts(value.path)
        kind = facts.classes[value.qualname]
        if row[0] == "item" and ("name", "typing.NamedTuple") in (facts.nodes[base] for base in kind.bases):
            names = dict(enumerate(kind.annotations))
            return self.member(value, names[row[2]]) if row[2] in names else UNKNOWN
        method = _ASKED[row[0], row[0] != "item" and row[2]]
        given = self.called(self.attribute(one(value), method))
        how = {"__iter__": "iter", "__aiter__": "iter", "__aenter__": "await"}.get(method, "")
        return self._unwrapped(given, how) if how else given

    def view(self, path: str, row: Any) -> Alternatives:
        """`mapping.values()`, `.items()`, `.get(key)`: what a mapping holds, or a method of something else."""

        def rule(value: Value) -> Alternatives:
            how = "await" if row[2] == "result" else "iter" if row[2] not in ("items", "values") else ""
            if isinstance(value, Held) and value.how == how:
                return value.inside
            if not isinstance(value, Held) or value.how != "dict":
                return self.called(self.attribute(one(value), row[2]))
            pair = one(ValueRow((UNKNOWN, value.inside))) if row[2] in ("items", "popitem") else value.inside
            return one(Held("iter", pair)) if row[2] in ("items", "values") else pair

        return self._each(self.value(path, row[1]), rule)

    def instance(self, path: str, row: Any) -> Alternatives:
        """A value of a type."""
        return self.instance_of(path, row[1])

    def instance_of(self, path: str, number: int) -> Alternatives:
        """A value whose type is a row of the table."""
        row = self._store.facts(path).nodes[number]
        if row[0] == "param":
            name = row[1]
            arguments = row[2]
            if name == "type":
                return self.value(path, arguments[0])
            if name in ("tuple", "Tuple"):
                return one(ValueRow(tuple(self.instance_of(path, number) for number in arguments)))
            how = _GIVEN_BY.get(name) or _TAKEN_OUT.get(CONTAINERS.get(name, ""), "")
            if how and (how != "dict" or len(arguments) > 1):
                index = -1 if how == "dict" or name in ("Callable", "Coroutine") else 0
                return one(Held(how, self.instance_of(path, arguments[index])))
            return UNKNOWN
        if row[0] == "either":
            return joined(self.instance_of(path, member) for member in row[1])

        def rule(value: Value) -> Alternatives:
            if isinstance(value, Ours):
                return one(Ours(InstanceOf(value.access_path)))
            return one(OwnInstance(value.path, value.qualname)) if isinstance(value, OwnClass) else UNKNOWN

        return self._each(self.value(path, number), rule)


def _is_plain(facts: FileFacts, context: int) -> bool:
    """Whether a binding stands at module level, under no condition and in no attempt."""
    conditions, attempts, _, function, evaluated = facts.contexts[context]
    return not conditions and not attempts and not function and bool(evaluated)


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "await": lambda base, row: Awaited(base),
    "iter": lambda base, row: Iterated(base, bool(row[2])),
    "item": lambda base, row: ItemOf(base, None if row[2] == SLICE else row[2]),
    "enter": lambda base, row: Entered(base, bool(row[2])),
}
_RULES: dict[str, Callable[[Resolver, str, Any], Alternatives]] = {
    "import": Resolver.imported,
    "name": Resolver.imported,
    "relative": Resolver.relative,
    "global": lambda link, path, row: link.module_name(path, row[1]),
    "own": Resolver.own,
    "star": Resolver.star,
    "attr": Resolver.attribute_of,
    "call": lambda link, path, row: link.called(link.value(path, row[1])),
    "await": Resolver.step,
    "iter": Resolver.step,
    "item": Resolver.step,
    "enter": Resolver.step,
    "instance": Resolver.instance,
    "view": Resolver.view,
    "super": lambda link, path, row: one(Super(path, row[1])),
    "param": lambda link, path, row: UNKNOWN,
    "arg": lambda link, path, row: link.flows.argument(path, row),
    "kwargs": lambda link, path, row: link.flows.keywords(path, row),
    "stars": lambda link, path, row: link.flows.positions(path, row),
    "shifted": lambda link, path, row: link.flows.shifted(path, row),
    "keys": lambda link, path, row: link.flows.keys(path, row),
    "without": lambda link, path, row: link.flows.without(path, row),
    "fields": lambda link, path, row: link.flows.fields(path, row),
    "options": lambda link, path, row: one(UNTYPED),
    "some": lambda link, path, row: one(UNTYPED),
    "documented": lambda link, path, row: tuple(
        replace(each, evidence=each.evidence or row[2]) for each in link.value(path, row[1])
    ),
    "list": lambda link, path, row: one(Held("iter", link.value(path, row[1]))),
    "dict": lambda link, path, row: one(Held("dict", link.value(path, row[1]))),
    "tuple": lambda link, path, row: one(ValueRow(tuple(link.value(path, number) for number in row[1]))),
    "columns": lambda link, path, row: UNKNOWN,
    "lambda": lambda link, path, row: one(Held("call", link.value(path, row[2]))),
    "later": lambda link, path, row: one(Held("await", link.value(path, row[1]))),
    "remote": lambda link, path, row: UNKNOWN,
    "partial": lambda link, path, row: one(Held("partial", link.value(path, row[1]))),
    "context": lambda link, path, row: one(Held("enter", link.value(path, row[1]))),
    "named": lambda link, path, row: UNKNOWN,
    "either": lambda link, path, row: joined(link.value(path, number) for number in row[1]),
    "guarded": lambda link, path, row: guarded(link.value(path, row[1]), (path, row[2])),
}
