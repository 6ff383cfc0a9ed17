"""Says of every translated page, section by section, whether it is in step with its source, and what changed if not.

A page that `zh-mark` has marked is held to its mark. Of others, history says what they can know of; what cannot be
known is not held against them.

states: in step, source changed, missing, extra, reordered, untranslated, structure differs (code, inline code, links,
images, numbers, tables, lists, words of the glossary). A difference that is meant is explained where it occurs, with a
reason: <!-- areal-docs allow numbers: the unit is another one -->
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tooling.cli.errors import FindingError, UsageError
from tooling.cli.report import Report
from tooling.documentation.verdicts import TranslationState, open_judge, source_diff

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from tooling.cli.parser import Parser
    from tooling.documentation.markdown import Section
    from tooling.documentation.verdicts import DocsVerdicts, PageVerdict, SectionVerdict


def document(outcome: DocsVerdicts, *, diffs: bool) -> dict[str, Any]:
    """For JSON."""
    pages = [_page(page, diffs=diffs) for page in outcome.pages]
    return {"pages": pages, "without_translation": list(outcome.untranslated), "counts": counts(outcome)}


def counts(outcome: DocsVerdicts) -> dict[str, int]:
    """Pages and sections, how many lag, and sections by state."""
    sections = [one for page in outcome.pages for one in page.sections]
    found = {
        "pages": len(outcome.pages),
        "lagging_pages": sum(page.lags for page in outcome.pages),
        "sections": len(sections),
        "lagging_sections": sum(one.lags for one in sections),
    }
    return found | {state.value: sum(one.state is state for one in sections) for state in TranslationState}


def text(outcome: DocsVerdicts, *, diffs: bool) -> str:
    """For people: what lags, page by page, and a line with the sums."""
    lines = [line for page in outcome.pages if page.lags for line in _lines(page, diffs=diffs)]
    number = counts(outcome)
    more = f"; {len(outcome.untranslated)} pages need no translation" if outcome.untranslated else ""
    lines.append(
        f"{number['pages']} pages, {number['lagging_pages']} lag; "
        f"{number['sections']} sections, {number['lagging_sections']} lag{more}"
    )
    return "\n".join(lines) + "\n"


def github(outcome: DocsVerdicts, *, failing: bool) -> str:
    """`::error file=...`: one line per section that lags, and per page with a problem."""
    kind = "error" if failing else "warning"
    lines = []
    for page in outcome.pages:
        if page.problem:
            lines.append(_annotation(kind, page.translation, 1, "translation", f"{page.problem}; {page.fix}"))
        for one in page.sections:
            if one.lags:
                line = one.translation.line if one.translation is not None else 1
                said = "; ".join([_headline(one), *(difference.message for difference in one.differences)])
                lines.append(_annotation(kind, page.translation, line, one.state.value, said))
    return "".join(lines)


def _page(page: PageVerdict, *, diffs: bool) -> dict[str, Any]:
    return {
        "source": page.source,
        "translation": page.translation,
        "basis": page.basis.value,
        "lags": page.lags,
        "problem": page.problem,
        "fix": page.fix,
        "sections": [_section(one, page.source, diffs=diffs) for one in page.sections],
    }


def _section(one: SectionVerdict, path: str, *, diffs: bool) -> dict[str, Any]:
    before = one.before
    found: dict[str, Any] = {
        "state": one.state.value,
        "also": [state.value for state in one.also],
        "note": one.note,
        "source": _place(one.source),
        "translation": _place(one.translation),
        "differences": [{"kind": each.kind, "message": each.message, "line": each.line} for each in one.differences],
        "followed": {"commit": before.commit, "date": before.date, "since": list(before.since)} if before else None,
    }
    return found | ({"diff": source_diff(one, path)} if diffs else {})


def _place(section: Section | None) -> dict[str, Any] | None:
    if section is None:
        return None
    return {"heading": section.name, "line": section.line, "end": section.end, "hash": section.digest}


def _lines(page: PageVerdict, *, diffs: bool) -> Iterator[str]:
    basis = "" if page.basis.value == "mark" else f" (no mark; by {page.basis.value})"
    yield f"{page.translation}: follows {page.source}{basis}"
    if page.problem:
        yield f"  {page.problem}; {page.fix}"
    for one in page.sections:
        if not one.lags:
            continue
        yield f"  {_headline(one)}"
        for difference in one.differences:
            yield f"      line {difference.line}: {difference.kind}: {difference.message}"
        if diffs:
            yield from (f"      {line}" for line in source_diff(one, page.source).splitlines())


def _headline(one: SectionVerdict) -> str:
    states = ", ".join(state.value for state in (one.state, *one.also))
    parts = [f"{states}: {one.name}"]
    if one.source is not None:
        parts.append(f"line {one.source.line} of the source")
    if one.translation is not None:
        parts.append(f"line {one.translation.line} of the translation ({one.translation.name})")
    if one.before is not None and one.before.since:
        number = len(one.before.since)
        parts.append(f"since {one.before.since[-1][:12]}" + (f" and {number - 1} more" if number > 1 else ""))
    if one.note:
        parts.append(one.note)
    return "; ".join(parts)


def _annotation(kind: str, path: str, line: int, title: str, message: str) -> str:
    place = f"file={_property(path)},line={line},title={_property(title)}"
    return f"::{kind} {place}::{_data(message)}\n"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="a page, or its translation (default: all)")
    parser.add_argument("--check", action="store_true", help="exit 10 when anything is not in step (CI)")
    parser.add_argument("--github", action="store_true", help="print annotations of GitHub's workflow commands")
    parser.add_argument("--no-history", action="store_true", help="do not ask git: no old texts, no inference")
    parser.add_argument("--no-diff", action="store_true", help="leave out how the source changed")


def run(arguments: argparse.Namespace) -> Report:
    """TranslationJudge every page, or those that are named."""
    if arguments.json and arguments.github:
        raise UsageError("--json and --github are two forms of output", where="--github", fix="leave one of them out")
    outcome = open_judge(arguments.repo, arguments.pages, ask_history=not arguments.no_history).all()
    lags = any(page.lags for page in outcome.pages)
    diffs = not arguments.no_diff
    shown = github(outcome, failing=arguments.check) if arguments.github else text(outcome, diffs=diffs)
    return Report(
        command="areal-docs zh-check",
        exit_code=FindingError.exit_code if arguments.check and lags else 0,
        changing=False,
        text=shown,
        next_steps=("areal-docs zh-plan",) if lags and not arguments.github else (),
        data=document(outcome, diffs=diffs),
    )
