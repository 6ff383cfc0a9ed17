"""A template folder as a git tree: its hash without git, and its objects kept in the repository.

    tree_hash(folder)                              # "9c1b...", equal to `git rev-parse HEAD:templates/reward`
    store_tree(repository, folder)                 # the same hash; the content can be had back from now on
    restore_tree(repository, tree, into)           # False when git does not know that tree (any more)

This is what makes updates possible from templates that were never committed: the stored tree is the merge base. Content
is stored byte for byte: no line-ending conversion, no filters, no .gitignore, no index. Compiled Python files
and other litter are no part of a template.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tooling.cli.errors import UsageError, WriteError
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from git import Git

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
        """(mode, name, hash) in git's order, which compares a folder as if its name ended in "/"."""
        own = [(mode, name, digest) for name, (mode, digest) in self.files.items()]
        below = [(_FOLDER, name, folder.digest(algorithm)) for name, folder in self.folders.items()]
        return sorted(own + below, key=lambda entry: os.fsencode(entry[1] + "/" * (entry[0] == _FOLDER)))

    def digest(self, algorithm: str) -> str:
        """Hash of the tree object."""
        packed = b"".join(
            f"{mode} ".encode() + os.fsencode(name) + b"\0" + bytes.fromhex(digest)
            for mode, name, digest in self.entries(algorithm)
        )
        return _object_hash("tree", packed, algorithm)

    def deepest_first(self) -> Iterator[_Folder]:
        """This folder after everything below it."""
        for folder in self.folders.values():
            yield from folder.deepest_first()
        yield self


def template_files(folder: Path) -> dict[str, Path]:
    """The files of a template by their path inside it, sorted; litter (compiled Python files, caches) is left out.

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
    """What git would call the folder's content; starts no process. `algorithm`: see `hash_algorithm`.

    Raises UsageError as `template_files`.
    """
    return _scan(folder, algorithm)[0].digest(algorithm)


def hash_algorithm(repository: Repository) -> str:
    """What the repository names objects with: "sha1" or "sha256". Reads its configuration as text."""
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
    from git.exc import GitError

    algorithm = hash_algorithm(repository)
    tree, files = _scan(folder, algorithm)
    expected = tree.digest(algorithm)
    try:
        with repository.git() as repo:
            if not _in_head(repo.git, repository, folder, expected):
                _write_objects(repo.git, tree, files, algorithm)
                repo.git.update_ref(f"{REFERENCES}/{expected}", expected)
    except GitError as error:
        said = str(getattr(error, "stderr", "")).strip() or str(error)
        message = f"git could not store the template: {said}"
        raise WriteError(message, where=os.fspath(folder), fix="run `git fsck`, check free space and rights") from error
    return expected


def restore_tree(repository: Repository, tree: str, into: Path) -> bool:
    """Write a stored tree below `into`, byte for byte; False when the repository does not have all of it.

    Raises UsageError for a hash that is none, and for a tree with links or unsafe names.
    """
    if not _HASH.fullmatch(tree):
        raise UsageError(f"{tree!r} is no hash of a git tree", fix="restore the receipt from git")
    from git.exc import GitError

    try:
        with repository.git() as repo:
            repo.git.update_environment(GIT_NO_LAZY_FETCH="1")  # a partial clone must not go to the network here
            listed = _output(repo.git, ["git", "ls-tree", "-r", "-z", "--full-tree", tree])
            entries = [_entry(line) for line in listed.split(b"\0") if line]
            contents = _read_objects(repo.git, [digest for _, digest, _ in entries])
    except GitError:
        return False
    if contents is None:
        return False
    for (mode, _, path), content in zip(entries, contents, strict=True):
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


def _in_head(git: Git, repository: Repository, folder: Path, tree: str) -> bool:
    place = folder.resolve()
    if not place.is_relative_to(repository.root.resolve()):
        return False
    path = place.relative_to(repository.root.resolve()).as_posix()
    status, found, _ = git.execute(
        ["git", "rev-parse", "--verify", "--quiet", f"HEAD:{'' if path == '.' else path}"],
        with_extended_output=True,
        with_exceptions=False,
    )
    return status == 0 and found == tree


def _write_objects(git: Git, tree: _Folder, files: list[Path], algorithm: str) -> None:
    """All blobs with one process, all trees with another. Git says what it stored: both sides must agree."""
    names = b"".join(os.fsencode(path.resolve()) + b"\n" for path in files)
    stored = _output(git, ["git", "hash-object", "-w", "--no-filters", "--stdin-paths"], names).decode().split()
    levels = list(tree.deepest_first())
    if set(stored) != {digest for level in levels for _, digest in level.files.values()}:
        raise WriteError("changed while it was stored", where="template", fix="run the command again")
    listing = b"\0".join(b"".join(_mktree_line(entry) for entry in level.entries(algorithm)) for level in levels)
    made = _output(git, ["git", "mktree", "-z", "--batch"], listing + b"\0").decode().split()
    if made != [level.digest(algorithm) for level in levels]:
        raise WriteError("git names the template's tree otherwise", where="template", fix="report this")


def _mktree_line(entry: tuple[str, str, str]) -> bytes:
    mode, name, digest = entry
    kind = "tree" if mode == _FOLDER else "blob"
    return f"{mode} {kind} {digest}\t".encode() + os.fsencode(name) + b"\0"


def _entry(line: bytes) -> tuple[str, str, str]:
    """(mode, hash, safe path) of a line of `git ls-tree`."""
    about, _, name = line.partition(b"\t")
    mode, _, digest = about.decode("ascii").split()
    path = os.fsdecode(name)
    if mode not in {_FILE, _PROGRAM}:
        raise UsageError(f"a stored template holds a link: {path!r}", fix="restore the receipt from git")
    return mode, digest, safe_path(path)


def _read_objects(git: Git, digests: list[str]) -> list[bytes] | None:
    """Content of blobs in their order; None when one is missing."""
    if not digests:
        return []
    output = _output(git, ["git", "cat-file", "--batch"], "".join(f"{digest}\n" for digest in digests).encode())
    contents, position = [], 0
    for _ in digests:
        end = output.index(b"\n", position)
        about = output[position:end].split()
        if len(about) != 3:
            return None  # "<hash> missing"
        size = int(about[2])
        contents.append(output[end + 1 : end + 1 + size])
        position = end + 1 + size + 1
    return contents


def _output(git: Git, command: list[str], standard_input: bytes = b"") -> bytes:
    """Standard output of a git command, byte for byte. Raises GitCommandError when it fails."""
    from tempfile import TemporaryFile

    with TemporaryFile() as given:
        given.write(standard_input)
        given.seek(0)
        return _bytes(git, command, given)


def _bytes(git: Git, command: list[str], given: BinaryIO) -> bytes:
    output = git.execute(command, istream=given, stdout_as_string=False, strip_newline_in_stdout=False)
    return output if isinstance(output, bytes) else os.fsencode(str(output))
