"""Names of modules: where they are, how they got there, and when nobody can know."""

from __future__ import annotations

import pytest

from tooling.python.symbols.symbol import Open, Provider, SymbolKind


def test_a_definition_is_found_with_its_place(package):
    symbol = package(core="x = 1\n\n\nclass Engine:\n    pass\n").found("pkg.core.Engine")
    assert (symbol.kind, symbol.dotted, symbol.file, symbol.line) == (
        SymbolKind.CLASS,
        "pkg.core.Engine",
        "pkg/core.py",
        4,
    )


def test_a_reexport_leads_to_the_definition_and_says_the_way(package):
    way = package(root="from .api import Engine", api="from pkg.core import Engine", core="class Engine: ...").way(
        "pkg.Engine"
    )
    assert way.symbol.dotted == "pkg.core.Engine"
    assert way.through == ("pkg.Engine", "pkg.api.Engine")


def test_what_is_missing_is_absent_in_the_innermost_thing_that_exists(package):
    gone = package(core="class Engine:\n    def run(self): ...\n").absent("pkg.core.Engine.stop")
    assert (gone.container, gone.name) == ("pkg.core.Engine", "stop")
    assert package(root="").absent("pkg.nope.deeper").container == "pkg"


def test_names_of_other_distributions_are_open_and_their_reexports_are_there(package):
    release = package(root="from numpy import array\nimport json")
    assert release.is_open("numpy.array")
    assert release.found("pkg.array").dotted == "numpy.array"


@pytest.mark.parametrize(
    "source",
    [
        "if True:\n    def f(): ...\n",
        "try:\n    from fast import f\nexcept ImportError:\n    def f(): ...\n",
        "import sys\nif sys.platform == 'x':\n    pass\nelse:\n    def f(): ...\n",
        "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    def f(): ...\n",
        "with open('x') as file:\n    f = 1\n",
        "for f in range(3): ...\n",
        "(f := 1)\n",
        "globals()['f'] = 1\n",
    ],
)
def test_a_name_bound_in_any_branch_is_there(package, source):
    assert package(root=source).found("pkg.f").dotted == "pkg.f"


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .core import f\n",
        "f: int\n",
        "f = 1\ndel f\n",
        "def g():\n    f = 1\n",
    ],
)
def test_a_name_that_is_not_bound_when_the_module_runs_is_absent(package, source):
    assert package(root=source, core="def f(): ...").absent("pkg.f").name == "f"


def test_a_definition_comes_before_the_placeholder_of_a_missing_dependency(package):
    release = package(
        root="E = None\ntry:\n    from .core import Engine as E\nexcept ImportError:\n    E = object\n",
        core="class Engine:\n    def run(self): ...\n",
    )
    assert release.found("pkg.E.run").dotted == "pkg.core.Engine.run"


def test_an_alias_is_what_it_stands_for(package):
    release = package(core="class NewName:\n    def run(self): ...\nOldName = NewName\n")
    assert release.found("pkg.core.OldName").dotted == "pkg.core.NewName"
    assert release.found("pkg.core.OldName.run").owner == "pkg.core.NewName"


def test_a_value_rebuilt_by_a_function_that_returns_its_argument_stays_what_it_was(package):
    release = package(
        core="""
        def register(cls, name=""):
            cls.__doc__ = name
            return cls

        class Auto:
            @classmethod
            def load(cls): ...

        Auto = register(Auto, name="x")
        """
    )
    assert release.found("pkg.core.Auto.load").binding == "classmethod"


def test_star_imports_bring_what_all_says_and_no_more(package):
    release = package(
        root="from .core import *",
        core="__all__ = ['shown']\n__all__ += ['_also']\ndef shown(): ...\ndef hidden(): ...\ndef _also(): ...\n",
    )
    assert release.found("pkg.shown").dotted == "pkg.core.shown"
    assert release.found("pkg._also").dotted == "pkg.core._also"
    release.absent("pkg.hidden")
    assert release.found("pkg.core.hidden").line == 4


