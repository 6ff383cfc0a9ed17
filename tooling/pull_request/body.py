"""Writes the text of a pull request: facts as Markdown, filled into the template of the repository, or into our own.

Sections that are known by their headings get text, boxes are ticked where a fact proves them, everything else stays as
it is for a person. Facts that the template has no place for follow below it. Names and messages are somebody's text:
they stay text, and call nobody.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.cli.report import printable
from tooling.review import report

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.pull_request.facts import ProposalFacts
    from tooling.pull_request.git import WorkTree


_FILES: Final = 8
_FINDINGS: Final = 20
_CODE: Final = re.compile(r"(`+[^`\n]+`+)")


def description(facts: ProposalFacts) -> str:
    """Return what the authors say."""
    text = "\n".join(line for _, line in facts.message.body).strip("\n")
    if not facts.proposal.joined:
        text = "\n".join(f"- {each.subject}" for each in facts.proposal.commits)
    return harmless(text) or escaped(facts.message.subject or facts.message.header)


def changes(facts: ProposalFacts) -> str:
    """List what changed, by whose code it is."""
    comparison = facts.review.comparison
    lines = [f"{len(comparison.files)} files, +{comparison.added} -{comparison.removed}", ""]
    for each in facts.review.domains:
        files = [comparison.by_path[path] for path in each.paths]
        counts = f"+{sum(len(one.added) for one in files)} -{sum(len(one.removed) for one in files)}"
        largest = sorted(files, key=lambda one: (-len(one.added) - len(one.removed), one.path))
        named = ", ".join(escaped(one.path) for one in largest[:_FILES])
        more = f" and {len(files) - _FILES} more" if len(files) > _FILES else ""
        signals = f" (signals: {', '.join(each.signals)})" if each.signals else ""
        lines.append(f"- **{escaped(each.domain.title)}**, {counts}{signals}: {named}{more}")
    gone = sorted(comparison.gone)
    if gone:
        lines += ["", f"Names that are gone: {', '.join(escaped(name) for name in gone[:_FILES])}"]
    return "\n".join(lines)


def risk(facts: ProposalFacts) -> str:
    """Say how risky the change is, and why."""
    said = facts.review.risk
    lines = [f"**{said.level.name}**", "", *(f"- {escaped(reason)}" for reason in said.reasons)]
    wanted = [f"{each.name} ({each.depth})" for each in facts.review.passes]
    return "\n".join([*lines, *([f"- readings asked for: {escaped(', '.join(wanted))}"] if wanted else [])])


def findings(facts: ProposalFacts) -> str:
    """List the open findings."""
    found = facts.review.open
    lines = [f"`areal-review` finds nothing new in {len(facts.review.comparison.files)} files."]
    if found:
        lines = ["| severity | rule | place | what |", "| --- | --- | --- | --- |"]
        for each in found[:_FINDINGS]:
            place = escaped(f"{each.place.path}:{each.place.line}")
            lines.append(f"| {each.rule.severity.name} | {each.rule.id} | {place} | {escaped(each.place.message)} |")
        lines += ["", f"and {len(found) - _FINDINGS} more"] if len(found) > _FINDINGS else []
    hidden = len(facts.review.findings) - len(found)
    lines += ["", f"{hidden} more are suppressed with a reason."] if hidden else []
    return "\n".join(lines)


def tests(facts: ProposalFacts) -> str:
    """Say which checks passed, on what. Nothing is claimed that no run of them attests."""
    changed = facts.paths("test")
    touched = f"Test files of this change: {', '.join(map(escaped, changed[:_FILES]))}" if changed else ""
    touched += f" and {len(changed) - _FILES} more" if len(changed) > _FILES else ""
    verdict = facts.checks
    made, command = verdict.attestation, escaped(shlex.join(verdict.command))
    said = f"Nothing is claimed about tests: {escaped(verdict.why)}."
    if verdict.proven and made is not None:
        said = f"{command}: {made.counts} in {made.seconds:.0f} s, at {made.when:%Y-%m-%d %H:%M} UTC on {made.commit}."
        same = " It has the files that are proposed here."
        said += same if made.commit != facts.proposal.after else ""
    return "\n\n".join(filter(None, [said, touched]))


def breaking(facts: ProposalFacts) -> str:
    """Say what users have to do."""
    if facts.breaking:
        return "\n".join(f"- {harmless(each)}" for each in facts.breaking)
    gone = sorted(facts.review.comparison.gone)
    if facts.announces_breaking:
        return "Yes; see the description."
    if gone:
        return f"None announced, but public names are gone: {', '.join(escaped(name) for name in gone[:_FILES])}"
    return "None announced, and no public name is gone."


def dependencies(facts: ProposalFacts) -> str:
    """List requirements that change, and the result of the audit."""
    lines = [
        f"- {escaped(each.name)} in {escaped(each.file)}: {_range(each.before)} -> {_range(each.after)}"
        for each in facts.requirements
    ]
    if facts.audit is None:
        return "\n".join([*lines, "", "No audit was given."]) if lines else "No requirement changes."
    lines = lines or ["No requirement changes."]
    lines += ["", "| audited | from | to | worst | findings | not judged |", "| --- | --- | --- | --- | --- | --- |"]
    for row in facts.audit:
        cells = (row.distribution, row.before, row.after, row.worst or "none", str(row.findings), str(row.unjudged))
        lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    return "\n".join(lines)


def issues(facts: ProposalFacts) -> str:
    """List the issues that this closes or is about; "" for none."""
    lines = [f"Closes {each}" for each in facts.closes]
    return "\n".join([*lines, *(f"Refs {each}" for each in facts.refers if each not in facts.closes)])


SECTIONS: Final[dict[str, tuple[str, Callable[[ProposalFacts], str]]]] = {
    "description": ("Description", description),
    "issues": ("Related issues", issues),
    "changes": ("What changed", changes),
    "risk": ("Risk", risk),
    "findings": ("Review", findings),
    "tests": ("Tests", tests),
    "breaking": ("Breaking changes", breaking),
    "dependencies": ("Dependencies", dependencies),
}
"""Name -> heading and text, in the order of our own template."""


def escaped(text: str) -> str:
    """Return a name as Markdown shows it; control characters are spelt out."""
    return report.escaped(printable(text))


def harmless(text: str) -> str:
    """Return Markdown without headings, HTML and mentions of people. Code stays as it is."""
    lines, fenced = list[str](), False
    for line in text.split("\n"):
        fence = line.lstrip().startswith(("```", "~~~"))
        fenced = fenced ^ fence
        if not (fence or fenced):
            parts = _CODE.split(line)  # code spans are the odd ones
            parts[::2] = [re.sub(r"@(?=\w)", "&#64;", printable(part).replace("<", "&lt;")) for part in parts[::2]]
            lines.append(re.sub(r"^(\s*)(#+\s|[=-]{2,}\s*$)", r"\1\\\2", "".join(parts)))
        else:
            lines.append(line)
    return "\n".join([*lines, "```"] if fenced else lines)


def _range(text: str) -> str:
    return escaped(text) if text else "nothing"


MAX_CHARACTERS: Final = 60_000
"""A service takes 65,536."""
_PLACES: Final = (".github/", "", "docs/")
_TEMPLATES: Final = frozenset({"100644", "100755"})
_NAME: Final = "pull_request_template.md"
_HEADING: Final = re.compile(r"(?P<level>#{1,6})[ \t]+(?P<text>.*?)[ \t]*#*")
_COMMENT: Final = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_BOX: Final = re.compile(r"^(?P<lead>\s*[-*+] )\[[ xX]?\](?P<text> .*)$")
_SEAL: Final = re.compile(r"\n*<!-- areal-pr (?P<hash>[0-9a-f]{16}) -->\s*\Z")
_WORDS: Final[dict[str, re.Pattern[str]]] = {
    "type": re.compile(r"types? of (?:change|pr)s?|type|kind of changes?"),
    "checklist": re.compile(r"(?:.* )?check ?list"),
    "issues": re.compile(r"(?:related|linked|closes|fixes)? ?(?:issues?|tickets?)(?: links?)?|related issue s"),
    "breaking": re.compile(r"breaking changes?(?: details?)?(?: if (?:any|applicable))?"),
    "tests": re.compile(r"tests?|testing|test plan|verification|how (?:has this been|was this|did you) test(?:ed)?.*"),
    "risk": re.compile(r"risks?(?: .*)?"),
    "findings": re.compile(r"reviews?|review findings|findings"),
    "dependencies": re.compile(r"dependenc(?:y|ies)(?: changes?)?"),
    "changes": re.compile(r"what changed|changes(?: made)?|changed areas|areas"),
    "description": re.compile(
        r"descriptions?|summary|overview|what(?: does this pr do)?|what (?:is|and) .*|motivation.*"
    ),
}
_TYPES: Final[dict[str, re.Pattern[str]]] = {
    "feat": re.compile(r"feature|feat\b|enhancement"),
    "fix": re.compile(r"bug|fix\b"),
    "docs": re.compile(r"doc"),
    "refactor": re.compile(r"refactor|clean"),
    "perf": re.compile(r"perf"),
    "test": re.compile(r"test"),
    "build": re.compile(r"build|dependenc"),
    "ci": re.compile(r"\bci\b|pipeline|workflow"),
    "style": re.compile(r"style|format"),
    "chore": re.compile(r"chore|maintenance|other"),
    "gov": re.compile(r"gov|process"),
    "revert": re.compile(r"revert"),
}
_NEGATION: Final = re.compile(r"\b(?:not?|never|without|cannot)\b|n't\b")
OURS: Final = """\
{sections}
## Checklist

