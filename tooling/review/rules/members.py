"""Names inside one file, and classes with their bases: what is bound nowhere, attributes that nobody sets or sets any
more, methods called wrongly, or of another kind than those of the base."""

from __future__ import annotations

import ast
import builtins
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, names_in, nodes_in, own_nodes, parameters
from tooling.python.symbols.calls import why_refused, written_signature
from tooling.review.records import Place, Rule, Severity
from tooling.review.rules.readings import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

_ALWAYS = frozenset(dir(builtins)) | {
    "WindowsError",
    "__annotations__",
    "__builtins__",
    "__class__",
    "__file__",
    "__path__",
    "display",
    "get_ipython",
    "reveal_type",
}
_OBJECT = frozenset(dir(object)) | {"__dict__", "__name__", "__qualname__", "__slots__"}
_SETS: Final = ("torch.utils.data.Dataset", "torch.utils.data.IterableDataset")
_PLAIN: Final = ("object", "ABC", "abc.ABC", "Generic", "typing.Generic", "typing.Protocol", *_SETS)
_OF_MODULES: Final = words("""
    T_destination _apply _buffers _call_impl _forward_hooks _get_name _load_from_state_dict _modules _named_members
    _parameters _register_load_state_dict_pre_hook _register_state_dict_hook _save_to_state_dict _version add_module
    apply bfloat16 buffers children compile cpu cuda double eval extra_repr float forward get_buffer get_extra_state
    get_parameter get_submodule half load_state_dict modules named_buffers named_children named_modules
    named_parameters parameters register_backward_hook register_buffer register_forward_hook
    register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule
    share_memory state_dict to to_empty train training type xpu zero_grad
""")
_OF_MODELS: Final = words("""
    construct copy dict fields from_orm json model_computed_fields model_config model_construct model_copy
    model_dump model_dump_json model_extra model_fields model_fields_set model_json_schema model_post_init
    model_rebuild model_validate model_validate_json model_validate_strings parse_file parse_obj parse_raw schema
    schema_json update_forward_refs validate
""")
FOREIGN: Final[dict[str, frozenset[str]]] = {
    **{name: frozenset(dir(kind)) - _OBJECT for name, kind in vars(builtins).items() if type(kind) is type},
    **dict.fromkeys(_PLAIN, frozenset()),
    "type": frozenset({"__getattr__"}),
    "pydantic.BaseModel": _OF_MODELS,
    "torch.nn.Module": _OF_MODULES,
}
"""What classes of other packages, and of Python, have that ours are built on. Others may have anything."""
_HARMLESS = frozenset({"dataclass", "dataclasses.dataclass", "final", "ray.remote"})
"""Decorators after which a class has the attributes that are written down in it."""


