"""Read the command-line parsers of a release from its source: argparse and dataclasses."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from tooling.python.source import DefinitionNode, FunctionNode, children, defined_names, dotted_name, string_of
from tooling.python.source_modules import NodeInModule
from tooling.upgrade.interfaces.code import prefixed
from tooling.upgrade.interfaces.modules import ReleaseClass, class_constant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tooling.python.module import Module
    from tooling.upgrade.interfaces.modules import ReleaseModules

ReleaseFunction = NodeInModule[FunctionNode]


@dataclass(frozen=True, slots=True)
class Flag:
    """One option of a parser."""

    name: str
    """ "--swap-space"."""
    file: str
    line: int
    source: str
    """The call, shortened."""
    dest: str = ""
    negatable: bool | None = None
    """Whether `--no-x` exists too; None if the action is not known."""
    deprecated: str = ""


@dataclass(slots=True, eq=False)
class ParserNode:
    """A parser: what it takes, and its sub-commands."""

    flags: dict[str, Flag] = field(default_factory=dict)
    children: dict[str, ParserNode] = field(default_factory=dict)
    parents: list[ParserNode] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Where flags are made that cannot be read off: "file:line"."""
    lenient: bool = False
    """Unknown flags are ignored (`parse_known_args`)."""
    dashes: bool = False
    """The parser's class writes "_" as "-"."""
    handled: frozenset[str] = frozenset()
    """Flags that the parser's class looks for itself before parsing ("-O" in "-O3")."""

    def merged(self) -> dict[str, Flag]:
        """Its flags and those of parents."""
        found = dict(self.flags)
        for parent in self.parents:
            if parent is not self:
                found = {**parent.merged(), **found}
        return found

    def flat(self, depth: int = 8) -> ParserNode:
        """A copy without parents, whose flags are its own, as deep as commands are nested."""
        children = {name: child.flat(depth - 1) for name, child in self.children.items()} if depth else {}
        return replace(self, flags=self.merged(), children=children, parents=[])


@dataclass(frozen=True, slots=True)
class Subparsers:
    """What `add_subparsers()` gives."""

    of: ParserNode


Parsers = ParserNode | Subparsers


def made_flag(name: str, node: ast.Call, file: str) -> Flag:
    """The flag `name` of an `add_argument` call."""
    keywords = {each.arg: each.value for each in node.keywords}
    action = keywords.get("action")
    negatable: bool | None = False
    if action is not None and "BooleanOptionalAction" in ast.unparse(action):
        negatable = True
    elif None in keywords and action is None:
        negatable = None
    source = " ".join(ast.unparse(node).split())
    shown = source if len(source) < 160 else f"{source[:157]}..."
    dest = string_of(keywords.get("dest")) or ""
    return Flag(name, file, node.lineno, shown, dest, negatable, _deprecation(keywords))


def _deprecation(keywords: dict[str | None, ast.expr]) -> str:
    said = [string_of(each) or "" for each in ast.walk(keywords.get("help", ast.Constant(None)))]
    text = " ".join(" ".join(said).split())
    deprecated = keywords.get("deprecated")
    if isinstance(deprecated, ast.Constant) and deprecated.value is True:
        return text or "deprecated"
    if "deprecated" in text.lower()[:40] or "Deprecated" in ast.unparse(keywords.get("action", ast.Constant(0))):
        return text or "deprecated"
    return ""


_Given = TypeVar("_Given")


