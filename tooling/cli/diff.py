"""Shows the change of one file as a diff that `git apply` takes.

unified_diff(change)                       # "diff --git a/x b/x ..."
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing import Any

_NO_NEWLINE = "\\ No newline at end of file\n"


class FileChange(Protocol):
    """What a report shows of a changed file (`tooling.kit.change.plan.PathChange`)."""

    @property
    def path(self) -> str:
        """Relative to the repository root."""

    @property
    def action(self) -> Any:
        """Either "create", "modify" or "delete"."""

    @property
    def reason(self) -> str:
        """What the change is for."""

    @property
    def before(self) -> bytes | None:
        """Content; None where the file does not exist."""

    @property
    def after(self) -> bytes | None:
        """Content; None where the file does not exist."""


def unified_diff(change: FileChange) -> str:
    """Return one file's change in git's format, with three lines of context.

    Content that is not UTF-8 text becomes one line that says so (`git apply` cannot take that one); line endings are
    kept as they are.
    """
    from difflib import unified_diff as difference

    names = f"diff --git {_quoted(f'a/{change.path}', tab=False)} {_quoted(f'b/{change.path}', tab=False)}\n"
    modes = {"create": "new file mode 100644\n", "delete": "deleted file mode 100644\n", "modify": ""}
    header = names + modes[change.action]
    before, after = _decoded(change.before), _decoded(change.after)
    if before is None or after is None:
        return f"{header}Binary file {change.path} differs\n"
    lines = list(difference(_lines(before), _lines(after)))[2:]
    if not lines:  # an empty file is created or deleted: git wants the header alone
        return header
    hunks = "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)
    old = "/dev/null" if change.before is None else _quoted(f"a/{change.path}")
    new = "/dev/null" if change.after is None else _quoted(f"b/{change.path}")
    return f"{header}--- {old}\n+++ {new}\n{hunks}"


def _quoted(name: str, *, tab: bool = True) -> str:
    """Write a file name as git does: quoted where it holds a quote, followed by a tab where it holds a space."""
    if '"' in name:
        return '"' + name.replace('"', '\\"') + '"'
    return f"{name}\t" if tab and " " in name else name


def _decoded(content: bytes | None) -> str | None:
    """Return the text of a file ("" when it does not exist), None when it is not text."""
    if content is None:
        return ""
    try:
        return None if b"\0" in content else content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    """Return lines with their "\\n"; `splitlines` would also cut at form feeds and the like."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines
