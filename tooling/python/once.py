"""Answers that are worked out once, and kept with the object that gives them.

@once()
def signature(self, symbol): ...            asked again for the same symbol, it is not run again

@once(meanwhile=False)
def leads(self, owner): ...                 one that asks for itself on the way gets False there
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Owner = TypeVar("_Owner")
_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
_RUN_AGAIN: Any = object()


def once(
    *, meanwhile: Any = _RUN_AGAIN
) -> Callable[[Callable[Concatenate[_Owner, _Given], _Answer]], Callable[Concatenate[_Owner, _Given], _Answer]]:
    """Keep what a method returns for each set of hashable arguments. meanwhile: the answer while it is worked out."""

    def keeping(
        method: Callable[Concatenate[_Owner, _Given], _Answer],
    ) -> Callable[Concatenate[_Owner, _Given], _Answer]:
        place = f"_once_{method.__name__}"

        @functools.wraps(method)
        def answer(self: _Owner, /, *given: _Given.args, **named: _Given.kwargs) -> _Answer:
            answers: dict[Any, _Answer] = self.__dict__.setdefault(place, {})
            key = (given, *named.items())
            if key not in answers:
                if meanwhile is not _RUN_AGAIN:
                    answers[key] = meanwhile
                try:
                    answers[key] = method(self, *given, **named)
                except BaseException:
                    answers.pop(key, None)  # else the next one who asks would get `meanwhile`
                    raise
            return answers[key]

        return answer

    return keeping
