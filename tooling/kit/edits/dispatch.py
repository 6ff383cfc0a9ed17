"""Read a function that dispatches by if/elif on a string, and say exactly what it does; or say why it is not one.

    if name == "exact":
        from pkg.exact import exact_reward
        return exact_reward(answer)          # the same statement in every branch, but for the imported object
    elif name in ("gsm8k", "gsm"):
        from pkg.gsm8k import gsm8k_reward
        return gsm8k_reward(answer)
    raise ValueError(name)                   # what an unknown name meets: anything

Nothing is rewritten here (`tooling.kit.edits.migrate`), and nothing is guessed: a branch that tests or does anything
else is refused with its line. Works on `ast` without recursion, so that a chain of a thousand branches is no problem.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tooling.kit.edits.text import refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.kit.edits.text import SourceText

    Function = ast.FunctionDef | ast.AsyncFunctionDef
    Span = tuple[int, int]

PLACEHOLDER = "_the_registered_object_"
_BY_HAND = "change this branch by hand, or leave the function as it is"


@dataclass(frozen=True, slots=True)
class Branch:
    """One `if` or `elif` that maps strings to an object."""

    keys: tuple[str, ...]
    bound: str
    """The variable that its import binds."""
    target: str
    """"module:object", relative modules as they are written: ".gsm8k:score"."""
    first_line: int
    last_line: int
    statement: Span
    """Of the `return` or assignment."""
    reference: Span
    """Of the object in that statement."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A function of which every branch is understood."""

    function: Function
    subject: str
    branches: tuple[Branch, ...]
    first: int
    count: int
    """The statements of the function's body that the table replaces."""
    otherwise: list[ast.stmt]
    """Body of the `else`, empty when there is none."""


@dataclass(frozen=True, slots=True)
class _Arm:
    node: ast.If

    @property
    def last_line(self) -> int:
        return self.node.body[-1].end_lineno or self.node.lineno


@dataclass(frozen=True, slots=True)
class Chain:
    """Branches that look like a dispatch: each tests a parameter and holds a string."""

    function: Function
    arms: tuple[_Arm, ...]
    first: int
    count: int
    otherwise: list[ast.stmt]


def find_chains(text: SourceText, tree: ast.Module) -> Iterator[Chain]:
    """Top-level functions that look like a dispatch of two branches or more."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            chain = _chain(text, node)
            if chain is not None and len(chain.arms) > 1:
                yield chain


def read_dispatch(text: SourceText, chain: Chain) -> Dispatch:
    """What the branches do. Raises RegistryShapeError with file:line and the reason for a branch that does more."""
    subject = _subject(text, chain)
    branches = tuple(_branch(text, chain, arm, subject) for arm in chain.arms)
    seen: dict[str, int] = {}
    for branch in branches:
        for key in branch.keys:
            if key in seen:
                why = f"{key!r} is tested a second time (first in line {seen[key]})"
                raise refusal(text.file, branch.first_line, why, _BY_HAND)
            seen[key] = branch.first_line
    _refuse_differences(text, branches)
    _refuse_other_uses(text, chain.function, branches)
    if chain.count > 1 and not isinstance(chain.arms[0].node.body[-1], ast.Return):
        raise refusal(text.file, chain.arms[1].node.lineno, "an `if` after an `if` that does not return", _BY_HAND)
    return Dispatch(chain.function, subject, branches, chain.first, chain.count, chain.otherwise)


def template(text: SourceText, branch: Branch) -> str:
    """The statement of a branch with the object replaced by PLACEHOLDER."""
    (start, end), (first, last) = branch.statement, branch.reference
    return (text.data[start:first] + PLACEHOLDER.encode() + text.data[last:end]).decode("utf-8")


def span(text: SourceText, node: ast.stmt | ast.expr) -> Span:
    """Offsets of a node."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return text.offset(node.lineno, node.col_offset), text.offset(node.end_lineno, node.end_col_offset)


def _chain(text: SourceText, function: Function) -> Chain | None:
    parameters = _parameters(function)
    looking = [index for index, node in enumerate(function.body) if _looks(node, parameters)]
    if not looking:
        return None
    # A check of another argument ("if split not in ..: raise") may stand above; branches that import are the dispatch.
    first = next((index for index in looking if _imports(function.body[index])), looking[0])
    arms: list[_Arm] = []
    count, otherwise = 0, list[ast.stmt]()
    for node in function.body[first:]:
        if not isinstance(node, ast.If) or not _looks(node, parameters) or otherwise:
            break
        more, otherwise = _arms(text, node)
        if count and not all(isinstance(arm.node.body[-1], ast.Return | ast.Raise) for arm in arms):
            break
        arms += more
        count += 1
    return Chain(function, tuple(arms), first, count, otherwise)


def _arms(text: SourceText, node: ast.If) -> tuple[list[_Arm], list[ast.stmt]]:
    """The branches of one statement, and the body of its `else`."""
    arms = [_Arm(node)]
    while len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        following = node.orelse[0]
        if not text.data.startswith(b"elif", text.offset(following.lineno, following.col_offset)):
            break  # an `if` inside the `else`
        node = following
        arms.append(_Arm(node))
    return arms, node.orelse


def _looks(node: ast.stmt, parameters: set[str]) -> bool:
    if not isinstance(node, ast.If):
        return False
    inner = list(ast.walk(node.test))
    names = any(isinstance(part, ast.Name) and part.id in parameters for part in inner)
    return names and any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in inner)


def _imports(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.body[0], ast.Import | ast.ImportFrom)


