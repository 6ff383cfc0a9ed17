"""Parsed files: statements without expressions, and names of modules."""

import ast

import pytest

from tooling.python.source import absolute, each_statement, module_name, package_of, parsed_file

SOURCE = """
import a
try:
    import b
except ImportError:
    def f():
        import c
match x:
    case 1:
        import d
class C:
    def g(self):
        return lambda: [y for y in x]
"""


def test_statements_come_in_the_order_of_a_walk_over_all_nodes():
    tree = ast.parse(SOURCE)
    kinds = (ast.mod, ast.stmt, ast.ExceptHandler, ast.match_case)
    assert list(each_statement(tree)) == [node for node in ast.walk(tree) if isinstance(node, kinds)]


@pytest.mark.parametrize(
    ("path", "level", "module", "found"),
    [
        ("pkg/sub/__init__.py", 1, "a", "pkg.sub.a"),
        ("pkg/sub/b.py", 1, "a", "pkg.sub.a"),
        ("pkg/sub/b.py", 2, "", "pkg"),
        ("pkg/sub/b.py", 0, "a", "a"),
        ("pkg/b.py", 3, "a", ""),
    ],
)
def test_relative_imports_start_from_the_package_of_their_file(path, level, module, found):
    assert absolute(package_of(path), level, module) == found


def test_a_package_goes_by_the_name_of_its_folder():
    assert module_name("pkg/sub/__init__.py") == ("pkg.sub", True)
    assert module_name("pkg/sub/b.py") == ("pkg.sub.b", False)


def test_a_file_that_cannot_be_read_has_no_tree(tmp_path, monkeypatch):
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    assert parsed_file(file) is not None
    assert (parsed_file(tmp_path), parsed_file(tmp_path / "b.py")) == (None, None)

    def refuse(_self):
        raise PermissionError("no")

    monkeypatch.setattr(type(file), "read_bytes", refuse)
    assert parsed_file(file) is None
