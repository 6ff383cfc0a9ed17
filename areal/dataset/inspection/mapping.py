"""Decides from the roles how a loader has to read the rows: their form, and the kinds of training that it allows.

form              rows have                                            kinds
text              a question, an answer and maybe a worked solution    rl, sft
chat              a chat that ends with the assistant's answer         rl, sft
prompt_chat       a chat that the model has to answer                  rl
pair_texts        a question with a chosen and a rejected answer       preference
pair_chats        two chats that differ in their last turn             preference
pair_transcripts  two transcripts with a common beginning              preference
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from areal.api import ConfigError
from areal.dataset.schema import RESERVED_COLUMNS
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.dataset.inspection.columns import Column
    from areal.dataset.inspection.roles import Roles

Form = Literal["text", "chat", "prompt_chat", "pair_texts", "pair_chats", "pair_transcripts"]
Notation = Literal["", "plain", "number", "hash", "boxed"]

_MAJORITY: Final = 0.5
_KEPT_ROLES: Final = ("id", "source", "tests")
_BUILT: Final = frozenset({"messages", "answer", "images"})
"""Columns that a loader makes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMapping:
    """How rows are read; column names are "" where there is none.

    Example: `RowMapping(form="text", kinds=("rl", "sft"), question="question", answer="answer", final="hash", ...)`.
    """

    form: Form
    kinds: tuple[str, ...]
    question: str = ""
    answer: str = ""
    """Column of the final answer that a reward compares with."""
    final: Notation = ""
    """How it is written: "plain" text, a "number", after "####" ("hash") or in a box ("boxed")."""
    solution: str = ""
    """Column of the text that SFT learns; may be that of the answer."""
    messages: str = ""
    chosen: str = ""
    rejected: str = ""
    image: str = ""
    keep: tuple[str, ...] = ()
    """Further columns that reach the reward."""

    @property
    def used(self) -> tuple[str, ...]:
        """Every column that a loader reads, without repetitions."""
        names = (self.question, self.messages, self.image, self.answer, self.solution, self.chosen, self.rejected)
        return tuple(dict.fromkeys(name for name in (*names, *self.keep) if name))

    def as_data(self) -> dict[str, Any]:
        """For the report (JSON)."""
        return asdict(self)


def decide(
    columns: Mapping[str, Column], roles: Roles, *, kind: str, keep: Sequence[str] | None
) -> tuple[RowMapping | None, list[str]]:
    """Return (the mapping, reasons); the mapping is None when nothing fits, and then the reasons say why.

    kind: "rl", "sft", "preference", "both" (rl and sft), or "" for whatever the rows allow. keep: columns to hand to
    the reward; None takes those whose role is id, source or tests. Raises ConfigError for a column to keep that does
    not exist or that a reward could not take.
    """
    for name in keep or ():
        if name not in columns:
            hint = did_you_mean(name, columns)
            raise ConfigError(f"there is no column {name!r} to keep: {hint and hint + ' '}found {', '.join(columns)}")
        if name in RESERVED_COLUMNS:
            raise ConfigError(f"column {name!r} cannot be kept: it is the name of a parameter of every reward function")
    preference = bool(roles.column("chosen") and roles.column("rejected"))
    if kind == "preference" or (not kind and preference):
        return _pair(columns, roles)
    wanted = {"": ("rl", "sft"), "both": ("rl", "sft")}.get(kind, (kind,))
    names = [roles.column(role) for role in _KEPT_ROLES] if keep is None else keep
    kept = tuple(name for name in dict.fromkeys(names) if name and name not in RESERVED_COLUMNS | _BUILT)
    mapping, reasons = _answered(columns, roles, kept)
    if mapping is None:
        return None, reasons
    kinds = tuple(name for name in wanted if name in mapping.kinds)
    if not kinds or (kind and kinds != wanted):
        missing = ", ".join(name for name in wanted if name not in kinds)
        return None, [f"rows do not fit {missing}: {reason}" for reason in reasons] or [f"rows do not fit {missing}"]
    # Columns that only other kinds read are left out.
    data = asdict(mapping) | {"kinds": kinds}
    if "sft" not in kinds:
        data["solution"] = ""
    if "rl" not in kinds:
        data |= {"answer": "", "final": "", "keep": ()}
    return RowMapping(**data), []


