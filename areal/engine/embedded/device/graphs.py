"""Captured decode steps: an accelerator repeats the kernels of a step by itself, without the host launching each.

A decode step of a small model is some hundred kernels of a few microseconds, as long as launching one takes. A capture
records the launches of one step with the addresses of their memory; a replay is one launch. So a step may be captured
only if its inputs, outputs and shapes stay where and what they are, and if nothing in it waits for the device.

The first steps of a shape run as they are: they are real steps, and leave behind what is made once (libraries, caches,
tables), which must not be made while a capture runs. The last of them is watched for what no capture may have, since a
capture that fails leaves torch's allocator as if it still ran, for as long as the process lives: memory is not given
back any more, neither on request nor where there is none left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from areal.api import EngineError
from areal.utils.logging import getLogger
from areal.utils.transfers import WHOLE_DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_logger = getLogger(__name__)

_STEPS_BEFORE: Final = 2
"""Of a shape, before it is captured; a shape that few steps have is not worth it."""

_READS: Final = (
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::bincount",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
)
"""Operations whose values, or the shape of whose result, the host waits for."""

GraphMode = Literal["auto", "on", "off"]


class _HostTraffic(TorchDispatchMode):
    """Notes the operations of a step in which the host and the device exchange values.

    What it does not see are operations that others consist of, and libraries that are called past torch.
    """

    def __init__(self, device: str) -> None:
        """device: type of the one that computes the step."""
        super().__init__()
        self._device = device
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._is_traffic(func._schema.name, args, kwargs, result):
            self.found.append(str(func))
        return result

    def _is_traffic(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        if name in _READS or name == "aten::_pin_memory":
            return True
        if name == "aten::lift_fresh":  # a tensor of Python's numbers
            return bool(result.device.type == self._device)
        if name in ("aten::_to_copy", "aten::copy_"):
            other = args[1] if name == "aten::copy_" else result
            return bool(args[0].device.type != other.device.type)
        if name == "aten::repeat_interleave":
            return kwargs.get("output_size") is None
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            is_masked = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
            # One number is filled in where a mask says so, without asking how often.
            return is_masked and not (len(args) > 2 and args[2].numel() == 1)
        return False


class StepGraphs:
    """Graphs by shape of the step. mode: `off` captures nothing; where a step cannot be captured, `auto` goes on
    without, and `on` raises."""

    def __init__(self, mode: GraphMode, stream: torch.cuda.Stream | None) -> None:
        """stream: the current one when steps run, which captures are made on; None on a CPU."""
        self._mode = mode
        self._device = stream.device.type if stream is not None else "cpu"
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
            if self._steps[shape] == _STEPS_BEFORE:
                with _HostTraffic(self._device) as traffic:
                    step()
                if traffic.found:
                    self._give_up(f"the host waits for {traffic.found[0]}, or gives values to it", None)
                return False
            if self._steps[shape] < _STEPS_BEFORE or not self._capture(shape, step):
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
            # Not `torch.cuda.graph`, which waits for the whole device, and empties the allocator's cache, each time.
            # All share one pool, since only one of them runs at a time and none leaves anything in it. Other threads
            # may train on the same device meanwhile, and allocate, which is an error in the mode "global".
            with WHOLE_DEVICE:
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        except Exception as error:  # noqa: BLE001 - whatever a model or a library does that a capture forbids
            cause: BaseException = error
            while cause.__context__ is not None:  # ending a capture that has failed raises once more
                cause = cause.__context__
            lines = str(cause).strip().splitlines()
            self._give_up(f"{type(cause).__name__}: {lines[0] if lines else 'no message'}", error)
            return False
        self._pool = graph.pool()
        self._graphs[shape] = graph
        return True

    def _give_up(self, reason: str, error: Exception | None) -> None:
        """Capture nothing any more. Raises EngineError in mode `on`."""
        if self._mode == "on":
            raise EngineError(
                f"engine.cuda_graphs is 'on', but a decode step cannot be captured ({reason}); 'auto' decodes without"
            ) from error
        # As a text: the exception holds the model, and who keeps log records would keep it too.
        _logger.warning("decode steps are launched one kernel at a time, since none can be captured: %s", reason)
        self._mode = "off"
        self.clear()
