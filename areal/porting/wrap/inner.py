"""What a wrapper does with the fields of its text model: it follows them, it leaves one out, or differs by some.

Wrappers put a head of their own on the text model's body. What the text model's own class does behind the body (a
factor on logits, a softcap) they may leave out; then the family is made with the neutral value of that field.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from areal.porting.probe.instance import build, make_tokens
from areal.porting.records import SubjectError, UnsupportedError
from areal.porting.wrap.proof import difference
from areal.porting.wrap.whole import build_pair

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.porting.wrap.whole import Wrapped

_FACTORS: Final = re.compile(r".*(scal|mult|softcap|factor).*")
_LENGTH: Final = 24


def find_replaced(wrapped: Wrapped, text: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of the text model that the whole leaves out, with the value that does nothing; {} for nearly all.

    Raises `UnsupportedError` when the whole computes something else and no such field explains it.
    """
    if _differs(wrapped, text, text) <= 1.0:
        return {}
    numbers = [name for name, value in text.items() if type(value) in (int, float) and _FACTORS.match(name)]
    for name in numbers:
        for neutral in (1.0, None):
            try:
                if _differs(wrapped, text, {**text, name: neutral}) <= 1.0:
                    return {name: neutral}
            except SubjectError:
                continue
    raise UnsupportedError(
        "a wrapper that computes something else than its text model",
        where=wrapped.subject.architecture,
        detail=f"logits differ by {_differs(wrapped, text, text):.3g} times the tolerance",
    )


def restrict(wrapped: Wrapped, text: Mapping[str, Any], replaced: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the fields of the text model for which the whole computes something else with other values, and the value
    that was proven."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, value in text.items():
        if name in ("model_type", "architectures"):
            continue
        if isinstance(value, bool):
            others: tuple[Any, ...] = (not value,)
        elif isinstance(value, int):
            others = (value * 2, value + 1)
        elif isinstance(value, float):
            others = (value * 2, value / 2)
        else:
            others = (2.0, 8, True) if value is None else ()
        for other in others:
            changed = {**text, name: other}
            try:
                wrong = _differs(wrapped, changed, {**changed, **replaced}) > 1.0
            except SubjectError:
                continue
            except UnsupportedError:
                wrong = True
            if wrong:
                found[name] = (value,)
            break
    return found


def _differs(wrapped: Wrapped, text: Mapping[str, Any], alone_text: Mapping[str, Any]) -> float:
    alone = build(wrapped.inner, dict(alone_text))
    whole, alone = build_pair(wrapped, text, alone=alone, tie_word_embeddings=text["tie_word_embeddings"])
    return difference(whole, alone, [make_tokens(alone, batch=2, length=_LENGTH, seed=5)])
