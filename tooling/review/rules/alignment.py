"""Values and the tokens they are about: shifts by one that are forgotten, done twice, or run across rows."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tooling.python.module import Function, keyword, last_name, own_nodes
from tooling.review.records import Rule, Severity
from tooling.review.rules.readings import key_of, operand

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.side import Side

_TOKENS = re.compile(r"(^|_)(input_ids|labels|tokens|input_tokens)$")
_BATCH = re.compile(r"^(input_ids|labels|tokens|loss_mask|attention_mask)$")
_PACKED = re.compile(r"cu_seqlens|packed|pack_|flatten\(|view\(-1\)|reshape\(-1\)|squeeze\(|\.dim\(\)|ndim")
_SCORES = re.compile(
    r"cross_entropy|gather_logprobs|nll_loss|logprobs?_of|log_?probs?(_from_logits)?$|selective_log_softmax|^loss_f|criterion"
)
_LOSS_MASK = re.compile(r"(^|_)(loss|response|completion|action)_mask$")


def roll_without_dims(module: Module, _side: Side) -> Iterator[Hit]:
    """`torch.roll(x, -1)` of a batch: the last token of a row becomes the first of the row before."""
    for node in module.nodes(ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr != "roll" or "torch" not in module.text:
            continue
        owner = module.dotted(node.func)
        if owner.startswith(("numpy", "np.")):
            continue
        shifted = node.args[1:] if owner == "torch.roll" else node.args
        given = {each.arg for each in node.keywords}
        # `targets[:, -1] = IGNORED` behind it replaces what came from the next row.
        statement = next(each for each in module.around(node) if isinstance(each, ast.stmt))
        target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else "roll"
        if re.search(
            rf"\b{re.escape(target)}\[(?::|\.\.\.), (?:-1|0)\] = ", ast.unparse(module.function_of(node) or module.tree)
        ):
            continue
        if None not in given and "dims" not in given and len(shifted) < 2 and _two_dimensional(module, node):
            yield node, f"`{ast.unparse(node.func)}` without `dims` rolls across rows"


def _two_dimensional(module: Module, call: ast.Call) -> bool:
    """Whether the function shows that what is rolled has rows: `x[:, ...]`, `x.shape[1]`, `x.size(1)`. Tokens of a
    batch have rows wherever nothing speaks of packing."""
    function, rolled = module.function_of(call), operand(call)
    name = ast.unparse(rolled) if rolled is not None else ""
    for node in own_nodes(function, ast.Subscript):
        sliced = isinstance(node.slice, ast.Tuple) and isinstance(node.slice.elts[0], ast.Slice)
        second = isinstance(node.slice, ast.Constant) and node.slice.value == 1
        of = ast.unparse(node.value)
        if (sliced and of == name) or (second and of == f"{name}.shape"):
            return True
    return bool(_BATCH.search(key_of(rolled))) and not _PACKED.search(ast.unparse(function) if function else "")


def _slice_of_tokens(node: ast.expr) -> str:
    """Return ":-1" of `logits[:, :-1, :]` and `labels[..., :-1]`, "1:" of `labels[:, 1:]`; "" of everything else."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return ""
    cuts = {ast.unparse(each) for each in node.slice.elts if isinstance(each, ast.Slice)} - {":"}
    return cuts.pop() if len(cuts) == 1 else ""


