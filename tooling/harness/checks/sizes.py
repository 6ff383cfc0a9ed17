"""What pages cost: their lines, and the tokens a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.harness.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.harness.policy import Policy
    from tooling.harness.sources.records import Sources

_BYTES_PER_TOKEN = 4


def tokens_of(text: str) -> int:
    """An estimate that needs no tokenizer, good to about a fifth for English with code: bytes divided by four."""
    return -(-len(text.encode("utf-8")) // _BYTES_PER_TOKEN)


def size_findings(sources: Sources, policy: Policy) -> Iterator[Finding]:
    """Skills and experts that take more than their limits."""
    for skill in sources.skills:
        yield from too_long(skill.page.path, skill.page.lines, policy.skill_lines)
        tokens = tokens_of(skill.page.body)
        if tokens > policy.skill_tokens:
            message = f"has about {tokens} tokens, {policy.skill_tokens} are allowed"
            yield Finding(skill.page.path, 0, "size", message, "move details to references/, one level deep")
    for expert in sources.experts:
        yield from too_long(expert.page.path, expert.page.lines, policy.expert_lines)


def too_long(path: str, lines: int, most: int) -> Iterator[Finding]:
    """A finding when there are more than `most` lines."""
    if lines > most:
        yield Finding(
            path, most + 1, "size", f"has {lines} lines, {most} are allowed", "say less, or move it elsewhere"
        )
