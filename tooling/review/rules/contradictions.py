"""Code that contradicts itself: a guard and what stands behind it, arguments and the names of parameters, a name and
its only likeness."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, nodes_in, own_nodes, parameters
from tooling.python.symbols.calls import positional, written_signature
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import LEAVES, following, is_expected, reached, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_SAYS_MISSING: Final = re.compile(
    r"\b(?:not (?:set|found(?! in\b)|initiali[sz]ed|given|provided|specified|loaded|defined)|"
    r"missing|required|uninitiali[sz]ed)|\brequires (?:an? )?\w+ to be set|"
    r"\bmust (?:be (?:given|provided|set|specified|initiali[sz]ed)|pass|provide|specify)|"
    r"^no\b|\b(?:is|are|was|were|not be) empty\b"
)
_NAMED_MISSING: Final = re.compile(
    r"miss|unknown|invalid|error|empty|without|unset|absent|not_|no_|extra|unexpected|fail|stale|"
    r"requir|mandatory|must|exist|strict|skip|avail|known|valid|choice"
)
_CONDITIONAL: Final = re.compile(r"\b(when|if|with|without|unless|for|but|because|since|both|cannot|can't|only)\b")
"""Words of a message that speaks of something else: "y is required when x is set"."""
_DEPRECATES: Final = re.compile(r"^(?:passing|giving|using) .*\b(?:is|are) (?:deprecated|no longer)", re.IGNORECASE)
_READS: Final = re.compile(r"(?:load|open|read|parse|import)_\w|open$|^(?:exists|isdir|isfile|len)$")
"""Names of functions that read what is behind their argument."""
_CLOSE: Final = 0.87
"""Likeness of two names of which one is taken for the other misspelt."""


def guard_contradicts(module: Module, _side: Side) -> Iterator[Hit]:
    """Find what is used where it can only be None, and an error about what is missing where it is there."""
    for node in module.nodes(ast.If):
        both = node.test.values if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And) else []
        for at, test in enumerate(both or [node.test]):
            name, is_none = _compared_with_none(test)
            set_since = any(_may_set(each, name) for one in both[at + 1 :] for each in ast.walk(one))
            used: ast.expr | None = None
            if is_none and not set_since:
                calls = [each for each in _sure(node.body[0]) if isinstance(each, ast.Call) and len(each.args) == 1]
                reading = (each for each in calls if _READS.match(last_name(each.func)))
                used = next((each for each in reading if ast.unparse(each.args[0]) == name), None)
                used = used or _first_use(module, node.body, name)
            if used is not None:
                yield used, f"`{ast.unparse(used)}` where `{name}` is None"
        name, is_none = _compared_with_none(node.test)
        if not node.orelse and isinstance(node.body[-1], LEAVES):
            rest = following(module, node)
            if name and not is_none:
                used = _first_use(module, rest, name) or _read_next(rest, name) or _handed_on(node.body, rest, name)
                back = rest[0].value if rest and isinstance(rest[0], ast.Return) else None
                # A validator returns what it was given, None or not.
                function = module.function_of(node)
                own = function is None or name not in parameters(function)
                used = used or (back if back is not None and ast.unparse(back) == name and own else None)
                if used is not None:
                    yield node, f"goes on with `{ast.unparse(used)}` only where `{name}` is None"
            yield from _left_when_there(module, node, rest)
        if (
            isinstance(node.test, ast.UnaryOp)
            and isinstance(node.test.op, ast.Not)
            and isinstance(node.body[0], ast.Raise)
        ):
            yield from ((node, said) for said in _raised_where_off(node.test.operand, node.body[0]))
        reasons = _raised_where_right(node.test, node.body[-1]) if isinstance(node.body[-1], ast.Raise) else iter(())
        for said in itertools.islice(reasons, 1):
            yield node, said
        whole = isinstance(node.test, ast.Name | ast.Attribute)
        there = name if name and not is_none else ast.unparse(node.test) if whole else ""
        if isinstance(node.test, ast.Call) and last_name(node.test.func) == "hasattr" and len(node.test.args) == 2:
            there = ast.unparse(node.test.args[1]).strip("'\"")
        if there and isinstance(node.body[0], ast.Raise) and _complains_about(node.body[0], there):
            yield node, f"says that `{there}` is missing where it is there"
    yield from _turned_twins(module)


def _raised_where_off(asked: ast.expr, raised: ast.Raise) -> Iterator[str]:
    """Say why an error under `not asked` is about what is there: "beam search is not supported" under
    `not use_beam_search`, "passing a list is deprecated" under `not isinstance(x, list)`."""
    name, text = last_word(_plain_name(asked)), " ".join(_texts(raised))
    words = set(name.lower().split("_")) - {"use", "is", "enable", "enabled", "with", "do", "allow", ""}
    pattern = r"^(?:currently,? )?(?P<what>[\w `'-]+?) (?:is|are) not (?:yet |currently )?supported\b"
    about = re.match(pattern, text.lower())
    if about is not None and words and words == set(re.findall(r"\w+", about["what"].replace("_", " "))):
        yield f"says that `{_plain_name(asked)}` is not supported where it is off"
    kind = asked.args[1:] if isinstance(asked, ast.Call) and last_name(asked.func) == "isinstance" else []
    if kind and _DEPRECATES.search(text) and not re.search(r"\bnot\b|must|expected", text):
        yield f"says that a `{ast.unparse(kind[0])}` is deprecated where there is none"


def _turned_twins(module: Module) -> Iterator[Hit]:
    """Find the one `if on_main(): return` beside several `if not on_main(): return` in front of the same statement."""
    groups: defaultdict[tuple[str, ...], list[tuple[bool, ast.If]]] = defaultdict(list)
    for node in module.nodes(ast.If):
        turned = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        asked = node.test.operand if isinstance(node.test, ast.UnaryOp) and turned else node.test
        rest = following(module, node)
        leaves = not node.orelse and isinstance(node.body[0], LEAVES)
        if leaves and rest and isinstance(asked, ast.Attribute | ast.Call):
            groups[tuple(map(ast.unparse, (asked, *node.body, rest[0])))].append((turned, node))
    for guards in groups.values():
        odd = [(turned, node) for turned, node in guards if sum(each is turned for each, _ in guards) == 1]
        alone = len(guards) > len(odd) == 1
        if alone or (len(odd) == len(guards) == 2 and _ON_ONE.search(ast.unparse(odd[1][1].test))):
            yield odd[-1][1], f"leaves where `{ast.unparse(odd[-1][1].test)}`, and its like where not"


_ON_ONE: Final = re.compile(r"main|master|rank|zero|primary")


def _left_when_there(module: Module, node: ast.If, rest: list[ast.stmt]) -> Iterator[Hit]:
    """Find what goes on only where something is empty or not there, and takes it all the same: `if rows: return` before
    `rows[0]`, `if hasattr(x, "y"): return` before `x.y.z`; and `if x is None: return x`, which nothing reads again."""
    name, asked = _plain_name(node.test), node.test
    used = _first_use(module, rest, name) if name else None
    index = used.slice if isinstance(used, ast.Subscript) else None
    index = index.operand if isinstance(index, ast.UnaryOp) else index
    part = re.match(r"(?:enable|use|with)_(\w+)$", last_word(name))
    if part is not None and part[1] in module.imported and any(f"{part[1]}." in ast.unparse(each) for each in rest):
        yield node, f"goes on with `{part[1]}` only where `{name}` is off"
    plain = name if name and not _FLAG.search(last_word(name)) else ""
    taken = _read_next(rest, name) if plain else None
    left = node.body[0].value if isinstance(node.body[0], ast.Return) else None
    if taken is None and _MANY.search(plain) and (left is None or ast.unparse(left) != name):
        taken = _handed_on(node.body, rest, name)
        taken = None if isinstance(module.parents.get(taken or node), ast.Expr) else taken  # `fill(rows)` may fill it
    if taken is not None and not isinstance(index, ast.Constant):
        yield node, f"goes on with `{ast.unparse(taken)}` only where `{name}` is empty"
    numbered = isinstance(index, ast.Constant) and type(index.value) is int
    if used is not None and (numbered or (isinstance(used, ast.Attribute) and used.attr in _OF_MATCHES)):
        yield node, f"goes on with `{ast.unparse(used)}` only where `{name}` is empty"
    found = asked.left if isinstance(asked, ast.Compare) and isinstance(asked.ops[0], ast.IsNot) else asked
    if isinstance(found, ast.Call) and (needed := _needs_it(module, rest, found)):
        yield node, f"goes on with `{needed}` only where `{ast.unparse(asked)}` is false"
    name, is_none = _compared_with_none(node.test)
    if is_none and rest and isinstance(left, ast.Name | ast.Attribute | ast.JoinedStr):
        own = {ast.unparse(each) for each in nodes_in(left, ast.Name, ast.Attribute)}
        later = nodes_in(module.function_of(node), ast.Name, ast.Attribute) if name in own else []
        later = [each for each in later if each.lineno > (node.end_lineno or 0) and ast.unparse(each) == name]
        first = min(later, key=lambda each: (each.lineno, each.col_offset), default=None)
        made = module.parents.get(first) if first is not None else None
        again = made.value if isinstance(made, ast.Assign | ast.NamedExpr) and made.value is not first else None
        holder = (
            made if isinstance(made, ast.Assign) else next(itertools.islice(module.around(made or node), 1, 2), None)
        )
        kept = again is None or name in map(ast.unparse, nodes_in(again, ast.Name, ast.Attribute))
        stored = holder in rest and not kept
        if name in own and ((first is None and "." not in name) or stored):
            yield node, f"returns `{ast.unparse(left)}` where `{name}` is None, and reads it nowhere else"


_MANY: Final = re.compile(r"(?<!arg)(?<![isu])s$")
_OF_MATCHES: Final = frozenset({"group", "groupdict", "groups", "span"})
"""Attributes of what is never empty: where it is false, it is None."""


def _needs_it(module: Module, rest: Sequence[ast.stmt], asked: ast.Call) -> str:
    """Return the code behind a call that asks whether something is there, or of a kind, which needs that it is."""
    name, of = last_name(asked.func), [ast.unparse(each) for each in asked.args]
    following = list(itertools.takewhile(lambda each: not isinstance(each, ast.Try), rest[:_NEAR_ENOUGH]))
    lazy = [each for each in following if isinstance(each, ast.Import | ast.ImportFrom)]
    if _AVAILABLE.fullmatch(name) and not asked.args:
        package = re.sub(r"is_|_?(?:available|installed)", "", name).replace("_", "")
        roots = [each.module or "" if isinstance(each, ast.ImportFrom) else each.names[0].name for each in lazy]
        wanted = [each for each in roots if each.partition(".")[0].replace("_", "").startswith(package)]
        return f"import {wanted[0]}" if wanted and package else ""
    if name == "find_spec" and of:
        wanted = [each.names[0].name for each in lazy if isinstance(each, ast.Import)]
        return next((f"import {each}" for each in wanted if repr(each) == of[0]), "")
    attribute = asked.args[1].value if len(of) == 2 and isinstance(asked.args[1], ast.Constant) else None
    used: ast.expr | None = None
    if name == "hasattr" and len(of) == 2:
        calls = [each for each in _sure(rest[0]) if isinstance(each, ast.Call)] if rest else []
        read = (each for each in calls if last_name(each.func) == "getattr" and [*map(ast.unparse, each.args)] == of)
        used = next(read, None)
        used = used or _first_use(module, rest, of[0], f"{of[0]}.{attribute}") if isinstance(attribute, str) else used
    elif name == "isinstance" and len(of) == 2 and of[1] in _ONLY_OF:
        used = _first_use(module, rest, of[0])
        used = used if isinstance(used, ast.Attribute) and used.attr in _ONLY_OF[of[1]] else None
    elif name in {"exists", "is_file", "isfile"} and (
        path := of[0] if of else ast.unparse(asked.func).rpartition(".")[0]
    ):
        used = _opened(following, path)
    return ast.unparse(used) if used is not None else ""


_NEAR_ENOUGH: Final = 6
"""Statements behind a guard that it is taken to be for."""
_ONLY_OF: Final = {
    "dict": {"get", "items", "keys", "setdefault", "update", "values"},
    "list": {"append", "extend", "insert", "sort"},
    "str": {"endswith", "lower", "replace", "split", "startswith", "strip", "upper"},
}
_READERS: Final = words("""
    glob iterdir listdir load load_file open read_bytes read_csv read_json read_text rglob scandir
