"""Keys of settings that no field of the configuration class has which reads them: in YAML and TOML files, and in what a
command overrides (`actor.optimizer.lr=1e-6`).

Which class reads a file is not written in it. Here it is the one that has most of the keys at its top as fields; below
that, annotations of the fields say it. A key is reported if all classes that fit equally well agree that it is unknown,
and the annotations say whose it is, or the class had the field before the change, or an unused field of almost the same
name is there.
"""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tooling.python.module import Function, keyword, last_name, parameters
from tooling.review.records import Place, Rule, Severity
from tooling.review.repository.settings import SETTINGS, read_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.settings import SettingKeys
    from tooling.review.repository.side import Side

MIN_KNOWN = 3
"""Keys that have to be fields before a mapping is taken for a class."""
LIKENESS = 0.8
"""Of two names, as difflib counts: `n_sample` and `n_samples` 0.94, `min_steps` and `max_steps` 0.78."""
_MAKERS = ("dataclass", "define", "frozen")
_ROOTS: Final = ("BaseConfig", "BaseModel", "BaseSettings")
_PLAIN_BASES: Final = frozenset({*_ROOTS, "ABC", "Generic", "Protocol", "object"})
"""Bases that add no fields, where the repository has no such class of its own."""
_AROUND: Final = frozenset({"None", "Optional", "Union", "typing"})
"""Parts of annotations beside the classes."""
_KEEPS: Final = re.compile(r"extra['\"]?\s*[=:]\s*(?:['\"]|\w*Extra\.)allow|def __init__\(.*\*\*")


def unknown_key(comparison: Comparison) -> Iterator[Place]:
    """Find new keys that no field has, and keys anywhere whose field the change removed or renamed."""
    gone = _removed_fields(comparison)
    changed = {each.path: each.added for each in comparison.files if each.path.endswith(SETTINGS) and each.added}
    users = comparison.head.grep(gone, *(f"*{each}" for each in SETTINGS)) if gone else []
    comparison.head.load([*changed, *users])
    classes = ConfigurationClasses(comparison.head)
    for path in sorted({*changed, *users}):
        for root in read_settings(path, comparison.head.text(path) or ""):
            asked = any(line in changed.get(path, ()) or key in gone for key, line in root.everywhere())
            for misfit in classes.misfits(root, gone) if asked else ():
                new = misfit.line in changed.get(path, ()) or misfit.owner in gone.get(misfit.key, ())
                if new and not _is_spoken(comparison.head, misfit):
                    hint = f"; `{misfit.instead}` is one" if misfit.instead else ""
                    owner = misfit.owner.rpartition(".")[2]
                    said = f"`{misfit.key}` is not a field of `{owner}`, which has the other keys{hint}"
                    yield Place(path, misfit.line, said)


@dataclass(frozen=True)
class Misfit:
    """A key that its class, by its dotted name, does not have. `instead`: a field that may be meant."""

    key: str
    line: int
    owner: str
    instead: str = ""


