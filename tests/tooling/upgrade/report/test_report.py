"""An audit as text, JSON, SARIF and Markdown."""

import json
from dataclasses import replace

import pytest

from tooling.upgrade.findings import (
    Audit,
    AuditFinding,
    AuditSeverity,
    Evidence,
    FindingKind,
    InterfaceKind,
    InterfaceUse,
    Replacement,
    Unfollowed,
    Unseen,
)
from tooling.upgrade.report.document import MEANING, code, document, escaped, markdown, open_share, sarif, text

MOVED = AuditFinding(
    path="train/serve.py",
    line=7,
    end_line=7,
    kind=FindingKind.MOVED,
    severity=AuditSeverity.BREAKING,
    confidence=0.987,
    distribution="vllm",
    symbol="vllm.utils.Counter",
    message="`Counter` is not in vllm.utils any more",
    old=Evidence("vllm/utils.py", 12, "class Counter"),
    new=Evidence("vllm/utils/counter.py", 3, "class Counter"),
    replacement=Replacement("vllm.utils.counter.Counter", "same body", certain=True),
    fixable=True,
)
LATER = replace(
    MOVED,
    line=30,
    end_line=32,
    kind=FindingKind.DEPRECATED,
    severity=AuditSeverity.WARNING,
    replacement=None,
    fixable=False,
)
QUIET = replace(LATER, kind=FindingKind.PRIVATE, severity=AuditSeverity.INFO, message="`_x` is private")
AUDIT = Audit(
    distribution="vllm",
    old_version="0.17.0",
    new_version="0.18.0",
    findings=(MOVED, LATER, QUIET),
    files=3,
    uses=40,
    symbols=9,
    judged=30,
    unresolved=2,
    open=(Unseen(why="native module", count=8, example="a.py:1"),),
    unreadable=("old.py: line 3: print without parentheses",),
    imports=5,
    used_in=("train/serve.py", "train/start.py"),
    interfaces=(
        InterfaceUse(kind=InterfaceKind.FLAG, name="vllm serve --port", path="train/start.py", line=3),
        InterfaceUse(kind=InterfaceKind.FLAG, name="vllm serve --port", path="train/start.py", line=9),
        InterfaceUse(kind=InterfaceKind.FLAG, name="vllm serve --prot", path="train/start.py", line=4, known=False),
        InterfaceUse(kind=InterfaceKind.ROUTE, name="/pause", path="train/serve.py", line=8),
        InterfaceUse(kind=InterfaceKind.PLUGIN, name="train.plugin", path="train/plugin.py", line=1),
    ),
    unfollowed=(Unfollowed(kind=InterfaceKind.FLAG, path="train/start.py", line=5, what="extra: may hold flags"),),
    modules_read=(12, 14),
    seconds={"usage": 0.5, "judge": 0.25},
)


def test_every_verdict_has_a_meaning() -> None:
    assert set(MEANING) == set(FindingKind)


def test_the_worst_of_an_audit_leaves_information_out() -> None:
    assert AUDIT.worst() is AuditSeverity.BREAKING
    assert replace(AUDIT, findings=(LATER, QUIET)).worst() is AuditSeverity.WARNING
    assert replace(AUDIT, findings=(QUIET,)).worst() is None


def test_the_json_object_survives_a_round_trip_and_names_both_sides() -> None:
    found = json.loads(json.dumps(document([AUDIT])))
    first = found["findings"][0]
    assert first["kind"] == "moved"
    assert first["severity"] == "breaking"
    assert first["old"] == {"file": "vllm/utils.py", "line": 12, "signature": "class Counter"}
    assert first["replacement"] == "vllm.utils.counter.Counter"
    assert first["confidence"] == 0.99
    assert found["audits"][0]["counts"] == {"breaking": 1, "warning": 1, "info": 1}


def test_an_empty_side_is_null() -> None:
    gone = replace(AUDIT, findings=(replace(MOVED, new=Evidence()),))
    assert document([gone])["findings"][0]["new"] is None


