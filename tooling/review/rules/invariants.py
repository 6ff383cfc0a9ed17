"""Invariants of RL runs: versions of prompts do not count, episodes share a workflow, denominators are a step's, a
failure is not a score, what an episode hands on belongs together. Reward functions are known by their parameters."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, names_in, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import key_of, operand, words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_VERSIONS = re.compile(r"(^|_)versions$")
_GUARDS = re.compile(r"NO_VERSION|>= ?0|> ?-1|!= ?-1|versions? ?<|mask|clamp|where|max\(0")
_EPISODE = re.compile(r"^_?a?run_episode$")
_CHANGING = frozenset({"append", "extend", "insert", "update", "setdefault", "add", "pop", "clear", "remove"})
_OF_ALL = frozenset({"client", "config", "engine", "self", "session"})
"""Parameters that are the same for all episodes."""
_MICRO = re.compile(r"micro|(^|_)mbs?($|_)|(^|_)mini_?batch")
_COUNT = frozenset({"sum", "count_nonzero", "numel"})
_FAULT_NAMES = re.compile(r"reward|score")


def minimum_of_versions(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the oldest version of a trajectory taken over prompt tokens too, which carry -1."""
    for function in module.functions() if "versions" in module.text else ():
        for node in own_nodes(function, ast.Call):
            taken = key_of(operand(node)) if last_name(node.func) in {"min", "amin"} else ""
            if _VERSIONS.search(taken) and not _GUARDS.search(ast.unparse(function)):
                yield node, f"`{ast.unparse(node)}` counts tokens that were not sampled"


def state_on_workflow(module: Module, _side: Side) -> Iterator[Hit]:
    """Find what an episode keeps on its workflow, which serves other episodes at the same time."""
    for owner in module.nodes(ast.ClassDef):
        methods = {each.name: each for each in owner.body if isinstance(each, Function)}
        episode = next((each for name, each in methods.items() if _EPISODE.match(name)), None)
        if not isinstance(episode, ast.AsyncFunctionDef):
            continue
        called = {_own_method(node) for node in own_nodes(episode)} & set(methods)
        for function in (episode, *(methods[name] for name in sorted(called) if name != episode.name)):
            for name, line in _kept_of_episode(module, owner, function):
                yield line, f"`{function.name}` writes `self.{name}`, which episodes that run at once share"


def _own_method(node: ast.AST) -> str:
    """Return "step" of `self.step(...)`; "" of everything else."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_self(node.func.value):
        return node.func.attr
    return ""


def _kept_of_episode(module: Module, owner: ast.ClassDef, function: Function) -> Iterator[tuple[str, int]]:
    """Yield attributes to which a method writes what comes from its parameters, or an empty container, and which the
    class reads, with lines. What is made once, of what the object has, may be shared."""
    nodes = list(own_nodes(function))
    withs = [each for each in nodes if isinstance(each, ast.With | ast.AsyncWith)]
    if any("lock" in ast.unparse(each.items[0]).lower() for each in withs):
        return
    data = set(parameters(function)) - _OF_ALL
    for made in sorted((each for each in nodes if isinstance(each, ast.Assign)), key=lambda each: each.lineno):
        if data & names_in(made.value) or any(isinstance(each, ast.Await) for each in ast.walk(made.value)):
            data |= names_in(made.targets)
    data.discard("self")
    attributes = [each for each in nodes_in(owner, ast.Attribute) if _is_self(each.value)]
    read = {each.attr for each in attributes if isinstance(each.ctx, ast.Load)}
    for node in nodes:
        name = _written_on_self(node)
        asked = [ast.unparse(each.test) for each in module.around(node, function) if isinstance(each, ast.If)]
        # `self.done += 1`: a number that all episodes add to is meant to be shared.
        counted = isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant)
        if name not in read or any(name in each for each in asked) or counted:
            continue
        value = getattr(node, "value", node)
        afresh = isinstance(value, ast.List | ast.Dict) and not ast.unparse(value).strip("[]{}")
        if afresh or data & names_in(value):
            yield name, getattr(node, "lineno", 1)


def _written_on_self(node: ast.AST) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        targets = [node.func.value]
    return next((each.attr for each in targets if isinstance(each, ast.Attribute) and _is_self(each.value)), "")


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def denominator_of_part(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a loss that is divided by the count of one micro-batch before its backward pass."""
    for loop in module.nodes(ast.For):
        names = names_in(loop.target)
        if not any(_MICRO.search(each) for each in (*names, ast.unparse(loop.iter))):
            continue
        nodes = [node for statement in loop.body for node in [statement, *own_nodes(statement)]]
        if not any(isinstance(node, ast.Call) and last_name(node.func) == "backward" for node in nodes):
            continue
        own = set(names)
        for node in nodes:  # names that are made from the micro-batch
            if isinstance(node, ast.Assign) and own & names_in(node.value):
                own |= names_in(node.targets)
        for node in nodes:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _counts_mask(node.right, own):
                yield node, f"`{ast.unparse(node)}` is divided by the count of one micro-batch"