""")


def _opened(statements: Sequence[ast.stmt], path: str) -> ast.Call | None:
    """Return the call that reads a file in straight-line code, if nothing may have made it before."""
    for statement in statements:
        heads: list[ast.AST] = [statement]
        if isinstance(statement, ast.With):
            heads = [each.context_expr for each in statement.items]
        if isinstance(statement, ast.If | ast.While):
            return None
        if isinstance(statement, ast.For):
            heads = [statement.iter]
        for call in nodes_in(heads, ast.Call):
            given = [ast.unparse(each) for each in call.args]
            mode = given[1] if len(given) > 1 else "'r'"
            own = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == path
            if last_name(call.func) in _READERS and (own or given[:1] == [path]) and re.match(r"['\"]r", mode):
                return call
            if own or path in given:
                return None
        if isinstance(statement, ast.For):
            return None
    return None


_FLAG: Final = re.compile(
    r"^(?:is|has|use|do|no|should|enable|skip|with|return|found|done)_?|ed$|^[A-Z_]+$|^n_|num|count"
)


def _first_mention(rest: Sequence[ast.stmt], name: str) -> tuple[ast.stmt, list[ast.expr]] | None:
    """Find the first statement that reads a name and gives it no value, with the places; of an attribute only the next
    statement counts: others may set it."""
    for statement in rest[:1] if "." in name else rest:
        nodes = nodes_in(statement, ast.Name, ast.Attribute)
        nodes = [each for each in nodes if ast.unparse(each) == name]
        if nodes:
            read = nodes_in(statement.value, ast.expr) if isinstance(statement, ast.Assign) else nodes
            loads = [each for each in nodes if isinstance(each.ctx, ast.Load) and each in read]
            # `x = float(x)` reads it before it gives it a value.
            return (statement, [*loads]) if loads and (read is not nodes or len(loads) == len(nodes)) else None
    return None


def _read_next(rest: Sequence[ast.stmt], name: str) -> ast.expr | None:
    """Return the call or loop that first takes a name, where nothing may have given it a value before."""
    statement, nodes = _first_mention(rest, name) or (None, [])
    if isinstance(statement, ast.For) and statement.iter in nodes:
        return statement.iter
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return | ast.With | ast.For | ast.If):
        return None
    value = statement.items[0].context_expr if isinstance(statement, ast.With) else getattr(statement, "iter", None)
    value = statement.test if isinstance(statement, ast.If) else value or getattr(statement, "value", None)
    for call in nodes_in(value, ast.Call) if value is not None else ():
        size = 2 if last_name(call.func) == "isinstance" else 1
        of = call.args[0] if len(call.args) == size and last_name(call.func) in _TAKE_SOMETHING else None
        if of in nodes:
            return call
    return None


def _handed_on(body: Sequence[ast.stmt], rest: Sequence[ast.stmt], name: str) -> ast.expr | None:
    """Return the call that is given a name next, where nothing may have given it a value before, if a branch returns
    nothing but a constant or the name."""
    value = body[0].value if isinstance(body[0], ast.Return) else None
    plain = value is None or isinstance(value, ast.Constant) or ast.unparse(value) == name
    if len(body) > 1 or not plain or isinstance(body[0], ast.Raise):
        return None
    statement, nodes = _first_mention(rest, name) or (None, [])
    if not isinstance(statement, ast.Assign | ast.Expr | ast.Return):
        return None
    calls = [each for each in _sure(statement) if isinstance(each, ast.Call)]
    told = (each for each in calls if not _SAYS.search(ast.unparse(each.func)))
    return next((each for each in told if any(one in nodes for one in each.args)), None)


_SAYS: Final = re.compile(r"log|warn|print|format|^(?:str|repr|bool|super)$", re.IGNORECASE)


_TAKE_SOMETHING: Final = words("""
    Path enumerate float get_rank get_world_size int isinstance len listdir makedirs open reversed sorted tqdm zip