def test_the_open_share_counts_what_neither_side_could_judge() -> None:
    assert open_share(AUDIT) == pytest.approx(10 / 40)
    assert open_share(replace(AUDIT, uses=0, unresolved=0, open=())) == 0.0


def test_text_names_place_replacement_and_what_was_not_seen() -> None:
    shown = text([AUDIT])
    assert "vllm 0.17.0 -> 0.18.0: 1 breaking, 1 warning, 1 info" in shown
    assert "write: vllm.utils.counter.Counter (same body; --fix may write it)" in shown
    assert "25% not seen" in shown
    assert "8 not seen: native module (e.g. a.py:1)" in shown
    assert "not read: old.py: line 3" in shown
    assert "`_x` is private" not in shown
    assert "`_x` is private" in text([AUDIT], show_info=True)


def test_text_puts_what_breaks_before_what_warns() -> None:
    shown = text([replace(AUDIT, findings=(LATER, replace(MOVED, path="z.py")))])
    assert shown.index("z.py") < shown.index("train/serve.py")


def test_what_was_looked_at_is_counted_by_kind_and_places_that_were_not_followed_are_named() -> None:
    figures = document([AUDIT])["audits"][0]
    assert figures["seen"] == {
        "files": 2, "imports": 5, "symbols": 9, "flags": 2, "routes": 1, "fields": 0, "variables": 0, "plugins": 1,
        "unknown": 1, "unfollowed": 1,
    }  # fmt: skip
    assert figures["unfollowed"] == [
        {"kind": "flag", "path": "train/start.py", "line": 5, "what": "extra: may hold flags"}
    ]
    assert len(figures["interfaces"]) == 5
    shown = text([AUDIT])
    assert "used in 2 files: 5 imports, 9 symbols, 2 flags, 1 route, 0 fields, 0 variables, 1 plugin module" in shown
    assert "not followed: train/start.py:5: extra: may hold flags" in shown
    assert "train/start.py:4: flag vllm serve --prot: 0.17.0 does not have it" in shown
    assert "not followed: `train/start.py:5`" in markdown([AUDIT])


def test_no_audits_no_text() -> None:
    assert text([]) == ""


def test_sarif_has_a_rule_for_each_result_and_levels_of_its_own() -> None:
    log = json.loads(json.dumps(sarif([AUDIT], tool_version="0.1.0")))
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    assert [result["level"] for result in run["results"]] == ["error", "warning", "note"]
    assert run["results"][1]["locations"][0]["physicalLocation"]["region"] == {"startLine": 30, "endLine": 32}


def test_a_fingerprint_survives_edits_above_the_line() -> None:
    def fingerprint(finding: AuditFinding) -> dict[str, str]:
        log = sarif([replace(AUDIT, findings=(finding,))], tool_version="0.1.0")
        return log["runs"][0]["results"][0]["partialFingerprints"]

    assert fingerprint(MOVED) == fingerprint(replace(MOVED, line=99, end_line=99))
    assert fingerprint(MOVED) != fingerprint(replace(MOVED, symbol="vllm.LLM"))


def test_markdown_shows_foreign_text_as_it_is() -> None:
    nasty = replace(MOVED, message="</td><script>x</script> | [a](http://b) @all #1\n# title")
    row = next(line for line in markdown([replace(AUDIT, findings=(nasty,))]).splitlines() if "serve.py" in line)
    assert "<script>" not in row
    assert "\\[a\\]" in row
    assert "\\@all" in row
    unescaped_bars = row.replace("\\|", "").count("|")
    assert unescaped_bars == 5


def test_code_holds_any_backticks() -> None:
    assert code("a`b") == "``a`b``"
    assert code("`a`") == "`` `a` ``"
    assert code("") == ""


def test_escaped_text_has_no_control_characters() -> None:
    assert "\x1b" not in escaped("a\x1b[31mb")
