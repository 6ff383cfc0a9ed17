"""Plants defects in real files: one edit of a few characters, of a kind that people get wrong in this kind of code.

    edits = plant("areal/engine.py", text)      # all places where a defect of some kind can be planted
    edits[0].kind, edits[0].line, edits[0].apply(text)

Each kind finds its places in the syntax tree and cuts the text: what is around the edit stays as people wrote it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COLLECTIVE = re.compile(r"^(all_gather\w*|all_reduce|all_to_all\w*|barrier|broadcast\w*|reduce_scatter\w*|scatter\w*)$")
WAITS = frozenset({"join", "get", "wait", "result", "post", "request", "urlopen", "run", "wait_for", "communicate"})


@dataclass(frozen=True)
class Edit:
    """Replaces [start, end) of the text; `line` is where the defect is read, 1-based."""

    kind: str
    line: int
    start: int
    end: int
    new: str

    def apply(self, text: str) -> str:
        """Return the text with the defect."""
        return text[: self.start] + self.new + text[self.end :]


class Source:
    """A file with its tree: offsets of nodes, and the nodes that hold a node."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in text.split("\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    def span(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg) -> tuple[int, int]:
        """Return start and end of a node, in characters."""
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno or 0, node.end_col_offset or 0)

    def _at(self, line: int, column: int) -> int:
        whole = self.text[self.starts[line - 1] : self.starts[line]]
        return self.starts[line - 1] + len(whole.encode()[:column].decode(errors="ignore"))

    def code(self, node: ast.expr | ast.stmt | ast.keyword | ast.arg) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def replaced(self, kind: str, node: ast.expr | ast.stmt | ast.keyword | ast.arg, new: str) -> Edit:
        """Put other text in the place of a node."""
        return Edit(kind, node.lineno, *self.span(node), new)

    def without_keyword(self, kind: str, call: ast.Call, name: str) -> Iterator[Edit]:
        """Take a keyword out of a call, with the comma in front of it or behind it."""
        for keyword in call.keywords:
            if keyword.arg != name:
                continue
            start, end = self.span(keyword)
            before = re.search(r",\s*$", self.text[:start])
            after = re.match(r"\s*,[ \t]*", self.text[end:])
            start, end = (before.start(), end) if before else (start, end + (after.end() if after else 0))
            yield Edit(kind, call.lineno, start, end, "")

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the function around a node."""
        while (node := self.parents.get(node)) is not None:  # type: ignore[assignment]  # None ends the loop
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return node
        return None


def called(call: ast.Call) -> str:
    """Return "all_reduce" of `dist.all_reduce(...)`."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _is_collective(source: Source, call: ast.Call) -> bool:
    owner = source.code(call.func).rpartition(".")[0]
    return bool(COLLECTIVE.match(called(call))) and owner in {"dist", "torch.distributed"}


def dropped_group(source: Source) -> Iterator[Edit]:
    """`all_reduce(x, group=g)` -> `all_reduce(x)`."""
    for call in source.calls:
        if _is_collective(source, call):
            yield from source.without_keyword("dropped-group", call, "group")


def rank_conditional(source: Source) -> Iterator[Edit]:
    """Put a collective under `if dist.get_rank() == 0`."""
    for call in source.calls:
        statement = source.parents.get(call)
        if _is_collective(source, call) and isinstance(statement, ast.Expr) and "\n" not in source.code(statement):
            indent = " " * (statement.col_offset + 4)
            owner = source.code(call.func).rpartition(".")[0]
            new = f"if {owner}.get_rank() == 0:\n{indent}{source.code(statement)}"
            yield source.replaced("rank-conditional", statement, new)


def rank_return(source: Source) -> Iterator[Edit]:
    """Return on other ranks in front of a collective."""
    for call in source.calls:
        statement = source.parents.get(call)
        if _is_collective(source, call) and isinstance(statement, ast.Expr) and source.function(call):
            indent = " " * statement.col_offset
            owner = source.code(call.func).rpartition(".")[0]
            new = f"if {owner}.get_rank() != 0:\n{indent}    return\n{indent}{source.code(statement)}"
            yield source.replaced("rank-return", statement, new)


