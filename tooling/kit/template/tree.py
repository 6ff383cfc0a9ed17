"""A template folder as a git tree: its hash without git, and its objects kept in the repository.

    tree_hash(folder)                              # "9c1b...", equal to `git rev-parse HEAD:templates/reward`
    store_tree(repository, folder)                 # the same hash; the content can be restored from now on
    restore_tree(repository, tree, into)           # False when git does not know that tree (any more)

This is what makes updates possible from templates that were never committed: the stored tree is the merge base. Content
is stored byte for byte: no line-ending conversion, no filters, no .gitignore, no index. Compiled Python files
and other litter are not part of a template.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tooling.cli.errors import UsageError, WriteError
from tooling.cli.git import Git
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.cli.git import Repository

REFERENCES = "refs/areal-new/templates"
"""Below it one reference per stored tree, so that garbage collection keeps it."""
_LITTER_FOLDERS = frozenset({".git", ".mypy_cache", ".ruff_cache", "__pycache__"})
_LITTER_FILES = frozenset({".DS_Store", ".git", "Thumbs.db"})
_LITTER_SUFFIXES = (".pyc", ".pyo", "~")
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FILE, _PROGRAM, _FOLDER = "100644", "100755", "40000"


@dataclass(slots=True)
class _Folder:
    """One level of the tree while it is built."""

    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (mode, hash)."""
    folders: dict[str, _Folder] = field(default_factory=dict)

    def entries(self, algorithm: str) -> list[tuple[str, str, str]]:
        """Return (mode, name, hash) in git's order, which compares a folder as if its name ended in "/"."""
        own = [(mode, name, digest) for name, (mode, digest) in self.files.items()]
        below = [(_FOLDER, name, folder.digest(algorithm)) for name, folder in self.folders.items()]
        return sorted(own + below, key=lambda entry: os.fsencode(entry[1] + "/" * (entry[0] == _FOLDER)))

    def digest(self, algorithm: str) -> str:
        """Return the hash of the tree object."""
        packed = b"".join(
            f"{mode} ".encode() + os.fsencode(name) + b"\0" + bytes.fromhex(digest)
            for mode, name, digest in self.entries(algorithm)
        )
        return _object_hash("tree", packed, algorithm)

    def deepest_first(self) -> Iterator[_Folder]:
        """Yield this folder after everything below it."""
        for folder in self.folders.values():
            yield from folder.deepest_first()
        yield self


def template_files(folder: Path) -> dict[str, Path]:
    """Return the files of a template by their path inside it, sorted, without litter (compiled Python files, caches).

    Raises UsageError for links, devices, and names that no repository should hold; and when the folder cannot be read.
    """
    if not folder.is_dir():
        raise UsageError("is not a folder", where=os.fspath(folder), fix="name the folder of a template")
    return dict(sorted(_walk(folder, "")))


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=os.fspath(folder)) from error
    for entry in entries:
        where = entry.path
        if entry.is_symlink():
            raise UsageError("a template may not hold links", where=where, fix="replace the link by what it points to")
        if entry.is_dir():
            if entry.name not in _LITTER_FOLDERS:
                yield from _walk(Path(entry.path), f"{prefix}{entry.name}/")
        elif entry.name not in _LITTER_FILES and not entry.name.endswith(_LITTER_SUFFIXES):
            if not entry.is_file():
                raise UsageError("a template may hold only files and folders", where=where, fix="remove it")
            yield safe_path(f"{prefix}{entry.name}"), Path(entry.path)


def tree_hash(folder: Path, *, algorithm: str = "sha1") -> str:
    """Return what git would call the folder's content; starts no process. `algorithm`: see `hash_algorithm`.

    Raises UsageError as `template_files`.
    """
    return _scan(folder, algorithm)[0].digest(algorithm)


