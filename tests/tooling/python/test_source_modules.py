"""Names are followed through modules to the node that they mean, as far as functions, classes and constants go."""

import ast

import pytest

from tooling.python.module import Module
from tooling.python.source_modules import NodeInModule, SourceModules

FILES = {
    "pkg": "from pkg.shapes import *\nfrom pkg.shapes import Square as Box\n",
    "pkg.shapes": """
import enum

class Shape:
    sides = 0
    def area(self):
        return 0

class Square(Shape):
    sides = 4

class Generic(Square, enum.Enum):
    pass
""",
    "pkg.fast": """
try:
    from pkg.shapes import Shape as Base
except ImportError:
    Base = None
LIMIT = 3
def load():
    from pkg.shapes import Square
    return Square
class Own(Base):
    pass
""",
    "pkg.circle": "from pkg.circle import x\n",
    "pkg.diamond": """
class Base:
    path = "/base"
class Left(Base): ...
class Right(Base):
    path = "/right"
class Both(Left, Right): ...
""",
    "pkg.own": """
URL = "/own"
def load():
    from pkg.diamond import Base as URL
    return URL
try:
    from pkg.diamond import Left as Side
except ImportError:
    Side = None
def other():
    from pkg.diamond import Right as Side
""",
}


class Files(SourceModules):
    """Modules of a dictionary."""

    def __init__(self) -> None:
        self._made = {name: Module(f"{name}.py", ast.parse(text), name) for name, text in FILES.items()}
        self.asked = 0

    def module(self, dotted: str, importer: str = "") -> Module | None:
        self.asked += 1
        return self._made.get(dotted)


@pytest.fixture
def files() -> Files:
    return Files()


def named(found: NodeInModule[ast.AST] | None) -> str:
    """ "module:name" of what was found."""
    if found is None:
        return ""
    text = found.node.name if isinstance(found.node, ast.ClassDef | ast.FunctionDef) else ast.unparse(found.node)
    return f"{found.module.package}:{text}"


@pytest.mark.parametrize(
    ("dotted", "meant"),
    [
        ("pkg.Box", "pkg.shapes:Square"),
        ("pkg.Shape", "pkg.shapes:Shape"),
        ("pkg.fast.Base", "pkg.shapes:Shape"),
        ("pkg.fast.LIMIT", "pkg.fast:3"),
        ("pkg.fast.missing", ""),
        ("pkg.circle.x", ""),
        ("elsewhere.Shape", ""),
        ("pkg.own.URL", "pkg.own:'/own'"),
        ("pkg.own.Side", "pkg.diamond:Left"),
    ],
)
def test_a_dotted_path_leads_through_imports_stars_and_fallbacks(files, dotted, meant):
    assert named(files.find(dotted)) == meant


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("Square", "pkg.shapes:Square"),
        ("Own", "pkg.fast:Own"),
        ("Own.area", "pkg.shapes:area"),
        ("Base", "pkg.shapes:Shape"),
        ("LIMIT", "pkg.fast:3"),
        ("f().x", ""),
    ],
)
def test_an_expression_means_what_its_module_binds_imports_in_functions_included(files, expression, meant):
    module = files.module("pkg.fast")
    assert named(files.named(ast.parse(expression, mode="eval").body, module)) == meant


def test_bases_attributes_and_methods_are_those_of_the_nearest_class(files):
    shapes = files.module("pkg.shapes")
    owner = files.class_named(ast.Name("Generic"), shapes)
    assert [named(each) for each in files.bases(owner)] == [
        f"pkg.shapes:{name}" for name in ("Generic", "Square", "Shape")
    ]
    assert named(files.attribute(owner, "sides")) == "pkg.shapes:4"
    assert named(files.method(owner, "area")) == "pkg.shapes:area"
    assert files.method(owner, "sides") is None
    assert files.bases(NodeInModule(shapes, ast.Constant(1))) == []


def test_a_base_stands_behind_all_that_derive_from_it(files):
    owner = files.class_named(ast.Name("Both"), files.module("pkg.diamond"))
    assert [each.node.name for each in files.bases(owner)] == ["Both", "Left", "Right", "Base"]
    assert named(files.attribute(owner, "path")) == "pkg.diamond:'/right'"


def test_a_module_binds_its_own_value_whatever_a_function_imports(files):
    assert named(files.named(ast.Name("URL"), files.module("pkg.own"))) == "pkg.own:'/own'"


def test_star_imports_that_cross_are_each_followed_once(monkeypatch):
    for own in range(12):
        stars = "".join(f"from star{other} import *\n" for other in range(12))
        monkeypatch.setitem(FILES, f"star{own}", stars)
    files = Files()
    assert files.find("star0.missing") is None
    assert files.asked <= 1 + 12 * 12


def test_methods_that_self_may_call_are_those_of_the_class_around():
    tree = ast.parse("class A:\n    def f(self):\n        return lambda: self.g(1)\n    def g(self, x): ...\ng(1)\n")
    module = Module("a.py", tree, "a")
    inner, plain = sorted(module.nodes(ast.Call), key=lambda call: call.lineno)
    assert [each.name for each in module.methods_called(inner)] == ["g"]
    assert module.methods_called(plain) == []
