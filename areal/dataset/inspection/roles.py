"""Decides what each column is for, with the evidence, and never guesses between equals.

A column has a role because of its name, because of what its values are (chats, images), or because the caller said so.
Several candidates for one role are reported as undecided; `areal.dataset.inspection.mapping` goes on from the roles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from areal.api import ConfigError
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.dataset.inspection.columns import Column

ROLES: Final = (
    "question",
    "answer",
    "solution",
    "messages",
    "chosen",
    "rejected",
    "image",
    "id",
    "source",
    "tests",
)

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "question": ("question", "prompt", "problem", "instruction", "query", "input", "question_text"),
    "answer": (
        "answer", "final_answer", "ground_truth", "expected_answer", "reference_answer", "gold", "target", "label",
        "response", "output", "completion",
    ),
    "solution": ("solution", "rationale", "reasoning", "explanation", "worked_solution", "generated_solution"),
    "messages": ("messages", "conversations", "conversation", "chat", "dialogue", "dialog"),
    "chosen": ("chosen", "preferred", "chosen_response", "response_chosen"),
    "rejected": ("rejected", "dispreferred", "rejected_response", "response_rejected"),
    "image": ("image", "images", "picture", "pictures", "img", "photo"),
    "id": ("id", "uuid", "uid", "idx", "index", "row_id", "question_id", "problem_id", "task_id", "unique_id"),
    "source": ("source", "data_source", "origin"),
    "tests": ("tests", "test_cases", "unit_tests", "test_list", "public_tests", "test_code"),
}  # fmt: skip

_TYPES: Final[dict[str, tuple[str, ...]]] = {
    "question": ("text",),
    "answer": ("text", "number"),
    "solution": ("text",),
    "messages": ("chat",),
    "chosen": ("text", "chat"),
    "rejected": ("text", "chat"),
    "image": ("image", "text", "list"),
    "id": ("text", "number"),
    "source": ("text",),
    "tests": ("text", "list", "object"),
}
_BY_NAME: Final = 0.9
_BY_CONTENT: Final = 0.7
_BY_BOTH: Final = 0.97
_MAJORITY: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One column with its use.

    Example: `Role(role="question", column="question", confidence=0.9, evidence=("named 'question'", "texts"))`.
    """

    role: str
    column: str
    confidence: float
    """0 .. 1; 1 when the caller said so."""
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Decided roles by name, and candidates of those that could not be decided."""

    decided: Mapping[str, Role]
    undecided: Mapping[str, tuple[Role, ...]]

    def column(self, role: str) -> str:
        """Return the column of a decided role, "" when there is none."""
        return self.decided[role].column if role in self.decided else ""


def infer_roles(columns: Mapping[str, Column], given: Mapping[str, str]) -> Roles:
    """Return the roles of `columns`.

    given: role to column, as the caller decided; "" means that no column has the role. Raises ConfigError with the
    nearest name for a column that does not exist.
    """
    decided: dict[str, Role] = {}
    undecided: dict[str, tuple[Role, ...]] = {}
    for role, column in given.items():
        if column and column not in columns:
            hint = did_you_mean(column, columns)
            raise ConfigError(
                f"there is no column {column!r} for {role}: {hint and hint + ' '}found {', '.join(sorted(columns))}"
            )
        if column:
            decided[role] = Role(role=role, column=column, confidence=1.0, evidence=("given by option",))
    taken = {role.column for role in decided.values()}
    for role in ROLES:
        if role in given:
            continue
        candidates = [found for name in columns if name not in taken and (found := _candidate(role, columns[name]))]
        candidates.sort(key=lambda found: (-found.confidence, found.column))
        if len(candidates) > 1 and candidates[0].confidence == candidates[1].confidence:
            undecided[role] = tuple(candidates)
        elif candidates:
            decided[role] = candidates[0]
    return Roles(decided=decided, undecided=undecided)


def _candidate(role: str, column: Column) -> Role | None:
    named = _fold(column.name) in _NAMES[role]
    held = ""
    """What the values themselves say for the role."""
    if role == "messages" and column.main_type == "chat":
        if _fold(column.name) not in (*_NAMES["chosen"], *_NAMES["rejected"]):
            held = f"{column.types['chat']} values are chats"
    elif role == "image" and (column.main_type == "image" or column.share("image") >= _MAJORITY):
        held = "values are images"
    if column.main_type not in _TYPES[role] or not (named or held):
        return None
    if role == "image" and not held:
        return None
    confidence = _BY_BOTH if named and held else _BY_NAME if named else _BY_CONTENT
    evidence = ([f"named {column.name!r}"] if named else []) + [held or f"holds {column.main_type}"]
    return Role(role=role, column=column.name, confidence=confidence, evidence=tuple(evidence))


def _fold(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
