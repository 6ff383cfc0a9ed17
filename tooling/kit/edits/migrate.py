"""Turn a function that dispatches by if/elif into a literal table, once: `areal-new migrate-registry FILE`.

    def get_reward(name, answer):                     REWARDS: typing.Final[dict[str, str]] = {
        if name == "gsm8k":                               "gsm8k": "pkg.gsm8k:gsm8k_reward",
            from pkg.gsm8k import gsm8k_reward        }
            return gsm8k_reward(answer)           ->
        elif ..                                       def get_reward(name, answer):
        else:                                             if isinstance(name, str) and name in REWARDS:
            raise ValueError(name)                            return _load_target(REWARDS[name])(answer)
                                                          else:
                                                              raise ValueError(name)

Signature, decorators, docstring, the answer to unknown names and every other line stay; comments of a branch move
above its entry. Objects are imported when they are asked for, as before. What the table would answer differently is
refused (`tooling.kit.edits.dispatch`). An object that is no text but claims to equal one meets the answer to unknown
names. Afterwards `tooling.kit.edits.registry` adds entries, and there is nothing left to migrate.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.errors import RegistryShapeError, UsageError
from tooling.kit.edits.bindings import parse_python
from tooling.kit.edits.dispatch import PLACEHOLDER, find_chains, read_dispatch, template
from tooling.kit.edits.proof import comments, same_tree
from tooling.kit.edits.table_module import Names, Pieces, assemble, choose_names, table_name
from tooling.kit.edits.text import read_source, refusal

if TYPE_CHECKING:
    from tooling.kit.edits.dispatch import Branch, Chain, Dispatch
    from tooling.kit.edits.proof import Comment
    from tooling.kit.edits.text import SourceText

_FOR_TOOLS = re.compile(r"#\s*(noqa|type:|isort:|pyright:|pylint:|pragma:)", re.IGNORECASE)
_FIX: Final = "repair the file first"


@dataclass(frozen=True, slots=True)
class Migration:
    """The file with its table."""

    source: bytes
    function: str
    table: str
    entries: tuple[tuple[str, str], ...]
    """(key, "module:object"), sorted."""
    notes: tuple[str, ...] = ()
    """Instructions to tools that went with the import they stood behind."""


def migrate_registry(source: bytes, *, file: str, function: str | None = None) -> Migration:
    """The file with a table in place of the one function's if/elif chain.

    function: which one, where several could be migrated. Raises UsageError when there is none (a table already) or no
    single one, RegistryShapeError (exit 6) with file:line and the reason when a branch is not plain.
    """
    try:
        return _migrated(source, file, function)
    except RecursionError as error:
        raise refusal(file, 1, "an expression is nested too deeply to be compared", _FIX) from error


def _migrated(source: bytes, file: str, function: str | None) -> Migration:
    text = read_source(source, file, _FIX)
    try:
        tree, marks = parse_python(text.text), comments(text)
    except SyntaxError as error:
        raise refusal(file, error.lineno or 1, f"registry unreadable: {error.msg}", _FIX) from error
    except (ValueError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise refusal(file, 1, f"registry unreadable: {error}", _FIX) from error
    dispatch = _choose(text, tree, function)
    name = dispatch.function.name
    names = choose_names(text, tree, table_name(name), dispatch.function.lineno)
    region = _region(text, dispatch, marks)
    above, dropped = _comments_of_branches(text, dispatch, marks, region)
    targets = {key: branch.target for branch in dispatch.branches for key in branch.keys}
    pieces = Pieces(
        entries=tuple(sorted(targets.items())),
        comments=above,
        region=region,
        replacement=_replacement(text, dispatch, names),
        function=dispatch.function,
    )
    data = assemble(text, tree, names, pieces)
    _prove(text, text.with_data(data), dispatch, names, pieces, dropped)
    notes = tuple(f"{text.line(mark.offset)}: {mark.text} went with its import" for mark in dropped)
    return Migration(text.encode(data), name, names.table, pieces.entries, notes)


def _choose(text: SourceText, tree: ast.Module, wanted: str | None) -> Dispatch:
    chains = [chain for chain in find_chains(text, tree) if wanted in (None, chain.function.name)]
    if not chains:
        what = f"{wanted} is no function that dispatches" if wanted else "no function dispatches"
        raise UsageError(f"{what} by if/elif on a string here; maybe it is a table already", where=text.file)
    if len(chains) == 1:
        return read_dispatch(text, chains[0])
    read = [_try(text, chain) for chain in chains]
    plain = [item for item in read if not isinstance(item, RegistryShapeError)]
    if len(plain) > 1:
        found = ", ".join(item.function.name for item in plain)
        raise UsageError(f"several functions dispatch: {found}", where=text.file, fix="name one with --function")
    if not plain:
        raise next(item for item in read if isinstance(item, RegistryShapeError))
    return plain[0]


def _try(text: SourceText, chain: Chain) -> Dispatch | RegistryShapeError:
    try:
        return read_dispatch(text, chain)
    except RegistryShapeError as error:
        return error


def _region(text: SourceText, dispatch: Dispatch, marks: list[Comment]) -> tuple[int, int]:
    """Offsets of the lines that the lookup replaces: up to the `else:` and the comments above it, if there is one."""
    first = dispatch.function.body[dispatch.first]
    column = first.col_offset
    start = text.line_start(text.offset(first.lineno, 0))
    end = text.next_line(text.offset(dispatch.branches[-1].last_line, 0))
    if not dispatch.otherwise:
        return start, end
    stop = text.offset(dispatch.otherwise[0].lineno, 0)
    for mark in marks:
        own_line = not mark.anchor and end <= mark.offset < stop
        if own_line and mark.offset - text.line_start(mark.offset) <= column:
            return start, text.line_start(mark.offset)
    while not re.match(rb"\s*else\b", text.data[end : text.next_line(end)]):
        end = text.next_line(end)
    return start, end


def _comments_of_branches(
    text: SourceText, dispatch: Dispatch, marks: list[Comment], region: tuple[int, int]
) -> tuple[dict[str, list[str]], list[Comment]]:
    """(comments by the first key of their branch, those that speak to tools about a line that goes)."""
    above: dict[str, list[str]] = {}
    dropped: list[Comment] = []
    column = dispatch.function.body[dispatch.first].col_offset
    for mark in marks:
        if not region[0] <= mark.offset < region[1]:
            continue
        if any(branch.statement[0] <= mark.offset < branch.statement[1] for branch in dispatch.branches):
            raise refusal(text.file, text.line(mark.offset), "a comment inside the call", "move it above the call")
        if mark.anchor and _FOR_TOOLS.match(mark.text):
            dropped.append(mark)
            continue
        inner = mark.offset - text.line_start(mark.offset) > column
        branch = _owner(dispatch.branches, text.line(mark.offset), inner=inner)
        above.setdefault(min(branch.keys), []).append(mark.text)
    return above, dropped


def _owner(branches: tuple[Branch, ...], line: int, *, inner: bool) -> Branch:
    """A comment between two branches belongs to the following one, unless it is indented like the body before it."""
    after = [branch for branch in branches if branch.first_line <= line]
    if after and (line <= after[-1].last_line or inner or after[-1] is branches[-1]):
        return after[-1]
    return branches[len(after)]


def _replacement(text: SourceText, dispatch: Dispatch, names: Names) -> bytes:
    first = dispatch.function.body[dispatch.first]
    outer = text.indentation(text.offset(first.lineno, first.col_offset))
    body = dispatch.branches[0]
    own_line = text.starts_line(body.statement[0])
    inner = text.indentation(body.statement[0]) if own_line else outer + b"    "
    newline = text.newline(body.statement[0])
    lookup = f"{names.loader}({names.table}[{dispatch.subject}])"
    statement = template(text, body).replace(PLACEHOLDER, lookup).encode("utf-8")
    test = f"if isinstance({dispatch.subject}, str) and {dispatch.subject} in {names.table}:".encode()
    return outer + test + newline + inner + statement + newline


def _prove(
    before: SourceText, after: SourceText, dispatch: Dispatch, names: Names, pieces: Pieces, dropped: list[Comment]
) -> None:
    """The new module must be the old one plus imports, table and loader, with one `if` for the chain; no comment
    less."""
    old, new = parse_python(before.text), parse_python(after.text)
    function = next(node for node in old.body if node.lineno == dispatch.function.lineno)
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    lookup = parse_python(pieces.replacement.decode("utf-8").lstrip()).body[0]
    assert isinstance(lookup, ast.If)
    lookup.orelse = dispatch.otherwise
    function.body[dispatch.first : dispatch.first + dispatch.count] = [lookup]
    added = [*names.import_nodes(), *pieces.nodes(names)]
    for node in added:
        position = next((i for i, item in enumerate(new.body) if same_tree(item, node)), None)
        if position is not None:
            del new.body[position]
    kept = Counter(mark.text for mark in comments(before)) - Counter(mark.text for mark in dropped)
    if not same_tree(old, new) or kept != Counter(mark.text for mark in comments(after)):
        line = dispatch.function.lineno
        raise refusal(before.file, line, "the rewrite could not be proved to change nothing else", _FIX)
