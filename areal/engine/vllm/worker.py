"""What runs inside each vLLM worker process: weights are staged, verified, then switched, all or nothing.

Loaded by vLLM's `--worker-extension-cls` in vLLM's own environment from a small copy of this package (see `plugin`).
Methods are called through `/collective_rpc`, which passes text in and lists or objects out: arguments are JSON, and
failures are answers, since an exception here would take the whole server down.

vLLM's CPU build packs the weight of every linear layer when it is loaded. Its own reload packs them anew, except the
head when it shares the embedding's weight, whose outputs would silently stay those of the old version; `_repack_heads`
cures it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch

from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver


class WorkerExtension:
    """Mixed into vLLM's worker class: `model_runner`, `device` and `rank` are the worker's. Every name begins with
    `areal_`, for a name that the worker has already would be an error."""

    def areal_hello(self) -> dict[str, Any]:
        """Which start of the server this worker belongs to, and where its weights stand."""
        worker: Any = self
        return {
            "incarnation": os.environ.get("AREAL_SERVER_INCARNATION", ""),
            "rank": worker.rank,
            "version": getattr(self, "_areal_version", None),
            "parameters": sorted(name for name, _ in worker.model_runner.get_model().named_parameters()),
        }

    def areal_stage(self, request: str) -> dict[str, Any]:
        """Fetch and verify a version: {"manifest": ..., "source": ...}. Generation goes on with the old one."""
        asked = json.loads(request)
        return self._areal_answer(lambda: self._areal_receiver().stage(asked["manifest"], asked["source"]))

    def areal_switch(self, version: str) -> dict[str, Any]:
        """Put the staged version into the model. Call it while no step runs."""
        return self._areal_answer(lambda: self._areal_load(int(version)))

    def areal_discard(self) -> dict[str, Any]:
        """Forget what is staged."""
        return self._areal_answer(lambda: self._areal_receiver().discard())

    def _areal_load(self, version: int) -> None:
        worker: Any = self
        tensors = self._areal_receiver().take(version)
        worker.model_runner.reload_weights(weights_iterator=iter(tensors.items()), is_checkpoint_format=True)
        _repack_heads(worker.model_runner.get_model())
        self._areal_version = version

    def _areal_receiver(self) -> WeightReceiver:
        worker: Any = self
        if not hasattr(self, "_areal_receiver_object"):
            self._areal_receiver_object = WeightReceiver(worker_index=worker.rank, device=torch.device(worker.device))
        return self._areal_receiver_object

    def _areal_answer(self, action: Any) -> dict[str, Any]:
        started = time.perf_counter()
        try:
            action()
        except RefusedWeightsError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - vLLM ends the server when a worker raises; the trainer decides
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "broken": True}
        return {"ok": True, "seconds": time.perf_counter() - started, "version": getattr(self, "_areal_version", None)}


def _repack_heads(model: torch.nn.Module) -> None:
    """Pack again what reads from a packed copy of an embedding's weight."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if hasattr(module, "cpu_linear") and hasattr(module, "num_embeddings") and method is not None:
            method.process_weights_after_loading(module)
