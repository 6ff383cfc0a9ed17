"""Bugs that the type checker ty finds: which of its rules count here, and under which name and severity of ours.

Only what is certain without knowing any other package counts: a call of a function of the repository that does not fit
it, an attribute that nothing in the repository defines, a function that ends without the value it promises and not with
a call that may always raise. Other arguments and operands of another type than a literal, and values that may be None,
are often right in code that is annotated loosely.
"""

from __future__ import annotations

from typing import Final

from tooling.review.records import Rule, Severity

CHECKED: Final[dict[str, str]] = {
    "abstract-class-instantiation": "abstract-instance",
    "call-abstract-method": "abstract-instance",
    "call-non-callable": "not-callable",
    "invalid-argument-type": "unlike-types",
    "invalid-implicit-return": "falls-through",
    "missing-argument": "signature-mismatch",
    "missing-attribute": "unknown-attribute",
    "not-callable": "not-callable",
    "parameter-already-assigned": "signature-mismatch",
    "too-many-positional-arguments": "signature-mismatch",
    "unknown-argument": "signature-mismatch",
    "unresolved-attribute": "unknown-attribute",
}
"""Rule of ty -> rule of ours, sorted; some have two names, an older and a newer one."""

SAID_BY: Final[dict[str, str]] = {
    "signature-mismatch": "method-mismatch",
    "unknown-attribute": "unknown-self-attribute",
}
"""Rule under which ty's findings count -> a rule of ours that may have found the same on that line."""

RULES: Final = (
    Rule(
        id="abstract-instance",
        severity=Severity.HIGH,
        title="Instance of a class with abstract methods",
        why="Making it raises TypeError: a method that the base demands is missing, or was renamed.",
        fix="Implement the methods, or make an instance of a subclass.",
        example="class A(ABC):\n    @abstractmethod\n    def f(self): ...\n\n\nA()",
    ),
    Rule(
        id="falls-through",
        severity=Severity.MEDIUM,
        title="Function that ends without the value it promises",
        why="Where no branch matches it returns None, which fails far away from here.",
        fix="Raise for what no branch handles, or say in the annotation that it may be None.",
        example='def scale(kind: str) -> float:\n    if kind == "mean":\n        return 1.0',
        in_tests=False,
    ),
    Rule(
        id="not-callable",
        severity=Severity.HIGH,
        title="Call of a value that cannot be called",
        why="It raises TypeError as soon as it runs; a property that was a method is the usual cause.",
        fix="Drop the parentheses, or call what was meant.",
        example="class A:\n    @property\n    def size(self) -> int: ...\n\n\nA().size()",
    ),
    Rule(
        id="unlike-types",
        severity=Severity.HIGH,
        title="Text where a number is taken, or a number where a text is",
        why="It raises TypeError, or compares what never equals.",
        fix="Convert it, or correct the order of the arguments.",
        example='def wait(seconds: float): ...\n\n\nwait("5")',
    ),
)
"""Only ty looks for these. `signature-mismatch` and `unknown-attribute` are looked for by rules of ours too."""
