"""Lazy modules, and modules that are made while a package is imported."""

from __future__ import annotations

import pytest

from tooling.python.symbols.symbol import Absent, Found, SymbolKind

LAZY_CLASS = """
from types import ModuleType

class _LazyModule(ModuleType):
    def __getattr__(self, name):
        if name in self._class_to_module:
            return self._get_module(name)
        if name.endswith("TokenizerFast"):
            fallback_name = name[:-4]
            if fallback_name in self._class_to_module:
                return self._get_module(fallback_name)
        if name.endswith("ProcessorFast"):
            fallback_name = name[:-4]
            if fallback_name in self._class_to_module:
                logger.warning_once(f"`{name}` is deprecated")
                return self._get_module(fallback_name)
        raise AttributeError(name)

def define_import_structure(module_path, prefix=None): ...
def is_torch_available(): ...
"""
ROOT = """
from pathlib import Path
from typing import TYPE_CHECKING
from .lazy import _LazyModule, define_import_structure, is_torch_available

_import_structure = {"config": ["Config"], "trainer": [], "utils": ["log"]}
try:
    if not is_torch_available():
        raise ImportError()
except ImportError:
    from . import dummy_objects
    _import_structure["dummy_objects"] = [n for n in dir(dummy_objects) if not n.startswith("_")]
else:
    _import_structure["trainer"] += ["Trainer"]
    _import_structure["utils"].append("seed")

if TYPE_CHECKING:
    from .config import Config
    from .models import *
    from .elsewhere import ForCheckersOnly
else:
    import sys
    _import_structure = {k: set(v) for k, v in _import_structure.items()}
    import_structure = define_import_structure(Path(__file__).parent / "models", prefix="models")
    import_structure[frozenset({})].update(_import_structure)
    sys.modules[__name__] = _LazyModule(
        __name__, globals()["__file__"], import_structure, module_spec=__spec__, extra_objects={"__version__": "5"}
    )
"""
LEAF = """
from ...lazy import _LazyModule, define_import_structure
import sys
_file = globals()["__file__"]
sys.modules[__name__] = _LazyModule(__name__, _file, define_import_structure(_file), module_spec=__spec__)
"""


def lazy(package, **more):
    return package(
        **{
            "root": ROOT,
            "lazy": LAZY_CLASS,
            "config": "class Config: ...\nclass Hidden: ...\n",
            "trainer": "class Trainer:\n    def train(self): ...\n",
            "utils": "def log(): ...\ndef seed(): ...\n",
            "dummy_objects": "class Trainer: ...\nclass LlamaModel: ...\n",
            "models__": "",
            "models__llama__": LEAF,
            "models__llama__modeling_llama": "__all__ = ['LlamaModel']\nclass LlamaModel: ...\nclass Helper: ...\n",
            "models__llama__tokenization_llama": "@requires(backends=('a',))\nclass LlamaTokenizer: ...\n",
            "models__llama__convert_llama": "__all__ = ['convert']\ndef convert(): ...\n",
            "models__clip__": LEAF,
            "models__clip__processing": "__all__ = ['ClipProcessor']\nclass ClipProcessor: ...\n",
            **more,
        }
    )


def test_names_come_from_the_structure_with_its_conditional_parts(package):
    release = lazy(package)
    assert release.found("pkg.Config").dotted == "pkg.config.Config"
    assert release.found("pkg.Trainer.train").dotted == "pkg.trainer.Trainer.train"
    assert release.found("pkg.seed").dotted == "pkg.utils.seed"
    release.absent("pkg.Hidden")


def test_names_come_from_the_files_that_export_them(package):
    release = lazy(package)
    assert release.found("pkg.LlamaModel").dotted == "pkg.models.llama.modeling_llama.LlamaModel"
    assert release.found("pkg.LlamaTokenizer").dotted == "pkg.models.llama.tokenization_llama.LlamaTokenizer"
    assert release.found("pkg.models.llama.LlamaModel").file == "pkg/models/llama/modeling_llama.py"
    release.absent("pkg.Helper")
    release.absent("pkg.convert")


def test_only_few_files_are_parsed_for_one_name(package):
    release = lazy(package)
    release.found("pkg.LlamaModel")
    assert "pkg/models/llama/tokenization_llama.py" not in release.upstream.store.parsed
    assert "pkg/models/clip/processing.py" not in release.upstream.store.parsed


