"""Calls and attributes that ty finds through the whole repository, and code beside them that is right."""

from __future__ import annotations

import pytest

from tooling.review import checker

ENGINE = """
from abc import ABC, abstractmethod


class Engine(ABC):
    def clear(self, ids): ...

    @property
    def size(self) -> int:
        return 1

    @abstractmethod
    def step(self): ...


class LocalEngine(Engine):
    def step(self):
        return self.size


def make_engine() -> LocalEngine:
    return LocalEngine()
"""
USER = """
from package.engine import make_engine


def finish(ids):
    engine = make_engine()
    engine.clear(ids)
    return engine.size
"""


@pytest.fixture
def package(world):
    world.commit({"package/__init__.py": "", "package/engine.py": ENGINE, "package/user.py": USER})
    return world


def found(world, text: str) -> list[tuple[str, str, int]]:
    world.commit({"package/user.py": text})
    return [each for each in world.found() if each[0] != "untested-symbol"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("engine.clear(ids)", "engine.clear(ids, True)", "signature-mismatch"),
        pytest.param("engine.clear(ids)", "engine.clear()", "signature-mismatch", marks=pytest.mark.exhaustive),
        pytest.param(
            "engine.clear(ids)", "engine.clear(ids, force=True)", "signature-mismatch", marks=pytest.mark.exhaustive
        ),
        ("return engine.size", "return engine.size()", "not-callable"),
        ("return engine.size", "return engine.sice", "unknown-attribute"),
        ("make_engine()\n", "make_engine().__class__.__base__()\n", None),
    ],
)
def test_a_value_without_annotation_is_followed_to_its_class(package, old, new, rule) -> None:
    expected = [(rule, "package/user.py", USER.replace(old, new)[: USER.index(old)].count("\n") + 1)] if rule else []
    assert found(package, USER.replace(old, new)) == expected


def test_an_instance_of_an_abstract_class_is_found(package) -> None:
    text = USER.replace("make_engine", "Engine")
    assert found(package, text) == [("abstract-instance", "package/user.py", 6)]


def test_a_caller_outside_the_change_is_found(package) -> None:
    package.commit({"package/engine.py": ENGINE.replace("def clear(self, ids)", "def clear(self, ids, rank)")})
    assert ("signature-mismatch", "package/user.py", 7) in package.found()


def test_a_renamed_method_is_found_where_it_was_called(package) -> None:
    package.commit({"package/engine.py": ENGINE.replace("def clear(", "def clear_batches(")})
    assert ("unknown-attribute", "package/user.py", 7) in package.found()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "text",
    [
        # A subclass has it, and the annotation names the base.
        "from package.engine import Engine\n\n\nclass Far(Engine):\n    def step(self):\n        self.port = 1\n\n\n"
        "def f(engine: Engine):\n    return engine.port\n",
        # What an optional import leaves behind
        "try:\n    from fast import go\nexcept ImportError:\n    go = None\n\n\ndef f():\n    return go(1)\n",
        # Nothing is known about other packages.
        pytest.param(
            "import torch\n\n\ndef f(x: torch.Tensor):\n    return x.no_such_thing(torch.zeros(1, nothing=2))\n",
            marks=pytest.mark.exhaustive,
        ),
        # Annotated too narrowly, checked at run time
        pytest.param(
            "def f(tokenizer: str):\n    return tokenizer.encode('a', add_special_tokens=False)\n",
            marks=pytest.mark.exhaustive,
        ),
        # Fields that a base of another package has
        "from dataclasses import dataclass\n\nfrom lib import Base\n\n\n@dataclass\nclass A(Base):\n    x: int = 1\n"
        "\n\ndef f():\n    return A(\n        x=1,\n        y=2,\n    )\n",
        # A decorator of another package makes the constructor, and what is an object may be called.
        "from pydantic.dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    x: int = 1\n\n\n"
        "@dataclass\nclass B(A):\n    y: int = 2\n\n\ndef f(made: dict[str, object]):\n"
        "    return B(x=1, y=2), made['x'](1)\n",
        # Annotated as what is behind a decorator
        "from collections.abc import Generator\n\n\ndef make(it) -> Generator[None, None, None]:\n    return it\n\n\n"
        "def f(it):\n    return make(it)(1)\n",
        # A test that expects it, a metaclass of the project's own, and a union of which one member is asked about
        "import pytest\n\nfrom package.engine import Engine, make_engine\n\n\ndef test_a():\n"
        "    with pytest.raises(TypeError):\n        make_engine().clear(1, 2) or Engine()\n",
        "class Meta(type):\n    def __call__(cls, *args, **more):\n        return super().__call__(*args)\n\n\n"
        "class A(metaclass=Meta):\n    def __init__(self, x):\n        self.x = x\n\n\ndef f():\n"
        "    return A(1, remote=True)\n",
        "from package.engine import make_engine\n\n\nclass Other:\n    def clear(self, ids, force=False): ...\n\n\n"
        "def f(other):\n    engine = Other() if other else make_engine()\n    engine.clear(1, force=other)\n",
        # Without ABC, nothing keeps anybody from making one; and `cls: Row` means the class.
        "from abc import abstractmethod\n\n\nclass Hook:\n    @abstractmethod\n    def state(self): ...\n\n\n"
        "HOOK = Hook()\n",
        "class Row:\n    @classmethod\n    def make(cls: 'Row'):\n        return cls()\n",
        # Somebody has looked at it.
        "from package.engine import make_engine\n\n\ndef f():\n    return make_engine().clear()  # type: ignore\n",
    ],
)
def test_loose_annotations_and_other_packages_are_no_finding(package, text) -> None:
    assert found(package, text) == []


