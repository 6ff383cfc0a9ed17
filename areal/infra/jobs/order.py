"""What runners of a job tell each other in its directory: reports of each, and the order of the first one.

kind "order", name "job"            the first runner: which start is to run, to end, or that all is over
kind "runner", name "trainer-1"     each runner: what it runs and how that went
kind "service", name "server-0"     a process that is ready, and its address
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ORDER: Final = "order"
RUNNER: Final = "runner"
SERVICE: Final = "service"
JOB: Final = "job"
LOST: Final = 69
"""Exit code of runners after the loss of a node, a runner or the directory: an allocation may help."""
MISMATCH: Final = 78
"""Exit code of runners that cannot belong together: another version, another plan, a folder they do not share."""
STOPPED: Final = 143


_LIVELY_SECONDS: Final = 2.0
_SHORT_PAUSE_SECONDS: Final = 0.02
_PAUSE_SECONDS: Final = 0.1


def pause_since(change: float) -> float:
    """Return for how long to look away. change: when something happened last, by time.monotonic(): soon after it more
    is to be expected than in the middle of a run.
    """
    return _SHORT_PAUSE_SECONDS if time.monotonic() - change < _LIVELY_SECONDS else _PAUSE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the first runner wants all to do."""

    phase: str = "gather"
    """gather, run, end, or over."""
    number: int = -1
    """Of the start that runs or ends."""
    incarnation: str = ""
    host: str = ""
    port: int = 0
    gentle: bool = False
    """Whether ranks get the time to save."""
    exit_code: int = 0
    reason: str = ""

    def as_value(self) -> dict[str, Any]:
        """Return it as an entry of a directory."""
        return asdict(self)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Order:
        """Return what an entry says."""
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerReport:
    """What one runner says of itself."""

    role: str
    node: int
    host: str
    version: str
    digest: str
    """Of the plan it read."""
    state: str = "idle"
    """idle, running, done or failed."""
    number: int = -1
    """Of the start it last took part in."""
    stopping: bool = False
    """It was asked to end."""
    status: int = 0
    """Exit status of the rank that failed first here."""
    rank: int = -1
    text: str = ""

    def as_value(self) -> dict[str, Any]:
        """Return it as an entry of a directory."""
        return asdict(self)