- [ ] every commit message conforms
- [ ] it stands on the newest commit of the base
- [ ] tests pass
- [ ] changed code comes with changed tests
- [ ] the review finds nothing
"""


@dataclass(slots=True)
class _Section:
    heading: str
    """The whole line; "" for what stands before the first."""
    title: str
    """Its words, as they are compared."""
    lines: list[str]


def find_template(git: WorkTree, *commits: str) -> str | None:
    """Return the template of the first commit that has one: the base's own before that of the change."""
    for commit in commits:
        top = git.listed("ls-tree", "-z", "--full-tree", commit)
        for place in _PLACES:
            if place and f"\t{place.rstrip('/')}" not in "\n".join(top):
                continue
            for line in git.listed("ls-tree", "-z", "--full-tree", commit, "--", place) if place else top:
                state, _, path = line.partition("\t")
                if path.lower() == f"{place}{_NAME}" and state.split(" ")[0] in _TEMPLATES:
                    return git.run("cat-file", "blob", state.split(" ")[2]).decode("utf-8", errors="replace")
    return None


def fill(template: str | None, facts: ProposalFacts) -> str:
    """Write the whole text, sealed, so that a later run knows whether somebody edited it."""
    if template is None:
        shown = [name for name in SECTIONS if name != "issues" or SECTIONS[name][1](facts)]
        written = "\n".join(f"## {SECTIONS[name][0]}\n\n{SECTIONS[name][1](facts)}\n" for name in shown)
        sections = _split(OURS.format(sections=written))
        _fill_checklists(sections, facts)
    else:
        sections = _split(template.replace("\r\n", "\n"))
        used = _fill_known(sections, facts)
        level = next((each.heading.split(" ")[0] for each in sections if each.heading), "##")
        rest = [name for name in SECTIONS if name not in used and SECTIONS[name][1](facts)]
        sections += [_Section(f"{level} {SECTIONS[name][0]}", "", ["", SECTIONS[name][1](facts), ""]) for name in rest]
    parts = ["\n".join([each.heading, *each.lines] if each.heading else each.lines).rstrip("\n") for each in sections]
    return sealed(re.sub(r"\n{3,}", "\n\n", "\n\n".join(part for part in parts if part.strip())))


