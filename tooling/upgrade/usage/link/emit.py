"""Turn the facts of linked files into uses, with their conditions and fallbacks."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tooling.python.access_paths import (
    AccessPath,
    Attribute,
    Duck,
    Either,
    Name,
    Unknown,
    is_distinctive,
    root_of,
    touches_private,
)
from tooling.python.conditions import (
    Condition,
    Constant,
    ModuleExists,
    all_of,
    any_of,
    is_decidable,
    is_decided,
    negated,
    simple_parts,
)
from tooling.python.once import once
from tooling.python.symbols.symbol import Parameter, Signature
from tooling.upgrade.declarations.find import repository_files
from tooling.upgrade.usage.link.classes import (
    Alternative,
    Alternatives,
    Keys,
    OfUntyped,
    Ours,
    OwnClass,
    OwnFunction,
    Untyped,
    called_by,
    one,
)
from tooling.upgrade.usage.link.flows import last_name
from tooling.upgrade.usage.link.scopes import linked_condition
from tooling.upgrade.uses import (
    Action,
    Argument,
    ClientMethod,
    DeadGuard,
    Extension,
    FileUses,
    PassedArguments,
    SourcePlace,
    TryPart,
    Use,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tooling.upgrade.usage.facts import ContextRow
    from tooling.upgrade.usage.link.reach import Importers
    from tooling.upgrade.usage.link.resolve import Resolver
    from tooling.upgrade.usage.link.store import FactsStore


class Contexts:
    """Where uses stand: conditions and attempts of all files, those of bindings that lead to a use included."""

    def __init__(self, link: Resolver, store: FactsStore) -> None:
        self._link = link
        self._store = store

    @once()
    def condition(self, path: str, number: int) -> Condition:
        """A test of a file; number + 1, negative where it must fail."""
        if number < 0:
            return negated(self.condition(path, -number))
        return linked_condition(self._link, self._store, path, number - 1)

    @once()
    def conditions(self, path: str, context: int) -> tuple[Condition, ...]:
        """All conditions of a place."""
        numbers = self._store.facts(path).contexts[context][0]
        found = dict.fromkeys(self.condition(path, number) for number in numbers)
        return tuple(one for one in found if one != Constant(True))

    @once()
    def attempts(self, path: str, context: int) -> tuple[TryPart, ...]:
        """All attempts around a place."""
        facts = self._store.facts(path)
        parts = []
        for index in facts.contexts[context][1]:
            number, part, caught, handler, reraises = facts.attempts[index]
            names: set[str] = set()
            for entry in caught:
                names.update([entry] if isinstance(entry, str) else self._exception(path, entry))
            parts.append(TryPart(number, part, frozenset(names), handler, reraises))
        return tuple(parts)

    def _exception(self, path: str, number: int) -> list[str]:
        facts = self._store.facts(path)
        row = facts.nodes[number]
        if row[0] in ("import", "name"):
            return [row[1]]
        found = [entry.value for entry in self._link.value(path, number)]
        return [one.access_path.dotted for one in found if isinstance(one, Ours) and isinstance(one.access_path, Name)]

    def bindings(
        self, path: str, guards: tuple[tuple[str, int], ...], known: tuple[TryPart, ...]
    ) -> tuple[list[Condition], list[TryPart]]:
        """What the bindings that a value came through add: conditions that a release can decide, and attempts: a value
        that was bound in one is there only if it worked."""
        conditions: list[Condition] = []
        attempts: list[TryPart] = []
        for file, context in guards:
            conditions += [one for one in self.conditions(file, context) if is_decidable(one)]
            for attempt in self.attempts(file, context):
                part = "else" if attempt.part == "body" else attempt.part
                bound = replace(attempt, part=part, path="" if file == path else file)
                if all((one.number, one.path) != (bound.number, bound.path) for one in (*known, *attempts)):
                    attempts.append(bound)
        return list(dict.fromkeys(conditions)), attempts


def _any_way(ways: Iterable[tuple[Condition, ...]]) -> tuple[Condition, ...]:
    """What holds whichever way is taken, by what a release can decide of each; () if some way says nothing."""
    found: dict[Condition, None] = {}
    for conditions in ways:
        decided: list[Condition] = [one for one in conditions if is_decided(one) and not isinstance(one, Constant)]
        if not decided:
            return ()
        found[all_of(decided)] = None
    return (any_of(list(found)),) if found else ()


class GuardedFunctions:
    """What else must hold inside of functions and classes, by all places that name them."""

    def __init__(self, store: FactsStore, contexts: Contexts) -> None:
        self._store = store
        self._contexts = contexts

    @once()
    def conditions(self, path: str, name: str) -> tuple[Condition, ...]:
        """Conditions that come with a function or class at the top level of a module; ()."""
        facts = self._store.facts(path)
        function = facts.functions.get(name)
        known = name in facts.classes if function is None else not function.owner and not function.decorators
        if not known or name in (facts.exports or ()):
            return ()
        mentions = facts.mentions.get(name, {})
        outside = [each for each in mentions.values() if facts.contexts[each][3].partition(".")[0] != name]
        ways = _any_way(self._contexts.conditions(path, context) for context in dict.fromkeys(outside))
        return () if ways and self._is_named_elsewhere(path, name, len(mentions)) else ways

    def _is_named_elsewhere(self, path: str, name: str, mentions: int) -> bool:
        """By text: in another file, in a string, or in a way that was not followed."""
        checkout = self._store.checkout
        text = name.encode()
        pattern = re.compile(rb"\b" + re.escape(text) + rb"\b")
        if len(pattern.findall(checkout.content(path))) > 1 + mentions:
            return True
        return any(other != path and pattern.search(checkout.content(other)) for other in checkout.having(text))


class GuardedModules:
    """What else must hold in a whole file, by all places that import it or name it in a string:

    if Version(engine.__version__) < Version("2.0"):
        from own.engine_1 import Engine          # own/engine_1.py runs on old versions only
    """

    def __init__(self, store: FactsStore, contexts: Contexts, edges: Importers) -> None:
        self._store = store
        self._contexts = contexts
        self._edges = edges

    @once(meanwhile=())  # for files that import each other
    def conditions(self, path: str) -> tuple[Condition, ...]:
        """Conditions that come with a file; () if there are none."""
        named = {each for each, _ in self._edges.get(path, ())} | self._named_in.get(path, set())
        contexts = {each: list(dict.fromkeys(self._naming(each, path))) for each in sorted(named - {path})}
        if not all(contexts.values()):
            return ()  # named in a way that was not followed
        ways = _any_way(
            (*self._contexts.conditions(each, context), *self.conditions(each))
            for each, found in contexts.items()
            for context in found
        )
        return () if ways and self._is_named_elsewhere(path, named) else ways

    @cached_property
    def _named_in(self) -> dict[str, set[str]]:
        """By file: those that name it in a string."""
        found: dict[str, set[str]] = {}
        for importer in self._store.loaded():
            facts = self._store.facts(importer)
            dotted = {facts.nodes[row[2]][1] for row in facts.uses if row[0] == "string"}
            for each in sorted(name for name in dotted if isinstance(name, str)):
                met = self._store.checkout.find(importer, each)
                if met is not None:
                    found.setdefault(met[0], set()).add(importer)
        return found

    @cached_property
    def _texts(self) -> list[str]:
        """Files of the repository that may name a module to run it."""
        checkout = self._store.checkout
        paths = sorted({*checkout.paths, *repository_files(checkout.root)})
        return [path for path in paths if not path.endswith(_PROSE)]

    @cached_property
    def _starts(self) -> dict[str, frozenset[str]]:
        """By file that imports modules by their names: how those may begin."""
        content = self._store.checkout.content
        naming = [each for each in self._texts if _BY_NAME.search(content(each))]
        return {each: frozenset(text.decode() for text in _STARTS.findall(content(each))) for each in naming}

    def _is_named_elsewhere(self, path: str, named: set[str]) -> bool:
        """By text, in files that were not read: it is run by itself, a script or a setting names it, or its name is put
        together: `import_module(f"own.engine_{version}")`."""
        checkout = self._store.checkout
        if _RUN_ITSELF.search(checkout.content(path)):
            return True
        dotted = checkout.module_name(path)
        for each in self._texts:
            if each == path:
                continue
            content = checkout.content(each)
            if each not in named and (dotted.encode() in content or path.encode() in content):
                return True
            if any(dotted != start and dotted.startswith(start) for start in self._starts.get(each, ())):
                return True
        return False

    def _naming(self, importer: str, path: str) -> Iterator[int]:
        """Contexts in which a file imports another one, or names it."""
        facts = self._store.facts(importer)
        for action, _, target, context, _ in facts.uses:
            row = facts.nodes[target]
            if action not in ("import", "star-import", "string") or row[0] not in ("import", "name", "relative"):
                continue
            level, dotted = (row[1], row[2]) if row[0] == "relative" else (0, row[1])
            found = self._store.checkout.find(importer, dotted, level)
            if found is not None and found[0] == path:
                yield context


_RUN_ITSELF = re.compile(rb"__name__\s*==\s*[\"']__main__")
_PROSE = (".md", ".rst", ".txt")
_LOADED = ("__init__.py", "conftest.py")
"""Files that are loaded though nothing imports them by name."""
_BY_NAME = re.compile(rb"\bimport_module\b|\b__import__\b")
_STARTS = re.compile(rb"[\"'](\w[\w.]*)", re.ASCII)
"""Beginnings of strings that may be a module's name."""
_TEXT_LIMIT = 100
_GUARD_LIKE = re.compile(
    r"version|hasattr|find_spec|signature|is_\w+_(?:available|greater)|_AVAILABLE|HAS_", re.IGNORECASE
)
_ACTIONS = {action.value: action for action in Action}


