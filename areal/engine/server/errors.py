"""What can go wrong between this process and an inference server. None of these reaches a workflow: the engine retries
elsewhere, and what it cannot mend becomes a `FaultError` or an `EngineError`.

    ServerError
    +-- ConnectionFailedError   no connection, or it broke: the server may be gone
    +-- StalledError            nothing came for too long: the server may hang
    +-- BadStatusError          an HTTP status that is no success
    +-- BadAnswerError          an answer that is not what the protocol says (HTML, cut JSON, missing fields)
    |   +-- BrokenTokensError   tokens whose log-probabilities cannot be trained on
    +-- RefusedError            the server understood and refused (weights that are not what was announced)
    +-- ReplacedError           the server has not the weights it was sent: it was started again
"""

from __future__ import annotations


class ServerError(Exception):
    """One exchange with one server failed."""


class ConnectionFailedError(ServerError):
    """No connection, or it broke before the answer was complete."""


class StalledError(ServerError):
    """The server is silent."""


class BadStatusError(ServerError):
    """The server answered with an error."""

    def __init__(self, status: int, where: str, text: str) -> None:
        super().__init__(f"{where} answered HTTP {status}: {text}")
        self.status = status

    @property
    def our_fault(self) -> bool:
        """Whether repeating the same request elsewhere is pointless. Too many requests, and a timeout, are not."""
        return 400 <= self.status < 500 and self.status not in {408, 425, 429}


class BadAnswerError(ServerError):
    """The answer is not what the protocol says. It is never taken for text a model wrote."""


class BrokenTokensError(BadAnswerError):
    """Counts do not fit, or a log-probability is missing, not finite or positive."""


class ReplacedError(ServerError):
    """Something answers that was never sent the weights it samples with. None of its tokens count."""


class RefusedError(ServerError):
    """The server understood, and said no."""
