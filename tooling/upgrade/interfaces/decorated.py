"""Read the commands that click and typer make of functions: of their decorators, or of their signatures.

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
from typing import TYPE_CHECKING, Any

from tooling.python.module import keyword, last_name
from tooling.python.source import FunctionNode, each_parameter, string_of
from tooling.python.source_modules import NodeInModule
from tooling.upgrade.interfaces.parsers import Flag, ParserNode

if TYPE_CHECKING:
    from tooling.python.module import Module
    from tooling.upgrade.interfaces.modules import ReleaseModules

_HARMLESS = frozenset(
    {"argument", "callback", "command", "confirmation_option", "group", "help_option", "pass_context", "pass_obj"}
    | {"option", "password_option", "version_option"}
)
"""Decorators that add no flag, or whose flags are read here."""
_SUFFIXES = ("_command", "_cmd", "_group", "_grp")
"""What click takes off the name of a function, since 8.2."""
_DEPTH = 4
"""Groups in groups."""


class DecoratedCommands:
    """Those of a release."""

    def __init__(self, modules: ReleaseModules) -> None:
        self.modules = modules

    def parser(self, found: NodeInModule[Any] | None, depth: int = 0) -> ParserNode | None:
        """The parser that an entry point is: a command, a group, an app, or a function that calls one of these; None
        for anything else."""
        if found is None or depth > _DEPTH:
            return None
        module, node = found
        if isinstance(node, FunctionNode):
            made = [last_name(each.func if isinstance(each, ast.Call) else each) for each in node.decorator_list]
            if "group" in made or "command" in made:
                return self.described(found, depth, is_group="group" in made)
            return self.run_in(node.body, module, depth) if not made else None
        if _is_typer(node):
            root = ParserNode()
            self.add_commands(root, found, depth)
            one = list(root.children.values())
            # The command of an app that has but one is not named on the command line.
            return one[0] if len(one) == 1 and not root.unknown and not one[0].children else root
        return None

    def run_in(self, body: list[ast.stmt], module: Module, depth: int = 0) -> ParserNode | None:
        """The parser that statements call, also under `if __name__ == "__main__"`."""
        for node in (each for statement in body for each in ast.walk(statement)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                meant = self.modules.named(node.func, module)
                is_app = meant is not None and (_is_typer(meant.node) or bool(_decorators(meant.node)))
                found = self.parser(meant, depth + 1) if is_app else None
                if found is not None:
                    return found
        return None

    def described(self, found: NodeInModule[Any], depth: int, *, is_group: bool, of_typer: bool = False) -> ParserNode:
        """The parser of a decorated function, with the commands of a group. of_typer: its signature has the options."""
        module, node = found
        made = ParserNode(lenient="ignore_unknown_options" in "".join(map(ast.unparse, node.decorator_list)))
        for each in node.decorator_list:
            name = last_name(each.func if isinstance(each, ast.Call) else each)
            if name == "option" and isinstance(each, ast.Call):
                self.add_flags(made, each, module)
            elif name not in _HARMLESS or (isinstance(each, ast.Call) and keyword(each, "cls") is not None):
                made.unknown.append(f"{module.path}:{each.lineno}")
        if is_group:
            self.add_commands(made, found, depth)
        elif of_typer:
            self.add_parameters(made, found)
        return made

    def add_flags(self, parser: ParserNode, call: ast.Call, module: Module, name: str = "") -> None:
        """The names of an option; of one without any those that are made from its parameter's name, where given."""
        texts = [string_of(each) for each in call.args]
        written = [part.strip() for text in texts for part in (text or "").split("/") if part.strip().startswith("-")]
        if not written and not name and None in texts:
            parser.unknown.append(f"{module.path}:{call.lineno}")
        for each in written or ([f"--{name}"] if name else []):
            source = " ".join(ast.unparse(call).split())
            parser.flags[each] = Flag(each, module.path, call.lineno, source[:160], negatable=False)

    def add_parameters(self, parser: ParserNode, found: NodeInModule[Any]) -> None:
        """The options that typer makes of a signature."""
        module, node = found
        for entry, _, default in each_parameter(node.args):
            parts = (
                [each for each in ast.walk(entry.annotation) if isinstance(each, ast.Call)] if entry.annotation else []
            )
            told = [each for each in (*parts, default) if isinstance(each, ast.Call)]
            option = next((each for each in told if last_name(each.func) == "Option"), None)
            is_argument = any(last_name(each.func) == "Argument" for each in told)
            if is_argument or (default is None and option is None):
                continue
            name = entry.arg.replace("_", "-")
            call = option or ast.Call(ast.Name("Option"), [], [], lineno=entry.lineno, col_offset=0)
            before = len(parser.flags)
            self.add_flags(parser, call, module, name)
            shown = ast.unparse(entry.annotation) if entry.annotation else ""
            is_bool = "bool" in shown or (isinstance(default, ast.Constant) and isinstance(default.value, bool))
            if is_bool and len(parser.flags) == before + 1 and f"--{name}" in parser.flags:
                negated = f"--no-{name}"
                parser.flags[negated] = Flag(
                    negated, module.path, entry.lineno, f"{entry.arg}: {shown}", negatable=False
                )

    def add_commands(self, parser: ParserNode, group: NodeInModule[Any], depth: int) -> None:
        """The commands that are put under a group or an app, in whatever module."""
        for path in self.modules.holding(b".command", b".group(", b".add_command(", b".add_typer("):
            module = self.modules.at(path)
            if module is None:
                continue
            for node in module.functions():
                for made in _decorators(node):
                    function = made.func if isinstance(made, ast.Call) else made
                    if self.is_of(function, ("command", "group"), group, module):
                        is_group = last_name(function) == "group"
                        child = self.described(
                            NodeInModule(module, node), depth + 1, is_group=is_group, of_typer=_is_typer(group.node)
                        )
                        parser.children |= dict.fromkeys(_names(made, node.name), child)
            for call in module.nodes(ast.Call):
                inner = call.func if isinstance(call.func, ast.Call) else None  # `app.command(name="x")(function)`
                is_called = inner is not None and self.is_of(inner.func, ("command",), group, module)
                if call.args and (is_called or self.is_of(call.func, ("add_command", "add_typer"), group, module)):
                    meant = self.modules.named(call.args[0], module)
                    own = getattr(meant.node, "name", "") if meant is not None else ""
                    if is_called and meant is not None and isinstance(meant.node, ast.ClassDef):
                        meant = self.modules.method(meant, "__init__")
                    added: ParserNode | None
                    if is_called and meant is not None and isinstance(meant.node, FunctionNode):
                        added = self.described(meant, depth + 1, is_group=False, of_typer=_is_typer(group.node))
                    else:
                        added = self.parser(meant, depth + 1)
                    if added is None:
                        parser.unknown.append(f"{path}:{call.lineno}")
                        continue
                    parser.children |= dict.fromkeys(
                        _names(inner if is_called and inner is not None else call, own), added
                    )

    def is_of(self, node: ast.expr, names: tuple[str, ...], group: NodeInModule[Any], module: Module) -> bool:
        """Whether an expression is `group.NAME`."""
        if not isinstance(node, ast.Attribute) or node.attr not in names:
            return False
        meant = self.modules.named(node.value, module)
        return meant is not None and meant.node is group.node


def _is_typer(node: ast.AST) -> bool:
    """Whether a value is an app: `typer.Typer()`, or what a helper of such a name makes."""
    return isinstance(node, ast.Call) and "typer" in last_name(node.func).lower()


def _decorators(node: ast.AST) -> list[ast.expr]:
    return node.decorator_list if isinstance(node, FunctionNode) else []


def _names(made: ast.expr, function: str) -> list[str]:
    """List the names of a command: the one it is given, else those click makes of its function's."""
    given = [*made.args, *([told] if (told := keyword(made, "name")) else [])] if isinstance(made, ast.Call) else []
    texts = [text for each in given if (text := string_of(each)) is not None]
    if texts:
        return texts[-1:]
    shorter = next((function.removesuffix(each) for each in _SUFFIXES if function.endswith(each)), function)
    return list(dict.fromkeys(each.replace("_", "-").lower() for each in (function, shorter) if each))
