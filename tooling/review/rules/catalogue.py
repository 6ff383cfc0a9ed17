"""Lists all rules by id and family, and the concerns they serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tooling.review.rules import (
    alignment,
    asynchrony,
    completeness,
    configuration,
    distributed,
    imports,
    invariants,
    linted,
    members,
    numerics,
    options,
    ranks,
    references,
    reproducibility,
    rewards,
    robustness,
    security,
    testing,
    trajectories,
    typed,
    yaml_keys,
)

if TYPE_CHECKING:
    from tooling.review.records import Rule


FAMILIES: Final = {
    "alignment": alignment.RULES,
    "asynchrony": asynchrony.RULES,
    "completeness": completeness.RULES,
    "configuration": configuration.RULES,
    "distributed": distributed.RULES,
    "imports": imports.RULES,
    "invariants": invariants.RULES,
    "linted": linted.RULES,
    "members": members.RULES,
    "numerics": numerics.RULES,
    "options": options.RULES,
    "ranks": ranks.RULES,
    "references": references.RULES,
    "reproducibility": reproducibility.RULES,
    "rewards": rewards.RULES,
    "robustness": robustness.RULES,
    "security": security.RULES,
    "testing": testing.RULES,
    "trajectories": trajectories.RULES,
    "typed": typed.RULES,
    "yaml_keys": yaml_keys.RULES,
}
RULES: Final[dict[str, Rule]] = {rule.id: rule for rules in FAMILIES.values() for rule in rules}


def family_of(rule: str) -> str:
    """Return the family of a rule's id."""
    return next(name for name, rules in FAMILIES.items() if any(each.id == rule for each in rules))


CONCERNS: Final[dict[str, tuple[str, ...]]] = {
    "GPU-CPU synchronisation in hot paths": ("host-sync-in-loop",),
    "collectives under rank-dependent branches": (
        "collective-under-rank",
        "return-before-collective",
        "rank-local-assert",
    ),
    "missing process group": ("group-not-forwarded", "barrier-of-all-ranks", "group-without-timeout"),
    "rank of the default group": ("default-group-rank",),
    "process groups of a module": ("module-level-group",),
    "blocking work in episodes and other asynchronous code": (
        "blocking-in-async",
        "file-in-episode",
        "unbounded-wait",
    ),
    "coroutines and tasks that nobody awaits": ("never-awaited", "dropped-task"),
    "rewards that swallow exceptions or return no number": (
        "reward-swallows",
        "reward-no-number",
        "reward-unguarded",
    ),
    "shared rows and batches that are changed": ("shared-row-changed", "mutable-default"),
    "results that are dropped": ("dropped-result", "dead-assignment"),
    "shifts of masks and log-probabilities": ("mask-not-shifted", "roll-across-rows", "shifted-alike"),
    "masks that select nothing, and other arithmetic": (
        "unguarded-mask-division",
        "unmasked-numerator",
        "histogram-end",
    ),
    "code for one kind of device": ("one-kind-of-device",),
    "groups and pairs that are split": ("group-order-lost", "pair-halves-equal"),
    "versions and weight updates": (
        "version-not-set",
        "trajectory-without-versions",
        "minimum-of-versions",
        "update-without-pause",
    ),
    "state, denominators and failures of a step": ("state-on-workflow", "denominator-of-part", "failure-as-score"),
    "config fields: documents, defaults, validation, order": (
        "undocumented-field",
        "required-field-added",
        "unchecked-choice",
        "assert-in-config",
        "literal-in-config",
        "field-order",
        "field-moved",
        "unknown-yaml-key",
        "unknown-attribute",
    ),
    "public names removed without deprecation": ("removed-export",),
    "names and calls that fit nothing": (
        "unresolved-import",
        "signature-mismatch",
        "undefined-name",
        "main-only-name",
        "unknown-self-attribute",
        "method-mismatch",
        "abstract-instance",
        "not-callable",
        "unreadable-python",
        "silent-getattr",
    ),
    "registries": ("registry-entry-missing", "registry-target"),
    "imports: heavy, wildcard, frozen": ("heavy-import", "heavy-package-root", "wildcard-import", "frozen-import"),
    "secrets and fixed endpoints": ("secret", "fixed-endpoint", "open-address", "route-without-key"),
    "unsafe deserialisation and shells": (
        "unsafe-deserialisation",
        "unsafe-torch-load",
        "unsafe-yaml",
        "evaluated-text",
        "shell-from-values",
    ),
    "code that Python cannot run, or runs otherwise than it reads": (
        "misplaced-statement",
        "broken-method",
        "format-mismatch",
        "constant-condition",
        "no-effect",
        "not-an-exception",
        "misread-function",
        "old-numpy-name",
        "assignment-in-assert",
    ),
    "names that stand twice or mean something else later": (
        "definition-replaced",
        "repeated-key",
        "late-binding",
        "changed-while-iterating",
    ),
    "handlers that nothing reaches, or that drop errors": ("unreachable-handler", "exit-drops-error"),
    "the environment, caches and requests of the process": (
        "environment-replaced",
        "instance-kept-by-cache",
        "request-without-timeout",
    ),
    "archives, temporary files and certificates": (
        "unpacked-archive",
        "shared-temporary-name",
        "unverified-connection",
    ),
    "state written over its only copy, resources left open": ("torn-state", "socket-left-open"),
    "seeds and order of the data": ("unstable-seed", "seeded-at-import", "sampler-without-epoch"),
    "retries without end": ("endless-retry",),
    "errors that disappear": ("swallowed-error", "exit-raises-again"),
    "tests that assert nothing": ("toothless-test",),
    "changed code without a changed test": ("untested-symbol",),
    "documents and skills that name what is gone": (
        "document-names-gone",
        "pages-behind",
        "translation-behind",
        "mirror-drift",
    ),
    "dependencies without their lock or checklist": ("lock-behind", "checklist-behind"),
}
