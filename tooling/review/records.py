"""What passes between the phases of a review: severities, rules, places that rules yield, findings."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from tooling.review.rule_texts import rule_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tooling.python.module import Module
    from tooling.review.repository.comparison import Comparison
    from tooling.review.repository.side import Side
    from tooling.review.rule_texts import RuleText


class Severity(IntEnum):
    """How bad it is if the finding is right."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


MIN_REASON = 10
"""Characters of a reason for suppressing a finding; less says nothing."""
_TESTS = re.compile(r"(^|/)tests?/|(^|/)(test_[^/]*|conftest|[^/]*_test)\.py$")


def is_test(path: str) -> bool:
    """Whether a file is a test, or helps tests."""
    return bool(_TESTS.search(path))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rule holds. `message` says what is there; it must not contain line numbers, which change."""

    path: str
    line: int
    message: str
    evidence: str = ""
    """Another place that proves it: "areal/utils/functional.py:12"."""


Located = ast.expr | ast.stmt | ast.ExceptHandler | int
"""A node that has a line, or the line itself."""
Hit = tuple[Located, str] | tuple[Located, str, Located | str]
"""What a rule of one file says: where, what, and another node of the file, or place elsewhere, that proves it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing to look for; rules.toml says what and why. At most one of `in_file` and `in_change` is given; with
    neither, only ruff or ty looks."""

    id: str
    severity: Severity
    _: KW_ONLY
    in_tests: bool = True
    """Whether it holds in tests too."""
    in_file: Callable[[Module, Side], Iterator[Hit]] | None = None
    """Looks at one module of one side; run on both sides, so that only what is new counts."""
    in_change: Callable[[Comparison], Iterator[Place]] | None = None
    """Looks at the change as a whole; what it yields is new by construction."""

    def places(self, module: Module, side: Side) -> Iterator[Place]:
        """Look at one module of one side; a rule of a change finds nothing there."""
        for at, said, *proof in self.in_file(module, side) if self.in_file is not None else ():
            evidence = "".join(each if isinstance(each, str) else f"{module.path}:{_line(each)}" for each in proof)
            yield Place(module.path, _line(at), said, evidence)

    @property
    def text(self) -> RuleText:
        """Its words. Raises KeyError for a rule that the table lacks."""
        return rule_texts()[self.id]


def _line(at: Located) -> int:
    return at if isinstance(at, int) else at.lineno


@dataclass(frozen=True, slots=True)
class ReviewFinding:
    """A place that is new, with its rule."""

    rule: Rule
    place: Place
    symbol: str
    """Enclosing function or class; "" at the top level."""
    code: str
    """The line of source, stripped."""
    nth: int = 0
    """Number among equal findings of one file."""
    suppressed: str = ""
    """Reason given in a comment or "baseline"; "" when it counts."""

    @property
    def fingerprint(self) -> str:
        """Stays the same when code above moves the line."""
        parts = (self.rule.id, self.place.path, self.symbol, self.code, self.place.message, str(self.nth))
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:24]
