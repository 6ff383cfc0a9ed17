"""State that is kept or shared by mistake: class attributes that instances fill, graphs and gradients that a loop piles
up, bases that were never initialised."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, own_nodes
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_FILLS: Final = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
_CONTAINERS: Final = frozenset({"Counter", "OrderedDict", "defaultdict", "deque", "dict", "list", "set"})
_NEEDS_INIT: Final = frozenset(
    [
        "logging.Handler",
        "multiprocessing.Process",
        "threading.Thread",
        "torch.multiprocessing.Process",
        "torch.nn.Module",
    ]
)
_COPIES_DEFAULTS: Final = re.compile(r"Model$|Config|Schema|Settings|Enum|Tuple|Dict|Struct")
"""Names of bases that copy defaults for each instance."""


def class_attribute_filled(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `items = []` in a class whose methods fill `self.items`: all instances share it."""
    for owner in module.nodes(ast.ClassDef):
        shared: dict[str, int] = {}
        for each in owner.body:
            value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
            target = each.targets[0] if isinstance(each, ast.Assign) else getattr(each, "target", None)
            literal = isinstance(value, ast.List | ast.Dict | ast.Set)
            made = isinstance(value, ast.Call) and last_name(value.func) in _CONTAINERS
            # A decorator or base may take it for a default; `_CACHE` in capitals is shared on purpose.
            on_purpose = isinstance(each, ast.AnnAssign) and "ClassVar" in ast.unparse(each.annotation)
            if (literal or made) and isinstance(target, ast.Name) and not target.id.isupper() and not on_purpose:
                shared[target.id] = each.lineno
        # A lock that the class has too says that instances share what it holds.
        locked = re.search(
            r"\bR?Lock\(", "".join(ast.unparse(each) for each in owner.body if not isinstance(each, Function))
        )
        if (
            not shared
            or locked
            or owner.decorator_list
            or any(_COPIES_DEFAULTS.search(last_name(each)) for each in owner.bases)
        ):
            continue
        nodes = list(ast.walk(owner))
        stored = [each for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)]
        own = {each.attr for each in stored}
        by_class = {each.attr for each in nodes if isinstance(each, ast.Attribute) and last_name(each.value) != "self"}
        for node in nodes:
            filled = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
                filled = node.func.value
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                filled = node.value
            if not isinstance(filled, ast.Attribute) or last_name(filled.value) != "self":
                continue
            holder = next(each for each in module.around(node) if isinstance(each, ast.ClassDef))
            if holder is owner and filled.attr in shared.keys() - own - by_class:
                said = f"`self.{filled.attr}` is the class's: what one instance of `{owner.name}` adds, all others see"
                yield shared.pop(filled.attr), said


_NUMBERS: Final = re.compile(r"\bitem\(|detach|\bfloat\(|tolist")
_WITHOUT_GRAPH: Final = re.compile(r"no_grad|inference_mode|set_grad_enabled")


def graph_kept(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `total += loss` in the loop that calls `loss.backward()`, with nothing that leaves the graph behind."""
    loops = list(module.nodes(ast.For, ast.While))
    said: set[ast.AST] = set()
    for loop in loops:
        inside = [each for one in loop.body for each in (one, *own_nodes(one))]
        backward = {
            each.func.value.id
            for each in inside
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr == "backward"
            if isinstance(each.func.value, ast.Name)
        }
        for node in inside if backward else ():
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.value, ast.Name):
                name, total = node.value.id, ast.unparse(node.target)
                stores = [each for each in inside if isinstance(each, ast.Assign)]
                numbers = [each for each in stores if last_name(each.targets[0]) == name]
                cut = any(_NUMBERS.search(ast.unparse(each.value)) for each in numbers)
                # A total that starts afresh in the loop holds the graphs of a few steps only.
                cut = cut or any(ast.unparse(each.targets[0]) == total for each in stores)
                around = [part for each in module.around(node) if isinstance(each, ast.With) for part in each.items]
                cut = cut or any(_WITHOUT_GRAPH.search(ast.unparse(each)) for each in around)
                if name in backward and last_name(node.target) not in backward and not cut and node not in said:
                    said.add(node)
                    yield node, f"`{total}` keeps the graph of every `{name}`"


def base_not_initialised(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an `__init__` that sets attributes of a module, thread or handler whose own `__init__` is never called."""
    for owner in module.nodes(ast.ClassDef):
        bases = {module.dotted(each) for each in owner.bases} & _NEEDS_INIT
        made = next((each for each in owner.body if isinstance(each, Function) and each.name == "__init__"), None)
        if not bases or len(owner.bases) > 1 or made is None:
            continue
        # Another method may do it.
        called = any(isinstance(each, ast.Attribute) and each.attr == "__init__" for each in ast.walk(owner))
        sets = any(isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) for each in own_nodes(made))
        if sets and not called:
            yield made, f"`{owner.name}.__init__` does not call that of `{min(bases)}`"


RULES: Final = (
    Rule("class-attribute-filled", Severity.HIGH, in_file=class_attribute_filled),
    Rule("graph-kept", Severity.HIGH, in_file=graph_kept),
    Rule("base-not-initialised", Severity.HIGH, in_file=base_not_initialised),
)
