"""What the source of an architecture says without running it: config fields it reads, modules it makes."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import transformers
from transformers import PreTrainedConfig

from areal.porting.probe.lookup import read_source
from areal.porting.probe.nearest import nearest_families
from areal.porting.records import SubjectError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from areal.porting.probe.subject import Subject


METHODS = frozenset(name for name in dir(PreTrainedConfig) if callable(getattr(PreTrainedConfig, name)))
TRANSFORMERS = Path(transformers.__file__).parent
BASE_READS = {"modeling_utils": ("tie_weights", "get_expanded_tied_weights_keys")}
"""Methods of library classes to look into; the rest of these modules is about saving, devices and generation."""
FOLLOWED = frozenset({"masking_utils", "modeling_layers", "modeling_rope_utils"})
"""Library modules that compute with config fields."""


def config_reads(subject: Subject) -> dict[str, list[str]]:
    """Return every config field that the causal model, its config class and the library code they use read.

    Field to places "modeling_x.py:12", sorted; found in the syntax tree: attributes of anything that holds a config,
    `getattr` with a literal name, `config["x"]` and `config.get("x")`. Classes of the same files that the causal model
    does not use (classifiers) are left out; method names that only look like fields may remain.
    """
    reads: dict[str, list[str]] = {}
    for file in subject.source_files:
        _merge(reads, file_reads(file, start=(subject.architecture, subject.config_class.__name__)))
    library = {base.__module__ for base in subject.model_class.__mro__}
    for module, methods in BASE_READS.items():
        if f"transformers.{module}" in library:
            file = TRANSFORMERS / f"{module}.py"
            # Methods stand in the bodies of classes: a walk through all of such a module takes a quarter of a second.
            classes = [node for node in _parse(file).body if isinstance(node, ast.ClassDef)]
            nodes = [each for node in classes for each in node.body if isinstance(each, ast.FunctionDef)]
            _merge(reads, _reads_of([node for node in nodes if node.name in methods], file))
    found = {}
    for name, places in sorted(reads.items()):
        numbered = [(file, int(line)) for file, _, line in (place.rpartition(":") for place in set(places))]
        found[name] = [f"{file}:{line}" for file, line in sorted(numbered)]
    return found


def file_reads(file: Path, *, start: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return the config fields that a file reads, in all of it or in what the definitions `start` use, and in what
    these use of the library's modules on rotary embeddings, masks and layers."""
    tree = _parse(file)
    reachable = _reachable(tree, start)
    # Names that the file imports from modules of transformers, with the file of that module.
    imports: dict[str, Path] = {}
    for node in tree.body:
        origin = _module_file(node, file) if isinstance(node, ast.ImportFrom) else None
        if origin is not None and isinstance(node, ast.ImportFrom):
            imports |= {alias.asname or alias.name: origin for alias in node.names}
    reads = _reads_of(reachable, file)
    used = {node.id for definition in reachable for node in ast.walk(definition) if isinstance(node, ast.Name)}
    seen: set[tuple[Path, str]] = set()
    for name in sorted(used & set(imports)):
        _merge(reads, _followed(imports[name], name, seen))
    return reads