def sealed(text: str) -> str:
    """Return a text with the mark that this command wrote it."""
    kept = text.strip()
    if len(kept) > MAX_CHARACTERS:
        kept = kept[:MAX_CHARACTERS].rsplit("\n", 1)[0] + "\n\n(shortened)"
    return f"{kept}\n\n<!-- areal-pr {_hash(kept)} -->\n"


def untouched(text: str) -> bool:
    """Whether a text is as a run of this command wrote it; services change ends of lines."""
    plain = text.replace("\r\n", "\n")
    seal = _SEAL.search(plain)
    return seal is not None and _hash(plain[: seal.start()].strip()) == seal["hash"]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest()[:16]


def _split(text: str) -> list[_Section]:
    """Return the sections of a text; code and comments have no headings."""
    found = [_Section("", "", [])]
    fenced = commented = False
    for line in text.split("\n"):
        if line.lstrip().startswith(("```", "~~~")) and not commented:
            fenced = not fenced
        heading = None if fenced or commented else _HEADING.fullmatch(line)
        if not fenced:
            opened, closed = line.rfind("<!--"), line.rfind("-->")
            commented = opened > closed if max(opened, closed) >= 0 else commented
        if heading is None:
            found[-1].lines.append(line)
        else:
            found.append(_Section(line, " ".join(re.sub(r"[^a-z0-9 ]+", " ", heading["text"].lower()).split()), []))
    return found