def bound_arguments(node: FunctionNode, given: dict[str | int, _Given]) -> dict[str, _Given]:
    """Arguments by the names of the parameters they land on, behind `self` or `cls`."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    landed = {(names[key] if isinstance(key, int) and key < len(names) else key): each for key, each in given.items()}
    return {name: each for name, each in landed.items() if isinstance(name, str)}


_DEPTH = 12
_PARSERS = ("ArgumentParser", "ArgParser")
_LITERAL_FLAG = re.compile(r"--?[A-Za-z][\w-]*$")
_MARKS = (b"add_argument", b"ArgumentParser", b"add_parser", b"add_cli_args")


class Interpreter:
    """Follows parsers from one entry point. Each function is looked at once for each set of parsers it is given."""

    def __init__(self, modules: ReleaseModules) -> None:
        self.modules = modules
        self.made: list[ParserNode] = []
        self._seen: dict[tuple[int, tuple[tuple[str, int], ...], int], Parsers | None] = {}
        """By function, what it is given, and the class it is called through."""
        self._attributes: dict[tuple[int, str], Parsers] = {}
        self._alive: list[object] = []

    def run(
        self,
        body: list[ast.stmt],
        module: Module,
        bound: dict[str, Parsers],
        owner: ReleaseClass | None = None,
        depth: int = 0,
        classes: dict[str, ReleaseClass] | None = None,
    ) -> Parsers | None:
        """Statements of a function or module; the parser it returns. classes: parameters that are one."""
        frame = _Frame(self, module, bound, owner, depth)
        frame.classes = classes or {}
        frame.block(body)
        return frame.returned

    def call(
        self,
        definition: ReleaseFunction,
        bound: dict[str, Parsers],
        owner: ReleaseClass | None,
        depth: int,
        classes: dict[str, ReleaseClass] | None = None,
    ) -> Parsers | None:
        """A function with parsers, and classes, for some parameters."""
        node = definition.node
        if depth > _DEPTH:
            return None
        given = sorted(
            (name, id(value.of if isinstance(value, Subparsers) else value)) for name, value in bound.items()
        )
        given += sorted((name, id(value.node)) for name, value in (classes or {}).items())
        key = (id(node), tuple(given), id(owner.node) if owner else 0)
        if key in self._seen:
            return self._seen[key]
        self._seen[key] = None
        self._alive += [node, *bound.values()]  # ids in the key stay taken
        result = self.run(node.body, definition.module, dict(bound), owner, depth + 1, classes)
        self._seen[key] = result
        return result

    def is_relevant(self, module: Module) -> bool:
        """Whether a module has to do with parsers at all."""
        content = self.modules.content(module.path)
        return any(mark in content for mark in _MARKS)


class _Frame:
    """One function's variables."""

    def __init__(
        self,
        interpreter: Interpreter,
        module: Module,
        bound: dict[str, Parsers],
        owner: ReleaseClass | None,
        depth: int,
    ) -> None:
        self.interpreter = interpreter
        self.modules = interpreter.modules
        self.module = module
        self.owner = owner
        self.depth = depth
        self.variables = bound
        self.classes: dict[str, ReleaseClass] = {}
        self.values: dict[str, ast.expr] = {}
        self.loops: list[ast.For | ast.comprehension] = []
        self.returned: Parsers | None = None

    # ------------------------------------------------------------------------------------------------- statements

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.AST) -> None:
        if isinstance(node, DefinitionNode):
            return
        if isinstance(node, ast.Assign | ast.AnnAssign):
            self.assign(node)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self.returned = self.value(node.value) or self.returned
        elif isinstance(node, ast.For | ast.AsyncFor):
            self.value(node.iter)
            self.loops.append(node)  # type: ignore[arg-type]  # the two have the same fields
            self.block(node.body)
            self.loops.pop()
            self.block(node.orelse)
        else:
            for child in children(node):  # also those of handlers, cases and `with` items
                if isinstance(child, ast.expr):
                    self.value(child)
                else:
                    self.statement(child)

    def assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        found = self.value(node.value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            name = dotted_name(target)
            if not name:
                continue
            self.values[name] = node.value
            if found is not None:
                self.bind(name, found)

    def bind(self, name: str, value: Parsers) -> None:
        self.variables[name] = value
        if name.startswith("self.") and self.owner is not None:
            self.interpreter._attributes[id(self.owner.node), name] = value

    # ------------------------------------------------------------------------------------------------ expressions

    def value(self, node: ast.expr) -> Parsers | None:
        if isinstance(node, ast.Call):
            return self.call(node)
        name = dotted_name(node)
        if name:
            if name in self.variables:
                return self.variables[name]
            owner = id(self.owner.node) if self.owner else 0
            return self.interpreter._attributes.get((owner, name))
        if isinstance(node, ast.IfExp):
            return self.value(node.body) or self.value(node.orelse)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return None

    def call(self, node: ast.Call) -> Parsers | None:
        if isinstance(node.func, ast.Attribute):
            receiver = self.value(node.func.value)
            if receiver is not None:
                return self.method(receiver, node.func.attr, node)
        made = self.construct(node)
        if made is not None:
            return made
        given = [(None, argument) for argument in node.args] + [(each.arg, each.value) for each in node.keywords]
        parsers = [(index, name, self.value(value)) for index, (name, value) in enumerate(given)]
        handed = {(name or index): found for index, name, found in parsers if found is not None}
        classes = {(name or index): self.class_of(value) for index, (name, value) in enumerate(given)} if handed else {}
        return self.enter(node, handed, {key: found for key, found in classes.items() if found is not None})

    def class_of(self, node: ast.expr) -> ReleaseClass | None:
        """The class that an argument is."""
        name = dotted_name(node)
        return self.owner if name == "cls" else self.classes.get(name) or self.modules.class_named(node, self.module)

    def method(self, receiver: Parsers, name: str, node: ast.Call) -> Parsers | None:
        """What parsers themselves can do."""
        if isinstance(receiver, Subparsers):
            return self.subcommand(receiver.of, node) if name == "add_parser" else None
        if name == "add_argument":
            self.argument(receiver, node)
        elif name in {"add_argument_group", "add_mutually_exclusive_group"}:
            return receiver
        elif name == "add_subparsers":
            return Subparsers(receiver)
        elif name in {"parse_known_args", "parse_known_intermixed_args"}:
            receiver.lenient = True
        elif name == "add_arguments":
            self.of_classes(receiver, node.args[:1], node)
        return None

    def subcommand(self, parent: ParserNode, node: ast.Call) -> ParserNode:
        child = ParserNode(dashes=parent.dashes, handled=parent.handled)
        names = [self.constant(node.args[0])] if node.args else []
        for keyword in node.keywords:
            if keyword.arg == "aliases" and isinstance(keyword.value, ast.List | ast.Tuple):
                names += [self.constant(each) for each in keyword.value.elts]
        self.inherit(child, node)
        for name in names:
            if name is None:
                parent.unknown.append(f"{self.module.path}:{node.lineno}")
            else:
                child = parent.children.setdefault(name, child)
        return child

    def construct(self, node: ast.Call) -> ParserNode | None:
        """`ArgumentParser(...)` and whatever is called like it."""
        name = dotted_name(node.func).rpartition(".")[2]
        if not name.endswith(_PARSERS) and not self.is_parser(node.func):
            return None
        parser = ParserNode()
        self.peculiar(parser, node.func)
        self.inherit(parser, node)
        if name.startswith("Hf") or name == "TrlParser":
            self.of_classes(parser, node.args[:1], node)
        self.interpreter.made.append(parser)
        return parser

    def is_parser(self, function: ast.expr) -> bool:
        """Whether a class is one of parsers by its bases."""
        found = self.modules.class_named(function, self.module)
        bases = [base for _, node in self.modules.bases(found) for base in node.bases] if found is not None else []
        return any(dotted_name(base).endswith(_PARSERS) for base in bases)

    def inherit(self, parser: ParserNode, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == "parents" and isinstance(keyword.value, ast.List | ast.Tuple):
                found = [self.value(each) for each in keyword.value.elts]
                parser.parents += [each for each in found if isinstance(each, ParserNode)]

    def peculiar(self, parser: ParserNode, function: ast.expr) -> None:
        """What the parser's own class does with arguments before they are parsed."""
        definition = self.modules.named(function, self.module)
        if definition is None:
            return
        parser.dashes = "replace('_', '-')" in ast.unparse(definition.node)
        texts = {each.value for each in ast.walk(definition.node) if isinstance(each, ast.Constant)}
        parser.handled = frozenset(text for text in texts if isinstance(text, str) and _LITERAL_FLAG.match(text))

    def constant(self, node: ast.expr) -> str | None:
        """A string, or an attribute of the class around that is one."""
        if isinstance(node, ast.Name):
            return string_of(self.values.get(node.id) or self.module.values.get(node.id))
        if isinstance(node, ast.Attribute) and dotted_name(node.value) in {"self", "cls"} and self.owner is not None:
            return class_constant(self.modules, self.owner, node.attr)
        return string_of(node)

    # ------------------------------------------------------------------------------------------- calls of functions

    def enter(
        self, node: ast.Call, given: dict[str | int, Parsers], classes: dict[str | int, ReleaseClass]
    ) -> Parsers | None:
        """Goes into the called functions, with the parsers and classes they are given."""
        result: Parsers | None = None
        for definition, owner in self.targets(node, bool(given)):
            if given or self.interpreter.is_relevant(definition.module):
                bound, known = (bound_arguments(definition.node, each) for each in (given, classes))
                result = self.interpreter.call(definition, bound, owner, self.depth, known) or result
        return result

    def targets(self, node: ast.Call, handed: bool) -> Iterator[tuple[ReleaseFunction, ReleaseClass | None]]:
        """(function, class it is called through). A method of something unknown is any method of that name, if it is
        handed a parser."""
        function = node.func
        owner = self.owning(function.value) if isinstance(function, ast.Attribute) else None
        if isinstance(function, ast.Attribute) and owner is not None:
            method = self.modules.method(owner, function.attr)
            if method is not None:
                yield method, owner
            return
        found = self.modules.named(function, self.module)
        if found is not None and isinstance(found.node, FunctionNode):
            yield NodeInModule(found.module, found.node), None
        elif found is not None and isinstance(found.node, ast.ClassDef):
            initial = self.modules.method(found, "__init__")
            if initial is not None:
                yield initial, NodeInModule(found.module, found.node)
        elif isinstance(function, ast.Attribute) and (handed or function.attr == "cmd_init"):
            yield from self.anywhere(function.attr)

    def owning(self, node: ast.expr) -> ReleaseClass | None:
        name = dotted_name(node)
        if name in {"self", "cls"}:
            return self.owner
        if isinstance(node, ast.Call) and dotted_name(node.func) == "super" and self.owner is not None:
            bases = self.modules.bases(self.owner)
            return bases[1] if len(bases) > 1 else None
        if isinstance(node, ast.Call):
            node = node.func
        elif name in self.values and isinstance(made := self.values[name], ast.Call):
            node = made.func
        return self.modules.class_named(node, self.module)

    def anywhere(self, name: str) -> Iterator[tuple[ReleaseFunction, ReleaseClass]]:
        for path in self.modules.holding(f"def {name}(".encode()):
            module = self.modules.at(path)
            classes = [node for node in module.definitions.values() if isinstance(node, ast.ClassDef)] if module else []
            for owner in [NodeInModule(module, node) for node in classes if module is not None]:
                for found, method in defined_names(owner.node.body):
                    if found == name and isinstance(method, FunctionNode):
                        yield NodeInModule(owner.module, method), owner

    # ---------------------------------------------------------------------------------------------------- arguments

    def argument(self, parser: ParserNode, node: ast.Call) -> None:
        names = [self.constant(each) for each in node.args if not isinstance(each, ast.Starred)]
        literal = [name for name in names if name is not None]
        for name in literal:
            if name.startswith("-"):
                parser.flags[name] = made_flag(name, node, self.module.path)
        if None in names or any(isinstance(each, ast.Starred) for each in node.args):
            self.dynamic(parser, node)

    def dynamic(self, parser: ParserNode, node: ast.Call) -> None:
        """Names that a loop makes."""
        made = _looped_flags(self, node)
        if made is None:
            parser.unknown.append(f"{self.module.path}:{node.lineno}")
            return
        for name, (file, line, boolean) in made.items():
            flag = made_flag(name, node, self.module.path)
            negatable = True if boolean else flag.negatable
            made_so = Flag(name, file, line, flag.source, flag.dest, negatable, flag.deprecated)
            # What a parser is told of a flag by name, before or after, says more than a loop.
            parser.flags.setdefault(name, made_so)

    def of_classes(self, parser: ParserNode, nodes: list[ast.expr], node: ast.Call) -> None:
        """HfArgumentParser(C), or of several classes: each field under both spellings."""
        for each in nodes:
            listed = each.elts if isinstance(each, ast.Tuple | ast.List) else [each]
            for one in listed:
                definition = self.modules.class_named(one, self.module)
                if definition is None:
                    parser.unknown.append(f"{self.module.path}:{node.lineno}")
                    continue
                for name, (file, line, annotation) in self.modules.fields(definition).items():
                    boolean = annotation.startswith(("bool", "Optional[bool"))
                    for text in {f"--{name}", f"--{name.replace('_', '-')}"}:
                        parser.flags[text] = Flag(text, file, line, f"{name}: {annotation}", name, boolean)


# Flags that a parser makes in loops: over names, over fields of a class, over annotated fields.

Made = dict[str, tuple[str, int, bool]]
"""Flag to (file, line, whether its field is a bool)."""


def _looped_flags(frame: _Frame, call: ast.Call) -> Made | None:
    """The flags of `add_argument(f"--{name}")` inside loops; None if they cannot be read off."""
    annotated = _annotated_flags(frame, call)
    if annotated is not None:
        return annotated
    spelling = next((_spelling(each) for each in call.args if _spelling(each) is not None), None)
    if spelling is None:
        return None  # `add_argument(*names, **options)`: the names come from somewhere else
    variable, write = spelling
    for loop in reversed(frame.loops):
        if variable.split(".")[0] in {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}:
            literal = _literal(frame, loop.iter)
            if literal is not None and all(write(name).startswith("-") for name in literal):
                return {write(name): (frame.module.path, loop.iter.lineno, False) for name in literal}
            classes = _classes(frame, loop.iter, 0)
            if len({id(each.node) for each in classes}) != 1:
                return None
            if not write("x").startswith("-"):
                return None
            fields = frame.modules.fields(classes[0])
            return {
                write(name): (file, line, kind in {"bool", "Optional[bool]", "bool | None"})
                for name, (file, line, kind) in fields.items()
            } or None
    return None


def _spelling(node: ast.expr) -> tuple[str, Callable[[str], str]] | None:
    """(variable, how a flag is written from its value) of f"--{name}", f"--{name.replace('_', '-')}", "--" + name, and
    of `name` itself."""
    if isinstance(node, ast.Name):
        return node.id, str
    prefix, inner = prefixed(node)
    if not prefix.startswith("-") or (isinstance(node, ast.JoinedStr) and len(node.values) > 2):
        return None
    dashes = False
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "replace":
        dashes = [each.value for each in inner.args if isinstance(each, ast.Constant)] == ["_", "-"]
        inner = inner.func.value
    variable = dotted_name(inner)
    if not variable:
        return None
    return variable, lambda name: prefix + (name.replace("_", "-") if dashes else name)


def _literal(frame: _Frame, node: ast.expr) -> Sequence[str] | None:
    if isinstance(node, ast.Name) and node.id in frame.values:
        node = frame.values[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in {"items", "keys"}:
        node = frame.values.get(dotted_name(node.func.value), node.func.value)
    parts: Sequence[ast.expr | None] = []
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts = [each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each for each in node.elts]
    elif isinstance(node, ast.Dict):
        parts = node.keys
    names = [text for each in parts if (text := string_of(each)) is not None]
    return names if names and len(names) == len(parts) else None


def _classes(frame: _Frame, node: ast.expr, depth: int) -> list[ReleaseClass]:
    """Classes with fields that an expression mentions, local variables followed to what they were assigned."""
    found: list[ReleaseClass] = []
    if depth > 4:
        return found
    for each in ast.walk(node):
        if not isinstance(each, ast.Name):
            continue
        if each.id == "cls" and frame.owner is not None:
            found.append(frame.owner)
        elif each.id in frame.classes:
            found.append(frame.classes[each.id])
        elif each.id in frame.values and frame.values[each.id] is not node:
            found += _classes(frame, frame.values[each.id], depth + 1)
        elif (definition := frame.modules.class_named(each, frame.module)) is not None:
            found.append(definition)
    return found


def _annotated_flags(frame: _Frame, call: ast.Call) -> Made | None:
    """The flags of `add_argument(*names)` in a loop over the fields of a class whose annotations describe them.

    `tp_size: Annotated[int, Arg(aliases=["--tensor-parallel-size"])]`: strings in the description that are flags are
    names of this one; without one that stands alone, the field's own name is its first. None where the loop is
    another one.
    """
    if not frame.loops or not any(isinstance(each, ast.Starred) for each in call.args):
        return None
    loop = frame.loops[-1]
    classes = _classes(frame, loop.iter, 0)
    if len({id(each.node) for each in classes}) != 1 or not isinstance(loop, ast.For):
        return None
    # `if described.no_cli: continue`: attributes that keep a field from being a flag
    tests = [node.test for node in loop.body if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Continue)]
    skipping = {test.attr for test in tests if isinstance(test, ast.Attribute)}
    found: Made = {}
    # A boolean is `store_true` there: such a loop makes no negations.
    for name, (module, node) in frame.modules.annotations(classes[0]).items():
        described = _description(node.annotation, frame.modules, module)
        if not described or any(_is_skipped(each, skipping) for each in described):
            continue
        own, others = _written_names(described)
        for flag in (own or f"--{name.replace('_', '-')}", *others):
            found[flag] = (module.path, node.lineno, False)
    return found or None


def _description(annotation: ast.expr, modules: ReleaseModules, module: Module) -> list[ast.expr]:
    """What follows the type in `Annotated[T, ...]`, under whatever name Annotated was imported; [] without it."""
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.slice, ast.Tuple):
        return []
    name = dotted_name(annotation.value)
    source = module.imported.get(name, name)
    home = modules.module(source.rpartition(".")[0])
    alias = home.values.get(source.rpartition(".")[2]) if home is not None else module.values.get(name)
    known = dotted_name(alias) if alias is not None else source
    return annotation.slice.elts[1:] if known.rpartition(".")[2] == "Annotated" else []


def _is_skipped(described: ast.expr, skipping: set[str]) -> bool:
    return isinstance(described, ast.Call) and any(
        each.arg in skipping and isinstance(each.value, ast.Constant) and bool(each.value.value)
        for each in described.keywords
    )


def _written_names(described: list[ast.expr]) -> tuple[str, list[str]]:
    """(the name that stands alone, those in lists)."""
    own = ""
    others: list[str] = []
    for value in (each.value for call in described if isinstance(call, ast.Call) for each in call.keywords):
        if isinstance(value, ast.Constant) and str(value.value).startswith("-") and " " not in str(value.value):
            own = str(value.value)
        elif isinstance(value, ast.List | ast.Tuple):
            texts = [part.value for part in value.elts if isinstance(part, ast.Constant)]
            others += [text for text in texts if isinstance(text, str) and text.startswith("-") and " " not in text]
    return own, others
