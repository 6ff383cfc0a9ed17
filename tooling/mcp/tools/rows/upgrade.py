"""Tools of `areal-upgrade-deps` and `areal-audit`."""

from __future__ import annotations

from typing import Final

from tooling.mcp.tools.records import NAME, NO_OPTION, REQUIREMENT, Tool, repeated, switch, words

_UPGRADE: Final = "tooling.upgrade.__main__:main"
_AUDIT: Final = "tooling.upgrade.commands.audit:main"
_DIFF: Final = switch("diff", "--diff", "Show unified diffs in `plan`.")
_OFFLINE: Final = switch("offline", "--offline", "Use no network, only what earlier runs have cached.")
_AUDITED: Final = {
    "findings": "array",
    "audits": "array",
    "versions": "array",
    "declarations": "array",
    "resolution": "array",
    "fixed": "array",
    "not_fixed": "array",
    "checklists": "array",
    "sources": "array",
}
_BREAKS: Final = {10: "the audit found something; `worst` of each says whether it breaks"}

TOOLS: Final[tuple[Tool, ...]] = (
    Tool(
        name="upgrade_impact",
        title="What an upgrade would break",
        help="Says which places of the code a new version of a dependency breaks, before anything is touched.",
        program="areal-upgrade-deps",
        main=_UPGRADE,
        words=("impact",),
        parameters=(
            words("requests", REQUIREMENT, 'What to move, e.g. ["transformers==5.4.0"].', required=True),
            repeated("old", "--from", NO_OPTION, "Version to compare with: OLD, or PACKAGE==OLD when several move."),
            switch("info", "--info", "Findings of severity info too."),
            _OFFLINE,
        ),
        fields=_AUDITED,
        network=True,
        verdicts=_BREAKS,
        seconds=900,
        example={"requests": ["transformers==5.0.0"]},
    ),
    Tool(
        name="upgrade_latest",
        title="Newest versions that fit",
        help="For each watched package: the newest version that audits clean, and the first that does not.",
        program="areal-upgrade-deps",
        main=_UPGRADE,
        words=("latest",),
        parameters=(words("packages", NAME, "Only these; default: all that are watched."), _OFFLINE),
        fields={"packages": "array"},
        network=True,
        verdicts=_BREAKS,
        seconds=900,
    ),
    Tool(
        name="upgrade",
        preview="upgrade_plan",
        title="Move a dependency",
        help="Moves dependencies to new versions in manifests and locks, fixes what is certain (with fix), and reports "
        "each place that breaks. Look at upgrade_plan first.",
        program="areal-upgrade-deps",
        main=_UPGRADE,
        parameters=(
            words("requests", REQUIREMENT, 'What to move, e.g. ["transformers==5.4.0"].', required=True),
            repeated("old", "--from", NO_OPTION, "Version to compare with: OLD, or PACKAGE==OLD when several move."),
            switch("fix", "--fix", "Write the changes that are certain, proven by a second audit."),
            switch("no_lock", "--no-lock", "Do not resolve."),
            switch("no_summary", "--no-summary", "Write no report."),
            switch("info", "--info", "Findings of severity info too."),
            _DIFF,
            _OFFLINE,
        ),
        fields=_AUDITED,
        writes=True,
        destructive=True,
        idempotent=True,
        network=True,
        verdicts=_BREAKS,
        seconds=1800,
        example={"requests": ["transformers==5.23.0"], "offline": True},
    ),
    Tool(
        name="audit",
        title="Check the checklists of dependencies",
        help="Compares the checklists of watched dependencies with what the code does.",
        program="areal-audit",
        main=_AUDIT,
        parameters=(words("packages", NAME, "Only these; default: all that are watched."), _OFFLINE),
        fields={"packages": "array"},
        network=True,
        verdicts={10: "a checklist is missing, stale or wrong"},
        seconds=600,
    ),
    Tool(
        name="audit_write",
        preview="audit_plan",
        title="Put the checklists right",
        help="Writes what the checklists of dependencies lack or have wrong; notes of people are kept.",
        program="areal-audit",
        main=_AUDIT,
        words=("--write",),
        parameters=(words("packages", NAME, "Only these; default: all that are watched."), _DIFF, _OFFLINE),
        fields={"packages": "array"},
        writes=True,
        idempotent=True,
        network=True,
        verdicts={10: "some checklists could not be put right"},
        seconds=600,
    ),
)
