"""Find the traces and profiles that a run wrote (`areal.infra.metrics.windows`), for its page.

for one in find_recordings(Path("runs/math/grpo")):
    one.kind, one.file, one.first_step      # "trace", .../trace/step-000010.json, 10
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from areal.infra.metrics.windows import PROFILE_FOLDER, TRACE_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TRACE: Final = re.compile(r"step-(?P<first>\d+)(-\d+)?\.json")
_PROFILE: Final = re.compile(r"steps-(?P<first>\d+)-(?P<last>\d+)(-\d+)?\.(json\.gz|txt)")
_HOW: Final = (
    "Open ui.perfetto.dev in a browser (or chrome://tracing) and drag a .json or .json.gz file onto it: the file is "
    "read there and sent nowhere. A .txt file is the table of the costliest operations."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A file about what happened in some steps."""

    kind: str
    """"trace", "profile", or "table" for the text beside a profile."""
    file: Path
    first_step: int
    last_step: int | None
    """None where the name does not say it."""
    num_bytes: int

    def as_dict(self) -> dict[str, str | int | None]:
        """Return it as JSON values."""
        return {
            "kind": self.kind, "path": str(self.file), "first_step": self.first_step, "last_step": self.last_step,
            "bytes": self.num_bytes,
        }  # fmt: skip


def find_recordings(run_dir: Path) -> list[Recording]:
    """Return what the run recorded, traces first, in order of steps; unfinished files and those of others are none."""
    found = []
    for folder, pattern in ((TRACE_FOLDER, _TRACE), (PROFILE_FOLDER, _PROFILE)):
        for file in sorted((run_dir / folder).glob("step*")):
            match = pattern.fullmatch(file.name)
            if match is None or not file.is_file():
                continue
            last = match.groupdict().get("last")
            kind = "table" if file.suffix == ".txt" else folder
            found.append(
                Recording(
                    kind=kind, file=file, first_step=int(match["first"]), last_step=None if last is None else int(last),
                    num_bytes=file.stat().st_size,
                )
            )  # fmt: skip
    return found


def recordings_section(recordings: Sequence[Recording], page: Path) -> str:
    """Return the section of a page with links that are relative to it; "" without recordings."""
    if not recordings:
        return ""
    titles = {"trace": "trace", "profile": "profile of operations", "table": "costliest operations"}
    items = []
    for one in recordings:
        steps = {one.first_step: f"step {one.first_step}", None: f"from step {one.first_step}"}.get(
            one.last_step, f"steps {one.first_step} to {one.last_step}"
        )
        shown = os.path.relpath(one.file.resolve(), page.parent.resolve()).replace(os.sep, "/")
        name = escape(one.file.name, quote=True)
        link = f'<a href="{escape(quote(shown), quote=True)}" download="{name}">{escape(shown)}</a>'
        items.append(f"<li>{link} · {titles[one.kind]}, {steps} · {_size(one.num_bytes)}</li>")
    body = f'<p class="note">{escape(_HOW)}</p><ul class="files">{"".join(items)}</ul>'
    return f'<section id="recordings"><h2>Traces and profiles</h2>{body}</section>'


def _size(num_bytes: int) -> str:
    for unit, least in (("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= least:
            return f"{num_bytes / least:.1f} {unit}"
    return f"{num_bytes} bytes"
