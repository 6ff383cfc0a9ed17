"""What is wrong with a page: one record for every rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One problem. Example: Finding("agents/planner.md", 12, "path", "areal/gone.py does not exist", "...")."""

    path: str
    """Relative to the repository root."""
    line: int
    """1-based; 0 when the whole file is meant."""
    rule: str
    """skill-format, expert-format, eval-format, path, link, symbol, command, option, map, size."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        """`path:line: rule: message; fix`."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}: {self.rule}: {self.message}" + (f"; {self.fix}" if self.fix else "")

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)
