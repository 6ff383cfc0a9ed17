"""Says for each file of a unit what it is for, which contract it meets and what is left to do in it.

For a unit that was not generated yet, says what would be generated; the questions of the kind are options here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tooling.cli.report import Report
from tooling.new.cli.answering import read_answers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tooling.new.cli.arguments import Parser
    from tooling.new.cli.invocation import Invocation
    from tooling.new.unit.explain import ExplainedFile, Explanation


def configure(parser: Parser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("kind", metavar="KIND", help="kind of the unit, e.g. reward")
    parser.add_argument("name", metavar="NAME", nargs="?", help="its name; without one, any unit of the kind")
    parser.add_argument("--answers", metavar="FILE.json", help="answers for a unit that was not generated ('-': stdin)")


def run(invocation: Invocation) -> Report:
    """Explain."""
    from tooling.new.unit.explain import explain

    arguments = invocation.arguments
    answers, options = read_answers(arguments)
    explanation = explain(invocation.workspace, arguments.kind, arguments.name, answers=answers, options=options)
    return Report(
        command="explain",
        changing=False,
        text="\n".join(_lines(explanation)),
        next_steps=explanation.next_steps,
        data={"explanation": explanation.as_data()},
    )


def _lines(explanation: Explanation) -> Iterator[str]:
    standing = "generated" if explanation.generated else "not generated; this is what would be"
    yield f"{explanation.kind} {explanation.name} ({standing})"
    if explanation.summary:
        yield f"  {explanation.summary}"
    for file in explanation.files:
        yield ""
        yield from _file_lines(file)
    for entry in explanation.entries:
        yield f"\n{entry.file}\n  registered in {entry.table or entry.shape} as {entry.key!r}"
    for document in explanation.documents:
        yield f"\n{document.file}\n  a line in the section {document.section!r}"


def _file_lines(file: ExplainedFile) -> Iterator[str]:
    yield f"{file.path} ({file.state})"
    yield f"  {file.purpose}"
    if file.contract:
        yield f"  contract: {file.contract}"
    for todo in file.todo:
        yield f"  to do: {todo}"
    for marker in file.markers:
        yield f"  line {marker.line}: {marker.text}"
