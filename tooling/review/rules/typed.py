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
    "unused-awaitable": "never-awaited",
}
"""Rule of ty -> rule of ours, sorted; some have two names, an older and a newer one."""

SAID_BY: Final[dict[str, str]] = {
    "signature-mismatch": "method-mismatch",
    "unknown-attribute": "unknown-self-attribute",
}
"""Rule under which ty's findings count -> a rule of ours that may have found the same on that line."""

RULES: Final = (
    Rule("abstract-instance", Severity.HIGH),
    Rule("falls-through", Severity.MEDIUM, in_tests=False),
    Rule("not-callable", Severity.HIGH),
    Rule("unlike-types", Severity.HIGH),
)
"""Only ty looks for these. `signature-mismatch` and `unknown-attribute` are looked for by rules of ours too."""