def _counts_mask(node: ast.expr, own: set[str]) -> bool:
    """`mb["loss_mask"].sum()`, also inside of clamp or max, where `mb` is of the loop."""
    for each in ast.walk(node):
        counts = isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in _COUNT
        if counts and "mask" in ast.unparse(each) and own & names_in(each):
            return True
    return False


def failure_as_score(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a failure that becomes a reward of a number: `except TimeoutError: reward = 0.0`."""
    for handler in module.nodes(ast.ExceptHandler):
        caught = ast.unparse(handler.type) if handler.type is not None else ""
        if not re.search(r"Timeout|Fault|Cancelled|Connection|BrokenProcess|ClientError", caught):
            continue
        for node in (each for statement in handler.body for each in [statement, *own_nodes(statement)]):
            if not isinstance(node, ast.Assign):
                continue
            signed = isinstance(node.value, ast.UnaryOp) and isinstance(node.value.op, ast.USub)
            number = node.value.operand if isinstance(node.value, ast.UnaryOp) and signed else node.value
            value, target = getattr(number, "value", None), node.targets[0]
            named = isinstance(target, ast.Name | ast.Attribute) and _FAULT_NAMES.search(last_name(target))
            if named and isinstance(value, int | float) and not isinstance(value, bool):
                yield node, f"`{caught}` becomes `{ast.unparse(node)}`"


_PARAMETERS = frozenset({"prompt", "completions", "prompt_ids", "completion_ids"})
_NO_NUMBERS = (ast.List, ast.Dict, ast.Tuple, ast.JoinedStr, ast.Set)
_NAMED = re.compile(
    r"^(?!.*(?:^|_)(?:load|save|log|read|write|parse|count|num|max|min|plot|print|format|fetch|update|port|time)(?:_|$))"
    r"(?:.*_)?(?:reward|score|grade|verify)s?(?:_(?:fn|func|function|async|sync))*$|"
    r"^_?(?:score|grade|verify|compute_score|reward)_(?:answer|completion|item|one|output|response|row|sample|solution)s?$"
)
"""Names that say that a reward is returned, and not something about one: `score_port`, `load_scores`."""
_FAILURES = words("""
    BaseException ClientError ConnectionError Exception HTTPError ImportError OSError OutOfMemoryError
    RequestException RuntimeError Timeout TimeoutError TimeoutException TimeoutExpired
""")
"""What happens to the process that scores, whatever the answer is."""
_PARSING = frozenset(
    ["strip", "split", "findall", "search", "match", "group", "parse", "loads", "lower", "replace", "index"]
)


def rewards_of(module: Module) -> Iterator[Function]:
    """Yield functions that take what the reward contract hands over."""
    for function in module.functions():
        stub = all(isinstance(each, ast.Pass | ast.Raise | ast.Expr) for each in function.body)
        if len(_PARAMETERS & set(parameters(function))) >= 3 and not stub:
            yield function


def swallows(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an exception of any kind that becomes a score."""
    named = [each for each in module.functions() if _NAMED.search(each.name)]
    for function in dict.fromkeys((*rewards_of(module), *named)):
        for node in own_nodes(function, ast.ExceptHandler):
            kinds = {last_name(each) for each in nodes_in(node.type, ast.expr)} if node.type else set()
            broad = node.type is None or bool(kinds & _FAILURES)
            last = node.body[-1]
            number = last.value if isinstance(last, ast.Return) else None
            number = number.operand if isinstance(number, ast.UnaryOp) else number
            scored = isinstance(number, ast.Constant) and type(number.value) in {int, float}
            if broad and scored and not any(isinstance(each, ast.Raise) for each in ast.walk(node)):
                yield node, f"any failure of `{function.name}` becomes a score"


def unguarded(module: Module, _side: Side) -> Iterator[Hit]:
    """Find parsing of what a model wrote, with nothing that handles an answer in no known form."""
    for function in rewards_of(module):
        nodes = list(own_nodes(function))
        # Whether it returns numbers that it made, instead of handing on what another function returns
        plain = (ast.Constant, ast.Name, ast.BinOp)
        returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
        numbers = (isinstance(each, ast.Call) and last_name(each.func) in {"float", "int"} for each in returned)
        scores = any(isinstance(each, plain) for each in returned) or any(numbers)
        if not scores or any(isinstance(node, ast.Try) for node in nodes):
            continue
        parsing = [node for node in nodes if _is_parsing(node)]
        if parsing or _handed_on(module, function, nodes):
            yield function, f"`{function.name}` parses what a model wrote, unguarded"


def _handed_on(module: Module, function: Function, nodes: list[ast.AST]) -> bool:
    """Whether the answer goes to a function of the same file that parses it, or gives it to another package, with no
    `try` either."""
    own = {each.name: each for each in module.tree.body if isinstance(each, Function)}
    for call in (each for each in nodes if isinstance(each, ast.Call)):
        target = own.get(last_name(call.func)) if isinstance(call.func, ast.Name) else None
        answers = [each for each in call.args if last_name(each) in {"completions", "completion"}]
        inside = list(own_nodes(target)) if target is not None and target is not function and answers else []
        guarded = any(isinstance(each, ast.Try) for each in inside)
        parses = (isinstance(each, ast.Call) and _is_parsing(each) for each in inside)
        foreign = (isinstance(each, ast.Call) and last_name(each.func) in module.imported for each in inside)
        if not guarded and (any(parses) or any(foreign)):
            return True
    return False


def _is_parsing(node: ast.AST) -> bool:
    """`.strip()` and the like; `float(x)`, `int(x)`; `found[0]`."""
    if isinstance(node, ast.Call):
        convert = isinstance(node.func, ast.Name) and node.func.id in {"float", "int"} and node.args
        converted = bool(convert) and not isinstance(node.args[0], ast.Compare | ast.BoolOp)
        return (isinstance(node.func, ast.Attribute) and node.func.attr in _PARSING) or converted
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant)


