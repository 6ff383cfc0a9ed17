"""Command lines of argparse: options that no parser has, that come too late, or that change nothing."""

from __future__ import annotations

import ast
import difflib
import re
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, parameters
from tooling.review.records import Rule, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_OPTION: Final = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*\w)")
_PARSES: Final = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args"})
_LIKE: Final = 0.75
"""Likeness of an option that is named to one that exists, from which the one is taken for the other."""


def unknown_option(module: Module, side: Side) -> Iterator[Hit]:
    """Find `args.name` that the file's only parser does not define, and messages that name an option it lacks."""
    names, complete = _options(module)
    known = {name.split(".")[0].replace("-", "_") for name in names}
    for target in _parsed_names(module) if complete else ():
        stored = {each.attr for each in module.nodes(ast.Attribute) if isinstance(each.ctx, ast.Store)}
        texts = {each.value for each in module.nodes(ast.Constant) if isinstance(each.value, str)}
        for node in module.nodes(ast.Attribute):
            if not isinstance(node.value, ast.Name) or node.value.id != target or not isinstance(node.ctx, ast.Load):
                continue
            if (
                node.attr not in known | stored | texts
                and not node.attr.startswith("_")
                and _is_it(module, node, target)
            ):
                yield node, f"no option of this file sets `{target}.{node.attr}`"
    for text in module.nodes(ast.Constant):
        named = _OPTION.findall(text.value) if isinstance(text.value, str) and " " in text.value else []
        for option in (each for each in named if each not in names and is_message(module, text)):
            like = difflib.get_close_matches(option, sorted(names), 1, _LIKE)
            elsewhere = like and side.grep([f'"--{option}"', f"'--{option}'"], "*.py")
            if like and not elsewhere and option.replace("-", "_") not in {each.replace("-", "_") for each in names}:
                yield text, f"there is no `--{option}`; `--{like[0]}` is an option"


def _options(module: Module) -> tuple[set[str], bool]:
    """Return the options and names of arguments of a file that makes one parser, and whether these are all there are:
    nobody else adds to it."""
    made = [each for each in module.nodes(ast.Call) if last_name(each.func) == "ArgumentParser"]
    targets = {ast.unparse(node.targets[0]) for node in module.nodes(ast.Assign) if node.value in made}
    if len(made) != 1 or len(targets) != 1 or keyword(made[0], "parents") is not None:
        return set(), False
    names: set[str] = set()
    complete = True
    owners = set(targets)
    for node in module.nodes(ast.Assign):
        call = node.value
        if isinstance(call, ast.Call) and last_name(call.func) in {
            "add_argument_group",
            "add_mutually_exclusive_group",
        }:
            owners.add(ast.unparse(node.targets[0]))
    for call in module.nodes(ast.Call):
        called = last_name(call.func)
        handed = (*call.args, *(each.value for each in call.keywords))
        complete &= called not in {"add_subparsers", "set_defaults", "Namespace", "setattr", "vars"}
        complete &= not any(ast.unparse(each) in owners for each in handed)
        # `parse_args(namespace=Options())` has what the object has.
        complete &= called not in _PARSES or (len(call.args) < 2 and keyword(call, "namespace") is None)
        if called == "add_argument":
            given = (*call.args, keyword(call, "dest"))
            values = [each.value for each in given if isinstance(each, ast.Constant)]
            texts = [each for each in values if isinstance(each, str)]
            complete &= bool(texts) and len(texts) >= len(call.args)
            names |= {each.lstrip("-") for each in texts}
            if last_name(keyword(call, "action") or call.func) == "BooleanOptionalAction":
                names |= {f"no-{each[2:]}" for each in texts if each.startswith("--")}
    return names, complete


def _parsed_names(module: Module) -> set[str]:
    """Return the name of `args = parser.parse_args()`, if nothing else is ever called so."""
    found = [
        node.targets[0].id
        for node in module.nodes(ast.Assign)
        if isinstance(node.value, ast.Call)
        and last_name(node.value.func) == "parse_args"
        and isinstance(node.targets[0], ast.Name)
    ]
    assigned = [each for name in set(found) for each in module.bindings.get(name, ())]
    return set(found) if len(set(found)) == 1 and len(assigned) == len(found) else set()


def _is_it(module: Module, node: ast.Attribute, target: str) -> bool:
    """Whether the name is the parsed one there, and not a parameter of a function that others call."""
    around = [each for each in module.around(node) if isinstance(each, Function)]
    taken = [each for each in around if target in parameters(each)]
    handed = {
        last_name(each.func)
        for each in module.nodes(ast.Call)
        if any(isinstance(given, ast.Name) and given.id == target for given in each.args)
    }
    return not taken or ("__main__" in module.text and all(each.name in handed for each in taken))


def is_message(module: Module, node: ast.Constant) -> bool:
    """Whether a string is shown to a user: raised, asserted, printed, logged, or help of an option."""
    for parent in module.around(node):
        if isinstance(parent, ast.Raise | ast.Assert):
            return True
        if isinstance(parent, ast.Call):
            return last_name(parent.func) in {"print", "error", "warning", "warn", "info", "add_argument"}
        if isinstance(parent, ast.stmt):
            return False
    return False


def option_without_effect(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `action="store_true", default=True`, and the same for false."""
    for call in module.nodes(ast.Call):
        action, default = keyword(call, "action"), keyword(call, "default")
        if last_name(call.func) != "add_argument" or not isinstance(action, ast.Constant):
            continue
        value = default.value if isinstance(default, ast.Constant) else None
        # `--x` beside `--no-x`, of which one says what is so anyway
        option = next((str(each.value).lstrip("-") for each in call.args if isinstance(each, ast.Constant)), "")
        named = {ast.unparse(each.value) for each in module.nodes(ast.keyword) if each.arg == "dest"}
        paired = repr(option.replace("-", "_")) in named or keyword(call, "dest") is not None
        if (action.value, value) in {("store_true", True), ("store_false", False)} and not paired:
            yield call, f"`{ast.unparse(action)}` is the default of this option: it changes nothing"


RULES: Final = (
    Rule("unknown-option", Severity.HIGH, in_tests=False, in_file=unknown_option),
    Rule("option-without-effect", Severity.HIGH, in_file=option_without_effect),
)
