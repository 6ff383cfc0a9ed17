"""Draw a live view in the output of a notebook's cell: one display that is replaced, whatever happens to the run.

    panel = NotebookPanel(render)       # render: returns what `rich` can draw
    panel.start()                       # display_data, with an identity
    panel.stop()                        # the last update_display_data

Only IPython's own messages are used, so no widgets have to be installed, and a notebook that is saved keeps the final
state. A drawing that did not change is not sent again.
"""

from __future__ import annotations

import io
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SECONDS: Final = 1.0
"""Between two drawings. Each is a message that a browser on the other end of a slow line has to keep up with."""
_WIDTH: Final = 110
_FORMAT: Final = (
    "<pre style=\"white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,"
    "'Courier New',monospace\">{code}</pre>"
)


class NotebookPanel:
    """Shows what `render` returns until it is stopped; has the methods of `rich.live.Live` that a view needs."""

    def __init__(self, render: Callable[[], Any], *, seconds: float = _SECONDS) -> None:
        self._render, self._seconds = render, seconds
        self._handle: Any = None
        self._shown: dict[str, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._draw_again, name="areal-notebook", daemon=True)

    def start(self) -> None:
        """Show it, and go on showing it from a thread."""
        from IPython.display import display

        self._shown = self._drawn()
        self._handle = display(self._shown, raw=True, display_id=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the final state; nothing is drawn after it."""
        self._closed.set()
        self._thread.join()
        self._update()

    def _draw_again(self) -> None:
        while not self._closed.wait(self._seconds):
            self._update()

    def _update(self) -> None:
        drawn = self._drawn()
        if drawn != self._shown:
            self._shown = drawn
            self._handle.update(drawn, raw=True)

    def _drawn(self) -> dict[str, str]:
        """Return a MIME bundle: HTML for a browser, text for whatever converts the notebook."""
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=_WIDTH, force_terminal=True, force_jupyter=False)
        console.print(self._render())
        html = console.export_html(inline_styles=True, code_format=_FORMAT, clear=False)
        return {"text/html": html, "text/plain": console.export_text()}
