"""Minimal pairs as text: two versions of a package, a client, and what an audit must say about each of its lines.

A Markdown file holds many cases. Each is a heading and fenced blocks, whose info string says what they are:

    ## a keyword is renamed
    ```python old
    def f(*, size): ...
    ```
    ```python new
    def f(*, length): ...
    ```
    ```python client
    from up import f
    f(size=1)  # breaks: param-renamed
    ```

`old`, `new` and `both` may name a file ("old up/io.py"; default up/__init__.py), `client` too (default client.py).
A line `versions: 1.0 -> 2.0` or `allowed: >=2` before the first block overrides 1.0 -> 2.0 and no range.

Marks at the end of a client's line; a line without a mark must have no finding:

    # breaks: KIND [, KIND]     breaking; runs on old and raises on new, on this line
    # breaks: KIND [A]          ... but raises where another line says `# raises [A]`
    # likely: KIND              like `breaks`, and a warning will do: what the value is has to be inferred
    # silent: KIND - why        breaking without exception on this line: it does something else, or is never run
    # follows: KIND             breaking, because the import above is gone
    # warns: KIND               a warning; runs on both
    # masked: KIND              a warning, because a fallback or a type checker alone sees it
    # info: KIND                runs on both
    # safe                      no finding; runs on both, where it is reached
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
HARD = FOLDER / "hard"
"""Cases whose answer has to be inferred, half of them held out: values that nobody typed, keywords that come from
elsewhere, and what looks like a breakage and is none."""
_HEADING = re.compile(r"^## +(.+)$")
_FENCE = re.compile(r"^```(?:python|toml|yaml) +(old|new|both|client)(?: +(\S+))?$")
_MARK = re.compile(
    r"# (?P<mark>breaks|likely|silent|follows|warns|masked|info|safe|raises)\b:? ?(?P<kinds>[a-z-]+(?:, [a-z-]+)*)?"
    r"(?: ?\[(?P<label>\w+)\])?(?: - (?P<why>.+))?$"
)
_SEVERITY = {
    "breaks": "breaking",
    "likely": "warning",
    "silent": "breaking",
    "follows": "breaking",
    "warns": "warning",
    "masked": "warning",
    "info": "info",
}


@dataclass(frozen=True)
class Mark:
    """What a line of a client promises."""

    file: str
    line: int
    mark: str
    kinds: tuple[str, ...]
    label: str
    why: str

    @property
    def severity(self) -> str:
        """Of the findings on this line; "" for none."""
        return _SEVERITY.get(self.mark, "")


@dataclass
class Pair:
    """One case."""

    name: str
    category: str
    old_version: str = "1.0"
    new_version: str = "2.0"
    allowed: str = ""
    old: dict[str, str] = field(default_factory=dict)
    new: dict[str, str] = field(default_factory=dict)
    client: dict[str, str] = field(default_factory=dict)

    @property
    def held_out(self) -> bool:
        """Whether the case is for measuring alone, by a hash of its name."""
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1

    @property
    def marks(self) -> list[Mark]:
        """All marked lines of the client."""
        found = []
        for file, text in self.client.items():
            for number, line in enumerate(text.splitlines(), 1):
                match = _MARK.search(line)
                if match:
                    kinds = tuple((match["kinds"] or "").split(", ")) if match["kinds"] else ()
                    found.append(Mark(file, number, match["mark"], kinds, match["label"] or "", match["why"] or ""))
                elif re.search(r"# (breaks|likely|silent|follows|warns|masked|info|safe)\b", line):
                    raise ValueError(f"{self.name}: no mark: {line}")
        return found

    def expected(self) -> set[tuple[str, int, str, str]]:
        """Findings: file, line, kind, severity."""
        return {(mark.file, mark.line, kind, mark.severity) for mark in self.marks for kind in mark.kinds}


def read_pairs(folder: Path = FOLDER) -> list[Pair]:
    """All cases of all files, in order."""
    return [pair for path in sorted(folder.glob("*.md")) for pair in _read(path)]


def _read(path: Path) -> list[Pair]:
    pairs: list[Pair] = []
    block: list[str] | None = None
    targets: list[dict[str, str]] = []
    file = ""
    for line in path.read_text().splitlines():
        if block is not None:
            if line != "```":
                block.append(line)
                continue
            for target in targets:
                target[file] = "\n".join(block) + "\n"
            block = None
        elif match := _HEADING.match(line):
            pairs.append(Pair(match[1].strip(), path.stem))
        elif match := _FENCE.match(line):
            block = []
            pair = pairs[-1]
            sides = {"old": [pair.old], "new": [pair.new], "both": [pair.old, pair.new], "client": [pair.client]}
            targets = sides[match[1]]
            file = match[2] or ("client.py" if match[1] == "client" else "up/__init__.py")
        elif line.startswith("versions: "):
            pairs[-1].old_version, pairs[-1].new_version = line.removeprefix("versions: ").split(" -> ")
        elif line.startswith("allowed: "):
            pairs[-1].allowed = line.removeprefix("allowed: ")
    for pair in pairs:
        pair.old.setdefault("up/__init__.py", "")
        pair.new.setdefault("up/__init__.py", "")
    return pairs
