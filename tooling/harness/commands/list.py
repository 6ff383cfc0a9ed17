"""Lists skills and experts, their size in tokens, and where each is compiled to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report, aligned
from tooling.harness.checks.pages import tokens_of
from tooling.harness.context import open_context

if TYPE_CHECKING:
    import argparse

    from tooling.cli.parser import Parser


def configure(parser: Parser) -> None:
    """Take no arguments besides the common ones."""


def run(arguments: argparse.Namespace) -> Report:
    """List all sources in a table."""
    context = open_context(arguments.repo)
    skill_places = [platform.skills for platform in context.platforms if platform.skills]
    expert_places = [platform for platform in context.platforms if platform.render]
    skills: list[dict[str, object]] = [
        {
            "name": skill.name,
            "path": skill.page.path,
            "description": skill.description,
            "lines": skill.page.lines,
            "tokens": tokens_of(skill.page.body),
            "always_tokens": tokens_of(f"{skill.name}: {skill.description}"),
            "copies": [f"{place}/{skill.name}/SKILL.md" for place in skill_places],
        }
        for skill in context.sources.skills
    ]
    experts: list[dict[str, object]] = [
        {
            "name": expert.name,
            "path": expert.page.path,
            "description": expert.description,
            "scope": expert.scope,
            "lines": expert.page.lines,
            "tokens": tokens_of(expert.page.body),
            "owns": list(expert.owns),
            "copies": [platform.expert_path(expert) for platform in expert_places],
        }
        for expert in context.sources.experts
    ]
    rows = [
        (kind, str(one["name"]), f"{one['lines']} lines", f"{one['tokens']} tokens", str(one.get("scope", "")))
        for kind, listed in (("skill", skills), ("expert", experts))
        for one in listed
    ]
    return Report(
        command="areal-harness list",
        changing=False,
        warnings=tuple(str(problem) for problem in context.problems),
        text=aligned(rows) + "\n" if rows else "no skills and no experts\n",
        data={"skills": skills, "experts": experts, "platforms": [platform.name for platform in context.platforms]},
    )
