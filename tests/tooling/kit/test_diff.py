"""Diffs are what `git apply` takes, saved plans come back as they were, and damaged ones are refused."""

from __future__ import annotations

import copy
import json
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tooling.cli.diff import unified_diff
from tooling.cli.errors import UsageError
from tooling.cli.git import find_repository
from tooling.kit.change.plan import PathChange, Plan, sha256
from tooling.kit.change.plan_file import plan_document, plan_from_document
from tooling.kit.change.transaction import apply_plan, transaction


def tree(root):
    """Bytes of every file outside .git."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {
        name: path.read_bytes() for path in files if not (name := path.relative_to(root).as_posix()).startswith(".git/")
    }


def test_a_diff_shows_new_changed_and_deleted_files():
    changed = PathChange("a b.py", b"one\ntwo\n", b"one\nthree", "")
    assert unified_diff(changed) == (
        "diff --git a/a b.py b/a b.py\n--- a/a b.py\t\n+++ b/a b.py\t\n@@ -1,2 +1,2 @@\n"
        " one\n-two\n+three\n\\ No newline at end of file\n"
    )
    assert unified_diff(PathChange("n", None, b"1\n", "")) == (
        "diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+1\n"
    )
    assert unified_diff(PathChange("n", b"1\r\n", None, "")) == (
        "diff --git a/n b/n\ndeleted file mode 100644\n--- a/n\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\r\n"
    )


@pytest.mark.parametrize("content", [b"\x00\x01", b"\xff\xfe"])
def test_content_that_is_no_text_is_one_line(content):
    diff = unified_diff(PathChange("x.png", b"text", content, ""))
    assert diff.splitlines()[-1] == "Binary file x.png differs"
    assert len(diff.splitlines()) == 2


NAMES = ["a.py", "b c.txt", 'q"uote', "süß/ñ.md", "deep/er/x", "deep/y", "-dash", "tab.d/.hidden"]
LINES = st.sampled_from(
    ["", "x", "  y", "same", "-minus", "+plus", "\\ slash", "@@ -1 +1 @@", "ü\u2028z\x0c", "cr\r", "\ufeffb"]
)
TEXTS = st.builds(
    lambda lines, end: ("\n".join(lines) + end).encode(), st.lists(LINES, max_size=12), st.sampled_from(["", "\n"])
)
PAIRS = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.none() | TEXTS, st.none() | TEXTS), min_size=1)


@settings(max_examples=25)
@given(PAIRS)
def test_applying_a_plan_does_what_its_diff_does_to_git_apply(pairs):
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder).resolve() / "ours", Path(folder).resolve() / "theirs"
        for root in (ours, theirs):
            subprocess.run(["git", "init", "-q", "--template=", str(root)], check=True)
            for name, (before, _) in pairs.items():
                if before is not None:
                    (root / name).parent.mkdir(parents=True, exist_ok=True)
                    (root / name).write_bytes(before)
        plan = Plan(ours)
        for name, (_, after) in pairs.items():
            if after is None:
                plan.delete(name, reason="")
            else:
                plan.write(name, after, reason="")
        repository = find_repository(ours)
        with transaction(repository, wait_seconds=0, note=pytest.fail):
            apply_plan(repository, plan)
        assert tree(ours) == {name: after for name, (_, after) in pairs.items() if after is not None}
        patch = "".join(unified_diff(change) for change in plan.changes).encode()
        for check in (["--check"], []) if patch else ():
            command = ["git", "apply", *check]
            done = subprocess.run(command, cwd=theirs, input=patch, capture_output=True, check=False)
            assert done.returncode == 0, done.stderr.decode() + patch.decode()
        assert tree(theirs) == tree(ours)


CHANGES = [
    PathChange("a.py", b"old \xff bytes", b"new\r\n", "why"),
    PathChange("sub/b.py", None, b"", "created"),
    PathChange("z", "gone ü\n".encode(), None, "removed"),
]


def saved():
    """A document as it comes back from a file."""
    plan = Plan.from_changes(Path("anywhere"), CHANGES)
    return json.loads(json.dumps(plan_document(plan, extra={"kind": "reward"})))


def test_a_saved_plan_comes_back_as_it_was_for_any_root(tmp_path):
    document = saved()
    plan = plan_from_document(document, tmp_path)
    assert list(plan.changes) == CHANGES
    assert plan.root == tmp_path
    assert document["extra"] == {"kind": "reward"}
    assert document["changes"][0]["before"] == {"sha256": sha256(b"old \xff bytes"), "base64": "b2xkIP8gYnl0ZXM="}
    assert "anywhere" not in json.dumps(document)
    assert list(tmp_path.iterdir()) == []


def change_of(**fields):
    def damage(document):
        document["changes"][0].update(fields)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda document: document.update(version=2), "version 2"),
        (lambda document: document.update(format="terraform"), "'terraform'"),
        (lambda document: document.update(surprise=1), "exactly changes, extra"),
        (lambda document: document.pop("extra"), "exactly changes, extra"),
        (lambda document: document.update(changes={}), "not a list"),
        (lambda document: document["changes"].append("text"), "an object"),
        (lambda document: document["changes"].append(copy.deepcopy(document["changes"][0])), "twice"),
        (change_of(path="../outside"), "unsafe path"),
        (change_of(path="/etc/passwd"), "unsafe path"),
        (change_of(path=".git/hooks/pre-commit"), "unsafe path"),
        (change_of(path=7), "not text"),
        (change_of(action="create"), "does not describe"),
        (change_of(after={"sha256": sha256(b"x"), "text": "y"}), "recorded sha256"),
        (change_of(after={"sha256": sha256(b"x"), "text": 5}), "damaged"),
        (change_of(after={"sha256": sha256(b"x"), "text": "\ud800"}), "surrogates"),
        (change_of(after={"sha256": sha256(b"x"), "base64": "e?A="}), "damaged"),
        (change_of(after={"text": "y"}), "exactly sha256, text"),
        (change_of(after={"sha256": sha256(b"x"), "base64": "\xe9"}), "ASCII"),
        (change_of(after="y"), "exactly base64, sha256"),
    ],
)
def test_a_damaged_or_foreign_plan_is_refused(tmp_path, damage, message):
    document = saved()
    damage(document)
    with pytest.raises(UsageError, match=message):
        plan_from_document(document, tmp_path)


@pytest.mark.parametrize("document", [None, "text", {}])
def test_anything_else_is_no_plan(tmp_path, document):
    with pytest.raises(UsageError, match="damaged"):
        plan_from_document(document, tmp_path)
