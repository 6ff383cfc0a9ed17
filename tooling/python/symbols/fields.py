"""Classes whose constructor is made from fields: dataclasses, pydantic, attrs, named tuples, typed dicts, enums."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tooling.python.once import once
from tooling.python.operations import UNKNOWN, literal
from tooling.python.source import POSITIONAL, dotted_name, parse_expression, text_of
from tooling.python.symbols.definitions import INITVAR, Where, external
from tooling.python.symbols.modules import candidates
from tooling.python.symbols.symbol import Absent, Found, Parameter, Symbol, SymbolKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.symbols.constants import ConstantReader
    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.members import Members
    from tooling.python.tables import BodyTable, NameBinding

_BY_BASE = {
    "pydantic.BaseModel": "pydantic",
    "pydantic.main.BaseModel": "pydantic",
    "pydantic_settings.BaseSettings": "pydantic",
    "sqlmodel.SQLModel": "pydantic",
    "sqlmodel.main.SQLModel": "pydantic",
    "pydantic.RootModel": "unknown",
    "msgspec.Struct": "struct",
    "typing.NamedTuple": "namedtuple",
    "typing_extensions.NamedTuple": "namedtuple",
    "typing.TypedDict": "typeddict",
    "typing_extensions.TypedDict": "typeddict",
    "enum.Enum": "enum",
    "enum.IntEnum": "enum",
    "enum.StrEnum": "enum",
    "enum.Flag": "enum",
    "enum.IntFlag": "enum",
}
_BY_DECORATOR = {
    "dataclasses.dataclass": "dataclass",
    "pydantic.dataclasses.dataclass": "pydantic-dataclass",
    "torch.utils._pytree.dataclass": "dataclass",
}
_ATTRS = re.compile(r"attrs?\.(s|attrs|define|frozen|mutable|dataclass|attributes)$")
_MADE = re.compile(r"\b(?:pydantic_)?dataclass\(")
_CLASSVAR = re.compile(r"^[\"']?(?:typing\.|t\.)?ClassVar\b")
_BY_NAME = re.compile(r"\b(?:populate_by_name|validate_by_name|allow_population_by_field_name)['\"]?\s*[=:]\s*True\b")
_FROZEN = re.compile(r"\bfrozen['\"]?\s*[=:]\s*True\b|\bfrozen\(")
_CALLS = ("field", "Field", "ib", "attrib", "PrivateAttr")


@dataclass(frozen=True)
class FieldStyle:
    """How a class makes its constructor."""

    name: str
    """"dataclass", "pydantic-dataclass", "pydantic", "struct", "attrs", "namedtuple", "typeddict" or "enum"."""
    keyword_only: bool = False
    init: bool = True
    extra: str = ""
    total: bool = True
    aliases_only: bool = False
    """Of pydantic: whether a field with an alias is known by that alone."""


@dataclass
class _FieldReader:
    """Fields of one class body."""

    style: FieldStyle
    where: Where
    values: ConstantReader
    found: dict[str, Parameter] = field(default_factory=dict)
    keyword_only: bool = False

    def read(self, scope: BodyTable) -> None:
        self.keyword_only = self.style.keyword_only
        for name in scope.annotated:
            binding = next((item for item in scope.bindings.get(name, ()) if item.extra), None)
            if binding is not None:
                self._field(name, binding)
        if self.style.name == "attrs":
            for name, items in scope.bindings.items():
                if (
                    name not in scope.annotated
                    and items[-1].kind == "value"
                    and _calls(items[-1].source, ("ib", "attrib"))
                ):
                    self._field(name, items[-1])

    def _field(self, name: str, binding: NameBinding) -> None:
        annotation = binding.extra
        if annotation.rpartition(".")[2].strip("\"'") == "KW_ONLY":
            self.keyword_only = True
            return
        if _CLASSVAR.match(annotation) or (self.style.name == "pydantic" and name.startswith("_")):
            return
        call = _field_call(binding.source) or _annotated_call(annotation)
        words = {word.arg: word.value for word in call.keywords if word.arg} if call is not None else {}
        if _is(words.get("init"), False):
            self.found.pop(name, None)
            return
        if self.style.name == "pydantic" and binding.source and _calls(binding.source, ("PrivateAttr",)):
            return
        default = self._default(binding, call, words)
        kind = "keyword-only" if self.keyword_only or _is(words.get("kw_only"), True) else "positional"
        if _is(words.get("kw_only"), False):
            kind = "positional"
        shown = INITVAR.sub("", annotation).strip("[]\"'") if INITVAR.match(annotation) else annotation
        aliases = tuple(dict.fromkeys(filter(None, (text_of(words.get(key)) for key in ("alias", "validation_alias")))))
        public = name.lstrip("_") if self.style.name == "attrs" and not aliases else name
        if aliases and (self.style.name == "attrs" or self.style.aliases_only):
            public, aliases = aliases[0], aliases[1:]
        self.found[name] = Parameter(
            public,
            kind,
            default,
            self.values.folded(self.where, default) if default else None,
            shown,
            aliases,
            "deprecated" if _is(words.get("deprecated"), True) else text_of(words.get("deprecated")),
        )

    def _default(self, binding: NameBinding, call: ast.Call | None, words: dict[str, ast.expr]) -> str | None:
        if call is None:
            optional = self.style.name == "typeddict" and (not self.style.total or "NotRequired" in binding.extra)
            return binding.source or ("..." if optional else None)
        if "default" in words:
            return ast.unparse(words["default"])
        factory = words.get("default_factory") or words.get("factory")
        if factory is not None:
            return ast.unparse(factory.body) if isinstance(factory, ast.Lambda) else f"{ast.unparse(factory)}()"
        first = call.args[0] if call.args and dotted_name(call.func).rpartition(".")[2] != "field" else None
        if first is None or (isinstance(first, ast.Constant) and first.value is Ellipsis):
            return None if _field_call(binding.source) is not None or not binding.source else binding.source
        return ast.unparse(first)


class Fields:
    """Finds the style of a class and its fields."""

    def __init__(self, model: Model, members: Members, values: ConstantReader) -> None:
        self.model = model
        self.members = members
        self.values = values

    @once(meanwhile=None)
    def own_style(self, symbol: Symbol) -> FieldStyle | None:
        """Return what a class says of itself, by decorators; None if nothing."""
        located = self.model.definitions.locate(symbol)
        if located is None:
            return None
        where = self.members.around(symbol)
        for source in reversed(located.binding.decorators):
            node = parse_expression(source)
            words = {word.arg: word.value for word in node.keywords if word.arg} if isinstance(node, ast.Call) else {}
            name = self._style_name(where, dotted_name(node.func if isinstance(node, ast.Call) else node))
            if name:
                extra = ""
                if name == "pydantic-dataclass":
                    extra = "forbid" if re.search(r"extra['\"]?\s*[=:]\s*['\"]forbid", source) else "ignore"
                keyword_only = _is(words.get("kw_only"), True)
                return FieldStyle(name, keyword_only, init=not _is(words.get("init"), False), extra=extra)
        return None

    def style(self, symbol: Symbol) -> FieldStyle | None:
        """Return how the constructor is made, by decorators or a base; None if it is written."""
        own = self.own_style(symbol)
        if own is not None:
            return own
        lineage = self.members.lineage(symbol)
        for ancestor in lineage.ancestors[1:]:
            if isinstance(ancestor, str):
                if ancestor in _BY_BASE:
                    name = _BY_BASE[ancestor]
                    scope = self.model.definitions.scope(symbol)
                    keywords = dict(scope.keywords) if scope is not None else {}
                    keyword_only = name in ("pydantic", "typeddict") or keywords.get("kw_only") == "True"
                    extra = self._extra(symbol) if name == "pydantic" else ""
                    total, by_name = keywords.get("total") != "False", name == "pydantic" and self._is_by_name(symbol)
                    return FieldStyle(name, keyword_only, extra=extra, total=total, aliases_only=not by_name)
            else:
                inherited = self._inherited(ancestor)
                if inherited is not None:
                    return inherited
        return None

    def _inherited(self, ancestor: Symbol) -> FieldStyle | None:
        """Find a base that makes dataclasses of its subclasses, in `__init_subclass__` or by `dataclass_transform`."""
        scope = self.model.definitions.scope(ancestor)
        items = scope.bindings.get("__init_subclass__") if scope is not None else None
        located = self.model.definitions.locate(ancestor)
        if items and located is not None:
            facts = self.model.store.function(located.table, items[-1])
            sources = [source for entries in facts.local.values() for kind, source, _ in entries if kind == "value"]
            made = next((source for source in [*sources, *facts.values] if _MADE.search(source)), None)
            if made is not None:
                return FieldStyle("dataclass", "kw_only=True" in made.replace(" ", ""), extra="unknown")
        return None

    def _style_name(self, where: Where, decorator: str) -> str:
        found = self.model.expression(where, decorator) if decorator else None
        if found is None:
            return ""
        outside = external(found)
        if outside:
            return "attrs" if _ATTRS.match(outside) else _BY_DECORATOR.get(outside, "")
        facts = self.model.definitions.facts(found.symbol) if isinstance(found, Found) else None
        if facts is None or not isinstance(found, Found):
            return ""
        located = self.model.definitions.locate(found.symbol)
        assert located is not None, "functions with facts have a place"
        returned = [*facts.values, *(value for _, _, values, *_ in facts.inner.values() for value in values)]
        stored = [source for entries in facts.local.values() for kind, source, _ in entries if kind == "value"]
        made = next((source for source in [*returned, *stored] if _MADE.search(source)), None)
        if made is None:
            transforms = any("dataclass_transform" in source for source in located.binding.decorators)
            return "dataclass" if transforms else ""
        return self._style_name(Where(located.table), dotted_name(_callee(made))) or "dataclass"

    def parameters(self, symbol: Symbol, style: FieldStyle) -> list[Parameter]:
        """Fields of a class and its bases, as parameters of its constructor."""
        found: dict[str, Parameter] = {}
        for ancestor in reversed(self.members.lineage(symbol).classes):
            scope = self.model.definitions.scope(ancestor)
            located = self.model.definitions.locate(ancestor)
            own = self.own_style(ancestor) or (style if style.name not in ("dataclass", "attrs") else None)
            own = own or (self.style(ancestor) if style.extra == "unknown" else None)
            if scope is None or located is None or own is None:
                continue
            own = replace(own, total=dict(scope.keywords).get("total") != "False")
            reader = _FieldReader(own, Where(located.table, located.classes), self.values)
            reader.found = found
            reader.read(scope)
        return sorted(found.values(), key=lambda parameter: parameter.kind == "keyword-only")

    def _extra(self, symbol: Symbol) -> str:
        """Return what pydantic does with unknown keywords."""
        for ancestor in self.members.lineage(symbol).classes:
            scope = self.model.definitions.scope(ancestor)
            for source in self._configurations(ancestor) if scope is not None else ():
                match = re.search(r"extra['\"]?\s*[=:]\s*(?:['\"]|Extra\.)(\w+)", source)
                if match:
                    return match[1]
            if scope is not None and "extra" in dict(scope.keywords):
                return dict(scope.keywords)["extra"].strip("\"'")
        return "ignore"

    def _is_by_name(self, symbol: Symbol) -> bool:
        """Whether pydantic takes fields with an alias by their names too; yes where the configuration is not known."""
        lineage = self.members.lineage(symbol)
        found = [each for ancestor in lineage.classes for each in self._configurations(ancestor)]
        known = all(each.startswith(("ConfigDict(", "{", "pydantic.ConfigDict(")) or "=" in each for each in found)
        return not known or any(_BY_NAME.search(each) for each in found)

    def _configurations(self, symbol: Symbol) -> Iterator[str]:
        scope = self.model.definitions.scope(symbol)
        located = self.model.definitions.locate(symbol)
        if scope is None or located is None:
            return
        for binding in scope.bindings.get("model_config", ()):
            yield binding.source
        for binding in scope.bindings.get("Config", ()):
            if binding.kind == "class":
                for name in ("extra", "frozen", "populate_by_name", "allow_population_by_field_name"):
                    for inner in candidates(located.table.classes[binding.line].bindings.get(name, ())):
                        yield f"{name}={inner.source}"

    def has_members(self, symbol: Symbol) -> bool:
        """Whether a class is an enumeration with members."""
        values = self.member_values(symbol)
        return values is None or bool(values)

    def member_values(self, symbol: Symbol) -> list[object] | None:
        """Values of the members of an enumeration, [] for other classes; None if they are not literal."""
        style = self.style(symbol) if symbol.kind is SymbolKind.CLASS else None
        scope = self.model.definitions.scope(symbol)
        if style is None or style.name != "enum" or scope is None:
            return []
        names = [name for name, items in scope.bindings.items() if items[-1].kind == "value" and name[:1] != "_"]
        found = [self.members.member(symbol, name) for name in names]
        values = [literal(each.symbol.value) for each in found if isinstance(each, Found)]
        return None if UNKNOWN in values or len(values) < len(names) else values

    def is_frozen(self, symbol: Symbol) -> bool:
        """Whether a class says itself that nothing of its instances can be set."""
        located = self.model.definitions.locate(symbol)
        scope = self.model.definitions.scope(symbol)
        style = self.style(symbol)
        if located is None or scope is None or style is None:
            return False
        sources = [f"frozen={value}" for word, value in scope.keywords if word == "frozen"]
        if style.name == "pydantic":
            sources += self._configurations(symbol)
        elif self.own_style(symbol) is not None:
            sources += [each if "(" in each else f"{each}()" for each in located.binding.decorators]
        return any(_FROZEN.search(each) for each in sources)

    def names(self, symbol: Symbol) -> list[str] | None:
        """Names of the fields of a named tuple or typed dict; None for other classes."""
        style = self.style(symbol)
        if style is None or style.name not in ("namedtuple", "typeddict"):
            return None
        return [parameter.name for parameter in self.parameters(symbol, style)]

    def places(self, symbol: Symbol) -> int | None:
        """How many patterns by position a class takes: `case Point(0, y)`; None if that is not known."""
        written = self.members.member(symbol, "__match_args__")
        if isinstance(written, Found):
            value = literal(written.symbol.value)
            return len(value) if isinstance(value, tuple) else None
        style = self.style(symbol)
        if style is None:
            return 0 if isinstance(written, Absent) else None
        return sum(each.kind in POSITIONAL for each in self.parameters(symbol, style))

    def is_field(self, symbol: Symbol, name: str) -> Parameter | None:
        """Return the field of that name."""
        style = self.style(symbol) if symbol.kind is SymbolKind.CLASS else None
        if style is None:
            return None
        return next((item for item in self.parameters(symbol, style) if name in (item.name, *item.aliases)), None)


def _callee(source: str) -> ast.expr | None:
    node = parse_expression(source)
    return node.func if isinstance(node, ast.Call) else node


def _calls(source: str, names: tuple[str, ...]) -> bool:
    return dotted_name(_callee(source) if "(" in source else None).rpartition(".")[2] in names


def _field_call(source: str) -> ast.Call | None:
    node = parse_expression(source) if "(" in source else None
    if isinstance(node, ast.Call) and dotted_name(node.func).rpartition(".")[2] in _CALLS:
        return node
    return None


def _annotated_call(annotation: str) -> ast.Call | None:
    """`Field(...)` in `Annotated[T, Field(...)]`."""
    if not annotation.lstrip("\"'").startswith(("Annotated[", "typing.Annotated[")):
        return None
    node = parse_expression(annotation)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        for part in node.slice.elts[1:]:
            if isinstance(part, ast.Call) and dotted_name(part.func).rpartition(".")[2] in _CALLS:
                return part
    return None


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
