"""Asks the type checker ty about files of a change: calls and attributes that fit nothing in the whole repository.

    reported, note = check(comparison.head, ["areal/trainer/rl.py"])
    reported["areal/trainer/rl.py"]     # [("signature-mismatch", Place(path="areal/trainer/rl.py", line=80, ...))]

ty gets a copy of the repository's Python files in a folder of its own, without their settings, and an environment
without packages: whatever comes from one has no type, and nothing is reported about it. Nothing of the repository under
review is run; of what it says to type checkers only comments (`# type: ignore`) are obeyed. A linter reads one file;
this finds the call in one file of a method that another one changed, whatever class the value got it from.
"""

from __future__ import annotations

import ast
import os
import re
import tempfile
from pathlib import Path, PurePosixPath
from shutil import which
from typing import TYPE_CHECKING, Any, Final

from tooling.python.module import Function, last_name, nodes_in
from tooling.python.symbols.calls import why_refused, written_signature
from tooling.review.linter import reported_rows
from tooling.review.records import Place
from tooling.review.rules.readings import is_expected
from tooling.review.rules.typed import CHECKED

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tooling.python.module import Module
    from tooling.review.repository.side import Side

MOST_FILES: Final = 6000
"""Python files of a repository that are copied; in a larger one this checker does not look."""
_OWNER: Final = re.compile(r"(?:Object of type|on type|Class|type) `(?:<class ')?(?P<owner>[A-Z]\w*)(?:'>)?`")
_ATTRIBUTE: Final = re.compile(r"attribute `(?P<name>\w+)`")
_UNLIKE: Final = re.compile(r"Expected `(?:int|float|str|bytes)`, found `Literal\[[^`]*\]`")
"""A literal for a builtin type. Variables may have been given values of another type than their annotation says."""
_BUILTIN: Final = re.compile(r"(?:method|function|of) `(?:str|bytes|int|float|list|dict|set|tuple|object|type)\b")
"""Of a tokenizer that is annotated as str | Tokenizer, and a class that a decorator of another package completes."""
_NOT_SURE: Final = re.compile(
    r"`None`|`object`|<module|<special|->|~|\||Unknown|Generator|Iterator|Object of type `[A-Z]"
)
"""None is what a failed optional import leaves, and a module what a package replaces on demand; a union may be narrowed
by what the checker cannot follow. Who yields once, under a decorator left out of the annotation, is a context, and who
writes `cls: Row` means the class."""
_CALLED: Final = re.compile(r"(?:of|to|instantiate) (?:function |bound method )?`(?P<owner>\w+)(?:\.(?P<name>\w+))?`")
"""What a message about a call says that was called."""


def check(side: Side, asked: Collection[str]) -> tuple[dict[str, list[tuple[str, Place]]], str]:
    """Return, by path, the rule's id and place of each finding in the files asked about; and why ty did not look, ""
    when it did."""
    paths = sorted(path for path in side.paths if path.endswith(".py"))
    wanted = sorted(path for path in set(paths).intersection(asked) if side.module(path) is not None)
    if not wanted:
        return {}, ""
    program = ty_program()
    if program is None:
        return {}, "ty is not installed: the type checker did not look (pip install 'areal[review]')"
    if len(paths) > MOST_FILES:
        return {}, f"more than {MOST_FILES} Python files: the type checker did not look"
    side.load(paths)
    texts = {path: text for path in paths if (text := side.text(path)) is not None}
    with tempfile.TemporaryDirectory(prefix="areal-review-") as folder:
        for path, text in texts.items():
            if ".." not in PurePosixPath(path).parts:
                place = Path(folder, "tree", path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text, encoding="utf-8", errors="surrogateescape")
        rows, note = _run(program, Path(folder), wanted)
    found: dict[str, list[tuple[str, Place]]] = {}
    for path, line, rule, message in _certain(rows, texts):
        if rule in {"abstract-instance", "signature-mismatch"} and _may_fit(side, path, line, message):
            continue
        if rule == "falls-through" and not _reaches_its_end(side, path, line):
            continue
        found.setdefault(path, []).append((rule, Place(path, line, message)))
    return found, note


def ty_program() -> str | None:
    """Return the ty that belongs to this interpreter, else the first on PATH."""
    try:
        from ty import find_ty_bin  # type: ignore[import-not-found,unused-ignore]  # an optional package

        return str(find_ty_bin())
    except (ImportError, FileNotFoundError):
        return which("ty")


def _certain(rows: list[dict[str, Any]], texts: Mapping[str, str]) -> Iterator[tuple[str, int, str, str]]:
    """Yield what cannot be an effect of loose annotations, in terms of ours."""
    for row in rows:
        code = row["check_name"]
        rule, path = CHECKED.get(code), row["location"]["path"]
        message = row["description"].removeprefix(f"{code}: ")
        if rule is None or path not in texts:
            continue
        if rule == "unlike-types" and not _UNLIKE.search(message):
            continue
        if rule == "unknown-attribute" and not _defined_nowhere(message, texts):
            continue
        if (rule == "not-callable" and _NOT_SURE.search(message)) or _BUILTIN.search(message):
            continue
        yield path, row["location"]["positions"]["begin"]["line"], rule, f"{message} ({code})"