""")
"""Calls that nobody makes with nothing on purpose."""
_AVAILABLE: Final = re.compile(
    r"is_(?:\w+_)?(?:available|installed)|_*(?:HAS|HAVE|SUPPORTS)_\w+|\w+_(?:AVAILABLE|INSTALLED)"
)
_UNSUPPORTED: Final = re.compile(r"\bnot (?:yet )?(?:support|implement)")
_FAILED: Final = re.compile(
    r"(?:failed to|could not|cannot|unable to) (?:create|find|get|init|load|open|parse|read|start)", re.IGNORECASE
)
_SAME_KIND: Final = {"dictionary": "dict", "integer": "int", "mapping": "dict", "number": "float", "string": "str"}
_EXPECTED: Final = re.compile(
    r"(?:(?:must|should) (?:be|contain)|expected|expects) "
    r"(?:(?:an?|instance|of|the|\dD|non-?empty|plain|single|valid) )*[`'\"]*([\w.]+)"
)
_NOT_INSTALLED: Final = re.compile(
    r"\binstall(?:ed)?\b|must be available|\bis required\b|\b[Rr]equires\b|not (?:available|found)|unavailable|"
    r"only supported with|\b[Nn]o (?:CUDA|cuda|GPU|gpu)\b"
)


def _raised_where_right(test: ast.expr, raised: ast.Raise) -> Iterator[str]:
    """Say why an error comes where what it asks for holds: `if is_x_available(): raise ImportError`, and
    `if isinstance(x, list): raise TypeError("x must be a list")`."""
    if not isinstance(raised.exc, ast.Call):
        return
    text = " ".join(_texts(raised))
    kind = last_name(raised.exc.func)
    there = isinstance(test, ast.Call) and last_name(test.func) in {"exists", "is_dir", "is_file", "isdir", "isfile"}
    if kind == "FileNotFoundError" and (there or (_plain_name(test) and not _NAMED_MISSING.search(_plain_name(test)))):
        yield f"says that something is not found where `{ast.unparse(test)}` holds"
    plain = not isinstance(test, ast.Call) or not test.args
    asked = last_name(test.func if isinstance(test, ast.Call) else test) if plain else ""
    if _AVAILABLE.fullmatch(asked):
        imports = last_name(raised.exc.func) in {"ImportError", "ModuleNotFoundError"}
        if _NOT_INSTALLED.search(text) and (imports or "conflict" not in text) and "uninstall" not in text:
            yield f"says that something is missing where `{ast.unparse(test)}` holds"
    asks = re.compile(r"(?:_?(?:is|has|supports)_(?=\w{6})|(?=callable$))(\w+)$")
    said = asks.match(last_name(test.func)) if isinstance(test, ast.Call) else None
    if said is not None and re.search(rf"(?:only|not)\w{{0,12}}{_squashed(said[1])[:9]}", _squashed(text)):
        yield f"says that only what `{ast.unparse(test)}` holds for is right where it holds"
    yield from _named_by_the_error(test, raised, kind, text)
    right = test.comparators[0] if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is) else None
    wanted = _squashed(str(right.value) if isinstance(right, ast.Constant) else last_name(right))
    must = re.compile(rf"(?:must|should)(?:be|equal|match|use)\w{{0,8}}{wanted}")
    if right is not None and len(wanted) > 1 and must.search(_squashed(text)):
        yield f"says what must be where `{ast.unparse(test)}`"
    if isinstance(test, ast.Call) and last_name(test.func) == "isinstance" and len(test.args) == 2:
        kind = last_name(test.args[1])
        expected = _EXPECTED.search(text)
        if kind and expected is not None and _SAME_KIND.get(last_word(expected[1]), last_word(expected[1])) == kind:
            yield f"says that a `{kind}` is expected where it is one"


def _named_by_the_error(test: ast.expr, raised: ast.Raise, kind: str, text: str) -> Iterator[str]:
    """Say why an error is wrong that names what is asked for: "`rank` is only valid with lora" where it is None."""
    name, is_none = _compared_with_none(test)
    words = last_word(name).replace("_", " ")
    if is_none and raised.cause is not None and ast.unparse(raised.cause) == name:
        yield f"raises from `{name}` where it is None"
    asked = test.args[0] if isinstance(test, ast.Call) and last_name(test.func) == "get" and test.args else None
    option = _plain_name(test) or (str(asked.value) if isinstance(asked, ast.Constant) else "")
    flag = re.escape(last_word(option).strip("_").replace("_", " "))
    on = rf"\b{flag} (?:must|has to|should) be (?:true|set|enabled)\b|\b(?:must|please|should) enable {flag}\b"
    if flag and re.search(on, _squashed(text, " ")):
        yield f"says that `{ast.unparse(test)}` must be true where it is"
    plain = text.replace("_", " ")
    if is_none and kind == "NotImplementedError" and _UNSUPPORTED.search(text) and words in plain.lower():
        yield f"says that `{name}` is not supported where it is None"
    only = (
        r"is only (?:allowed|supported|used|valid)|can only be used|(?:can|must|should)(?:not| not) be (?!none|empty)"
    )
    if is_none and words and re.match(rf"\W*{re.escape(words)}\W* (?:{only})", plain.lower()):
        yield f"says where `{name}` is right, and it is None"
    failed = re.match(rf"{_FAILED.pattern} (?:the |an? )?{re.escape(words)}", plain, re.IGNORECASE)
    if name and not is_none and failed and not _NAMED_MISSING.search(name):
        yield f"says that something failed where `{name}` is there"
    derives = isinstance(test, ast.Call) and last_name(test.func) == "issubclass"
    if derives and re.search(r"must (?:inherit|subclass|be a sub)", text):
        yield f"says that a class must inherit where `{ast.unparse(test)}` holds"


def _squashed(text: str, between: str = "") -> str:
    """Return a text in lower case, and its words with nothing else between them."""
    return re.sub(r"[\W_]+", between, text.lower())


def _compared_with_none(test: ast.expr) -> tuple[str, bool]:
    """Return "x" and whether it is None under the test: `x is None`, `x is not None`."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return "", False
    name = _plain_name(test.left.target if isinstance(test.left, ast.NamedExpr) else test.left)
    right = test.comparators[0]
    none = isinstance(right, ast.Constant) and right.value is None and isinstance(test.ops[0], ast.Is | ast.IsNot)
    return (name, isinstance(test.ops[0], ast.Is)) if none and name else ("", False)


