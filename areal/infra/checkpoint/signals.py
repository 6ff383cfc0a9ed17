"""Turn SIGTERM and the first Ctrl-C into a request that the training loop answers at a safe point."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any, Self

from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_logger = getLogger(__name__)


class StopRequest:
    """Watches SIGTERM and SIGINT while used as a context manager; the loop asks `requested` between steps.

    The first signal only sets a flag. A second SIGINT raises KeyboardInterrupt: the user does not want to wait.
    Outside the main thread no handler can be installed; then only `request` stops the loop.

        with StopRequest() as stop:
            while not stop.requested: ...
        raise SystemExit(stop.exit_code)
    """

    def __init__(self) -> None:
        # A plain attribute and no Event: setting an Event from a handler can deadlock with the code it interrupted.
        self._signal: int | None = None
        self._requested = False
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the loop should finish its step, save and return."""
        return self._requested

    @property
    def signal_number(self) -> int | None:
        """The signal that asked first; None when no signal did."""
        return self._signal

    @property
    def exit_code(self) -> int:
        """128 + signal number, as shells expect (143 for SIGTERM, 130 for SIGINT); 0 when no signal arrived."""
        return 0 if self._signal is None else 128 + self._signal

    def request(self) -> None:
        """Ask from code, from any thread."""
        self._requested = True

    def __enter__(self) -> Self:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        else:
            _logger.warning("signals are only seen by the main thread: SIGTERM and Ctrl-C will not save a checkpoint")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the previous handlers back."""
        for number, handler in self._previous.items():
            # None: it was not installed from Python and cannot be put back; the default is the nearest thing.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # No logging here: the interrupted code may hold the log's lock.
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._requested = True
        if self._signal is None:
            self._signal = number
