"""Three-way merge of one file's bytes, by `git merge-file`. It touches no repository and no index.

three_way(pristine, on_disk, new_render, Labels("yours", "template before", "template now"))
-> Merged(b"...", conflicts=0)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tooling.cli.errors import ToolError, UsageError

_MOST_CONFLICTS = 127
"""Above it git's exit status means an error."""


_MARKERS = (
    re.compile(rb"^<{7} ", re.MULTILINE),
    re.compile(rb"^={7}\r?$", re.MULTILINE),
    re.compile(rb"^>{7} ", re.MULTILINE),
)
"""What the lines of a conflict begin with, in their order."""


class Labels(NamedTuple):
    """What the three sides are called in conflict markers."""

    ours: str = "yours"
    base: str = "template before"
    theirs: str = "template now"


class Merged(NamedTuple):
    """The result: `conflicts` counts the places that hold markers for a person (at most 127 are counted)."""

    content: bytes
    conflicts: int


def three_way(base: bytes, ours: bytes, theirs: bytes, labels: Labels | None = None) -> Merged:
    """Merge what changed from base to theirs into ours.

    Lines changed on both sides keep both, between markers in diff3 style. A file whose line ends were converted as a
    whole (CRLF) keeps its own. A binary file changed on both sides stays ours and counts as one conflict: it has no
    place for markers. Raises UsageError when there is no git.
    """
    if theirs in (base, ours):
        return Merged(ours, 0)
    if ours == base:
        return Merged(theirs, 0)
    if any(b"\0" in side for side in (base, ours, theirs)):
        return Merged(ours, 1)
    if _only_crlf(ours) and not _only_crlf(base):
        base, theirs = _to_crlf(base), _to_crlf(theirs)
        if theirs in (base, ours):
            return Merged(ours, 0)
        if ours == base:
            return Merged(theirs, 0)
    return _merge_file(base, ours, theirs, labels or Labels())


def has_markers(content: bytes) -> bool:
    """Whether a text holds a conflict that nobody resolved yet: lines of "<<<<<<< ", "=======" and ">>>>>>> "."""
    position = 0
    for marker in _MARKERS:
        found = marker.search(content, position)
        if found is None:
            return False
        position = found.end()
    return True


def _merge_file(base: bytes, ours: bytes, theirs: bytes, labels: Labels) -> Merged:
    import tempfile

    import git

    with tempfile.TemporaryDirectory(prefix="areal-new-merge-") as folder:
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(folder) / name).write_bytes(content)
        command = ["git", "merge-file", "-p", "--diff3"]
        for label in labels:
            command += ["-L", label]
        try:
            status, merged, problem = git.Git(folder).execute(
                [*command, "ours", "base", "theirs"],
                with_extended_output=True,
                with_exceptions=False,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
        except git.exc.GitCommandNotFound as error:
            raise UsageError("there is no `git` program", fix="install git, or put it on PATH") from error
    if not 0 <= status <= _MOST_CONFLICTS or not isinstance(merged, bytes):
        raise ToolError(f"git merge-file failed with status {status}: {problem}")
    return Merged(merged, status)


def _only_crlf(content: bytes) -> bool:
    """Whether there are line ends and all of them are CRLF."""
    return b"\n" in content and content.count(b"\n") == content.count(b"\r\n")


def _to_crlf(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