def _may_set(node: ast.AST, name: str) -> bool:
    """Whether a part of a condition sets a name: `(m := find())`, and `self.connect()` an attribute of self."""
    if isinstance(node, ast.NamedExpr):
        return node.target.id == name
    owner = name.partition(".")[0] if "." in name and isinstance(node, ast.Call) else ""
    return bool(owner) and any(isinstance(each, ast.Name) and each.id == owner for each in ast.walk(node))


def _plain_name(node: ast.expr) -> str:
    """Return "x" and "self.x"; "" for everything else."""
    named = isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return ast.unparse(node) if named else ""


_ARITHMETIC: Final = (ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)


_OF_NONE: Final = frozenset({"AttributeError", "BaseException", "Exception", "IndexError", "TypeError"})
"""Errors of what is done with None, or with nothing."""


def _first_use(module: Module, body: Sequence[ast.stmt], name: str, exact: str = "") -> ast.expr | None:
    """Return the first `name.x`, `name[x]` or `name(x)` of straight-line code, if nothing may have set the name; or the
    first that is exactly an expression."""
    for statement in body:
        if isinstance(statement, ast.Try):
            kinds = [each for one in statement.handlers for each in (ast.walk(one.type) if one.type else [None])]
            caught = any(each is None or (isinstance(each, ast.expr) and last_name(each) in _OF_NONE) for each in kinds)
            return None if caught else _first_use(module, statement.body, name, exact)
        if not isinstance(
            statement,
            ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Return | ast.Raise | ast.If | ast.Assert,
        ):
            return None
        head = statement.test if isinstance(statement, ast.If | ast.Assert) else statement
        nodes = _sure(head)
        found = next((each for each in nodes if _uses(each, name, exact)), None)
        if isinstance(found, ast.expr):
            return found
        others: list[ast.AST] = [
            each for each in ast.walk(head) if each not in nodes and isinstance(each, ast.Name | ast.Attribute)
        ]
        others += [each for each in nodes if isinstance(getattr(each, "ctx", None), ast.Store)]
        # A method may set an attribute of its object, and any function a name of the module.
        owner, _, attribute = name.partition(".")
        handed = [one for each in nodes if isinstance(each, ast.Call) for one in ast.walk(each)]
        own = owner in module.shadowing[module.function_of(statement) or module.tree]
        may_set = (
            any(isinstance(each, ast.Name) and each.id == owner for each in handed) if attribute and own else handed
        )
        if may_set and (attribute or not own):
            return None
        ends = isinstance(statement, ast.Return | ast.Raise)
        # What a branch does in between does not matter, if it comes back and leaves the name alone.
        branches = [statement.body, statement.orelse] if isinstance(statement, ast.If) else []
        if branches and name not in map(ast.unparse, nodes_in(head, ast.expr)):
            inside = [used for each in branches if (used := _first_use(module, each, name, exact)) is not None]
            if inside:
                return inside[0]
        said = [one for each in branches for one in nodes_in(each, ast.stmt, ast.expr)]
        ends |= any(isinstance(each, LEAVES) or ast.unparse(each) == name for each in said)
        if ends or any(ast.unparse(each) in {name, exact} for each in others):
            return None
    return None


