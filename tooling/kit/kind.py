"""Describes a kind of unit (reward, dataset, ...) as records.

templates/reward/template.toml  -> Manifest (every string a Jinja template over names and answers) -> ResolvedManifest
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

RegistryShape = Literal["mapping", "sequence", "all", "lazy"]
"""How a registry is written.

mapping   NAME = {key: value} (also OrderedDict(...)); key and value become string literals
sequence  NAME = [..] / (..) / {..} / frozenset({..}) of strings; `key` is the element, `value` unused
all       __all__ = [..]; `key` is the element
lazy      a mapping name -> module and __all__, changed together; `table` names the mapping
"""


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """One entry of a registry in source code."""

    file: str
    shape: RegistryShape
    table: str
    key: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class DocumentEntry:
    """One line of a document between `<!-- areal-new:SECTION -->` and `<!-- /areal-new:SECTION -->`, sorted by key."""

    file: str
    section: str
    key: str
    line: str
    shape: ClassVar[str] = "document"
    """How the document is edited; with `table` and `value` a line is handled as an entry of a registry is."""

    @property
    def table(self) -> str:
        """Return the section."""
        return self.section

    @property
    def value(self) -> str:
        """Return the line."""
        return self.line


@dataclass(frozen=True, slots=True)
class TemplateFile:
    """What one generated file is for; `explain` prints it."""

    path: str
    purpose: str
    contract: str = ""
    """Where the contract it meets is written, "areal/api/reward.py:RewardFunction"."""
    todo: tuple[str, ...] = ()
    """What is left for a person to do."""
    test: bool = False
    """Whether it is a test that proves the unit."""


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """A command option that is not an answer itself: the generator page derives answers from it."""

    name: str
    """Without dashes, e.g. "from-examples"."""
    metavar: str
    """Name of its value in help texts; empty for an option that has none and is given or not."""
    help: str
    reports: bool = False
    """With this option nothing is generated: the page reports what it found."""


@dataclass(frozen=True, slots=True)
class KindManifest:
    """`template.toml`: what copier.yml cannot say. All strings may hold Jinja expressions over names and answers; the
    tables `files`, `registry`, `unproven`, `documents` may carry `when`, a Jinja expression.

    Example (TOML):
        name = "reward"
        summary = "a reward function"
        symbols = ["{{ snake }}_reward"]
        generator = "tooling.new.generators.reward"
        commit = "feat(reward): add {{ kebab }}"
        next = ["areal train ... reward={{ key }}"]
        reserved = ["registry", "isolation"]
        [[options]]
        name = "from-examples"
        metavar = "FILE.jsonl"
        help = "..."
        [[files]]
        path = "{{ package_path }}/reward/{{ snake }}.py"
        purpose = "the reward function"
        [[registry]]
        file = "{{ package_path }}/reward/registry.py"
        shape = "mapping"
        table = "REWARDS"
        key = "{{ key }}"
        value = "{{ package }}.reward.{{ snake }}:{{ snake }}_reward"
        [[unproven]]
        file = "{{ package_path }}/reward/registry.py"
        shape = "sequence"
        table = "UNPROVEN"
        key = "{{ key }}"
        [[documents]]
        file = "docs/extensions.md"
        section = "rewards"
        key = "{{ key }}"
        line = "| `{{ key }}` | ... |"
        [renames]
        "template/old.py.jinja" = "template/new.py.jinja"
        [example]
        style = "exact"
    """

    name: str
    summary: str
    symbols: tuple[str, ...] = ()
    """Top-level names the unit defines: checked for collisions, renamed by `rename`."""
    generator: str = ""
    """Module with `prepare` and maybe `finish`; built-in templates and installed packages only."""
    commit: str = ""
    next: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    """Names that the kind's folder needs for itself."""
    options: tuple[OptionEntry, ...] = ()
    files: tuple[Mapping[str, Any], ...] = ()
    """Unrendered; `KindManifest` users call `tooling.kit.kind.resolve`."""
    registry: tuple[Mapping[str, Any], ...] = ()
    unproven: tuple[Mapping[str, Any], ...] = ()
    """Registry entries that stand only until the unit's tests have passed, so that others can tell."""
    documents: tuple[Mapping[str, Any], ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    """Answers for `explain KIND`, where a page makes the real ones of something that has to be named first: as much of
    them as this file reads."""


@dataclass(frozen=True, slots=True)
class ResolvedManifest:
    """A manifest with its expressions evaluated for one unit; entries whose `when` is false are gone."""

    symbols: tuple[str, ...]
    commit: str
    next: tuple[str, ...]
    files: tuple[TemplateFile, ...]
    registry: tuple[RegistryEntry, ...]
    unproven: tuple[RegistryEntry, ...]
    documents: tuple[DocumentEntry, ...]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One gate or test run."""

    name: str
    ok: bool
    seconds: float
    detail: str = ""
    """What failed, with path:line where known; empty when ok."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """How many tests ended how, by pytest's words; empty for what is not a run of tests."""