def hash_algorithm(repository: Repository) -> str:
    """Return what the repository names objects with: "sha1" or "sha256". Reads its configuration as text."""
    try:
        config = (repository.common_dir / "config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "sha1"
    return "sha256" if re.search(r"^\s*objectformat\s*=\s*sha256\s*$", config, re.MULTILINE | re.IGNORECASE) else "sha1"


def store_tree(repository: Repository, folder: Path) -> str:
    """Write the folder's content into the repository's objects and return the tree's hash.

    Unless HEAD holds that very tree at that very place, a reference keeps it from garbage collection. Neither the index
    nor the work tree is touched. Raises UsageError as `template_files`, and WriteError when git cannot store it.
    """
    algorithm, git = hash_algorithm(repository), Git(repository.root)
    tree, files = _scan(folder, algorithm)
    expected = tree.digest(algorithm)
    place, root = folder.resolve(), repository.root.resolve()
    if place.is_relative_to(root):
        path = place.relative_to(root).as_posix()
        held = git.attempt("rev-parse", "--verify", "--quiet", f"HEAD:{'' if path == '.' else path}")
        if held.output.decode().strip() == expected:
            return expected
    try:
        _write_objects(git, tree, files, algorithm)
        git.run("update-ref", f"{REFERENCES}/{expected}", expected)
    except UsageError as error:
        message = f"git could not store the template: {error.message}"
        raise WriteError(message, where=os.fspath(folder), fix="run `git fsck`, check free space and rights") from error
    return expected


def _write_objects(git: Git, tree: _Folder, files: list[Path], algorithm: str) -> None:
    """Write all blobs with one process, all trees with another. Git says what it stored: both sides must agree."""
    names = b"".join(os.fsencode(path.resolve()) + b"\n" for path in files)
    stored = git.run("hash-object", "-w", "--no-filters", "--stdin-paths", given=names).decode().split()
    levels = list(tree.deepest_first())
    if set(stored) != {digest for level in levels for _, digest in level.files.values()}:
        raise WriteError("changed while it was stored", where="template", fix="run the command again")
    listing = b"".join(
        b"".join(
            f"{mode} {'tree' if mode == _FOLDER else 'blob'} {digest}\t".encode() + os.fsencode(name) + b"\0"
            for mode, name, digest in level.entries(algorithm)
        )
        + b"\0"
        for level in levels
    )
    made = git.run("mktree", "-z", "--batch", given=listing).decode().split()
    if made != [level.digest(algorithm) for level in levels]:
        raise WriteError("git names the template's tree otherwise", where="template", fix="report this")


def restore_tree(repository: Repository, tree: str, into: Path) -> bool:
    """Write a stored tree below `into`, byte for byte; False when the repository does not have all of it.

    Raises UsageError for what is not a hash, and for a tree with links or unsafe names.
    """
    if not _HASH.fullmatch(tree):
        raise UsageError(f"{tree!r} is not a hash of a git tree", fix="restore the receipt from git")
    git = Git(repository.root)
    listed = git.attempt("ls-tree", "-r", "-z", "--full-tree", tree)
    if listed.status:
        return False
    entries = []
    for line in listed.output.split(b"\0")[:-1]:  # b"100644 blob 1a2b...\ttemplate/x.py.jinja"
        about, _, name = line.partition(b"\t")
        mode, _, digest = about.decode("ascii").split()
        path = os.fsdecode(name)
        if mode not in {_FILE, _PROGRAM}:
            raise UsageError(f"a stored template holds a link: {path!r}", fix="restore the receipt from git")
        entries.append((mode, digest, safe_path(path)))
    contents = git.blobs([digest for _, digest, _ in entries])
    if None in contents:
        return False
    for (mode, _, path), content in zip(entries, contents, strict=True):
        assert content is not None
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o755 if mode == _PROGRAM else 0o644)
    return True


def _scan(folder: Path, algorithm: str) -> tuple[_Folder, list[Path]]:
    root, files = _Folder(), list[Path]()
    for path, source in template_files(folder).items():
        *parents, name = path.split("/")
        level = root
        for parent in parents:
            level = level.folders.setdefault(parent, _Folder())
        mode = _PROGRAM if source.stat().st_mode & stat.S_IXUSR else _FILE
        level.files[name] = (mode, _object_hash("blob", source.read_bytes(), algorithm))
        files.append(source)
    return root, files


def _object_hash(kind: str, content: bytes, algorithm: str) -> str:
    return hashlib.new(algorithm, f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
