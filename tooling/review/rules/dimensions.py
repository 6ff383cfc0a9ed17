"""Dimensions and comparisons that do not fit what is done along them, or what the lines beside do."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from tooling.python.module import keyword, last_name, names_in, nodes_in, own_nodes
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import STRICTER, blocks, dimension, number_of, operand, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_OVER_CLASSES: Final = frozenset({"argmax", "log_softmax", "logsumexp", "normalize", "softmax", "topk"})
_OF_CLASSES: Final = re.compile(r"(^|_)(logits|embeddings)$")
_JOINS: Final = frozenset({"cat", "chunk", "concat", "split", "stack"})


def over_rows(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `logits.softmax(dim=0)`: it compares rows of the batch. One row, `logits[i]`, is left alone."""
    for call in module.nodes(ast.Call):
        value = operand(call) if last_name(call.func) in _OVER_CLASSES and dimension(call) == 0 else None
        while isinstance(value, ast.BinOp):
            value = value.left
        if not _OF_CLASSES.search(last_name(value)):
            continue
        others = [each for each in own_nodes(module.function_of(call) or module.tree, ast.Call) if each is not call]
        also = any(dimension(each) == 0 and last_name(each.func) in _OVER_CLASSES for each in others)
        single = re.search(rf"\b{last_name(value)} = .*(\[-?\w+\]|squeeze\(0?\))$", module.text, re.MULTILINE)
        if not also and not single and value is not None:
            yield call, f"`{ast.unparse(call.func)}` over dim 0 of `{ast.unparse(value)}` mixes the rows of a batch"


