"""Which rows contradict a mapping: what a loader would refuse (fatal), and what a person should know (not fatal).

One row at a time; the loaders' own checks decide where they exist, so that both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.chats import as_chat, chat_problem
from areal.dataset.images import row_images
from areal.dataset.inspection.columns import BOX_MARK, HASH_MARK, TRANSCRIPT_MARK
from areal.dataset.schema import missing_column, number_problem, text_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from areal.dataset.inspection.mapping import RowMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One contradiction.

    Example: `Problem(place="line 7", column="answer", problem="answer is empty", fatal=True)`.
    """

    place: str
    column: str
    problem: str
    fatal: bool


class RowChecks:
    """Checks rows in order; remembers ids, to find repetitions."""

    def __init__(self, mapping: RowMapping, folder: Path, id_column: str) -> None:
        """folder: what relative image paths start from."""
        self._mapping = mapping
        self._folder = folder
        self._id_column = id_column
        self._first_ids: dict[Any, str] = {}

    def problems(self, row: dict[str, Any], place: str) -> list[Problem]:
        """Everything that is wrong with one row."""
        found = [(column, problem, True) for column, problem in self._fatal(row) if problem]
        found += [(column, problem, False) for column, problem in self._notes(row, place, bool(found)) if problem]
        return [Problem(place=place, column=column, problem=problem, fatal=fatal) for column, problem, fatal in found]

    def _fatal(self, row: dict[str, Any]) -> Iterator[tuple[str, str]]:
        mapping = self._mapping
        if mapping.question:
            yield mapping.question, text_problem(mapping.question, row) or encoding_problem(row[mapping.question])
        if mapping.answer:
            yield mapping.answer, _answer_problem(row, mapping)
        if mapping.solution and mapping.solution != mapping.answer:
            yield mapping.solution, text_problem(mapping.solution, row)
        if mapping.image:
            yield mapping.image, self._image_problem(row)
        if mapping.messages:
            yield mapping.messages, _chat_problem(row, mapping.messages, answered=mapping.form == "chat")
        if mapping.chosen:
            yield from _PAIR_CHECKS[mapping.form](row, mapping)

    def _notes(self, row: dict[str, Any], place: str, broken: bool) -> Iterator[tuple[str, str]]:
        mapping = self._mapping
        if self._id_column:
            identity = repr(row.get(self._id_column))
            first = self._first_ids.setdefault(identity, place)
            if first != place:
                yield self._id_column, f"{self._id_column} {identity:.60} was already used at {first}"
        if mapping.chosen and not broken:
            yield mapping.rejected, _no_preference(row, mapping)

    def _image_problem(self, row: dict[str, Any]) -> str:
        try:
            row_images(row, self._mapping.image, self._folder)
        except DataError as error:
            return str(error)
        return ""


def encoding_problem(text: str) -> str:
    """Why a text cannot be written as UTF-8, which tokenizers and files need; empty when it can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half of a surrogate pair ({error.object[error.start]!a}) at character {error.start + 1}"
    return ""


def final_answer(solution: str, notation: str) -> str:
    """Return the final answer of a worked solution, "" when there is none; notation: "hash" or "boxed"."""
    if notation == "hash":
        return solution.rpartition(HASH_MARK)[2].strip() if HASH_MARK in solution else ""
    begin = solution.rfind(BOX_MARK) + len(BOX_MARK)
    depth = 1
    for position in range(begin, len(solution)) if BOX_MARK in solution else ():
        depth += {"{": 1, "}": -1}.get(solution[position], 0)
        if depth == 0:
            return solution[begin:position].strip()
    return ""


def _answer_problem(row: dict[str, Any], mapping: RowMapping) -> str:
    column = mapping.answer
    if mapping.final == "number":
        return number_problem(column, row)
    problem = text_problem(column, row) or encoding_problem(row[column])
    if problem or mapping.final == "plain":
        return problem
    mark = "line such as '#### 72'" if mapping.final == "hash" else "\\boxed{...}"
    return "" if final_answer(row[column], mapping.final) else f"{column} has no final {mark}"


def _chat_problem(row: dict[str, Any], column: str, *, answered: bool) -> str:
    if column not in row:
        return missing_column(column, row)
    problem = chat_problem(row[column], answered=answered)
    if not problem:
        problem = next(filter(None, (encoding_problem(turn["content"]) for turn in as_chat(row[column]))), "")
    return f"{column}: {problem}" if problem else ""


def _text_pair(row: dict[str, Any], mapping: RowMapping) -> Iterator[tuple[str, str]]:
    for column in (mapping.chosen, mapping.rejected):
        yield column, text_problem(column, row) or encoding_problem(row[column])


def _transcript_pair(row: dict[str, Any], mapping: RowMapping) -> Iterator[tuple[str, str]]:
    problems = list(_text_pair(row, mapping))
    yield from problems
    if not any(problem for _, problem in problems):
        pairs = zip(row[mapping.chosen], row[mapping.rejected], strict=False)
        num_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if row[mapping.chosen].rfind(TRANSCRIPT_MARK, 0, num_shared) < 0:
            yield (
                mapping.chosen,
                (f"{mapping.chosen} and {mapping.rejected} share no prompt that ends in {TRANSCRIPT_MARK!r}"),
            )


def _shared_prompt(chosen: str, rejected: str) -> str:
    """Return what two transcripts share, up to the last mark of an assistant turn; "" when there is none."""
    num_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    end = chosen.rfind(TRANSCRIPT_MARK, 0, num_shared)
    return "" if end < 0 else chosen[: end + len(TRANSCRIPT_MARK)]


def _no_preference(row: dict[str, Any], mapping: RowMapping) -> str:
    """Why an intact pair says nothing about preference; empty when it does."""
    chosen, rejected = row[mapping.chosen], row[mapping.rejected]
    if mapping.form == "pair_chats":
        chosen, rejected = as_chat(chosen)[-1]["content"], as_chat(rejected)[-1]["content"]
    if mapping.form == "pair_transcripts":
        prompt = _shared_prompt(chosen, rejected)
        chosen, rejected = chosen.removeprefix(prompt), rejected.removeprefix(prompt)
    if chosen == rejected:
        return f"{mapping.chosen} and {mapping.rejected} are equal; the loader drops this row"
    if chosen.strip() and rejected.strip():
        return ""
    return f"the answer in {mapping.rejected if chosen.strip() else mapping.chosen} is empty; the loader drops this row"


def _chat_pair(row: dict[str, Any], mapping: RowMapping) -> Iterator[tuple[str, str]]:
    columns = (mapping.chosen, mapping.rejected)
    problems = [(column, _chat_problem(row, column, answered=True)) for column in columns]
    yield from problems
    if not any(problem for _, problem in problems):
        chosen, rejected = (as_chat(row[column]) for column in columns)
        if chosen[:-1] != rejected[:-1]:
            yield mapping.chosen, f"{mapping.chosen} and {mapping.rejected} differ before their last turn"


_PAIR_CHECKS: Final = {
    "pair_chats": _chat_pair,
    "pair_texts": _text_pair,
    "pair_transcripts": _transcript_pair,
}
