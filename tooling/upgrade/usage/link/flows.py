"""Where values come from that no line types: callers, fixtures, assignments from outside, keywords that are handed on.

    def use(engine):            # main.py: use(LLM())
        engine.stop()           # a call of LLM.stop, reached from main.py

Calls are found by the last name they spell and then resolved, so that only calls of that name are looked at.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.python.access_paths import Attribute, Called, InstanceOf, Name, SuperOf
from tooling.python.source import POSITIONAL
from tooling.upgrade.usage.facts import NONE, FileFacts, FunctionFacts
from tooling.upgrade.usage.link.classes import (
    UNKNOWN,
    UNTYPED,
    Alternative,
    Alternatives,
    Held,
    KeyEntry,
    Keys,
    Lineages,
    Ours,
    OwnClass,
    OwnFunction,
    OwnInstance,
    Untyped,
    guarded,
    has_ours,
    joined,
    one,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence, Set

    from tooling.python.access_paths import AccessPath
    from tooling.upgrade.usage.link.store import FactsStore

Passing = tuple[str, tuple[Any, ...], int, str]
"""File, row of arguments, context of a call, and what is to be said if it may be one of another function."""
_MOST_CALLS = 60
"""Calls of one function that are looked at."""
ITEM = "[]"
"""The last name of `TABLE[key](x)` and `TABLE.get(key)(x)`."""


_FIELD = "the keyword is a field, unless it is taken out on the way"
_TAKEN_OUT = re.compile(rb"\bpop\([^)\n]*|\bdel\b[^\n]*|\bdelattr\([^)\n]*")
_NAME = re.compile(r"\w+")


class Flows:
    """Values that flow between the functions and classes of a repository."""

    def __init__(
        self,
        store: FactsStore,
        value: Callable[[str, int], Alternatives],
        result: Callable[[OwnFunction], Alternatives],
        lineages: Lineages,
    ) -> None:
        """value: what a row of a file's table may be. result: what a function gives when it is called."""
        self._store = store
        self._value = value
        self._result = result
        self._lineage = lineages.of
        self._files: tuple[str, ...] = ()
        self._calls: dict[str, list[tuple[str, Any]]] = {}
        self._assigned: dict[str, list[tuple[str, int, int, int]]] = {}
        self._placed: dict[str, list[tuple[str, int, int]]] = {}
        self._subclasses: dict[OwnClass, list[OwnClass]] | None = None
        self._callers: dict[OwnFunction | OwnClass, list[Passing]] = {}
        self.asked = False
        """Whether an answer was given that depends on these files; whoever asks sets it back."""

    @property
    def active(self) -> bool:
        """Whether the files are known yet."""
        return bool(self._files)

    def look_in(self, files: Iterable[str]) -> None:
        """Files whose calls and assignments count."""
        self._files = tuple(sorted(files))
        calls: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        assigned: dict[str, list[tuple[str, int, int, int]]] = defaultdict(list)
        placed: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        for path in self._files:
            facts = self._store.facts(path)
            for row in facts.uses:
                if row[0] == "call":
                    calls[last_name(facts, row[2])].append((path, row))
                elif row[0] == "assign" and (value := dict(row[4]).get("value", 0)) > NONE:
                    placed[last_name(facts, value)].append((path, row[2], value))
                    if facts.nodes[row[2]][0] == "attr":
                        _, base, name = facts.nodes[row[2]]
                        assigned[name].append((path, base, value, row[3]))
            decorated = {name: each for name, each in facts.functions.items() if each.makers}
            own = {row[1]: number for number, row in enumerate(facts.nodes) if row[0] == "own"} if decorated else {}
            for qualname, function in decorated.items():
                span = (function.line, 0, function.line, 0)
                arguments = (((span, None, 0, None, own[qualname], False),), False, False, False, ())
                for maker in function.makers:  # a decorator is called with what stands below it
                    row = ("call", span, maker, 0, (("arguments", arguments),))
                    calls[last_name(facts, maker)].append((path, row))
        self._calls, self._assigned, self._subclasses = dict(calls), dict(assigned), None
        self._placed = dict(placed)
        self._callers.clear()

    def fed_files(self, sources: Set[str]) -> set[str]:
        """Files of the functions and classes that something of a package is passed to, or put into, in one of some
        files, and those of what their classes derive from."""
        found = set()
        for rows in self._calls.values():
            for path, row in rows:
                if path not in sources:
                    continue
                for _, _, _, _, value, _ in dict(row[4])["arguments"][0]:
                    if value > NONE and has_ours(self._value(path, value)):
                        targets = [each.value for each in self._value(path, row[2])]
                        found |= {each.path for each in targets if isinstance(each, OwnFunction | OwnClass)}
                        break
        for assigned in self._assigned.values():
            for path, base, value, _ in assigned:
                if path in sources and has_ours(self._value(path, value)):
                    targets = [each.value for each in self._value(path, base)]
                    found |= {each.path for each in targets if isinstance(each, OwnInstance | OwnClass)}
        for path in sources:
            for qualname, facts in self._store.facts(path).classes.items():
                if facts.attributes:
                    found |= {each.path for each in self._lineage(OwnClass(path, qualname)).own}
        return found - sources

    # --------------------------------------------------------------------------------------------------- parameters

    def argument(self, path: str, row: Any) -> Alternatives:
        """A parameter without annotation: what callers pass, what a fixture gives, what its default is."""
        self.asked = True
        _, qualname, name = row
        facts = self._store.facts(path).functions.get(qualname)
        if facts is None or not self.active:
            return UNKNOWN
        parts = [self._value(path, facts.defaults[name])] if name in facts.defaults else []
        for file, arguments, context, doubt in self.callers(OwnFunction(path, qualname)):
            for part in self._passed(facts, file, arguments, context, name):
                parts.append(tuple(replace(each, evidence=each.evidence or doubt) for each in part))
        if facts.fixture or qualname.rpartition(".")[2].startswith("test"):
            parts += self._fixture(path, name)
        if not parts and not facts.owner and facts.parameters[0][0] == name:
            parts += self._receivers(OwnFunction(path, qualname))
        return self._known(parts)

    def _receivers(self, function: OwnFunction) -> Iterator[Alternatives]:
        """What `self` is in a function that replaces a method: `up.Engine.run = function`."""
        for path, target, value in self._placed.get(function.qualname.rpartition(".")[2], ())[:_MOST_CALLS]:
            if any(each.value == function for each in self._value(path, value)):
                for each in self._value(path, target):
                    owner = _class_around(each.value.access_path) if isinstance(each.value, Ours) else None
                    if owner is not None:
                        why = "it is put in place of a method of that class"
                        yield (replace(each, value=Ours(InstanceOf(owner)), evidence=why),)

    def _known(self, parts: list[Alternatives]) -> Alternatives:
        found = joined(parts) if parts else UNKNOWN
        return found if any(each.value is not None for each in found) else one(UNTYPED)

    def _passed(
        self, facts: FunctionFacts, path: str, arguments: tuple[Any, ...], context: int, name: str
    ) -> Iterator[Alternatives]:
        for value in _landing(arguments, [each[0] for each in facts.parameters if each[1] in POSITIONAL], name):
            yield guarded(self._value(path, value), (path, context))
        for value in arguments[4]:
            yield from (self._value(each.path, each.value) for each in self._entries(path, value) if each.name == name)

    def _fixture(self, path: str, name: str) -> Iterator[Alternatives]:
        """What pytest passes for a parameter: the fixture of that name in the file, or in a conftest.py above."""
        folder = path
        places = [path]
        while folder:
            folder = folder.rpartition("/")[0]
            places.append(f"{folder}/conftest.py" if folder else "conftest.py")
        for place in places:
            if place != path and place not in self._store.checkout.files:
                continue
            facts = self._store.facts(place).functions.get(name)
            if facts is not None and facts.fixture:
                given = self._result(OwnFunction(place, name))
                inside = [each.value.inside if isinstance(each.value, Held) else (each,) for each in given]
                why = f"the fixture {name} gives it"
                yield tuple(replace(each, evidence=each.evidence or why) for part in inside for each in part)
                return

    def callers(self, function: OwnFunction | OwnClass) -> list[Passing]:
        """Calls of a function, or of a class that has no constructor of its own."""
        found = self._callers.get(function)
        if found is None:
            self._callers[function] = []  # while it is looked up, for functions that call themselves
            found = self._callers[function] = list(self._looked_up(function))
        return found

    def _looked_up(self, function: OwnFunction | OwnClass) -> Iterator[Passing]:
        last = function.qualname.rpartition(".")[2].partition("#")[0]
        names = {last}
        outer = function.qualname.rpartition(".")[0].rpartition(".")[2]
        if outer:  # a function inside of it, which it may give
            names.add(f"{outer.partition('#')[0]}()")
        if last == "__init__":
            owner = OwnClass(function.path, function.qualname.rpartition(".")[0])
            names |= {each.qualname.rpartition(".")[2] for each in (owner, *self.subclasses(owner))}
        elif isinstance(function, OwnClass):
            names |= {each.qualname.rpartition(".")[2] for each in self.subclasses(function)}
        for name in sorted({*names, ITEM}):
            for path, row in self._calls.get(name, ())[:_MOST_CALLS]:
                found = self._value(path, row[2])
                if any(self._constructs(each.value) == function for each in found):
                    doubt = "if the key is that of this one" if name == ITEM and len(found) > 1 else ""
                    yield path, dict(row[4])["arguments"], row[3], doubt

    def _constructs(self, value: object) -> OwnFunction | OwnClass | None:
        """The function that a call of a value runs; the class itself where its constructor is made from fields."""
        if isinstance(value, OwnFunction):
            return value
        if not isinstance(value, OwnClass):
            return None
        for own in self._lineage(value).own:
            method = self._store.facts(own.path).classes[own.qualname].methods.get("__init__")
            if method is not None:
                return OwnFunction(own.path, method)
        return value

    # --------------------------------------------------------------------------------------------------- attributes

    def attribute(self, owner: OwnClass, name: str) -> Alternatives:
        """An attribute that the class itself does not tell: assigned from outside or by a subclass, or a field that
        calls of the class fill."""
        self.asked = True
        if not self.active:
            return UNKNOWN
        parts = []
        for path, base, value, context in self._assigned.get(name, ())[:_MOST_CALLS]:
            held = [each.value for each in self._value(path, base)]
            kinds = [OwnClass(each.path, each.qualname) for each in held if isinstance(each, OwnInstance | OwnClass)]
            if any(owner in self._lineage(kind).own for kind in kinds):
                parts.append(guarded(self._value(path, value), (path, context)))
        for each in self.subclasses(owner):
            numbers = self._store.facts(each.path).classes[each.qualname].attributes.get(name, ())
            parts += [self._value(each.path, number) for number in numbers if number > NONE]
        facts = self._store.facts(owner.path).classes[owner.qualname]
        if name not in facts.methods and name not in facts.attributes:
            parts += [each for each in [self.beside(owner, name)] if each != UNKNOWN]
        if name in facts.annotations and "__init__" not in facts.methods:
            for path, arguments, *_ in self.callers(owner):
                parts += [self._value(path, value) for value in _landing(arguments, list(facts.annotations), name)]
        return self._known(parts)

    def beside(self, owner: OwnClass, name: str) -> Alternatives:
        """An attribute that a mix-in has from what it is mixed into, if all agree: `class Own(Mixin, Base)`. Not if its
        file asks whether it is there."""
        self.asked = True
        if not self.active or self._store.facts(owner.path).classes[owner.qualname].bases:
            return UNKNOWN
        mixed = [(each, self._lineage(each)) for each in self.subclasses(owner)]
        bases = [(each, tuple(lineage.ours)) for each, lineage in mixed if lineage.ours]
        parts = []
        for each, ours in bases:
            others = [one for one in self._lineage(each).own if one != owner]
            own = [self._store.facts(one.path).classes[one.qualname] for one in others]
            answers = "__getattr__" in self._store.facts(owner.path).classes[owner.qualname].methods
            if answers or any({name, "__getattr__"} & {*one.methods, *one.attributes, *one.annotations} for one in own):
                return UNKNOWN  # some class of the repository has it
            why = f"{owner.qualname} is mixed into {each.qualname}"
            parts.append((Alternative(Ours(Attribute(SuperOf(ours), name)), evidence=why),))
        asked = rb"\b(?:has|get)attr\(\s*\w+\s*,\s*[\"']" + re.escape(name.encode()) + rb"[\"']"
        if not parts or re.search(asked, self._store.checkout.content(owner.path)):
            return UNKNOWN
        return joined(dict.fromkeys(parts))

    def subclasses(self, owner: OwnClass) -> list[OwnClass]:
        """Classes of the repository that derive from one."""
        if self._subclasses is None:
            self._subclasses = {}
            for path in self._files:
                for qualname in self._store.facts(path).classes:
                    derived = OwnClass(path, qualname)
                    for base in self._lineage(derived).own[1:]:
                        self._subclasses.setdefault(base, []).append(derived)
        return self._subclasses.get(owner, [])

    # ----------------------------------------------------------------------------------------------------- keywords

    def _entries(self, path: str, number: int) -> list[KeyEntry]:
        """Keys of the mappings that a value may be."""
        return [
            replace(entry, evidence=entry.evidence or each.evidence)
            for each in self._value(path, number)
            if isinstance(each.value, Keys)
            for entry in each.value.entries
        ]

    def keywords(self, path: str, row: Any) -> Alternatives:
        """`**kwargs` of a function: the keywords of its callers that no parameter is named after."""
        self.asked = True
        facts = self._store.facts(path).functions.get(row[1])
        if facts is None or not self.active:
            return UNKNOWN
        named = {each[0] for each in facts.parameters}
        entries: list[KeyEntry] = []
        callers = [] if self._are_taken_out(path, facts) else self.callers(OwnFunction(path, row[1]))
        for file, arguments, context, doubt in callers:
            for span, name, _, literal, value, _ in arguments[0]:
                if name is not None and name not in named:
                    entries.append(KeyEntry(file, name, span, literal, value, context, doubt))
            for number in arguments[4]:
                entries += [each for each in self._entries(file, number) if each.name not in {*named, each.position}]
        return one(Keys(tuple(dict.fromkeys(entries)))) if entries else UNKNOWN

    def _are_taken_out(self, path: str, facts: FunctionFacts) -> bool:
        """Whether a decorator of the repository takes keywords out before the function gets them:

        def renamed(**names):
            def wrap(function):
                def inner(*args, **kwargs):
                    for old, new in names.items():
                        kwargs[new] = kwargs.pop(old)
                    return function(*args, **kwargs)
                return inner
            return wrap
        """
        for each in [value for number in facts.decorators for value in self._value(path, number)]:
            if not isinstance(each.value, OwnFunction):
                continue
            lines = self._store.checkout.content(each.value.path).splitlines()
            functions = self._store.facts(each.value.path).functions.items()
            for inner in (facts for name, facts in functions if name.startswith(f"{each.value.qualname}.")):
                rests = [re.escape(name.encode()) for name, kind, _ in inner.parameters if kind == "double-star"]
                taken = [re.compile(rb"\b%b\.pop\(|\bdel %b\[" % (rest, rest)) for rest in rests]
                body = lines[inner.line - 1 : inner.end_line]
                if any(one.search(line) for one in taken for line in body):
                    return True
        return False

    def positions(self, path: str, row: Any) -> Alternatives:
        """`*args` of a function: what its callers pass beyond its own positional parameters."""
        self.asked = True
        facts = self._store.facts(path).functions.get(row[1])
        if facts is None or not self.active:
            return UNKNOWN
        taken = sum(each[1] in POSITIONAL for each in facts.parameters)
        entries: list[KeyEntry] = []
        for file, arguments, context, doubt in self.callers(OwnFunction(path, row[1])):
            for span, name, position, literal, value, _ in arguments[0]:
                if name is None and position >= 0:
                    entries.append(KeyEntry(file, f"*{position}", span, literal, value, context, doubt))
            for number in arguments[4]:
                entries += [entry for entry in self._entries(file, number) if entry.position]
        return _shifted(entries, -taken)

    def shifted(self, path: str, row: Any) -> Alternatives:
        """`f(a, *args)`: where the arguments of `args` stand."""
        return _shifted(self._entries(path, row[1]), row[2])

    def keys(self, path: str, row: Any) -> Alternatives:
        """A mapping that is written out, with what it was made from."""
        _, rows, _, _, rests = row
        entries = [KeyEntry(path, *each) for each in rows]
        own = {each.name for each in entries}
        for rest in rests:
            entries += [entry for entry in self._entries(path, rest) if entry.name not in own]
        return one(Keys(tuple(entries)))

    def fields(self, path: str, row: Any) -> Alternatives:
        """`asdict(settings)` and `vars(arguments)`: attributes that become keys."""
        parts = []
        content = self._store.checkout.content(path)
        taken = {
            name
            for found in _TAKEN_OUT.finditer(content)
            for name in _NAME.findall(found[0].decode("utf-8", "replace"))
        }
        for each in self._value(path, row[1]):
            entries: list[KeyEntry] = []
            if isinstance(each.value, OwnInstance):
                for own in reversed(self._lineage(OwnClass(each.value.path, each.value.qualname)).own):
                    kind = self._store.facts(own.path).classes[own.qualname]
                    entries += [
                        KeyEntry(own.path, name, span, None, NONE, 0, _FIELD) for name, span in kind.spans.items()
                    ]
            elif isinstance(each.value, Untyped):
                facts = self._store.facts(each.value.path)
                made = facts.nodes[each.value.number]
                options = facts.options.get(made[1], ()) if made[0] == "options" else ()
                entries += [KeyEntry(each.value.path, name, span, None, NONE, 0, _FIELD) for name, span in options]
            elif isinstance(each.value, Ours) and len(row) > 2:  # a method of that name
                method = Attribute(each.value.access_path, row[2])
                parts.append((replace(each, value=Ours(Called(method))),))
            entries = [entry for entry in entries if entry.name not in taken]
            if entries:
                parts.append((replace(each, value=Keys(tuple(entries))),))
        return joined(parts) if parts else UNKNOWN

    def without(self, path: str, row: Any) -> Alternatives:
        """A mapping that keys were taken out of."""
        found = []
        for each in self._value(path, row[1]):
            if isinstance(each.value, Keys):
                left = tuple(entry for entry in each.value.entries if entry.name not in row[2])
                found.append(replace(each, value=Keys(left)))
        return tuple(found) or UNKNOWN


