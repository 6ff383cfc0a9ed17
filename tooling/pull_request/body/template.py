"""The template of a repository filled with facts; our own where it has none.

Sections that are known by their headings get text, boxes are ticked where a fact proves them, everything else stays as
it is for a person. Facts that the template has no place for follow below it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tooling.pull_request.body.sections import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tooling.pull_request.body.facts import Facts
    from tooling.pull_request.git import Git

MAX_CHARACTERS: Final = 60_000
"""A service takes 65,536."""
_PLACES: Final = (".github/", "", "docs/")
_FILES: Final = frozenset({"100644", "100755"})
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


def find_template(git: Git, *commits: str) -> str | None:
    """The template of the first commit that has one: the base's own before that of the change."""
    for commit in commits:
        for place in _PLACES:
            # A folder that is not there is no error for ls-tree, and has no entries.
            below = [place] if place else []
            for line in git.listed("ls-tree", "-z", "--full-tree", commit, "--", *below):
                state, _, path = line.partition("\t")
                if path.lower() == f"{place}{_NAME}" and state.split(" ")[0] in _FILES:
                    return git.run("cat-file", "blob", state.split(" ")[2]).decode("utf-8", errors="replace")
    return None


def fill(template: str | None, facts: Facts) -> str:
    """The whole text, sealed, so that a later run knows whether somebody edited it."""
    if template is None:
        shown = [name for name in SECTIONS if name != "issues" or SECTIONS[name][1](facts)]
        template = OURS.format(sections="\n".join(_own(name, facts) for name in shown))
        used = set(SECTIONS)
        sections = _split(template)
        _fill_checklists(sections, facts)
    else:
        sections = _split(template.replace("\r\n", "\n"))
        used = _fill_known(sections, facts)
        level = next((each.heading.split(" ")[0] for each in sections if each.heading), "##")
        rest = [name for name in SECTIONS if name not in used and SECTIONS[name][1](facts)]
        sections += [_Section(f"{level} {SECTIONS[name][0]}", "", ["", SECTIONS[name][1](facts), ""]) for name in rest]
    return sealed(_joined(sections))


def sealed(text: str) -> str:
    """A text with the mark that it is ours."""
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


def _own(name: str, facts: Facts) -> str:
    heading, text = SECTIONS[name]
    return f"## {heading}\n\n{text(facts)}\n"


def _split(text: str) -> list[_Section]:
    """Sections by their headings; code and comments have none."""
    found = [_Section("", "", [])]
    fenced = commented = False
    for line in text.split("\n"):
        if line.lstrip().startswith(("```", "~~~")) and not commented:
            fenced = not fenced
        heading = None if fenced or commented else _HEADING.fullmatch(line)
        if not fenced:
            commented = _still_commented(line, commented)
        if heading is None:
            found[-1].lines.append(line)
        else:
            found.append(_Section(line, _compared(heading["text"]), []))
    return found


def _still_commented(line: str, commented: bool) -> bool:
    opened, closed = line.rfind("<!--"), line.rfind("-->")
    return opened > closed if max(opened, closed) >= 0 else commented


def _compared(heading: str) -> str:
    return " ".join(re.sub(r"[^a-z0-9 ]+", " ", heading.lower()).split())


def _joined(sections: list[_Section]) -> str:
    parts = ["\n".join([each.heading, *each.lines] if each.heading else each.lines).rstrip("\n") for each in sections]
    return re.sub(r"\n{3,}", "\n\n", "\n\n".join(part for part in parts if part.strip())) + "\n"


def _fill_known(sections: list[_Section], facts: Facts) -> set[str]:
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
                each.lines = _with_text(each.lines, text, boxes=name == "breaking", tick=facts.announces_breaking)
                used.add(name)
    return used


def _with_text(lines: list[str], text: str, *, boxes: bool, tick: bool) -> list[str]:
    """Our text instead of the hints of a section; what is no comment and no placeholder stays above it."""
    plain = _COMMENT.sub("", "\n".join(lines))
    kept = [line for line in plain.split("\n") if line.strip() and not re.search(r"#\s*\(?issue|#\s*$|\.\.\.$", line)]
    if boxes:
        kept = [_ticked(line, yes=tick) for line in kept]
    return ["", *([*kept, ""] if kept else []), text, ""]


def _ticked(line: str, *, yes: bool) -> str:
    box = _BOX.match(line)
    word = box["text"].strip().lower() if box else ""
    return _set(line) if box and word.startswith("yes" if yes else "no") else line


def _tick_type(section: _Section, facts: Facts) -> None:
    """The one box of the type, and that of a breaking change."""
    words = _TYPES.get(facts.message.type.lower() or facts.proposal.title.split("(")[0].split(":")[0])
    boxes = [index for index, line in enumerate(section.lines) if _BOX.match(line)]
    label = {index: re.sub(r"[^a-z ]+", " ", section.lines[index].lower()).split("]")[-1].strip() for index in boxes}
    breaking = [index for index in boxes if label[index].removeprefix("x ").strip().startswith("breaking")]
    typed = [index for index in boxes if index not in breaking and words is not None and words.search(label[index])]
    for index in (*typed[:1], *(breaking if facts.announces_breaking else [])):
        section.lines[index] = _set(section.lines[index])


def _fill_checklists(sections: list[_Section], facts: Facts) -> None:
    """Tick what a fact proves. Nothing else: a person does the rest."""
    for section in sections:
        for index, line in enumerate(section.lines):
            if _BOX.match(line) and _proven(line.lower(), facts):
                section.lines[index] = _set(line)


def _proven(line: str, facts: Facts) -> bool:
    """The first statement that is known decides: "new and existing tests pass" is about passing."""
    if _NEGATION.search(line):
        return False
    proof = next((proof for words, proof in _PROOFS if words.search(line)), None)
    return proof is not None and proof(facts)


def _set(line: str) -> str:
    return _BOX.sub(r"\g<lead>[x]\g<text>", line)


def _tests_pass(facts: Facts) -> bool:
    report = facts.tests
    current = not facts.tests_outdated and not facts.merged_since
    return report is not None and current and report.passed > 0 and not report.failed


_PROOFS: Final[tuple[tuple[re.Pattern[str], Callable[[Facts], bool]], ...]] = (
    (
        re.compile(r"commit messages?.*(?:conform|convention|follow)|conventional commits"),
        lambda facts: facts.conforming,
    ),
    (re.compile(r"newest commit of the base|rebased|up[ -]to[ -]date with"), lambda facts: facts.up_to_date),
    (re.compile(r"tests?\b.*\bpass|\bpass(?:es|ed|ing)?\b.*tests?\b|\b(?:ran|run|executed)\b.*tests?\b"), _tests_pass),
    (
        re.compile(r"changed code comes with changed tests|(?:added|changed|updated|new) (?:\w+ ){0,3}tests?\b"),
        lambda facts: bool(facts.paths("test")),
    ),
    (
        re.compile(r"(?:updated|changed|added) (?:\w+ ){0,3}doc|doc\w* (?:\w+ ){0,3}(?:updated|changed|added)"),
        lambda facts: bool(facts.paths("docs")),
    ),
    (
        re.compile(r"the review finds nothing|areal-review"),
        lambda facts: not facts.review.open,
    ),
)
"""What a line of a checklist has to say, and what proves it."""