_SCOPES: Final = (Function, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _reads(module: Module) -> Iterator[tuple[ast.Name, list[ast.AST]]]:
    """Yield every name that is read, but for builtins, with what binds it where it stands."""
    bound = {name: list(nodes) for name, nodes in module.bindings.items()}
    named: list[tuple[str | None, ast.AST]] = [(each.arg, each) for each in module.nodes(ast.arg)]
    named += [(each.name, each) for each in module.nodes(ast.ExceptHandler)]
    named += [(each.name, each) for each in module.nodes(ast.MatchAs)]
    named += [(each.name, each) for each in module.nodes(ast.MatchStar)]
    named += [(each.rest, each) for each in module.nodes(ast.MatchMapping)]
    for name, binder in named:
        bound.setdefault(name or "", []).append(binder)
    scopes: dict[str, list[tuple[ast.AST, ast.AST | None]]] = {}
    for name, binders in bound.items():
        for binder in binders:
            # `(x := 1)` in a comprehension binds in the function around it.
            kinds = _SCOPES[:2] if isinstance(module.parents.get(binder), ast.NamedExpr) else _SCOPES
            scope = next((each for each in module.around(binder) if isinstance(each, kinds)), None)
            scopes.setdefault(name, []).append((binder, scope))
    for said in module.nodes(ast.Global):
        for name in said.names:
            scopes.setdefault(name, []).append((said, None))
    for node in module.nodes(ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in _ALWAYS:
            around = set(module.around(node))
            yield node, [binder for binder, scope in scopes.get(node.id, ()) if scope is None or scope in around]


def undefined_name(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a name that nothing binds where it is read: not the file, and no function around."""
    if any(alias.name == "*" for node in module.nodes(ast.ImportFrom) for alias in node.names):
        return
    if "globals()" in module.text or "exec(" in module.text:
        return
    seen: set[str] = set()
    for node, binders in _reads(module):
        expected = node.id in seen or _is_annotation(module, node) or _is_caught(module, node, "NameError")
        if not binders and not expected:
            seen.add(node.id)
            where = "no function around this line" if node.id in module.bindings else "nothing in this file"
            yield node, f"{where} defines `{node.id}`"


def _is_annotation(module: Module, node: ast.Name) -> bool:
    """Annotations are seldom evaluated, and type parameters of Python 3.12 were taken out before parsing."""
    child: ast.AST = node
    for parent in module.around(node):
        if isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is child:
            return True
        if isinstance(parent, Function) and parent.returns is child:
            return True
        if isinstance(parent, ast.ClassDef) and child in parent.bases and isinstance(child, ast.Subscript):
            return True
        child = parent
    return False


def _is_caught(module: Module, node: ast.AST, error: str) -> bool:
    """Tell whether an error is expected there: `try: unicode except NameError: ...`"""
    tries = (each for each in module.around(node) if isinstance(each, ast.Try))
    return any(error in ast.unparse(handler.type) for each in tries for handler in each.handlers if handler.type)


def main_only_name(module: Module, side: Side) -> Iterator[Hit]:
    """Find a name that only `if __name__ == "__main__":` binds, in a function of a module that others import."""
    for node in _bound_below(module, r".*__main__.*"):
        if module.function_of(node) is not None and _is_imported(side, module):
            yield node, f"`{node.id}` exists only when this file is run as a program"


def type_only_name(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a name that only `if TYPE_CHECKING:` imports, in code that is run."""
    for node in _bound_below(module, r"(\w+\.)?TYPE_CHECKING"):
        tests = (each.test for each in module.around(node) if isinstance(each, ast.If))
        if not _is_caught(module, node, "NameError") and "TYPE_CHECKING" not in map(last_name, tests):
            yield node, f"`{node.id}` is imported for type checkers only"


def optional_in_annotation(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a name of a package that may be missing in an annotation that Python evaluates to define a function."""
    late = module.imported.get("annotations") == "__future__.annotations"
    for node in _bound_below(module, _OPTIONAL, annotations=True) if not late else ():
        yield node, f"`{node.id}` may not be there, and the annotation is evaluated"


_OPTIONAL: Final = (
    r"\w*is_\w+_available\(.*\)|\w*HAS_\w+|\w+_AVAILABLE|except .*(Import|ModuleNotFound)Error.*|LazyImport.*"
)


def _bound_below(module: Module, condition: str, *, annotations: bool = False) -> list[ast.Name]:
    """Return the first read of each name that is bound only where a condition of the top level holds; or, if asked, in
    an annotation that is evaluated."""
    inside: set[ast.AST] = set()
    for node in module.tree.body:
        asked = ast.unparse(node.test) if isinstance(node, ast.If) else ""
        ends = [each.body[-1] for each in node.handlers] if isinstance(node, ast.Try) else []
        calls = [each.value for each in ends if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
        # A function that is made to explain what is missing raises the error itself.
        raised = any(isinstance(each, ast.Raise) for each in ends)
        if isinstance(node, ast.Try) and not raised and all(_TELLS.fullmatch(last_name(each.func)) for each in calls):
            asked = "".join(f"except {ast.unparse(each.type)}" for each in node.handlers if each.type is not None)
        elif isinstance(node, ast.With):
            asked = ast.unparse(node.items[0])
        if isinstance(node, ast.If | ast.Try | ast.With) and re.fullmatch(condition, asked):
            inside |= {part for each in node.body for part in ast.walk(each)}
    reads: dict[str, ast.Name] = {}
    for name, binders in _reads(module) if inside else ():
        wanted = _is_annotation(module, name) is annotations and (not annotations or _is_evaluated(module, name))
        if wanted and name not in inside and binders and inside.issuperset(binders):
            reads.setdefault(name.id, name)
    return sorted(reads.values(), key=lambda node: node.lineno)


_TELLS: Final = re.compile(r"debug|error|exception|info|log|print|warn(?:ing)?(?:_once)?")


def _is_evaluated(module: Module, node: ast.AST) -> bool:
    """Whether an annotation is one of a class, or of a function that is always defined when the file is loaded."""
    function = module.function_of(node)
    body = function.body if isinstance(function, Function) else []
    outer = module.function_of(function) if function is not None else None
    return outer is None and not any(each in body or isinstance(each, ast.If | ast.Try) for each in module.around(node))


def _is_imported(side: Side, module: Module) -> bool:
    """Whether another file imports from the module."""
    for path in side.grep([module.package.rpartition(".")[2]], "*.py"):
        other = side.module(path) if path != module.path else None
        for name in other.imported.values() if other is not None else ():
            if f"{name}.".startswith(f"{module.package}."):
                return True
    return False


def unknown_self(module: Module, side: Side) -> Iterator[Hit]:
    """`self.name` in a class that, with all its bases, has no such thing."""
    for owner in module.nodes(ast.ClassDef):
        methods = [each for each in owner.body if isinstance(each, Function) and _takes_self(each)]
        walked = (node for method in methods for node in ast.walk(method))
        reads = [node for node in walked if isinstance(node, ast.Attribute) and is_self_read(node)]
        # `self` of a class that a method makes is another object.
        reads = [
            each for each in reads if next(one for one in module.around(each) if isinstance(one, ast.ClassDef)) is owner
        ]
        names = members_of(side, module, owner) if reads else None
        missing = [node for node in reads if names is not None and node.attr not in names]
        # Who takes many things from nowhere is mixed into a class of another package.
        if len({node.attr for node in missing}) >= MOST_UNKNOWN or owner.name.endswith(("Extension", "Mixin")):
            continue
        if missing and not _is_extended(side, owner.name):
            for node in missing:
                if not _asked_for(module, node):
                    yield node, f"`{owner.name}` sets no `self.{node.attr}`, and no base of it does"


MOST_UNKNOWN = 3
"""Unknown attributes from which a class is taken for a mixin."""


def _takes_self(method: Function) -> bool:
    static = any(last_name(each) in {"staticmethod", "classmethod"} for each in method.decorator_list)
    first = method.args.args[0] if method.args.args and not static else None
    # `self: Any` says that it is an object of another class.
    return first is not None and first.arg == "self" and first.annotation is None


def is_self_read(node: ast.AST) -> bool:
    """Whether a node reads an attribute of self."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return False
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def members_of(side: Side, module: Module, owner: ast.ClassDef) -> set[str] | None:
    """Return everything that the class and its bases may have; None where that is not certain."""
    classes, foreign = side.lineage(module, owner)
    if not FOREIGN.keys() >= set(foreign):
        return None
    names = set[str]().union(*(FOREIGN[each] for each in foreign))
    for home, each in classes:
        decorators = {ast.unparse(decorator).partition("(")[0] for decorator in each.decorator_list}
        if each.keywords or decorators - _HARMLESS:
            return None
        for node in ast.walk(each):
            # Attributes come from elsewhere: `setattr(self, ...)`, `self.__dict__.update(...)`, `vars(self)`.
            if isinstance(node, ast.Name) and node.id in {"setattr", "vars"}:
                return None
            if isinstance(node, ast.Attribute) and node.attr in {"__dict__", "add_module", "register_module"}:
                return None
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.ImportFrom | ast.Import):
                names |= {alias.asname or alias.name for alias in node.names}
        # Somebody else in the file may set it: `engine.version = 1`.
        names |= {node.attr for node in home.nodes(ast.Attribute) if isinstance(node.ctx, ast.Store)}
    return None if {"__getattr__", "__getattribute__", "__setattr__"} & names else names | _OBJECT


def subclasses(side: Side, name: str) -> Iterator[tuple[Module, ast.ClassDef]]:
    """Yield the classes of the repository that build on a class of that name, directly or through others, each with its
    module."""
    seen, waiting = {name}, [name]
    while waiting:
        base = waiting.pop()
        direct: list[tuple[Module, ast.ClassDef]] | None = side.known.get(("subclasses", base))
        if direct is None:
            modules = (module for path in side.grep([base], "*.py") if (module := side.module(path)) is not None)
            direct = [
                (module, node)
                for module in modules
                for node in module.nodes(ast.ClassDef)
                if base in {last_name(each.value if isinstance(each, ast.Subscript) else each) for each in node.bases}
            ]
            side.known["subclasses", base] = direct
        for module, node in direct:
            yield module, node
            waiting += {node.name} - seen
            seen.add(node.name)


def _is_extended(side: Side, name: str) -> bool:
    """Whether another class builds on it: a mixin takes from the classes that it is mixed into."""
    for path in side.grep([name], "*.py"):
        module = side.module(path)
        for node in module.nodes(ast.ClassDef) if module is not None else ():
            bases = nodes_in(node.bases, ast.expr)
            if name in map(last_name, bases):
                return True
        # `worker_extension_cls="package.module.Name"` mixes it into a class of another package.
        if module is not None and re.search(rf"setattr\({name}|[.:]{name}[\"']", module.text):
            return True
    return False


def _asked_for(module: Module, node: ast.Attribute) -> bool:
    """Tell whether the name occurs as text (`hasattr(self, "name")`), or its absence is expected."""
    if any(each.value == node.attr for each in module.nodes(ast.Constant)):
        return True
    return _is_caught(module, node, "AttributeError")


def handed_on(call: ast.Call) -> ast.Call:
    """Return the call that another thread, process or loop makes with what it is handed: `f(1)` of
    `Thread(target=f, args=(1,))`, `pool.submit(f, 1)` and `asyncio.to_thread(f, 1)`; every other call as it is."""
    name, named = last_name(call.func), {each.arg: each.value for each in call.keywords}
    at, given = _HANDS.get(name, 0), call.args
    passed: ast.expr | None
    words: ast.expr | None
    if name == "partial" and given:
        return ast.copy_location(ast.Call(given[0], given[1:], call.keywords), call)
    if name in _STARTS and "target" in named:
        function, passed, words = named["target"], named.get("args"), named.get("kwargs")
    elif name == "apply_async" and given:
        function, passed, words = given[0], next(iter(given[1:]), None), next(iter(given[2:]), None)
    elif name in _HANDS and len(given) > at and (name != "submit" or _POOLS.search(ast.unparse(call.func))):
        function, passed, words = given[at], ast.Tuple(given[at + 1 :]), None
    else:
        return call
    own = call.keywords if name in {"submit", "to_thread"} else []
    args: list[ast.expr] = [ast.Starred(passed)] if passed is not None else []
    args = passed.elts if isinstance(passed, ast.Tuple | ast.List) else args
    if words is not None:
        items = zip(words.keys, words.values, strict=True) if isinstance(words, ast.Dict) else ()
        own = [ast.keyword(str(key.value), value) for key, value in items if isinstance(key, ast.Constant)]
        own += [ast.keyword(None, words)] if not own else []
    return ast.copy_location(ast.Call(function, args, own), call)


_STARTS: Final = frozenset({"Process", "Thread"})
_HANDS: Final = {"call_later": 1, "run_in_executor": 1} | dict.fromkeys(
    ["call_soon", "call_soon_threadsafe", "submit", "to_thread"], 0
)
"""Names of functions that call another one, and where in their arguments it stands."""
_POOLS: Final = re.compile(r"exec|pool", re.IGNORECASE)
"""What a function is submitted to, unlike forms and jobs."""


def method_mismatch(module: Module, _side: Side) -> Iterator[Hit]:
    """`self.method(...)` that the method of the same class refuses."""
    for owner in module.nodes(ast.ClassDef):
        made: dict[str, list[Function]] = {}
        for each in owner.body:
            if isinstance(each, Function):
                made.setdefault(each.name, []).append(each)
        attributes = nodes_in(owner, ast.Attribute) if made else ()
        stored = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        for method in (each for found in made.values() for each in found if _takes_self(each)):
            for written in own_nodes(method, ast.Call):
                node, partial = handed_on(written), last_name(written.func) == "partial"
                if not is_self_read(node.func):
                    continue
                target = made.get(last_name(node.func), [])
                body = target[0].body if len(target) == 1 else []
                stub = all(isinstance(each, ast.Pass | ast.Raise | ast.Expr) for each in body)
                plain = not stub and not target[0].decorator_list
                taken = written_signature(target[0].args, bound=True) if plain else None
                problem = why_refused(taken, node, partial=partial) if taken is not None else ""
                # `self.step = jit(self.step)` sets an attribute of the same name.
                if problem and last_name(node.func) not in stored:
                    evidence = f"{module.path}:{target[0].lineno}"
                    yield node, f"`{ast.unparse(node.func)}(...)`: {problem}", evidence


def no_longer_set(comparison: Comparison) -> Iterator[Place]:
    """Find `self.name` in a class that set it before the change, and does not now."""
    for file, before, after in comparison.modified():
        old = {each.name: each for each in before.nodes(ast.ClassDef)}
        for owner in after.nodes(ast.ClassDef):
            gone = _set_by(old[owner.name]) - _set_by(owner) if owner.name in old else set()
            # A base that cannot be read may set it.
            members = members_of(comparison.head, after, owner) if gone else None
            if members is None:
                continue
            reads = {each.attr: each for each in nodes_in(owner, ast.Attribute) if is_self_read(each)}
            for name in sorted(gone.intersection(reads) - members):
                asked = name.startswith("__") or any(each.value == name for each in after.nodes(ast.Constant))
                if not asked and not _set_below(comparison, owner, name):
                    said = f"`{owner.name}` set `self.{name}` before this change, and does not now"
                    yield Place(file.path, reads[name].lineno, said)


def _set_by(owner: ast.ClassDef) -> set[str]:
    """Return the names that a class binds anywhere in its body, or sets on self."""
    stored = [each for each in nodes_in(owner, ast.Attribute) if isinstance(each.ctx, ast.Store)]
    names = {each.attr for each in stored if last_name(each.value) == "self"}
    for node in own_nodes(owner):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
    return names


def inherited(side: Side, module: Module, owner: ast.ClassDef, name: str) -> bool:
    """Whether a base of ours sets a name; bases that cannot be read count for nothing."""
    return any(name in _set_by(each) for _, each in side.lineage(module, owner)[0][1:])


def _set_below(comparison: Comparison, owner: ast.ClassDef, name: str) -> bool:
    """Whether a class that builds on this one, or anybody from outside, sets the name."""
    if any(name in _set_by(each) for _, each in subclasses(comparison.head, owner.name)):
        return True
    for path in comparison.head.grep([name], "*.py"):
        module = comparison.head.module(path)
        stores = (each for each in (module.nodes(ast.Attribute) if module is not None else ()) if each.attr == name)
        if any(isinstance(each.ctx, ast.Store) and last_name(each.value) != "self" for each in stores):
            return True
    return False


def parameter_ignored(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a method that leaves a parameter out which the same method of all its siblings in the file uses."""
    alike: dict[tuple[str, str], list[tuple[ast.ClassDef, Function]]] = {}
    for owner in module.nodes(ast.ClassDef):
        for method in (each for each in owner.body if isinstance(each, Function) and not each.name.startswith("__")):
            long = any(not isinstance(each, ast.Pass | ast.Raise | ast.Return) for each in method.body[1:])
            for base in owner.bases if long else ():
                alike.setdefault((ast.unparse(base), method.name), []).append((owner, method))
    for (_, name), methods in alike.items():
        used = {method: names_in(method) for _, method in methods}
        for parameter in sorted({each.arg for each in methods[0][1].args.args} - {"self", "cls"}):
            taking = [(owner, each) for owner, each in methods if parameter in parameters(each)]
            idle = [(owner, each) for owner, each in taking if not {parameter, "locals", "super"} & used[each]]
            if len(idle) == 1 and len(taking) > _SIBLINGS and not parameter.startswith("_"):
                said = f"`{idle[0][0].name}.{name}` ignores `{parameter}`, which {len(taking) - 1} siblings use"
                yield idle[0][1], said


def sync_override(module: Module, side: Side) -> Iterator[Hit]:
    """Find a plain method in place of a coroutine of its base, which callers await."""
    for owner in module.nodes(ast.ClassDef):
        for method in owner.body:
            if not isinstance(method, ast.FunctionDef) or method.decorator_list:
                continue
            above = _overridden(side, module, owner, method.name)
            inside = own_nodes(method) if isinstance(above, ast.AsyncFunctionDef) else []
            given = [each.value for each in inside if isinstance(each, ast.Return) and each.value is not None]
            # What a call returns may be awaited too, and so may what a table holds.
            parts = (part for each in given for part in ast.walk(each))
            plain = not any(isinstance(each, ast.Call | ast.Name | ast.Attribute) for each in parts)
            if inside and plain and not any(isinstance(each, ast.Yield | ast.YieldFrom | ast.Raise) for each in inside):
                yield method, f"`{owner.name}.{method.name}` is not a coroutine; that of its base is one"


def _overridden(side: Side, module: Module, owner: ast.ClassDef, name: str) -> Function | None:
    """Return the method of the nearest base of ours that a method replaces."""
    for _, base in side.lineage(module, owner)[0][1:]:
        found = [each for each in base.body if isinstance(each, Function) and each.name == name]
        if found:
            return found[-1] if not any(last_name(each) == "property" for each in found[-1].decorator_list) else None
    return None


_SIBLINGS: Final = 3
"""Methods that use a parameter, from which one that does not is odd."""


def super_without_self(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `super()` in a static method: it takes the first parameter for the object, and there may be none."""
    for call in module.nodes(ast.Call):
        function = module.function_of(call)
        if not isinstance(call.func, ast.Name) or call.func.id != "super" or call.args or call.keywords:
            continue
        if not isinstance(function, Function) or module.class_of(function) is None or function.name == "__new__":
            continue
        first = [each.arg for each in (*function.args.posonlyargs, *function.args.args)][:1]
        # One that is called `Base.method(self, ...)` gives it an object.
        static = any(last_name(each) == "staticmethod" for each in function.decorator_list)
        if static and first not in (["cls"], ["self"]):
            took = f"takes `{first[0]}` for the object" if first else "finds no object"
            yield call, f"`{function.name}` is static: `super()` {took}"


RULES: Final = (
    Rule("undefined-name", Severity.HIGH, in_file=undefined_name),
    Rule("main-only-name", Severity.HIGH, in_file=main_only_name),
    Rule("type-only-name", Severity.HIGH, in_file=type_only_name),
    Rule("optional-in-annotation", Severity.MEDIUM, in_file=optional_in_annotation),
    Rule("unknown-self-attribute", Severity.HIGH, in_file=unknown_self),
    Rule("method-mismatch", Severity.HIGH, in_file=method_mismatch),
    Rule("super-without-self", Severity.HIGH, in_file=super_without_self),
    Rule("attribute-no-longer-set", Severity.HIGH, in_change=no_longer_set),
    Rule("sync-override", Severity.HIGH, in_file=sync_override),
    Rule("parameter-ignored", Severity.LOW, in_tests=False, in_file=parameter_ignored),
)
