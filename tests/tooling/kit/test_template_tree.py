"""Template trees: hashes as git has them, and content that can be had back after edits and garbage collection."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tooling.cli.errors import UsageError, WriteError
from tooling.cli.git import find_repository
from tooling.kit.template import tree as template_tree
from tooling.kit.template.tree import REFERENCES, hash_algorithm, restore_tree, store_tree, template_files, tree_hash

if TYPE_CHECKING:
    from pathlib import Path

    from tooling.cli.git import Repository

CONTENT = {
    "copier.yml": b"style: exact\n",
    "template.toml": b'name = "reward"\r\n',
    "template/{{ package_path }}/{{ '{{ snake }}' }}.py.jinja": b"x = 1\r\ny = 2\n",
    "template/data.bin": bytes(range(256)),
    "template/empty": b"",
    "template/a.b/c": b"1",
    "template/a/c": b"2",
    "template/a-b": b"3",
    'template/"quoted" é': b"4",
    "template/run.sh": b"#!/bin/sh\n",
}


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(params=["sha1", "sha256"])
def repository(request, tmp_path) -> Repository:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q", f"--object-format={request.param}")
    (root / "README").write_text("x\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "start")
    found = find_repository(root)
    assert hash_algorithm(found) == request.param
    return found


def template(folder: Path, content: dict[str, bytes] | None = None) -> Path:
    for path, source in (CONTENT if content is None else content).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source)
        target.chmod(0o755 if path.endswith(".sh") else 0o644)
    return folder


def content_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_hash_is_git_s(repository):
    folder = template(repository.root / "templates/reward")
    git(repository.root, "add", ".")
    git(repository.root, "commit", "-q", "-m", "template")
    expected = git(repository.root, "rev-parse", "HEAD:templates/reward")
    assert tree_hash(folder, algorithm=hash_algorithm(repository)) == expected


def test_the_hash_sees_content_names_and_modes_not_litter(tmp_path):
    folder = template(tmp_path)
    hashes = [tree_hash(folder)]
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").write_bytes(b"x")
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "template/none").mkdir()  # git knows no empty folders
    assert tree_hash(folder) == hashes[0]
    (folder / "template/empty").chmod(0o755)
    hashes.append(tree_hash(folder))
    (folder / "template/empty").write_bytes(b"x")
    hashes.append(tree_hash(folder))
    (folder / "template/empty").rename(folder / "template/full")
    hashes.append(tree_hash(folder))
    assert len(set(hashes)) == 4


def test_an_uncommitted_template_survives_edits_and_garbage_collection(repository, tmp_path):
    folder = template(repository.root / "templates/reward")
    tree = store_tree(repository, folder)
    assert tree == tree_hash(folder, algorithm=hash_algorithm(repository))
    (folder / "copier.yml").write_bytes(b"edited\n")
    (folder / "template/data.bin").unlink()
    git(repository.root, "reflog", "expire", "--expire=now", "--all")
    git(repository.root, "gc", "-q", "--prune=now")
    assert restore_tree(repository, tree, tmp_path / "back")
    assert content_of(tmp_path / "back") == CONTENT
    assert os.access(tmp_path / "back/template/run.sh", os.X_OK)
    assert tree_hash(tmp_path / "back", algorithm=hash_algorithm(repository)) == tree
    git(repository.root, "fsck", "--strict")


def test_storing_touches_neither_index_nor_work_tree(repository):
    folder = template(repository.root / "templates/reward")
    (repository.root / "staged").write_text("x")
    git(repository.root, "add", "staged")
    index, status = (repository.git_dir / "index").read_bytes(), git(repository.root, "status", "--porcelain")
    store_tree(repository, folder)
    assert (repository.git_dir / "index").read_bytes() == index
    assert git(repository.root, "status", "--porcelain") == status


def test_what_git_ignores_and_converts_is_stored_as_it_is(repository, tmp_path):
    (repository.root / ".gitignore").write_text("*.py.jinja\ntemplates/\n")
    (repository.root / ".gitattributes").write_text("* text=auto eol=lf\n*.toml filter=broken ident\n")
    git(repository.root, "config", "core.autocrlf", "input")
    git(repository.root, "config", "filter.broken.clean", "false")
    tree = store_tree(repository, template(repository.root / "templates/reward"))
    assert restore_tree(repository, tree, tmp_path / "back")
    assert content_of(tmp_path / "back") == CONTENT


def test_a_committed_template_needs_no_reference(repository, tmp_path):
    folder = template(repository.root / "templates/reward")
    git(repository.root, "add", ".")
    git(repository.root, "commit", "-q", "-m", "template")
    tree = store_tree(repository, folder)
    assert git(repository.root, "for-each-ref", REFERENCES) == ""
    (folder / "copier.yml").write_bytes(b"edited\n")
    edited = store_tree(repository, folder)
    assert git(repository.root, "for-each-ref", "--format=%(refname)", REFERENCES) == f"{REFERENCES}/{edited}"
    assert restore_tree(repository, tree, tmp_path / "back")
    assert content_of(tmp_path / "back") == CONTENT


def test_storing_again_is_no_change(repository):
    folder = template(repository.root / "templates/reward")
    assert store_tree(repository, folder) == store_tree(repository, folder)


def test_a_template_outside_the_repository_is_stored_too(repository, tmp_path):
    tree = store_tree(repository, template(tmp_path / "package"))
    assert restore_tree(repository, tree, tmp_path / "back")
    assert content_of(tmp_path / "back") == CONTENT


def test_before_the_first_commit_it_works(tmp_path):
    git(tmp_path, "init", "-q")
    repository = find_repository(tmp_path)
    tree = store_tree(repository, template(tmp_path / "templates/reward"))
    assert restore_tree(repository, tree, tmp_path / "back")


def test_linked_work_trees_share_what_is_stored(repository, tmp_path):
    git(repository.root, "worktree", "add", "-q", str(tmp_path / "linked"))
    linked = find_repository(tmp_path / "linked")
    assert hash_algorithm(linked) == hash_algorithm(repository)
    tree = store_tree(linked, template(tmp_path / "linked/templates/reward"))
    assert restore_tree(repository, tree, tmp_path / "back")


def test_what_git_does_not_know_is_not_restored(repository, tmp_path):
    unknown = tree_hash(template(tmp_path / "never"), algorithm=hash_algorithm(repository))
    assert not restore_tree(repository, unknown, tmp_path / "back")
    blob = git(repository.root, "rev-parse", "HEAD:README")
    assert not restore_tree(repository, blob, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_tree_that_lost_a_file_is_not_restored_in_part(repository, tmp_path):
    tree = store_tree(repository, template(repository.root / "templates/reward"))
    blob = git(repository.root, "rev-parse", f"{tree}:copier.yml")
    (repository.git_dir / "objects" / blob[:2] / blob[2:]).unlink()
    assert not restore_tree(repository, tree, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("tree", ["", "HEAD", "--output=/tmp/x", "a" * 39, "A" * 40, "0" * 40 + "\n"])
def test_only_hashes_are_taken(repository, tmp_path, tree):
    with pytest.raises(UsageError, match="not a hash"):
        restore_tree(repository, tree, tmp_path / "back")


def test_a_stored_link_is_refused(repository, tmp_path):
    (repository.root / "link").symlink_to("/etc/passwd")
    git(repository.root, "add", "link")
    with pytest.raises(UsageError, match="link"):
        restore_tree(repository, git(repository.root, "write-tree"), tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_links_and_pipes_are_no_template(tmp_path):
    folder = template(tmp_path)
    (folder / "template/link").symlink_to("a/c")
    with pytest.raises(UsageError, match="links"):
        tree_hash(folder)
    (folder / "template/link").unlink()
    os.mkfifo(folder / "template/pipe")
    with pytest.raises(UsageError, match="only files"):
        template_files(folder)
    with pytest.raises(UsageError, match="not a folder"):
        template_files(folder / "missing")


def test_a_file_that_changes_meanwhile_is_noticed(repository, monkeypatch):
    folder = template(repository.root / "templates/reward")
    write_objects = template_tree._write_objects

    def edited_first(*arguments):
        (folder / "copier.yml").write_bytes(b"somebody else\n")
        return write_objects(*arguments)

    monkeypatch.setattr(template_tree, "_write_objects", edited_first)
    with pytest.raises(WriteError, match="changed while"):
        store_tree(repository, folder)
    assert git(repository.root, "for-each-ref", REFERENCES) == ""


def test_objects_that_cannot_be_written_are_an_error(repository):
    folder = template(repository.root / "templates/reward")
    objects = repository.git_dir / "objects"
    objects.rename(repository.git_dir / "elsewhere")
    objects.write_text("in the way\n")
    with pytest.raises(WriteError, match="could not store"):
        store_tree(repository, folder)
