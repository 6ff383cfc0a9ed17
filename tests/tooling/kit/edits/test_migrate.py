"""A dispatch by if/elif becomes a table that answers every name as before: both versions are executed and compared."""

from __future__ import annotations

import asyncio
import enum
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.cli.errors import RegistryShapeError, UsageError
from tooling.kit.edits import add_entry, keys, remove_entry
from tooling.kit.edits.migrate import Migration, migrate_registry
from tooling.kit.kind import RegistryEntry

FIXTURES = Path(__file__).parent / "fixtures"
REWARDS = '''"""Rewards by name."""

from __future__ import annotations

from functools import lru_cache


def helper(x):
    # Not a registry.
    return "a" if x == "a" else "b"


# About the function.
@lru_cache(maxsize=None)
def get_reward(name: str, answer: str = "4"):
    """The reward of an answer.

    Names are exact.
    """
    answer = answer.strip()  # before anything else
    if name == "sums":
        # Grade school.
        from zoo.sums import sums_reward  # noqa: PLC0415

        return sums_reward(answer, strict=True)
        # after it
    # Both spellings.
    elif name in ("word", "Word"):
        from .words import word_reward as chosen

        return chosen(answer, strict=True)  # loudly

    elif "sub" == name or name == "module":
        from . import late

        return late.Scorer.score(answer, strict=True)
    elif name == "broken":
        from zoo.sums import does_not_exist

        return does_not_exist(answer, strict=True)
    elif name == "missing":
        import zoo.absent

        return zoo.absent.reward(answer, strict=True)
    # Whatever else.
    else:
        # A typo, mostly.
        raise ValueError(f"unknown reward {name!r}")  # say which


AFTER = 1
'''


class Kind(enum.StrEnum):
    SUMS = "sums"
    OTHER = "other"


class Text(str):
    __slots__ = ()


NAMES = ["sums", "word", "Word", "sub", "module", "broken", "missing", "", "SUMS", "sums ", Kind.SUMS, Kind.OTHER]
ODD = [Text("word"), None, 3, b"sums", ("sums",), ["sums"], {"sums"}]


@pytest.fixture(autouse=True)
def zoo(tmp_path, monkeypatch):
    """Packages whose objects the registries name; modules are forgotten afterwards."""
    files = {
        "zoo/__init__.py": "",
        "zoo/sums.py": "def sums_reward(answer, strict): return ('sums', answer, strict)\n",
        "zoo/words.py": "def word_reward(answer, strict): return ('word', answer, strict)\n",
        "zoo/late.py": "class Scorer:\n    @classmethod\n    def score(cls, answer, strict): return (1, answer)\n",
        "score_zoo/__init__.py": "",
        "score_zoo/gsm8k.py": "def compute_score(solution, truth): return {'score': solution == truth}\n",
        "score_zoo/math_reward.py": "def compute_score(solution, truth): return len(solution) - len(truth)\n",
        "score_zoo/geo3k.py": "def compute_score(solution, truth): return True\n",
    }
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"zoo", "score_zoo"}:
            del sys.modules[name]


def load(source: bytes, function: str):
    namespace = {"__name__": "zoo.registry", "__package__": "zoo"}
    exec(compile(source, "registry.py", "exec"), namespace)
    return namespace[function]


def outcomes(source: bytes, function: str, calls: list[tuple]) -> list[tuple]:
    """What each call gives: a value, or the kind of its error and, unless it is about an import, its text."""
    called = load(source, function)
    results = []
    for arguments in calls:
        try:
            value = called(*arguments)
            results.append(("value", asyncio.run(value) if inspect.iscoroutine(value) else value))
        except ImportError:
            results.append(("import error",))
        except (NotImplementedError, TypeError, ValueError) as error:
            results.append((type(error).__name__, str(error)))
    return results


def assert_same_behaviour(source: bytes, migration: Migration, calls: list[tuple]) -> list[tuple]:
    before = outcomes(source, migration.function, calls)
    assert outcomes(migration.source, migration.function, calls) == before
    old, new = (load(text, migration.function) for text in (source, migration.source))
    assert str(inspect.signature(old)) == str(inspect.signature(new))
    assert inspect.getdoc(old) == inspect.getdoc(new)
    return before


def comments(source: bytes) -> list[str]:
    return sorted(re.findall(r"# .*", source.decode()))


