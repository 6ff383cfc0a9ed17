"""Reads `tests/skills/<name>`: the tasks of a skill, and how each of their assertions is judged.

They stand apart from the skill: who installs it, and an agent that does a task, gets no answers along with it.

evals.json is what agentskills.io describes, so that other programs can run it: assertions are sentences. checker.toml
holds the same sentences in the same order, each with what a program looks at:

    [[eval]]
    id = 1

    [[eval.step]]                  # before the task begins
    commit = "feat(reward): letters"

    [[eval.check]]
    says = "The reward letters is registered"
    kind = "registry"
    path = "areal/reward/registry.py"
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import UsageError
from tooling.cli.suggest import did_you_mean
from tooling.cli.toml import TOMLError, parse_toml
from tooling.harness.evaluation.checks import KINDS
from tooling.harness.evaluation.records import TASKS, Check, SkillEvaluation
from tooling.harness.sources import PageFinding
from tooling.kit.change.plan import safe_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

LIST, CHECKER = "evals.json", "checker.toml"
_FILES: Final = "files"
_EXAMPLE: Final = f"see {TASKS}/add-reward for an example"
SAMPLE: Final = ".sample"
"""Suffix of files that lose it in a workspace: code that is part of a task is none of this repository's."""
_TASK_KEYS: Final = {"id": int, "prompt": str, "expected_output": str, "files": list, "assertions": list}
STEPS: Final = ("append", "branch", "commit", "edit", "remote", "run")


class SkillEvaluationError(ValueError):
    """The files say nothing that can be run; the message says where and why."""


def read_evaluations(root: Path, skills: Sequence[str], files: Sequence[str]) -> list[SkillEvaluation]:
    """Return all tasks of these skills, sorted. Raises UsageError for the first that is broken."""
    found = []
    for skill in skills:
        try:
            found += _skill(root, skill, files)
        except SkillEvaluationError as error:
            raise UsageError(str(error), where=f"{TASKS}/{skill}", fix=_EXAMPLE) from error
    return found


def with_evaluations(skills: Sequence[str], files: Sequence[str]) -> list[str]:
    """Return the skills that have tasks."""
    known = set(files)
    return [name for name in skills if f"{TASKS}/{name}/{LIST}" in known]


def evaluation_findings(root: Path, skills: Sequence[str], files: Sequence[str]) -> Iterator[PageFinding]:
    """Find what is wrong with the tasks of skills, for `check`."""
    for skill in with_evaluations(skills, files):
        try:
            _skill(root, skill, files)
        except SkillEvaluationError as error:
            yield PageFinding(f"{TASKS}/{skill}/{LIST}", 0, "eval-format", str(error), _EXAMPLE)


def _skill(root: Path, skill: str, files: Sequence[str]) -> list[SkillEvaluation]:
    folder = f"{TASKS}/{skill}"
    tasks = _tasks(root / folder / LIST, skill)
    try:
        document = parse_toml((root / folder / CHECKER).read_bytes())
    except (OSError, *TOMLError) as error:
        raise SkillEvaluationError(f"{CHECKER} cannot be read: {error}") from error
    rows = document.get("eval")
    if set(document) != {"eval"} or not isinstance(rows, list):
        raise SkillEvaluationError(f"{CHECKER}: holds something else than [[eval]]")
    for row in rows:
        if not isinstance(row, dict) or set(row) - {"id", "step", "check"} or not isinstance(row.get("id"), int):
            raise SkillEvaluationError(f"{CHECKER}: an [[eval]] has id, step and check")
    checkers = {row["id"]: row for row in rows}
    known = frozenset(files)
    if sorted(checkers) != sorted(task["id"] for task in tasks):
        raise SkillEvaluationError(f"{LIST} and {CHECKER} hold other ids")
    return [_evaluation(skill, task, checkers[task["id"]], known) for task in tasks]


def _tasks(path: Path, skill: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SkillEvaluationError(f"{LIST} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("skill_name") != skill:
        raise SkillEvaluationError(f"{LIST}: skill_name is not {skill!r}")
    tasks = document.get("evals")
    if not isinstance(tasks, list) or not tasks:
        raise SkillEvaluationError(f"{LIST}: `evals` is not a list of tasks")
    for task in tasks:
        if not isinstance(task, dict) or set(task) != set(_TASK_KEYS):
            raise SkillEvaluationError(f"{LIST}: a task has other keys than {', '.join(_TASK_KEYS)}")
        for key, kind in _TASK_KEYS.items():
            if type(task[key]) is not kind or not (task[key] or key in {"files", "id"}):
                raise SkillEvaluationError(
                    f"{LIST}: {key} of task {task['id']!r} is not of type {kind.__name__}, or empty"
                )
        if not all(isinstance(one, str) and one for one in [*task["assertions"], *task["files"]]):
            raise SkillEvaluationError(f"{LIST}: assertions and files of task {task['id']} are texts")
    if len({task["id"] for task in tasks}) != len(tasks):
        raise SkillEvaluationError(f"{LIST}: an id is given twice")
    return tasks


def _evaluation(skill: str, task: Mapping[str, Any], row: Mapping[str, Any], known: frozenset[str]) -> SkillEvaluation:
    checks = tuple(_check(one) for one in row.get("check", []))
    said = [check.says for check in checks]
    if said != task["assertions"]:
        odd = next(
            (one for one in [*said, *task["assertions"]] if said.count(one) != task["assertions"].count(one)), ""
        )
        raise SkillEvaluationError(f"task {task['id']}: {CHECKER} does not say the same as its assertions: {odd!r}")
    steps = tuple(row.get("step", ()))
    for step in steps:
        unknown = next((key for key in step if key not in STEPS), "")
        if unknown or len(step) != 1:
            fix = did_you_mean(unknown, STEPS) or f"a step is one of {', '.join(STEPS)}"
            raise SkillEvaluationError(f"task {task['id']}: unknown step {unknown or dict(step)!r}; {fix}")
    files = {}
    for path in task["files"]:
        prefix = f"{_FILES}/{task['id']}/"
        if not path.startswith(prefix) or f"{TASKS}/{skill}/{path}" not in known:
            raise SkillEvaluationError(f"task {task['id']}: {path} is not a file below {prefix}")
        files[safe_path(path.removeprefix(prefix).removesuffix(SAMPLE))] = f"{TASKS}/{skill}/{path}"
    return SkillEvaluation(skill, task["id"], task["prompt"], task["expected_output"], files, steps, checks)


def _check(row: Mapping[str, Any]) -> Check:
    kind, says = row.get("kind", ""), row.get("says", "")
    if kind not in KINDS:
        fix = did_you_mean(str(kind), KINDS) or f"there are {', '.join(sorted(KINDS))}"
        raise SkillEvaluationError(f"unknown kind {kind!r} of check; {fix}")
    if not isinstance(says, str) or not says:
        raise SkillEvaluationError("a check says nothing")
    values = {key: value for key, value in row.items() if key not in {"kind", "says", "slow"}}
    needed, taken = KINDS[kind].needs, KINDS[kind].takes
    lacking = next((key for key in needed if key not in values), "")
    odd = next((key for key in values if key not in needed and key not in taken), "")
    if lacking or odd:
        said = f"needs {lacking}" if lacking else f"does not take {odd}"
        raise SkillEvaluationError(f"check {says!r} of kind {kind} {said}")
    return Check(says, kind, values, bool(row.get("slow", False)))