def _parameters(function: Function) -> set[str]:
    arguments = function.args
    return {item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _subject(text: SourceText, chain: Chain) -> str:
    """The parameter that the first branch compares."""
    test = chain.arms[0].node.test
    parameters = _parameters(chain.function)
    names = {part.id for part in ast.walk(test) if isinstance(part, ast.Name) and part.id in parameters}
    if len(names) != 1:
        raise _odd_test(text, test, "one parameter")
    return names.pop()


def _branch(text: SourceText, chain: Chain, arm: _Arm, subject: str) -> Branch:
    keys = _keys(text, arm.node.test, subject)
    if len(arm.node.body) != 2 or not isinstance(arm.node.body[0], ast.Import | ast.ImportFrom):
        why = "does more or less than to import one object and to return it, call it or assign what it gives"
        raise refusal(text.file, arm.node.lineno, f"the branch of {keys[0]!r} {why}", _BY_HAND)
    statement, (bound, module, name) = arm.node.body[1], _imported(text, arm.node.body[0])
    value = statement.value if isinstance(statement, ast.Return | ast.Assign) else None
    if value is None:
        raise refusal(text.file, statement.lineno, "expected `return` or an assignment", _BY_HAND)
    reference, path = _reference(text, value, bound)
    attributes = _attributes(text, statement, module, name, path)
    return Branch(
        keys=keys,
        bound=bound.partition(".")[0],
        target=f"{module}:{attributes}",
        first_line=arm.node.lineno,
        last_line=arm.last_line,
        statement=span(text, statement),
        reference=span(text, reference),
    )


def _keys(text: SourceText, test: ast.expr, subject: str) -> tuple[str, ...]:
    """Strings that the test compares the subject with."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    keys = [key for part in parts for key in _compared(part, subject)]
    if all(_compared(part, subject) for part in parts):
        return tuple(keys)
    raise _odd_test(text, test, f"`{subject}`")


def _odd_test(text: SourceText, test: ast.expr, expected: str) -> Exception:
    why = f"tests `{ast.unparse(test)}`, expected equality of {expected} with strings"
    parts = (part for part in ast.walk(test) if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.In))
    if any(isinstance(part.left, ast.Constant) for part in parts):
        why += "; a test for a part of a text answers names that no table lists"
    return refusal(text.file, test.lineno, why, _BY_HAND)


def _compared(test: ast.expr, subject: str) -> list[str]:
    """Strings of `subject == ".."`, `".." == subject` or `subject in ("..", "..")`; empty for anything else."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return []
    left, right, operator = test.left, test.comparators[0], test.ops[0]
    if isinstance(operator, ast.Eq):
        if isinstance(left, ast.Constant):
            left, right = right, left
        values: Sequence[ast.expr] = [right]
    elif isinstance(operator, ast.In) and isinstance(right, ast.Tuple | ast.List | ast.Set):
        values = right.elts
    else:
        return []
    if not isinstance(left, ast.Name) or left.id != subject:
        return []
    keys = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return keys if len(keys) == len(values) else []


def _imported(text: SourceText, node: ast.Import | ast.ImportFrom) -> tuple[str, str, str]:
    """(name it binds, module, what of the module: "" for the module itself)."""
    if len(node.names) != 1 or node.names[0].name == "*":
        raise refusal(text.file, node.lineno, "imports more than one object", _BY_HAND)
    alias = node.names[0]
    if isinstance(node, ast.ImportFrom):
        return alias.asname or alias.name, "." * node.level + (node.module or ""), alias.name
    return alias.asname or alias.name, alias.name, ""


def _reference(text: SourceText, value: ast.expr, bound: str) -> tuple[ast.expr, str]:
    """The longest dotted expression that the value starts with, and what it takes of the imported name: ".a.b"."""
    node = value
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute) and _dotted(node):
            break
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Await | ast.Subscript | ast.Attribute):
            node = node.value
        else:
            break
    dotted = _dotted(node)
    if dotted != bound and not dotted.startswith(f"{bound}."):
        why = f"`{ast.unparse(value)}` does not start with `{bound}`, which the branch imports"
        raise refusal(text.file, value.lineno, why, _BY_HAND)
    return node, dotted.removeprefix(bound)


def _attributes(text: SourceText, statement: ast.stmt, module: str, name: str, path: str) -> str:
    attributes = (name + path).removeprefix(".")
    if not attributes:
        raise refusal(text.file, statement.lineno, f"uses the module {module!r} itself, expected an object", _BY_HAND)
    return attributes


def _dotted(node: ast.expr) -> str:
    """ "a.b.c" of names and attributes, "" for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _refuse_other_uses(text: SourceText, function: Function, branches: Sequence[Branch]) -> None:
    """An imported name is a variable of the whole function: it may serve nothing but the objects of branches."""
    references: dict[str, list[Span]] = {}
    for branch in branches:
        references.setdefault(branch.bound, []).append(branch.reference)
    for node in ast.walk(function):
        if isinstance(node, ast.Global | ast.Nonlocal) and not references.keys().isdisjoint(node.names):
            raise refusal(text.file, node.lineno, "a branch imports into the scope outside the function", _BY_HAND)
        if isinstance(node, ast.Name) and node.id in references:
            begin, _ = span(text, node)
            if not any(start <= begin < end for start, end in references[node.id]):
                why = f"`{node.id}`, which a branch imports, is used elsewhere in the function too"
                raise refusal(text.file, node.lineno, why, _BY_HAND)


def _refuse_differences(text: SourceText, branches: Sequence[Branch]) -> None:
    shapes = [ast.dump(ast.parse(template(text, branch))) for branch in branches]
    for branch, shape in zip(branches, shapes, strict=True):
        if shape != shapes[0]:
            mine, first = (template(text, each).replace(PLACEHOLDER, "..") for each in (branch, branches[0]))
            why = f"the branch of {branch.keys[0]!r} ends in `{mine}`, the first one in `{first}`"
            raise refusal(text.file, branch.first_line, why, _BY_HAND)
