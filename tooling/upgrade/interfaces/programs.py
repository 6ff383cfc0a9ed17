"""Which flags a program of a release takes.

A program is a console script, or a module that is run with `python -m`. Click and typer make commands of functions:

    @click.group()                                  app = typer.Typer()
    def main(): ...

    @main.command()                                 @app.command()
    @click.option("--eager/--no-eager")             def serve(model: str, eager: bool = False): ...
    def serve(eager): ...

Both are a parser with the sub-command `serve`, which takes `--eager` and `--no-eager`. A typer app with one command
takes that command's flags itself.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from tooling.python.module import keyword, last_name, parameters
from tooling.python.once import once
from tooling.python.source import DefinitionNode, FunctionNode, each_parameter, string_of
from tooling.python.source_modules import NodeInModule, as_class
from tooling.upgrade.interfaces.pair import InterfaceStore
from tooling.upgrade.interfaces.parsers import Flag, Interpreter, ParserNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.python.module import Module
    from tooling.upgrade.interfaces.commands import CommandUse
    from tooling.upgrade.interfaces.modules import ReleaseModules


_HARMLESS = frozenset(
    {"argument", "command", "confirmation_option", "group", "help_option", "pass_context", "pass_obj"}
    | {"option", "password_option", "version_option"}
)
"""Decorators that add no flag, or whose flags are read here."""
_PLACING = frozenset({"add_command", "add_typer", "command", "group"})
_SUFFIXES = ("_command", "_cmd", "_group", "_grp")
"""What click takes off the name of a function, since 8.2."""
_DEPTH = 4
"""Groups in groups."""


class PlacedCommand(NamedTuple):
    """Something that is put under a group or an app."""

    call: ast.expr
    """`main.command("x")`, or `main.add_command(f, name="x")`: what may say its name."""
    found: NodeInModule[Any] | None
    """A function, a class that is called, or another group or app; None for anything else."""
    where: str
    """ "file:line"."""


class DecoratedCommands:
    """Those of a release."""

    def __init__(self, modules: ReleaseModules) -> None:
        self.modules = modules

    def parser(self, found: NodeInModule[Any] | None, depth: int = 0) -> ParserNode | None:
        """The parser that an entry point is: a command, a group, an app, or a function that calls one of these; None
        for anything else."""
        if found is None:
            return None
        if _is_app(found.node):
            root = self.with_commands(ParserNode(), found, depth)
            one = list(root.children.values())
            # The command of an app that has but one is not named on the command line.
            return one[0] if len(one) == 1 and not root.unknown and not one[0].children else root
        if not isinstance(found.node, FunctionNode):
            return None
        return (
            self.described(found, depth) if _own_decorator(found.node) else self.run_in(found.node.body, found.module)
        )

    def run_in(self, body: list[ast.stmt], module: Module) -> ParserNode | None:
        """The parser that statements call, also under `if __name__ == "__main__"`."""
        waiting: deque[ast.AST] = deque(body)
        while waiting:
            node = waiting.popleft()
            if isinstance(node, DefinitionNode):
                continue  # nobody calls it here
            waiting += ast.iter_child_nodes(node)
            meant = self.modules.named(node.func, module) if isinstance(node, ast.Call) else None
            if meant is not None and (_is_app(meant.node) or _own_decorator(meant.node)):
                return self.parser(meant)
        return None

    def described(self, found: NodeInModule[Any], depth: int, *, by_signature: bool = False) -> ParserNode:
        """The parser of a function, with the commands of a group. by_signature: an app makes it, of its parameters."""
        module, node = found
        made = ParserNode()
        for each in node.decorator_list:
            name = last_name(each.func if isinstance(each, ast.Call) else each)
            settings = keyword(each, "context_settings") if isinstance(each, ast.Call) else None
            # `{"ignore_unknown_options": True}`; what another name stands for may be that, too
            made.lenient |= settings is not None and (
                not isinstance(settings, ast.Dict) or "ignore_unknown_options" in map(string_of, settings.keys)
            )
            if name == "option" and isinstance(each, ast.Call):
                self.add_flags(made, each, module)
            elif name not in _HARMLESS or (isinstance(each, ast.Call) and keyword(each, "cls") is not None):
                made.unknown.append(f"{module.path}:{each.lineno}")
        if by_signature:
            self.add_parameters(made, found)
            return made
        return self.with_commands(made, found, depth)

    def add_flags(self, parser: ParserNode, call: ast.Call, module: Module, name: str = "") -> None:
        """The names of an option; of one without any that of its parameter, where given."""
        texts = [string_of(each) or "" for each in call.args]
        written = [part.strip() for text in texts for part in text.split("/") if part.strip().startswith("-")]
        if any(isinstance(each, ast.Starred) for each in call.args) or not (written or name or all(texts)):
            parser.unknown.append(f"{module.path}:{call.lineno}")
        source = " ".join(ast.unparse(call).split())[:160]
        for each in written or ([f"--{name}"] if name else []):
            parser.flags[each] = Flag(each, module.path, call.lineno, source, negatable=False)

    def add_parameters(self, parser: ParserNode, found: NodeInModule[Any]) -> None:
        """The options that typer makes of a signature: of parameters with a default, and of those that say so."""
        module, node = found
        for entry, _, default in each_parameter(node.args):
            told = [*ast.walk(entry.annotation or ast.Constant(None)), default]
            calls = {last_name(each.func): each for each in told if isinstance(each, ast.Call)}
            if "Argument" in calls or (default is None and "Option" not in calls):
                continue
            name = entry.arg.replace("_", "-")
            plain = ast.Call(ast.Name("Option"), [], [], lineno=entry.lineno, col_offset=entry.col_offset)
            option = calls.get("Option", plain)
            self.add_flags(parser, option, module, name)
            shown = ast.unparse(entry.annotation) if entry.annotation else ""
            is_bool = "bool" in shown or (isinstance(default, ast.Constant) and isinstance(default.value, bool))
            if is_bool and not any((string_of(each) or "").startswith("-") for each in option.args):
                negated = f"--no-{name}"
                source = f"{entry.arg}: {shown}"
                parser.flags[negated] = Flag(negated, module.path, entry.lineno, source, negatable=False)

    def with_commands(self, parser: ParserNode, group: NodeInModule[Any], depth: int) -> ParserNode:
        """The same parser, with the commands that are put under a group or an app in whatever module."""
        for call, found, where in self.placed.get(id(group.node), ()):
            node = found.node if found is not None else None
            made: ParserNode | None = None
            names: list[str] = []
            if depth >= _DEPTH or found is None:
                pass
            elif _is_app(node):
                made, names = self.with_commands(ParserNode(), found, depth + 1), _names(call) or _names(node)
            elif isinstance(node, ast.ClassDef):
                initial = self.modules.method(found, "__init__")
                made = self.described(initial, depth + 1, by_signature=True) if initial is not None else ParserNode()
                names = _names(call, node.name)
            elif isinstance(node, FunctionNode):
                own = _own_decorator(node)
                made = self.described(found, depth + 1, by_signature=_is_app(group.node))
                names = _names(call) or _names(own, node.name)
            if made is None or not names:
                parser.unknown.append(where)
                continue
            parser.children |= dict.fromkeys(names, made)
        return parser

    @cached_property
    def placed(self) -> dict[int, list[PlacedCommand]]:
        """By the node of a group or app, what the release puts under it."""
        found: dict[int, list[PlacedCommand]] = defaultdict(list)
        for path in self.modules.holding(b".command", b".group(", b".add_command(", b".add_typer("):
            module = self.modules.at(path)
            if module is None:
                continue
            for node in module.functions():
                for made in node.decorator_list:
                    owner = self._owner(made.func if isinstance(made, ast.Call) else made, module)
                    if owner is not None:
                        where = f"{path}:{node.lineno}"
                        found[id(owner.node)].append(PlacedCommand(made, NodeInModule(module, node), where))
            for call in module.nodes(ast.Call):
                made = call.func if isinstance(call.func, ast.Call) else call  # `app.command("x")(function)`
                owner = self._owner(made.func, module) if call.args else None
                is_added = isinstance(made.func, ast.Attribute) and made.func.attr.startswith("add_")
                if owner is not None and is_added is (made is call):
                    for each, given in _by_callers(call, module) or [(made, call.args[0])]:
                        placed = PlacedCommand(each, self.modules.named(given, module), f"{path}:{each.lineno}")
                        found[id(owner.node)].append(placed)
        return found

    def _owner(self, function: ast.expr, module: Module) -> NodeInModule[Any] | None:
        """The group or app of `main.command`."""
        if not isinstance(function, ast.Attribute) or function.attr not in _PLACING:
            return None
        return self.modules.named(function.value, module)


def _by_callers(call: ast.Call, module: Module) -> list[tuple[ast.Call, ast.expr]]:
    """What the callers of a helper put under a group, each as if it stood there itself.

    def alias(command, name):                       alias(jobs, name="job")
        same = copy.deepcopy(command)           is  cli.add_command(jobs, name="job")
        cli.add_command(same, name=name)
    """
    function = next((each for each in module.functions() if each.lineno < call.lineno <= (each.end_lineno or 0)), None)
    if function is None:
        return []
    names = parameters(function)
    copies = {last_name(each.targets[0]): each.value for each in ast.walk(function) if isinstance(each, ast.Assign)}
    stands_for = copies.get(last_name(call.args[0]), call.args[0])
    value = next((each.id for each in ast.walk(stands_for) if isinstance(each, ast.Name) and each.id in names), "")
    name = last_name(keyword(call, "name") or call)
    found = []
    for caller in module.nodes(ast.Call):
        given = dict(zip(names, caller.args, strict=False)) | {each.arg: each.value for each in caller.keywords}
        if last_name(caller.func) == function.name and value in given:
            alone = ast.Call(call.func, [given[name]] if name in given else [], [])
            found.append((ast.copy_location(alone, caller), given[value]))
    return found


def _is_app(node: ast.AST | None) -> bool:
    """Whether a value is an app: `typer.Typer()`, or what a helper of such a name makes."""
    return isinstance(node, ast.Call) and "typer" in last_name(node.func).lower()


def _own_decorator(node: ast.AST | None) -> ast.expr | None:
    """The decorator that makes a function a command or a group: `@click.command("name")`."""
    decorators = node.decorator_list if isinstance(node, FunctionNode) else []
    made = (each for each in decorators if last_name(each.func if isinstance(each, ast.Call) else each) in _PLACING)
    return next(made, None)


def _names(made: ast.AST | None, function: str = "") -> list[str]:
    """List the names of a command: the one it is given, else those click makes of its function's."""
    given = [*made.args, *filter(None, [keyword(made, "name")])] if isinstance(made, ast.Call) else []
    texts = [text for each in given if (text := string_of(each)) is not None]
    if texts:
        return texts[-1:]
    shorter = next((function.removesuffix(each) for each in _SUFFIXES if function.endswith(each)), function)
    return list(dict.fromkeys(each.replace("_", "-").lower() for each in (function, shorter) if each))


