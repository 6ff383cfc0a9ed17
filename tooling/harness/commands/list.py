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
    """All sources, in a table."""
    context = open_context(arguments.repo)
    skill_places = [platform.skills for platform in context.platforms if platform.skills]
    expert_places = [platform for platform in context.platforms if platform.render]
    skills = [
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
    experts = [
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
    return Report(
        command="areal-harness list",
        changing=False,
        warnings=tuple(str(problem) for problem in context.problems),
        text=_text(skills, experts),
        data={"skills": skills, "experts": experts, "platforms": [platform.name for platform in context.platforms]},
    )


def _text(skills: list[dict[str, object]], experts: list[dict[str, object]]) -> str:
    rows = [("skill", str(one["name"]), f"{one['lines']} lines", f"{one['tokens']} tokens", "") for one in skills]
    rows += [
        ("expert", str(one["name"]), f"{one['lines']} lines", f"{one['tokens']} tokens", str(one["scope"]))
        for one in experts
    ]
    return aligned(rows) + "\n" if rows else "no skills and no experts\n"
