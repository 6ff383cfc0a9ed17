"""Finding and reading all sources of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.harness.findings import Finding
from tooling.harness.sources.formats import expert_problems, mapping, skill_problems
from tooling.harness.sources.pages import PageError, read_page
from tooling.harness.sources.records import READ, Expert, Skill, Sources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tooling.harness.policy import Policy
    from tooling.harness.sources.records import Page

SKILLS, EXPERTS, ENTRY = "skills", "agents", "SKILL.md"
_NO_PAGES = {"README.md"}
_NOT_COPIED = {"evals"}
"""Folders of a skill that are about it, and of no use to whoever follows it."""


def read_sources(root: Path, files: Sequence[str], policy: Policy) -> Sources:
    """Skills and experts among the repository's files. Those with a problem are left out and the problem is named."""
    problems: list[Finding] = []
    skills = [_skill(root, name, files, policy, problems) for name in _skill_names(files, problems)]
    names = [path for path in files if path.startswith(f"{EXPERTS}/") and path.count("/") == 1]
    experts = [_expert(root, path, problems) for path in names if path.endswith(".md") and _base(path) not in _NO_PAGES]
    return Sources(
        tuple(skill for skill in skills if skill is not None),
        tuple(expert for expert in experts if expert is not None),
        tuple(sorted(problems)),
    )


def _skill_names(files: Sequence[str], problems: list[Finding]) -> list[str]:
    folders = sorted({path.split("/")[1] for path in files if path.startswith(f"{SKILLS}/") and path.count("/") > 1})
    known = set(files)
    for name in folders:
        if f"{SKILLS}/{name}/{ENTRY}" not in known:
            problems.append(
                Finding(f"{SKILLS}/{name}", 0, "skill-format", f"has no {ENTRY}", "write it, or move the folder")
            )
    return [name for name in folders if f"{SKILLS}/{name}/{ENTRY}" in known]


def _skill(root: Path, name: str, files: Sequence[str], policy: Policy, problems: list[Finding]) -> Skill | None:
    folder = f"{SKILLS}/{name}"
    page = _page(root, f"{folder}/{ENTRY}", "skill-format", problems)
    found = list(skill_problems(page, name)) if page is not None else []
    problems += found
    if page is None or found:
        return None
    inside = sorted(path.removeprefix(f"{folder}/") for path in files if path.startswith(f"{folder}/"))
    local = tuple(kept for kept in policy.local_folders if kept.startswith(f"{folder}/"))
    local = tuple(kept.removeprefix(f"{folder}/").rstrip("/") for kept in local)
    kept = {*local, *_NOT_COPIED}
    resources = [path for path in inside if path != ENTRY and path.split("/")[0] not in kept]
    return Skill(page, page.values["name"], page.values["description"].strip(), tuple(resources), local)


def _expert(root: Path, path: str, problems: list[Finding]) -> Expert | None:
    page = _page(root, path, "expert-format", problems)
    found = list(expert_problems(page, _base(path).removesuffix(".md"))) if page is not None else []
    if page is not None and not page.body.strip():
        found.append(Finding(path, page.body_line, "expert-format", "has no text", "write what it knows"))
    problems += found
    if page is None or found:
        return None
    values = page.values
    return Expert(
        page,
        values["name"],
        values["description"].strip(),
        values.get("scope", READ),
        tuple(values.get("commands", ())),
        tuple(values.get("owns", ())),
        {name: dict(hint) for name, hint in mapping(values, "hints").items()},
    )


def _page(root: Path, path: str, rule: str, problems: list[Finding]) -> Page | None:
    try:
        return read_page(root, path)
    except PageError as error:
        problems.append(Finding(path, error.line, rule, str(error), "see skills/add-model/SKILL.md for an example"))
        return None


def _base(path: str) -> str:
    return path.rpartition("/")[2]
