r"""Mental arithmetic from GSM8K: the calculator annotations that people wrote into real solutions, as tiny prompts.

A raw GSM8K solution and what is taken from it:

    "... She works 8 hours for $9, that is 8*9=$<<8*9=72>>72 ..."   ->   prompt "8*9=", answer "72"

Expressions appear with their real frequency (2+3 often, 7*8 seldom). A vocabulary of 17 tokens is enough, so a model
of 0.4M parameters learns on a laptop. By default operands have one digit and results at most two: 3553 rows of 211
expressions in the GSM8K training problems, 687 rows of 163 expressions in test.

Splits: "train" and "validation" are disjoint sets of GSM8K training problems (every tenth problem validates), so that
nothing is tuned on "test". path "" reads the packaged annotations; otherwise any GSM8K source
(`areal.dataset.gsm8k`).
"""

from __future__ import annotations

import operator
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, DataError
from areal.dataset.encoding import as_messages, encode_prompt, sft_row, to_dataset
from areal.dataset.gsm8k import read_gsm8k
from areal.dataset.reading import FIXTURES
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from datasets import Dataset

logger = getLogger(__name__)

CHARACTERS: Final = "0123456789+-*/="
"""Everything a prompt or answer can contain; `load_tokenizer("characters:0123456789+-*/=")` fits."""
PACKAGED_OPERAND_DIGITS: Final = 2
VALIDATION_EVERY: Final = 10

