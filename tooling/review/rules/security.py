"""Finds what lets others in: unsafe deserialisation, shells, open addresses, secrets."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

from tooling.python.module import Function, keyword, last_name, names_in, nodes_in, own_nodes
from tooling.review.records import Place, Rule, Severity, is_test
from tooling.review.rules.readings import defaults_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.python.module import Module
    from tooling.review.records import Hit
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side

_PICKLES = ("pickle", "cloudpickle", "dill", "ray.cloudpickle")
_LOADERS, _FILE_LOADERS = (frozenset(f"{module}.{name}" for module in _PICKLES) for name in ("loads", "load"))
_SHELLS = frozenset(f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen"))
_SECRET = re.compile(
    r"\b(?:sk-(?:proj-|ant-)?[A-Za-z0-9_-]{32,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36,}|AKIA[0-9A-Z]{16}|"
    r"xox[bap]-[A-Za-z0-9-]{20,}|glpat-[A-Za-z0-9_-]{20,})\b|-----BEGIN (?:RSA |EC |OPENSSH )?PRIVATE KEY-----"
)
_NAMED_SECRET = re.compile(
    r"(?P<name>\b\w*(?:api_?key|secret|passw(?:or)?d|(?:auth|access|bearer|hub|hf)_?token)\w*|\btoken)[\"']?\s*[=:]\s*"
    r"[\"']?(?P<value>[A-Za-z0-9_+/=.-]{20,})[\"']?\s*(?:[,)}#]|$)",
    re.IGNORECASE,
)
_MADE_UP = re.compile(r"example|dummy|placeholder|your|xxx|test|1234|abcd|\.[a-z_]+\.|^[a-z_]+\.", re.IGNORECASE)
_SHIPPED = (".py", ".yaml", ".yml", ".toml", ".sh")
_ENDPOINT = re.compile(
    r"(?:https?|tcp|ws|nfs|etcd)://(?:\d{1,3}\.){3}\d{1,3}\b[^\s\"')]*|"
    r"[\"'= ](?:/home/[a-z][\w.-]*|/Users/[A-Za-z][\w.-]*)/[^\s\"']+"
)
_HARMLESS = re.compile(
    r"//(127\.|0\.0\.0\.0|1\.2\.3\.4|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.|8\.8\.8\.8)|/(user|username|me|ubuntu|runner|you)/"
)
_RECEIVES = re.compile(r"torch\.distributed\.(all_gather|all_gather_into_tensor|broadcast|gather|i?recv|scatter)")
_KEY = re.compile(r"auth|api_key|admin_key|verify_key|require_|check_key|token_dep", re.IGNORECASE)
_OPEN_ROUTE = re.compile(r"health|ping|ready|metrics|version|root|login|docs")
_FENCE = re.compile(r"^getsource(lines)?$|sandbox|reliability_guard|restrict")
_SERVES = frozenset({"run", "bind", "serve", "start_server", "create_server", "TCPSite", "Config", "HTTPServer"})


def unsafe_loads(module: Module, _side: Side) -> Iterator[Hit]:
    """Bytes that become objects, and so can run code."""
    for node in module.nodes(ast.Call):
        name = module.dotted(node.func)
        # `pickle.loads(pickle.dumps(x))` is a copy.
        copy = bool(node.args) and isinstance(node.args[0], ast.Call) and last_name(node.args[0].func) == "dumps"
        # Whoever calls `__setstate__` has loaded a pickle already.
        inner = getattr(module.function_of(node), "name", "") == "__setstate__"
        if name in _LOADERS and not copy and not inner and not _from_ranks(module, node):
            yield node, f"`{name}` runs whatever its bytes say"


def _from_ranks(module: Module, call: ast.Call) -> bool:
    """Whether the bytes come in a tensor of a collective, as torch's own collectives of objects send them: from ranks
    of one job, which run the same program."""
    function = module.function_of(call)
    inside = own_nodes(function) if function is not None else []
    calls = (module.dotted(each.func) for each in inside if isinstance(each, ast.Call))
    named = names_in(call.args[:1])
    made = [each.value for each in inside if isinstance(each, ast.Assign) and last_name(each.targets[0]) in named]
    of_tensor = any(".numpy()" in ast.unparse(each) for each in (*call.args[:1], *made))
    return of_tensor and any(_RECEIVES.fullmatch(each) for each in calls)


def pickled_file(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `pickle.load(file)`: files are changed by others more often than bytes in memory."""
    for node in module.nodes(ast.Call):
        if module.dotted(node.func) in _FILE_LOADERS:
            yield node, f"`{module.dotted(node.func)}` runs whatever its file says"


