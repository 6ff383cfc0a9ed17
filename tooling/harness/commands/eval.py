"""Lets an agent do the tasks of skills in scratch copies of the repository, and judges what is left."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tooling.cli.errors import ConflictError, FindingError, UsageError
from tooling.cli.report import Report, progress
from tooling.cli.suggest import did_you_mean
from tooling.harness.context import open_context
from tooling.harness.evaluation.agents import attempt, command_of
from tooling.harness.evaluation.checks import judge
from tooling.harness.evaluation.read import LIST, read_evaluations, with_evaluations
from tooling.harness.evaluation.records import TASKS
from tooling.harness.evaluation.workspace import TaskWorkspace, make_base, prepare, without_skill

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from tooling.cli.parser import Parser
    from tooling.harness.context import HarnessContext
    from tooling.harness.evaluation.agents import AgentAttempt
    from tooling.harness.evaluation.records import Result, SkillEvaluation


_NOTE: Final = "areal-eval.json"
"""In the git folder of a workspace: which task it was made for."""


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("skills", nargs="*", metavar="SKILL", help="only the tasks of these skills (default: all)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--agent", metavar="AGENT", help="claude, codex, opencode, or a command line that takes a prompt last"
    )
    what.add_argument(
        "--prepare", type=Path, metavar="FOLDER", help="only make the workspace of one task, to work in it"
    )
    what.add_argument("--judge", type=Path, metavar="FOLDER", help="only judge a workspace that --prepare made")
    what.add_argument("--dry-run", action="store_true", help="say what would be done and judged; start nothing")
    parser.add_argument("--id", type=int, metavar="N", help="only the task of this number")
    parser.add_argument("--baseline", action="store_true", help="do every task once more without its skill")
    parser.add_argument("--quick", action="store_true", help="leave out checks that take more than a few seconds")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep workspaces, outputs and grading.json here")
    parser.add_argument(
        "--clients", type=Path, metavar="FOLDER", help="look for the agent's program in this folder first"
    )
    parser.add_argument("--limit", type=float, default=1800.0, metavar="SECONDS", help="per task (default: 1800)")


def run(arguments: argparse.Namespace) -> Report:
    """Do the tasks, or only a part of that."""
    if not (arguments.agent or arguments.dry_run or arguments.prepare or arguments.judge):
        fix = "name one with --agent (claude, codex, opencode or a command line), or look first with --dry-run"
        raise UsageError("no agent to do the tasks", where="--agent", fix=fix)
    context = open_context(arguments.repo)
    if arguments.judge:
        return _judged(context, arguments)
    chosen = _chosen(context, arguments)
    if arguments.prepare:
        return _prepared(context, chosen, arguments.prepare)
    if arguments.dry_run:
        return _planned(chosen)
    words = command_of(arguments.agent, arguments.clients)
    with _folder(arguments.keep) as folder:
        base = make_base(context.root, context.files, folder)
        rows = [row for one in chosen for row in _done(context, one, base, words, arguments, folder)]
    return _report(rows)


def _chosen(context: HarnessContext, arguments: argparse.Namespace) -> list[SkillEvaluation]:
    names = [skill.name for skill in context.sources.skills]
    for name in arguments.skills:
        if name not in names:
            fix = did_you_mean(name, names) or "`areal-harness list` shows them"
            raise UsageError("unknown skill", where=name, fix=fix)
    skills = arguments.skills or with_evaluations(names, context.files)
    known = with_evaluations(skills, context.files)
    if known != list(skills):
        lacking = next(name for name in skills if name not in known)
        raise UsageError("the skill has no tasks", where=lacking, fix=f"write {TASKS}/{lacking}/{LIST}")
    found = read_evaluations(context.root, known, context.files)
    found = [one for one in found if arguments.id in {None, one.id}]
    if not found:
        raise UsageError("unknown task", where=f"--id {arguments.id}", fix="`areal-harness eval --dry-run` lists all")
    return found


def _done(
    context: HarnessContext,
    evaluation: SkillEvaluation,
    base: Path,
    words: Sequence[str],
    arguments: argparse.Namespace,
    folder: Path,
) -> Iterator[dict[str, Any]]:
    """Do one task, and with --baseline once more without the skill."""
    for kind in ("with_skill", "without_skill") if arguments.baseline else ("with_skill",):
        place = folder / f"{evaluation.skill}-{evaluation.id}" / kind
        place.mkdir(parents=True)
        workspace = prepare(base, evaluation, context.root, place / "repository")
        workspace = without_skill(workspace, evaluation.skill) if kind == "without_skill" else workspace
        with progress(f"{evaluation.name} {kind}"):
            made = attempt(words, evaluation.prompt, workspace.root, seconds=arguments.limit)
        results = judge(evaluation, workspace, quick=arguments.quick)
        row = _row(evaluation, kind, results, made)
        if arguments.keep:
            (place / "output.txt").write_text(made.output, encoding="utf-8")
            passed = sum(not result.problem for result in results)
            grading = {  # as agentskills.io describes it
                "assertion_results": [result.document() for result in results],
                "summary": {
                    "passed": passed,
                    "failed": len(results) - passed,
                    "total": len(results),
                    "pass_rate": round(passed / len(results) if results else 1.0, 4),
                },
            }
            (place / "grading.json").write_text(json.dumps(grading, indent=2) + "\n", encoding="utf-8")
            row["kept"] = os.fspath(place)
        yield row


def _prepared(context: HarnessContext, chosen: Sequence[SkillEvaluation], target: Path) -> Report:
    if len(chosen) != 1:
        raise UsageError(
            f"{len(chosen)} tasks for one workspace", where="--prepare", fix="name one SKILL, and its --id"
        )
    if target.exists():
        raise ConflictError("exists already", where=os.fspath(target), fix="name a folder that is not there yet")
    evaluation = chosen[0]
    with tempfile.TemporaryDirectory(prefix="areal-eval-") as scratch:
        base = make_base(context.root, context.files, Path(scratch))
        workspace = prepare(base, evaluation, context.root, target.absolute(), shared=False)
    note = {"skill": evaluation.skill, "id": evaluation.id, "start": workspace.start}
    (workspace.root / ".git" / _NOTE).write_text(json.dumps(note) + "\n", encoding="utf-8")
    return Report(
        command="areal-harness eval",
        changing=False,
        text=f"{evaluation.prompt}\n",
        next_steps=(f"do that in {target}", f"areal-harness eval --judge {target}"),
        data={"workspace": os.fspath(workspace.root), "prompt": evaluation.prompt, **note},
    )


def _judged(context: HarnessContext, arguments: argparse.Namespace) -> Report:
    note = arguments.judge / ".git" / _NOTE
    try:
        known = json.loads(note.read_bytes())
        skill, number, start = str(known["skill"]), int(known["id"]), str(known["start"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "make one with `areal-harness eval SKILL --prepare FOLDER`"
        raise UsageError("is not a workspace of a task", where=os.fspath(arguments.judge), fix=fix) from error
    found = read_evaluations(context.root, with_evaluations([skill], context.files), context.files)
    evaluation = next((one for one in found if one.id == number), None)
    if evaluation is None:
        raise UsageError(
            f"there is no task {skill}/{number} any more", where=os.fspath(arguments.judge), fix="make a new one"
        )
    results = judge(evaluation, TaskWorkspace(arguments.judge.resolve(), start), quick=arguments.quick)
    return _report([_row(evaluation, "with_skill", results, None)])


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Provide the folder of the workspaces: one of the user's, which has to be new, or one that is removed."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="areal-eval-") as scratch:
            yield Path(scratch)
        return
    if keep.exists() and any(keep.iterdir()):
        raise ConflictError("is not empty", where=os.fspath(keep), fix="name another folder")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.absolute()


def _report(rows: Sequence[dict[str, Any]]) -> Report:
    mine = [row for row in rows if row["configuration"] == "with_skill"]
    failed = [row for row in mine if not row["passed"]]
    lines = list[str]()
    for row in rows:
        agent = row["agent"]
        spent = f" ({agent['seconds']} s)" if agent else ""
        kind = "" if row["configuration"] == "with_skill" else " without the skill"
        lines.append(f"{'done' if row['passed'] else 'NOT DONE':<9}{row['skill']}/{row['id']}{kind}{spent}")
        if agent and agent["exit_code"] != 0:
            lines.append(f"    the agent ended with exit code {agent['exit_code']}")
        lines += [f"    {one['text']}: {one['evidence']}" for one in row["assertions"] if not one["passed"]]
    lines.append(f"{len(mine) - len(failed)} of {len(mine)} tasks done")
    others = [row for row in rows if row["configuration"] != "with_skill"]
    if others:
        lines.append(f"without the skill: {sum(row['passed'] for row in others)} of {len(others)}")
    return Report(
        command="areal-harness eval",
        exit_code=FindingError.exit_code if failed else 0,
        changing=False,
        text="\n".join(lines) + "\n",
        data={"evaluations": list(rows), "passed": len(mine) - len(failed), "failed": len(failed)},
    )


def _row(
    evaluation: SkillEvaluation, kind: str, results: Sequence[Result], made: AgentAttempt | None
) -> dict[str, Any]:
    return {
        "skill": evaluation.skill,
        "id": evaluation.id,
        "configuration": kind,
        "passed": all(not result.problem for result in results),
        "assertions": [result.document() for result in results],
        "agent": {"exit_code": made.exit_code, "seconds": round(made.seconds, 1)} if made else None,
    }


def _planned(chosen: Sequence[SkillEvaluation]) -> Report:
    """Say what would be done and judged."""
    described, lines = [], []
    for one in chosen:
        lines.append(f"{one.name}: {one.prompt}")
        lines += [f"    {'slow ' if check.slow else ''}{check.kind}: {check.says}" for check in one.checks]
        task = {
            "skill": one.skill,
            "id": one.id,
            "prompt": one.prompt,
            "expected_output": one.expected,
            "files": sorted(one.files),
            "steps": [dict(step) for step in one.steps],
            "checks": [
                {"says": check.says, "kind": check.kind, "slow": check.slow, **check.values} for check in one.checks
            ],
        }
        described.append(task)
    return Report(
        command="areal-harness eval",
        dry_run=True,
        changing=False,
        text="\n".join(lines) + "\n",
        data={"evaluations": described},
    )
