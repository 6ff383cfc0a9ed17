"""Logging of this package: `getLogger` everywhere, `configure` once by the command line.

Importing this module changes nothing. Library users who never call `configure` keep full control through the standard
`logging` module; only the logger named "areal" is ever touched, never the root logger.
"""

from __future__ import annotations

import contextlib
import json as _json
import logging
import sys
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PACKAGE_LOGGER = "areal"

# Attributes every LogRecord has; whatever else a record carries came in through `extra=` and belongs in the JSON line.
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def getLogger(name: str | None = None) -> logging.Logger:
    """Return `logging.getLogger` of a name; call it as `getLogger(__name__)`."""
    return logging.getLogger(name)


def configure(
    level: str | int = "INFO", *, json: bool = False, stream: IO[str] | None = None, file: Path | None = None
) -> None:
    """Send this package's log lines to `stream`, and to `file` as well when given.

    A further call replaces the earlier one.

    level: "DEBUG" .. "CRITICAL" or the number. json: one JSON object per line instead of text. stream: None means the
    `sys.stderr` of the moment a line is written, so a redirected stderr is honoured. file: appended, its folder is
    created.

    Raises ValueError for an unknown level name.
    """
    logger = logging.getLogger(PACKAGE_LOGGER)
    logger.setLevel(level.upper() if isinstance(level, str) else level)
    for old in [handler for handler in logger.handlers if isinstance(handler, _OwnHandler)]:
        logger.removeHandler(old)
        old.close()
    formatter = JsonFormatter() if json else TextFormatter()
    handlers: list[logging.Handler] = [_StreamHandler(stream)]
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(_FileHandler(file, encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(formatter)
        logger.addHandler(handler)


@contextlib.contextmanager
def recorded(file: Path) -> Iterator[Callable[..., None]]:
    """Append this package's log lines to `file` as JSON lines, beside whatever `configure` does with them.

    Yields a function that writes a line of its own, at any level: `event("run ended", kind="end", exit_code=0)`. A disk
    that refuses lines costs these lines and nothing else.
    """
    handler = _RecordingHandler(file, encoding="utf-8")
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger(PACKAGE_LOGGER)

    def event(message: str, *, error: BaseException | None = None, **fields: Any) -> None:
        record = logging.makeLogRecord({"name": PACKAGE_LOGGER, "levelno": logging.INFO, "levelname": "INFO", **fields})
        record.msg = message
        if error is not None:
            record.exc_info = (type(error), error, error.__traceback__)
        handler.handle(record)

    logger.addHandler(handler)
    try:
        yield event
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # what a full disk has not taken
            handler.close()


class TextFormatter(logging.Formatter):
    """`12:03:04 WARNING infra.rollout: message`; the package prefix is dropped because every line would have it."""

    default_time_format = "%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        """Render one record, exceptions included."""
        name = record.name.removeprefix(f"{PACKAGE_LOGGER}.")
        text = (
            f"{self.formatTime(record, self.default_time_format)} {record.levelname:<7} {name}: {record.getMessage()}"
        )
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text


class JsonFormatter(logging.Formatter):
    """`{"time": "2026-01-02T03:04:05.678Z", "level": "INFO", "logger": "areal.infra", "message": "..."}` and any
    `extra=` fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Render one record as one line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        payload: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        payload |= {key: value for key, value in vars(record).items() if key not in _STANDARD_ATTRIBUTES}
        if record.exc_info:
            payload["exception"] = self.formatException(record.exc_info)
        return _json.dumps(payload, default=str, ensure_ascii=False)


class _OwnHandler(logging.Handler):
    """Marks the handlers that `configure` may replace."""


class _StreamHandler(_OwnHandler):
    """Writes to a fixed stream, or to whatever `sys.stderr` is at that moment."""

    def __init__(self, stream: IO[str] | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; a closed or broken stream is reported the way the standard library does and stops nothing."""
        stream = sys.stderr if self._stream is None else self._stream
        try:
            stream.write(f"{self.format(record)}\n")
            stream.flush()
        except (OSError, ValueError, TypeError):
            self.handleError(record)


class _FileHandler(_OwnHandler, logging.FileHandler):
    """Appends to a log file."""


class _RecordingHandler(logging.FileHandler):
    """Appends to the log of a run. Opened by the first line; a refusing disk is not reported: the console has all."""

    def __init__(self, file: Path, *, encoding: str) -> None:
        super().__init__(file, encoding=encoding, delay=True)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""
