"""A plan is a value: reads fall through once, writes stay in memory, and what cannot be written is refused early."""

from __future__ import annotations

import os

import pytest

from tooling.cli.errors import ConflictError, UsageError, WriteError
from tooling.kit.change.plan import PathChange, Plan, safe_path


def test_planning_writes_nothing_and_reads_what_it_wrote(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"old\n")
    plan = Plan(tmp_path)
    plan.write("a.txt", b"new\n", reason="why")
    plan.write("sub/b.txt", b"b\n", reason="because")
    plan.delete("gone.txt", reason="never was there")
    assert (plan.read("a.txt"), plan.read("sub/b.txt"), plan.read("gone.txt")) == (b"new\n", b"b\n", None)
    assert plan.changes == (
        PathChange("a.txt", b"old\n", b"new\n", "why"),
        PathChange("sub/b.txt", None, b"b\n", "because"),
    )
    assert [change.action for change in plan.changes] == ["modify", "create"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_bytes() == b"old\n"


def test_the_bytes_that_are_there_already_are_no_change(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"same")
    plan = Plan(tmp_path)
    plan.write("a.txt", b"same", reason="")
    plan.write("b.txt", b"new", reason="")
    plan.delete("b.txt", reason="second thoughts")
    assert not plan
    assert plan.changes == ()


def test_the_disk_is_read_once_so_that_a_later_edit_is_noticed_when_applying(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first")
    plan = Plan(tmp_path)
    assert plan.read("a.txt") == b"first"
    (tmp_path / "a.txt").write_bytes(b"second")
    plan.delete("a.txt", reason="")
    assert plan.changes[0].before == b"first"


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "/etc/passwd",
        "../outside",
        "a/../../b",
        "a\\b",
        "C:/x",
        ".git/config",
        "sub/.GIT/hooks/pre-commit",
        ".git./config",
        ".git /config",
        "GIT~1/config",
        "a\nb",
        "a\0b",
        "a\x1b[31mb",
        "a\ud800b",
    ],
)
def test_paths_that_leave_the_repository_or_hide_something_are_refused(tmp_path, path):
    for attempt in (safe_path, Plan(tmp_path).read):
        with pytest.raises(UsageError, match="unsafe path"):
            attempt(path)


def test_a_path_has_one_normal_form(tmp_path):
    assert safe_path("a//./b/") == "a/b"
    plan = Plan(tmp_path)
    plan.write("a//b", b"1", reason="")
    plan.write("a/b", b"2", reason="")
    assert [(change.path, change.after) for change in plan.changes] == [("a/b", b"2")]
    assert safe_path(".gitignore") == ".gitignore"


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("pkg/Gsm8k.py", "pkg/gsm8k.py", "only in case"),
        ("Pkg/a.py", "pkg/A.py", "only in case"),
        ("STRASSE", "straße", "only in case"),
        ("a", "a/b", "folder of the other"),
        ("a/b/c", "A/b", "folder of the other"),
    ],
)
def test_files_that_no_disk_or_not_every_disk_can_hold_together_are_refused(tmp_path, first, second, message):
    plan = Plan(tmp_path)
    plan.write(first, b"1", reason="")
    with pytest.raises(ConflictError, match=message):
        plan.write(second, b"2", reason="")
    plan.delete(first, reason="")
    plan.write(second, b"2", reason="")
    assert [change.path for change in plan.changes] == [second]


def test_names_that_only_begin_alike_do_not_collide(tmp_path):
    plan = Plan(tmp_path)
    for path in ("a", "ab", "a.b/c", "a-b/c"):
        plan.write(path, b"", reason="")
    assert len(plan.changes) == 4


def test_links_folders_and_special_files_are_never_read_or_replaced(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "link").symlink_to(outside / "x")
    (root / "linked_folder").symlink_to(outside)
    (root / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(root / "pipe")
    (root / "file").write_bytes(b"")
    expected = {
        "link": "symbolic link",
        "linked_folder/x": "symbolic link",
        "linked_folder/new": "symbolic link",
        "dangling": "symbolic link",
        "folder": "not a regular file",
        "pipe": "not a regular file",
        "file/below": "expected a folder",
    }
    for path, message in expected.items():
        with pytest.raises(ConflictError, match=message) as caught:
            Plan(root).write(path, b"x", reason="")
        assert caught.value.where == path
    assert (outside / "x").read_bytes() == b"secret"


def test_a_name_that_the_disk_cannot_hold_is_an_error_with_its_path(tmp_path):
    name = "x" * 300
    with pytest.raises(WriteError, match="File name too long") as caught:
        Plan(tmp_path).read(name)
    assert caught.value.where == name


def test_a_plan_made_elsewhere_keeps_its_own_befores(tmp_path):
    changes = (PathChange("a", b"1", None, "x"), PathChange("b", None, b"2", "y"))
    assert Plan.from_changes(tmp_path, changes).changes == changes
    with pytest.raises(UsageError, match="twice"):
        Plan.from_changes(tmp_path, [changes[0], PathChange("./a", None, b"", "z")])