def test_all_may_be_made_of_other_modules_alls(package):
    release = package(
        root="from .api import *",
        api="from . import a, b\nfrom .a import *\nfrom .b import *\n__all__ = a.__all__ + b.__all__\n",
        a="__all__ = ['x']\nx = 1\nhidden = 2\n",
        b="__all__ = ['y']\n__all__.extend(['z'])\ny = z = 1\n",
    )
    assert release.found("pkg.z").dotted == "pkg.b.z"
    release.absent("pkg.hidden")


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nif sys.version_info >= (3, 9):\n    __all__ = ['a', 'b']\nelse:\n    __all__ = ['a']\n",
        "try:\n    import fast\n    __all__ = ['a', 'b']\nexcept ImportError:\n    __all__ = ['a']\n",
    ],
)
def test_all_in_branches_is_what_any_of_them_says(package, text):
    release = package(root="from .core import *", core=f"{text}a = b = 1\n")
    assert release.upstream.exports(release.upstream.store.module("pkg.core")) == ({"a", "b"}, False)
    assert release.found("pkg.b").dotted == "pkg.core.b"


def test_all_may_be_imported(package):
    release = package(root="from .names import __all__\nx = y = 1\n", names="__all__ = ['x']\nx = 1\n")
    assert release.upstream.exports(release.upstream.store.module("pkg")) == ({"x"}, True)


@pytest.mark.parametrize(
    ("body", "refused"),
    [
        ("raise AttributeError(name)", True),
        ("if name == 'a': return getattr(self, 'b')\n        raise AttributeError(name)", True),
        ("try: return getattr(self.inner, name)\n        except AttributeError: raise AttributeError(name)", False),
        ("try: return self.inner[name]\n        except KeyError: raise AttributeError(name)", True),
        ("try: return TABLE[name]\n        except KeyError: raise AttributeError(name)", False),
    ],
)
def test_a_getattr_that_asks_another_object_refuses_nothing(package, body, refused):
    release = package(core=f"class Box:\n    def __getattr__(self, name):\n        {body}\n")
    found = release.upstream.resolve("pkg.core.Box.size")
    assert isinstance(found, Open)
    assert (found.beside is not None) is refused


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("core.Hooked.size", Provider.HOOK),
        ("core.Settings.size", Provider.VALUES),
        ("core.Far.size", Provider.BASE),
        ("starred.size", Provider.STAR),
        ("computed.size", Provider.COMPUTED),
    ],
)
def test_what_may_still_give_a_name_is_said(package, name, provider):
    core = "from other import Base\nclass Far(Base): ...\nclass Hooked:\n    def __getattr__(self, name):\n"
    core += "        raise AttributeError(name)\nclass Settings(Hooked):\n    def __init__(self, **given):\n"
    core += "        for key, value in given.items():\n            setattr(self, key, value)\n"
    release = package(root="", core=core, starred="from other import *\n", computed="globals().update(make())\n")
    assert release.upstream.resolve(f"pkg.{name}").beside.provider is provider


def test_a_star_import_from_outside_leaves_missing_names_open(package):
    release = package(root="from numpy import *\ndef mine(): ...\n")
    assert release.is_open("pkg.anything")
    assert release.found("pkg.mine").dotted == "pkg.mine"


def test_star_imports_in_a_circle_end(package):
    release = package(root="from .a import *", a="from .b import *\nx = 1", b="from .a import *\ny = 1")
    assert release.found("pkg.y").dotted == "pkg.b.y"
    assert release.is_open("pkg.z") or release.absent("pkg.z")


def test_folders_without_init_are_packages(package):
    release = package(srt__managers__io="class Request: ...")
    assert release.found("pkg.srt").kind is SymbolKind.MODULE
    assert release.found("pkg.srt.managers.io.Request").line == 1
    release.absent("pkg.srt.other")


def test_a_submodule_is_reached_although_the_package_gives_its_name_away(package):
    release = package(utils__="from .tqdm import tqdm", utils__tqdm="class tqdm: ...\ndef is_enabled(): ...\n")
    assert release.found("pkg.utils.tqdm").kind is SymbolKind.CLASS
    assert release.found("pkg.utils.tqdm.is_enabled").kind is SymbolKind.FUNCTION


def test_a_getattr_table_is_looked_up(package):
    release = package(
        root="""
        import importlib
        MODULE_ATTRS = {"LLM": ".llm:LLM", "Params": ".params:Params"}

        def __getattr__(name):
            if name in MODULE_ATTRS:
                module_name, attr_name = MODULE_ATTRS[name].split(":")
                module = importlib.import_module(module_name, __package__)
                return getattr(module, attr_name)
            raise AttributeError(f"module {__package__} has no attribute {name}")
        """,
        llm="class LLM: ...",
        params="class Params: ...",
    )
    assert release.found("pkg.LLM").dotted == "pkg.llm.LLM"
    assert release.found("pkg.Params").dotted == "pkg.params.Params"
    release.absent("pkg.Other")


