"""Hold what must be true for code to be reached: versions, probes for names and modules, and their combinations.

    AllOf((CompareVersion(VersionSource.MODULE, "vllm", ">=", "0.9"), Not(HasName(Name("vllm"), "LLM"))))

`condition_reader` makes them of expressions; whoever knows versions and releases answers the probes: see `evaluate`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from packaging.version import InvalidVersion, Version

from tooling.python.access_paths import spelled
from tooling.python.operations import Symbolic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tooling.python.access_paths import AccessPath


class VersionSource(StrEnum):
    """Whose version a condition compares."""

    MODULE = "module"
    """`subject` is an import name: vllm.__version__."""
    DISTRIBUTION = "distribution"
    """`subject` is a distribution: importlib.metadata.version("trl")."""


@dataclass(frozen=True, slots=True)
class CompareVersion(Symbolic):
    """`version(subject) operator literal`; operator is one of < <= > >= == != startswith.

    literal is a version text; tuples are joined with dots, and `release_parts` says how many leading release parts
    the code looked at (0: the whole version). index: the one part, behind the first, that it looked at (0: none).
    by_letter: whether it compares two texts, where the package gives plain text ("1.10" < "1.9")."""

    source: VersionSource
    subject: str
    operator: str
    literal: str
    release_parts: int = 0
    index: int = 0
    by_letter: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class HasName(Symbolic):
    """`hasattr(base, "name")`, `"name" in dir(base)`, or `getattr(base, "name", None)` used as a condition."""

    base: AccessPath
    name: str


@dataclass(frozen=True, slots=True)
class HasParameter(Symbolic):
    """`"name" in inspect.signature(base).parameters`, or of dataclasses.fields(base)."""

    base: AccessPath
    name: str


@dataclass(frozen=True, slots=True)
class ModuleExists(Symbolic):
    """`importlib.util.find_spec("a.b") is not None`."""

    dotted: str


class ReleaseAnswers(Protocol):
    """What one release says."""

    def answer(self, probe: Probe) -> bool | None:
        """Answer a question about it; None where it does not say."""
        ...

    def version_of(self, asked: VersionedSubject) -> str | None:
        """Return the version of a package, if it is known."""
        ...

    def constant(self, access_path: AccessPath) -> object:
        """Return what a constant of a package holds; UNKNOWN where it is not a literal."""
        ...


class VersionedSubject(Protocol):
    """Whose version is meant."""

    @property
    def source(self) -> VersionSource:
        """How it is named."""
        ...

    @property
    def subject(self) -> str:
        """Its name."""
        ...


class OpenQuestion(Protocol):
    """A test that was not read, and is when somebody asks."""

    def about(self) -> frozenset[str]:
        """Return packages whose version it looks at, and names that it asks for: it may guard their uses."""
        ...

    def holds(self, side: ReleaseAnswers) -> bool | None:
        """Whether it holds in a release."""
        ...


@dataclass(frozen=True, slots=True)
class Constant(Symbolic):
    """A condition with a known value: TYPE_CHECKING is `Constant(False)`."""

    value: bool


@dataclass(frozen=True, slots=True)
class Undecided(Symbolic):
    """A condition about something else, or one that was not read yet; `text` is its source, shortened."""

    text: str
    question: OpenQuestion | None = field(default=None, compare=False, repr=False)
    """Asked only where much depends on it."""


@dataclass(frozen=True, slots=True)
class Not(Symbolic):
    """Negation."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class AllOf(Symbolic):
    """Conjunction."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf(Symbolic):
    """Disjunction."""

    conditions: tuple[Condition, ...]


Probe = CompareVersion | HasName | HasParameter | ModuleExists | Undecided
Condition = Probe | Constant | Not | AllOf | AnyOf
TRUE, FALSE = Constant(True), Constant(False)


def negated(condition: Condition) -> Condition:
    """Return the opposite."""
    if isinstance(condition, Constant):
        return Constant(not condition.value)
    return condition.condition if isinstance(condition, Not) else Not(condition)


def all_of(conditions: list[Condition]) -> Condition:
    """Join conditions that must all hold, simplified."""
    kept = [one for one in dict.fromkeys(conditions) if one != TRUE]
    if FALSE in kept:
        return FALSE
    if len(kept) == 1:
        return kept[0]
    return AllOf(tuple(kept)) if kept else TRUE


def any_of(conditions: list[Condition]) -> Condition:
    """Join conditions of which one must hold, simplified."""
    kept = [one for one in dict.fromkeys(conditions) if one != FALSE]
    if TRUE in kept:
        return TRUE
    if len(kept) == 1:
        return kept[0]
    return AnyOf(tuple(kept)) if kept else FALSE


def simple_parts(condition: Condition) -> Iterator[Probe | Constant]:
    """Yield what a condition is made of."""
    match condition:
        case Not(inner):
            yield from simple_parts(inner)
        case AllOf(conditions) | AnyOf(conditions):
            for each in conditions:
                yield from simple_parts(each)
        case _:
            yield condition


def is_decidable(condition: Condition) -> bool:
    """Whether a release can say anything about it."""
    return any(not isinstance(part, Undecided) for part in simple_parts(condition))


def is_decided(condition: Condition) -> bool:
    """Whether a release says all about it: nothing else plays a part."""
    return not any(isinstance(part, Undecided) for part in simple_parts(condition))


def undecided(text: str, question: OpenQuestion | None = None) -> Undecided:
    """Make a condition about something else."""
    shown = " ".join(text.split())
    return Undecided(shown if len(shown) <= 80 else f"{shown[:79]}…", question)


def evaluate(condition: Condition, answer: Callable[[Probe], bool | None]) -> bool | None:
    """Whether a condition holds, given the answers to its probes; None where they do not decide it."""
    match condition:
        case Constant(value):
            return value
        case Not(inner):
            found = evaluate(inner, answer)
            return None if found is None else not found
        case AllOf(conditions):
            return all_hold(evaluate(each, answer) for each in conditions)
        case AnyOf(conditions):
            values = [evaluate(each, answer) for each in conditions]
            return True if True in values else None if None in values else False
    return answer(condition)


def all_hold(values: Iterable[bool | None]) -> bool | None:
    """Whether all of several things hold, some of which may not be known."""
    known = list(values)
    return False if False in known else None if None in known else True


def describe(condition: Condition) -> str:
    """Write a condition as a reader would."""
    match condition:
        case Not(inner):
            text = f"not ({describe(inner)})"
        case AllOf(conditions):
            text = " and ".join(describe(each) for each in conditions)
        case AnyOf(conditions):
            text = " or ".join(describe(each) for each in conditions)
        case CompareVersion(_, subject, operator, literal, _, index):
            text = f"{subject}{f'[{index}]' if index else ''} {operator} {literal}"
        case HasName(base, name):
            text = f"{spelled(base) or 'a value'} has {name}"
        case HasParameter(base, name):
            text = f"{spelled(base) or 'a callable'} takes {name}"
        case ModuleExists(dotted):
            text = f"{dotted} exists"
        case Constant(value):
            text = str(value)
        case Undecided(text):
            pass
    return text


def compare_versions(version: str, condition: CompareVersion) -> bool | None:
    """Answer `version operator literal` as the code writes it; None if one of them is not a version."""
    if condition.operator == "startswith":
        return version.startswith(condition.literal)
    if condition.by_letter:
        return _compared(version, condition.operator, condition.literal)
    try:
        # Local parts (+cu128) are of a build, and which one will be installed is not known here.
        ours, literal = Version(Version(version).public), Version(condition.literal)
    except InvalidVersion:
        return None
    if condition.index:
        return _compared(
            (*ours.release, 0, 0, 0)[condition.index : condition.index + 1], condition.operator, literal.release
        )
    if condition.release_parts:
        return _compared(ours.release[: condition.release_parts], condition.operator, literal.release)
    return _compared(ours, condition.operator, literal)


_Comparable = Version | tuple[int, ...] | str


def _compared(left: _Comparable, operator: str, right: _Comparable) -> bool | None:
    less, equal = left < right, left == right  # type: ignore[operator]  # both are of one kind: see the callers
    answers = {"<": less, "<=": less or equal, "==": equal, "!=": not equal, ">=": not less}
    answers[">"] = not less and not equal
    return answers.get(operator)


def answer_by_version(version: str, probe: Probe) -> bool | None:
    """Answer a probe where nothing but one version is known."""
    return compare_versions(version, replace(probe, by_letter=False)) if isinstance(probe, CompareVersion) else None
