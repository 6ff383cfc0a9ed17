"""Tensors: empty masks, results that are dropped, values moved to the host in hot loops."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, last_name, names_in, nodes_in, own_nodes, parameters
from tooling.review.records import Rule, Severity, is_test
from tooling.review.rules.distributed import collective
from tooling.review.rules.readings import is_expected, key_of, operand, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_MASK = re.compile(r"(^|_)mask(s|ed)?($|_)|^m$")
_HOT = re.compile(r"^(forward|backward|step|optimizer_step)$|(^|_)(train_batch|train_step|training_step|loss_fn)$")
_PURE = words("""
    clamp contiguous cumsum detach expand masked_fill masked_select permute squeeze unsqueeze
""")
_PLATFORM = re.compile(r"^current_(platform|accelerator|device_type)$")
_OF_PLATFORMS = re.compile(r"platform|cuda|(^|/)tools?/|profil")
_PURE_TEXT = words("""
    difference endswith intersection isdisjoint issubset issuperset lower lstrip removeprefix removesuffix rstrip
    startswith strip symmetric_difference upper
""")


_CASTS = frozenset({"bfloat16", "bool", "flatten", "float", "int", "long", "reshape", "to", "view"})


def _is_mask(node: ast.expr | None) -> bool:
    """`mask`, `loss_mask`, `batch["loss_mask"]`, `~mask`, `mask.float()`."""
    if isinstance(node, ast.UnaryOp):
        return _is_mask(node.operand)
    if isinstance(node, ast.Subscript):
        key = node.slice
        return (isinstance(key, ast.Constant) and bool(_MASK.search(str(key.value)))) or _is_mask(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _CASTS and _is_mask(node.func.value)
    return bool(_MASK.search(last_name(node)))


def unguarded_mask_division(module: Module, _side: Side) -> Iterator[Hit]:
    """Find division by the number of unmasked tokens, which may be none."""
    packages = {each.asname or each.name for one in module.nodes(ast.Import) for each in one.names}
    for node in module.nodes(ast.BinOp):
        if isinstance(node.right, ast.Name) and node.right.id in packages and len(module.bindings[node.right.id]) == 1:
            yield node, f"division by the module `{node.right.id}`"
        if isinstance(node.op, ast.Div) and _is_mask(_summed(node.right)) and not _guarded(module, node):
            count = ast.unparse(node.right)
            yield node, f"division by `{count}`, which is zero where nothing is unmasked"


def _guarded(module: Module, node: ast.BinOp) -> bool:
    """Whether a condition around or in front of it speaks of the same mask, or the result is cleaned."""
    names = names_in(node.right)
    function = module.function_of(node)
    tests = [each.test for each in module.around(node) if isinstance(each, ast.If | ast.IfExp)]
    if isinstance(function, Function):
        checks = own_nodes(function, ast.If, ast.Assert)
        tests += [each.test for each in checks if each.lineno < node.lineno]
    # `if mask is not None` says that there is a mask, not that it selects something.
    tests = [
        each for each in tests if not isinstance(each, ast.Compare) or not isinstance(each.ops[0], ast.Is | ast.IsNot)
    ]
    spoken = names_in(tests)
    cleaned = any(isinstance(each, ast.Call) and last_name(each.func) == "nan_to_num" for each in module.around(node))
    return bool(names & spoken) or cleaned


def unmasked_numerator(module: Module, _side: Side) -> Iterator[Hit]:
    """`loss.sum() / mask.sum()` of a value that nothing in the function has masked."""
    for node in module.nodes(ast.BinOp):
        function = module.function_of(node)
        summed = _summed(node.left) if isinstance(node.op, ast.Div) else None
        if summed is None or not isinstance(function, Function):
            continue
        count = node.right
        while count is not (inner := _without_floor(count, function)):
            count = inner
        counted, text = _summed(count), ast.unparse(summed)
        if counted is None or not _is_mask(counted):
            continue
        products = [each for each in own_nodes(function, ast.BinOp) if isinstance(each.op, ast.Mult)]
        # What is multiplied by a mask elsewhere, and not for good, is not masked by itself.
        bare = any(ast.unparse(each.left) == text and _MASKS.search(ast.unparse(each.right)) for each in products)
        bare &= not any(_MASKS.search(ast.unparse(each)) for each in _given(function, text))
        # `masked_mean(x, m)` in another branch
        pairs = [[ast.unparse(one) for one in each.args] for each in own_nodes(function, ast.Call)]
        bare |= any([text, ast.unparse(counted)] == each[:2] for each in pairs)
        if bare or not _is_masked(summed, function):
            yield node, f"`{text}` is summed whole, and divided by a count of the mask"


def _without_floor(node: ast.expr, function: Function) -> ast.expr:
    """Return `n` of `n.clamp(min=1)`, `torch.clamp(n, 1)`, `max(n, 1)`, `n + 1e-8`, and the one value of a name."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return node.left
    if isinstance(node, ast.Call) and last_name(node.func) in {"clamp", "clamp_min", "max", "maximum"}:
        return operand(node) or node
    given = _given(function, node.id) if isinstance(node, ast.Name) else []
    return given[0].value if len(given) == 1 and isinstance(given[0], ast.Assign) else node


