"""Asks a vLLM server, from a thread without an event loop, which start of it answers and whose it is."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from areal.api import EngineError


def identify(url: str, timeout: float, *, owner: str) -> tuple[str, bool]:
    """Incarnation of the server, and whether nobody else than `owner` has it.

    Tells the server that `owner` is alive (see `areal.engine.server.lease`). Raises OSError when it cannot be reached,
    TimeoutError when it is too busy to answer, EngineError when what answers has none of our extension.
    """
    answer = _call(url, "areal_identity", owner, timeout)
    incarnation, found = answer.get("incarnation"), answer.get("owner", "")
    if not isinstance(incarnation, str) or not incarnation:
        raise EngineError(f"{url} does not tell which start of the server it is; start it with `areal serve`")
    return incarnation, found in ("", owner)


def release(url: str, timeout: float, *, owner: str) -> None:
    """Let other trainers have the server. Raises OSError, EngineError."""
    _call(url, "areal_release", owner, timeout)


def _call(url: str, method: str, owner: str, timeout: float) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/collective_rpc",
        # Without a limit of its own: workers whose answer comes after it would be one answer behind ever after.
        data=json.dumps({"method": method, "args": [owner]}).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            content = json.loads(response.read())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise EngineError(f"{url} is no vLLM server with VLLM_SERVER_DEV_MODE=1; use `areal serve`") from error
        raise
    except urllib.error.URLError as error:
        raise error.reason if isinstance(error.reason, OSError) else error from error
    except ValueError as error:
        raise EngineError(f"{url} answered {method} with something else than JSON: {error}") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list) or not results or not isinstance(results[0], dict):
        raise EngineError(f"{url} answered {method} with {str(content)[:100]}, expected a result per worker")
    return results[0]