@dataclass
class ConfigurationClasses:
    """Configuration classes of one side, by dotted name."""

    side: Side
    _fields: dict[str, dict[str, frozenset[str]] | None] = field(default_factory=dict)

    @cached_property
    def _nodes(self) -> dict[str, tuple[Module, ast.ClassDef]]:
        paths = self.side.grep([*_ROOTS, *_MAKERS], "*.py")
        self.side.load(paths)
        modules = [module for module in map(self.side.module, paths) if module is not None]
        return {
            f"{module.package}.{node.name}": (module, node)
            for module in modules
            for node in module.nodes(ast.ClassDef)
            if _is_configuration(node)
        }

    @cached_property
    def _derived(self) -> dict[str, set[str]]:
        """Class -> those that name it as a base."""
        found: dict[str, set[str]] = {}
        for name, (module, node) in self._nodes.items():
            for base in node.bases:
                found.setdefault(self._meant(module, last_name(base)), set()).add(name)
        return found

    def _meant(self, module: Module, name: str) -> str:
        """Return the configuration class that a name means in a module; "" for none."""
        found = self.side.named(module, name)
        dotted = f"{found[0].package}.{found[1].name}" if found is not None else ""
        return dotted if dotted in self._nodes else ""

    def fields(self, name: str) -> dict[str, frozenset[str]] | None:
        """Return the fields of a class, inherited ones included, with the classes that read what is in them. None where
        it has a base that is not read here, or takes any key."""
        if name not in self._fields:
            self._fields[name] = None  # a class whose base leads back to it
            self._fields[name] = self._read(*self._nodes[name])
        return self._fields[name]

    def _read(self, module: Module, node: ast.ClassDef) -> dict[str, frozenset[str]] | None:
        found: dict[str, frozenset[str]] = {}
        for base in node.bases:
            said = last_name(base.value if isinstance(base, ast.Subscript) else base)
            meant = self._meant(module, said)
            inherited = self.fields(meant) if meant else {} if said in _PLAIN_BASES else None
            if inherited is None:
                return None
            found |= inherited
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                found[each.target.id] = self._readers(module, each.annotation)
        return found if not _KEEPS.search(ast.unparse(node)) else None

    def _readers(self, module: Module, annotation: ast.expr) -> frozenset[str]:
        """Return the classes that an annotation names; none where it also says something else."""
        parts = list(ast.walk(annotation))
        said = {each.id for each in parts if isinstance(each, ast.Name)} | {
            each.attr for each in parts if isinstance(each, ast.Attribute)
        }
        said |= {each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)}
        meant = {self._meant(module, each) for each in said - _AROUND}
        return frozenset(meant) if "" not in meant else frozenset()

    def _taken(self, names: frozenset[str]) -> dict[str, frozenset[str]] | None:
        """Return the fields that any of some classes has, or a class derived from one; None if one is not known."""
        found: dict[str, frozenset[str]] = {}
        waiting, seen = list(names), set(names)
        for name in waiting:  # grows while it is read
            fields = self.fields(name)
            if fields is None:
                return None
            for key, readers in fields.items():
                found[key] = found.get(key, frozenset()) | readers
            waiting += sorted(self._derived.get(name, set()) - seen)
            seen |= self._derived.get(name, set())
        return found

    def misfits(self, root: SettingKeys, gone: dict[str, set[str]]) -> list[Misfit]:
        """Return the keys of a tree that fit no class that may read it."""
        keys = root.names()
        count = {name: len((self.fields(name) or {}).keys() & keys) for name in self._nodes}
        most = max(count.values(), default=0)
        inner = [each for _, each in root.entries.values() if each is not None]
        if most < MIN_KNOWN or most * 2 < len(keys):
            return [misfit for each in inner for misfit in self.misfits(each, gone)]
        best = sorted(name for name, known in count.items() if known == most)
        by_class = [self._unknown(root, name, gone) for name in best]
        agreed = set.intersection(*({(each.key, each.line) for each in some} for some in by_class))
        return [each for each in by_class[0] if (each.key, each.line) in agreed]

    def _unknown(self, root: SettingKeys, name: str, gone: dict[str, set[str]]) -> list[Misfit]:
        fields = self.fields(name) or {}
        left = sorted(root.names() - fields.keys())
        found = []
        if len(left) == 1:
            near = difflib.get_close_matches(left[0], sorted(fields.keys() - root.names()), 1, LIKENESS)
            if near or name in gone.get(left[0], ()):
                found.append(Misfit(left[0], root.entries[left[0]][0], name, near[0] if near else ""))
        waiting = [(inner, fields[key]) for key, (_, inner) in root.entries.items() if inner and key in fields]
        for keys, readers in waiting:  # grows while it is read
            taken = self._taken(readers) if readers else None
            if taken is None or len(taken.keys() & keys.names()) * 2 < len(keys.names()):
                continue
            for key, (line, inner) in keys.entries.items():
                if key in taken:
                    waiting += [(inner, taken[key])] if inner else []
                    continue
                owner = min(readers & gone.get(key, set()) or readers)
                near = difflib.get_close_matches(key, sorted(taken.keys() - keys.names()), 1, LIKENESS)
                found.append(Misfit(key, line, owner, near[0] if near else ""))
        return found


def _is_spoken(side: Side, misfit: Misfit) -> bool:
    """Whether code about the class has the key as a text: an alias, or moved before the class reads it."""
    asked = (misfit.owner.rpartition(".")[2], misfit.key)
    if asked not in side.known:
        texts = [side.text(path) or "" for path in side.grep([misfit.key], "*.py")]
        said = re.compile(rf"""['".]{misfit.key}['"]""")
        side.known[asked] = any(asked[0] in text and said.search(text) for text in texts)
    return bool(side.known[asked])


def _is_configuration(node: ast.ClassDef) -> bool:
    decorators = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(last_name(each) in _MAKERS for each in decorators) or any(
        last_name(base) in _ROOTS or last_name(base).endswith(("Config", "Args", "Arguments")) for base in node.bases
    )


def _removed_fields(comparison: Comparison) -> dict[str, set[str]]:
    """Map each field that a class no longer has to the dotted names of such classes."""
    gone: dict[str, set[str]] = {}
    for _, before, after in comparison.modified():
        now = _own_fields(after)
        for name, fields in _own_fields(before).items():
            for each in fields - now.get(name, fields):
                gone.setdefault(each, set()).add(f"{after.package}.{name}")
    return gone


def _own_fields(module: Module) -> dict[str, set[str]]:
    return {
        node.name: {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
        for node in module.nodes(ast.ClassDef)
        if _is_configuration(node)
    }


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
    Rule("unknown-setting-key", Severity.HIGH, in_change=unknown_key),
    Rule("unknown-option", Severity.HIGH, in_tests=False, in_file=unknown_option),
    Rule("option-without-effect", Severity.HIGH, in_file=option_without_effect),
)
