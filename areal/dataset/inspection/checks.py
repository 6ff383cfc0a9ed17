"""Which rows contradict a mapping: what a loader would refuse (fatal), and what a person should know (not fatal).

One row at a time; the loaders' own checks decide where they exist, so that both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import DataError
from areal.dataset.chats import as_chat, column_problem
from areal.dataset.hhrlhf import split_pair
from areal.dataset.images import row_images
from areal.dataset.inspection.columns import BOX_MARK, HASH_MARK, TRANSCRIPT_MARK
from areal.dataset.schema import number_problem, text_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from areal.dataset.inspection.mapping import RowMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """One contradiction.

    Example: `RowProblem(place="line 7", column="answer", problem="answer is empty", fatal=True)`.
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

    def problems(self, row: dict[str, Any], place: str) -> list[RowProblem]:
        """Return everything that is wrong with one row."""
        mapping = self._mapping
        found = [(column, problem, True) for column, problem in self._fatal(row) if problem]
        intact = not found
        if self._id_column:
            identity = repr(row.get(self._id_column))
            first = self._first_ids.setdefault(identity, place)
            if first != place:
                problem = f"{self._id_column} {identity:.60} was already used at {first}"
                found.append((self._id_column, problem, False))
        if mapping.chosen and intact and (problem := _no_preference(row, mapping)):
            found.append((mapping.rejected, problem, False))
        return [RowProblem(place=place, column=name, problem=problem, fatal=fatal) for name, problem, fatal in found]

    def _fatal(self, row: dict[str, Any]) -> Iterator[tuple[str, str]]:
        mapping = self._mapping
        if mapping.question:
            yield mapping.question, text_problem(mapping.question, row) or encoding_problem(row[mapping.question])
        if mapping.answer:
            yield mapping.answer, _answer_problem(row, mapping)
        if mapping.solution and mapping.solution != mapping.answer:
            yield mapping.solution, text_problem(mapping.solution, row)
        if mapping.image:
            try:
                row_images(row, mapping.image, self._folder)
            except DataError as error:
                yield mapping.image, str(error)
        if mapping.messages:
            yield mapping.messages, _chat_problem(row, mapping.messages, answered=mapping.form == "chat")
        if mapping.chosen:
            yield from _PAIR_CHECKS[mapping.form](row, mapping)


def encoding_problem(text: str) -> str:
    """Return why a text cannot be written as UTF-8, which tokenizers and files need; empty when it can."""
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
    if problem := column_problem(row, column, answered=answered):
        return problem
    problem = next(filter(None, (encoding_problem(turn["content"]) for turn in as_chat(row[column]))), "")
    return f"{column}: {problem}" if problem else ""


def _text_pair(row: dict[str, Any], mapping: RowMapping) -> Iterator[tuple[str, str]]:
    for column in (mapping.chosen, mapping.rejected):
        yield column, text_problem(column, row) or encoding_problem(row[column])


def _transcript_pair(row: dict[str, Any], mapping: RowMapping) -> Iterator[tuple[str, str]]:
    problems = list(_text_pair(row, mapping))
    yield from problems
    if any(problem for _, problem in problems):
        return
    prompt, _, _ = split_pair(row[mapping.chosen], row[mapping.rejected])
    if not prompt:
        problem = f"{mapping.chosen} and {mapping.rejected} share no prompt that ends in {TRANSCRIPT_MARK!r}"
        yield mapping.chosen, problem


def _no_preference(row: dict[str, Any], mapping: RowMapping) -> str:
    """Return why an intact pair says nothing about preference; empty when it does."""
    chosen, rejected = row[mapping.chosen], row[mapping.rejected]
    if mapping.form == "pair_chats":
        chosen, rejected = as_chat(chosen)[-1]["content"], as_chat(rejected)[-1]["content"]
    if mapping.form == "pair_transcripts":
        _, chosen, rejected = split_pair(chosen, rejected)
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