def _shifted(entries: Iterable[KeyEntry], places: int) -> Alternatives:
    """Arguments by position, so many places further."""
    moved = [(int(each.position[1:]) + places, each) for each in entries if each.position]
    found = dict.fromkeys(replace(each, name=f"*{place}") for place, each in moved if place >= 0)
    return one(Keys(tuple(found))) if found else UNKNOWN


def _landing(arguments: tuple[Any, ...], positions: Sequence[str], name: str) -> Iterator[int]:
    """Values of the arguments of a call that land on a parameter; literals are left out."""
    for _, keyword, position, literal, value, _ in arguments[0]:
        lands = keyword if keyword is not None else positions[position] if 0 <= position < len(positions) else ""
        if lands == name and value != NONE and literal is None:
            yield value


def _class_around(access_path: AccessPath) -> AccessPath | None:
    """`up.Engine` of `up.Engine.run`: names of classes begin with a capital."""
    owner = access_path.base if isinstance(access_path, Attribute) else None
    if isinstance(access_path, Name):
        owner = Name(access_path.dotted.rpartition(".")[0])
    last = owner.dotted.rpartition(".")[2] if isinstance(owner, Name) else getattr(owner, "name", "")
    return owner if last[:1].isupper() else None


def last_name(facts: FileFacts, number: int) -> str:
    """The name that a called expression ends in; "" if it has none."""
    row = facts.nodes[number]
    kind = row[0]
    if kind in ("guarded", "partial"):
        return last_name(facts, row[1])
    if kind == "call":  # `wrapped(f)(x)`: what a function gives is called
        return f"{last_name(facts, row[1])}()"
    if kind in ("item", "view"):
        return ITEM
    if kind in ("own", "name", "import", "global", "star"):
        return str(row[1]).rpartition(".")[2].partition("#")[0]
    return str(row[2]).rpartition(".")[2] if kind in ("attr", "relative") else ""