_MASKS: Final = re.compile(r"(?<!attention_)mask")
"""What a model is given to attend to leaves nothing out of what it returns."""
_SELECTS: Final = re.compile(rf"{_MASKS.pattern}|where|valid|ignore|nonzero|pad(?!_token)|filter|weight")
"""Words of an expression that leaves something out, or may."""


def _summed(node: ast.expr) -> ast.expr | None:
    """Return `x` of `x.sum(-1)`, `torch.sum(x, 1)` and `-x.sum().float()`; None of everything else."""
    if isinstance(node, ast.UnaryOp):
        return _summed(node.operand)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr in {"float", "item", "to"}:
        return _summed(node.func.value)
    return operand(node) if node.func.attr in {"sum", "count_nonzero"} else None


def _given(function: Function, name: str) -> list[ast.stmt]:
    """Return the statements that give a name a value, or change it: `x = ...`, `x *= ...`, `x[i] = ...`, `for x in`."""
    kinds = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For | ast.With
    stored = [each for each in own_nodes(function) if isinstance(each, kinds)]
    parts = {each: getattr(each, "targets", [getattr(each, "target", each)]) for each in stored}
    return [one for one in stored if any(name == _root(part) for each in parts[one] for part in ast.walk(each))]


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_masked(value: ast.expr, function: Function, depth: int = 8) -> bool:
    """Whether an expression, or what its names were given, speaks of a mask. What nobody gave is as it came."""
    if _SELECTS.search(ast.unparse(value)):
        return True
    names = names_in(value) if depth else set()
    for name in names:
        for each in _given(function, name):
            sources = [getattr(each, "value", None)]
            if isinstance(each, ast.For):
                # `for loss, mask in zip(losses, masks)`: what stands in the same place
                over = each.iter.args if isinstance(each.iter, ast.Call) and last_name(each.iter.func) == "zip" else []
                to = each.target.elts if isinstance(each.target, ast.Tuple) else []
                sources = [one for one, part in zip(over, to, strict=False) if _root(part) == name] or [each.iter]
            elif _SELECTS.search(ast.unparse(each)):
                return True
            for source in sources:
                own = source is not None and any(_root(part) == name for part in ast.walk(source))
                if source is None or (not own and _is_masked(source, function, depth - 1)):
                    return True
    return not depth