def along_batch(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `attention_mask.cumsum(dim=0)`, which counts over rows of a batch, and `cat((freqs, freqs), dim=0)` whose
    cosine is taken: rotary angles are doubled along the last dimension."""
    for call in module.nodes(ast.Call):
        if dimension(call) != 0:
            continue
        name, held, of = last_name(call.func), module.parents[call], operand(call)
        target = last_name(held.targets[0]) if isinstance(held, ast.Assign) else ""
        while isinstance(of, ast.Call):
            of = operand(of)
        if last_name(of) in _PADDED and (name in {"cumsum", "argmax"} or (name == "sum" and "len" in target)):
            yield call, f"`{ast.unparse(call)}` goes over the rows of a batch"
        made = next((each for each in _made(module, of) if "proj" in last_name(each.func)), None)
        if name in {"chunk", "split"} and made is not None:
            yield call, f"`{ast.unparse(call)}` cuts rows; what a projection joins lies along the last dimension"
        parts = getattr(call.args[0], "elts", []) if call.args and name in {"cat", "concat"} else []
        doubled = len(parts) == 2 and ast.unparse(parts[0]) == ast.unparse(parts[1])
        if doubled and target and f"{target}.cos()" in ast.unparse(module.function_of(call) or ast.Pass()):
            yield call, f"`{ast.unparse(call)}` doubles rows, and not angles"


def _made(module: Module, node: ast.expr | None) -> Iterator[ast.Call]:
    """Yield the calls that give a local name its value: `self.gate_up_proj(x)` of `gate_up`."""
    for each in own_nodes(module.function_of(node) if node is not None else None, ast.Assign):
        value = each.value.value if isinstance(each.value, ast.Subscript) else each.value
        if isinstance(node, ast.Name) and last_name(each.targets[0]) == node.id and isinstance(value, ast.Call):
            yield value


_PADDED: Final = frozenset({"action_mask", "attention_mask", "completion_mask", "loss_mask", "response_mask"})
"""Masks that have a row for each sequence of a batch."""


def unlike_twin(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `ids = cat([prompt_ids, answer_ids], dim=1)` beside `mask = cat([prompt_mask, answer_mask], dim=0)`, and one
    of three branches that joins the same name along another dimension."""
    for function in module.functions():
        twins: defaultdict[tuple[str, ...], list[ast.Call]] = defaultdict(list)
        branches: defaultdict[str, list[ast.Call]] = defaultdict(list)
        for call in own_nodes(function, ast.Call):
            if last_name(call.func) not in _JOINS or dimension(call) is None:
                continue
            parts = _parts(module, call)
            if len(parts) > 1 and all(parts):
                twins[last_name(call.func), *parts].append(call)
            held = module.parents.get(call)
            if isinstance(held, ast.Assign) and last_name(call.func) in {"cat", "concat"}:
                branches[ast.unparse(held.targets[0])].append(call)
            elif isinstance(held, ast.Assign) and isinstance(held.targets[0], ast.Name):
                branches[" ".join(map(ast.unparse, (*call.args, call.func)[:-1]))].append(call)
        for calls in (*twins.values(), *(each for each in branches.values() if len(each) > 2)):
            calls.sort(key=lambda each: each.lineno)
            dims = [dimension(each) for each in calls]
            if len(set(dims)) == 2 and (0 in dims or calls in twins.values()):
                # The one that is alone with its dimension; of two, the later one
                odd = next((each for each in reversed(calls) if dims.count(dimension(each)) == 1), calls[-1])
                first = next(each for each in calls if dimension(each) != dimension(odd))
                yield odd, f"`{ast.unparse(odd)}`: its twin has `dim={dimension(first)}`", first


def _parts(module: Module, call: ast.Call) -> list[str]:
    """Return "prompt", "answer" of `cat([prompt_ids, answer_ids])`, "pad()", "pad()" of `cat([pad(x), pad(y)])`, and
    "prompt", "_" of `prompt_ids, _ = x.chunk(2)`."""
    if last_name(call.func) in {"chunk", "split"}:
        parent = module.parents.get(call)
        target = parent.targets[0] if isinstance(parent, ast.Assign) else None
        joined = target.elts if isinstance(target, ast.Tuple) else []
    else:
        given = call.args[0] if call.args else None
        joined = given.elts if isinstance(given, ast.List | ast.Tuple) else []
    stems = [_stem(each) for each in joined]
    halves = [last_name(each).partition("_")[::2] for each in joined if isinstance(each, ast.Name)]
    if len(halves) == len(joined) and not all(stems) and len({first for first, _ in halves}) == 1:
        return [rest for _, rest in halves]  # "no_pe", "pos_emb" of `q_no_pe, q_pos_emb`
    return stems if set(stems) - {"_"} else []


def _stem(node: ast.expr) -> str:
    """Return "prompt" of `prompt_ids`, `self.prompt_attention_mask` and `inputs["prompt_ids"]`, "pad()" of `pad(x)`,
    and "_" of itself; "" of everything else."""
    name = last_name(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return f"{node.func.id}()"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value)
    stem, _, kind = name.rpartition("_")
    return re.sub(r"_(?:attention|completion|loss|position)$", "", stem) if kind in _KINDS else name[:1] * (name == "_")


_KINDS: Final = frozenset(
    {"ids", "labels", "logits", "logps", "logprobs", "mask", "masks", "rewards", "scores", "tokens", "values"}
)


def odd_twin(module: Module, _side: Side) -> Iterator[Hit]:
    """Find two statements side by side that differ in one word throughout, and in a dimension or a comparison.

    chosen = chosen_rewards.gather(dim=-1, index=chosen_mask.sum(-1))
    rejected = rejected_rewards.gather(dim=0, index=rejected_mask.sum(-1))
    """
    pairs = [
        (*pair, block) for block in blocks(module) for step in (1, 2) for pair in zip(block, block[step:], strict=False)
    ]
    for one, other, block in pairs:
        found: list[tuple[str, str, str]] = []
        if type(one) is not type(other) or not isinstance(one, _PLAIN) or not _compare(one, other, found):
            continue
        named = [(first, second) for kind, first, second in found if kind == "name"]
        hard = [each for each in found if each[0] != "name"]
        words = {_first_changed(*pair) for pair in named}
        if not len(hard) == len(words) == 1 < len(named):
            continue
        ends = {word for pair in words for word in pair} & _ENDS
        # Keys and values may lie otherwise than queries; where two of the three agree, they do not.
        near = block[max(0, block.index(one) - 1) : block.index(other) + 2] if ends and ends <= {"k", "q", "v"} else []
        same: dict[tuple[ast.stmt, ast.stmt], list[tuple[str, str, str]]] = {
            (each, twin): [] for each in near if each not in {one, other} for twin in (one, other)
        }
        agree = (_compare(*pair, differ) and all(each[0] == "name" for each in differ) for pair, differ in same.items())
        if not ends or any(agree):
            kind, first, second = hard[0]
            yield other, f"`{second}` where its twin has `{first}`: {kind}", one


_PLAIN: Final = (ast.Assign, ast.AugAssign, ast.Expr, ast.Return)
_ENDS: Final = words("""
    col cols column end first h height hi high higher k last left lo low lower max min next prev q right row rows
    start upper v w width x y
""")
"""Words of things that are on two sides of a bound, or lie along two dimensions."""


def _first_changed(one: str, other: str) -> tuple[str, str]:
    pairs = itertools.zip_longest(one.split("_"), other.split("_"), fillvalue="")
    return next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))


