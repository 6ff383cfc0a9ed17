"""Captured decode steps: an accelerator repeats the kernels of a step by itself, without the host launching each.

A decode step of a small model is some hundred kernels of a few microseconds, as long as launching one takes. A capture
records the launches of one step with the addresses of their memory; a replay is one launch. So a step may be captured
only if its inputs, outputs and shapes stay where and what they are, and if nothing in it waits for the device.

The first steps of a shape run as they are: they are real steps, and leave behind what is made once (libraries, caches,
tables), which must not be made while a capture runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from areal.api import EngineError
from areal.utils.logging import getLogger
from areal.utils.transfers import WHOLE_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_logger = getLogger(__name__)

_STEPS_BEFORE: Final = 2
"""Of a shape, before it is captured; a shape that few steps have is not worth it."""

GraphMode = Literal["auto", "on", "off"]


class StepGraphs:
    """Graphs by shape of the step. mode: `off` captures nothing; where a capture fails, `auto` goes on without, and
    `on` raises."""

    def __init__(self, mode: GraphMode, stream: torch.cuda.Stream | None) -> None:
        """stream: that steps are queued on; captures are made on it as well, since torch has one stream of its own for
        that, of the device that was the first to capture."""
        self._mode, self._stream = mode, stream
        self._steps: dict[Hashable, int] = {}
        self._graphs: dict[Hashable, Any] = {}
        self._pool: Any = None

    def run(self, shape: Hashable, step: Callable[[], None]) -> bool:
        """Do one step; return whether it was a replay. shape: equal for steps that one capture stands for.

        Raises EngineError, see the class.
        """
        if self._mode == "off":
            step()
            return False
        if shape not in self._graphs:
            self._steps[shape] = self._steps.get(shape, 0) + 1
            if self._steps[shape] <= _STEPS_BEFORE or not self._capture(shape, step):
                step()
                return False
        self._graphs[shape].replay()
        return True

    def clear(self) -> None:
        """Forget all captures: memory that they know is not where it was."""
        self._graphs.clear()
        self._steps.clear()
        self._pool = None

    def _capture(self, shape: Hashable, step: Callable[[], None]) -> bool:
        """Capture a step, which does not run it. Returns whether that was possible."""
        graph: Any = torch.cuda.CUDAGraph()
        try:
            # All share one pool, since only one of them runs at a time and none leaves anything in it. Other threads
            # may train on the same device meanwhile, and allocate, which is an error in the mode "global".
            capture = torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local")
            with WHOLE_DEVICE, capture:
                step()
        # Whatever a model or a library does that a capture forbids; what it is differs from one to the other.
        except Exception as error:
            cause: BaseException = error
            while cause.__context__ is not None:  # ending a capture that has failed raises once more
                cause = cause.__context__
            lines = str(cause).strip().splitlines()
            reason = f"{type(cause).__name__}: {lines[0] if lines else 'no message'}"
            if self._mode == "on":
                raise EngineError(
                    f"engine.cuda_graphs is 'on', but a decode step cannot be captured ({reason}); 'auto' decodes "
                    f"without"
                ) from error
            # As a text: the exception holds the model, and who keeps log records would keep it too.
            _logger.warning("decode steps are launched one kernel at a time, since a capture failed: %s", reason)
            self._mode = "off"
            self.clear()
            return False
        self._pool = graph.pool()
        self._graphs[shape] = graph
        return True