def _may_fit(side: Side, path: str, line: int, message: str) -> bool:
    """Whether a call may be right that fits nothing by what ty reads. Nine of ten such findings are about what Python
    does when it runs, so a finding counts only if none of these cases explains it."""
    module, said = side.module(path), _CALLED.search(message)
    if module is None or said is None or any(side.find_module(star) is None for star in module.stars):
        return True  # a star import from elsewhere may bind another class of that name
    calls = [each for each in module.nodes(ast.Call) if each.lineno <= line <= (each.end_lineno or line)]
    if any(is_expected(module, call) for call in calls):
        return True  # a test expects that it fails
    owner, name = said["owner"], said["name"] or "__init__"
    modules = [found for each in side.grep([owner, name], "*.py") if (found := side.module(each))]
    classes = [(home, each) for home in modules for each in home.nodes(ast.ClassDef) if each.name == owner]
    if not classes:  # a function, unless it is defined in several forms
        made = [module.function_of(each) for each in module.functions() if each.name == owner]
        return said["name"] is not None or len(set(made)) < len(made)
    forms = [each for _, one in classes for each in one.body if isinstance(each, Function) and each.name == name]
    if name != "__init__":  # a method: of several forms, or another class has one that takes the call
        there = [each for home in modules for each in home.functions() if each.name == name and each not in forms]
        taken = [written_signature(each.args, bound=True) for each in there]
        named = [each for each in calls if last_name(each.func) == name]
        return len(forms) > 1 or any(not why_refused(each, call) for each in taken for call in named)
    for call in calls:  # a class, which by our own reading may take the call
        known = side.definition(module.imported.get(last_name(call.func), f"{module.package}.{last_name(call.func)}"))
        signature = side.signature(f"{known[0].package}.{known[1].name}", known[1]) if known is not None else None
        if signature is not None and "instantiate" not in message and not why_refused(signature, call):
            return True
    lines = [side.lineage(*each) for each in classes]
    foreign = {each.rpartition(".")[2] for _, bases in lines for each in bases}
    words = {last_name(word.value) for bases, _ in lines for _, one in bases for word in one.keywords}
    if "instantiate" in message and "ABC" not in foreign and "ABCMeta" not in words:
        return True  # nothing keeps an abstract class without ABC from being made
    # ty counts only the fields that it can read of a dataclass, and a metaclass may make something else.
    return len(forms) > len(classes) or bool(foreign - _OF_PYTHON) or bool(words - {"ABCMeta"})


def _reaches_its_end(side: Side, path: str, line: int) -> bool:
    """Whether the function with that return annotation ends by what is known here, not with a call that may always
    raise or a loop that may never end."""
    module = side.module(path)
    return module is not None and any(
        _goes_on(side, module, each.body)
        for each in module.functions()
        if each.returns is not None and each.returns.lineno <= line <= (each.returns.end_lineno or line)
    )


def _goes_on(side: Side, module: Module, block: Sequence[ast.stmt]) -> bool:
    """Whether a block may surely go on behind its last statement."""
    last = block[-1]
    if isinstance(last, ast.Return | ast.Raise):
        return False
    value = last.value if isinstance(last, ast.Expr) else None
    call = value.value if isinstance(value, ast.Await) else value
    if isinstance(call, ast.Call):
        called = module.dotted(call.func)
        found = side.definition(called if "." in called else f"{module.package}.{called}")
        known = found is not None and isinstance(found[1], Function) and found[1].returns is not None
        return known or called == "print"
    if isinstance(last, ast.If):
        return not last.orelse or any(_goes_on(side, module, each) for each in (last.body, last.orelse))
    if isinstance(last, ast.Match) and ast.unparse(last.cases[-1].pattern) == "_":
        return any(_goes_on(side, module, each.body) for each in last.cases)
    if isinstance(last, ast.With | ast.AsyncWith):
        return _goes_on(side, module, last.body)
    if isinstance(last, ast.Try):
        ends = [last.orelse or last.body, *(each.body for each in last.handlers)]
        return any(_goes_on(side, module, each) for each in ends)
    if isinstance(last, ast.For | ast.AsyncFor):
        # `for batch in cycle(loader)` may have no end.
        over = [each.id for each in nodes_in(last.iter, ast.Name)]
        return not any(module.imported.get(each, "").partition(".")[0] not in {"", *side.roots} for each in over)
    return True


_OF_PYTHON: Final = frozenset({"ABC", "Enum", "Exception", "Generic", "Protocol", "object"})


def _defined_nowhere(message: str, texts: Mapping[str, str]) -> bool:
    """Whether the attribute's owner is a class of the repository and nothing in it defines such a name: not a subclass
    that the annotation does not name, no mixin, nothing set from outside."""
    owner, attribute = _OWNER.search(message), _ATTRIBUTE.search(message)
    if owner is None or attribute is None or not message.startswith("Object of type"):
        return False
    name = re.escape(attribute["name"])
    given = re.compile(rf"\b(?:def|class)\s+{name}\b|\b{name}\b\s*(?::[^:\n]|=[^=])|['\"]{name}['\"]|\bas\s+{name}\b")
    made = re.compile(rf"^class {owner['owner']}\b", re.MULTILINE)
    return any(made.search(text) for text in texts.values()) and not any(given.search(text) for text in texts.values())


def _run(program: str, folder: Path, names: list[str]) -> tuple[list[dict[str, Any]], str]:
    empty = folder / "environment"
    for part in ("bin", "lib/python3.12/site-packages"):
        (empty / part).mkdir(parents=True)
    (empty / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12\n", encoding="utf-8")
    command = [program, "check", "--project", ".", "--python", str(empty), "--output-format", "gitlab"]
    command += ["--no-progress", "--exit-zero", "--", *names]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TY_", "VIRTUAL_ENV", "CONDA_"))}
    environment = kept | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    return reported_rows("the type checker", command, folder / "tree", environment, may_be_silent=True)
