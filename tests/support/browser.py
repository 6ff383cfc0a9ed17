"""Drive a real headless Chromium over its DevTools protocol: pages as their readers see them.

with Browser(folder) as browser:
    browser.open(Path("report.html"), width=400, dark=True)
    browser.point(200, 300)
    browser.press("ArrowRight")
    browser.evaluate("document.title")
    browser.problems, browser.requests          # exceptions and violations of the policy; addresses asked for
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Escape": 27, "Home": 36, "PageDown": 34, "PageUp": 33, "Tab": 9}


class Browser:
    """A browser with one page. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """folder: for its profile."""
        self._folder = folder
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self.problems: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Browser:
        self._process = subprocess.Popen(
            [
                str(PROGRAM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                "--remote-debugging-port=0", f"--user-data-dir={self._folder}", "about:blank",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._loop.run_until_complete(self._connect())
        for name in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{name}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self._session.close())
        self._loop.close()
        self._process.terminate()
        self._process.wait(timeout=60)

    async def _connect(self) -> None:
        import aiohttp

        port = self._folder / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not port.is_file() or not port.read_text().strip():
            assert self._process.poll() is None, "the browser ended"
            assert time.monotonic() < deadline, "the browser does not start"
            await asyncio.sleep(0.05)
        self._session = aiohttp.ClientSession()
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
        async with self._session.get(address) as answer:
            pages = await answer.json()
        page = next(one for one in pages if one["type"] == "page")
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what the browser answers to a command."""
        return self._loop.run_until_complete(asyncio.wait_for(self._send(method, parameters), 60))

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        content = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(content["exceptionDetails"])[:2000])
        elif message.get("method") == "Log.entryAdded" and content["entry"]["level"] == "error":
            self.problems.append(content["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])

    def open(self, page: Path | str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file or an address, and wait until it is there."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.send("Page.navigate", url=url)
        while self.evaluate("document.readyState + location.protocol") != f"complete{url.partition(':')[0]}:":
            pass

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, which JSON can hold."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def point(self, x: float, y: float) -> None:
        """Move the pointer there."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key])

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Write a picture of what is visible, or of the whole page."""
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(picture["data"]))
