"""Keeps the answers that were cut to fit, and hands them out whole, page by page: the tool `more`.

A page is a list of parts, in order. A part says what is at a place of the object, by its JSON Pointer:

    {"path": "/findings", "value": [{...}, {...}]}

Where an earlier part named the same path, the value goes on there: a text and a list are continued, entries are added.
What no such part can hold (a name longer than a page, a hundred levels) comes as slices of its JSON under `json`.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


MORE: Final = "more"
"""Name of the tool."""
MORE_TITLE: Final = "A page of an answer that was cut"
MORE_HELP: Final = (
    "Returns a page of an answer that was too long; its field `more` says what to ask for. All pages are the whole."
)
MORE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "description": "its name"},
        "page": {"type": "integer", "minimum": 1, "default": 1},
    },
    "required": ["answer"],
    "additionalProperties": False,
}
_KEPT: Final = 8
"""Answers."""
_KEPT_CHARACTERS: Final = 32 * 1024 * 1024
"""Of all of them; the newest is kept in any case."""
DEEPEST: Final = 50
"""Levels of an object that are looked into."""
_FRAME: Final = 200
"""Characters of a page around its parts."""
Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CutAnswer:
    """An answer that did not fit."""

    tool: str
    pages: tuple[tuple[Part, ...], ...]
    size: int


@dataclass(frozen=True, slots=True)
class Shelf:
    """The newest answers that were cut, by their names."""

    most: int
    """Characters of a page."""
    answers: dict[str, CutAnswer] = field(default_factory=dict)

    def keep(self, tool: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Keep an answer, and forget the oldest; return what the client needs to ask for it."""
        name = secrets.token_hex(4)
        self.answers[name] = CutAnswer(tool, paginate(document, self.most - _FRAME), size(document))
        while len(self.answers) > 1 and (
            len(self.answers) > _KEPT or sum(each.size for each in self.answers.values()) > _KEPT_CHARACTERS
        ):
            del self.answers[next(iter(self.answers))]
        return {"answer": name, "pages": len(self.answers[name].pages)}

    def page(self, arguments: Mapping[str, Any]) -> str:
        """Return one page as JSON. Raises UsageError for arguments that name none."""
        unknown = sorted(set(arguments) - set(MORE_SCHEMA["properties"]))
        if unknown:
            raise UsageError(f"takes no argument {unknown[0][:80]!r}", where=MORE, fix="it takes answer and page")
        name, number = arguments.get("answer"), arguments.get("page", 1)
        found = self.answers.get(name) if isinstance(name, str) else None
        if found is None:
            fix = f"the newest {_KEPT} answers that were cut are kept; call its tool again"
            raise UsageError(f"there is no answer {str(name)[:40]!r} here", where="answer", fix=fix)
        pages = len(found.pages)
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= pages:
            raise UsageError(f"there is no page {str(number)[:40]}", where="page", fix=f"1 to {pages}")
        head = {"tool": found.tool, "answer": name, "page": number, "pages": pages}
        return json.dumps(head | {"parts": found.pages[number - 1]}, ensure_ascii=False)


def size(value: Any) -> int:
    """Return the characters of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False))


def paginate(document: Any, most: int) -> tuple[tuple[Part, ...], ...]:
    """Return an object as pages of at most so many characters each (500 or more)."""
    pages, page, filled = list[tuple[Part, ...]](), list[Part](), 2
    for part in _parts(document, "", most - 4):
        length = size(part) + 2
        if page and filled + length > most:
            pages.append(tuple(page))
            page, filled = [], 2
        page.append(part)
        filled += length
    return (*pages, tuple(page))


def assemble(parts: Iterable[Part]) -> Any:
    """Put the parts of all pages together."""
    whole: dict[str, Any] = {}  # under "", so that the object itself has a place too
    slices: dict[str, str] = {}
    for part in parts:
        if "json" in part:
            slices[part["path"]] = slices.get(part["path"], "") + part["json"]
            _put(whole, part["path"], None)
        else:
            _put(whole, part["path"], part["value"])
    for path, text in slices.items():
        _put(whole, path, json.loads(text))
    return whole[""]


def _put(whole: dict[str, Any], path: str, value: Any) -> None:
    keys = [each.replace("~1", "/").replace("~0", "~") for each in path.split("/")]
    place: Any = whole
    for key in keys[:-1]:
        place = place[int(key) if isinstance(place, list) else key]
    last: Any = int(keys[-1]) if isinstance(place, list) else keys[-1]
    if isinstance(place, list) and last == len(place):
        place.append(value)
        return
    before = place[last] if isinstance(place, list) else place.get(last)
    if isinstance(before, list) and isinstance(value, list):
        before.extend(value)
    elif isinstance(before, dict) and isinstance(value, dict):
        before.update(value)
    elif isinstance(before, str) and isinstance(value, str):
        place[last] = before + value
    else:
        place[last] = value


def _parts(value: Any, path: str, room: int) -> Iterator[Part]:
    """Yield the parts of one value, each of at most so many characters.

    Example: a list of three, of which two fit -> {"path": "/a", "value": [x, y]}, {"path": "/a", "value": [z]}.
    """
    if size({"path": path, "value": value}) <= room:
        yield {"path": path, "value": value}
    elif isinstance(value, str):
        yield from ({"path": path, "value": text} for text in _slices(value, room - size({"path": path, "value": ""})))
    elif isinstance(value, list | dict) and path.count("/") < DEEPEST and _longest_path(value, path) <= room // 3:
        yield from _entries(value, path, room)
    else:
        text = json.dumps(value, ensure_ascii=False)
        yield from ({"path": path, "json": each} for each in _slices(text, room - size({"path": path, "json": ""})))


def _entries(value: list[Any] | dict[str, Any], path: str, room: int) -> Iterator[Part]:
    """Yield some entries at a time, so that pages can be filled; what does not fit alone is divided."""
    group: Any = type(value)()
    empty = filled = size({"path": path, "value": group})
    begun = False
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        length = size(item) + 2 + (size(key) + 2 if isinstance(value, dict) else 0)
        alone = empty + length > room
        if group and (alone or filled + length > room // 3):
            yield {"path": path, "value": group}
            group, filled, begun = type(value)(), empty, True
        if alone:
            if not begun:
                yield {"path": path, "value": type(value)()}
                begun = True
            yield from _parts(item, _below(path, key), room)
            continue
        if isinstance(value, dict):
            group[key] = item
        else:
            group.append(item)
        filled += length
    if group:
        yield {"path": path, "value": group}


def _below(path: str, key: object) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"


def _longest_path(value: list[Any] | dict[str, Any], path: str) -> int:
    """Return the characters of the longest path to an entry, as JSON."""
    keys = value if isinstance(value, dict) else [len(value)]
    return max(size(_below(path, key)) for key in keys)


def _slices(text: str, room: int) -> Iterator[str]:
    """Yield a text in pieces of at most so many characters as JSON, which writes some as two or six."""
    start = 0
    while start < len(text):
        end = start + room
        while (over := size(text[start:end]) - 2 - room) > 0:
            end -= max(1, over // 6)
        yield text[start:end]
        start = end
