"""Makes a table of names on disk short: one row for a module instead of one per parameter, or for a whole branch.

The adapter applies the row with the longest name of ours, and what follows that name is the same on both sides. Among
tables with the fewest rows the one with the deepest rows is taken, since it says most.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from areal.porting.family import LayoutEntry

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

SUFFIXES = (".weight", ".bias")
ROOT = "model."
HEAD = "lm_head"


def shortest_table(
    entries: Sequence[LayoutEntry], parameters: Iterable[str], in_memory: Mapping[str, LayoutEntry]
) -> tuple[LayoutEntry, ...]:
    """The rows that say the same as `entries` (one per parameter or stacked group), in the order of `parameters`, and
    the implied entries of all modules without a row.

    in_memory: canonical parameter name to its entry in the other layout; it becomes the row's alternative where it
    differs."""
    alternatives = {name: entry for entry in entries for name in entry.ours if _differs(entry, in_memory.get(name))}
    plain = {
        entry.ours[0]: entry.on_disk
        for entry in entries
        if entry.kind == "renamed" and entry.ours[0] not in alternatives
    }
    others = [entry for entry in entries if entry.ours[0] not in plain]
    rows = _module_rows([_with_alternative(entry, in_memory) for entry in others])
    # What a row of a module says about its weight, it says about its bias.
    modules = {(f"{row.ours[0]}{suffix}", f"{row.on_disk}{suffix}") for row in rows for suffix in SUFFIXES}
    unsaid = {name: on_disk for name, on_disk in plain.items() if (name, on_disk) not in modules}
    rows += _renamed_rows(unsaid)
    rows += _implied(unsaid, {row.ours for row in rows})
    order = {name: index for index, name in enumerate(parameters)}

    def place(entry: LayoutEntry) -> int:
        named = (
            index for name, index in order.items() if name == entry.ours[0] or name.startswith(f"{entry.ours[0]}.")
        )
        return min(named, default=len(order))

    return tuple(sorted(rows, key=place))


def _implied(plain: Mapping[str, str], said: Container[tuple[str, ...]]) -> list[LayoutEntry]:
    """The modules that have no row of their own."""
    each = (LayoutEntry(kind="renamed", ours=(name,), on_disk=on_disk, implied=True) for name, on_disk in plain.items())
    modules = dict.fromkeys(_of_module(entry) for entry in each)
    return [entry for entry in modules if entry.ours not in said]


def _differs(entry: LayoutEntry, other: LayoutEntry | None) -> bool:
    return other is not None and (entry.kind, entry.on_disk) != (other.kind, other.on_disk)


def _with_alternative(entry: LayoutEntry, in_memory: Mapping[str, LayoutEntry]) -> LayoutEntry:
    other = in_memory.get(entry.ours[0])
    return replace(entry, alternative=other) if _differs(entry, other) else entry


# -------------------------------------------------------------------------------------------------- modules at once


def _module_rows(entries: Sequence[LayoutEntry]) -> list[LayoutEntry]:
    """Rows of modules where weight and bias are stored in the same way."""
    grouped: dict[tuple[object, ...], list[LayoutEntry]] = {}
    for entry in entries:
        whole = _of_module(entry)
        grouped.setdefault((whole.ours, whole.on_disk, whole.arrangement, whole.alternative), []).append(entry)
    rows: list[LayoutEntry] = []
    for members in grouped.values():
        modules = [_of_module(entry) for entry in members]
        # A bias is never transposed: the row of the weight, which may be, says both.
        kinds = [entry for entry in modules if entry.kind != "renamed"] or modules
        rows.append(next((entry for entry in kinds if entry.transposed), kinds[0]))
    return rows


def _of_module(entry: LayoutEntry) -> LayoutEntry:
    """The entry for the modules, if all names end in the same ".weight" or ".bias"; else itself."""
    alternative = None if entry.alternative is None else _of_module(entry.alternative)
    for suffix in SUFFIXES:
        if all(name.endswith(suffix) for name in (*entry.ours, entry.on_disk)):
            if entry.alternative is not None and not entry.alternative.on_disk.endswith(suffix):
                return entry
            ours = tuple(name.removesuffix(suffix) for name in entry.ours)
            return replace(entry, ours=ours, on_disk=entry.on_disk.removesuffix(suffix), alternative=alternative)
    return entry


# ------------------------------------------------------------------------------------------------------- branches


@dataclass
class _Branch:
    """A node of the tree of canonical names."""

    name: str
    on_disk: str | None = None
    """Of a parameter."""
    children: dict[str, _Branch] = field(default_factory=dict)

    def leaves(self) -> list[_Branch]:
        """Every parameter below, or itself."""
        if self.on_disk is not None:
            return [self]
        return [leaf for child in self.children.values() for leaf in child.leaves()]


@dataclass(frozen=True)
class _Plan:
    """Rows of a branch. Smaller is better: number of rows, then rows of single parameters, then depth."""

    rows: tuple[LayoutEntry, ...] = ()

    def cost(self) -> tuple[int, int, int]:
        """To compare plans by."""
        names = [row.ours[0] for row in self.rows]
        parameters = sum(name.endswith(SUFFIXES) for name in names)
        return len(names), parameters, -sum(name.count(".") for name in names)


def _renamed_rows(plain: Mapping[str, str]) -> list[LayoutEntry]:
    """The fewest rows that give these names on disk."""
    root = _Branch("")
    for name, on_disk in plain.items():
        branch = root
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            branch = branch.children.setdefault(".".join(parts[:length]), _Branch(".".join(parts[:length])))
        branch.on_disk = on_disk
    rows: list[LayoutEntry] = []
    for child in root.children.values():
        inherited = child.name if child.name == HEAD else ROOT + child.name
        rows += _best(child, inherited, {}).rows
    return rows


def _best(branch: _Branch, inherited: str, known: dict[tuple[str, str], _Plan]) -> _Plan:
    """The cheapest plan for a branch that would be stored under `inherited` without rows of its own."""
    key = (branch.name, inherited)
    if key not in known:
        without = _below(branch, inherited, known)
        plans = [without]
        for on_disk in dict.fromkeys(_prefix(leaf, branch.name) for leaf in branch.leaves()):
            if on_disk is not None and on_disk != inherited:
                row = LayoutEntry(kind="renamed", ours=(branch.name,), on_disk=on_disk)
                plans += [_Plan((row, *plan.rows)) for plan in (_below(branch, on_disk, known),) if plan is not None]
        known[key] = min((plan for plan in plans if plan is not None), key=_Plan.cost)
    return known[key]


def _below(branch: _Branch, inherited: str, known: dict[tuple[str, str], _Plan]) -> _Plan | None:
    """The plan of what is below a branch that is stored under `inherited`; None if that is wrong for the branch."""
    if branch.on_disk is not None:
        return _Plan() if branch.on_disk == inherited else None
    plans = [_best(child, f"{inherited}.{name.rpartition('.')[2]}", known) for name, child in branch.children.items()]
    return _Plan(tuple(row for plan in plans for row in plan.rows))


def _prefix(leaf: _Branch, name: str) -> str | None:
    """What the branch `name` would be stored as, if this parameter below it is to have its name on disk."""
    assert leaf.on_disk is not None
    rest = leaf.name.removeprefix(name)
    return leaf.on_disk.removesuffix(rest) if leaf.on_disk.endswith(rest) and leaf.on_disk != rest else None
