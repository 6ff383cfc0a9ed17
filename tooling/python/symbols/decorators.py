"""Whether a decorator leaves the signature of what it is put on, and which keywords it takes out of calls."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.functions import of_decorator, renamed_parameter
from tooling.python.once import once
from tooling.python.source import dotted_name, parse_expression
from tooling.python.symbols.definitions import Where, external
from tooling.python.symbols.symbol import Found, SymbolKind

if TYPE_CHECKING:
    from tooling.python.symbols.definitions import Model
    from tooling.python.symbols.symbol import Symbol
    from tooling.python.tables import FunctionTable

MAX_DEPTH = 4
KEEPERS = re.compile(
    r"(functools\.(lru_cache|cache|wraps|cached_property|singledispatch|total_ordering|singledispatchmethod)"
    r"|contextlib\.(contextmanager|asynccontextmanager)|abc\.abstract\w+|atexit\.register"
    r"|builtins\.(staticmethod|classmethod|property)|enum\.(unique|property|verify|member|nonmember)"
    r"|(typing|typing_extensions)\.(overload|final|override|no_type_check|runtime_checkable|runtime|dataclass_transform)"
    r"|(typing_extensions|warnings)\.deprecated|dataclasses\.dataclass|pydantic\.(dataclasses\.dataclass|\w*valid\w*)"
    r"|pydantic\.(computed_field|field_serializer|model_serializer|root_validator|validator)"
    r"|attr(s)?\.(s|attrs|define|frozen|mutable|dataclass)|dataclasses_json\.dataclass_json"
    r"|torch\.(no_grad|inference_mode|enable_grad|compile|jit\.\w+|compiler\.\w+|_dynamo\.\w+|library\.\w+|fx\.wrap)"
    r"|triton\.(jit|autotune|heuristics)(\.jit)?|numba\.n?jit|staticmethod|classmethod|property"
    r"|huggingface_hub\.utils\.validate_hf_hub_args|tenacity\.retry|typeguard\.typechecked|asyncio\.coroutine"
    r"|gradio_client\.documentation\.document"
    r"|jax\.jit|numpy\.vectorize|pytest\.\w+(\.\w+)?|click\.\w+)"
)
"""Of other distributions: what is documented to hand back a callable that takes the same arguments."""
_UNTELLING = frozenset(["", "Callable", "Any", "type", "object", "Callable[..., Any]", "Type", "typing.Callable"])
_FACTORY = re.compile(r"(?:typing\.)?Callable\[\[(.+)\],\s*\1\]$", re.DOTALL)
_ZIPPED = re.compile(r"\bzip\([^\n]*,\s*args\b")
_THROUGH = ("self", "cls")


class Decorators:
    """Judges decorators by their own text."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def keeps(self, where: Where, source: str) -> bool:
        """Whether what `@source` gives is called like what it is put on."""
        node = parse_expression(source)
        if node is None:
            return False
        if of_decorator(node) is not None or renamed_parameter(node) is not None:
            return True
        name = dotted_name(node.func if isinstance(node, ast.Call) else node)
        if name.endswith((".setter", ".getter", ".deleter", ".register")):
            return True
        found = self.model.expression(where, name) if name else None
        if found is None:
            return False
        outside = external(found)
        if outside:
            return KEEPERS.fullmatch(outside) is not None
        if not isinstance(found, Found) or (found.symbol.kind is SymbolKind.CLASS and not isinstance(node, ast.Call)):
            return False  # `@Counted` makes an object of the function
        return self._keeps(found.symbol)

    def _keeps(self, symbol: Symbol) -> bool:
        """Tell the same of the function that a decorator is; an instance of a class is called: `@Appender("more")`."""
        if symbol.kind is SymbolKind.CLASS:
            called = self.model.member(symbol, "__call__")
            return isinstance(called, Found) and bool(called.symbol.file) and self._keeps(called.symbol)
        if symbol.kind is SymbolKind.VALUE:  # `final = lambda f: f`
            value = parse_expression(symbol.value)
            given = value.args.args[:1] if isinstance(value, ast.Lambda) else []
            return isinstance(value, ast.Lambda) and [each.arg for each in given] == [dotted_name(value.body)]
        return self._judge(symbol)

    @once(meanwhile=True)  # decorators that refer to each other
    def _judge(self, symbol: Symbol) -> bool:
        facts = self.model.definitions.facts(symbol)
        located = self.model.definitions.locate(symbol)
        if facts is None or located is None or symbol.kind is not SymbolKind.FUNCTION:
            return False
        # `def decorator(f: F) -> F`, `def factory(...) -> Callable[[F], F]`
        returns = " ".join(facts.returns.strip("\"'").split())
        own = int(symbol.binding in ("method", "classmethod"))  # `__call__(self, function)`
        first = " ".join(facts.parameters[own][3].strip("\"'").split()) if facts.parameters[own:] else ""
        if (first == returns and returns not in _UNTELLING) or _FACTORY.match(returns) is not None:
            return True
        judge = _Judge(self, Where(located.table), facts)
        return judge.returns_keep([name for name, *_ in facts.parameters[own:]], facts.values, depth=0)

    def names_positions(self, where: Where, source: str) -> bool:
        """Whether what a decorator puts in place passes on by keyword what it is given by position, so that
        `def f(*, x, y)` takes `f(1, 2)`: `kwargs.update(zip(signature(f).parameters, args))`."""
        found = self.model.expression(where, source.partition("(")[0])
        located = self.model.definitions.locate(found.symbol) if isinstance(found, Found) else None
        if located is None or located.binding.kind != "def":
            return False
        text = self.model.store.block(located.table.path, located.binding.start, located.binding.end)
        return bool(_ZIPPED.search(text)) and re.search(r"\bkwargs\.update\(", text) is not None

    def taken_keywords(self, where: Where, source: str) -> set[str]:
        """Keywords that the function which a decorator puts in place names or reads itself."""
        node = parse_expression(source)
        name = dotted_name(node.func if isinstance(node, ast.Call) else node)
        found = self.model.expression(where, name) if name else None
        facts = self.model.definitions.facts(found.symbol) if isinstance(found, Found) else None
        if facts is None:
            return set()
        named = {name for parameters, *_ in facts.inner.values() for name, *_ in parameters}
        return named | {word for *_, reads in facts.inner.values() for word in reads}


