"""What is on disk against what the sources become, file by file, and the plan that brings them together.

A file that was edited by hand is never overwritten unasked, and a file without our stamp never at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from tooling.harness.compile.stamp import digest, read_stamp, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tooling.harness.compile.artifacts import Artifact
    from tooling.harness.platforms.records import Platform
    from tooling.kit.change.plan import Plan


class State(StrEnum):
    """Of one generated file."""

    CURRENT = "current"
    MISSING = "missing"
    """The source has it, the platform does not."""
    OUTDATED = "outdated"
    """The source changed since; nobody touched the copy."""
    EDITED = "edited"
    """Somebody edited the copy; the source is what it was."""
    DIVERGED = "diverged"
    """Both were changed, each in its own way."""
    ORPHAN = "orphan"
    """Generated once; the source is gone."""
    EDITED_ORPHAN = "edited-orphan"
    """Generated once and edited since; the source is gone."""
    FOREIGN = "foreign"
    """A file of somebody else stands where one of ours belongs."""


EDITED: Final = frozenset({State.EDITED, State.DIVERGED, State.EDITED_ORPHAN})
DRIFT: Final = frozenset({State.MISSING, State.OUTDATED, State.ORPHAN})


@dataclass(frozen=True, slots=True)
class FileState:
    """A file, and how it stands to its source."""

    path: str
    state: State
    source: str
    wanted: bytes | None
    """None: it should not be there."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    source: str
    digest: str
    intact: bool


def compare(plan: Plan, artifacts: Mapping[str, Artifact], platforms: Sequence[Platform]) -> list[FileState]:
    """Every generated file, by path. Raises like `Plan.read`, e.g. ConflictError for links."""
    recorded = {path: record for platform in platforms for path, record in _records(plan, platform)}
    states = []
    for path in sorted({*artifacts, *recorded}):
        artifact, record = artifacts.get(path), recorded.get(path)
        state = _state(plan.read(path), artifact.content if artifact else None, record)
        source = artifact.source if artifact else record.source if record else ""
        if state is not None:
            states.append(FileState(path, state, source, artifact.content if artifact else None))
    return states


def bring_together(plan: Plan, states: Sequence[FileState], *, overwrite: bool) -> None:
    """Add to the plan what `sync` writes and deletes. `overwrite`: edited files too."""
    for one in states:
        if one.state not in DRIFT and not (overwrite and one.state in EDITED):
            continue
        if one.wanted is None:
            plan.delete(one.path, reason=f"{one.source} is gone")
        else:
            plan.write(one.path, one.wanted, reason=f"from {one.source}")


def _state(disk: bytes | None, wanted: bytes | None, record: _Recorded | None) -> State | None:
    if wanted is None:
        if disk is None or record is None:
            return None
        return State.ORPHAN if record.intact else State.EDITED_ORPHAN
    if disk is None:
        return State.MISSING
    if same(disk, wanted):
        return State.CURRENT
    if record is None:
        return State.FOREIGN
    if record.intact:
        return State.OUTDATED
    stamp = read_stamp(wanted)
    return State.EDITED if (stamp.digest if stamp else digest(wanted)) == record.digest else State.DIVERGED


def _records(plan: Plan, platform: Platform) -> Iterator[tuple[str, _Recorded]]:
    """Files of a platform's folders that say they are generated, and those that travel with them."""
    for path in _candidates(plan, platform):
        content = plan.read(path)
        stamp = read_stamp(content) if content is not None else None
        if stamp is None or _name(stamp.source) != _name(path):
            continue  # somebody else's, or a copy that somebody made of one of ours to begin an own one with
        yield path, _Recorded(stamp.source, stamp.digest, stamp.intact)
        folder, source = PurePosixPath(path).parent, PurePosixPath(stamp.source).parent
        for along, expected in stamp.carried.items():
            if ".." in PurePosixPath(along).parts:  # of an edited stamp: nothing outside the skill is ours
                continue
            copied = plan.read(str(folder / along))
            intact = copied is not None and digest(copied) == expected
            yield str(folder / along), _Recorded(str(source / along), expected, intact)


def _name(path: str) -> str:
    """Of the skill or the expert that a file belongs to."""
    place = PurePosixPath(path)
    return place.parent.name if place.name == "SKILL.md" else place.stem


def _candidates(plan: Plan, platform: Platform) -> Iterator[str]:
    patterns = [(platform.skills, "*/SKILL.md"), (platform.agents, f"*{platform.suffix}")]
    for folder, pattern in patterns:
        base = plan.root / folder
        if folder and base.is_dir() and not base.is_symlink():
            paths = sorted(base.glob(pattern))
            links = (parent for path in paths for parent in (path, path.parent) if parent.is_symlink())
            linked = set(links)
            for path in paths:
                if path not in linked and path.parent not in linked and path.is_file():
                    yield path.relative_to(plan.root).as_posix()
