"""Asks a vLLM server for its incarnation and its owner, from a thread without an event loop."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from areal.api import EngineError
from areal.engine.server.client import open_directly


def identify(url: str, timeout: float, *, owner: str) -> tuple[str, bool]:
    """Return the server's incarnation, and whether no trainer other than `owner` holds it.

    Tells the server that `owner` is alive (see `areal.engine.server.receiver`). Raises OSError when it cannot be
    reached, TimeoutError when it is too busy to answer, EngineError when it lacks our worker extension.
    """
    answer = _call(url, "areal_identity", owner, timeout)
    incarnation, found = answer.get("incarnation"), answer.get("owner", "")
    if not isinstance(incarnation, str) or not incarnation:
        raise EngineError(f"{url} does not tell which start of the server it is; start it with `areal serve`")
    return incarnation, found in ("", owner)


def holder(url: str, timeout: float) -> str:
    """Return the owner that the server had contact with last, empty for none. Raises OSError, EngineError."""
    return str(_call(url, "areal_identity", "", timeout).get("owner", ""))


def release(url: str, timeout: float, *, owner: str) -> None:
    """Release the server to other trainers. Raises OSError, EngineError."""
    _call(url, "areal_release", owner, timeout)


def _call(url: str, method: str, owner: str, timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/collective_rpc",
        # Without a limit of its own: workers whose answer comes after it would be one answer behind ever after.
        data=json.dumps({"method": method, "args": [owner]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with open_directly(request, timeout) as response:
            content = json.loads(response.read())
    except urllib.error.HTTPError as error:
        error.close()  # It holds the connection.
        if error.code == 404:
            raise EngineError(f"{url} is not a vLLM server with VLLM_SERVER_DEV_MODE=1; use `areal serve`") from error
        raise
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from error
    except ValueError as error:
        raise EngineError(f"{url} answered {method} with something else than JSON: {error}") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list) or not results or not isinstance(results[0], dict):
        raise EngineError(f"{url} answered {method} with {str(content)[:100]}, expected a result per worker")
    return results[0]
