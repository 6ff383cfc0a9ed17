"""The two metadata files of a distribution that matter here, read forgivingly: METADATA (or PKG-INFO) and
entry_points.txt. Whatever they contain, reading them never raises."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def requirements(metadata: bytes) -> tuple[str, ...]:
    """`Requires-Dist` lines, as written."""
    return tuple(" ".join(value.split()) for value in headers(metadata, "Requires-Dist"))


def headers(metadata: bytes, name: str) -> Sequence[str]:
    """All values of a header. The body (the long description) is not looked at."""
    from email.parser import HeaderParser

    message = HeaderParser().parsestr(metadata.decode("utf-8", "replace"), headersonly=True)
    return [str(value).strip() for value in message.get_all(name, [])]


def console_scripts(entry_points: bytes) -> dict[str, str]:
    """Console scripts by name: {"vllm": "vllm.entrypoints.cli.main:main"}. Extras behind them are left out."""
    found: dict[str, str] = {}
    section = ""
    for line in entry_points.decode("utf-8", "replace").splitlines():
        text = line.strip()
        if text.startswith("[") and text.endswith("]"):
            section = text[1:-1].strip()
        elif section == "console_scripts" and "=" in text and not text.startswith(("#", ";")):
            name, _, target = text.partition("=")
            found[name.strip()] = target.partition("[")[0].strip()
    return found