def shift_by_one(source: Source) -> Iterator[Edit]:
    """`x[:, :-1]` <-> `x[:, 1:]`, and `roll(x, -1)` -> `roll(x, 1)`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            words = source.code(node)
            said = re.search(r"logit|logp|label|input_ids|mask|tokens|target|values|ids", words)
            for old, new in ((":-1", "1:"), ("1:", ":-1")):
                cuts = [each for each in node.slice.elts if isinstance(each, ast.Slice) and source.code(each) == old]
                for cut in cuts if said else ():
                    yield source.replaced("shift-by-one", cut, new)
        if isinstance(node, ast.Call) and called(node) == "roll":
            given = [*node.args[1:2], *(each.value for each in node.keywords if each.arg == "shifts")]
            yield from (source.replaced("shift-by-one", each, "1") for each in given if source.code(each) == "-1")


def inverted_guard(source: Source) -> Iterator[Edit]:
    """`if x is None: return` -> `if x is not None: return`; `if not x: raise` -> `if x: raise`."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.If) or node.orelse or not isinstance(node.body[-1], ast.Return | ast.Raise):
            continue
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot):
            old, new = (" is not ", " is ") if isinstance(test.ops[0], ast.IsNot) else (" is ", " is not ")
            if source.code(test).count(old) == 1:
                yield source.replaced("inverted-guard", test, source.code(test).replace(old, new))
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield source.replaced("inverted-guard", test, source.code(test.operand))


def swapped_arguments(source: Source) -> Iterator[Edit]:
    """`f(mask, loss)` where `def f(mask, loss)`: two names that are the parameters' own, in the other order."""
    functions = {
        each.name: [arg.arg for arg in each.args.args if arg.arg not in {"self", "cls"}]
        for each in ast.walk(source.tree)
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for call in source.calls:
        names = functions.get(called(call), [])
        for one, other, first, second in zip(call.args, call.args[1:], names, names[1:], strict=False):
            words = source.code(one), source.code(other)
            own = (words[0].rpartition(".")[2], words[1].rpartition(".")[2])
            if own == (first, second) and words[0] != words[1]:
                start, end = source.span(one)[0], source.span(other)[1]
                between = source.text[source.span(one)[1] : source.span(other)[0]]
                yield Edit("swapped-arguments", call.lineno, start, end, f"{words[1]}{between}{words[0]}")


def denominator(source: Source) -> Iterator[Edit]:
    """`x.sum() / mask.sum().clamp(min=1)` -> `x.sum() / mask.sum()`; `max(n, 1)` -> `n`."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        right = node.right
        if isinstance(right, ast.Call) and called(right) in {"clamp", "clamp_min"} and "mask" in source.code(right):
            yield source.replaced("unguarded-denominator", right, source.code(right.func.value))  # type: ignore[attr-defined]  # the condition says what it is
        if isinstance(right, ast.Call) and called(right) == "max" and len(right.args) == 2:
            kept = [each for each in right.args if not isinstance(each, ast.Constant)]
            if len(kept) == 1:
                yield source.replaced("unguarded-denominator", right, source.code(kept[0]))


def unmasked(source: Source) -> Iterator[Edit]:
    """`(loss * mask).sum() / mask.sum()` -> `loss.sum() / mask.sum()`."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div) or "mask" not in source.code(node.right):
            continue
        for part in ast.walk(node.left):
            product = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult)
            if product and "mask" in source.code(part.right):  # type: ignore[attr-defined]  # the condition says what it is
                yield source.replaced("unmasked-numerator", part, source.code(part.left))  # type: ignore[attr-defined,arg-type]  # the condition says what it is


def mutable_default(source: Source) -> Iterator[Edit]:
    """`def f(x=None)` -> `def f(x=[])`; `field(default_factory=list)` -> `field(default=[])`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            args = [*node.args.posonlyargs, *node.args.args]
            for arg, default in zip(args[len(args) - len(node.args.defaults) :], node.args.defaults, strict=True):
                if arg.annotation and re.search(r"\b(list|dict|List|Dict)\b", source.code(arg.annotation)):
                    new = "[]" if re.search("ist", source.code(arg.annotation)) else "{}"
                    used = rf"(self\.\w+ = {arg.arg}\n|\b{arg.arg}(\.(append|update|extend|add)\(|\[[^\]]*\] = ))"
                    if source.code(default) == "None" and re.search(used, source.code(node)):
                        yield source.replaced("mutable-default", default, new)
        if isinstance(node, ast.keyword) and node.arg == "default_factory" and source.code(node.value) == "list":
            yield source.replaced("mutable-default", node, "default=[]")


def missing_await(source: Source) -> Iterator[Edit]:
    """`await f()` -> `f()`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            yield source.replaced("missing-await", node, source.code(node.value))