def _viewed(node: ast.expr) -> ast.expr:
    """Return `x[:, 1:]` of `x[:, 1:].contiguous().reshape(-1)`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def shifted_alike(module: Module, _side: Side) -> Iterator[Hit]:
    """Find scores and labels that are cut at the same end, so that a token is scored by its own position."""
    for function in module.functions():
        nodes = list(own_nodes(function))
        values: dict[str, ast.expr] = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                # Of `x = logits[..., :-1, :]` and `x = x.view(-1)` the first says where it is cut.
                name = node.targets[0].id
                if not any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node.value)):
                    values[name] = node.value
        for node in nodes:
            if not isinstance(node, ast.Call) or not _SCORES.search(last_name(node.func)):
                continue
            cuts = {}
            for given in (*node.args, *(each.value for each in node.keywords)):
                found = _viewed(given)
                found = _viewed(values.get(found.id, found)) if isinstance(found, ast.Name) else found
                if isinstance(found, ast.Subscript) and (cut := _slice_of_tokens(found)):
                    cuts[key_of(found.value)] = cut
            scores = {cut for name, cut in cuts.items() if "logit" in name}
            labels = {cut for name, cut in cuts.items() if _TOKENS.search(name)}
            if len(scores) == len(labels) == 1 and scores == labels and scores <= {":-1", "1:"}:
                message = (
                    f"`{ast.unparse(node.func)}` compares logits and labels that are cut alike, at `{min(scores)}`"
                )
                yield node, message


_ABOUT_TARGETS = re.compile(r"(^|_)(labels?|targets?)$")
_IDS = re.compile(r"(^|_)(input_ids|labels?|tokens|token_ids|targets?)$")
_ROLLED = re.compile(r"(^|_)(input_ids|labels|tokens|token_ids|sequences|logprobs|loss_mask)(_rmpad)?$")


def cut_at_wrong_end(module: Module, _side: Side) -> Iterator[Hit]:
    """Find logits without their first position, and labels made of tokens without the last one: the logits of a
    position speak of the token behind it."""
    for node in module.nodes(ast.Subscript):
        name, statement = key_of(node.value) or last_name(node.value), module.parents.get(node)
        if not isinstance(node.ctx, ast.Load) or not (cut := _slice_of_tokens(node)):
            continue
        last = (
            isinstance(node.slice, ast.Tuple) and ast.unparse(node.slice.elts[-1]) == cut and len(node.slice.elts) > 2
        )
        if name.endswith("logits") and cut == "1:" and not last:
            yield node, f"`{ast.unparse(node)}` drops the logits of the second token"
        while isinstance(statement, ast.Attribute | ast.Call) and node not in getattr(statement, "args", ()):
            statement = module.parents.get(statement)
        target = last_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        made = next((each for each in module.around(node) if isinstance(each, ast.Assign)), None)
        if cut == ":-1" and made is not None and last_name(made.targets[0]) == f"next_{name}":
            yield node, f"`next_{name}` begins with the first of `{name}`"
        if cut == ":-1" and _ABOUT_TARGETS.search(target) and _IDS.search(name):
            yield node, f"`{target}` are cut at the end: each position has its own token"
    for call in module.nodes(ast.Call):
        by = keyword(call, "shifts") or (call.args[1] if len(call.args) > 1 else None)
        forward = last_name(call.func) == "roll" and by is not None and ast.unparse(by) == "1"
        rolled = key_of(call.args[0]) if forward and call.args else ""
        if _ROLLED.search(rolled):
            yield call, f"`{ast.unparse(call)}` gives each position the token before it, and not the one that follows"
    for function in module.functions():
        cuts = [(each, _slice_of_tokens(each)) for each in own_nodes(function, ast.Subscript)]
        labels = [each for each, cut in cuts if cut == "1:" and _IDS.search(key_of(each.value))]
        masks = [(each, cut) for each, cut in cuts if cut in {"1:", ":-1"} and _LOSS_MASK.search(key_of(each.value))]
        wrong = [each for each, cut in masks if cut == ":-1"]
        if labels and wrong and len(wrong) == len(masks):
            yield wrong[0], f"`{ast.unparse(wrong[0])}` and `{ast.unparse(labels[0])}` are cut at different ends"


def mask_not_shifted(module: Module, _side: Side) -> Iterator[Hit]:
    """Find labels rolled by one, and the mask of the same batch used as it came."""
    for function in module.functions():
        nodes = list(own_nodes(function))
        rolls = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func) == "roll"]
        # Bases of the items that a roll by minus one is of: "data" of `torch.roll(data["input_ids"], shifts=-1)`
        back = [each for each in rolls if "-1" in map(ast.unparse, (*each.args, *(one.value for one in each.keywords)))]
        bases = {_item(node, _TOKENS) for each in back for node in ast.walk(each)} - {""}
        if not bases or any("mask" in ast.unparse(each) for each in rolls):
            continue
        read = {_item(node, _LOSS_MASK): node for node in nodes if _item(node, _LOSS_MASK)}
        subscripts = [each for each in nodes if isinstance(each, ast.Subscript) and "mask" in ast.unparse(each.value)]
        sliced = any(isinstance(part, ast.Slice) for each in subscripts for part in ast.walk(each.slice))
        for base, node in read.items():
            if base in bases and not sliced and isinstance(node, ast.expr) and _weighs(module, function, node):
                message = f"`{ast.unparse(node)}` is used as it came, the tokens of `{base}` are rolled by one"
                yield node, message, rolls[0]


def _item(node: ast.AST, pattern: re.Pattern[str]) -> str:
    """Return "data" of `data["loss_mask"]`; "" of everything else."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.ctx, ast.Load):
        return ast.unparse(node.value) if pattern.search(str(node.slice.value)) else ""
    return ""


def _weighs(module: Module, function: Function, node: ast.expr) -> bool:
    """Whether the mask, or the name that it gets, is multiplied with something or selects from it."""
    parent = module.parents.get(node)
    names = {ast.unparse(node)}
    while isinstance(parent, ast.Attribute | ast.Call):
        parent = module.parents.get(parent)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        names.add(parent.targets[0].id)
    for each in own_nodes(function, ast.BinOp):
        if not isinstance(each.op, ast.Mult):
            continue
        if names & {ast.unparse(each.left), ast.unparse(each.right)}:
            return True
    return False


RULES = (
    Rule("roll-across-rows", Severity.HIGH, in_file=roll_without_dims),
    Rule("shifted-alike", Severity.HIGH, in_file=shifted_alike),
    Rule("cut-at-wrong-end", Severity.HIGH, in_tests=False, in_file=cut_at_wrong_end),
    Rule("mask-not-shifted", Severity.HIGH, in_file=mask_not_shifted),
)