def test_every_name_and_every_miss_is_answered_as_before():
    source = REWARDS.encode()
    migration = migrate_registry(source, file="zoo/registry.py")
    cached = [(name, " 5 ") for name in [*NAMES, *ODD]]
    before = assert_same_behaviour(source, migration, cached)
    assert [kind for kind, *_ in before[:7]] == ["value"] * 5 + ["import error"] * 2
    assert {kind for kind, *_ in before[7:]} == {"ValueError", "value", "TypeError"}
    assert (migration.function, migration.table) == ("get_reward", "REWARDS")
    assert migration.entries == (
        ("Word", ".words:word_reward"),
        ("broken", "zoo.sums:does_not_exist"),
        ("missing", "zoo.absent:reward"),
        ("module", ".:late.Scorer.score"),
        ("sub", ".:late.Scorer.score"),
        ("sums", "zoo.sums:sums_reward"),
        ("word", ".words:word_reward"),
    )


def test_names_that_cannot_be_hashed_meet_the_same_miss():
    source = REWARDS.replace("@lru_cache(maxsize=None)\n", "").encode()
    migration = migrate_registry(source, file="zoo/registry.py")
    before = assert_same_behaviour(source, migration, [(name,) for name in [*NAMES, *ODD]])
    assert ("ValueError", "unknown reward ['sums']") in before


def test_comments_move_above_their_entries_and_instructions_to_tools_go_with_their_import():
    source = REWARDS.encode()
    migration = migrate_registry(source, file="zoo/registry.py")
    lost = ["# noqa: PLC0415"]
    assert sorted(comments(migration.source) + lost) == comments(source)
    assert migration.notes == ("23: # noqa: PLC0415 went with its import",)
    text = migration.source.decode()
    assert '    # Grade school.\n    # after it\n    "sums": "zoo.sums:sums_reward",\n' in text
    assert '    # Both spellings.\n    # loudly\n    "Word": ".words:word_reward",\n' in text
    assert "    # Whatever else.\n    else:\n        # A typo, mostly.\n" in text
    assert "\n\n# About the function.\n@lru_cache(maxsize=None)\ndef get_reward(" in text


def test_a_migrated_file_is_a_registry_and_is_not_migrated_again():
    migration = migrate_registry(REWARDS.encode(), file="zoo/registry.py")
    entry = RegistryEntry("zoo/registry.py", "mapping", "REWARDS", "new", "zoo.sums:sums_reward")
    edit = add_entry(migration.source, entry)
    assert keys(edit.source, entry) == ["Word", "broken", "missing", "module", "new", "sub", "sums", "word"]
    assert load(edit.source, "get_reward")("new", "7") == ("sums", "7", True)
    assert remove_entry(edit.source, entry).source == migration.source
    with pytest.raises(UsageError, match="maybe it is a table already"):
        migrate_registry(migration.source, file="zoo/registry.py")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_the_rest_of_the_file_and_its_line_endings_stay(ending):
    source = REWARDS.replace("\n", ending).encode("utf-8-sig")
    migrated = migrate_registry(source, file="zoo/registry.py").source
    assert migrated.startswith(b"\xef\xbb\xbf")
    assert migrated.count(b"\r\n") == (migrated.count(b"\n") if ending == "\r\n" else 0)
    assert migrated.decode("utf-8-sig").endswith(f"AFTER = 1{ending}")


def test_the_result_passes_formatter_and_linter(tmp_path):
    path = tmp_path / "registry.py"
    path.write_bytes(migrate_registry(REWARDS.encode(), file="zoo/registry.py").source)
    ruff = [sys.executable, "-m", "ruff"]
    formatted = subprocess.run(
        [*ruff, "format", "--isolated", "--diff", "--no-cache", path], check=False, capture_output=True, text=True
    )
    assert formatted.stdout == ""
    select = ["--select", "F,I,E4,E7,E9,PLE", "--no-cache"]
    checked = subprocess.run([*ruff, "check", "--isolated", *select, path], check=False, capture_output=True, text=True)
    assert checked.stdout == "All checks passed!\n"


def test_branches_that_assign_and_a_function_that_goes_on_afterwards():
    source = (FIXTURES / "verl_dispatch.txt").read_bytes()
    migration = migrate_registry(source, file="scores.py")
    assert migration.table == "DEFAULT_COMPUTE_SCORES"
    assert dict(migration.entries)["geo3k"] == "score_zoo:geo3k.compute_score"
    sources = ["openai/gsm8k", "lighteval/MATH", "DigitalLearning/MATH", "hiyouga/geometry3k", "geo3k", "nobody", None]
    before = assert_same_behaviour(source, migration, [(name, "abc", "a") for name in sources])
    assert [kind for kind, *_ in before] == ["value"] * 5 + ["NotImplementedError"] * 2
    assert before[0] == ("value", {"score": False})


