"""Defines the errors between this process and an inference server. None reaches a workflow: the engine retries
elsewhere, and what it cannot recover from becomes a `FaultError` or an `EngineError`.

    ServerError
    +-- ConnectionFailedError   no connection, or it broke: the server may be gone
    +-- StalledError            nothing arrived for too long: the server may hang
    +-- BadStatusError          an HTTP status other than success
    +-- BadAnswerError          an answer that violates the protocol (HTML, truncated JSON, missing fields)
    |   +-- BrokenTokensError   tokens whose log-probabilities cannot be trained on
    +-- ServerRefusedError      the server understood and refused (e.g. weights that do not match the manifest)
    |   +-- CalledOffError      it had to, because another server refused what all take part in
    +-- ReplacedError           the server does not have the weights it was sent: it was restarted
"""

from __future__ import annotations


class ServerError(Exception):
    """One exchange with one server failed."""


class ConnectionFailedError(ServerError):
    """No connection, or it broke before the answer was complete."""


class StalledError(ServerError):
    """The server sent nothing for too long."""


class BadStatusError(ServerError):
    """The server answered with an error."""

    def __init__(self, status: int, where: str, text: str) -> None:
        super().__init__(f"{where} answered HTTP {status}: {text}")
        self.status = status

    @property
    def our_fault(self) -> bool:
        """Whether repeating the same request elsewhere is pointless; it is not after a timeout or too many requests."""
        return 400 <= self.status < 500 and self.status not in {408, 425, 429}


class BadAnswerError(ServerError):
    """The answer violates the protocol. It is never mistaken for text written by a model."""


class BrokenTokensError(BadAnswerError):
    """Counts do not match, or a log-probability is missing, not finite or positive."""


class ReplacedError(ServerError):
    """The server samples with weights it was never sent by this engine. None of its tokens count."""


class ServerRefusedError(ServerError):
    """The server understood the request and refused it."""


class CalledOffError(ServerRefusedError):
    """The server was ready for a transfer of weights that another one kept from beginning."""
