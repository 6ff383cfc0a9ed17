"""Something that may stand for what is gone, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Reason(Enum):
    """A piece of evidence: its weight, and how it is told. Weights order evidence, they are no probabilities: what the
    package says outweighs what its code does, which outweighs what merely looks alike."""

    ADVICE = 32, "the old version says to use it"
    STAYED = 16, "the definition itself stayed there"
    """Only a re-export went."""
    STOOD_FOR = 14, "the old one only passed on to it"
    IMPORTERS = 12, "the package's own importers changed alike"
    SAME_BODY = 10, "same body"
    SAME_VALUE = 6, "same value"
    SUBSTITUTED = 6, "it stands where the old name stood"
    """Lines that had the old name are there with this one."""
    SAME_NAME = 5, "only new definition of that name"
    SIMILAR_BODY = 4, "almost the same body"
    SAME_PLACE = 4, "same place and type"
    """Same position with the same default, or the same type at the same place."""
    SIMILAR_NAME = 3, "almost the same name"
    ONLY_ONE = 2, "one went and one came"
    COMPATIBLE = 2, ""
    """It can be called as the old one could."""
    SHARED_WORDS = 1, ""

    @property
    def weight(self) -> int:
        """How much it counts."""
        return self.value[0]

    @property
    def words(self) -> str:
        """How a report tells it; "" for what is only an aside."""
        return self.value[1]


@dataclass(slots=True)
class Candidate:
    """One of several that may stand for what is gone."""

    text: str
    """What to write: dotted path, or name of a parameter."""
    reasons: set[Reason] = field(default_factory=set)
    is_doubtful: bool = False
    """Whether a person should look, whatever the weight."""

    @property
    def weight(self) -> int:
        """How much speaks for it."""
        return sum(reason.weight for reason in self.reasons)

    @property
    def why(self) -> str:
        """The evidence in words, the strongest first."""
        told = sorted(
            (reason for reason in self.reasons if reason.words), key=lambda reason: (-reason.weight, reason.name)
        )
        return ", ".join(reason.words for reason in told[:3])


def best(candidates: Iterable[Candidate], least: int) -> Candidate | None:
    """The one candidate that more speaks for than for any other; None if nothing reaches `least` or two are equal."""
    ranked = sorted(candidates, key=lambda candidate: (-candidate.weight, len(candidate.text), candidate.text))
    if not ranked or ranked[0].weight < least:
        return None
    if len(ranked) > 1 and ranked[1].weight == ranked[0].weight:
        return None
    return ranked[0]
