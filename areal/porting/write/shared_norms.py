"""Gives a family a function for the norm that its code has most often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_HELPER_USES: Final = 3
"""From so many equal norms on, the family gets a function for them."""


def with_norm_function(code: str, pascal: str) -> str:
    """Return the code with a function for the norm that it has most often, where that is often."""
    calls = [text for text in _norm_calls(code) if text.startswith(("RMSNorm(args.hidden_size", "LayerNorm(args.h"))]
    if not calls:
        return code
    common = max(calls, key=calls.count)
    if calls.count(common) < _HELPER_USES:
        return code
    function = f"def _norm(args: {pascal}Args) -> {common.partition('(')[0]}:\n    return {common}\n"
    return f"{code.replace(common, '_norm(args)')}\n\n{function}"


def _norm_calls(code: str) -> Iterator[str]:
    """Yield calls of norms without calls inside."""
    for name in ("RMSNorm(", "LayerNorm("):
        start = code.find(name)
        while start >= 0:
            end = code.index(")", start)
            if "(" not in code[start + len(name) : end]:
                yield code[start : end + 1]
            start = code.find(name, end)