def dropped_result(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a method call whose new value is dropped."""
    for node in module.nodes(ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        name = call.func.attr
        pure = name in _PURE_TEXT or (name in _PURE and "torch" in module.text)
        # These change a module in place, and nothing of a tensor.
        pure |= name in _MOVES and "torch" in module.text and is_tensor(module, call.func.value)
        # A call that is expected to raise is made for nothing on purpose.
        expected = is_expected(module, node)
        expected |= any(each.handlers for each in module.around(node) if isinstance(each, ast.Try))
        if pure and not expected:
            yield node, f"the result of `.{name}()` is dropped: nothing happens"


_MOVES: Final = frozenset({"bfloat16", "cpu", "cuda", "double", "float", "half", "to"})
_OF_TENSORS: Final = frozenset(
    {"contiguous", "detach", "dim", "is_cpu", "masked_fill", "ndim", "numel", "reshape", "shape", "unsqueeze", "view"}
)


_TENSOR_KEYS: Final = re.compile(r"(?:^|_)(?:ids|labels|logits|logp(?:rob)?s|mask|position_ids)$")


def is_tensor(module: Module, node: ast.expr) -> bool:
    """Whether the function around says that something is a tensor: by an annotation, by what it asks of it, or since
    it is sent to other ranks."""
    if isinstance(node, ast.Attribute) and node.attr in {"data", "grad"}:
        return bool(re.search(r"param|buffer|weight", last_name(node.value)))
    function, name = module.function_of(node), ast.unparse(node)
    if isinstance(node, ast.Subscript):
        return bool(_TENSOR_KEYS.search(key_of(node)))
    if not isinstance(function, Function) or not isinstance(node, ast.Name | ast.Attribute):
        return False
    given = [*function.args.args, *function.args.kwonlyargs]
    annotation = next((each.annotation for each in given if each.arg == name), None)
    tests = [ast.unparse(each.test) for each in module.around(node) if isinstance(each, ast.If)]
    asked = f"isinstance({name}, torch.Tensor)" in tests
    if asked or annotation is not None:
        return asked or last_name(annotation) == "Tensor"
    for each in own_nodes(function):
        if isinstance(each, ast.Attribute) and each.attr in _OF_TENSORS and ast.unparse(each.value) == name:
            return True
        # `x[None, :]`
        if isinstance(each, ast.Subscript) and isinstance(each.slice, ast.Tuple) and ast.unparse(each.value) == name:
            return any(isinstance(one, ast.Slice) for one in each.slice.elts)
        if collective(module, each) and any(ast.unparse(sent) == name for sent in getattr(each, "args", ())[:1]):
            return "object" not in collective(module, each)
    return False


def host_sync_in_loop(module: Module, _side: Side) -> Iterator[Hit]:
    """`.item()` in a loop of a function that runs every step."""
    for node in module.nodes(ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in {"item", "tolist"} or node.args:
            continue
        function = module.function_of(node)
        if not isinstance(function, Function) or not _HOT.search(function.name) or "torch" not in module.text:
            continue
        around = list(module.around(node))
        loops = [each for each in around[: around.index(function)] if isinstance(each, ast.For | ast.While)]
        if any(node not in ast.walk(each.iter if isinstance(each, ast.For) else each.test) for each in loops):
            yield node, f"`.{node.func.attr}()` in a loop of `{function.name}`"


def one_kind_of_device(module: Module, side: Side) -> Iterator[Hit]:
    """`torch.cuda.synchronize()` in a module, or a package, that asks the platform's object for everything else."""
    platform = next((name for name in module.imported if _PLATFORM.search(name)), "")
    owner = side.packages.get(f"{module.package.partition('.')[0]}.platforms") if "torch.cuda." in module.text else None
    if owner is not None and not platform and not _OF_PLATFORMS.search(module.path):
        platform = "current_platform" if "current_platform" in (side.text(owner) or "") else ""
    for node in module.nodes(ast.Call) if platform else ():
        name = module.dotted(node.func)
        tests = (each.test for each in module.around(node) if isinstance(each, ast.If | ast.IfExp))
        if name.startswith("torch.cuda.") and not any("cuda" in ast.unparse(each).lower() for each in tests):
            yield node, f"`{name}` is for one kind of device; this module has `{platform}`"


def histogram_end(module: Module, _side: Side) -> Iterator[Hit]:
    """`histc(x, bins=n, max=n - 1)`: the last two values share a bin."""
    for node in module.nodes(ast.Call):
        given = {each.arg: ast.unparse(each.value) for each in node.keywords if each.arg}
        if last_name(node.func) == "histc" and given.get("max") == f"{given.get('bins')} - 1":
            yield node, "bins of `histc` are narrower than one: counts of integers are wrong"


_WITHOUT: Final = frozenset({"inference_mode", "no_grad", "set_grad_enabled"})
_LOOKS: Final = re.compile(
    r"^_*(?:(?:batch_)?generat(?:e|ion)(?!.*step)|evaluate|validate|predict|.*inference|forward_only|eval_(?:step|loop))"
    r"|_(?:generate|evaluate|inference)$|^_*compute_(?:ref|reference|old|values|rm|reward)"
)
"""Names of functions that look at what a model says, and train nothing."""
_MODEL: Final = re.compile(r"^_?(?:model|module|ref_model|reward_model|policy|critic|network|actor_module)$")
_TRAINS: Final = frozenset({"backward", "requires_grad_", "step", "zero_grad"})


def gradients_kept(module: Module, side: Side) -> Iterator[Hit]:
    """Find an evaluation that runs a model with gradients, and a step that enables what nothing has disabled; in a file
    that knows `no_grad`, and not where callers use it."""
    guarded = [each for each in module.functions() if _mentions(each.decorator_list, _WITHOUT)]
    withs = list(module.nodes(ast.With, ast.AsyncWith))
    held = [each for each in withs if _mentions(each.items, _WITHOUT)]
    called = {last_name(each.func) for each in nodes_in((*guarded, *held), ast.Call)}
    for function in module.functions() if "torch" in module.text else ():
        if function in guarded or function.name in called or any(each in guarded for each in module.around(function)):
            continue
        nodes = own_nodes(function)
        calls = [each for each in nodes if isinstance(each, ast.Call)]
        names = {last_name(each.func) for each in calls}
        if names & _TRAINS or names & _WITHOUT or "enable_grad" in names:
            # `backward` runs without gradients anyway, a `forward` may be called so, and `.data` has none.
            plain = function.name not in {"backward", "forward"} and not function.decorator_list
            plain = plain and ".data" not in ast.unparse(function)
            if "enable_grad" in names and plain and not names & _WITHOUT:
                yield function, f"`{function.name}` enables gradients, and nothing has disabled them"
            continue
        twin = next((each for each in guarded if _is_twin(module, function, each)), None)
        others = [each for each in module.functions() if each is not function and each not in guarded] if twin else []
        alone = not any(_is_twin(module, function, each) for each in others)
        if twin is not None and alone and _TENSORS.search(ast.unparse(function)):
            yield function, f"`{function.name}` keeps what gradients need, and `{twin.name}` beside it does not"
            continue
        marks = [
            f"@{ast.unparse(each)}" for each in function.decorator_list if not _SAYS_NOTHING.search(last_name(each))
        ]
        habit = next((each for each in marks if _always_without(module, side, f"{each} {function.name}")), "")
        if habit and not function.name.startswith("__"):
            yield function, f"`{function.name}` keeps what gradients need: every other one with `{habit}` does not"
            continue
        told = ast.get_docstring(function) or ""
        promises = "torch.no_grad()" in told and not re.search(r"\bmust|should|caller|under", told)
        if promises and "torch" in module.imported:
            yield function, f"`{function.name}` says that it runs without gradients, and does not"
        runs = next((each for each in calls if _MODEL.match(last_name(each.func))), None)
        if runs is not None and _LOOKS.search(function.name):
            yield function, f"`{function.name}` keeps what `{ast.unparse(runs.func)}` needs for gradients"


_SAYS_NOTHING: Final = re.compile(r"override|overload|property|method$|^$")
"""Names of decorators that are about the place of a function, and not about what it does."""
_DEFINED: Final = re.compile(r"((?:^[ \t]*@.*\n)*)^[ \t]*(?:async )?def (\w+)", re.MULTILINE)


def _always_without(module: Module, side: Side, name: str) -> bool:
    """Whether another function of that name and decorator runs without gradients, and none with them, in the files that
    know of it."""
    if ("without gradients", "") not in side.known:
        paths = [each for each in side.grep(_WITHOUT, "*.py") if not is_test(each)]
        side.load(paths)
        guarded, others = Counter[str](), Counter[str]()
        for path in paths:
            for above, called in _DEFINED.findall(side.text(path) or ""):
                of = guarded if any(each in above for each in _WITHOUT) else others
                of.update({f"{each} {called}" for each in re.findall(r"@.*", above)})
        side.known["without gradients", ""] = (guarded, others, frozenset(paths))
    guarded, others, paths = side.known["without gradients", ""]
    return bool(guarded[name] and others[name] <= (module.path in paths))


_TENSORS: Final = re.compile(
    r"\btorch\.|\.(?:to|copy_|mul_|add_|detach|clone)\(|logits|param|tensor|generate\(|save_pretrained"
)
_OTHERWISE: Final = words("""
    backward build config create eval evaluate fn forward grad init log loss name of path ref save server setup
    shape size test train training
""")
"""Words by which the names of functions differ of which one may well need gradients."""
_ANY_VERB: Final = frozenset({"do", "get", "init", "load", "make", "on", "run", "save", "set", "step", "update"})


def _is_twin(module: Module, one: Function, other: Function) -> bool:
    """Whether two functions of one scope are called alike but for a word, or look at a model both: `load_optimizer` and
    `offload_optimizer`, `evaluate` and `evaluate_step_wise`."""
    if module.parents.get(one) is not module.parents.get(other) or one.name.startswith("__"):
        return False
    short, long = sorted((each.name.strip("_").split("_") for each in (one, other)), key=len)
    differ = {each for pair in zip(short, long, strict=False) if len(set(pair)) > 1 for each in pair}
    if not set(short) & set(long) - _ANY_VERB:
        return False
    if len(short) == len(long):
        # `load_model_to_gpu` and `offload_model_to_cpu`
        ends = len(differ) == 4 and len(short) > 3 and short[1:-1] == long[1:-1]
        return (len(differ) == 2 or ends) and not differ & _OTHERWISE
    # `get_cumulative_returns(rewards, mask, gamma)` beside one that takes the same
    shared = set(parameters(one)) & set(parameters(other)) - {"self"}
    if len(shared) > 2 and short[0] == long[0] and short[-1] == long[-1] and not differ & _OTHERWISE:
        return True
    looks = _LOOKS.search(one.name) and _LOOKS.search(other.name)
    return bool(looks) and not differ and not (set(long) - set(short)) & _OTHERWISE


def _mentions(nodes: Sequence[ast.AST], names: frozenset[str]) -> bool:
    parts = nodes_in(nodes, ast.Name, ast.Attribute)
    return any(last_name(each) in names for each in parts)


RULES = (
    Rule("evaluated-with-gradients", Severity.MEDIUM, in_tests=False, in_file=gradients_kept),
    Rule("unguarded-mask-division", Severity.HIGH, in_tests=False, in_file=unguarded_mask_division),
    Rule("unmasked-numerator", Severity.HIGH, in_tests=False, in_file=unmasked_numerator),
    Rule("dropped-result", Severity.HIGH, in_tests=False, in_file=dropped_result),
    Rule("host-sync-in-loop", Severity.MEDIUM, in_tests=False, in_file=host_sync_in_loop),
    Rule("one-kind-of-device", Severity.MEDIUM, in_tests=False, in_file=one_kind_of_device),
    Rule("histogram-end", Severity.MEDIUM, in_file=histogram_end),
)