def blocking_call(source: Source) -> Iterator[Edit]:
    """`await asyncio.sleep(n)` -> `time.sleep(n)`; `await asyncio.to_thread(f, x)` -> `f(x)`."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Await) or not isinstance(node.value, ast.Call):
            continue
        name = source.code(node.value.func)
        if name == "asyncio.sleep" and re.search(r"^import time$", source.text, re.MULTILINE):
            yield source.replaced("blocking-call", node, source.code(node.value).replace("asyncio", "time", 1))
        if name == "asyncio.to_thread" and node.value.args:
            given = [source.code(each) for each in (*node.value.args[1:], *node.value.keywords)]
            yield source.replaced("blocking-call", node, f"{source.code(node.value.args[0])}({', '.join(given)})")


def unbounded_wait(source: Source) -> Iterator[Edit]:
    """`thread.join(timeout=5)` -> `thread.join()`."""
    for call in source.calls:
        if called(call) in WAITS:
            yield from source.without_keyword("unbounded-wait", call, "timeout")


def unsafe_load(source: Source) -> Iterator[Edit]:
    """`torch.load(path, weights_only=True)` -> `torch.load(path)`; `yaml.safe_load` -> `yaml.unsafe_load`."""
    for call in source.calls:
        if source.code(call.func) == "torch.load" and "weights_only=True" in source.code(call):
            yield from source.without_keyword("unsafe-load", call, "weights_only")
        if source.code(call.func) == "yaml.safe_load":
            yield source.replaced("unsafe-load", call.func, "yaml.unsafe_load")


def wrong_keyword(source: Source) -> Iterator[Edit]:
    """`f(batch_size=2)` -> `f(batchsize=2)` of a function of the same file."""
    own = {
        each.name: each
        for each in source.tree.body
        if isinstance(each, ast.FunctionDef) and each.args.kwarg is None and not each.decorator_list
    }
    for call in source.calls:
        if isinstance(call.func, ast.Name) and call.func.id in own:
            for each in call.keywords:
                if each.arg and "_" in each.arg.strip("_"):
                    new = f"{each.arg.replace('_', '')}={source.code(each.value)}"
                    yield source.replaced("wrong-keyword", each, new)


def wrong_attribute(source: Source) -> Iterator[Edit]:
    """`self.step_count` -> `self.stepcount` where the class sets it."""
    for owner in ast.walk(source.tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        found = [each for each in ast.walk(owner) if isinstance(each, ast.Attribute) and _of_self(each)]
        stored = {each.attr for each in found if isinstance(each.ctx, ast.Store)}
        for each in found:
            if isinstance(each.ctx, ast.Load) and each.attr in stored and "_" in each.attr.strip("_"):
                words = each.attr.strip("_")
                yield source.replaced(
                    "wrong-attribute", each, f"self.{each.attr.replace(words, words.replace('_', ''))}"
                )


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def undefined_name(source: Source) -> Iterator[Edit]:
    """`batch_size` -> `batchsize` where a local name is read."""
    for function in ast.walk(source.tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
            stored = {each.id for each in names if isinstance(each.ctx, ast.Store)}
            for each in names:
                if isinstance(each.ctx, ast.Load) and each.id in stored and "_" in each.id.strip("_"):
                    yield source.replaced("undefined-name", each, each.id.replace("_", ""))


def not_raised(source: Source) -> Iterator[Edit]:
    """`raise ValueError(x)` -> `ValueError(x)`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.cause is None:
            yield source.replaced("not-raised", node, source.code(node.exc))