class Emitter:
    """Uses of one file after the other."""

    def __init__(
        self, link: Resolver, store: FactsStore, edges: Importers, members: frozenset[str] = frozenset()
    ) -> None:
        """members: attributes that are worth a use where nothing types their owner."""
        self._link = link
        self._store = store
        self._members = members
        self._contexts = Contexts(link, store)
        self._guarded = GuardedFunctions(store, self._contexts)
        self._modules = GuardedModules(store, self._contexts, edges)
        self._joined = edges.keys() | {importer for rows in edges.values() for importer, _ in rows}

    def file(self, path: str) -> FileUses:
        """All uses in a file, sorted by place."""
        facts = self._store.facts(path)
        digest = self._store.checkout.digest(path)
        if facts.problem:
            return FileUses(path=path, digest=digest, uses=(), problem=facts.problem)
        reached: dict[int, Alternatives] = {}
        uses: list[Use] = []
        telling = {(row[1], row[2]) for row in facts.uses if row[0] not in ("read", "operate")}
        kept = dict.fromkeys(row for row in facts.uses if row[0] != "read" or (row[1], row[2]) not in telling)
        for row in sorted(kept, key=lambda row: (row[1], row[0])):
            number = row[2]
            if number not in reached:
                reached[number] = self._reach(path, number)
            if row[0] == "string" and reached[number] and self._is_asked_for(path, row):
                continue
            found = reached[number] or (self._by_keyword(path, row) if row[0] == "call" else ())
            if found:
                uses.extend(self._uses(path, row, found))
        guards = tuple(self._guards(path, bool(uses)))
        extensions = []  # what its classes add to packages' classes
        for owner in (OwnClass(path, qualname) for qualname in facts.classes):
            client = self._link.lineages.client_class(owner)
            if client is not None:
                heirs = frozenset[str]().union(*map(self._own_names, self._link.flows.subclasses(owner)))
                extensions.append(Extension(client, self._own_names(owner), heirs))
        apart = path not in self._joined and not path.endswith(_LOADED)
        patching = {use.function for use in uses if use.action is Action.ASSIGN and use.function in facts.functions}
        return FileUses(
            path=path,
            digest=digest,
            uses=tuple(uses),
            guards=guards,
            extensions=tuple(extensions),
            apart=apart,
            loading=tuple((name, line) for name in sorted(patching) for line in self._loading_lines(path, name)),
        )

    def _loading_lines(self, path: str, name: str) -> Iterator[int]:
        """Lines from which on a function has been called that modules, and no tests, call as they are loaded."""
        callers = self._link.flows.callers(OwnFunction(path, name))
        files = {file for file, _, at, _ in callers if not self._store.facts(file).contexts[at][3]}
        if any(file != path and not _is_test(file) for file in files):
            yield 0
        facts = self._store.facts(path)
        named = [place for place, at in facts.mentions.get(name, {}).items() if not facts.contexts[at][3]]
        if path in files and named:
            yield min(named)[0]

    def has_untyped(self, path: str) -> bool:
        """Whether a file uses a watched attribute on a value that nothing types, or passes a watched keyword to one."""
        facts = self._store.facts(path)
        for number, row in enumerate(facts.nodes):
            if row[0] != "attr" or not (row[2] in self._members or f"self.{row[2]}" in self._members):
                continue
            if self._label(Untyped(path, row[1])) != "self" and self._is_own(path, row[2]):
                continue
            found = [entry.value for entry in self._link.value(path, number)]
            if any(isinstance(each, OfUntyped) and self._is_telling(path, each) for each in found):
                return True
        return any(row[0] == "call" and self._by_keyword(path, row) for row in facts.uses)

    def _is_asked_for(self, path: str, row: Any) -> bool:
        """Whether a string is a module's name in a condition that holds where the module is there."""
        facts = self._store.facts(path)
        for number, (_, _, span) in enumerate(facts.tests):
            if span[:2] <= row[1][:2] and row[1][2:] <= span[2:]:
                parts = simple_parts(self._contexts.condition(path, number + 1))
                if any(isinstance(each, ModuleExists) and each.dotted == facts.nodes[row[2]][1] for each in parts):
                    return True
        return False

    def _reach(self, path: str, number: int) -> Alternatives:
        """What a target may be; () if nothing of it is of interest."""
        found = self._link.value(path, number)
        for entry in called_by(found):
            if isinstance(entry.value, Ours):
                return found
            if isinstance(entry.value, OwnClass) and self._link.lineage(entry.value).ours:
                return found
            if isinstance(entry.value, OfUntyped) and self._is_telling(path, entry.value):
                return found
        return ()

    def _uses(self, path: str, row: Any, alternatives: Alternatives) -> Iterator[Use]:
        action = row[0]
        if action == "override":
            details = dict(row[4])
            for entry in alternatives:
                bases: list[AccessPath] = []
                if isinstance(entry.value, Ours):
                    bases = [entry.value.access_path]
                elif isinstance(entry.value, OwnClass):
                    bases = self._link.lineage(entry.value).ours
                for base in bases:
                    yield self._use(path, row, Attribute(base, details["name"]), entry.guards)
            return
        if action == "call" and (inside := called_by(alternatives)) != alternatives:
            row, alternatives = _keywords_only(row), inside  # others were given before: positions are not known
        fields = self._own_fields(alternatives) if action == "call" else frozenset()
        evidence = next((entry.evidence for entry in alternatives if entry.evidence), "")
        own = [entry.value for entry in alternatives if isinstance(entry.value, OwnClass)]
        if action == "call" and any(self._link.lineage(each).foreign for each in own):
            evidence = evidence or "a base class that is not known here may take it"
        for targets, guards in self._targets(path, action, row[3], alternatives):
            use = self._use(path, row, targets, guards)
            use = replace(use, evidence=evidence or use.evidence)
            if fields:  # of what makes a class with further fields only keywords that are none of these can be judged
                given = use.arguments.given if use.arguments is not None else ()
                kept = tuple(one for one in given if one.name is not None and one.name not in fields)
                arguments = PassedArguments(kept, has_star=True, has_double_star=True, partial=True)
                yield replace(use, arguments=arguments)
            else:
                yield use
            if action == "call":
                yield from self._handed_on(path, use, dict(row[4])["arguments"][4], fields)

    def _handed_on(self, path: str, use: Use, spread: Iterable[int], fields: frozenset[str]) -> Iterator[Use]:
        """One use for each keyword that comes out of a mapping from elsewhere: each may be passed, or not."""
        seen = set()
        for number in spread:
            for alternative in self._link.value(path, number):
                for entry in alternative.value.entries if isinstance(alternative.value, Keys) else ():
                    if entry in seen or entry.name in fields:
                        continue
                    seen.add(entry)
                    guards = ((entry.path, entry.context), *alternative.guards)
                    more, tried = self._contexts.bindings(path, guards, use.attempts)
                    argument = Argument(
                        SourcePlace(entry.path, *entry.span),
                        None if entry.position else entry.name,
                        int(entry.position[1:]) if entry.position else -1,
                        entry.literal,
                        from_mapping=True,
                    )
                    yield replace(
                        use,
                        arguments=PassedArguments((argument,), has_star=True, has_double_star=True, partial=True),
                        conditions=tuple(dict.fromkeys((*more, *use.conditions))),
                        attempts=(*tried, *use.attempts),
                        evidence=use.evidence or entry.evidence or alternative.evidence,
                    )

    def _targets(
        self, path: str, action: str, context: int, alternatives: Alternatives
    ) -> Iterator[tuple[AccessPath, tuple[tuple[str, int], ...]]]:
        """What a row is about: one use for all alternatives, or one for each where conditions tell them apart."""
        found: list[tuple[AccessPath, Alternative]] = []
        untyped = all(isinstance(entry.value, OfUntyped) for entry in alternatives)
        for entry in alternatives:
            access_path = None if isinstance(entry.value, OfUntyped) != untyped else self._access_path(action, entry)
            if access_path is not None:
                found.append((access_path, entry))
        if not found:
            return
        if self._are_told_apart(path, context, [entry for _, entry in found]):
            for access_path, entry in found:
                yield access_path, entry.guards
            return
        members = tuple(dict.fromkeys(access_path for access_path, _ in found))
        if any(not isinstance(entry.value, OfUntyped if untyped else Ours | OwnClass) for entry in alternatives):
            members = (*members, Unknown())
        guards = found[0][1].guards if len(alternatives) == 1 else ()
        yield members[0] if len(members) == 1 else Either(members), guards

    def _are_told_apart(self, path: str, context: int, entries: list[Alternative]) -> bool:
        """Whether a release alone says which alternative it is. Where the run says so too they are one of several."""
        standing = set(self._contexts.conditions(path, context))
        further = []
        for entry in entries:
            places = {one for file, place in entry.guards for one in self._contexts.conditions(file, place)}
            further.append(places - standing)
        shared = set.intersection(*further) if len(further) > 1 else set()
        for entry, conditions in zip(entries, further, strict=True):
            own = conditions - shared
            tried = self._contexts.bindings(path, entry.guards, ())[1]
            if not (own or tried) or not all(is_decided(one) for one in own):
                return False
        return True

    def _access_path(self, action: str, entry: Alternative) -> AccessPath | None:
        value = entry.value
        if isinstance(value, Ours):
            return value.access_path
        if isinstance(value, OfUntyped) and action in ("call", "read"):
            return Attribute(Duck(self._used_on(value.base), self._label(value.base)), value.name)
        if isinstance(value, OwnClass) and action == "call" and self._inherits_constructor(value):
            return self._link.lineages.client_class(value)
        return None

    def _is_telling(self, path: str, value: OfUntyped) -> bool:
        """Whether an attribute is worth a use, and what is used on its owner tells what that may be. A name that the
        repository gives to something of its own tells nothing."""
        common = f"self.{value.name}" in self._members and self._label(value.base) == "self"
        if not (common or value.name in self._members) or not any(map(is_distinctive, self._used_on(value.base))):
            return False
        if self._label(value.base) == "self":
            return True  # of a function that stands in for a method of a package's class
        return not self._is_own(path, value.name)

    def _is_own(self, path: str, name: str) -> bool:
        """Whether the repository gives a name to something of its own; doubles in its tests count in tests only."""
        own = self._store.checkout.defining(name)
        return bool(own) and (_is_test(path) or not all(map(_is_test, own)))

    def _label(self, value: Untyped) -> str:
        """What the code calls a value; ":Name" if it is annotated with a class; "" if it has no name."""
        row = self._store.facts(value.path).nodes[value.number]
        if row[0] == "instance":
            return f":{last_name(self._store.facts(value.path), row[1])}"
        return str(row[2]) if row[0] in ("arg", "attr", "item", "options", "some") else ""

    def _by_keyword(self, path: str, row: Any) -> Alternatives:
        """What a method is called on that nothing types, with a keyword that a package no longer knows; () if a method
        of that name in the repository takes it."""
        lost = {each[1] for each in dict(row[4])["arguments"][0] if f"{each[1]}=" in self._members}
        found = self._link.value(path, row[2]) if lost else ()
        nodes = self._store.facts(path).nodes
        kind, base, *name = nodes[row[2]]
        annotated = kind == "attr" and nodes[base][0] == "instance" and all(each.value is None for each in found)
        if found and annotated:  # with a class of another package, which one of the package's may derive from
            found = one(OfUntyped(Untyped(path, base), name[0]))
        names = [entry.value.name for entry in found if isinstance(entry.value, OfUntyped)]
        if not names or len(names) < len(found):
            return ()
        for each in self._store.checkout.defining(names[0]):
            for qualname, function in self._store.facts(each).functions.items():
                if qualname.rpartition(".")[2] == names[0] and lost & {one[0] for one in function.parameters}:
                    return ()
        return found

    def _used_on(self, value: Untyped) -> frozenset[str]:
        """Attributes that its file uses on a value; those that are asked for only may be missing."""
        return frozenset(self._used_in(value.path).get(value.number, ()))

    @once()
    def _used_in(self, path: str) -> dict[int, set[str]]:
        facts = self._store.facts(path)
        asked = {row[2] for row in facts.uses if row[0] == "probe"}
        names: dict[int, set[str]] = {}
        for number, row in enumerate(facts.nodes):
            if row[0] == "attr" and number not in asked:
                names.setdefault(row[1], set()).add(row[2])
        return names

    def _inherits_constructor(self, owner: OwnClass) -> bool:
        """Whether calling a class of the repository calls a package's constructor, with its parameters."""
        lineage = self._link.lineage(owner)
        for own in lineage.own:
            facts = self._store.facts(own.path).classes[own.qualname]
            if {"__init__", "__new__", "__call__"} & facts.methods.keys():
                return False
        return bool(lineage.ours)

    def _own_fields(self, alternatives: Alternatives) -> frozenset[str]:
        """Fields that classes of the repository add to a package's: a constructor made of fields takes them too."""
        names: set[str] = set()
        for entry in alternatives:
            if isinstance(entry.value, OwnClass):
                for own in self._link.lineage(entry.value).own:
                    names.update(self._store.facts(own.path).classes[own.qualname].annotations)
        return frozenset(names)

    def _own_names(self, owner: OwnClass) -> frozenset[str]:
        """What a class has of the repository's, its bases there included."""
        own = [self._store.facts(each.path).classes[each.qualname] for each in self._link.lineage(owner).own]
        return frozenset(name for each in own for name in (*each.annotations, *each.attributes, *each.methods))

    # ------------------------------------------------------------------------------------------------------ one use

    def _use(self, path: str, row: Any, target: AccessPath, guards: tuple[tuple[str, int], ...]) -> Use:
        action, span, _, context, details = row
        given = dict(details)
        stands: ContextRow = self._store.facts(path).contexts[context]
        conditions, attempts = self._conditions(path, context, guards)
        text = " ".join(self._store.text(path, span).split())
        dotted = root_of(target)
        return Use(
            action=_ACTIONS[action],
            place=SourcePlace(path, *span),
            target=target,
            package=self._link.package_of(dotted),
            arguments=self._arguments(path, given["arguments"]) if "arguments" in given else None,
            method=self._method(path, given),
            awaited=given.get("awaited"),
            count=given.get("count"),
            owner=f"{self._store.checkout.module_name(path)}.{given['owner']}" if "owner" in given else "",
            evidence=given.get("evidence", ""),
            operation=given.get("operation", ""),
            other=given.get("other", ""),
            evaluated=stands[4],
            conditions=conditions,
            attempts=attempts,
            switches=tuple(Name(name) for name in stands[2]),
            symbol_text=text if len(text) <= _TEXT_LIMIT else f"{text[: _TEXT_LIMIT - 1]}…",
            function=stands[3],
            private=touches_private(target),
        )

    def _conditions(
        self, path: str, context: int, guards: tuple[tuple[str, int], ...]
    ) -> tuple[tuple[Condition, ...], tuple[TryPart, ...]]:
        conditions = self._contexts.conditions(path, context)
        function = self._store.facts(path).contexts[context][3]
        around = (*self._modules.conditions(path), *self._guarded.conditions(path, function.partition(".")[0]))
        conditions = (*(one for one in around if one not in conditions), *conditions)
        attempts = self._contexts.attempts(path, context)
        if guards:
            more, tried = self._contexts.bindings(path, guards, attempts)
            conditions = (*(one for one in more if one not in conditions), *conditions)
            attempts = (*tried, *attempts)
        return conditions, attempts

    def _arguments(self, path: str, row: Any) -> PassedArguments:
        given, has_star, has_double_star, partial, _ = row
        arguments = tuple(
            Argument(SourcePlace(path, *span), name, position, literal, mapping, self._function(path, value))
            for span, name, position, literal, value, mapping in given
        )
        return PassedArguments(arguments, has_star, has_double_star, partial)

    def _method(self, path: str, given: dict[str, Any]) -> ClientMethod | None:
        """Shape of an overriding method, or of the function that is assigned over a package's."""
        if "method" in given:
            called = re.search(rb"\.%b\b" % given["name"].encode(), self._store.checkout.content(path))
            return replace(self._shape(OwnFunction(path, given["method"])), called=called is not None)
        if given.get("value"):
            found = self._link.value(path, given["value"])
            if len(found) == 1 and isinstance(found[0].value, OwnFunction):
                return self._shape(found[0].value)
        return None

    def _function(self, path: str, number: int) -> ClientMethod | None:
        """Shape of a function that is passed on; None for other values."""
        row = self._store.facts(path).nodes[number]
        if row[0] == "lambda":
            return ClientMethod(Signature(tuple(Parameter(*each) for each in row[1])), "method", False, False)
        found = self._link.value(path, number) if row[0] in ("own", "global", "attr", "name", "relative") else ()
        value = found[0].value if len(found) == 1 else None
        return self._shape(value) if isinstance(value, OwnFunction) else None

    def _shape(self, function: OwnFunction) -> ClientMethod:
        file = self._store.facts(function.path)
        facts, nodes = file.functions[function.qualname], file.nodes
        signature = Signature(tuple(Parameter(*row) for row in facts.parameters))
        binding = "method" if facts.binding == "function" else facts.binding
        last = function.qualname.rpartition(".")[2]
        inherited = ("attr", nodes.index(("super", facts.owner)) if ("super", facts.owner) in nodes else -1, last)
        given = file.given(facts)
        passes_on = bool(given) and all(row[0] == "call" and nodes[row[1]] == inherited for row in given)
        return ClientMethod(signature, binding, facts.is_async, bool(facts.decorators), passes_on)

    # ------------------------------------------------------------------------------------------------------- guards

    def _guards(self, path: str, used: bool) -> Iterator[DeadGuard]:
        """Conditions about packages, for guards that have become pointless."""
        facts = self._store.facts(path)
        standing = {abs(one) - 1 for row in facts.contexts for one in row[0]} if used else set()
        for number, (text, _, span) in enumerate(facts.tests):
            before = self._store.text(path, (span[0], 0, *span[:2]))
            if not _GUARD_LIKE.search(text) and (number not in standing or before.lstrip().startswith("assert")):
                continue
            condition = self._contexts.condition(path, number + 1)
            if is_decidable(condition):
                yield DeadGuard(SourcePlace(path, *span), condition)


_TEST = re.compile(r"(^|/)(tests?/|test_[^/]*$|[^/]*_tests?/|[^/]*_test\.py$|conftest\.py$)")


def _keywords_only(row: Any) -> Any:
    """A call of which the keywords alone can be judged."""
    given, _, _, _, spread = dict(row[4])["arguments"]
    named = tuple(each for each in given if each[1] is not None)
    return (*row[:4], (*row[4], ("arguments", (named, True, True, True, spread))))


def _is_test(path: str) -> bool:
    return bool(_TEST.search(path))
