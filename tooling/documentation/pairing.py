"""Pairs the sections of a source with those of its translation.

With a mark it says so: its rows name both sides as they were. Without one, sections are laid side by side: order,
levels of headings, and what does not depend on the language (code, links, inline code, numbers) decide.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.documentation.numbers import numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tooling.documentation.markdown import Section
    from tooling.documentation.pages import Mark, PageRow

_ALIKE: Final = 0.5
"""Share of equal facts from which sections whose headings have different levels may be one."""
_MOVED: Final = 0.7
_FEW: Final = 3


@dataclass(slots=True)
class Pair:
    """A section on both sides, or on one."""

    source: Section | None
    translation: Section | None
    row: PageRow | None = None
    """What the mark says of it."""
    moved: bool = False
    """It stands elsewhere among its neighbours than on the other side."""


def by_mark(source: Sequence[Section], translation: Sequence[Section], mark: Mark) -> list[Pair]:
    """Pair sections as the mark says, in the order of the source, then what only the translation has."""
    ours = _rows_to_translation(mark.rows, translation)
    theirs = _rows_to_source(mark.rows, source)
    pairs = {
        number: Pair(
            source[theirs[number]] if number in theirs else None,
            translation[ours[number]] if number in ours else None,
            row,
        )
        for number, row in enumerate(mark.rows)
    }
    found = [pair for pair in pairs.values() if pair.source is not None or pair.translation is not None]
    used, taken = set(theirs.values()), set(ours.values())
    found += [Pair(section, None) for number, section in enumerate(source) if number not in used]
    found += [Pair(None, section) for number, section in enumerate(translation) if number not in taken]
    return _ordered(_joined(found))


def side_by_side(source: Sequence[Section], translation: Sequence[Section]) -> list[Pair]:
    """Pair sections by order, level and facts."""
    facts = {id(section): _facts(section) for section in (*source, *translation)}

    def worth(first: int, second: int) -> float:
        one, other = source[first], translation[second]
        alike = _similarity(facts[id(one)], facts[id(other)])
        if one.level != other.level and (alike < _ALIKE or min(one.level, other.level) < 1):
            return 0.0
        away = abs(first / max(1, len(source)) - second / max(1, len(translation)))
        return 2.0 * (one.level == other.level) + 6.0 * alike + 0.5 * (1.0 - away) + (one.title == other.title)

    matched = _aligned(len(source), len(translation), worth)
    found = [Pair(source[first], translation[second]) for first, second in matched]
    used, taken = {first for first, _ in matched}, {second for _, second in matched}
    rest = [Pair(section, None) for number, section in enumerate(source) if number not in used]
    spare = [section for number, section in enumerate(translation) if number not in taken]
    for pair in rest:
        assert pair.source is not None
        mine = facts[id(pair.source)]
        best = max(spare, key=lambda one: _similarity(mine, facts[id(one)]), default=None)
        if best is not None and len(mine) >= _FEW and _similarity(mine, facts[id(best)]) >= _MOVED:
            pair.translation = best
            spare.remove(best)
    return _ordered([*found, *rest, *(Pair(None, section) for section in spare)])


def in_parallel(source: Sequence[Section], translation: Sequence[Section]) -> list[tuple[Section, Section]] | None:
    """Pair sections one to one, when both pages have the same headings in the same order; None otherwise."""
    if [section.level for section in source] != [section.level for section in translation]:
        return None
    return list(zip(source, translation, strict=True))


def _rows_to_translation(rows: Sequence[PageRow], translation: Sequence[Section]) -> dict[int, int]:
    """Map rows to sections: the same text first, wherever it went; what was edited since by its place between the
    others."""
    found = dict[int, int]()
    for number, row in enumerate(rows):
        same = [at for at, section in enumerate(translation) if section.digest == row.translation]
        free = [at for at in same if at not in found.values()]
        if free:
            found[number] = min(free, key=lambda at: abs(at - number))
    open_rows = [number for number in range(len(rows)) if number not in found]
    open_sections = [at for at in range(len(translation)) if at not in found.values()]

    def worth(first: int, second: int) -> float:
        row, section = open_rows[first], open_sections[second]
        if rows[row].level != translation[section].level or _neighbour(row, found) != _neighbour_of(section, found):
            return 0.0
        return 1.0

    matched = _aligned(len(open_rows), len(open_sections), worth)
    return found | {open_rows[first]: open_sections[second] for first, second in matched}


def _rows_to_source(rows: Sequence[PageRow], source: Sequence[Section]) -> dict[int, int]:
    """Map rows to sections: the same text, else the same heading, else the only one left between the same
    neighbours."""
    found = dict[int, int]()
    for number, row in enumerate(rows):
        free = [at for at, one in enumerate(source) if one.digest == row.source and at not in found.values()]
        if free:
            found[number] = min(free, key=lambda at: abs(at - number))
    for number, row in enumerate(rows):
        if number not in found:
            named = [at for at, one in enumerate(source) if (one.level, one.slug) == (row.level, row.slug)]
            free = [at for at in named if at not in found.values()]
            if free:
                found[number] = free[0]
    settled = dict(found)
    open_rows = [number for number in range(len(rows)) if number not in settled]
    open_sections = [at for at in range(len(source)) if at not in settled.values()]
    for number in open_rows:
        here = _neighbour(number, settled)
        same_gap = [other for other in open_rows if _neighbour(other, settled) == here]
        between = [at for at in open_sections if _neighbour_of(at, settled) == here]
        if len(same_gap) == len(between) == 1 and source[between[0]].level == rows[number].level:
            found[number] = between[0]
    return found


def _neighbour(row: int, found: dict[int, int]) -> int:
    """Return the nearest settled row before one; -1 without any."""
    return max((number for number in found if number < row), default=-1)


def _neighbour_of(section: int, found: dict[int, int]) -> int:
    """Return the settled row of the nearest settled section before one."""
    before = [(at, number) for number, at in found.items() if at < section]
    return max(before)[1] if before else -1


def _aligned(first: int, second: int, worth: Callable[[int, int], float]) -> list[tuple[int, int]]:
    """Choose the pairs, in order on both sides, that are worth most together; a pair worth nothing is none."""
    best = [[0.0] * (second + 1) for _ in range(first + 1)]
    for one in range(first - 1, -1, -1):
        for other in range(second - 1, -1, -1):
            value = worth(one, other)
            paired = best[one + 1][other + 1] + value if value > 0 else 0.0
            best[one][other] = max(paired, best[one + 1][other], best[one][other + 1])
    found, one, other = list[tuple[int, int]](), 0, 0
    while one < first and other < second:
        value = worth(one, other)
        if value > 0 and best[one][other] == best[one + 1][other + 1] + value:
            found.append((one, other))
            one, other = one + 1, other + 1
        elif best[one][other] == best[one + 1][other]:
            one += 1
        else:
            other += 1
    return found


def _joined(pairs: list[Pair]) -> list[Pair]:
    """Join a source section that is new and a translated one that no row knows, where nothing else stands between: one
    of the two may be the other's, translated and not marked yet."""
    lonely = [pair for pair in pairs if pair.translation is None and pair.row is None and pair.source is not None]
    spare = [pair for pair in pairs if pair.source is None and pair.row is None and pair.translation is not None]
    if len(lonely) == len(spare) and [p.source.level for p in lonely if p.source] == [
        p.translation.level for p in spare if p.translation
    ]:
        for pair, other in zip(lonely, spare, strict=True):
            pair.translation = other.translation
        return [pair for pair in pairs if pair not in spare]
    return pairs