def _compare(one: Any, other: Any, found: list[tuple[str, str, str]], where: str = "") -> bool:
    """Collect in what two trees of one shape differ: names, and numbers of dimensions and comparisons. False where
    they have two shapes."""
    if isinstance(one, ast.keyword) and isinstance(other, ast.keyword):
        where = one.arg or ""
    texts = [ast.unparse(each) if where in {"dim", "axis"} else "" for each in (one, other)]
    # `-1` and `1` may be one dimension.
    if texts[0] != texts[1] and all(re.fullmatch(r"-?\d", each) for each in texts) and "0" in texts:
        found.append(("a dimension", texts[0], texts[1]))
        return True
    if type(one) is not type(other) or not isinstance(one, ast.AST):
        return bool(one == other)
    for field in one._fields:
        first, second = getattr(one, field, None), getattr(other, field, None)
        if isinstance(first, str) and isinstance(second, str):
            if first != second:
                found.append(("name", first, second))
        elif isinstance(first, list) and isinstance(second, list):
            operators = [STRICTER.get(type(each)) is type(twin) for each, twin in zip(first, second, strict=False)]
            if field == "ops" and operators == [True]:
                found.append(("a comparison", ast.unparse(one), ast.unparse(other)))
            elif len(first) != len(second) or not all(
                _compare(*each, found) for each in zip(first, second, strict=True)
            ):
                return False
        elif isinstance(first, ast.AST) and isinstance(second, ast.AST):
            if not _compare(first, second, found, where if field == "value" else ""):
                return False
        elif first != second:
            return False
    return True


