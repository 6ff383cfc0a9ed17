"""Says what a rule looks for, why, and how to fix what it finds; without a rule, lists all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.cli.report import Report, aligned
from tooling.cli.suggest import did_you_mean
from tooling.review.findings import codes_of
from tooling.review.records import MIN_REASON
from tooling.review.rule_texts import concerns
from tooling.review.rules.catalogue import FAMILIES, FORMER, RULES, family_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tooling.review.records import Rule


def row(rule: Rule) -> dict[str, Any]:
    """Return one rule of the list."""
    return {"id": rule.id, "family": family_of(rule.id), "severity": rule.severity.name, "title": rule.text.title}


def fields(rule: Rule) -> dict[str, Any]:
    """Return everything about one rule, for programs."""
    return row(rule) | {
        "why": rule.text.why,
        "fix": rule.text.fix,
        "example": rule.text.example,
        "reads": _reads(rule),
        "in_tests": rule.in_tests,
        "concerns": [rule.text.concern],
        "suppress": suppression(rule.id),
    }


def text(rule: Rule) -> str:
    """Format the same for people."""
    example = "\n".join(f"    {line}" for line in rule.text.example.splitlines())
    lines = [
        f"{rule.id} ({rule.severity.name}, {family_of(rule.id)}): {rule.text.title}",
        f"why: {rule.text.why}",
        f"fix: {rule.text.fix}",
        f"reads: {_reads(rule)}{'' if rule.in_tests else ', not in tests'}",
        f"finds, for example:\n{example}",
        f"suppress: {suppression(rule.id)}",
        f'switch off: disable = ["{rule.id}"] in [tool.areal.review] of pyproject.toml',
    ]
    return "\n".join(lines) + "\n"


def suppression(name: str) -> str:
    """Return the comment that suppresses a finding."""
    codes = codes_of(name)
    also = f"; `# noqa: {codes[0]} - REASON` does too" if codes else ""
    return f"# review: ignore[{name}] REASON (on the line or alone above it; {MIN_REASON} characters or more{also})"


def _reads(rule: Rule) -> str:
    if rule.in_change is not None:
        return "the change as a whole"
    return f"each changed file, on both sides{', through ruff' if rule.in_file is None else ''}"


def markdown() -> str:
    """Return the reference page: concerns with their rules, then every rule."""
    parts = [
        "# Rules of areal-review",
        "",
        f"{len(RULES)} rules; [how they come to a verdict](../review.md). `areal-review explain RULE` says the same.",
        "",
        "## What is looked for",
        "",
        "| concern | rules |",
        "| --- | --- |",
    ]
    parts += [
        f"| {concern} | {', '.join(f'[{name}](#{name})' for name in rules)} |" for concern, rules in concerns().items()
    ]
    for family, rules in FAMILIES.items():
        parts += ["", f"## {family}"]
        for rule in rules:
            parts += ["", f"### {rule.id}", "", f"**{rule.severity.name}.** {rule.text.title}. {rule.text.why}"]
            parts += [f"Instead: {rule.text.fix}" + ("" if rule.in_tests else " Tests are left alone.")]
            parts += ["", "```text", *rule.text.example.splitlines(), "```"]
    return "\n".join(parts) + "\n"


def explain(words: Sequence[str]) -> Report:
    """Say what a rule looks for; list all rules without a name."""
    command = "areal-review explain"
    if not words:
        rows = [row(rule) for rule in RULES.values()]
        lines = aligned([(each["id"], each["severity"], f"{each['family']}: {each['title']}") for each in rows])
        return Report(command=command, changing=False, text=lines + "\n", data={"rules": rows})
    rule = RULES.get(FORMER.get(words[0], words[0]))
    if rule is None:
        fix = did_you_mean(words[0], RULES) or f"`{command}` lists all"
        raise UsageError(f"unknown rule {words[0]!r}", where="explain", fix=fix)
    return Report(command=command, changing=False, text=text(rule), data={"rule": fields(rule)})
