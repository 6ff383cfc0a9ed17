"""A resolver's complaint becomes who-requires-what records, in both layouts.

python -m pytest tests/tooling/upgrade/locks/test_conflicts.py -q
"""

import pytest

from tooling.upgrade.declarations.find import find_declarations
from tooling.upgrade.declarations.lockfiles import read_lock
from tooling.upgrade.locks.conflicts import contradicted_overrides, parse_conflict
from tooling.upgrade.locks.result import VersionChange, compare_locks, versions

LINES = """\
error: No solution found when resolving dependencies for split (markers: python_full_version >= '3.12')
  cause: Because vllm==0.18.0 depends on transformers>=4.56.0,<5 and demo[gpu] depends on vllm==0.18.0, we can \
conclude that demo[gpu] depends on transformers>=4.56.0,<5. (1)
         And because demo depends on transformers>=5.0, we can conclude that your requirements are unsatisfiable.
"""
TREE = """\
  \u00d7 No solution found when resolving dependencies:
  \u2570\u2500\u25b6 Because vllm{sys_platform == 'linux'}==0.18.0 depends on torch==2.10.0 and you
      require vllm==0.18.0, we can conclude that you require torch==2.10.0.
      And because you require torch==2.13.0, we can conclude that your requirements are
      unsatisfiable.
"""


@pytest.fixture
def declarations(tmp_path):
    text = (
        '[project]\nname = "demo"\ndependencies = ["transformers >= 5.0"]\n'
        '[project.optional-dependencies]\ngpu = ["vllm==0.18.0"]\n'
    )
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    return find_declarations(tmp_path)


def said(raw, declarations):
    return [str(cause) for cause in parse_conflict(raw, "demo", declarations).causes]


def test_cause_lines(declarations):
    assert said(LINES, declarations) == [
        "vllm==0.18.0 requires transformers>=4.56.0,<5",
        "demo[gpu] requires vllm==0.18.0 (pyproject.toml:5)",
        "demo requires transformers>=5.0 (pyproject.toml:3)",
    ]


def test_the_older_tree(declarations):
    assert said(TREE, declarations) == [
        "vllm==0.18.0 requires torch==2.10.0",
        "this repository requires vllm==0.18.0 (pyproject.toml:5)",
        "this repository requires torch==2.13.0 (constraints.txt:1)",
    ]


def test_alternatives_and_the_project_s_own_pins(declarations):
    raw = (
        "error: No solution found when resolving dependencies\n"
        "  cause: Because vllm>=0.19.1,<=0.23.0 depends on one of:\n"
        "             transformers>=4.56.0,<5.0.dev0\n"
        "             transformers>5.5.0\n"
        "         and vllm>=0.11.1,<=0.19.0 depends on torch==2.8.0 and torch==2.13.0, we can conclude this."
    )
    assert said(raw, declarations) == [
        "vllm>=0.19.1,<=0.23.0 requires transformers>=4.56.0,<5.0.dev0 or >5.5.0",
        "vllm>=0.11.1,<=0.19.0 requires torch==2.8.0",
        "demo requires torch==2.13.0 (constraints.txt:1)",
    ]


def test_what_no_index_has(declarations):
    raw = (
        "error: No solution found when resolving dependencies\n"
        "  cause: Because there is no version of vllm==0.18.999 and "
        "demo depends on vllm==0.18.999, we can conclude that your requirements are unsatisfiable."
    )
    assert parse_conflict(raw, "demo", declarations).missing == ("vllm==0.18.999",)
    raw = "error: No solution found\n  cause: Because nope was not found in the package registry and x depends on nope,"
    assert parse_conflict(raw, "demo", declarations).missing == ("nope",)


def test_what_is_published_as_source_only(declarations):
    raw = (
        "error: No solution found\n"
        "  cause: Because flash-attn>=2.7 has no usable wheels and demo depends on flash-attn>=2.7, "
        "we can conclude that your requirements are unsatisfiable.\nhint: Wheels are required for `flash-attn` because "
        "building from source is disabled for all packages (i.e., with `--no-build`)"
    )
    assert parse_conflict(raw, "demo", declarations).unbuilt == ("flash-attn",)