_ANNOTATION: Final = re.compile(r"<<([^<>=]*)=([^<>]*)>>")
_EXPRESSION: Final = re.compile(r"\d+[-+*/]\d+")
_SIGN: Final = re.compile(r"([-+*/])")
_OPERATIONS: Final[dict[str, Callable[[int, int], float]]] = {
    "*": operator.mul,
    "+": operator.add,
    "-": operator.sub,
    "/": operator.truediv,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One annotation. Example: `Fact(problem=12, expression="8*9", result="72")`."""

    problem: int
    """Index of the GSM8K problem it comes from."""
    expression: str
    result: str


def get_arithmetic_rl_dataset(
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    max_operand_digits: int = 1,
    max_result_digits: int = 2,
    operators: str = "*+-/",
    demonstrations: int = 60,
    seed: int = 0,
    new_only: bool = False,
) -> Dataset:
    """Return `messages` ("8*9="), `answer` ("72"), `expression`, `problem` and `demonstrated`.

    operators: which of * + - / to keep. demonstrations, seed: as given to the SFT loader; `demonstrated` is true for
    expressions that its rows show. new_only: keep only expressions that were never demonstrated.
    """
    limits = {"max_operand_digits": max_operand_digits, "max_result_digits": max_result_digits}
    facts = load_facts(path, split, operators=operators, **limits)
    shown = {
        fact.expression
        for fact in _sample(load_facts(path, "train", operators=operators, **limits), demonstrations, seed)
    }
    rows = [
        {
            "messages": as_messages(f"{fact.expression}=", tokenizer),
            "answer": fact.result,
            "expression": fact.expression,
            "problem": fact.problem,
            "demonstrated": fact.expression in shown,
        }
        for fact in facts
        if not (new_only and fact.expression in shown)
    ]
    return to_dataset(
        rows, f"arithmetic {split}", (len(encode_prompt(r["messages"], tokenizer)) for r in rows), max_length
    )


def get_arithmetic_sft_dataset(
    path: str,
    split: str,
    tokenizer: Any,
    max_length: int | None = None,
    *,
    max_operand_digits: int = 1,
    max_result_digits: int = 2,
    operators: str = "*+-/",
    demonstrations: int = 60,
    seed: int = 0,
) -> Dataset:
    """Return `input_ids` and `loss_mask` of a seeded sample of `demonstrations` rows; 0 takes the whole split."""
    facts = load_facts(
        path, split, max_operand_digits=max_operand_digits, max_result_digits=max_result_digits, operators=operators
    )
    chosen = _sample(facts, demonstrations, seed) if demonstrations else facts
    rows = [sft_row(as_messages(f"{fact.expression}=", tokenizer), fact.result, tokenizer) for fact in chosen]
    return to_dataset(rows, f"arithmetic {split}", (len(row["input_ids"]) for row in rows), max_length)


def load_facts(
    path: str, split: str, *, max_operand_digits: int = 1, max_result_digits: int = 2, operators: str = "*+-/"
) -> list[Fact]:
    """Return annotations of one split in problem order: one operator, two whole operands, a whole and correct result.

    Raises ConfigError for an unknown split or operator and for limits beyond the packaged rows; DataError when nothing
    is left.
    """
    _check_choice(path, split, max_operand_digits, max_result_digits, operators)
    stored = "test" if split == "test" else "train"
    candidates = (
        extract_facts(row["answer"] for row in read_gsm8k(path, stored).rows) if path else _read_packaged(stored)
    )
    correct = []
    num_wrong = 0
    for fact in candidates:
        left, sign, right = _SIGN.split(fact.expression)
        if split != "test" and (fact.problem % VALIDATION_EVERY == 0) != (split == "validation"):
            continue
        if sign not in operators or max(len(left), len(right)) > max_operand_digits:
            continue
        if not (fact.result.isascii() and fact.result.isdecimal()) or len(fact.result) > max_result_digits:
            continue
        if (sign == "/" and int(right) == 0) or _OPERATIONS[sign](int(left), int(right)) != int(fact.result):
            num_wrong += 1
        else:
            correct.append(fact)
    if num_wrong:
        logger.warning("arithmetic %s: dropped %d annotations whose result is wrong", split, num_wrong)
    if not correct:
        raise DataError(f"arithmetic {split}: no annotation of {path or 'the packaged rows'} fits the given limits")
    return correct


def _check_choice(path: str, split: str, max_operand_digits: int, max_result_digits: int, operators: str) -> None:
    if split not in ("train", "validation", "test"):
        raise ConfigError(f"split is {split!r}, expected train, validation or test")
    if not operators or set(operators) - set(_OPERATIONS):
        raise ConfigError(f"operators is {operators!r}, expected a choice of the characters * + - /")
    if min(max_operand_digits, max_result_digits) < 1:
        raise ConfigError("max_operand_digits and max_result_digits must be at least 1")
    if not path and max_operand_digits > PACKAGED_OPERAND_DIGITS:
        raise ConfigError(
            f"max_operand_digits is {max_operand_digits}, but the packaged annotations end at "
            f"{PACKAGED_OPERAND_DIGITS}; set path to the whole GSM8K"
        )


def extract_facts(solutions: Iterable[str]) -> list[Fact]:
    """Return every annotation with one operator and two whole operands, without spaces; `problem` counts solutions."""
    facts = []
    for problem, solution in enumerate(solutions):
        for match in _ANNOTATION.finditer(solution):
            expression, result = ("".join(part.split()) for part in match.groups())
            if _EXPRESSION.fullmatch(expression):
                facts.append(Fact(problem=problem, expression=expression, result=result))
    return facts


def _read_packaged(split: str) -> list[Fact]:
    lines = (FIXTURES / "gsm8k" / f"annotations_{split}.tsv").read_text(encoding="utf-8").splitlines()
    facts = []
    for line in lines:
        problem, _, annotation = line.partition("\t")
        expression, _, result = annotation.partition("=")
        facts.append(Fact(problem=int(problem), expression=expression, result=result))
    return facts


def _sample(facts: Sequence[Fact], count: int, seed: int) -> list[Fact]:
    if not 0 <= count <= len(facts):
        raise ConfigError(f"demonstrations is {count}, expected 0 .. {len(facts)} (the rows there are)")
    return random.Random(f"demonstrations {seed}").sample(facts, count)