def test_a_getattr_branch_that_warns_makes_the_way_deprecated(package):
    release = package(
        root="""
        import warnings

        def __getattr__(name: str):
            if name == "Old" or name.startswith("Very"):
                from .new import New
                warnings.warn(f"{name} is deprecated, use pkg.new.New", DeprecationWarning, stacklevel=2)
                return New
            raise AttributeError(name)
        """,
        new="class New: ...",
    )
    way = release.way("pkg.Old")
    assert way.symbol.dotted == "pkg.new.New"
    assert "use pkg.new.New" in way.deprecated
    assert release.found("pkg.VeryOld").dotted == "pkg.new.New"
    release.absent("pkg.Other")


def test_a_getattr_over_computed_values_knows_its_keys(package):
    release = package(
        envs="""
        import os
        from typing import Any, Callable
        environment_variables: dict[str, Callable[[], Any]] = {
            "PKG_PORT": lambda: int(os.getenv("PKG_PORT", "1")),
        }

        def __getattr__(name: str):
            if name in environment_variables:
                return environment_variables[name]()
            raise AttributeError(f"module has no attribute {name}")
        """
    )
    assert release.found("pkg.envs.PKG_PORT").kind is SymbolKind.VALUE
    release.absent("pkg.envs.PKG_GONE")


def test_a_getattr_that_asks_for_something_unknown_finds_names_and_stays_open_otherwise(package):
    release = package(
        layers="""
        from .probe import available

        def __getattr__(name):
            if name == "Linear8bit" and available():
                from .bnb import Linear8bit
                return Linear8bit
            raise AttributeError(name)
        """,
        probe="def available(): return bool(open('/x'))",
        bnb="class Linear8bit: ...",
        anything="import x\ndef __getattr__(name):\n    return x.lookup(name)\n",
        undecided="import x\ndef __getattr__(name):\n    if x.has(name):\n        return 1\n    raise AttributeError\n",
    )
    assert release.found("pkg.layers.Linear8bit").dotted == "pkg.bnb.Linear8bit"
    release.absent("pkg.layers.Other")
    assert release.found("pkg.anything.whatever").kind is SymbolKind.VALUE
    assert release.is_open("pkg.undecided.whatever")


def test_a_module_whose_code_writes_globals_is_open_unless_the_loop_is_understood(package):
    release = package(
        loop="for name in ('sin', 'cos'):\n    key = f'sym_{name}'\n    globals()[key] = name\n",
        update="import x\nglobals().update(x.names())\n",
        setter="def install(names):\n    for name in names:\n        globals()[name] = 1\n",
    )
    assert release.found("pkg.loop.sym_cos").dotted == "pkg.loop.sym_cos"
    release.absent("pkg.loop.sym_tan")
    assert release.is_open("pkg.update.x1")
    assert release.is_open("pkg.setter.x1")


def test_a_file_that_the_parser_refuses_is_open(package):
    release = package(root="from .bad import f", bad="def f(:\n")
    assert release.is_open("pkg.f")
    assert release.is_open("pkg.bad.g")


def test_a_byte_order_mark_and_a_declared_encoding_are_understood(package):
    release = package(root="\ufeffdef f(): ...\n")
    assert release.found("pkg.f").line == 1
    latin = "# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1")
    release = type(release)({"pkg/__init__.py": latin})
    assert release.found("pkg.name").value == "'é'"


def test_imports_in_a_circle_end(package):
    release = package(a="from .b import x", b="from .a import x")
    assert release.is_open("pkg.a.x")


def test_names_that_are_no_names_are_open(package):
    assert package(root="").is_open("pkg.a b.c")


def test_the_table_of_names_says_where_each_is_defined(package):
    table = package(a="class X:\n    def inner(self): ...\n", b="\nX = 1\nasync def f(): ...\n").upstream.names()
    assert [(row.module, row.kind, row.line) for row in table.by_name["X"]] == [
        ("pkg.a", "class", 1),
        ("pkg.b", "value", 2),
    ]
    assert table.by_name["f"][0].kind == "function"
    assert "inner" not in table.by_name


def test_calls_of_a_hook_are_found_outside_strings_and_comments(package):
    release = package(
        loop="""
        def run(self):
            # self.hook(0)
            '''x.hook(1)'''
            self.model.hook(
                batch, step=f(")"),  # one more ) here
            )
            hook(2)
        """
    )
    assert release.upstream.calls_of("hook") == [
        ("pkg/loop.py", 5, 'self.model.hook( batch, step=f(")"), # one more ) here )')
    ]