def test_words_that_nobody_knows_stay_raw(declarations):
    conflict = parse_conflict("error: No solution found: the stars are wrong", "demo", declarations)
    assert conflict.causes == ()
    assert conflict.raw == "error: No solution found: the stars are wrong"


OLD = """\
version = 1
[[package]]
name = "demo"
version = "0"
source = { editable = "." }
[[package]]
name = "numpy"
version = "2.0.0"
[[package]]
name = "ray"
version = "2.40"
[[package]]
name = "torch"
version = "2.9.1"
resolution-markers = ["extra == 'extra-4-demo-vllm'"]
[[package]]
name = "torch"
version = "2.10.0"
[[package]]
name = "vllm"
version = "0.11.0"
"""


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (("2.9.1", "2.10.0"), ("2.9.2", "2.10.0"), [("2.9.1", "2.9.2")]),
        (("2.9.1", "2.10.0"), ("2.10.0",), [("2.9.1", "2.10.0")]),
        (("2.10.0",), ("2.9.1", "2.10.0"), [("2.10.0", "2.9.1")]),
        (("2.9.1", "2.10.0"), ("2.11.0",), [("2.9.1", "2.11.0"), ("2.10.0", "2.11.0")]),
        (("2.9.1", "2.10.0"), ("2.11.0", "2.12.0"), [("2.9.1", "2.11.0"), ("2.10.0", "2.12.0")]),
        (("1", "2", "3"), ("4", "5"), [("1, 2, 3", "4, 5")]),
        (("2.9.1", "2.10.0"), (), [("2.9.1", ""), ("2.10.0", "")]),
    ],
)
def test_of_several_versions_those_that_left_are_set_against_those_that_came(old, new, changes):
    """As in a lock with extras that exclude each other."""
    locks = [
        read_lock("uv.lock", "\n".join(f'[[package]]\nname = "torch"\nversion = "{each}"' for each in listed).encode())
        for listed in (old, new)
    ]
    assert compare_locks(*locks) == tuple(VersionChange("torch", *pair) for pair in changes)


def test_locks_compare_by_name_without_the_project_itself():
    new = OLD.replace("0.11.0", "0.18.0").replace("2.9.1", "2.9.2").replace('"demo"', '"renamed"')
    changes = compare_locks(read_lock("uv.lock", OLD.encode()), read_lock("uv.lock", new.encode()))
    assert changes == (VersionChange("torch", "2.9.1", "2.9.2"), VersionChange("vllm", "0.11.0", "0.18.0"))
    assert versions(read_lock("uv.lock", OLD.encode()))["torch"] == "2.9.1, 2.10.0"


def test_equal_locks_do_not_differ_and_local_labels_are_no_change():
    old, new = b"torch==2.9.1+cpu\nnumpy==2.0\n", b"torch==2.9.1\nnumpy==2.0\npeft==0.18\n"
    assert compare_locks(read_lock("a.txt", old), read_lock("a.txt", old)) == ()
    assert compare_locks(read_lock("a.txt", old), read_lock("a.txt", new)) == (VersionChange("peft", "", "0.18"),)


def test_overrides_that_new_metadata_contradicts_are_listed(tmp_path):
    text = '[tool.uv]\noverride-dependencies = ["transformers==5.3.0", "torch>=2.9", "ray==2.0"]\n'
    (tmp_path / "pyproject.toml").write_text(text)
    metadata = {
        ("vllm", "0.18.0"): [
            "transformers<5,>=4.56",
            "torch==2.10.0",
            "ray>=3; extra == 'ray'",
            "ray>=1",
            "not a requirement !!",
        ]
    }
    found = contradicted_overrides(find_declarations(tmp_path), metadata, {"torch": "2.11.0"})
    assert [text.partition("the override makes ")[2].partition(": ")[0] for text in found] == [
        "transformers 5.3.0, and vllm 0.18.0 requires transformers<5,>=4.56",
        "torch 2.11.0, and vllm 0.18.0 requires torch==2.10.0",
    ]