def _uses(node: ast.AST, name: str, exact: str) -> bool:
    """Whether a node is `name.x`, `name[x]`, `name(x)` or `name - x`; or, if that is given, exactly an expression."""
    if exact:
        return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and ast.unparse(node) == exact
    values = [node.func] if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
        values = [node.value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        values = [node.left, node.right]
    if isinstance(node, ast.Compare) and isinstance(node.ops[-1], ast.In | ast.NotIn):
        values = [node.comparators[-1]]
    if (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Eq)
        and not isinstance(node.comparators[0], ast.Constant)
    ):
        values = [node.left]
    return any(ast.unparse(each) == name for each in values)


_PERHAPS: Final = (
    ast.Lambda,
    ast.comprehension,
    ast.NamedExpr,
    *Function.__args__,
    ast.ClassDef,
)


def _sure(root: ast.AST) -> list[ast.AST]:
    """Return the nodes that are evaluated whenever the statement is: not those behind `and`, in lambdas and loops."""
    found: list[ast.AST] = []
    waiting = [root]
    while waiting:
        node = waiting.pop()
        parts = list(ast.iter_child_nodes(node))
        loops = [each for each in parts if isinstance(each, ast.comprehension)]
        if loops:
            waiting.append(loops[0].iter)
        elif isinstance(node, ast.BoolOp):  # what is evaluated first, and may be all
            waiting.append(node.values[0])
        elif isinstance(node, ast.IfExp):
            waiting.append(node.test)
        elif not isinstance(node, _PERHAPS):
            found.append(node)
            waiting.extend(parts)
    return found


