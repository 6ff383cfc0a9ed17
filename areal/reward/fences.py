r"""Finds the program in an answer: the last fenced block, by the language that its fence names.

    last_block("First\n```python\nx = 1\n```\nno:\n```cpp\nint x;\n```", {"python", "py", "cpp"})  -> ("cpp", "int x;")
    last_block("```\nx = 1\n```", {"python"})                                                     -> ("", "x = 1")
    last_block("```python\nx = 1", {"python"})                          -> None: never closed, the answer was cut off

A block with a label that is wanted comes before one without label. Linear in the text, whatever a model writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

_FENCES: Final = ("```", "~~~")


def last_block(text: str, labels: Collection[str]) -> tuple[str, str] | None:
    """Return label (in lower case) and content of the last block whose label is in `labels`, else of the last one
    without label.

    None when there is neither, or when the last fence is never closed.
    """
    blocks: list[tuple[str, str]] = []
    fence, label = "", ""
    body: list[str] = []
    for line in text.splitlines():
        mark = line.strip()
        if not fence and mark.startswith(_FENCES):
            label = (mark.lstrip(mark[0]).split() or [""])[0].lower()
            fence = mark[: len(mark) - len(mark.lstrip(mark[0]))]
            body = []
        elif fence and mark.startswith(fence) and not mark.strip(fence[0]):
            blocks.append((label, "\n".join(body)))
            fence = ""
        elif fence:
            body.append(line)
    if fence:
        return None
    for wanted in (labels, ("",)):
        found = next((block for block in reversed(blocks) if block[0] in wanted), None)
        if found is not None:
            return found
    return None