def cut_elsewhere(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `cat([turned, x[..., n:]], dim=0)`, whose part was cut along the last dimension, `x.gather(-1, order)` of
    an order along 0, and `cat(x.chunk(2, dim=1), dim=0)`."""
    for function in module.functions() if "dim=" in module.text else ():
        known: dict[str, int] = {}
        statements = own_nodes(function, ast.Assign, ast.Expr, ast.Return)
        for statement in sorted(statements, key=lambda each: each.lineno):
            for call in nodes_in(statement, ast.Call):
                name, along = last_name(call.func), dimension(call)
                index = keyword(call, "index") or (call.args[-1] if call.args else ast.Constant(None))
                taken = [index] if name == "gather" else []
                taken += getattr(call.args[0], "elts", []) if call.args and name in {"cat", "concat"} else []
                inline = [each for each in taken if _cut_along(each) is not None]
                cuts = [each for each in inline if isinstance(each, ast.Subscript)]
                bounds = [
                    ast.unparse(each.slice) for each in cuts if ast.unparse(each.value) == ast.unparse(cuts[0].value)
                ]
                # `cat([x[n:], x[:n]])` turns halves round; rows may well be put beside others.
                turned = len(bounds) == 2 and bounds[0].endswith(":") and bounds[0][:-1] == bounds[1][1:]
                if turned or (len(inline) == 1 and _cut_along(inline[0]) == -1):
                    known[ast.unparse(inline[0])] = _cut_along(inline[0]) or 0
                other = next((each for each in taken if known.get(ast.unparse(each), along) != along), None)
                if other is not None and along is not None and 0 in {along, known[ast.unparse(other)]}:
                    said = f"`{ast.unparse(other)}` is made along {known[ast.unparse(other)]}, and used along {along}"
                    yield call, said
                halves = call.args[0] if call.args and name in {"cat", "concat"} else None
                halves = halves.value if isinstance(halves, ast.Subscript) else halves
                cut = isinstance(halves, ast.Call) and last_name(halves.func) in {"chunk", "split"}
                of = dimension(halves) if isinstance(halves, ast.Call) and cut else None
                if of is not None and along is not None and of != along and 0 in {of, along}:
                    yield call, f"parts along {of} are joined along {along}"
            if isinstance(statement, ast.Assign):
                _note_cuts(statement, known)


def _note_cuts(statement: ast.Assign, known: dict[str, int]) -> None:
    """Keep the dimension along which `x[..., n:]` is a part, and along which `argsort`, `sort` and `topk` order."""
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple):
        of = value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts)
        pairs = list(zip(target.elts, of, strict=False))
    for at, (name, given) in enumerate(pairs):
        known.pop(ast.unparse(name), None)
        ordering = last_name(given.func) if isinstance(given, ast.Call) else ""
        along = dimension(given) if isinstance(given, ast.Call) else None
        if isinstance(name, ast.Subscript) and (axis := number_of(name.slice)) is not None:
            known[f"{ast.unparse(name.value)}: shape"] = axis  # `shape[-1] = n`, and `torch.full(shape, 0)` behind it
        elif isinstance(given, ast.Call) and ordering in {"empty", "full", "ones", "zeros"} and given.args:
            if (axis := known.get(f"{ast.unparse(given.args[0])}: shape")) is not None:
                known[ast.unparse(name)] = axis
        elif _cut_along(given) == -1:
            known[ast.unparse(name)] = -1
        elif along is not None and (
            ordering == "argsort"
            or (at == 1 and ordering in {"sort", "topk"})
            or (isinstance(target, ast.Tuple) and ordering == "chunk")
        ):
            known[ast.unparse(name)] = along


def _cut_along(node: ast.expr) -> int | None:
    """Return -1 of `x[..., n:]` and 0 of `x[n:]`."""
    where = node.slice if isinstance(node, ast.Subscript) else None
    if isinstance(where, ast.Tuple) and len(where.elts) == 2 and isinstance(where.elts[1], ast.Slice):
        return -1 if ast.unparse(where.elts[0]) == "..." else None
    return 0 if isinstance(where, ast.Slice) else None


def index_elsewhere(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `x.gather(dim=0, index=i.unsqueeze(-1))`, and `(x * m).sum(dim=0) / m.sum(dim=1)`."""
    for call in module.nodes(ast.Call):
        dim = dimension(call)
        index = keyword(call, "index") or (call.args[-1] if call.args else None)
        if last_name(call.func) != "gather" or dim is None or not isinstance(index, ast.Call):
            continue
        grown = index.args[0] if index.args else keyword(index, "dim")
        if last_name(index.func) == "unsqueeze" and grown is not None and {ast.unparse(grown), str(dim)} == {"-1", "0"}:
            yield call, f"`gather` along {dim}, with an index that has one entry along {ast.unparse(grown)}"
    for call in module.nodes(ast.Call):
        of = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "unsqueeze" else None
        inner = of.args[0] if isinstance(of, ast.Call) and len(of.args) == 1 else None
        dims = [
            number_of((*each.args, keyword(each, "dim"))[0]) for each in (inner, call) if isinstance(each, ast.Call)
        ]
        if isinstance(inner, ast.Call) and last_name(inner.func) == "squeeze" and len(set(dims)) == 2 and 0 in dims:
            yield inner, f"dimension {dims[0]} is taken away, and {dims[1]} put back"
    for part in module.nodes(ast.Subscript):
        pair = [each for each in (part.value, part.slice) if isinstance(each, ast.Call)]
        along, roots = {dimension(each) for each in pair}, {min(names_in(each), default="") for each in pair}
        if len(pair) == len(along) == 2 and len(roots) == 1 and along > {0}:
            yield part, f"`{ast.unparse(part)}` is made along one dimension, and picked along another"
    for ratio in (each for each in module.nodes(ast.BinOp) if isinstance(each.op, ast.Div)):
        total, counts = (_sum_in(each) for each in (ratio.left, ratio.right))
        text = ast.unparse(ratio.right)
        for made in own_nodes(module.function_of(ratio), ast.Assign) if total is not None and counts is None else ():
            if re.search(rf"\b{re.escape(ast.unparse(made.targets[0]))}\b", text) and _sum_in(made.value) is made.value:
                counts = _sum_in(made.value)
        dims = [dimension(each) for each in (total, counts) if each is not None]
        known = len(set(dims) - {None}) == 2 and 0 in dims
        if known and counts is not None and "mask" in ast.unparse(counts):
            yield ratio, f"sums along {dims[0]} are divided by counts along {dims[1]}"


def _sum_in(node: ast.expr) -> ast.Call | None:
    return next((each for each in nodes_in(node, ast.Call) if last_name(each.func) == "sum"), None)


RULES: Final = (
    Rule("over-rows", Severity.MEDIUM, in_tests=False, in_file=over_rows),
    Rule("unlike-twin", Severity.MEDIUM, in_tests=False, in_file=unlike_twin),
    Rule("odd-twin", Severity.MEDIUM, in_tests=False, in_file=odd_twin),
    Rule("along-batch", Severity.MEDIUM, in_tests=False, in_file=along_batch),
    Rule("cut-elsewhere", Severity.MEDIUM, in_tests=False, in_file=cut_elsewhere),
    Rule("index-elsewhere", Severity.HIGH, in_tests=False, in_file=index_elsewhere),
)