def test_ifs_that_return_one_after_the_other():
    source = b"""
async def load_scorer(name, *rest):
    if name == "a":
        from zoo.late import Scorer
        return Scorer
    # then b
    if name == "b":
        from zoo.sums import sums_reward
        return sums_reward
    return None
"""
    migration = migrate_registry(source, file="zoo/registry.py")
    assert migration.table == "SCORERS"
    before = outcomes(source, "load_scorer", [("a",), ("b",), ("c",)])
    assert outcomes(migration.source, "load_scorer", [("a",), ("b",), ("c",)]) == before
    assert [value for _, value in before][2] is None
    assert b'    # then b\n    "b": "zoo.sums:sums_reward",\n' in migration.source


def test_checks_above_one_line_branches_and_tests_of_several_lines():
    source = b"""
def load_policy(split, name, /, *, loud=False):
    if split not in ("train", "test"):
        raise KeyError(split)
    if loud:
        name = name.lower()
    if name == "a": from zoo.late import Scorer; return Scorer
    elif (
        name == "b"  # short
        or name in ["bb", "bbb"]
    ):
        # the sums
        from zoo.sums import sums_reward

        # outside of the body, above the else

        return sums_reward
    # unknown
    else: return None"""
    migration = migrate_registry(source, file="zoo/registry.py")
    assert migration.table == "POLICIES"
    calls = [("train", name) for name in ("a", "b", "bb", "bbb", "B", "c")]
    before = assert_same_behaviour(source, migration, calls)
    assert [value is None for _, value in before] == [False] * 4 + [True] * 2
    assert load(migration.source, "load_policy")("test", "BB", loud=True) is not None
    with pytest.raises(KeyError):
        load(migration.source, "load_policy")("dev", "a")
    assert comments(migration.source) == comments(source)


def test_objects_that_the_module_imports_at_its_top_are_refused_not_overlooked():
    source = b"from zoo.sums import sums_reward\ndef get(name):\n    if name == 'a':\n        return sums_reward\n"
    source += b"    elif name == 'b':\n        return len\n"
    with pytest.raises(RegistryShapeError) as caught:
        migrate_registry(source, file="r.py")
    assert caught.value.where == "r.py:3"
    assert "does more or less than to import one object" in caught.value.message


def test_a_thousand_branches():
    branches = "".join(
        f'    {"if" if number == 0 else "elif"} name == "n{number}":\n        from zoo.sums import sums_reward\n'
        f"        return sums_reward(name, strict)\n"
        for number in range(1000)
    )
    # CPython itself reads such a chain as a tree a thousand levels deep.
    source = f"def get(name, strict):\n{branches}    return name\n".encode()
    migration = migrate_registry(source, file="zoo/registry.py")
    calls = [(f"n{number}", False) for number in (0, 1, 500, 999, 1000)]
    assert_same_behaviour(source, migration, calls)
    assert len(migration.entries) == 1000


BRANCH = '    if name == "a":\n        from zoo.a import a\n        return a(x)\n'


@pytest.mark.parametrize(
    ("second", "line", "reason"),
    [
        ('    elif "b" in name:\n        from zoo.b import b\n        return b(x)\n', 5, "part of a text"),
        ('    elif name.lower() == "b":\n        from zoo.b import b\n        return b(x)\n', 5, "equality of `name`"),
        ('    elif name == "b" and x:\n        from zoo.b import b\n        return b(x)\n', 5, "expected equality"),
        ('    elif name != "b":\n        from zoo.b import b\n        return b(x)\n', 5, "expected equality"),
        ('    elif x == "b":\n        from zoo.b import b\n        return b(x)\n', 5, "equality of `name`"),
        ('    elif name == "b":\n        from zoo.b import b\n        return b(x, 1)\n', 5, "`return ..(x, 1)`"),
        ('    elif name == "b":\n        from zoo.b import b\n        return b\n', 5, "`return ..`"),
        (
            '    elif name == "b":\n        from zoo.b import b\n        log(x)\n        return b(x)\n',
            5,
            "more or less",
        ),
        ('    elif name == "b":\n        return b(x)\n', 5, "more or less"),
        ('    elif name == "b":\n        from zoo.b import b, c\n        return b(x)\n', 6, "more than one object"),
        ('    elif name == "b":\n        from zoo.b import *\n        return b(x)\n', 6, "more than one object"),
        (
            '    elif name == "b":\n        from zoo.b import b\n        return wrap(b)(x)\n',
            7,
            "does not start with `b`",
        ),
        ('    elif name == "b":\n        from zoo.b import b\n        return b(b)\n', 5, "`return ..(b)`"),
        ('    elif name == "b":\n        import zoo\n        return zoo(x)\n', 7, "the module 'zoo' itself"),
        ('    elif name == "a":\n        from zoo.b import b\n        return b(x)\n', 5, "a second time"),
        (
            '    elif name == "b":\n        from zoo.b import b\n        return b(  # why\n            x)\n',
            7,
            "comment",
        ),
        (
            '    elif name == "b":\n        from zoo.b import b\n        return b(x)\n    return a\n',
            8,
            "used elsewhere",
        ),
        (
            '    elif name == "b":\n        global b\n        from zoo.b import b\n        return b(x)\n',
            5,
            "more or less",
        ),
    ],
)
def test_a_branch_that_a_table_cannot_hold_is_refused_with_its_line_and_the_reason(second, line, reason):
    source = f"def get(name, x):\n{BRANCH}{second}    return None\n"
    compile(source.replace("import *", "import star"), "registry.py", "exec")
    with pytest.raises(RegistryShapeError) as caught:
        migrate_registry(source.encode(), file="zoo/registry.py")
    assert caught.value.where == f"zoo/registry.py:{line}"
    assert reason in caught.value.message