_PARSER: TypeAdapter[tuple[ParserNode | None]] = TypeAdapter(tuple[ParserNode | None])
"""A tuple, since an object with none of a parser's fields would be a parser without flags."""


@dataclass(frozen=True, slots=True)
class CheckedCommand:
    """A program and, where it has some, its sub-command: what its flags are checked against."""

    nodes: tuple[ParserNode, ...]
    """The parsers on the way, outermost first."""
    known: bool = True
    """False if a sub-command was named that does not exist."""

    def flags(self) -> dict[str, Flag]:
        """All of them, the innermost parser's first."""
        found: dict[str, Flag] = {}
        for node in self.nodes:
            found.update(node.merged())
        return found

    @property
    def unknown(self) -> tuple[str, ...]:
        """Places that make flags nobody could read off."""
        return tuple(place for node in self.nodes for place in node.unknown)

    @property
    def lenient(self) -> bool:
        """Whether unknown flags are ignored."""
        return any(node.lenient for node in self.nodes)

    def accepts(self, name: str) -> tuple[Flag, bool] | None:
        """The flag that one is, as it is written ("--x", "--no-x", "--config.key", "-tp"), and whether that is only the
        beginning of its name, and of no other's; None if it is refused."""
        flags = self.flags()
        dashes = any(node.dashes for node in self.nodes)
        for spelling in _spellings(name, dashes):
            if spelling in flags:
                return flags[spelling], False
            if spelling.startswith("--no-"):
                base = flags.get("--" + spelling.removeprefix("--no-"))
                if base is not None and base.negatable is not False:
                    return base, False
        is_long = name.startswith("--")
        for handled in (each for node in self.nodes for each in node.handled):
            if name == handled or (len(handled) == 2 and not is_long and name.startswith(handled)):
                return Flag(handled, "", 0, ""), False
        longer: dict[int, Flag] = {}
        for each in _spellings(name, dashes) if is_long else ():
            longer.update({id(flag): flag for key, flag in flags.items() if key.startswith(each)})
        return (next(iter(longer.values())), True) if len(longer) == 1 else None


