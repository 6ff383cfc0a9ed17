"""Reading a page: its head as YAML, strictly, and its body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.harness.sources.records import Page

if TYPE_CHECKING:
    from pathlib import Path

_FENCE = "---"


class PageError(ValueError):
    """The file is no page; `line` is where."""

    def __init__(self, message: str, line: int = 1) -> None:
        """line: 1-based."""
        super().__init__(message)
        self.line = line


def read_page(root: Path, path: str) -> Page:
    """The page at `root/path`. Raises PageError when it is not UTF-8, has no head, or a head that clients would read
    differently: broken YAML, a key given twice, anything but a mapping."""
    try:
        text = (root / path).read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PageError(f"cannot be read: {error}") from error
    lines = text.split("\n")
    if lines[0] != _FENCE or _FENCE not in lines[1:]:
        raise PageError("no head: the file has to begin with `---`, YAML, `---`")
    end = lines.index(_FENCE, 1)
    head = "\n".join(lines[1:end]) + "\n"
    body = "\n".join(lines[end + 1 :])
    return Page(path, head, _mapping(head), body, end + 2)


def _mapping(head: str) -> dict[str, Any]:
    import yaml

    try:
        node = yaml.compose(head, Loader=yaml.SafeLoader)
        values = yaml.safe_load(head)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or "broken"
        raise PageError(f"the head is no YAML: {said}", (mark.line if mark else 0) + 2) from error
    if not isinstance(values, dict) or not isinstance(node, yaml.MappingNode):
        raise PageError("the head is no mapping of keys to values")
    seen = set()
    for key, _ in node.value:
        if key.value in seen:
            raise PageError(f"{key.value} is given twice", key.start_mark.line + 2)
        seen.add(key.value)
    return values