def test_imports_for_type_checkers_bring_nothing(package):
    assert lazy(package).absent("pkg.ForCheckersOnly").container == "pkg"


def test_submodules_and_extra_objects_are_attributes(package):
    release = lazy(package)
    assert release.found("pkg.models.llama").kind is SymbolKind.MODULE
    assert release.found("pkg.utils").kind is SymbolKind.MODULE
    assert release.found("pkg.__version__").dotted == "pkg.__version__" or release.is_open("pkg.__version__")


def test_endings_that_the_lazy_class_cuts_off_are_followed(package):
    release = lazy(package)
    assert release.found("pkg.LlamaTokenizerFast").dotted.endswith(".LlamaTokenizer")
    assert "deprecated" in release.way("pkg.ClipProcessorFast").deprecated
    release.absent("pkg.OtherTokenizerFast")


def test_a_structure_that_is_not_understood_leaves_missing_names_open(package):
    root = ROOT.replace('"trainer": []', "compute(): []")
    release = lazy(package, root=root)
    assert release.found("pkg.Config").dotted == "pkg.config.Config"
    assert release.is_open("pkg.Missing")


def test_modules_put_into_sys_modules_under_old_names_are_followed(package):
    release = package(
        root="""
        import sys
        from . import new_home
        sys.modules[f"{__name__}.old_home"] = new_home
        sys.modules["pkg.older_home"] = new_home
        """,
        new_home="class Engine: ...",
    )
    way = release.way("pkg.old_home.Engine")
    assert way.symbol.dotted == "pkg.new_home.Engine"
    assert "pkg.old_home" in way.through
    assert release.found("pkg.older_home.Engine").dotted == "pkg.new_home.Engine"
    release.absent("pkg.oldest_home")


def test_a_helper_that_makes_a_module_for_another_is_followed(package):
    release = package(
        root="""
        import importlib, sys, types

        def _alias(alias: str, target: str) -> None:
            module = types.ModuleType(alias)
            module.__getattr__ = lambda name: getattr(importlib.import_module(target, __name__), name)
            sys.modules[alias] = module

        _alias(f"{__name__}.old", ".new")
        """,
        new="def f(): ...",
    )
    assert release.found("pkg.old.f").dotted == "pkg.new.f"


def test_a_module_that_is_only_named_in_a_string_beside_sys_modules_is_open(package):
    release = package(root="import sys\nfrom x import make\nmake(sys.modules, 'old_home')\n")
    assert release.is_open("pkg.old_home")
    release.absent("pkg.other_home")


def test_a_finder_on_the_meta_path_is_asked(package):
    release = package(
        root="""
        import re, sys
        from .finder import AliasFinder

        ALIASES = {"old": "new"}
        FAST = re.compile(rf"{re.escape(__name__)}\\.models\\.(\\w+)_fast")

        def _resolve(fullname: str) -> str | None:
            if (match := FAST.fullmatch(fullname)) is not None:
                return f"{__name__}.models.{match[1]}"
            package, _, name = fullname.rpartition(".")
            if package == __name__ and name in ALIASES:
                return f"{__name__}.{ALIASES[name]}"
            return None

        sys.meta_path.append(AliasFinder(_resolve))
        """,
        finder="class AliasFinder: ...",
        new="def f(): ...",
        models__="",
        models__clip="class Clip: ...",
    )
    assert release.found("pkg.old.f").dotted == "pkg.new.f"
    assert release.found("pkg.models.clip_fast.Clip").dotted == "pkg.models.clip.Clip"
    release.absent("pkg.older")
    release.absent("pkg.models.llama_slow")


def test_a_module_that_replaces_itself_by_something_unknown_is_open(package):
    release = package(ops="import sys\nfrom x import wrap\nsys.modules[__name__] = wrap(1)\ndef f(): ...\n")
    assert release.is_open("pkg.ops.anything")
    assert release.found("pkg.ops.f").line == 4


def test_code_that_would_run_for_ever_or_grow_without_end_is_left(package):
    release = package(
        root="""
        import sys
        text = "x"
        for i in range(3): ...
        for i in [1] * 900:
            text = text + text
            table = [text] * 900
        names = {"a" * 10 ** 9: 1, 2 ** (2 ** 40): 2}
        def loop(n):
            return loop(n)
        loop(1)
        sys.modules["pkg.alias"] = sys
        """
    )
    assert release.absent("pkg.gone").name == "gone"


MIGRATION = """
import contextlib
_T = {"a": 1}
NAMES = []
_LATE = {}

def fail(name):
    raise AttributeError(name)

def listed(name):
    if name in NAMES:
        return 1
    raise AttributeError(name)

def late(name):
    if name in _LATE:
        return 1
    raise AttributeError(name)

def matched(name):
    match name:
        case "f":
            return 1
    raise AttributeError(name)

def lazily(name):
    raise AttributeError(name)
    yield 1

def real(name):
    return 1

def make():
    return real

def refuse():
    raise ValueError("never")

NAMES.append("f")

def register(name):
    _LATE[name] = 1
"""


HOOKS = {
    "in a try": """
        from pkg.m import fail
        def __getattr__(n):
            try:
                return fail(n)
            except AttributeError:
                return 1
        """,
    "suppressed": """
        import contextlib
        from pkg.m import fail
        def __getattr__(n):
            with contextlib.suppress(AttributeError):
                return fail(n)
            return 1
        """,
    "behind something else": """
        import os
        from pkg.m import fail
        def __getattr__(n):
            return os.environ.get(n) or fail(n)
        """,
    "a generator": "from pkg.m import lazily\ndef __getattr__(n):\n    return lazily(n)\n",
    "by pattern": "from pkg.m import matched\ndef __getattr__(n):\n    return matched(n)\n",
    "a list that grows": "from pkg.m import listed\ndef __getattr__(n):\n    return listed(n)\n",
    "a table filled later": "from pkg.m import late\ndef __getattr__(n):\n    return late(n)\n",
    "a function that is handed out": "from pkg.m import make\n__getattr__ = make()\n",
    "a function handed out on the line of its clause": """
        from pkg.m import make
        try:
            from pkg.m import nothing
        except ImportError: __getattr__ = make()
        """,
    "a maker that raises": "from pkg.m import refuse\n__getattr__ = refuse()\n",
    "one of several names": "from pkg.m import attach\n__getattr__, __all__ = attach(__name__)\n",
    "a value that asks for itself": """
        import pkg
        own = pkg.own(pkg.own())
        def __getattr__(n):
            return pkg.own(n)
        """,
}
"""Modules whose hook may give any name, by what keeps anybody from knowing that it does not."""


@pytest.mark.parametrize("body", HOOKS.values(), ids=HOOKS)
def test_a_hook_that_may_give_a_name_takes_none_away(package, body):
    assert not isinstance(package(root=body, m=MIGRATION).upstream.resolve("pkg.f"), Absent)


def test_a_hook_that_is_imported_or_cached_is_followed(package):
    hook = "def __getattr__(n):\n    if n == 'f':\n        return 1\n    raise AttributeError(n)\n"
    for body in ("from pkg.hook import __getattr__\n", f"import functools\n@functools.cache\n{hook}"):
        found = package(root=body, hook=hook)
        assert isinstance(found.upstream.resolve("pkg.f"), Found)
        assert isinstance(found.upstream.resolve("pkg.g"), Absent)


def test_lazy_loader_gives_what_it_is_told(package):
    release = package(
        a__="import lazy_loader\n__getattr__, __dir__, __all__ = lazy_loader.attach(\n"
        '    __name__, submodules=["io"], submod_attrs={"load": ["read", "write"]}\n)\n',
        a__io="",
        a__load="def read(): ...\ndef write(): ...\n",
    ).upstream
    assert isinstance(release.resolve("pkg.a.read"), Found)
    assert release.resolve("pkg.a.read").symbol.dotted == "pkg.a.load.read"
    assert isinstance(release.resolve("pkg.a.io"), Found)
    assert isinstance(release.resolve("pkg.a.gone"), Absent)


def test_lazy_loader_reads_the_stub_beside_the_package(package):
    body = "import lazy_loader as lazy\n__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)\n"
    stub = "from .core import run\n"
    release = package(a__=body, a___pyi=stub, a__core="def run(): ...\ndef other(): ...\n").upstream
    assert isinstance(release.resolve("pkg.a.run"), Found)
    assert isinstance(release.resolve("pkg.a.other"), Absent)
