"""Read the command-line parsers of a release from its source: argparse, typer, click, dataclasses."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from tooling.python.source import dotted_name
from tooling.upgrade.interfaces.looped_flags import looped_flags
from tooling.upgrade.interfaces.modules import ModuleDefinition, ReleaseModule, ReleaseModules, class_constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.source import FunctionNode


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
    dest = keywords.get("dest")
    text = dest.value if isinstance(dest, ast.Constant) and isinstance(dest.value, str) else ""
    source = " ".join(ast.unparse(node).split())
    shown = source if len(source) < 160 else f"{source[:157]}..."
    return Flag(name, file, node.lineno, shown, text, negatable, _deprecation(keywords))


def _deprecation(keywords: dict[str | None, ast.expr]) -> str:
    help_text = keywords.get("help")
    text = _text(help_text) if help_text is not None else ""
    deprecated = keywords.get("deprecated")
    if isinstance(deprecated, ast.Constant) and deprecated.value is True:
        return text or "deprecated"
    if "deprecated" in text.lower()[:40] or "Deprecated" in ast.unparse(keywords.get("action", ast.Constant(0))):
        return text or "deprecated"
    return ""


def _text(node: ast.expr) -> str:
    parts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return " ".join(" ".join(parts).split())


_Given = TypeVar("_Given")


def bound_arguments(
    node: FunctionNode | ast.ClassDef, given: dict[str | int, _Given], *, skip: bool
) -> dict[str, _Given]:
    """Arguments by the names of the parameters they land on."""
    if isinstance(node, ast.ClassDef):
        return {}
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    if (skip or names[:1] in (["self"], ["cls"])) and names[:1] in (["self"], ["cls"]):
        names = names[1:]
    found: dict[str, _Given] = {}
    for key, value in given.items():
        if isinstance(key, str):
            found[key] = value
        elif key < len(names):
            found[names[key]] = value
    return found


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
        module: ReleaseModule,
        bound: dict[str, Parsers],
        owner: ModuleDefinition | None = None,
        depth: int = 0,
        classes: dict[str, ModuleDefinition] | None = None,
    ) -> Parsers | None:
        """Statements of a function or module; the parser it returns. classes: parameters that are one."""
        frame = _Frame(self, module, bound, owner, depth)
        frame.classes = classes or {}
        frame.block(body)
        return frame.returned

    def call(
        self,
        definition: ModuleDefinition,
        bound: dict[str, Parsers],
        owner: ModuleDefinition | None,
        depth: int,
        classes: dict[str, ModuleDefinition] | None = None,
    ) -> Parsers | None:
        """A function with parsers, and classes, for some parameters."""
        node = definition.node
        if depth > _DEPTH or isinstance(node, ast.ClassDef):
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

    def is_relevant(self, module: ReleaseModule) -> bool:
        """Whether a module has to do with parsers at all."""
        content = self.modules.content(module.path)
        return any(mark in content for mark in _MARKS)


class _Frame:
    """One function's variables."""

    def __init__(
        self,
        interpreter: Interpreter,
        module: ReleaseModule,
        bound: dict[str, Parsers],
        owner: ModuleDefinition | None,
        depth: int,
    ) -> None:
        self.interpreter = interpreter
        self.modules = interpreter.modules
        self.module = module
        self.owner = owner
        self.depth = depth
        self.variables = bound
        self.classes: dict[str, ModuleDefinition] = {}
        self.values: dict[str, ast.expr] = {}
        self.loops: list[ast.For | ast.comprehension] = []
        self.returned: Parsers | None = None

    # ------------------------------------------------------------------------------------------------- statements

    def block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
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
            self.compound(node)

    def compound(self, node: ast.stmt) -> None:
        for name, part in ast.iter_fields(node):
            if isinstance(part, ast.expr):
                self.value(part)
            elif isinstance(part, list):
                self.parts(name, part)

    def parts(self, name: str, listed: list[ast.AST]) -> None:
        for each in listed:
            if isinstance(each, ast.stmt):
                self.statement(each)
            elif isinstance(each, ast.ExceptHandler | ast.match_case):
                self.block(each.body)
            elif isinstance(each, ast.withitem):
                self.value(each.context_expr)
            elif isinstance(each, ast.expr):
                self.value(each)

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

    def class_of(self, node: ast.expr) -> ModuleDefinition | None:
        """The class that an argument is."""
        name = dotted_name(node)
        found = self.owner if name == "cls" else self.classes.get(name) or self.modules.named(node, self.module)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

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
        definition = self.modules.named(function, self.module)
        if definition is None or not isinstance(definition.node, ast.ClassDef):
            return False
        bases = [base for each in self.modules.bases(definition) for base in getattr(each.node, "bases", [])]
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
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            inner = self.values.get(node.id) or self.module.values.get(node.id)
            return inner.value if isinstance(inner, ast.Constant) and isinstance(inner.value, str) else None
        if isinstance(node, ast.Attribute) and dotted_name(node.value) in {"self", "cls"} and self.owner is not None:
            return class_constant(self.modules, self.owner, node.attr)
        return None

    # ------------------------------------------------------------------------------------------- calls of functions

    def enter(
        self, node: ast.Call, given: dict[str | int, Parsers], classes: dict[str | int, ModuleDefinition]
    ) -> Parsers | None:
        """Goes into the called functions, with the parsers and classes they are given."""
        result: Parsers | None = None
        for definition, owner in self.targets(node, bool(given)):
            if not given and not self.interpreter.is_relevant(definition.module):
                continue
            bound = bound_arguments(definition.node, given, skip=owner is not None)
            known = bound_arguments(definition.node, classes, skip=owner is not None)
            result = self.interpreter.call(definition, bound, owner, self.depth, known) or result
        return result

    def targets(self, node: ast.Call, handed: bool) -> Iterator[tuple[ModuleDefinition, ModuleDefinition | None]]:
        """(function, class it is called through). A method of something unknown is any method of that name, if it is
        handed a parser."""
        function = node.func
        found = self.modules.named(function, self.module)
        if found is not None:
            if isinstance(found.node, ast.ClassDef):
                initial = self.modules.method(found, "__init__")
                if initial is not None:
                    yield initial, found
            else:
                yield found, None
            return
        if not isinstance(function, ast.Attribute):
            return
        owner = self.owning(function.value)
        if owner is not None:
            method = self.modules.method(owner, function.attr)
            if method is not None:
                yield method, owner
        elif handed or function.attr == "cmd_init":
            yield from self.anywhere(function.attr)

    def owning(self, node: ast.expr) -> ModuleDefinition | None:
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
        found = self.modules.named(node, self.module)
        return found if found is not None and isinstance(found.node, ast.ClassDef) else None

    def anywhere(self, name: str) -> Iterator[tuple[ModuleDefinition, ModuleDefinition | None]]:
        for path in self.modules.holding(f"def {name}(".encode()):
            module = self.modules.at(path)
            for node in module.definitions.values() if module else ():
                if module is None:
                    continue
                if isinstance(node, ast.ClassDef):
                    owner = ModuleDefinition(module, node)
                    for each in node.body:
                        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
                            yield ModuleDefinition(module, each), owner

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
        made = looped_flags(self, node)
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
                definition = self.modules.named(one, self.module)
                if definition is None:
                    parser.unknown.append(f"{self.module.path}:{node.lineno}")
                    continue
                for name, (file, line, annotation) in self.modules.fields(definition).items():
                    boolean = annotation.startswith(("bool", "Optional[bool"))
                    for text in {f"--{name}", f"--{name.replace('_', '-')}"}:
                        parser.flags[text] = Flag(text, file, line, f"{name}: {annotation}", name, boolean)
