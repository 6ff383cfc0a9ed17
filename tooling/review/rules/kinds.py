"""Values of another kind than their use wants: numbers taken for tensors, two names for one, the device that
was not asked for."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import last_name
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_OF_TENSORS: Final = frozenset(
    [
        "abs",
        "backward",
        "clamp",
        "clone",
        "cpu",
        "cuda",
        "detach",
        "exp",
        "float",
        "item",
        "log",
        "long",
        "max",
        "mean",
        "min",
        "numpy",
        "reshape",
        "sqrt",
        "squeeze",
        "sum",
        "to",
        "tolist",
        "unsqueeze",
        "view",
    ]
)
"""Methods of tensors that no Python number has."""
_DEVICES: Final = re.compile(r"(?<![a-z])(cuda|hpu|mps|npu|xpu)(?![a-z])")
_OFF: Final = re.compile(r"\bnot\b|!=|(?<![a-z])no_|disable|without|(?:==|<=) ?0\b|< ?1\b|(?:is|==) False")
"""Conditions that hold where a device is not there."""
_LOADED_LATER: Final = frozenset(
    [
        "concurrent.futures",
        "http.client",
        "http.server",
        "importlib.metadata",
        "importlib.resources",
        "importlib.util",
        "logging.config",
        "logging.handlers",
        "unittest.mock",
        "urllib.error",
        "urllib.parse",
        "urllib.request",
        "xml.dom",
        "xml.etree",
    ]
)
"""Modules that importing their package does not load."""
_LOADED_BY: Final = {
    "http.cookiejar": ("http.client", "urllib.error", "urllib.parse", "urllib.request"),
    "http.server": ("http.client", "urllib.parse"),
    "logging.config": ("logging.handlers",),
    "urllib.request": ("http.client", "urllib.error", "urllib.parse"),
    "urllib.robotparser": ("http.client", "urllib.error", "urllib.parse", "urllib.request"),
}
"""Modules that load others of the table above."""


def number_as_tensor(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `loss.item().detach()`: a number has no such method."""
    for call in module.nodes(ast.Call):
        func = call.func
        of = func.value if isinstance(func, ast.Attribute) and func.attr in _OF_TENSORS else None
        if not isinstance(of, ast.Call) or last_name(of.func) != "item" or of.args or of.keywords:
            continue
        made = of.func.value if isinstance(of.func, ast.Attribute) else None
        # The one item of an array of objects may be anything: `np.load(path, allow_pickle=True).item()`.
        if not isinstance(made, ast.Call) or last_name(made.func) != "load":
            yield call, f"`.item()` is a number, which has no `{last_name(func)}`"


def missing_comma(module: Module, _side: Side) -> Iterator[Hit]:
    """Find two names of a list on two lines without a comma between them: they become one."""
    nodes = list(module.nodes(ast.List, ast.Tuple))
    for node in (*nodes, *module.nodes(ast.Set)):
        texts = [each for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if len(texts) < max(2, len(node.elts)):
            continue
        joined = [each for each in texts if (each.end_lineno or each.lineno) > each.lineno]
        words = all(re.fullmatch(r"[\w.:/-]+", str(each.value)) for each in texts)
        for text in joined if words and len(joined) == 1 else ():
            line = module.lines[text.lineno - 1].strip()
            # In parentheses of their own two parts are meant as one, and so is a prefix: "model." "weight".
            opened = module.lines[text.lineno - 2].rstrip().endswith("(") if text.lineno > 1 else False
            opened &= not isinstance(node, ast.Tuple) or node.lineno != text.lineno - 1
            meant = opened or line.startswith("(") or line[:-1].endswith(("/", "-", "_", ".", ":"))
            if line.endswith(('"', "'")) and not meant and '"""' not in line:
                yield text, f"{text.value!r} is two names without a comma between them"


def default_in_typed_dict(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `key: int = 0` in a TypedDict, which has no defaults."""
    for owner in module.nodes(ast.ClassDef):
        if not any(last_name(each) == "TypedDict" for each in owner.bases):
            continue
        for field in owner.body:
            if isinstance(field, ast.AnnAssign) and field.value is not None:
                yield field, f"`{ast.unparse(field.target)}` gets no default: a TypedDict has none"


def submodule_not_imported(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `importlib.util.find_spec` in a file that imports `importlib` alone."""
    loaded = {each.name for node in module.nodes(ast.Import) for each in node.names}
    loaded |= {module.absolute(each) for each in module.nodes(ast.ImportFrom)}
    loaded |= {f"{module.absolute(node)}.{each.name}" for node in module.nodes(ast.ImportFrom) for each in node.names}
    loaded.update(*(_LOADED_BY.get(each, ()) for each in loaded))
    seen = set[str]()
    for node in module.nodes(ast.Attribute):
        root = node.value.id if isinstance(node.value, ast.Name) else ""
        name = f"{root}.{node.attr}"
        if name not in _LOADED_LATER or name in seen or module.imported.get(root) != root or root not in loaded:
            continue
        if not any(f"{each}.".startswith(f"{name}.") for each in loaded):
            seen.add(name)
            yield node, f"`import {root}` alone does not load `{name}`"


def device_of_another(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `torch.cuda` in the branch for another kind of device."""
    for node in module.nodes(ast.If):
        text = ast.unparse(node.test)
        asked = set(_DEVICES.findall(text))
        if len(asked) != 1 or isinstance(node.test, ast.BoolOp) or _OFF.search(text):
            continue
        kind = asked.pop()
        for statement in node.body:
            inside = ast.walk(statement) if not isinstance(statement, ast.If) else ()
            for each in (one for one in inside if isinstance(one, ast.Attribute)):
                dotted = module.dotted(each)
                other = re.fullmatch(r"torch\.(cuda|hpu|mps|npu|xpu)\.\w+", dotted)
                whole = each
                while isinstance(above := module.parents.get(whole), ast.Attribute):
                    whole = above
                # `torch.cuda.synchronize = torch.npu.synchronize` replaces it.
                if other is not None and other[1] != kind and isinstance(whole.ctx, ast.Load):
                    yield each, f"`{dotted}` where `{text}`"


RULES: Final = (
    Rule("number-as-tensor", Severity.HIGH, in_file=number_as_tensor),
    Rule("missing-comma", Severity.HIGH, in_file=missing_comma),
    Rule("default-in-typed-dict", Severity.MEDIUM, in_file=default_in_typed_dict),
    Rule("submodule-not-imported", Severity.LOW, in_tests=False, in_file=submodule_not_imported),
    Rule("device-of-another", Severity.HIGH, in_tests=False, in_file=device_of_another),
)