def default_load(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `torch.load(path)`, whose default ran code until torch 2.6."""
    for node in module.nodes(ast.Call):
        named = any(each.arg in {"weights_only", None} for each in node.keywords)
        if module.dotted(node.func) == "torch.load" and not named:
            yield node, "`torch.load` without `weights_only`: before torch 2.6 it runs code"


def torch_load(module: Module, _side: Side) -> Iterator[Hit]:
    """`torch.load(..., weights_only=False)`."""
    for node in module.nodes(ast.Call):
        if module.dotted(node.func) == "torch.load":
            safe = keyword(node, "weights_only")
            if isinstance(safe, ast.Constant) and safe.value is False:
                yield node, "`torch.load(weights_only=False)` runs code from the file"


def yaml_load(module: Module, _side: Side) -> Iterator[Hit]:
    """`yaml.load` with a loader that makes objects."""
    for node in module.nodes(ast.Call):
        name = module.dotted(node.func)
        loader = keyword(node, "Loader") or (node.args[1] if len(node.args) > 1 else None)
        unsafe = loader is None or last_name(loader) in {"Loader", "UnsafeLoader", "CLoader"}
        if name == "yaml.unsafe_load" or (name == "yaml.load" and unsafe):
            yield node, f"`{name}` makes objects that the document names"


def shell(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a command line put together from values and given to a shell, under a name or not."""
    for node in module.nodes(ast.Call):
        name = module.dotted(node.func)
        shell_given = keyword(node, "shell")
        # `shell=isinstance(command, str)` gives texts to one too.
        off = shell_given is None or (isinstance(shell_given, ast.Constant) and not shell_given.value)
        by_shell = name == "os.system" or (name in _SHELLS and not off)
        commands = list(node.args[:1]) if by_shell else []
        function = module.function_of(node)
        if commands and isinstance(commands[0], ast.Name) and function is not None:
            made = [each for each in own_nodes(function, ast.Assign) if each.lineno < node.lineno]
            made = [each for each in made if ast.unparse(each.targets[0]) == commands[0].id]
            commands = [each.value for each in sorted(made, key=lambda each: each.lineno)[-1:]]
        if any(_has_values(module, each) for each in commands):
            yield node, f"`{name}` gives values to a shell"


def _has_values(module: Module, command: ast.expr) -> bool:
    """Whether a value that is not quoted is part of a command; a name alone may be anything, and counts for nothing."""
    if isinstance(command, ast.JoinedStr):
        parts = [each.value for each in command.values if isinstance(each, ast.FormattedValue)]
        return any(not isinstance(part, ast.Call) or last_name(part.func) not in {"quote", "join"} for part in parts)
    if isinstance(command, ast.BinOp) and isinstance(command.op, ast.Add | ast.Mod):
        return any(
            _has_values(module, each) if isinstance(each, ast.BinOp | ast.JoinedStr) else not _is_quoted(module, each)
            for each in (command.left, command.right)
        )
    made = isinstance(command, ast.Call) and last_name(command.func) in {"format", "join"}
    return made and not _is_quoted(module, command)


def _is_quoted(module: Module, part: ast.expr) -> bool:
    """Whether a shell reads a part of a command as it is meant: `shlex.join(parts)`, `" ".join(map(quote, parts))`."""
    if not isinstance(part, ast.Call):
        return isinstance(part, ast.Constant)
    name = last_name(part.func)
    if name == "format":
        return all(_is_quoted(module, each) for each in (*part.args, *(each.value for each in part.keywords)))
    by_words = name == "join" and (module.dotted(part.func) == "shlex.join" or "quote" in ast.unparse(part))
    return name == "quote" or by_words


def evaluated(module: Module, _side: Side) -> Iterator[Hit]:
    """Find `eval` or `exec` of anything but a constant."""
    for node in module.nodes(ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in {"eval", "exec"} or not node.args:
            continue
        known = isinstance(node.args[0], ast.Constant) or node.func.id in module.imported
        # `setup.py` reads the version of the package that it cannot import yet.
        if not known and not _own_source(module, node) and not module.path.endswith("setup.py"):
            yield node, f"`{node.func.id}` runs text as code"


def _own_source(module: Module, node: ast.AST) -> bool:
    """Whether what runs is the source of a function of this program, as patches rewrite it, or is fenced in."""
    function = module.function_of(node)
    calls = (last_name(each.func) for each in nodes_in(function or module.tree, ast.Call))
    return any(_FENCE.search(each) for each in calls)


def open_address(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a server bound to all interfaces by a literal."""
    for node in module.nodes(ast.Call):
        if last_name(node.func) not in _SERVES and not last_name(node.func).endswith("HTTPServer"):
            continue
        values = [*node.args, *(each.value for each in node.keywords if each.arg in {"host", "address", "addr"})]
        flat = [part for value in values for part in (value.elts if isinstance(value, ast.Tuple) else [value])]
        if any(isinstance(part, ast.Constant) and part.value in {"0.0.0.0", "::"} for part in flat):
            yield node, f"`{ast.unparse(node.func)}` listens on all interfaces by a literal"
    for command in module.nodes(ast.List):
        words = [each.value if isinstance(each, ast.Constant) else "" for each in command.elts]
        for option, value in itertools.pairwise(words):
            if option in {"--host", "--bind", "--listen"} and value in {"0.0.0.0", "::"}:
                yield command, f"`{option} {value}` listens on all interfaces by a literal"


def open_default(module: Module, _side: Side) -> Iterator[Hit]:
    """Find an address of all interfaces as what is taken unless somebody says otherwise."""
    for text in module.nodes(ast.Constant):
        if text.value not in {"0.0.0.0", "::"}:
            continue
        parent = module.parents.get(text)
        names = []
        if isinstance(parent, ast.Assign | ast.AnnAssign):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            names = [last_name(each) for each in targets]
        elif isinstance(parent, ast.arguments):
            names = [name for name, default in defaults_of(parent) if default is text]
        elif isinstance(parent, ast.keyword) and parent.arg == "default":
            call = module.parents.get(parent)
            texts = [each.value for each in getattr(call, "args", ()) if isinstance(each, ast.Constant)]
            names = [str(each) for each in texts]
        if any(re.search(r"host|addr|bind|listen", each, re.IGNORECASE) for each in names):
            yield text, f"`{names[0]}` is all interfaces unless somebody says otherwise"


def fixed_endpoint(comparison: Comparison) -> Iterator[Place]:
    """Find an address of somebody's network, or a folder of somebody's home, in code or a configuration that ships."""
    for file in comparison.files:
        if not file.added or is_test(file.path) or not file.path.endswith(_SHIPPED):
            continue
        lines = (comparison.head.text(file.path) or "").split("\n")
        for number in sorted(file.added):
            line = lines[number - 1] if number <= len(lines) else ""
            found = _ENDPOINT.search(line)
            if found and not line.lstrip().startswith(("#", "//")) and not _HARMLESS.search(found[0]):
                yield Place(file.path, number, f"`{found[0][:60]}` is of one network or one person")


def route_without_key(module: Module, _side: Side) -> Iterator[Hit]:
    """Find a handler that asks for no key, among handlers that do."""
    handlers = [
        (each, last_name(call.func))
        for each in module.functions()
        for call in each.decorator_list
        if isinstance(call, ast.Call) and last_name(call.func) in {"get", "post", "put", "delete", "patch"}
    ]
    guarded = {each for each, _ in handlers if _asks_for_key(each)}
    if len(guarded) < 3 or len(guarded) * 3 < len(handlers) * 2:
        return
    for each, verb in handlers:
        if each not in guarded and verb != "get" and not _OPEN_ROUTE.search(each.name):
            yield each, f"`{each.name}` asks for no key; {len(guarded)} others here do"


def _asks_for_key(function: Function) -> bool:
    words = [
        ast.unparse(each)
        for each in (*function.args.defaults, *function.args.kw_defaults, *function.decorator_list)
        if each
    ]
    words += [last_name(node.func) for node in nodes_in(function, ast.Call)]
    words += [ast.unparse(each.annotation) for each in function.args.args if each.annotation is not None]
    return any(_KEY.search(each) for each in words)


def secret(comparison: Comparison) -> Iterator[Place]:
    """Something in the form of a credential in any kind of file, and a literal under the name of one in code."""
    for file in comparison.files:
        text = comparison.head.text(file.path) if file.added else None
        before = (comparison.base.text(file.old_path) or "") if file.status != "A" else ""
        for number, line in enumerate(text.split("\n") if text else (), 1):
            found = _SECRET.search(line) if number in file.added else None
            if found and found[0] in before:
                continue
            if found and len(set(found[0])) > 10 and "example" not in line.lower():
                yield Place(file.path, number, f"looks like a credential: `{found[0][:6]}...`")
                continue
            named = _NAMED_SECRET.search(line) if number in file.added and file.path.endswith(_SHIPPED) else None
            if named and named["value"] in before:
                continue
            if named and not is_test(file.path) and _is_random(named["value"]):
                yield Place(file.path, number, f"`{named['name']}` is given by a literal, `{named['value'][:3]}...`")


def _is_random(value: str) -> bool:
    """Whether nobody would write it by hand: letters of both cases, digits, and few of them twice."""
    kinds = (str.isupper, str.islower, str.isdigit)
    mixed = all(sum(map(kind, value)) >= 2 for kind in kinds)
    return mixed and len(set(value)) >= 12 and not _MADE_UP.search(value)


RULES = (
    Rule("unsafe-deserialisation", Severity.HIGH, in_tests=False, in_file=unsafe_loads),
    Rule("unsafe-torch-load", Severity.MEDIUM, in_tests=False, in_file=torch_load),
    Rule("default-torch-load", Severity.LOW, in_tests=False, in_file=default_load),
    Rule("unsafe-yaml", Severity.HIGH, in_file=yaml_load),
    Rule("shell-from-values", Severity.HIGH, in_tests=False, in_file=shell),
    Rule("evaluated-text", Severity.MEDIUM, in_tests=False, in_file=evaluated),
    Rule("open-default", Severity.LOW, in_tests=False, in_file=open_default),
    Rule("pickled-file", Severity.LOW, in_tests=False, in_file=pickled_file),
    Rule("open-address", Severity.HIGH, in_tests=False, in_file=open_address),
    Rule("fixed-endpoint", Severity.MEDIUM, in_change=fixed_endpoint),
    Rule("route-without-key", Severity.HIGH, in_tests=False, in_file=route_without_key),
    Rule("secret", Severity.CRITICAL, in_change=secret),
)
