"""The table of platforms: a further one is its module and its line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.harness.findings import Finding
from tooling.harness.platforms import agents_standard, claude, codex, opencode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tooling.harness.platforms.records import Platform
    from tooling.harness.sources.records import Expert

PLATFORMS: Final[dict[str, Platform]] = {
    "agents": agents_standard.PLATFORM,
    "claude": claude.PLATFORM,
    "codex": codex.PLATFORM,
    "opencode": opencode.PLATFORM,
}


def chosen(names: Sequence[str], *, where: str) -> tuple[Platform, ...]:
    """The platforms of these names; all when none is named. Raises UsageError for an unknown one."""
    for name in names:
        if name not in PLATFORMS:
            fix = did_you_mean(name, PLATFORMS) or f"known: {', '.join(PLATFORMS)}"
            raise UsageError(f"there is no platform {name!r}", where=where, fix=fix)
    return tuple(PLATFORMS[name] for name in sorted(names or PLATFORMS))


def hint_problems(experts: Sequence[Expert]) -> Iterator[Finding]:
    """Hints for platforms or settings that nobody reads, or that would end a platform's start."""
    for expert in experts:
        line = 1 + next((n for n, text in enumerate(expert.page.head.splitlines(), 1) if text.startswith("hints")), 0)
        for name, hint in expert.hints.items():
            if name not in PLATFORMS:
                fix = did_you_mean(name, PLATFORMS) or f"known: {', '.join(PLATFORMS)}"
                yield Finding(expert.page.path, line, "expert-format", f"hints for {name!r}, which is no platform", fix)
                continue
            for key in sorted(hint.keys() - PLATFORMS[name].hints):
                known = ", ".join(sorted(PLATFORMS[name].hints)) or "none"
                yield Finding(
                    expert.page.path, line, "expert-format", f"{name} takes no hint {key!r}", f"known: {known}"
                )