def _answered(
    columns: Mapping[str, Column], roles: Roles, keep: tuple[str, ...]
) -> tuple[RowMapping | None, list[str]]:
    chat = roles.column("messages")
    needed = ("answer", "image") if chat else ("messages", "question", "answer", "image")
    open_roles = [role for role in needed if role in roles.undecided]
    if open_roles:
        return None, [f"no column is known to hold the {role}{_candidates(roles, role)}" for role in open_roles]
    if chat:
        return _chat(columns, roles, keep)
    question = roles.column("question")
    if not question:
        return None, [f"no column is known to hold the question{_candidates(roles, 'question')}"]
    image = roles.column("image")
    answer, final, solution, reasons = _answer(columns, roles)
    kinds = ["rl"] if answer or not solution or image else []
    if image:
        reasons = ["images are for rl: SFT rows hold text only"]
        solution = ""
    kinds += ["sft"] if solution else []
    mapping = RowMapping(
        form="text",
        kinds=tuple(kinds),
        question=question,
        answer=answer,
        final=final,
        solution=solution,
        image=image,
        keep=tuple(name for name in keep if name not in (question, image)),
    )
    return mapping, reasons


def _answer(columns: Mapping[str, Column], roles: Roles) -> tuple[str, Notation, str, list[str]]:
    """Return (answer column, how it is written, column for SFT, why a kind is impossible)."""
    answer, solution = roles.column("answer"), roles.column("solution")
    if answer:
        final = _final(columns[answer])
        if final == "number" and not solution:
            return answer, final, "", ["the answers are numbers, and SFT learns text"]
        return answer, final, solution or answer, []
    if solution:
        final = _final(columns[solution])
        if final in ("hash", "boxed"):
            return solution, final, solution, []
        return "", "", solution, ["the solutions have no final answer after '####' or in \\boxed{}"]
    return "", "", "", [f"no column is known to hold the answer{_candidates(roles, 'answer')}"]


def _final(column: Column) -> Notation:
    if column.main_type == "number":
        return "number"
    if column.share("hash") >= _MAJORITY:
        return "hash"
    return "boxed" if column.share("boxed") >= _MAJORITY else "plain"


def _chat(columns: Mapping[str, Column], roles: Roles, keep: tuple[str, ...]) -> tuple[RowMapping | None, list[str]]:
    messages, answer = roles.column("messages"), roles.column("answer")
    if roles.column("image"):
        return None, ["images beside chats are not supported: give the text of the question with --question-column"]
    answered = columns[messages].share("answered") >= _MAJORITY
    mapping = RowMapping(
        form="chat" if answered else "prompt_chat",
        kinds=("rl", "sft") if answered else ("rl",),
        messages=messages,
        answer=answer,
        final=_final(columns[answer]) if answer else "",
        keep=tuple(name for name in keep if name != messages),
    )
    return mapping, [] if answered else ["most chats do not end with an assistant turn to learn"]


def _pair(columns: Mapping[str, Column], roles: Roles) -> tuple[RowMapping | None, list[str]]:
    chosen, rejected, question = roles.column("chosen"), roles.column("rejected"), roles.column("question")
    lacking = [role for role in ("chosen", "rejected") if not roles.column(role)]
    if lacking:
        return None, [f"no column is known to hold the {role} answer{_candidates(roles, role)}" for role in lacking]
    types = {columns[chosen].main_type, columns[rejected].main_type}
    form: Form
    if types == {"chat"}:
        form, question = "pair_chats", ""
    elif (
        types == {"text"}
        and min(columns[chosen].share("transcript"), columns[rejected].share("transcript")) >= _MAJORITY
    ):
        form, question = "pair_transcripts", ""
    elif types == {"text"} and question:
        form = "pair_texts"
    else:
        return None, [
            f"{chosen} and {rejected} hold {' and '.join(sorted(types))}; expected chats, transcripts with "
            f"'\\n\\nHuman:' and '\\n\\nAssistant:', or texts beside a question{_candidates(roles, 'question')}"
        ]
    return RowMapping(form=form, kinds=("preference",), question=question, chosen=chosen, rejected=rejected), []


def _candidates(roles: Roles, role: str) -> str:
    found = roles.undecided.get(role, ())
    if not found:
        return f"; say which with --{role}-column"
    return f": {', '.join(repr(candidate.column) for candidate in found)} could; say which with --{role}-column"
