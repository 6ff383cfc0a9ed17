"""Choose what of a session is trained, and return it as trajectories.

A leaf is an answer that nobody continued. Each answer is trained in the first leaf that contains it, and is masked
context in all later ones, where the tokens before it are the same. What the client never got is not trained; nor are
side requests, siblings that were asked for with `n` and have no reward of their own, and attempts that were dropped
while another one was gone on with.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from areal.api import NO_VERSION, StopReason, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from areal.gateway.capture import Answer

_LINK_CHARACTERS: Final = 40
"""An answer of at least this length that another root's messages contain led to it: a summary, or a sub-agent."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One way through a session."""

    path: tuple[Answer, ...]
    """Answers from the root to the leaf."""
    trained: frozenset[int]
    """Numbers of those that are trained here."""

    @property
    def last(self) -> Answer:
        """The answer that nobody continued."""
        return self.path[-1]

    @property
    def num_trained(self) -> int:
        """Tokens that are trained here."""
        return sum(len(answer.output) for answer in self.path if answer.number in self.trained)

    def trajectory(self, *, reward: float, truncated: bool, text: dict[str, str]) -> Trajectory:
        """Return what the trainer sees; `turn_ids` are positions on the path."""
        tokens: list[int] = []
        mask: list[int] = []
        logprobs: list[float] = []
        versions: list[int] = []
        turns: list[int] = []
        for position, answer in enumerate(self.path):
            masked, trained = len(answer.added), answer.number in self.trained
            tokens.extend(answer.added)
            tokens.extend(answer.output)
            masked += 0 if trained else len(answer.output)
            mask.extend([0] * masked)
            logprobs.extend([0.0] * masked)
            versions.extend([NO_VERSION] * masked)
            turns.extend([NO_VERSION] * masked)
            if trained:
                mask.extend([1] * len(answer.output))
                logprobs.extend(answer.logprobs)
                versions.extend(answer.versions)
                turns.extend([position] * len(answer.output))
        cut = truncated or self.last.stop_reason is StopReason.LENGTH
        return Trajectory(
            tokens=tokens,
            loss_mask=mask,
            logprobs=logprobs,
            versions=versions,
            turn_ids=turns,
            reward=reward,
            stop_reason=StopReason.LENGTH if cut else StopReason.STOP,
            text=text,
            routes=_laid_end_to_end([answer.routes for answer in self.path]),
        )


def _laid_end_to_end(pieces: Sequence[Tensor | None]) -> Tensor | None:
    known = [piece for piece in pieces if piece is not None]
    if len(known) < len(pieces):
        return None
    import torch  # of engines that record, which have imported it

    return torch.cat(known)


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a session is trained."""

    leaves: tuple[Leaf, ...]
    left_out: Counter[str] = field(default_factory=Counter)
    """Leaves by the reason they are not."""


def select_leaves(
    answers: Sequence[Answer],
    *,
    train_auxiliary: bool = False,
    keep: Callable[[Leaf], bool] | None = None,
) -> Selection:
    """Return the leaves to train, in order of creation. keep: the user's own choice among them."""
    alive = _delivered(answers)
    ends = [answer for answer in answers if answer.number in alive and not _children(answer, alive)]
    linked = _linked(ends, [answer for answer in answers if answer.number in alive])
    used = {answer.number for answer in answers if answer.number in alive and _children(answer, alive)} | linked
    side = set() if train_auxiliary else side_requests(ends)
    left_out: Counter[str] = Counter()
    chosen: list[tuple[Answer, ...]] = []
    for end in ends:
        if end.number in side:
            left_out["auxiliary"] += 1
        elif end.num_choices > 1 and end.reward is None and end.number not in linked:
            left_out["choice_without_reward"] += 1
        elif end.number not in linked and end.reward is None and _rivals(end, answers, alive) & used:
            left_out["dropped_attempt"] += 1
        else:
            chosen.append(tuple(end.path()))
    taken: set[int] = set()
    leaves: list[Leaf] = []
    for path in chosen:
        own = frozenset(answer.number for answer in path if answer.number not in taken)
        leaf = Leaf(path, own)
        if keep is not None and not keep(leaf):
            left_out["not_selected"] += 1
            continue
        taken |= own
        leaves.append(leaf)
    if len(alive) < len(answers):
        left_out["not_delivered"] += len(answers) - len(alive)
    return Selection(tuple(leaves), left_out)


def _delivered(answers: Sequence[Answer]) -> set[int]:
    """Numbers of answers that the client got, or went on from, which proves the same."""
    alive: set[int] = set()
    for answer in reversed(answers):  # children come after their parents
        if answer.delivered or any(child.number in alive for child in answer.children):
            alive.add(answer.number)
    return alive


def _children(answer: Answer, alive: set[int]) -> list[int]:
    return [child.number for child in answer.children if child.number in alive]


def _rivals(answer: Answer, answers: Sequence[Answer], alive: set[int]) -> set[int]:
    """Numbers of other answers to the same conversation, and of other children of the same parent."""
    same = {other.number for other in answers if other.request == answer.request}
    if answer.parent is not None:
        same |= {child.number for child in answer.parent.children}
    return (same & alive) - {answer.number}


def _linked(ends: Sequence[Answer], answers: Sequence[Answer]) -> set[int]:
    """Numbers of leaves whose answer occurs in later messages of another root."""
    roots = {answer.number: answer.path()[0].number for answer in answers}
    found: set[int] = set()
    for end in ends:
        said = end.reply.text
        later = (
            answer for answer in answers if answer.number > end.number and roots[answer.number] != roots[end.number]
        )
        if len(said) >= _LINK_CHARACTERS and any(said in turn.text for answer in later for turn in answer.turns):
            found.add(end.number)
    return found


def side_requests(ends: Sequence[Answer]) -> set[int]:
    """Return the numbers of side requests: roots with one answer and without tools, beside another conversation.

    A session in which there is nothing else has none: then its single questions are what it does.
    """
    roots = {end.path()[0].number: end.path()[0] for end in ends}
    beginnings = Counter(_first_text(root) for root in roots.values())
    side = {
        end.number
        for end in ends
        if end.parent is None and not end.has_tools and beginnings[_first_text(end)] == 1 and end.num_choices == 1
    }
    return side if any(end.number not in side for end in ends) else set()


def _first_text(root: Answer) -> str:
    return next((turn.text for turn in root.turns if turn.role != "system"), "")