class _Judge:
    """Looks at what one decorator returns."""

    def __init__(self, decorators: Decorators, where: Where, facts: FunctionTable) -> None:
        self.decorators = decorators
        self.where = where
        self.facts = facts

    def returns_keep(self, parameters: list[str], values: list[str], *, depth: int) -> bool:
        """Whether all returned values are called like the first parameter."""
        told = [self._value(source, parameters, depth) for source in values]
        said = [answer for answer in told if answer is not None]
        return bool(said) and all(said)

    def _value(self, source: str, parameters: list[str], depth: int) -> bool | None:
        """None: says nothing either way."""
        node = parse_expression(source) if source else None
        if node is None or depth > MAX_DEPTH:
            return False
        if isinstance(node, ast.Name):
            return self._named(node.id, parameters, depth)
        if isinstance(node, ast.Call):
            return self._called(node, parameters, depth)
        if isinstance(node, ast.IfExp):
            parts = [self._value(ast.unparse(part), parameters, depth) for part in (node.body, node.orelse)]
            return all(part is not False for part in parts)
        return isinstance(node, ast.Lambda) and bool(node.args.vararg and node.args.kwarg and not node.args.args)

    def _named(self, name: str, parameters: list[str], depth: int) -> bool:
        if name in self.facts.inner:
            inner, decorated, values, *_ = self.facts.inner[name]
            kinds = {kind for _, kind, _, _ in inner}
            named = [parameter for parameter, kind, _, _ in inner if kind not in ("star", "double-star")]
            # `(*args, **kwargs)`, with `self` before it perhaps
            through = {"star", "double-star"} <= kinds and all(each in _THROUGH for each in named)
            if through or any("wraps" in decorator for decorator in decorated):
                return True
            return self.returns_keep([parameter for parameter, *_ in inner], values, depth=depth + 1)
        if name in parameters:
            return True
        stored = [source for kind, source, _ in self.facts.local.get(name, ()) if kind == "value"]
        return bool(stored) and all(self._value(source, parameters, depth + 1) is not False for source in stored)

    def _called(self, node: ast.Call, parameters: list[str], depth: int) -> bool | None:
        name = dotted_name(node.func)
        if isinstance(node.func, ast.Call) and "wraps" in dotted_name(node.func.func):
            return True
        last = name.rpartition(".")[2]
        if last == "partial":
            return None
        if last in ("update_wrapper", "wraps", "cast", "_copy_docstring", "setattr"):
            return True
        arguments = [part.id for part in node.args if isinstance(part, ast.Name)]
        if name in self.facts.inner:
            return self._named(name, parameters, depth)
        if set(arguments) & set(parameters) and name:
            return self.decorators.keeps(self.where, name)
        if isinstance(node.func, ast.Call) and arguments:
            return self.decorators.keeps(self.where, ast.unparse(node.func))
        return False
