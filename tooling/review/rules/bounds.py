"""Bounds and loops: what an error says that is allowed, an index that may equal the length, tests that always hold, an
index that is scaled twice, a reference that the loop itself rewrites."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import last_name, names_in, nodes_in, own_nodes
from tooling.python.source import dotted_name
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import NEGATED, STRICTER, following, operand, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_ALLOWS: Final = (
    (
        ast.LtE,
        re.compile(
            r"\bat least\b|>= ?|greater than or equal|non-?negative|\bor (?:more|greater|larger)\b|\bno less than\b"
        ),
    ),
    (
        ast.GtE,
        re.compile(
            r"\bat most\b|<= ?|(?:less|smaller) than or equal|\b(?:cannot|must not|may not) exceed|"
            r"\bor (?:less|fewer|smaller)\b|\bno more than\b"
        ),
    ),
    (ast.Lt, re.compile(r"> 0|(?<!non-)(?<!non)\bpositive\b|must (?:be )?(?:greater|larger|more) than (?!or equal)")),
    (ast.Gt, re.compile(r"\bmust be (?:strictly )?(?:less|smaller) than (?!or equal)")),
)
"""Comparison of a guard -> what an error says that is allowed where it holds, so that the guard refuses too much or too
little by one."""
_INDEX: Final = re.compile(r"^(i|j|k|idx|index|pos|rank|layer|step)$|_(idx|index|rank)$")
_COUNT: Final = re.compile(
    r"^len\(|(?:^|\.)num_(?!layers|hidden|steps)\w+$|_num$|cdiv\(|^min\(.*\blen\(|epochs$|count(?:\(\))?$|batch_size$"
)


def _asked(node: ast.expr) -> tuple[str, type[ast.cmpop], str] | None:
    """Return "x", `<=`, "n" of `x <= n` and `not x > n`; a number stands on the right: "n", `>=`, "0" of `0 <= n`."""
    turned = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    test = node.operand if isinstance(node, ast.UnaryOp) and turned else node
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return None
    left, operator, right = test.left, type(test.ops[0]), test.comparators[0]
    if isinstance(left, ast.Constant) and not isinstance(right, ast.Constant):
        left, operator, right = right, _MIRRORED.get(operator, operator), left
    return ast.unparse(left), NEGATED[operator] if turned else operator, ast.unparse(right)


_MIRRORED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
}


def _other_number(bound: str, said: str) -> bool:
    """Whether a text speaks of other numbers alone: `if n <= 0` may well say "must be at least 1"."""
    numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", said)
    return bool(numbers) and re.fullmatch(r"-?[\d.]+", bound) is not None and bound not in numbers


def bound_contradicts(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `if n <= 2: raise ValueError("needs at least 2")`, and `assert n >= 0, "must be > 0"`."""
    guards: list[tuple[ast.stmt, ast.expr, ast.AST, bool]] = []
    for guard in module.nodes(ast.If):
        raised = guard.body[0]
        if isinstance(raised, ast.Raise) and raised.exc is not None and len(guard.body) == 1:
            guards.append((guard, guard.test, raised.exc, True))
    guards += [(each, each.test, each.msg, False) for each in module.nodes(ast.Assert) if each.msg is not None]
    for statement, test, message, refused in guards:
        asked = _asked(test)
        said = "".join(str(each.value) for each in nodes_in(message, ast.Constant)).lower()
        found = [kind for kind, words in _ALLOWS if words.search(said)]
        if asked is None or _other_number(asked[2], said):
            continue
        if refused and "exceed" in said and "max" in asked[2] and not _INDEX.search(asked[0]):
            found = [ast.GtE]
        if len(found) != 1:
            continue
        wrong = found[0] if refused else NEGATED[found[0]]
        # An assertion may say what is the case instead; "at least one" is `> 0`.
        told = refused or (re.search(r"\b(?:must|should|needs?|requires?)\b", said) and f" {asked[2]}" in said)
        if told and asked[1] is wrong and (found[0] is not ast.Lt or asked[2] == "0"):
            yield statement, f"`{ast.unparse(test)}` and its error differ about what is right where both are equal"


def always_holds(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `len(x) >= 0`, and `world_size >= 1` of a branch: they hold for everything. A size that is a setting may be
    0 or -1 where it is not wanted."""
    for test in module.nodes(ast.Compare):
        asked = _asked(test)
        if asked is None:
            continue
        left, operator, right = asked
        around = module.parents.get(test)
        counts = (each for each in (test.left, *test.comparators) if isinstance(each, ast.Call))
        counted = any(last_name(each.func) in _COUNTS and ast.unparse(each) == left for each in counts)
        counted |= re.search(r"\.shape\[-?\d\]$|\.ndim$|mask\w*\.sum\([^()]*\)$", left) is not None
        if counted and operator in {ast.GtE, ast.Lt} and right == "0":
            said = "always holds" if operator is ast.GtE else "never holds"
            yield test, f"`{ast.unparse(test)}` {said}"
        asks = isinstance(around, ast.If | ast.IfExp | ast.Assign)
        # `size if size >= 1 else 1` mends a setting.
        whole = module.parents.get(around) if isinstance(around, ast.BoolOp) else around
        sized = _PARALLEL.search(left) and isinstance(whole, ast.If)
        if operator is ast.GtE and right == "1" and ((asks and _SIZE.search(left)) or sized):
            yield test, f"`{ast.unparse(test)}` always holds: one process is a group too"
    choices: list[tuple[ast.expr, list[ast.AST]]] = [(each.test, [each.body]) for each in module.nodes(ast.IfExp)]
    choices += [(each.test, [*each.body]) for each in module.nodes(ast.If)]
    for condition, body in choices:
        asked = _asked(condition)
        if asked is None or asked[1:] != (ast.GtE, "0"):
            continue
        inside = nodes_in(body, ast.BinOp)
        divided = [each.right for each in inside if isinstance(each.op, ast.Div | ast.FloorDiv | ast.Mod)]
        if any(ast.unparse(each) == asked[0] for each in divided):
            yield condition, f"`{asked[0]}` may be 0 where `{ast.unparse(condition)}`, and is divided by"
    yield from _asked_twice(module)


def share_may_be_zero(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `servers // nodes` of `nodes = world // size` beside `max(1, other // size)`."""
    for function in module.functions():
        # `max(1, n // size)` says that a share may be 0.
        shares = {
            ast.unparse(each): each for each in own_nodes(function, ast.BinOp) if isinstance(each.op, ast.FloorDiv)
        }
        floors = [
            each for each in own_nodes(function, ast.Call) if last_name(each.func) == "max" and len(each.args) == 2
        ]
        by = {
            ast.unparse(shares[text].right) for call in floors for text in map(ast.unparse, call.args) if text in shares
        }
        for made in own_nodes(function, ast.Assign) if by else ():
            share, name = shares.get(ast.unparse(made.value)), ast.unparse(made.targets[0])
            uses = [each for each in own_nodes(function, ast.BinOp) if ast.unparse(each.right) == name]
            uses = [each for each in uses if isinstance(each.op, ast.Div | ast.FloorDiv | ast.Mod)]
            if share is not None and ast.unparse(share.right) in by and uses:
                yield uses[0], f"`{name}` may be 0, as the like of `{ast.unparse(share)}` has a floor", share


def _asked_twice(module: Module) -> Iterator[Hit]:
    """Find a branch that an earlier one leaves nothing for, and a bound that an assertion above has checked."""
    for branch in module.nodes(ast.If):
        second = branch.orelse[0] if len(branch.orelse) == 1 else None
        one, other = _asked(branch.test), _asked(second.test) if isinstance(second, ast.If) else None
        if one is None or other is None or not isinstance(second, ast.If) or not second.orelse:
            continue
        if one[::2] == other[::2] and NEGATED.get(one[1]) is other[1]:
            yield branch, f"`{ast.unparse(branch.test)}` or the next always holds: nothing is left for `else`"
        if one[::2] == other[::2] and one[1] is ast.Eq and other[1] in {ast.GtE, ast.LtE}:
            yield second, f"`{ast.unparse(second.test)}` includes what `{ast.unparse(branch.test)}` has dealt with"
    for sure in module.nodes(ast.Assert):
        asked, tried = _asked(sure.test), module.parents[sure]
        if asked is None or asked[1] not in STRICTER:
            continue
        later = nodes_in(following(module, tried if isinstance(tried, ast.Try) else sure), ast.If)
        for again in (each for each in later if each.orelse and ast.unparse(each.test) == ast.unparse(sure.test)):
            between = range(sure.lineno, again.lineno)
            names = [each for each in own_nodes(module.function_of(sure), ast.Name) if each.lineno in between]
            if names_in(sure.test).isdisjoint(each.id for each in names if isinstance(each.ctx, ast.Store)):
                yield again, f"`{ast.unparse(again.test)}` always holds: it is asserted above", sure


_COUNTS: Final = frozenset({"device_count", "dim", "len", "numel", "size"})
_SIZE: Final = re.compile(r"(?:(?:^|\.|_)world_size|_world_size\(\))$")
_PARALLEL: Final = re.compile(r"(?:_parallel_size|ring_attn_size|(?:^|\.|_)(?:[ct]p|pp)_size)$")


def index_at_length(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `i <= len(x)` in front of `x[i]`, and `x0 < n and x1 <= n`."""
    for test in module.nodes(ast.Compare):
        asked = _asked(test)
        if asked is not None and asked[1] is ast.GtE and asked[0].startswith("len("):
            asked = asked[2], ast.LtE, asked[0]  # `x[1] if len(x) >= 1`
        if asked is None or asked[1] is not ast.LtE or not asked[2].startswith("len(") or asked[0] == "0":
            continue
        left, _, right = asked
        holder = next((each for each in module.around(test) if isinstance(each, ast.If | ast.While | ast.IfExp)), None)
        taken = f"{right[4:-1]}[{left}]"
        where = holder.body if isinstance(holder, ast.If | ast.While) else [holder.body] if holder is not None else []
        both = module.parents.get(test)
        later = both.values if isinstance(both, ast.BoolOp) else []
        inside = nodes_in((*where, *later), ast.Subscript)
        if any(ast.unparse(each) == taken for each in inside):
            yield test, f"`{taken}` is taken where `{ast.unparse(test)}` lets it be one too far"
    for either in module.nodes(ast.BoolOp):
        pair = [each for value in either.values if (each := _asked(value)) is not None]
        if len(pair) != 2 or len(either.values) != 2:
            continue
        (one, first, low), (other, second, high) = pair
        like = one != other and low == high and len({re.sub(_ONE_OF_TWO, "#", each) for each in (one, other)}) == 1
        if like and {first, second} in ({ast.Lt, ast.LtE}, {ast.Gt, ast.GtE}):
            yield either, f"`{ast.unparse(either)}` compares two like things in two ways"


_ONE_OF_TWO: Final = re.compile(r"\d+|width|height|(?<![^\W_])[hwxy](?![^\W_])")


def last_left_out(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `for i in range(num_workers - 1)` and `range(len(x) - 1)` whose body asks nothing of a next one."""
    for call in module.nodes(ast.Call):
        bound = call.args[0] if last_name(call.func) in {"range", "trange"} and len(call.args) == 1 else None
        if not isinstance(bound, ast.BinOp) or not isinstance(bound.op, ast.Sub) or ast.unparse(bound.right) != "1":
            continue
        loop = next((each for each in module.around(call) if isinstance(each, ast.For | ast.comprehension)), None)
        loop = loop if loop is not None and call in ast.walk(loop.iter) else None
        wrapper = module.parents[call]
        if loop is None and isinstance(wrapper, ast.Call) and last_name(wrapper.func) in _ITERATORS:
            continue  # the loop is elsewhere
        count, less = ast.unparse(bound.left), ast.unparse(bound)
        one = ast.unparse(loop.target) if loop is not None else "n"
        body = loop if isinstance(loop, ast.For) else module.parents[loop or call]
        text = ast.unparse(body)
        # Without a loop, only what is said in the same statement is about it.
        here = module.function_of(call) if loop is not None else next(iter(module.around(call)))
        around = ast.unparse(here or module.tree).replace(less, "")
        # Pairs need all but one, and so does who treats the last one apart; nobody does with epochs.
        pairs = rf"\b{re.escape(one)} [+-] 1\b(?!\) \*)|\[:{re.escape(one)}\]"
        apart = None if re.search(r"epochs$", count) else _LAST.search(around)
        if apart is not None and apart[0] == "[-1]" and f"[{one}]" in text:
            # `rows[-1]` after a loop over `rows[i]` treats the last one apart; that of something else does not.
            taken = set(re.findall(rf"([\w.]+)\[{re.escape(one)}\]", text))
            own = "|".join(map(re.escape, taken))
            apart = _LAST.search(re.sub(rf"(?<![\w.])(?!(?:{own})\[)[\w.]+\[-1\]", "", around))
        paired = re.search(pairs, text.replace(less, "")) or apart
        layers = re.search(r"num_\w*layers", count) and (f"[{one}" in text or count.endswith(".num_hidden_layers"))
        counted = _COUNT.search(count) or layers
        # `x[i * n : (i + 1) * n]` takes one part each time.
        counted = counted or re.search(rf"\({re.escape(one)} \+ 1\) \* ", text)
        # A list with an entry for each, where another loop counts to the same number
        each_one = not one.startswith("_") or (isinstance(loop, ast.comprehension) and f"range({count})" in module.text)
        plain = each_one and counted and not paired
        always = loop is not None and f"{one} < {less}" in text
        told = any("last" in line for line in module.lines[call.lineno - 2 : call.lineno + 1])
        if (plain or always or isinstance(bound.left, ast.Constant)) and not told:
            yield call, f"`{ast.unparse(call)}` leaves the last one out"


_ITERATORS: Final = frozenset({"enumerate", "iter", "list", "reversed", "tqdm", "zip"})
_LAST: Final = re.compile(r"\[-1\]|\blast|retr|attempt|final|\bnext\((?!iter\()")


_GROWS: Final = frozenset({"append", "extend", "add", "update", "insert"})
_OF_ALL: Final = frozenset({"mean", "std", "var", "max", "min", "sum", "norm", "amax", "amin", "median"})


def stride_twice(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `i * size` in a loop over `range(0, n, size)`, where `i` is a multiple of the size already."""
    for loop in module.nodes(ast.For):
        call = loop.iter
        if not isinstance(call, ast.Call) or last_name(call.func) != "range" or len(call.args) != 3:
            continue
        named = any(isinstance(each, ast.Name) for each in ast.walk(call.args[2]))
        if not named or not isinstance(loop.target, ast.Name):
            continue
        step = ast.unparse(call.args[2])
        for node in (each for one in loop.body for each in ast.walk(one)):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
                continue
            if sorted([ast.unparse(node.left), ast.unparse(node.right)]) == sorted([loop.target.id, step]):
                yield loop, f"`{loop.target.id}` advances by `{step}` and is multiplied by it again"
                break


def bound_moved(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `while len(out) < spec.most:` whose body lengthens `out` and lessens `spec.most`, perhaps under another
    name: each item counts twice.

    spec = request.spec
    while len(out) < spec.most:
        out += sample(request)
        request.spec.most -= 1
    """
    for loop in module.nodes(ast.While):
        inside = [each for one in loop.body for each in ast.walk(one)]
        lessened = {
            ast.unparse(each.target)
            for each in inside
            if isinstance(each, ast.AugAssign)
            and isinstance(each.op, ast.Sub)
            and isinstance(each.target, ast.Attribute)
        }
        grown = {
            ast.unparse(each.func.value)
            for each in inside
            if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _GROWS
        }
        grown |= {ast.unparse(each.target) for each in inside if isinstance(each, ast.AugAssign)} - lessened
        for test in ast.walk(loop.test) if lessened else ():
            if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Lt | ast.LtE):
                continue
            counted, bound = test.left, test.comparators[0]
            names = {ast.unparse(bound)}
            if isinstance(bound, ast.Attribute) and isinstance(bound.value, ast.Name):
                function = module.function_of(loop)
                for each in own_nodes(function, ast.Assign):
                    if last_name(each.targets[0]) == bound.value.id:
                        names.add(f"{ast.unparse(each.value)}.{bound.attr}")
            of = counted.args if isinstance(counted, ast.Call) and last_name(counted.func) == "len" else []
            if len(of) == 1 and ast.unparse(of[0]) in grown and names & lessened:
                yield test, f"`{ast.unparse(bound)}` is lessened in the loop while `{ast.unparse(counted)}` grows"


def changed_while_iterating(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `xs.remove(x)` in a loop over `xs` that goes on, and a loop over `sys.modules`, which any import changes."""
    loops = list(module.nodes(ast.For, ast.AsyncFor))
    for loop in loops:
        over = loop.iter
        if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and over.args:
            over = over.args[0]
        if isinstance(over, ast.Call) and last_name(over.func) in {"items", "keys", "values"} and not over.args:
            over = over.func.value if isinstance(over.func, ast.Attribute) else over
        name = dotted_name(over)
        if module.dotted(over) == "sys.modules":
            yield loop, "an import in another thread, or in the loop, changes `sys.modules`"
        nodes = [each for one in loop.body for each in (one, *own_nodes(one))] if name else []
        if name in stored(loop.body):
            continue
        for node in nodes:
            func = node.func if isinstance(node, ast.Call) else None
            gone = [each for each in getattr(node, "targets", ()) if isinstance(each, ast.Subscript)]
            owners = [each.value for each in gone] if isinstance(node, ast.Delete) else []
            if isinstance(func, ast.Attribute) and func.attr in _SHRINKS:
                owners = [func.value]
            if any(dotted_name(each) == name for each in owners) and not _left_after(module, node, loop):
                yield getattr(node, "lineno", 1), f"`{name}` is changed while the loop goes over it"


_SHRINKS: Final = frozenset({"clear", "discard", "insert", "pop", "popitem", "popleft", "remove"})


def _left_after(module: Module, node: ast.AST, loop: ast.AST) -> bool:
    """Whether a loop ends in one of the blocks around a node, behind it."""
    inner = node
    for holder in (*module.around(node, loop), loop):
        blocks = (getattr(holder, field, None) for field in ("body", "orelse", "finalbody"))
        block = next((each for each in blocks if isinstance(each, list) and inner in each), [])
        after = block[block.index(inner) :] if block else []
        if any(isinstance(each, ast.Break | ast.Return | ast.Raise) for each in after):
            return True
        inner = holder
    return False


def reference_rewritten(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a loop that asks what it has rewritten in an earlier round.

    for k, v in d.items():                       # once d["mask"] was cut, nothing else has its shape
        if v.shape == d["mask"].shape:
            d[k] = v[:, :n]
    for i in range(n):                           # the mean is one of changed and unchanged rows
        x[i] = x[i] - x.mean()
    """
    for loop in module.nodes(ast.For):
        targets = names_in(loop.target)
        inside = [each for one in loop.body for each in ast.walk(one)]
        replaced = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        tests = [part for each in inside if isinstance(each, ast.If | ast.IfExp) for part in ast.walk(each.test)]
        shapes = [each.value for each in tests if isinstance(each, ast.Attribute) and each.attr == "shape"]
        fixed = [each for each in shapes if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Constant)]
        stored = [
            (each, target, target.value.id)
            for each in inside
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        ]
        for assign, target, name in stored:
            used = names_in(target.slice)
            if not used & targets or name in replaced:
                continue
            # What is changed little by little is read there too: `df[c + "_mean"] = df.mean()` adds a column.
            whole = _aggregate(assign.value, name)
            items = nodes_in(assign.value, ast.Subscript) if whole else []
            if all(ast.unparse(each) != ast.unparse(target) for each in items):
                whole = None
            method = loop.iter.func if isinstance(loop.iter, ast.Call) else None
            over = isinstance(method, ast.Attribute) and method.attr == "items" and ast.unparse(method.value) == name
            constant = next((each for each in fixed if ast.unparse(each.value) == name), None)
            found = constant if over and last_name(target.slice) in targets else whole
            if found is not None:
                yield found, f"`{ast.unparse(found)}` is read again after `{ast.unparse(target)}` was rewritten"
                break


def _aggregate(value: ast.expr, name: str) -> ast.expr | None:
    """Return `x.mean()` or `torch.mean(x)` of the whole `x` in a value."""
    for node in nodes_in(value, ast.Call):
        of = operand(node) if isinstance(node.func, ast.Attribute) and node.func.attr in _OF_ALL else None
        if isinstance(of, ast.Name) and of.id == name and not node.keywords and node.args in ([], [of]):
            return node
    return None


RULES: Final = (
    Rule("bound-contradicts", Severity.MEDIUM, in_tests=False, in_file=bound_contradicts),
    Rule("always-holds", Severity.MEDIUM, in_tests=False, in_file=always_holds),
    Rule("share-may-be-zero", Severity.MEDIUM, in_tests=False, in_file=share_may_be_zero),
    Rule("index-at-length", Severity.HIGH, in_file=index_at_length),
    Rule("last-left-out", Severity.MEDIUM, in_tests=False, in_file=last_left_out),
    Rule("stride-twice", Severity.HIGH, in_file=stride_twice),
    Rule("bound-moved", Severity.HIGH, in_file=bound_moved),
    Rule("changed-while-iterating", Severity.MEDIUM, in_file=changed_while_iterating),
    Rule("reference-rewritten", Severity.HIGH, in_file=reference_rewritten),
)