def dropped_result(source: Source) -> Iterator[Edit]:
    """`x = x.clamp(...)` -> `x.clamp(...)`; the same for other pure methods."""
    for node in ast.walk(source.tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            pure = {"clamp", "masked_fill", "detach", "unsqueeze", "to", "contiguous", "permute", "strip", "lower"}
            target, value = source.code(node.targets[0]), source.code(node.value.func.value)
            if node.value.func.attr in pure and target == value:
                yield source.replaced("dropped-result", node, source.code(node.value))


def swallowed_error(source: Source) -> Iterator[Edit]:
    """`except Exception: raise` -> `except Exception: pass`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None and source.code(node.type) == "Exception":
            start, end = source.span(node.body[0])[0], source.span(node.body[-1])[1]
            if any(isinstance(each, ast.Raise) for each in node.body):
                yield Edit("swallowed-error", node.lineno, start, end, "pass")


def missing_prefix(source: Source) -> Iterator[Edit]:
    """`f"step {step}"` -> `"step {step}"`."""
    for node in ast.walk(source.tree):
        plain = isinstance(node, ast.JoinedStr) and re.match(r"""f["'][^"'\n]*["']$""", source.code(node))
        if plain and any(isinstance(each, ast.FormattedValue) for each in node.values):  # type: ignore[attr-defined]  # the condition says what it is
            yield source.replaced("missing-prefix", node, source.code(node)[1:])  # type: ignore[arg-type]  # the condition says what it is


def removed_no_grad(source: Source) -> Iterator[Edit]:
    """`@torch.no_grad()` goes."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.decorator_list:
                if source.code(each) in {"torch.no_grad()", "torch.inference_mode()"}:
                    start, end = source.span(each)
                    line = node.lineno - 1
                    yield Edit("removed-no-grad", line, start - 1, end + 1 + node.col_offset, "")


def wrong_dimension(source: Source) -> Iterator[Edit]:
    """`torch.cat(x, dim=0)` -> `dim=1`; `softmax(dim=-1)` -> `dim=0`."""
    for call in source.calls:
        for each in call.keywords:
            if each.arg == "dim" and source.code(each.value) in {"-1", "0", "1"}:
                new = "1" if source.code(each.value) == "0" else "0"
                yield source.replaced("wrong-dimension", each, f"dim={new}")


def boundary(source: Source) -> Iterator[Edit]:
    """`<` -> `<=`, `range(n)` -> `range(n - 1)`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt | ast.Gt):
            old = "<" if isinstance(node.ops[0], ast.Lt) else ">"
            left, right = source.code(node.left), source.code(node.comparators[0])
            yield source.replaced("boundary", node, f"{left} {old}= {right}")
        if isinstance(node, ast.Call) and source.code(node.func) == "range" and len(node.args) == 1:
            yield source.replaced("boundary", node, f"range({source.code(node.args[0])} - 1)")


def lost_lock(source: Source) -> Iterator[Edit]:
    """`with self.lock:` -> `if self.lock:`: what was done under the lock is done without."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.With) and len(node.items) == 1 and "lock" in source.code(node.items[0].context_expr):
            start = source.span(node)[0]
            yield Edit("lost-lock", node.lineno, start, start + len("with"), "if")


def left_open(source: Source) -> Iterator[Edit]:
    """`with open(p) as f: return json.load(f)` -> `f = open(p)` and the body without the `with`."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.With) or len(node.items) != 1 or len(node.body) != 1:
            continue
        item, body = node.items[0], node.body[0]
        opened = isinstance(item.context_expr, ast.Call) and source.code(item.context_expr.func) == "open"
        if opened and isinstance(item.optional_vars, ast.Name) and "\n" not in source.code(body):
            first = f"{item.optional_vars.id} = {source.code(item.context_expr)}"
            yield source.replaced("left-open", node, f"{first}\n{' ' * node.col_offset}{source.code(body)}")


def printed(source: Source) -> Iterator[Edit]:
    """`logger.info(x)` -> `print(x)`."""
    for call in source.calls:
        if source.code(call.func) in {"logger.info", "logger.debug"} and len(call.args) == 1 and not call.keywords:
            yield source.replaced("printed", call.func, "print")


def literal_key(source: Source) -> Iterator[Edit]:
    """`api_key=key` -> a key in the source."""
    for call in source.calls:
        for each in call.keywords:
            if each.arg in {"api_key", "token", "password", "auth_token"} and not isinstance(each.value, ast.Constant):
                yield source.replaced("literal-key", each, f'{each.arg}="9f8a7Qz2kLmN4pRsT6vWxYb1cD3eFgHj"')


def failure_as_score(source: Source) -> Iterator[Edit]:
    """`except Exception: ...; raise` -> `return 0.0`, in a function that returns a score."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            function = source.function(node)
            if function is not None and re.search(r"reward|score|verify", function.name):
                start, end = source.span(node.body[0])[0], source.span(node.body[-1])[1]
                if source.text[start:end] != "return 0.0":
                    yield Edit("failure-as-score", node.lineno, start, end, "return 0.0")


KINDS: dict[str, Callable[[Source], Iterator[Edit]]] = {
    "blocking-call": blocking_call,
    "boundary": boundary,
    "dropped-group": dropped_group,
    "dropped-result": dropped_result,
    "failure-as-score": failure_as_score,
    "inverted-guard": inverted_guard,
    "left-open": left_open,
    "literal-key": literal_key,
    "lost-lock": lost_lock,
    "missing-await": missing_await,
    "missing-prefix": missing_prefix,
    "mutable-default": mutable_default,
    "not-raised": not_raised,
    "printed": printed,
    "rank-conditional": rank_conditional,
    "rank-return": rank_return,
    "removed-no-grad": removed_no_grad,
    "shift-by-one": shift_by_one,
    "swallowed-error": swallowed_error,
    "swapped-arguments": swapped_arguments,
    "unbounded-wait": unbounded_wait,
    "undefined-name": undefined_name,
    "unguarded-denominator": denominator,
    "unmasked-numerator": unmasked,
    "unsafe-load": unsafe_load,
    "wrong-attribute": wrong_attribute,
    "wrong-dimension": wrong_dimension,
    "wrong-keyword": wrong_keyword,
}


def plant(text: str) -> dict[str, list[Edit]]:
    """Return the places of each kind; none in a file that is not Python, or would not be after the edit."""
    try:
        source = Source(text)
    except (SyntaxError, ValueError):
        return {}
    found: dict[str, list[Edit]] = {}
    for kind, places in KINDS.items():
        found[kind] = list(places(source))
    return {kind: edits for kind, edits in found.items() if edits}