def no_number(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a path that returns text, None or a tuple."""
    for function in rewards_of(module):
        for node in own_nodes(function, ast.Return):
            other = node.value is None or isinstance(node.value, _NO_NUMBERS)
            if other or (isinstance(node.value, ast.Constant) and not isinstance(node.value.value, int | float)):
                shown = ast.unparse(node.value) if node.value is not None else "nothing"
                yield node, f"`{function.name}` returns {shown} instead of a number"


_ROW = frozenset({"data", "row", "example", "sample", "task", "item", "input_data", "batch"})
_IN_PLACE = re.compile(r"^[a-z]\w*[a-z]_$")
_MADE_PER_STEP = re.compile(r"loss|reward|advantage")
_UPDATES = re.compile(r"^_?update_weights(_\w+)?$")
_SIZE = re.compile(r"group_size|n_samples|num_generations|samples_per_prompt|rollout_n")


def mutated_row(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an episode that changes its dataset row; a loss that changes the batch it reads."""
    for function in module.functions():
        named = [name for name in parameters(function) if name in _ROW]
        nodes = list(own_nodes(function)) if named else []
        for name in named:
            uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
            stored = [node for node in uses if isinstance(node.ctx, ast.Store | ast.Del)]
            shallow = len(stored) == 1 and _is_shallow_copy(module.parents[stored[0]], name)
            if stored and not shallow:
                continue  # a copy, most of the time
            if function.name.endswith(("run_episode", "run_agent")):
                yield from _changed_keys(module, function, nodes, name, own=shallow)
            elif not shallow and _MADE_PER_STEP.search(function.name):
                yield from _changed_tensors(module, function, nodes, name)


def _is_shallow_copy(node: ast.AST, name: str) -> bool:
    """Whether it is `data = dict(data)`, `data.copy()` or `{**data}`: lists in it are still those of the row."""
    value = node.value if isinstance(node, ast.Assign) else None
    if isinstance(value, ast.Dict):
        return value.keys == [None] and _is(value.values[0], name)
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and _is(value.func.value, name):
        return value.func.attr == "copy"
    return last_name(value.func) in {"copy", "dict"} and len(value.args) == 1 and _is(value.args[0], name)


def _changed_keys(module: Module, function: Function, nodes: list[ast.AST], name: str, *, own: bool) -> Iterator[Hit]:
    """own: the function has a shallow copy, whose keys are its own."""
    for node in nodes:
        changed = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and _is(node.value, name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = node.func.attr in _CHANGING and _is(node.func.value, name)
        if changed and not own:
            message = f"`{function.name}` changes `{name}`, which all samples of the group share"
            yield getattr(node, "lineno", 1), message
        alias = _held(nodes, node, name)
        if not alias:
            continue
        stored = [each for each in nodes if _is(each, alias) and isinstance(getattr(each, "ctx", None), ast.Store)]
        grown = (each.func for each in nodes if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute))
        added = any(each.attr in _GROWING and _is(each.value, alias) for each in grown)
        if len(stored) == 1 and added:
            message = f"`{alias}` is the row's own list: what is added stays for all samples of the group"
            yield getattr(node, "lineno", 1), message


def _held(nodes: list[ast.AST], node: ast.AST, name: str) -> str:
    """Return "messages" of `messages = data["messages"]`, unless the function put the list there itself."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Subscript):
        return ""
    target = node.targets[0]
    if not isinstance(target, ast.Name) or not _is(node.value.value, name) or _is_stored(nodes, node.value):
        return ""
    return target.id


_GROWING = frozenset({"append", "extend", "insert"})


def _changed_tensors(module: Module, function: Function, nodes: list[ast.AST], name: str) -> Iterator[Hit]:
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        target = node.func.value
        held = isinstance(target, ast.Subscript) and _is(target.value, name) and isinstance(target.slice, ast.Constant)
        if held and _IN_PLACE.match(node.func.attr) and not _is_stored(nodes, target):
            yield node, f"`.{node.func.attr}()` changes `{ast.unparse(target)}` for whoever reads the batch next"


def _is_stored(nodes: list[ast.AST], target: ast.expr) -> bool:
    """Whether the function put the tensor there itself."""
    text = ast.unparse(target)
    stores = (node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
    return any(ast.unparse(node) == text for node in stores)


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def without_versions(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a trajectory with log-probabilities and no versions, in a repository whose trajectories have them."""
    for function in module.nodes(ast.AsyncFunctionDef):
        owner = module.class_of(function)
        if owner is None or not owner.name.endswith("Workflow"):
            continue
        for node in own_nodes(function):
            keys = _keys(node)
            if not keys >= {"input_ids", "loss_mask", "logprobs"}:
                continue
            stores = own_nodes(function, ast.Subscript)
            keys_set = (each.slice for each in stores if isinstance(each.ctx, ast.Store))
            later = {str(each.value) for each in keys_set if isinstance(each, ast.Constant)}
            if "versions" not in keys | later:
                message = f"`{owner.name}.{function.name}` returns log-probabilities without `versions`"
                yield getattr(node, "lineno", 1), message


def _keys(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Dict):
        if None in node.keys:
            return set()
        return {str(each.value) for each in node.keys if isinstance(each, ast.Constant)}
    if isinstance(node, ast.Call) and _is(node.func, "dict") and all(each.arg for each in node.keywords):
        return {str(each.arg) for each in node.keywords}
    return set()


def version_not_set(module: Module, _side: Side) -> Iterator[Hit]:
    """Find the only one of several ways to update weights that leaves the version as it was."""
    for owner in module.nodes(ast.ClassDef):
        ways = [each for each in owner.body if isinstance(each, Function) and _UPDATES.match(each.name)]
        called = {each.name: {last_name(node.func) for node in own_nodes(each, ast.Call)} for each in ways}
        setting = {name for name, calls in called.items() if "set_version" in calls}
        for way in ways:
            calls = called[way.name]
            others = any(way.name in calls_of for name, calls_of in called.items() if name != way.name)
            stub = len(calls) < 2
            if len(setting) >= 2 and way.name not in setting and not calls & setting and not others and not stub:
                yield way, f"`{way.name}` sets no version; {', '.join(sorted(setting)[:2])} do"


def order_lost(module: Module, _side: Side) -> Iterator[Hit]:
    """Find rows that are shuffled, filtered or sorted one by one, and then taken in groups by their position."""
    for function in module.functions():
        mixed: dict[str, int] = {}
        located = own_nodes(function, ast.stmt, ast.expr)
        for node in sorted(located, key=lambda each: each.lineno):
            for name in _mixed(node):
                mixed[name] = node.lineno
            for name, line in list(mixed.items()):
                if node.lineno > line and _by_position(node, name):
                    message = f"`{name}` is mixed row by row, and then taken in groups by position"
                    yield node, message, f"{module.path}:{line}"
                    del mixed[name]


def _mixed(node: ast.AST) -> Iterator[str]:
    """Yield names that lose their order here: `random.shuffle(x)`, `x = x[torch.randperm(n)]`, `x = sorted(x)`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) == "shuffle":
        yield from (each.id for each in node.value.args[:1] if isinstance(each, ast.Name))
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        value = node.value
        by_chance = isinstance(value, ast.Subscript) and "randperm" in ast.unparse(value.slice)
        if isinstance(value, ast.Call) and _is(value.func, "sorted") and keyword(value, "key") is not None:
            by_chance = _is(value.args[0], node.targets[0].id)
        if by_chance:
            yield node.targets[0].id


def _by_position(node: ast.AST, name: str) -> bool:
    """`x.view(-1, group_size)`, `x[::2]`, `x[i : i + group_size]`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"view", "reshape"}:
        return _is(node.func.value, name) and any(_SIZE.search(ast.unparse(each)) for each in node.args)
    if isinstance(node, ast.Subscript) and _is(node.value, name) and isinstance(node.slice, ast.Slice):
        by_two = isinstance(node.slice.step, ast.Constant) and node.slice.step.value == 2
        return by_two or bool(node.slice.upper is not None and _SIZE.search(ast.unparse(node.slice.upper)))
    return False


