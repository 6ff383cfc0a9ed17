"""Requests to package indexes over HTTP: retries, redirects, proxies, certificates, credentials.

    transport = Transport(settings)
    with transport.get("https://...", {"Range": "bytes=0-99"}) as answer: answer.status, answer.read(100)

On the standard library: what is needed beyond it (retries, credentials per host) is this page, and a client library
would be one more dependency of every installation. Nothing here knows what an index or a wheel is.
"""

from __future__ import annotations

import http.client
import netrc
import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from tooling.upgrade.errors import OfflineError, UpstreamError
from tooling.upgrade.sources.index_config import host_of
from tooling.upgrade.sources.links import without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tooling.upgrade.sources.index_config import IndexSettings

_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_MISSING = frozenset({404, 410})
_LONGEST_PAUSE = 20.0
_USER_AGENT = "areal-upgrade-deps"


class RefusedError(UpstreamError):
    """The server answered, with a refusal; `status` says which."""

    def __init__(self, message: str, *, status: int, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.status = status


class HttpAnswer:
    """A response; a context manager, so that its connection is given back."""

    def __init__(self, status: int, headers: Mapping[str, str], url: str, body: IO[bytes]) -> None:
        """url: after redirects."""
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.url = url
        self._body = body

    def read(self, size: int) -> bytes:
        """`size` bytes, fewer only at the end, b"" behind it. Raises OfflineError when the connection breaks."""
        try:
            return self._body.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise OfflineError(_words(error), where=without_credentials(self.url)) from error

    def __enter__(self) -> HttpAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        self._body.close()


class Transport:
    """Makes requests as the settings say. Safe to use from several threads."""

    def __init__(self, settings: IndexSettings) -> None:
        self._settings = settings
        self._openers: dict[bool, urllib.request.OpenerDirector] = {}

    def get(self, url: str, headers: Mapping[str, str] | None = None, *, method: str = "GET") -> HttpAnswer:
        """One answer with status 200, 206 or 304. Raises RefusedError for refusals, OfflineError when nothing answers
        after all retries."""
        for attempt in range(self._settings.retries + 1):
            last = attempt == self._settings.retries
            try:
                return self._once(url, headers or {}, method)
            except urllib.error.HTTPError as error:
                if error.code == http.HTTPStatus.NOT_MODIFIED:
                    return HttpAnswer(error.code, dict(error.headers.items()), url, error)
                text = error.headers.get("Retry-After")
                wait = float(text) if text is not None and text.strip().isdecimal() else None
                error.close()
                if error.code not in _AGAIN or last:
                    raise _refused(error.code, url) from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                wait = None
                if last or _is_final(error):
                    fix = "check the network, the proxy and the index's address, or use --offline with what is cached"
                    raise OfflineError(f"no answer: {_words(error)}", where=without_credentials(url), fix=fix) from None
            time.sleep(min(_LONGEST_PAUSE, 0.3 * 2**attempt) if wait is None else min(_LONGEST_PAUSE, wait))
        raise AssertionError("the last attempt returns or raises")

    def _once(self, url: str, headers: Mapping[str, str], method: str) -> HttpAnswer:
        if urlsplit(url).scheme not in {"http", "https"}:
            raise RefusedError("only http and https are asked for packages", status=0, where=without_credentials(url))
        request = urllib.request.Request(without_credentials(url), method=method)
        for name, value in {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers}.items():
            request.add_header(name, value)
        authorization = self._authorization(url)
        if authorization:
            # Unredirected: a redirect to another host never carries it.
            request.add_unredirected_header("Authorization", authorization)
        trusted = host_of(url) in self._settings.trusted_hosts or urlsplit(url).hostname in self._settings.trusted_hosts
        if trusted not in self._openers:
            proxy = self._settings.proxy
            proxies = {"http": proxy, "https": proxy} if proxy else None
            certificates = self._settings.certificates
            try:
                context = ssl.create_default_context(cafile=certificates)
            except OSError as error:
                fix = "correct `cert` in pip's configuration"
                raise UpstreamError(f"unreadable certificates: {error}", where=str(certificates), fix=fix) from error
            if trusted:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._openers[trusted] = urllib.request.build_opener(
                urllib.request.ProxyHandler(proxies),
                urllib.request.HTTPSHandler(context=context),
                _Redirects(self._authorization),
            )
        body = self._openers[trusted].open(request, timeout=self._settings.timeout)
        return HttpAnswer(body.status, dict(body.headers.items()), body.url, body)

    def _authorization(self, url: str) -> str:
        host = host_of(url)
        known = self._settings.credentials.get(host)
        if not known:
            try:
                found = netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(url).hostname or "")
            except (OSError, netrc.NetrcParseError, UnicodeError):
                found = None
            known = (found[0] or "", found[2] or "") if found else None
        return "Basic " + b64encode(f"{known[0]}:{known[1]}".encode()).decode() if known else ""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, never from https to http, with the credentials of the new host."""

    max_redirections = 8

    def __init__(self, authorization: Callable[[str], str]) -> None:
        self._authorization = authorization

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        fp.close()
        scheme = urlsplit(newurl).scheme
        if scheme not in {"http", "https"} or (req.type == "https" and scheme != "https"):
            where = without_credentials(req.full_url)
            raise RefusedError(f"a redirect leads from {req.type} to {scheme}", status=code, where=where)
        new = urllib.request.Request(without_credentials(newurl), method=req.get_method())
        for name, value in req.headers.items():
            new.add_header(name, value)
        authorization = self._authorization(newurl)
        if authorization:
            new.add_unredirected_header("Authorization", authorization)
        return new


def _refused(status: int, url: str) -> RefusedError:
    where = without_credentials(url)
    if status in _MISSING:
        return RefusedError("it does not exist there", status=status, where=where)
    if status in {401, 403, 407}:
        fix = "check the credentials in the index's address, in ~/.netrc or in UV_INDEX_<NAME>_USERNAME and _PASSWORD"
        return RefusedError(f"access was refused (status {status})", status=status, where=where, fix=fix)
    return RefusedError(f"the server answered with status {status}", status=status, where=where, fix="try again later")


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help."""
    reason = getattr(error, "reason", error)
    return isinstance(reason, ssl.SSLCertVerificationError | ValueError) or (
        isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
    )


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, TimeoutError):
        return "timed out"
    text = getattr(reason, "strerror", None) or str(reason)
    return text or type(reason).__name__
