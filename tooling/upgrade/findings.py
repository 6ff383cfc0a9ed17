"""What an audit says about one place: the contract of `verdicts`, `interfaces`, `fixes`, `checklists` and `report`.

The severity policy. BREAKING: on the new version this line raises, or silently does something else, whenever it is
reached, and both sides' evidence is shown. WARNING: works today but announced to go, or another default, or masked by a
fallback, or only a type checker sees it, or only some members of a union break. INFO: touches a private name that
still exists, or is resolved on neither side. Where nothing is known nothing is said. In doubt one level down, never up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class AuditSeverity(StrEnum):
    """How bad a finding is."""

    BREAKING = "breaking"
    WARNING = "warning"
    INFO = "info"


class FindingKind(StrEnum):
    """Kind of a finding; docs/upgrade.md has an entry with an example for each."""

    REMOVED = "removed"
    MOVED = "moved"
    RENAMED = "renamed"
    PARAM_REMOVED = "param-removed"
    PARAM_RENAMED = "param-renamed"
    PARAM_REQUIRED = "param-required"
    PARAM_KWONLY = "param-kwonly"
    PARAM_POSONLY = "param-posonly"
    PARAM_REORDERED = "param-reordered"
    DEFAULT_CHANGED = "default-changed"
    RETURN_CHANGED = "return-changed"
    OVERRIDE_DRIFT = "override-drift"
    KIND_CHANGED = "kind-changed"
    ASYNC_CHANGED = "async-changed"
    DEPRECATED = "deprecated"
    PRIVATE = "private"
    CLI_FLAG = "cli-flag"
    HTTP_ROUTE = "http-route"
    HTTP_FIELD = "http-field"
    ENV_VAR = "env-var"
    GUARD_DEAD = "guard-dead"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One side of a finding. All empty where that side has nothing."""

    file: str = ""
    """Path inside the release."""
    line: int = 0
    signature: str = ""
    """The definition as one line, e.g. "def generate(self, prompts, *, use_tqdm=True)"."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What to write instead."""

    text: str
    """Dotted path of the new symbol, new name of a parameter, or the new flag."""
    why: str
    """Evidence in words: "same body", "only definition of that name", "the package's own importers changed alike"."""
    certain: bool
    """Whether `--fix` may use it: the candidate is unique and the arguments of this use bind."""

    @property
    def sentence(self) -> str:
        """What a message says about it."""
        return f"it is `{self.text}` now" if self.certain else f"it may be `{self.text}` now"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """One place of the audited repository that the new version breaks, or may."""

    path: str
    """Relative to the repository, with forward slashes."""
    line: int
    """1-based, of the expression that fails: the name in an import, the keyword of a call, the `def` of an override."""
    column: int = 0
    """0-based, in UTF-8 bytes as `ast` counts."""
    end_line: int
    kind: FindingKind
    severity: AuditSeverity
    confidence: float
    """0 to 1: how sure the inference is that this place touches that symbol, and that the two sides differ so."""
    distribution: str
    symbol: str
    """Dotted path as the old version has it, e.g. "vllm.LLM.generate"."""
    parameter: str = ""
    message: str
    old: Evidence = field(default_factory=Evidence)
    new: Evidence = field(default_factory=Evidence)
    replacement: Replacement | None = None
    fixable: bool = False
    guard: str = ""
    """The condition or fallback the place stands under, in words; "" for none."""

    @property
    def instead(self) -> str:
        """What to write, of a finding that has a replacement."""
        assert self.replacement is not None, "only findings with a replacement are fixed"
        return self.replacement.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Uses that could not be judged, by reason."""

    why: str
    count: int
    example: str
    """path:line of one of them."""


class InterfaceKind(StrEnum):
    """What of a program is used besides its symbols."""

    FLAG = "flag"
    ROUTE = "route"
    FIELD = "field"
    VARIABLE = "variable"
    PLUGIN = "plugin"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class InterfaceUse:
    """A flag, route, field or variable that the repository uses, or a module of its own that the program loads."""

    kind: InterfaceKind
    name: str
    """ "vllm serve --port", "/pause", "/v1/completions: prompt", "VLLM_PORT", or the dotted name of a module."""
    path: str
    line: int
    known: bool = True
    """Whether the old version has it."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Unfollowed:
    """A place whose value could not be followed: what it uses was not judged."""

    kind: InterfaceKind
    path: str
    line: int
    what: str
    """The expression, and what it may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found of one distribution, and how much of it could be seen at all."""

    distribution: str
    old_version: str
    new_version: str
    findings: tuple[AuditFinding, ...]
    """By path, line and column; one cause at one place is one finding."""
    files: int = 0
    """Files of the repository that were looked at."""
    excluded: tuple[str, ...] = ()
    """Files that use the package and that the policy excludes."""
    uses: int = 0
    """Places of the repository that touch the package."""
    symbols: int = 0
    """Different symbols they touch."""
    judged: int = 0
    """Uses that are known on both sides."""
    unresolved: int = 0
    """Uses that the old version does not have either: broken before, or beyond sight. No ground for a verdict."""
    open: tuple[Unseen, ...] = ()
    imports: int = 0
    """Uses that are imports."""
    used_in: tuple[str, ...] = ()
    """Files of the repository that use the package: its symbols or its interfaces."""
    interfaces: tuple[InterfaceUse, ...] = ()
    """By kind, name and place."""
    unfollowed: tuple[Unfollowed, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Files of the repository that could not be read, each with the reason."""
    modules_read: tuple[int, int] = (0, 0)
    """Modules parsed of the old and the new release."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase."""

    @property
    def looked_at_nothing(self) -> bool:
        """Whether no file was in scope, or only excluded files use the package: "0 findings" would be misleading."""
        return not self.files or bool(self.excluded and not self.uses and not self.findings)

    def worst(self) -> AuditSeverity | None:
        """Return the highest severity among the findings, INFO left out."""
        found = {finding.severity for finding in self.findings}
        return next((level for level in (AuditSeverity.BREAKING, AuditSeverity.WARNING) if level in found), None)