def test_substring_tests_of_a_public_shape_are_refused():
    with pytest.raises(RegistryShapeError) as caught:
        migrate_registry((FIXTURES / "areal_dispatch.txt").read_bytes(), file="datasets.py")
    assert caught.value.where == "datasets.py:10"
    assert "part of a text" in caught.value.message


def test_the_one_plain_function_among_several_is_taken_and_two_are_refused():
    plain = f'def {{}}(name, x):\n{BRANCH}    elif name == "b":\n        from zoo.b import b\n        return b(x)\n\n\n'
    other = 'def mode_of(name):\n    if name == "a":\n        return 1\n    elif name == "b":\n        return 2\n'
    migration = migrate_registry((plain.format("get_model") + other).encode(), file="r.py")
    assert migration.function == "get_model"
    both = (plain.format("get_model") + plain.format("get_loss")).encode()
    with pytest.raises(UsageError, match="get_model, get_loss"):
        migrate_registry(both, file="r.py")
    assert migrate_registry(both, file="r.py", function="get_loss").table == "LOSSES"
    with pytest.raises(UsageError, match="nowhere"):
        migrate_registry(both, file="r.py", function="nowhere")


@pytest.mark.parametrize(
    ("head", "reason"),
    [("str = object\n", "str means something else"), ("def importlib(): ...\n", "importlib means something else")],
)
def test_names_that_mean_something_else_are_refused(head, reason):
    source = (
        f'{head}def get(name, x):\n{BRANCH}    elif name == "b":\n        from zoo.b import b\n        return b(x)\n'
    )
    with pytest.raises(RegistryShapeError, match=reason):
        migrate_registry(source.encode(), file="r.py")


def test_a_table_name_that_is_taken_gets_another():
    second = '    elif name == "b":\n        from zoo.b import b\n        return b(x)\n'
    source = f"GETS = 1\ndef get(name, x):\n{BRANCH}{second}"
    assert migrate_registry(source.encode(), file="r.py").table == "GETS_TABLE"


@pytest.mark.parametrize(
    "imports",
    [
        "",
        "import os\nimport zlib\n",
        "from typing import Any, Final\n",
        "from importlib import import_module\n",
        "import zoo\n",
        "# SPDX\n\nimport importlib\nimport typing\n\nimport zoo\n",
        '"""Doc."""\n\nfrom collections import deque\n',
        "from __future__ import annotations\n\nfrom zoo import x as y\n",
    ],
)
def test_the_imports_it_needs_stand_where_the_linter_wants_them(imports, tmp_path):
    gap = "\n\n" if imports else ""
    tail = (
        f'def get_scorer(name, x):\n{BRANCH}    elif name == "b":\n        from zoo.b import b\n        return b(x)\n'
    )
    path = tmp_path / "registry.py"
    path.write_bytes(migrate_registry(f"{imports}{gap}{tail}".encode(), file="r.py").source)
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "I,E,F821,F811", "--no-cache", path]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stdout == "All checks passed!\n"


def test_a_branch_too_deep_to_be_compared_is_refused_instead_of_ending_the_process():
    deep = "+".join(["'a'"] * 900)
    source = f"def get(name):\n{BRANCH}    elif name == {deep}:\n        from zoo.b import b\n        return b(x)\n"
    with pytest.raises(RegistryShapeError, match="nested too deeply"):
        migrate_registry(source.encode(), file="r.py")