def test_what_both_sides_have_is_not_the_changes_doing(package) -> None:
    package.commit({"package/user.py": USER.replace("clear(ids)", "clear()")})
    assert found(package, "import os  # noqa: F401\n" + USER.replace("clear(ids)", "clear()")) == []


def test_settings_of_the_repository_are_not_obeyed(package) -> None:
    quiet = '[rules]\nmissing-argument = "ignore"\n[src]\nexclude = ["package"]\n'
    package.commit({"ty.toml": quiet, "pyproject.toml": '[tool.ty.rules]\nmissing-argument = "ignore"\n'})
    assert found(package, USER.replace("clear(ids)", "clear()")) == [("signature-mismatch", "package/user.py", 7)]


def test_without_the_checker_the_review_says_so(package, monkeypatch) -> None:
    monkeypatch.setattr(checker, "ty_program", lambda: None)
    package.commit({"package/user.py": USER.replace("clear(ids)", "clear()")})
    result = package.review()
    assert any("ty is not installed" in note for note in result.notes)


def test_a_checker_that_fails_is_a_note(package, monkeypatch, tmp_path) -> None:
    broken = tmp_path / "ty"
    broken.write_text("#!/bin/sh\necho broken pipe >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(checker, "ty_program", lambda: str(broken))
    package.commit({"package/user.py": USER.replace("clear(ids)", "clear()")})
    assert any("exit code 3: broken pipe" in note for note in package.review().notes)


@pytest.mark.exhaustive
def test_texts_do_not_meet_numbers(world):
    head = "def wait(seconds: float) -> None: ...\n\n\ndef name(text: str) -> int:\n    return len(text)\n\n\n"
    bad = ['wait("5")', "name(3)", "wait(seconds='now')"]
    good = ["wait(5)", 'name("3")', "wait(seconds=0.5)"]
    world.commit({f"bad_{number}.py": f"{head}{line}\n" for number, line in enumerate(bad)})
    assert [(rule, path) for rule, path, _ in world.found()] == [("unlike-types", f"bad_{n}.py") for n in range(3)]
    world.commit({f"good_{number}.py": f"{head}{line}\n" for number, line in enumerate(good)})
    assert world.found() == []


def test_a_function_ends_with_the_value_it_promises(world):
    bad = [
        "def f(x: int) -> int:\n    if x:\n        return 1\n",
        "def f(k: str) -> float:\n    if k == 'a':\n        return 1.0\n    elif k == 'b':\n        return 2.0\n",
        "def f(xs: list[int]) -> int:\n    for x in xs:\n        if x:\n            return x\n",
    ]
    good = [
        "def f(x: int) -> int:\n    if x:\n        return 1\n    return 2\n",
        "def f(k: str) -> float | None:\n    if k == 'a':\n        return 1.0\n",
        "def f(xs: list[int]) -> int:\n    for x in xs:\n        return x\n    raise ValueError(xs)\n",
        "def stop():\n    raise ValueError\n\n\ndef f(x: int) -> int:\n    if x:\n        return 1\n    stop()\n",
        "import lib\n\n\ndef f(x: int) -> int:\n    if x:\n        return 1\n    lib.fail(x)\n",
        "import lib\n\n\nasync def f(x: int) -> int:\n    if x:\n        return 1\n    await lib.fail(x)\n",
        "import lib\n\n\ndef f(x: int) -> int:\n    match x:\n        case 1:\n            return 1\n"
        "        case _:\n            lib.fail(x)\n",
        "import lib\n\n\ndef f(x: int) -> int:\n    for y in lib.cycle(x):\n        if y:\n            return y\n",
    ]
    world.commit({f"bad_{number}.py": text for number, text in enumerate(bad)})
    assert [(rule, path) for rule, path, _ in world.found()] == [("falls-through", f"bad_{n}.py") for n in range(3)]
    world.commit({f"good_{number}.py": text for number, text in enumerate(good)})
    assert world.found() == []