def _texts(raised: ast.Raise) -> list[str]:
    """Return the strings in what is raised."""
    nodes = ast.walk(raised.exc) if isinstance(raised.exc, ast.Call) else ()
    return [each.value for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _complains_about(raised: ast.Raise, name: str) -> bool:
    """Whether the message says that what is named is missing. A name like `missing_keys` is there when it is right."""
    words = last_word(name)
    if not isinstance(raised.exc, ast.Call) or not raised.exc.args or _NAMED_MISSING.search(words):
        return False
    text = " ".join(_texts(raised)).lower()
    named = "[ _-]?".join(map(re.escape, words.strip("_").lower().split("_")))
    about = re.search(rf"{named}(?!-free)", text)
    # "x is required when y is set" is about x alone; "y is required when x is set" is not.
    other = _CONDITIONAL.search(text)
    end = other.start() if other is not None else len(text)
    if re.search(rf"\brequires (?:an? |the )?[`'\"]{re.escape(last_word(name))}[`'\"]", text):
        return True
    if re.search(rf"\bplease (?:pass|provide|set|specify) (?:an? |the )?[`'\"]?{re.escape(words)}\b", text):
        return True
    return about is not None and about.start() < end and "both" not in text and bool(_SAYS_MISSING.search(text[:end]))


def last_word(name: str) -> str:
    """Return "x" of "self.x"."""
    return name.rpartition(".")[2]


def argument_order(module: Module, side: Side) -> Iterator[Hit]:
    """Find two arguments whose names are those of each other's parameters, and `for sp, req in zip(requests,
    sampling_params)`."""
    loops = list(module.nodes(ast.For, ast.comprehension))
    for loop in loops:
        taken, over = loop.target, loop.iter
        if isinstance(over, ast.Call) and last_name(over.func) == "enumerate" and isinstance(taken, ast.Tuple):
            taken, over = taken.elts[-1], over.args[0] if over.args else over
        if isinstance(over, ast.Call) and last_name(over.func) == "zip" and isinstance(taken, ast.Tuple):
            pairs = list(zip(map(last_name, taken.elts), map(last_name, over.args), strict=False))
            for (one, its), (other, theirs) in itertools.combinations(pairs, 2):
                if _item_like(one, theirs) and _item_like(other, its) and not _item_like(one, its):
                    yield taken, f"`{one}` and `{other}` come from `{its}` and `{theirs}`"
    for node in module.nodes(ast.Call):
        words = _argument_names(node)
        around = module.function_of(node)
        # A gradient, an inverse or a mirrored case takes them the other way round.
        turned = isinstance(around, Function) and _TURNED.search(around.name)
        if len(set(filter(None, words))) < 2 or turned:
            continue
        target = _target(module, side, node) or {}
        names = list(target)
        calls = own_nodes(around, ast.Call)
        others = [_argument_names(each) for each in calls if last_name(each.func) == last_name(node.func)]
        for i, word in enumerate(words):
            j = names.index(word) if len(word) > 1 and word in names else i
            optional = i < len(names) and target[names[i]]
            if j != i and j >= len(words) and optional and _takes_another(node, names[i], word):
                said = f"`{ast.unparse(node.func)}` takes `{names[i]}` here, and `{word}` is a parameter of its own"
                yield node, said
            if i < j < len(words) and i < len(names) and words[j] == names[i]:
                if any(each[j : j + 1] == [word] and each[i : i + 1] == [words[j]] for each in others):
                    continue  # `kl(p, q) + kl(q, p)` means both
                yield node, f"`{ast.unparse(node.func)}` takes `{names[i]}` before `{names[j]}`"


def _item_like(item: str, rows: str) -> bool:
    """Whether an item is called after its rows: `req` of `requests`, `sp` of `sampling_params`."""
    initials = "".join(word[:1] for word in rows.split("_"))
    return len(item) > 1 and (rows.startswith(item) or (len(initials) > 1 and item == initials))


_TURNED: Final = re.compile(
    r"backward|grad|inver[st]|reverse|revert|swap|flip|mirror|transpose|undo|symmetri|rotate|(?:^|_)(?:r|un|de)(?:$|_)"
)


def _takes_another(call: ast.Call, parameter: str, word: str) -> bool:
    """Whether an argument is called as a later parameter is, which is not given, and stands where one of quite another
    name is expected."""
    given = {each.arg for each in call.keywords}
    open_ended = None in given or any(isinstance(each, ast.Starred) for each in call.args)
    alike = bool(set(word.split("_")) & set(parameter.split("_")))
    return not open_ended and word not in given and not alike and len(word) > _SHORT


_SHORT: Final = 4
"""Letters of a name that many things have."""


def _argument_names(call: ast.Call) -> list[str]:
    """Return the last names of the arguments up to a `*rest`, "" for other expressions."""
    plain = itertools.takewhile(lambda each: not isinstance(each, ast.Starred), call.args)
    return [last_name(each) for each in plain]


def _target(module: Module, side: Side, call: ast.Call) -> dict[str, bool] | None:
    """Return what `_positional` returns of a function of ours that is called by name, or of a method of the same
    class, without its self."""
    func, around = call.func, module.function_of(call)
    owner = module.class_of(around) if around is not None else None
    if isinstance(func, ast.Attribute) and ast.unparse(func.value) == "super()" and owner is not None:
        bodies = [each for _, one in side.lineage(module, owner)[0][1:] for each in one.body]
        overridden = (each for each in bodies if isinstance(each, Function) and each.name == func.attr)
        if (found := next(overridden, None)) is not None:
            return _positional(found, bound=True)
    if isinstance(func, ast.Attribute) and isinstance(around, Function) and not module.methods_called(call):
        # A method takes what the one takes that it overrides, and so does what a function of the same name hands two
        # parameters of one kind to; constructors are each as they like.
        above = ast.unparse(func.value) == "super()"
        own = _positional(around, bound=owner is not None)
        kinds = {each.arg: ast.unparse(each.annotation) if each.annotation else "" for each in around.args.args}
        told = [kind for kind in kinds.values() if kind]
        # Who hands on everything means each of them.
        whole = above or (len(own) > 2 and sorted(_argument_names(call)) == sorted(own))
        names = [each if whole or told.count(kinds.get(each, "")) > 1 else f"{at}" for at, each in enumerate(own)]
        return dict.fromkeys(names, False) if around.name == func.attr != "__init__" else None
    found = reached(module, side, call)
    if found is None:
        return None
    static = any(last_name(each) == "staticmethod" for each in found.decorator_list)
    return _positional(found, bound=isinstance(func, ast.Attribute) and not static)


def _positional(function: Function, *, bound: bool = False) -> dict[str, bool]:
    """Return the parameters that a call may pass without their names, and whether they have a default."""
    return {each.name: each.default is not None for each in positional(written_signature(function.args, bound=bound))}


_ERRORS: Final = re.compile(r"^[A-Z]\w*(Error|Exception)$")


def error_not_raised(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an exception of a library, or of the file, that a statement makes and drops; ruff knows those of Python."""
    errors = (each for each in module.nodes(ast.ClassDef) if any("Exception" in last_name(one) for one in each.bases))
    own = {each.name for each in errors if len(module.bindings[each.name]) == 1}
    for node in module.nodes(ast.Expr):
        call = node.value
        name = last_name(call.func) if isinstance(call, ast.Call) else ""
        given = isinstance(call, ast.Call) and bool(call.args or call.keywords)
        made = name in own or (given and bool(_ERRORS.match(name)))
        if isinstance(call, ast.Call) and made and not is_expected(module, node):
            yield node, f"`{ast.unparse(call.func)}` is made, and not raised"


def misspelt_attribute(module: Module, side: Side) -> Iterator[Hit]:
    """Find `self.stepcount` where the class sets `self.step_count`, and nothing in the repository has such a name."""
    for owner in module.nodes(ast.ClassDef):
        found = [each for each in nodes_in(owner, ast.Attribute) if _of_self(each)]
        stored = {each.attr for each in found if isinstance(each.ctx, ast.Store)}
        loaded = {each.attr for each in found if isinstance(each.ctx, ast.Load)}
        known = stored | {each.name for each in owner.body if isinstance(each, Function)}
        known |= {each.id for each in nodes_in(owner, ast.Name) if isinstance(each.ctx, ast.Store)}
        for node in found:
            if not isinstance(node.ctx, ast.Load) or node.attr in known or len(node.attr) < 5:
                continue
            unread = {each for each in stored - loaded if each.rstrip("s") == node.attr.rstrip("s")}
            like = next((each for each in sorted(stored) if each in unread or _misspelt(node.attr, each)), "")
            reads = [each for each in module.nodes(ast.Attribute) if each.attr == node.attr and _of_self(each)]
            # Text of the name anywhere else says that somebody knows it.
            known_here = not like or module.text.count(node.attr) != len(reads)
            if known_here or any(isinstance(each.ctx, ast.Store) for each in reads):
                continue
            if side.grep([node.attr], "*.py") in ([module.path], []):
                yield node, f"nothing sets `self.{node.attr}`; `{owner.name}` sets `self.{like}`"


def _of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def _misspelt(name: str, other: str) -> bool:
    if name.strip("_") == other.strip("_"):
        return False  # `_state` may be of a base class that another package defines
    if name.replace("_", "") == other.replace("_", ""):
        return True
    # `layer1` and `layer2`, `batch` and `batches` are names of two things.
    if re.sub(r"\d+", "", name) == re.sub(r"\d+", "", other) or name.rstrip("s") == other.rstrip("s"):
        return False
    same = abs(len(name) - len(other)) <= 1 and name[0] == other[0] and sorted(name) != sorted(other)
    turned = sorted(name) == sorted(other)
    return (turned or same) and SequenceMatcher(None, name, other, autojunk=False).ratio() >= _CLOSE and len(name) > 7


RULES: Final = (
    Rule("guard-contradicts", Severity.HIGH, in_file=guard_contradicts),
    Rule("argument-order", Severity.HIGH, in_file=argument_order),
    Rule("error-not-raised", Severity.HIGH, in_file=error_not_raised),
    Rule("misspelt-attribute", Severity.HIGH, in_file=misspelt_attribute),
)
