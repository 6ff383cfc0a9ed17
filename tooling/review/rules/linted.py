"""Bugs that ruff finds: which of its rules count here, and under which name and severity of ours.

Left out is what is a matter of style, and what is often right: unused names, print, assert, defaults that are called.
"""

from __future__ import annotations

from typing import Final

from tooling.review.records import Rule, Severity

_CODES: Final = {
    "assignment-in-assert": "RUF018",
    "blocking-in-async": "ASYNC210 ASYNC220 ASYNC221 ASYNC222 ASYNC251",
    "broken-method": "PLE0100 PLE0237 PLE0241 PLE0302 PLE0305 PLE0307 PLE0308 PLE0309 PLE1519 PLE1520 PLW0245 RUF033",
    "changed-while-iterating": "B020 B031 F402",
    "constant-condition": "F631 F632 F634 PLR0124 PLW0129 PLW0131 PLW0177 RUF034 SIM220 SIM221 SIM222 SIM223",
    "definition-replaced": "F811",
    "dropped-task": "RUF006",
    "environment-replaced": "B003 PLW1507",
    "error-not-raised": "PLW0133",
    "exit-drops-error": "B012",
    "format-mismatch": "F501 F502 F503 F504 F505 F506 F507 F508 F509 F521 F522 F523 F524 F525 PLE1205 PLE1206 PLE1300 "
    "PLE1307",
    "instance-kept-by-cache": "B019",
    "invalid-escape": "W605",
    "late-binding": "B023",
    "misplaced-statement": "F701 F702 F704 F706 PLE0115 PLE0116 PLE0117 PLE0118 PLE0704 PLE1142",
    "misread-function": "B004 B005 B034 PLE0604 PLE0605 PLE0643 PLE1310 PLE1507 PLW1501 RUF016 RUF026",
    "mutable-default": "B039 RUF008 RUF024",
    "no-effect": "B002 B015 B022 F633 PLW0127 PLW0128 PLW2101",
    "not-an-exception": "B016 B030 F901",
    "old-numpy-name": "NPY001 NPY201",
    "repeated-key": "B033 B035 F601 F602 PLE1132",
    "request-without-timeout": "S113",
    "shared-temporary-name": "S306",
    "stray-comma": "COM818",
    "undefined-name": "F823",
    "unpacked-archive": "S202",
    "unreachable-handler": "B025 B029 F707 PLW0711",
    "unverified-connection": "S323 S501 S507",
}
CODES: Final[dict[str, str]] = {code: rule for rule, codes in _CODES.items() for code in codes.split()}
"""Code of ruff -> rule of ours. Some of ours look by themselves too: what both find is reported once."""

RULES: Final = (
    Rule("assignment-in-assert", Severity.MEDIUM),
    Rule("broken-method", Severity.HIGH),
    Rule("constant-condition", Severity.HIGH),
    Rule("definition-replaced", Severity.MEDIUM),
    Rule("environment-replaced", Severity.MEDIUM),
    Rule("exit-drops-error", Severity.HIGH),
    Rule("format-mismatch", Severity.HIGH),
    Rule("instance-kept-by-cache", Severity.MEDIUM, in_tests=False),
    Rule("invalid-escape", Severity.LOW),
    Rule("late-binding", Severity.LOW),
    Rule("misplaced-statement", Severity.CRITICAL),
    Rule("misread-function", Severity.MEDIUM),
    Rule("no-effect", Severity.MEDIUM, in_tests=False),
    Rule("not-an-exception", Severity.HIGH),
    Rule("old-numpy-name", Severity.HIGH),
    Rule("repeated-key", Severity.MEDIUM),
    Rule("request-without-timeout", Severity.MEDIUM, in_tests=False),
    Rule("shared-temporary-name", Severity.MEDIUM, in_tests=False),
    Rule("stray-comma", Severity.HIGH),
    Rule("unpacked-archive", Severity.HIGH, in_tests=False),
    Rule("unreachable-handler", Severity.MEDIUM),
    Rule("unverified-connection", Severity.HIGH, in_tests=False),
)
"""Only ruff looks for these."""