def _spellings(name: str, dashes: bool) -> list[str]:
    found = [name]
    if "." in name:
        found.append(name.partition(".")[0])
    if dashes:
        found += [each.replace("_", "-") for each in found if "_" in each]
    return found


class ReleasePrograms:
    """The programs of one release, each interpreted when asked for."""

    def __init__(self, modules: ReleaseModules, store: InterfaceStore | None = None) -> None:
        self.modules = modules
        self._decorated = DecoratedCommands(modules)
        self._store = store or InterfaceStore(None, modules.release)

    def is_script(self, name: str) -> bool:
        """Whether a console script has that name."""
        return name in self.modules.release.scripts()

    def is_module(self, dotted: str) -> bool:
        """Whether `python -m dotted` runs something of the release."""
        return dotted in self.modules.paths

    def may_go_on(self, use: CommandUse) -> bool:
        """See `KnownPrograms`: ["vllm", "serve"] begins a command, ["vllm", "sglang"] is a list of names."""
        if use.flags or use.hidden or not self.is_script(use.program):
            return True
        parser = self.parser(use.program)
        if parser is not None and parser.children:
            return bool(use.words) and use.words[0] in parser.children
        return not all(map(str.isidentifier, use.words))

    def command(self, program: str, words: Sequence[str]) -> CheckedCommand | None:
        """program: script, or dotted module. words: the positional ones after it, None if nothing is known of it."""
        root = self.parser(program)
        if root is None:
            return None
        nodes = [root]
        for word in words:
            node = nodes[-1]
            if word in node.children:
                nodes.append(node.children[word])
            elif node.children and len(nodes) == 1:
                return CheckedCommand(tuple(nodes), known=bool(node.unknown) or not word.isidentifier())
            else:
                break
        return CheckedCommand(tuple(nodes))

    @once()
    def parser(self, program: str) -> ParserNode | None:
        """All parsers that the program makes, as one; None if it makes none that is seen."""

        def make() -> tuple[ParserNode | None]:
            made = self._interpreted(program)
            return (made.flat() if made is not None else None,)

        return self._store.answer(f"program {program}", _PARSER, make)[0]

    def _interpreted(self, program: str) -> ParserNode | None:
        interpreter = Interpreter(self.modules)
        entry = self.modules.release.scripts().get(program)
        if entry is not None:
            dotted, _, attribute = entry.split("[")[0].strip().partition(":")
            found = self.modules.find(f"{dotted}.{attribute}")
            decorated = self._decorated.parser(found)
            if decorated is not None:
                return decorated
            owner = as_class(found)
            called = self.modules.method(owner, "__call__") if owner is not None else found
            if called is None or not isinstance(called.node, FunctionNode):
                return None
            interpreter.call(NodeInModule(called.module, called.node), {}, None, 0)
        else:
            module = self.modules.module(f"{program}.__main__") or self.modules.module(program)
            if module is None:
                return None
            decorated = self._decorated.run_in(module.tree.body, module)
            if decorated is not None:
                return decorated
            interpreter.run(module.tree.body, module, {})
        if not interpreter.made:
            return None
        joined = ParserNode()
        for parser in interpreter.made:
            joined.flags = {**parser.merged(), **joined.flags}
            joined.children = {**parser.children, **joined.children}
            joined.unknown += parser.unknown
            joined.lenient = joined.lenient or parser.lenient
            joined.dashes = joined.dashes or parser.dashes
            joined.handled |= parser.handled
        return joined