def _ordered(pairs: list[Pair]) -> list[Pair]:
    """Sort pairs in the order of the source, with those marked that the translation has elsewhere."""
    whole = [pair for pair in pairs if pair.source is not None and pair.translation is not None]
    whole.sort(key=lambda pair: pair.source.line if pair.source else 0)
    lines = [pair.translation.line for pair in whole if pair.translation is not None]
    kept = _longest_rise(lines)
    for number, pair in enumerate(whole):
        pair.moved = number not in kept
    alone = [pair for pair in pairs if pair.source is not None and pair.translation is None]
    both = sorted([*whole, *alone], key=lambda pair: pair.source.line if pair.source else 0)
    extra = [pair for pair in pairs if pair.source is None]
    return [*both, *sorted(extra, key=lambda pair: pair.translation.line if pair.translation else 0)]


def _longest_rise(values: Sequence[int]) -> set[int]:
    """Return positions of the longest rising subsequence."""
    tails, ends, before = list[int](), list[int](), dict[int, int]()
    for position, value in enumerate(values):
        at = bisect_left(tails, value)
        before[position] = ends[at - 1] if at else -1
        tails[at : at + 1] = [value]
        ends[at : at + 1] = [position]
    kept, position = set[int](), ends[-1] if ends else -1
    while position >= 0:
        kept.add(position)
        position = before[position]
    return kept


def _facts(section: Section) -> frozenset[str]:
    facts = section.facts
    found = [f"code {block.content.strip()}" for block in facts.code]
    found += [f"span {span}" for span in facts.spans]
    found += [f"link {link.target.split('#')[0]}" for link in (*facts.links, *facts.images)]
    found += [f"number {min(number, key=len)}" for number in numbers(facts.words)]
    return frozenset(found)


def _similarity(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0