def equal_halves(module: Module, _side: Side) -> Iterator[Hit]:
    """`chosen = x[::2]` and `rejected = x[::2]`, `left = x[0].text()` and `right = x[0].text()`: both halves of the
    pairs are the same one."""
    for function in module.functions():
        halves: dict[str, ast.Assign] = {}
        for node in own_nodes(function):
            taken = [each.slice for each in nodes_in(node, ast.Subscript)]
            counted = [each for each in taken if isinstance(each, ast.Constant) and type(each.value) is int]
            if isinstance(node, ast.Assign) and (counted or any(isinstance(each, ast.Slice) for each in taken)):
                halves[last_name(node.targets[0])] = node
        for (name, node), (half, other) in itertools.product(halves.items(), _HALVES.items()):
            twin = halves.get(name.replace(half, other)) if half in name else None
            if twin is not None and ast.unparse(twin.value) == ast.unparse(node.value):
                yield node, f"`{name}` is the same half as `{last_name(twin.targets[0])}`"


_HALVES: Final = {"rejected": "chosen", "right": "left", "second": "first", "lose": "win", "neg_": "pos_"}


RULES: Final = (
    Rule("minimum-of-versions", Severity.HIGH, in_tests=False, in_file=minimum_of_versions),
    Rule("state-on-workflow", Severity.HIGH, in_tests=False, in_file=state_on_workflow),
    Rule("denominator-of-part", Severity.HIGH, in_tests=False, in_file=denominator_of_part),
    Rule("failure-as-score", Severity.MEDIUM, in_tests=False, in_file=failure_as_score),
    Rule("reward-swallows", Severity.MEDIUM, in_file=swallows),
    Rule("reward-unguarded", Severity.MEDIUM, in_file=unguarded),
    Rule("reward-no-number", Severity.HIGH, in_file=no_number),
    Rule("shared-row-changed", Severity.MEDIUM, in_tests=False, in_file=mutated_row),
    Rule("trajectory-without-versions", Severity.HIGH, in_tests=False, in_file=without_versions),
    Rule("version-not-set", Severity.HIGH, in_tests=False, in_file=version_not_set),
    Rule("group-order-lost", Severity.HIGH, in_tests=False, in_file=order_lost),
    Rule("pair-halves-equal", Severity.HIGH, in_file=equal_halves),
)
