"""Generates a unit of a kind: files, registry entries, document lines and receipt, as one change."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tooling.cli.errors import UsageError
from tooling.new.cli.answering import ask_missing, ask_name, may_ask, read_answers
from tooling.new.cli.performing import Advice, perform
from tooling.new.unit.work import Work

if TYPE_CHECKING:
    from tooling.cli.report import Report
    from tooling.kit.template.kinds import KindSource
    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation
    from tooling.new.unit.context import Workspace


def configure(parser: Parser) -> None:
    """Add the arguments that all kinds share."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="what to call the unit, e.g. gsm8k-hard")
    parser.add_argument("--answers", metavar="FILE.json", help="an object of answers; options win over it ('-': stdin)")
    parser.add_argument(
        "--no-register", dest="register", action="store_false", help="leave registries and documents alone"
    )


def run(invocation: Invocation) -> Report:
    """Generate."""
    kind = invocation.kind
    if kind is None:
        raise UsageError("no kind was given", fix="see `areal-new kinds`")
    name, answers, options = _request(invocation, kind)
    if _only_reports(kind, options):
        invocation.arguments.dry_run = True

    def make(workspace: Workspace) -> Work:
        from tooling.new.unit.generate import plan_unit
        from tooling.new.unit.records import UnitRequest

        register = invocation.arguments.register and workspace.settings.register
        request = UnitRequest(kind=kind.name, name=name, answers=answers, options=options, register=register)
        return Work.of(plan_unit(workspace, request), kind.name, name)

    return perform(invocation, make, Advice(tests_failed=f"areal-new undo {kind.name} {shlex.quote(name)}"))


def _only_reports(kind: KindSource, options: dict[str, str]) -> bool:
    """Whether an option asks for findings only, so that nothing has to be locked."""
    from tooling.kit.template.manifest import load_manifest

    return any(option.name in options for option in load_manifest(kind.folder).options if option.reports)


def _request(invocation: Invocation, kind: KindSource) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Name, answers and options; what is missing is asked when a person sits at a terminal."""
    answers, options = read_answers(invocation.arguments)
    name, ask = invocation.arguments.name, may_ask(as_json=invocation.as_json)
    if not name:
        if _only_reports(kind, options):  # nothing is made that would need one
            return kind.name + "-report", answers, options
        if not ask:
            raise UsageError(
                f"no name for the new {kind.name} was given", where="NAME", fix=f"write `areal-new {kind.name} NAME`"
            )
        name = ask_name(kind)
    if ask and not options:  # options may answer questions themselves
        answers = ask_missing(invocation.arguments.questions, answers)
    return name, answers, options