def static_report(source: str, *, modeling: Path | None = None) -> dict[str, Any]:
    """Return what can be said of a folder's code without running it, as JSON.

    {"model_type", "architectures", "files", "classes": [{"name", "bases", "where"}], "fields_read": {field: [where]},
    "fields_unread": [...], "parameters": [{"class", "name", "made_by", "where"}], "hints": [{"feature", "where",
    "detail"}], "nearest": [...]}. Raises `SubjectError` where there is no readable config.json.
    """
    config, files = read_source(Path(source).expanduser(), modeling=modeling)
    trees = {file: _parse(file) for file in files}
    reads: dict[str, list[str]] = {}
    for file in files:
        _merge(reads, file_reads(file))
    classes = [
        {"name": node.name, "bases": [ast.unparse(base) for base in node.bases], "where": f"{file.name}:{node.lineno}"}
        for file, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    return {
        "model_type": config.get("model_type"),
        "architectures": config.get("architectures") or [],
        "files": [str(file) for file in files],
        "classes": classes,
        "fields_read": dict(sorted(reads.items())),
        "fields_unread": sorted(
            name for name in config if name not in reads and name not in ("model_type", "auto_map")
        ),
        "parameters": [row for file, tree in trees.items() for row in _parameter_rows(tree, file)],
        "hints": [row for file, tree in trees.items() for row in find_hints(tree, file.name)],
        "nearest": [near.as_json() for near in nearest_families(str(config.get("model_type") or ""), config)],
    }


# ------------------------------------------------------------------------------------------------------- config reads


@dataclass
class _ConfigReads(ast.NodeVisitor):
    """Collects reads of config fields. `holders`: names and attributes that hold a config."""

    file: Path
    in_config_class: bool = False
    holders: set[str] = field(default_factory=set)
    reads: dict[str, list[str]] = field(default_factory=dict)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
        outer, self.in_config_class = self.in_config_class, any(base.endswith("Config") for base in bases)
        self.generic_visit(node)
        self.in_config_class = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if argument.annotation is not None and "Config" in ast.unparse(argument.annotation):
                self.holders.add(argument.arg)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._holds(node.value):
            self.holders |= {ast.unparse(target).split(".")[-1] for target in node.targets}
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load) and self._holds(node.value):
            self._add(node.attr, node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) and self._holds(node.value) and isinstance(node.slice, ast.Constant):
            self._add(str(node.slice.value), node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        taken = isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop")
        if name in ("getattr", "hasattr") and len(node.args) > 1 and self._holds(node.args[0]):
            self._add_constant(node.args[1])
        elif taken and node.args and isinstance(node.func, ast.Attribute):
            keywords = self.in_config_class and ast.unparse(node.func.value) == "kwargs"
            if keywords or self._holds(node.func.value):
                self._add_constant(node.args[0])
        self.generic_visit(node)

    def _holds(self, node: ast.expr) -> bool:
        last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if isinstance(node, ast.Call):  # config.get_text_config(), config.to_dict()
            return isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and self._holds(node.func.value)
        if self.in_config_class and last == "self":
            return True
        return last in self.holders or last == "cfg" or last.endswith("config")

    def _add_constant(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self._add(node.value, node)

    def _add(self, name: str, node: ast.expr) -> None:
        if name not in METHODS and not name.startswith("__"):
            self.reads.setdefault(name, []).append(f"{self.file.name}:{node.lineno}")


def _reads_of(nodes: Sequence[ast.AST], file: Path) -> dict[str, list[str]]:
    reader = _ConfigReads(file)
    for _ in range(2):  # once more, since a holder may be assigned after a method that reads it
        reader.reads = {}
        for node in nodes:
            reader.visit(node)
    return reader.reads


def _reachable(tree: ast.Module, start: tuple[str, ...]) -> list[ast.stmt]:
    """Return the definitions of the module that those named `start` use, themselves included; everything without a
    start."""
    definitions = {name: node for node in tree.body for name in _defined(node)}
    waiting = [name for name in start if name in definitions]
    if not waiting:
        return tree.body
    found: dict[str, ast.stmt] = {}
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = definitions[name]
        # In the order of the source: places that are reported must not depend on the order of a set.
        used = dict.fromkeys(node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name))
        waiting += [other for other in used if other in definitions]
    return list(dict.fromkeys(found.values()))


def _module_file(node: ast.ImportFrom, file: Path) -> Path | None:
    parts = (node.module or "").split(".") if node.module else []
    if node.level == 0:
        if not parts or parts[0] != "transformers":
            return None
        found = TRANSFORMERS.joinpath(*parts[1:])
    else:
        found = file.parents[node.level - 1].joinpath(*parts)
    module = found.with_suffix(".py")
    followed = module.stem in FOLLOWED and TRANSFORMERS in module.parents
    return module if followed and module.is_file() else None


def _followed(file: Path, name: str, seen: set[tuple[Path, str]]) -> dict[str, list[str]]:
    """Return what one definition of a library module reads, and those of the same module that it uses."""
    if (file, name) in seen:
        return {}
    seen.add((file, name))
    nodes = _reachable(_parse(file), (name,))
    return _reads_of(nodes, file) if any(name in _defined(node) for node in nodes) else {}


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


# ------------------------------------------------------------------------------------------------------------- report


def _parameter_rows(tree: ast.Module, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the modules and parameters that constructors make: `self.x = nn.Linear(...)`, `self.register_buffer("x",
    ...)`."""
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for node in ast.walk(owner):
            where = f"{file.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                target = ast.unparse(node.targets[0])
                made = ast.unparse(node.value)
                called = ast.unparse(node.value.func).split(".")[-1]
                if target.startswith("self.") and called[:1].isupper():
                    yield {"class": owner.name, "name": target.removeprefix("self."), "made_by": made, "where": where}
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self.register_buffer":
                name = ast.literal_eval(node.args[0]) if isinstance(node.args[0], ast.Constant) else "?"
                yield {"class": owner.name, "name": str(name), "made_by": ast.unparse(node), "where": where}


def _merge(into: dict[str, list[str]], more: dict[str, list[str]]) -> None:
    for name, places in more.items():
        into.setdefault(name, []).extend(place for place in places if place not in into[name])


@functools.cache
def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except (OSError, ValueError, SyntaxError) as error:
        raise SubjectError(f"{file} cannot be read as Python: {error}") from error


# ---------------------------------------------------------------------------------------------------------------- hints

# Signs in source code of features that have no parameters. Each is a question for a probe, never an answer.


HINTS: tuple[tuple[str, str], ...] = (
    ("logit or attention softcap", r"torch\.tanh\(|\.tanh\(\)|softcap"),
    ("interleaved rotary embedding", r"\[\.\.\., ?(0)?::2\]|\[\.\.\., ?1::2\]|view_as_complex|repeat_interleave\(2"),
    ("half-split rotary embedding", r"rotate_half|shape\[-1\] ?// ?2:?"),
    ("partial rotary embedding", r"partial_rotary|rotary_dim|rotary_ndims"),
    ("sliding window", r"sliding_window|window_size|\bwindow\b"),
    ("chunked attention", r"chunked|attention_chunk"),
    ("layers without positions", r"no_rope|nope_layer|use_rope|use_rotary"),
    ("norm weight + 1", r"1(\.0)? ?\+ ?self\.(weight|gain|scale)|self\.(weight|gain|scale) ?\+ ?1"),
    ("attention sinks", r"\bsinks?\b"),
    ("ALiBi", r"alibi"),
    ("router: sigmoid scores", r"\.sigmoid\(\)|torch\.sigmoid\("),
    ("router: top-k selection", r"topk\("),
    ("router: groups of experts", r"n_group|topk_group|num_groups"),
    ("router: selection bias", r"correction_bias|expert_bias|selection_bias"),
    ("clamped values", r"\.clamp\(|torch\.clamp\("),
    ("multiplier", r"multiplier|\bscaling\b|scale_emb|residual_scale"),
    ("latent attention", r"kv_lora|kv_a_proj|latent"),
    ("state space or convolution", r"conv1d|Conv1d|ssm|selective_scan"),
    ("recurrent or linear attention", r"linear_attention|delta_rule|recurrent"),
    ("hyper-connections or streams", r"hyper_conn|streams|sinkhorn"),
)


def find_hints(tree: ast.Module, file_name: str) -> list[dict[str, Any]]:
    """[{"feature", "where", "detail"}] for each feature of `HINTS`: the first line of each function that shows it."""
    found: list[dict[str, Any]] = []
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
        lines = [(node.lineno, ast.unparse(node)) for node in statements if not isinstance(node, (ast.If, ast.For))]
        for feature, pattern in HINTS:
            hit = next(((number, text) for number, text in lines if re.search(pattern, text)), None)
            if hit is not None:
                number, text = hit
                detail = text.splitlines()[0][:120]
                found.append({"feature": feature, "where": f"{file_name}:{number}", "detail": detail})
    return found


# ---------------------------------------------------------------------------------------------------------- layer kinds

# Which kinds of layers an architecture has: texts that its source compares with the entries of a list over layers. A
# class whose default has layers of one kind may have others, and a tiny config has to show them all.


MOST_STEPS = 4
"""From the field to the variable that is compared, counted in assignments."""


def layer_kinds(files: Sequence[Path], field: str) -> list[str]:
    """Return the texts in the source that entries of the list `field` are compared with, or that the class fills it
    with, in order of appearance. Candidates: other texts may stand next to the same variables."""
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    carriers = _carriers(nodes, field)
    found: dict[str, None] = {}
    for node in nodes:
        if isinstance(node, ast.Compare) and carriers & set(_names(node)):
            found.update(dict.fromkeys(_texts(node)))
        elif isinstance(node, ast.Assign) and any(field in _names(target) for target in node.targets):
            found.update(dict.fromkeys(_texts(node.value)))
    for mapping in _mappings(nodes, carriers):
        found.update(dict.fromkeys(text for key in mapping.keys if key is not None for text in _texts(key)))
    return list(found)


def _carriers(nodes: Sequence[ast.AST], field: str) -> set[str]:
    """Return the names of variables and attributes that hold entries of the field: `kind` after `kind =
    config.kinds[layer]`."""
    carriers = {field}
    for _ in range(MOST_STEPS):
        before = len(carriers)
        for node in nodes:
            if isinstance(node, ast.Assign) and _is_entry(node.value, carriers):
                carriers.update(name for target in node.targets for name in _names(target) if name != "self")
        if len(carriers) == before:
            break
    return carriers


def _is_entry(value: ast.AST, carriers: set[str]) -> bool:
    """Return whether an expression is a carrier or an entry of one, and not something computed with it."""
    if isinstance(value, ast.Subscript):
        return _is_entry(value.value, carriers)
    if isinstance(value, ast.IfExp):
        return _is_entry(value.body, carriers) or _is_entry(value.orelse, carriers)
    return isinstance(value, ast.Attribute | ast.Name) and _last(value) in carriers


def _mappings(nodes: Sequence[ast.AST], carriers: set[str]) -> Iterator[ast.Dict]:
    """Yield the literal dictionaries in which an entry is looked up."""
    looked_up = {
        _last(node.value)
        for node in nodes
        if isinstance(node, ast.Subscript) and carriers & set(_names(node.slice)) and _last(node.value)
    }
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if any(_last(target) in looked_up for target in node.targets):
            yield node.value


def _last(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> list[str]:
    return [name for part in ast.walk(node) if (name := _last(part))]


def _texts(node: ast.AST) -> list[str]:
    return [
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier()
    ]
