"""Turns a config that a class refuses into one that it takes, by changing as few fields as possible."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from areal.porting.probe.meanings import meaning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_ROUNDS = 6
MAX_CHECKS = 250
MAX_SECONDS = 30.0


class Repair:
    """A search over single changes; a change that leads to another complaint is kept, and the search goes on."""

    def __init__(
        self,
        check: Callable[[dict[str, Any]], str | None],
        *,
        original: Mapping[str, Any],
        kept: frozenset[str] = frozenset(),
    ) -> None:
        """check: the complaint about a config, or None. original: what fields were before they were shrunk.
        kept: fields that must not change."""
        self.check = check
        self.original = original
        self.kept = kept
        self.checks = 0
        self.deadline = time.monotonic() + MAX_SECONDS

    def run(self, starts: list[dict[str, Any]]) -> dict[str, Any] | str:
        """A config that passes, or the last complaint. The search goes on from the last of `starts`."""
        seen: set[str] = set()
        for start in starts:
            config, complaint = start, self.check(start)
            seen.add(_plain(complaint))
            if complaint is None:
                return config
        for _ in range(MAX_ROUNDS):
            if complaint is None:
                return config
            step = self._step(config, complaint, seen)
            if step is None:
                return complaint
            config, complaint = step
            seen.add(_plain(complaint))
        return config if complaint is None else complaint

    def _step(self, config: dict[str, Any], complaint: str, seen: set[str]) -> tuple[dict[str, Any], str | None] | None:
        """The first change that satisfies the class, else the first that changes the complaint."""
        for changed in _with_missing({**self.original, **config}, config, complaint):
            answer = self.check(changed)
            if answer is None or _plain(answer) not in seen:  # nothing else can help
                return changed, answer
        progress: tuple[dict[str, Any], str | None] | None = None
        for changed in self._changes(config, complaint):
            if self.checks >= MAX_CHECKS or time.monotonic() > self.deadline:
                break
            self.checks += 1
            answer = self.check(changed)
            if answer is None:
                return changed, None
            if progress is None and _plain(answer) not in seen:
                progress = changed, answer
        return progress

    def _changes(self, config: dict[str, Any], complaint: str) -> Iterator[dict[str, Any]]:
        fields = [name for name in {**self.original, **config} if name not in self.kept]
        named = [name for name in fields if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", complaint)]
        unset = [name for name in named if {**self.original, **config}[name] is None]
        if len(unset) > 1:  # fields that make sense only together
            yield {**config, **{name: meaning((name,), 1) for name in unset}}
            yield {**config, **{name: max(2, meaning((name,), 2)) for name in unset}}
        yield from _with_values_for_null({**self.original, **config}, config)
        shrunk = [name for name in config if name in fields and name not in named]
        for name in (*named, *reversed(shrunk)):
            for value in self._alternatives(name, config):
                if value is None and name in config and config[name] is None:
                    continue
                yield {**config, name: value}
        for name in (*named, *reversed(shrunk)):
            if name in config:
                yield {key: value for key, value in config.items() if key != name}

    def _alternatives(self, name: str, config: Mapping[str, Any]) -> list[Any]:
        """Values to try for a field: what it was, then small ones of its kind."""
        before = self.original.get(name)
        now = config.get(name, before)
        options: list[Any] = [] if _is_large(before) else [before]
        if isinstance(now, bool):
            options += [not now]
        elif isinstance(now, int) or (now is None and isinstance(before, int)):
            options += [4, 2, 8, 1, 16, 32, 64]
        elif isinstance(now, list) and now:
            options += [now * 2, now[: len(now) // 2]]
        return [value for place, value in enumerate(options) if value != now and value not in options[:place]]


def _with_missing(fields: Mapping[str, Any], config: dict[str, Any], complaint: str) -> Iterator[dict[str, Any]]:
    """Configs with the attribute that a config object lacks: in the config, or in a config inside it."""
    found = re.search(r"Config\w*' object has no attribute '(\w+)'", complaint)
    if found is None:
        return
    name = found.group(1)
    value = 10000.0 if "theta" in name else meaning((name,), 1)
    yield {**config, name: value}
    for part, content in fields.items():
        if isinstance(content, dict):
            yield {**config, part: {**content, name: value}}


def _with_values_for_null(fields: Mapping[str, Any], config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Configs where one field that is null has a value: some classes cannot do without, whatever their defaults."""
    for name, value in fields.items():
        inner = value if isinstance(value, dict) else {}
        for part, current in (*inner.items(), (name, value)):
            hint = None if current is not None else meaning((str(part),), 1.0) or meaning((str(part),), 1)
            if hint in (None, 1, 1.0):
                continue
            yield {**config, name: {**inner, part: hint}} if part in inner else {**config, name: hint}


def _is_large(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1024


def _plain(complaint: str | None) -> str:
    """A complaint without its numbers: "16 is too small" after "8 is too small" is no progress."""
    return re.sub(r"\d+", "#", complaint or "")