def _fill_known(sections: list[_Section], facts: ProposalFacts) -> set[str]:
    used: set[str] = set()
    for each in sections:
        name = next((name for name, words in _WORDS.items() if words.fullmatch(each.title)), "")
        if name == "type":
            _tick_type(each, facts)
        elif name == "checklist":
            _fill_checklists([each], facts)
        elif name and name not in used:
            text = SECTIONS[name][1](facts)
            if text:
                # Our text instead of the hints of a section; what is no comment and no placeholder stays above it
                plain = _COMMENT.sub("", "\n".join(each.lines))
                kept = [
                    line
                    for line in plain.split("\n")
                    if line.strip() and not re.search(r"#\s*\(?issue|#\s*$|\.\.\.$", line)
                ]
                if name == "breaking":
                    answer = re.compile(
                        r"\s*[-*+] \[[ xX]?\]\s*" + ("yes" if facts.announces_breaking else "no"), re.IGNORECASE
                    )
                    kept = [_tick(line) if answer.match(line) else line for line in kept]
                each.lines = ["", *([*kept, ""] if kept else []), text, ""]
                used.add(name)
    return used


def _tick_type(section: _Section, facts: ProposalFacts) -> None:
    """Tick the box of the type, and that of a breaking change."""
    words = _TYPES.get(facts.message.type.lower() or facts.proposal.title.split("(")[0].split(":")[0])
    boxes = [index for index, line in enumerate(section.lines) if _BOX.match(line)]
    label = {index: re.sub(r"[^a-z ]+", " ", section.lines[index].lower()).split("]")[-1].strip() for index in boxes}
    breaking = [index for index in boxes if label[index].removeprefix("x ").strip().startswith("breaking")]
    typed = [index for index in boxes if index not in breaking and words is not None and words.search(label[index])]
    for index in (*typed[:1], *(breaking if facts.announces_breaking else [])):
        section.lines[index] = _tick(section.lines[index])


def _fill_checklists(sections: list[_Section], facts: ProposalFacts) -> None:
    """Tick what a fact proves. Nothing else: a person does the rest."""
    for section in sections:
        for index, line in enumerate(section.lines):
            if not _BOX.match(line) or _NEGATION.search(line.lower()):
                continue
            # The first statement that is known decides: "new and existing tests pass" is about passing.
            proof = next((proof for words, proof in _PROOFS if words.search(line.lower())), None)
            if proof is not None and proof(facts, line):
                section.lines[index] = _tick(line)


def _tick(line: str) -> str:
    return _BOX.sub(r"\g<lead>[x]\g<text>", line)


def _passed(facts: ProposalFacts, line: str) -> bool:
    """Say whether tests are known to pass; by the command that the box names, if it names one."""
    return facts.checks.proven and set(re.findall(r"`([^`]+)`", line)) <= {shlex.join(facts.checks.command)}


_PROOFS: Final[tuple[tuple[re.Pattern[str], Callable[[ProposalFacts, str], bool]], ...]] = (
    (
        re.compile(r"commit messages?.*(?:conform|convention|follow)|conventional commits"),
        lambda facts, _: facts.conforming,
    ),
    (re.compile(r"newest commit of the base|rebased|up[ -]to[ -]date with"), lambda facts, _: facts.up_to_date),
    (
        re.compile(r"tests?\b.*\bpass|\bpass(?:es|ed|ing)?\b.*tests?\b|\b(?:ran|run|executed)\b.*tests?\b"),
        _passed,
    ),
    (
        re.compile(r"changed code comes with changed tests|(?:added|changed|updated|new) (?:\w+ ){0,3}tests?\b"),
        lambda facts, _: bool(facts.paths("test")),
    ),
    (
        re.compile(r"(?:updated|changed|added) (?:\w+ ){0,3}doc|doc\w* (?:\w+ ){0,3}(?:updated|changed|added)"),
        lambda facts, _: bool(facts.paths("docs")),
    ),
    (
        re.compile(r"the review finds nothing|areal-review"),
        lambda facts, _: not facts.review.open,
    ),
)
"""What a line of a checklist has to say, and what proves it."""
