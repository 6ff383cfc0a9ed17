"""Lines of JSON between two processes that share a key: each proves that it has the key, every line is authenticated.

    server -> {"areal": "directory", "nonce": S}
    client -> {"nonce": C, "proof": HMAC(key, "client" S C)}
    server -> {"proof": HMAC(key, "server" S C)}
    then, both ways: HMAC(session key, direction, number of the line, JSON) in hex, a blank, JSON

The key never travels, nothing is unpickled, and a line that was changed, repeated or left out ends the connection. It
is not encrypted: values are addresses, not secrets.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any, Final

_PURPOSE: Final = "directory"
MIN_KEY_BYTES: Final = 16
_MAC_CHARACTERS: Final = 64


class ChannelError(Exception):
    """The other side does not have the key, or what arrived is not what it sent."""


class Channel:
    """One side of a connection, without the connection: bytes in, bytes out.

    is_server: which side. The server calls `greeting`, then `admit`; the client `answer`, then `confirm`; then both
    `seal` and `unseal`.
    """

    def __init__(self, key: bytes, *, is_server: bool) -> None:
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"key has {len(key)} bytes, expected at least {MIN_KEY_BYTES}")
        self._key, self._is_server = key, is_server
        self._nonce = secrets.token_hex(16)
        self._session = b""
        self._nonces = ""
        self._sent = self._received = 0

    def greeting(self) -> bytes:
        """Return the server's first line."""
        return _line({"areal": _PURPOSE, "nonce": self._nonce})

    def answer(self, greeting: bytes) -> bytes:
        """Return the client's first line."""
        found = _object(greeting)
        if found.get("areal") != _PURPOSE:
            raise ChannelError("it is not a directory")
        self._nonces = f"{_text(found, 'nonce')} {self._nonce}"
        return _line({"nonce": self._nonce, "proof": self._proof("client")})

    def admit(self, answer: bytes) -> bytes:
        """Return the server's second line."""
        found = _object(answer)
        self._nonces = f"{self._nonce} {_text(found, 'nonce')}"
        self._compare(_text(found, "proof"), self._proof("client"))
        self._begin()
        return _line({"proof": self._proof("server")})

    def confirm(self, proof: bytes) -> None:
        """Check the server's second line."""
        self._compare(_text(_object(proof), "proof"), self._proof("server"))
        self._begin()

    def seal(self, text: str) -> bytes:
        """Return the line that carries this JSON text."""
        self._sent += 1
        return f"{self._mac(self._is_server, self._sent, text)} {text}\n".encode()

    def unseal(self, line: bytes) -> Any:
        """Return what a line carries."""
        self._received += 1
        try:
            mac, text = line[:_MAC_CHARACTERS].decode("ascii"), line[_MAC_CHARACTERS + 1 :].decode().rstrip("\n")
        except UnicodeDecodeError as error:
            raise ChannelError("a line is not text") from error
        self._compare(mac, self._mac(not self._is_server, self._received, text))
        return json.loads(text)

    def _begin(self) -> None:
        self._session = hmac.digest(self._key, f"session {self._nonces}".encode(), "sha256")

    def _proof(self, who: str) -> str:
        return hmac.new(self._key, f"{_PURPOSE} {who} {self._nonces}".encode(), hashlib.sha256).hexdigest()

    def _mac(self, from_server: bool, number: int, text: str) -> str:
        return hmac.new(self._session, f"{from_server:d} {number} {text}".encode(), hashlib.sha256).hexdigest()

    @staticmethod
    def _compare(found: str, expected: str) -> None:
        if not hmac.compare_digest(found.encode(), expected.encode()):
            raise ChannelError("it does not have this job's key")


def _line(value: dict[str, str]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ChannelError("it does not speak this protocol") from error
    if not isinstance(found, dict):
        raise ChannelError("it does not speak this protocol")
    return found


def _text(value: dict[str, Any], name: str) -> str:
    found = value.get(name)
    if not isinstance(found, str) or not found.isascii() or len(found) > _MAC_CHARACTERS:
        raise ChannelError("it does not speak this protocol")
    return found
