"""Results of comparisons as a Markdown table, between the markers of a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

BEGIN: Final = "<!-- areal.engine.archon.equality: begin -->"
END: Final = "<!-- areal.engine.archon.equality: end -->"
_COLUMNS: Final = ("scores", "loss", "gradient norm", "gradients", "parameters")


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """One row per case; the exponent of the largest difference, so that rounding does not change the page."""
    lines = [f"| processes | case | {' | '.join(_COLUMNS)} | equal |", f"| --- | --- |{' --- |' * (len(_COLUMNS) + 1)}"]
    for result in results:
        shown = [_magnitude(result.get("differences", {}).get(name)) for name in _COLUMNS]
        verdict = "skipped" if "skipped" in result else "yes" if result["equal"] else "**no**"
        lines.append(f"| {result['world_size']} | {result['case']} | {' | '.join(shown)} | {verdict} |")
    return "\n".join(lines)


def replaced(page: str, table: str) -> str:
    """`page` with `table` between its markers. Raises UsageError without them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"the page has no markers {BEGIN} and {END}; add them where the table belongs")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _magnitude(difference: float | None) -> str:
    if difference is None:
        return ""
    if difference == 0:
        return "0"
    exponent = int(f"{difference:e}".partition("e")[2]) + 1
    return f"< 1e{exponent}"
