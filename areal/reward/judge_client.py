"""Asks an OpenAI-compatible server for one chat completion, again where that can help. Standard library only.

    client = JudgeClient(model="judge-7b", base_url="http://127.0.0.1:8000/v1", timeout_seconds=60, retries=3)
    client.ask([{"role": "user", "content": "..."}])         -> "The answer is right.\nSCORE: 9"

Tried again, after 0.5, 1, 2, ... seconds (at most 30, each shortened by chance so that processes spread) or what the
server's Retry-After says: connections that fail, HTTP 408, 409, 425, 429 and 5xx. All attempts and waits together end
at the time limit. What the settings are to blame for (400, 401, 403, 404) is a ConfigError at once.

The key comes from an environment variable, never from code or configuration; it is sent to the configured address only
(redirects are refused) and never shown.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import random
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Any, Final

from areal.api import ArealError, ConfigError
from areal.reward.judge_limits import NoTurnError, SharedLimits

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

_MAX_RESPONSE_BYTES: Final = 1 << 20
_CHUNK: Final = 1 << 14
_TRANSIENT: Final = frozenset({408, 409, 425, 429})
_FIRST_WAIT_SECONDS: Final = 0.5
_LONGEST_WAIT_SECONDS: Final = 30.0
_SETTINGS: Final = {
    400: "the judge does not accept the request; check the model's name and its context length",
    401: "set the environment variable {key} to a valid key",
    403: "the key in the environment variable {key} may not use this model",
    404: "check the address in {url} (it usually ends in /v1) and the model's name",
}


class JudgeError(ArealError, RuntimeError):
    """The judge gave no score; worth a retry."""


class JudgeUnavailableError(JudgeError):
    """The judge could not be reached, was busy or broke, or took too long."""

    retry_after: float | None = None
    """Seconds that the server asked to wait."""


class JudgeVerdictError(JudgeError):
    """The judge answered, but not with a score of the agreed form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeClient:
    """A server, and how patiently it is asked."""

    model: str
    base_url: str = ""
    """Address below which "/chat/completions" is; "" takes it from the variable."""
    base_url_variable: str = "JUDGE_BASE_URL"
    api_key_variable: str = "JUDGE_API_KEY"
    timeout_seconds: float = 30.0
    """For all attempts and waits together."""
    retries: int = 0
    per_second: float = 0.0
    at_a_time: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, e.g. {"temperature": 0, "max_tokens": 1024}."""

    def address(self) -> str:
        """Return the address. Raises ConfigError when there is none, without showing it: it may hold a password."""
        address = self.base_url.strip() or os.environ.get(self.base_url_variable, "").strip()
        if re.fullmatch(r"https?://[!-~]+", address) is None:
            what = "base_url" if self.base_url.strip() else f"the environment variable {self.base_url_variable}"
            raise ConfigError(
                f"judge {self.model!r}: {what} is {'not an http address' if address else 'not set'}; set it to the "
                'address of an OpenAI-compatible server, e.g. "http://127.0.0.1:8000/v1"'
            )
        return address.rstrip("/")

    def ask(self, messages: list[dict[str, str]]) -> str:
        """Return the text of the answer. Raises JudgeUnavailableError, JudgeVerdictError or ConfigError."""
        request = self._request(messages)
        limits = SharedLimits(
            name=f"{self.address()} {self.model}", per_second=self.per_second, at_a_time=self.at_a_time
        )
        limited = bool(self.per_second or self.at_a_time)
        deadline = time.monotonic() + self.timeout_seconds
        attempt = 0
        while True:
            try:
                with limits.place(deadline) if limited else contextlib.nullcontext():
                    return self._attempt(request, deadline)
            except NoTurnError as error:
                raise JudgeUnavailableError(f"judge {self.model!r}: limits of the configuration: {error}") from error
            except JudgeUnavailableError as error:
                wait = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2**attempt) * (1 - random.random() / 2)
                if error.retry_after is not None:
                    wait = error.retry_after
                    if limited:
                        limits.pause(wait)
                attempt += 1
                if attempt > self.retries or time.monotonic() + wait > deadline:
                    tried = f" (after {attempt} attempts)" if self.retries else ""
                    raise JudgeUnavailableError(f"{error}{tried}") from error.__cause__
                time.sleep(wait)

    def _attempt(self, request: urllib.request.Request, deadline: float) -> str:
        """Send a chat and return the text of the answer; every failure is raised as what the caller can do about it."""
        try:
            with _OPENER.open(request, timeout=max(0.01, deadline - time.monotonic())) as response:
                raw = b""
                # The socket's own limit holds per packet; a server that drips would never reach it.
                while chunk := response.read1(_CHUNK):
                    raw += chunk
                    if len(raw) > _MAX_RESPONSE_BYTES:
                        raise OSError(f"the response has more than {_MAX_RESPONSE_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise TimeoutError("the time limit passed before the response was complete")
        except urllib.error.HTTPError as error:
            error.close()
            refusal = f"judge {self.model!r}: HTTP status {error.code}"
            # Without its cause: the text of that may repeat the request, and with it the key.
            if error.code >= 500 or error.code in _TRANSIENT:
                unavailable = JudgeUnavailableError(refusal)
                unavailable.retry_after = retry_after(error.headers.get("Retry-After"))
                raise unavailable from None
            advice = _SETTINGS.get(error.code, "check the address in {url}")
            settings = {"key": self.api_key_variable, "url": "base_url" if self.base_url else self.base_url_variable}
            raise ConfigError(f"{refusal}; {advice.format(**settings)}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise JudgeUnavailableError(f"judge {self.model!r}: {type(reason).__name__}: {reason}") from error
        try:
            content = json.loads(raw)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise JudgeVerdictError(f"judge {self.model!r} sent no chat completion: {raw[:100]!r}") from error
        if not isinstance(content, str):
            raise JudgeVerdictError(f"judge {self.model!r} sent {content!r:.100}, expected text")
        return content

    def _request(self, messages: list[dict[str, str]]) -> urllib.request.Request:
        address = self.address()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = os.environ.get(self.api_key_variable, "").strip()
        if re.fullmatch(r"[!-~]*", key) is None:
            raise ConfigError(f"judge {self.model!r}: the key in {self.api_key_variable} has characters no key has")
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = json.dumps({"model": self.model, "messages": messages, **self.parameters}).encode()
        return urllib.request.Request(f"{address}/chat/completions", data, headers, method="POST")


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for, in seconds or as a date; None without a usable one."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value.strip(), re.ASCII):
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, moment.timestamp() - time.time())


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected request would carry the key to wherever the server says."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER: Final = urllib.request.build_opener(_NoRedirects)
