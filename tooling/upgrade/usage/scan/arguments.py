"""Arguments of calls, bound to where they stand: also those that come out of literal dicts."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tooling.python.source import span_of
from tooling.upgrade.usage.facts import NONE, UNKNOWN, ArgumentRow, Span
from tooling.upgrade.usage.scan.expressions import MAPPED
from tooling.upgrade.usage.scan.frames import DictEntry, KnownDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tooling.upgrade.usage.scan.core import WalkState
    from tooling.upgrade.usage.scan.expressions import ExpressionReader
    from tooling.upgrade.usage.scan.frames import Frame

_LITERAL_LIMIT = 120
_VALUED = (ast.Name, ast.Attribute, ast.Await, ast.Call, ast.Lambda, ast.List, ast.Subscript, ast.Tuple)
_MAKERS = frozenset(
    {"collections.ChainMap", "collections.OrderedDict", "copy.copy", "copy.deepcopy", "types.MappingProxyType"}
)
"""What makes a mapping of others."""


class CallArguments:
    """What a call passes, ready for the facts."""

    def __init__(self) -> None:
        self.given: list[ArgumentRow] = []
        self.has_star = False
        self.has_double_star = False
        self.partial = False
        self.conditional: list[tuple[tuple[int, ...], ArgumentRow]] = []
        """Keywords of a dict that are set only under further conditions."""
        self.spread: list[int] = []
        """Values of `*x` and `**x` whose content other functions or files may tell."""

    def row(self) -> tuple[Any, ...]:
        """For the facts."""
        return (tuple(self.given), self.has_star, self.has_double_star, self.partial, tuple(self.spread))


class ArgumentReader:
    """Reading of arguments."""

    def __init__(self, walk: WalkState, expressions: ExpressionReader) -> None:
        self.walk = walk
        self.expressions = expressions

    def arguments(self, positional: Sequence[ast.expr], keywords: Sequence[ast.keyword]) -> CallArguments:
        """The arguments, each visited."""
        found = CallArguments()
        for entry in positional:
            if isinstance(entry, ast.Starred):
                self._starred(found, entry)
                continue
            row = self._argument(entry, span_of(entry), None, -1 if found.has_star else len(found.given))
            if not found.has_star:  # after `*x` positions are anybody's guess
                found.given.append(row)
        for keyword in keywords:
            if keyword.arg is not None:
                found.given.append(self._argument(keyword.value, span_of(keyword), keyword.arg, -1))
            else:
                self._spread(found, keyword.value)
        return found

    def _starred(self, found: CallArguments, entry: ast.Starred) -> None:
        inner = entry.value
        shown = self._shown_tuple(inner) if isinstance(inner, ast.Name) else inner
        if not isinstance(shown, ast.Tuple | ast.List) or any(isinstance(one, ast.Starred) for one in shown.elts):
            value = self.expressions.value_used(inner)
            self.expressions.operate(inner, value, "iterate")
            if self.walk.facts.nodes[value][0] == "stars" and not found.has_star:
                found.spread.append(self.walk.node("shifted", value, len(found.given)))
            found.has_star = True
            return
        for element in shown.elts:
            place = len(found.given)
            if found.has_star:
                self.expressions.expression(element)
            elif shown is inner:
                found.given.append(self._argument(element, span_of(element), None, place))
            else:
                value = self.quiet_value(element)
                found.given.append((span_of(entry), None, place, self.literal(element), value, True))

    def _shown_tuple(self, node: ast.Name) -> ast.expr | None:
        """The tuple that a name was bound to, once: nobody can add to it."""
        frame = self.walk.holding(node.id)
        if not self.walk.is_local(node.id):
            if len(self.walk.module.history.get(node.id, ())) != 1:
                return None
            frame = self.walk.module
        origin = frame.origins.get(node.id)
        return origin if isinstance(origin, ast.Tuple) else None

    def _argument(self, node: ast.expr, span: Span, name: str | None, position: int) -> ArgumentRow:
        value = self.expressions.expression(node)
        return (span, name, position, self.literal(node), value, False)

    def literal(self, node: ast.expr) -> str | None:
        """Source of a literal."""
        inner = node.operand if isinstance(node, ast.UnaryOp) else node
        if isinstance(inner, ast.Constant):
            text = self.walk.text(node)
            return text if len(text) <= _LITERAL_LIMIT else None
        if isinstance(inner, ast.List | ast.Tuple) and all(isinstance(one, ast.Constant) for one in inner.elts):
            text = self.walk.text(node)
            return text if len(text) <= _LITERAL_LIMIT else None
        return None

    def _spread(self, found: CallArguments, node: ast.expr) -> None:
        """`**mapping`."""
        known = self.known_dict(node, visit=True)
        if known is None:
            found.has_double_star = True
            value = self.quiet_value(node)
            self._spread_value(found, value)
            self.expressions.operate(node, value, MAPPED)
            return
        found.has_double_star |= known.more
        for value in self.rests(known):
            self._spread_value(found, value)
        here = len(self.walk.conditions)
        for entries in known.entries.values():
            for entry in entries:
                row = (span_of(entry.key), entry.name, -1, entry.literal, entry.value, True)
                further = tuple(one for one in entry.conditions if one not in self.walk.conditions[:here])
                if further:
                    found.has_double_star = True  # or not: nothing may be called missing
                    found.conditional.append((further, row))
                else:
                    found.given.append(row)

    def _spread_value(self, found: CallArguments, value: int) -> None:
        if value > NONE and self.walk.hot[value]:
            found.spread.append(value)

    # ---------------------------------------------------------------------------------------------- known dicts

    def rests(self, known: KnownDict) -> tuple[int, ...]:
        """What the keys that are not seen come from, without those that were taken out."""
        hot = tuple(value for value in known.rests if value > NONE and self.walk.hot[value])
        if not known.dropped:
            return hot
        return tuple(self.walk.node("without", value, tuple(sorted(known.dropped))) for value in hot)

    def join(self, known: KnownDict, other: KnownDict) -> None:
        """Take over what another mapping's keys come from."""
        known.rests, known.dropped = (*self.rests(known), *self.rests(other)), frozenset()

    def keys(self, known: KnownDict, held: int = UNKNOWN) -> int:
        """A mapping as a value: (name, span, literal, value, context) of its keys, whether there may be more, what its
        values are, and what the others come from."""
        here = self.walk.conditions
        rows = []
        for entries in known.entries.values():
            for entry in entries:
                self.walk.conditions = entry.conditions
                context = self.walk.context()
                rows.append((entry.name, span_of(entry.key), entry.literal, entry.value, context))
        self.walk.conditions = here
        rests = self.rests(known)
        if not rows and len(rests) < 2:
            return rests[0] if rests else UNKNOWN
        return self.walk.node("keys", tuple(rows), known.more, held, rests)

    def keys_of(self, node: ast.Dict, held: int) -> int:
        """Value of a dict display whose keys are written out; `held` where they are not."""
        if not any(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            return held
        inside = int(self.walk.facts.nodes[held][1]) if self.walk.facts.nodes[held][0] == "dict" else UNKNOWN
        return self.keys(self._from_display(node), inside)

    def keys_in(self, name: str) -> int:
        """Value of a local dict as far as it is known; UNKNOWN if it is not."""
        known = self.walk.frame.dicts.get(name)
        row = self.walk.facts.nodes[self.walk.lookup(name)]
        return UNKNOWN if known is None else self.keys(known, row[3] if row[0] == "keys" else UNKNOWN)

    def strings(self, node: ast.expr) -> list[ast.Constant]:
        """The constants of a list of strings, written out or bound to a name; [] for anything else."""
        if isinstance(node, ast.Name):
            frame: Frame | None = self.walk.frame
            while frame is not None:
                if node.id in frame.strings or node.id in frame.bound:
                    return frame.strings.get(node.id, [])
                frame = frame.parent
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            found = [one for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            return found if len(found) == len(node.elts) else []
        return []

    def known_dict(self, node: ast.expr, *, visit: bool = False) -> KnownDict | None:
        """The content of a mapping that is written out: a display, `dict(...)`, or a local made of these."""
        if isinstance(node, ast.Dict):
            if visit:
                self.expressions.expression(node)
            return self._from_display(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = [self.known_dict(side, visit=visit) for side in (node.left, node.right)]
            return merged(sides) if any(sides) else None
        if visit:
            self.expressions.expression(node)
        if isinstance(node, ast.IfExp):
            test = self.walk.test(node.test) + 1
            arms = []
            for arm, condition in ((node.body, test), (node.orelse, -test)):
                with self.walk.under(condition):
                    arms.append(self.known_dict(arm))
            return either_of(arms) if any(arms) else None
        if isinstance(node, ast.DictComp):
            return self._from_comprehension(node)
        if isinstance(node, ast.Call):
            return self._from_call(node)
        if isinstance(node, ast.Name):
            known = self._local_dict(node.id)
            return known.copy() if known is not None else None
        return None

    def _from_comprehension(self, node: ast.DictComp) -> KnownDict | None:
        """A filtered mapping, or one over names that are written out."""
        # `{key: value for key, value in known.items() if ...}`: each key may be there
        source = node.generators[0].iter
        names = self.strings(source)
        if names and len(node.generators) == 1 and ast.dump(node.key) == _loaded(node.generators[0].target):
            tests = tuple(self.walk.test(test) + 1 for test in node.generators[0].ifs)
            conditions = (*self.walk.conditions, *tests)
            listed = {str(one.value): [DictEntry(one, str(one.value), UNKNOWN, None, conditions)] for one in names}
            return KnownDict(listed)
        if len(node.generators) != 1 or not isinstance(source, ast.Call) or not isinstance(source.func, ast.Attribute):
            return None
        known = self.known_dict(source.func.value) if source.func.attr == "items" else None
        target, key = node.generators[0].target, ast.dump(node.key)
        if known is None or not isinstance(target, ast.Tuple) or _loaded(target.elts[0]) != key:
            return None
        for test in node.generators[0].ifs:
            if not isinstance(test, ast.Compare) or len(test.ops) > 1 or ast.dump(test.left) != key:
                continue
            # `if k in accepted`: what else has the key decides
            inside, other = isinstance(test.ops[0], ast.In | ast.NotIn), test.comparators[0]
            told = [each.value for each in self.strings(other)] if inside else [getattr(other, "value", None)]
            if inside and not told:
                return None
            out = isinstance(test.ops[0], ast.NotIn | ast.NotEq)
            if inside or (isinstance(test.ops[0], ast.Eq | ast.NotEq) and isinstance(other, ast.Constant)):
                for name in [each for each in known.entries if (each in told) is out]:
                    known.drop(name)
        tests = tuple(self.walk.test(test) + 1 for test in node.generators[0].ifs)
        left_out = [literals for test in node.generators[0].ifs for literals in [_never(test, target.elts[1])]]
        for entries in known.entries.values():
            entries[:] = [
                replace(entry, conditions=(*entry.conditions, *tests))
                for entry in entries
                if not any(entry.literal in literals for literals in left_out)
            ]
        return known

    def _local_dict(self, name: str) -> KnownDict | None:
        frame = self.walk.holding(name)
        if name in frame.bound or frame.kind == "module":
            return frame.dicts.get(name)
        # A constant of the module as functions see it: others may have added to it
        known = self.walk.module.dicts.get(name)
        if known is None or self.walk.is_local(name) or len(self.walk.module.history.get(name, ())) != 1:
            return None
        return KnownDict(known.entries, more=True)

    def _from_display(self, node: ast.Dict) -> KnownDict:
        known = KnownDict()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                inner = self.known_dict(value)
                known = merged([known, inner])
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                known.entries[key.value] = [self._entry(key, key.value, value)]
            else:
                known.more = True
        return known

    def _from_call(self, node: ast.Call) -> KnownDict | None:
        """`dict(...)` and what else makes a mapping of names that are written out."""
        match node.func:
            case ast.Name(id="locals") if not node.args and self.walk.frame.kind == "function":
                names = [name for name in self.walk.frame.values if name.isidentifier()]
                here = {name: [DictEntry(node, name, self.walk.lookup(name), None, ())] for name in names}
                return KnownDict(here) if self.walk.is_builtin("locals") else None
            case ast.Attribute(value=inner, attr="copy") if not node.args:
                return self.known_dict(inner)
            case ast.Attribute(value=ast.Name(id="dict"), attr="fromkeys") if node.args:
                listed = self.strings(node.args[0])
                conditions = self.walk.conditions
                found = {str(one.value): [DictEntry(one, str(one.value), UNKNOWN, None, conditions)] for one in listed}
                return KnownDict(found) if found else None
            case ast.Name(id="dict") if self.walk.is_builtin("dict"):
                pass
            case ast.Name() | ast.Attribute() if self.walk.dotted(self.quiet_value(node.func)) in _MAKERS:
                pass
            case _:
                return None
        known = KnownDict()
        for argument in reversed(node.args):  # of a chain the first one wins
            known = merged([known, self._from_pairs(argument) or self.known_dict(argument)])
        for keyword in node.keywords:
            if keyword.arg is None:
                known = merged([known, self.known_dict(keyword.value)])
            else:
                known.entries[keyword.arg] = [self._entry(keyword, keyword.arg, keyword.value)]
        return known

    def _from_pairs(self, node: ast.expr) -> KnownDict | None:
        """`[("key", value)]`, `zip(("key",), values)`."""
        found: dict[str, list[DictEntry]] = {}
        match node:
            case ast.List(elts=pairs) | ast.Tuple(elts=pairs):
                for pair in pairs:
                    match pair:
                        case ast.Tuple(elts=[ast.Constant(value=str() as name) as key, value]):
                            found[name] = [self._entry(key, name, value)]
            case ast.Call(func=ast.Name(id="zip"), args=[names, values]):
                for one in self.strings(names):
                    each = self.walk.iterated(self.quiet_value(values))
                    found[str(one.value)] = [DictEntry(one, str(one.value), each, None, self.walk.conditions)]
        return KnownDict(found) if found else None

    def _entry(self, key: ast.expr | ast.keyword, name: str, value: ast.expr) -> DictEntry:
        return DictEntry(key, name, self.quiet_value(value), self.literal(value), self.walk.conditions)

    def quiet_value(self, node: ast.expr) -> int:
        """Value of something that was visited already: no use is noted twice."""
        if isinstance(node, ast.Dict):
            return self.walk.displays.get(node, UNKNOWN)
        count, later = len(self.walk.facts.uses), len(self.walk.frame.later)
        value = self.expressions.expression(node) if isinstance(node, _VALUED) else 0
        del self.walk.facts.uses[count:]
        del self.walk.frame.later[later:]
        return value

    def dict_changed(self, name: str, entries: Iterable[tuple[ast.expr | ast.keyword, str, ast.expr]]) -> None:
        """Keys of a known dict are set."""
        known = self.walk.frame.dicts.get(name)
        if known is None:
            return
        for key, text, value in entries:
            entry = self._entry(key, text, value)
            before = known.entries.get(text, [])
            conditional = any(one not in self.dict_conditions(name) for one in self.walk.conditions)
            known.entries[text] = [*before, entry] if conditional else [entry]

    def dict_begun(self, name: str) -> None:
        """A local of unknown content gets a key: from now on that much of it is known."""
        value = self.walk.lookup(name)
        if name in self.walk.frame.bound and name not in self.walk.frame.dicts:
            self.walk.frame.dicts[name] = KnownDict(more=True, rests=(value,))
            self.walk.frame.dict_made[name] = self.walk.conditions

    def dict_conditions(self, name: str) -> tuple[int, ...]:
        """Conditions under which a known dict was made: those of its place are no further ones for its keys."""
        return self.walk.frame.dict_made.get(name, ())

    def dict_lost(self, name: str) -> None:
        """A known dict is given to others, who may add to it."""
        known = self._local_dict(name)
        if known is not None:
            known.more = True


def constant_name(node: ast.expr) -> str:
    """Text of a constant string; "" for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _never(test: ast.expr, value: ast.expr) -> tuple[str, ...]:
    """Literals of a mapping's value for which a test on it fails: `if value is not None`, `if value`."""
    text, shown = ast.dump(test), ast.unparse(value)
    if text == ast.dump(ast.parse(f"{shown} is not None", mode="eval").body):
        return ("None",)
    return ("None", "False", "0", "''", '""') if text == ast.dump(ast.parse(shown, mode="eval").body) else ()


def either_of(parts: Sequence[KnownDict | None]) -> KnownDict:
    """One of several mappings; each key carries the conditions of its own."""
    result = KnownDict(more=None in parts)
    for part in parts:
        if part is not None:
            result.more |= part.more
            result.rests, result.dropped = (*result.rests, *part.rests), result.dropped | part.dropped
            for name, entries in part.entries.items():
                result.entries.setdefault(name, []).extend(entries)
    return result


def merged(parts: Sequence[KnownDict | None]) -> KnownDict:
    """Several mappings one after the other; unknown ones may add anything."""
    result = KnownDict()
    for part in parts:
        if part is None:
            result.more = True
        else:
            result.entries.update(part.entries)
            result.more |= part.more
            result.rests, result.dropped = (*result.rests, *part.rests), result.dropped | part.dropped
    return result


def _loaded(target: ast.expr) -> str:
    """Dump of a loop's target as it is when read."""
    return ast.dump(ast.Name(target.id, ast.Load())) if isinstance(target, ast.Name) else ""
