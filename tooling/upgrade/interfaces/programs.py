"""Which flags a program of a release takes.

A program is a console script, or a module that is run with `python -m`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from tooling.python.source import FunctionNode
from tooling.python.source_modules import NodeInModule, as_class
from tooling.upgrade.interfaces.decorated import DecoratedCommands
from tooling.upgrade.interfaces.pair import InterfaceStore
from tooling.upgrade.interfaces.parsers import Flag, Interpreter, ParserNode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.upgrade.interfaces.commands import CommandUse
    from tooling.upgrade.interfaces.modules import ReleaseModules


_PARSER: TypeAdapter[tuple[ParserNode | None]] = TypeAdapter(tuple[ParserNode | None])
"""A tuple, since an object with none of a parser's fields would be a parser without flags."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """How a parser takes a flag."""

    flag: Flag
    abbreviated: bool = False
    """It is the beginning of a flag, and of one only."""


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

    def accepts(self, name: str) -> Accepted | None:
        """A flag as it is written ("--x", "--no-x", "--config.key", "-tp")."""
        flags = self.flags()
        dashes = any(node.dashes for node in self.nodes)
        for spelling in _spellings(name, dashes):
            if spelling in flags:
                return Accepted(flags[spelling])
            if spelling.startswith("--no-"):
                base = flags.get("--" + spelling.removeprefix("--no-"))
                if base is not None and base.negatable is not False:
                    return Accepted(base)
        for node in self.nodes:
            handled = next(
                (
                    each
                    for each in node.handled
                    if name == each or (len(each) == 2 and not name.startswith("--") and name.startswith(each))
                ),
                None,
            )
            if handled is not None:
                return Accepted(Flag(handled, "", 0, ""))
        if not name.startswith("--"):
            return None
        longer: dict[int, Flag] = {}
        for each in _spellings(name, dashes):
            longer.update({id(flag): flag for key, flag in flags.items() if key.startswith(each)})
        return Accepted(next(iter(longer.values())), abbreviated=True) if len(longer) == 1 else None


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
        self._made: dict[str, ParserNode | None] = {}

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

    def parser(self, program: str) -> ParserNode | None:
        """All parsers that the program makes, as one; None if it makes none that is seen."""
        if program not in self._made:
            kept = self._store.read(f"program {program}", _PARSER)
            if kept is None:
                made = self._interpreted(program)
                kept = (made.flat() if made is not None else None,)
                self._store.write(f"program {program}", _PARSER, kept)
            self._made[program] = kept[0]
        return self._made[program]

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
