"""Seeds: numbers that another process or another day would not give again, and imports that reseed a program."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.module import last_name, nodes_in
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_SEEDING = frozenset({"seed", "manual_seed", "manual_seed_all", "set_seed", "seed_everything", "default_rng", "Random"})
_GLOBAL = frozenset(
    ["random.seed", "numpy.random.seed", "torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"]
)
_SEED = re.compile(r"(^|_)seed$")
_SALTED = frozenset({"hash", "id"})


def unstable_seed(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a seed from `hash(...)`, whose value is another one in each process, or from `id(...)`."""
    for value in _seeds(module):
        for node in nodes_in(value, ast.Call):
            if not isinstance(node.func, ast.Name):
                continue
            # Hashes of numbers, and of tuples of numbers, are the same everywhere.
            parts = [part for each in node.args for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
            if parts and all(isinstance(each, ast.Constant) and isinstance(each.value, int) for each in parts):
                continue
            if node.func.id in _SALTED - module.bindings.keys():
                yield node, f"`{ast.unparse(node)}` is another number in every process"


def _seeds(module: Module) -> Iterator[ast.expr]:
    for call in module.nodes(ast.Call):
        if last_name(call.func) in _SEEDING:
            yield from call.args
        yield from (each.value for each in call.keywords if each.arg and _SEED.search(each.arg))
    for node in module.nodes(ast.Assign):
        if any(_SEED.search(last_name(target)) for target in node.targets):
            yield node.value


def seeded_at_import(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a generator of the whole process that is seeded because a module was imported."""
    guarded = any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in module.tree.body)
    statements = [each.value for each in module.tree.body if isinstance(each, ast.Expr)]
    named = [(each.lineno, module.dotted(each.func)) for each in statements if isinstance(each, ast.Call)]
    works = any(name not in _GLOBAL for _, name in named)
    if guarded or works or not any(True for _ in module.functions()):
        return  # a script, or a tutorial: it does more when it is loaded
    for line, name in named:
        yield line, f"`{name}` runs when this module is imported"


RULES = (
    Rule("unstable-seed", Severity.HIGH, in_tests=False, in_file=unstable_seed),
    Rule("seeded-at-import", Severity.MEDIUM, in_tests=False, in_file=seeded_at_import),
)
