"""Runs inside each vLLM worker process: stages, verifies and switches weights, all or nothing.

Loaded by vLLM's `--worker-extension-cls` in vLLM's own environment from a small copy of this package (see `launch`).
Methods are called through `/collective_rpc`, which passes text in and lists or objects out: arguments are JSON, and
failures are returned, since an exception here would bring down the whole server.

vLLM's CPU build packs the weight of every linear layer when it is loaded. Its own reload packs them again, except a
head that shares the embedding's weight, whose outputs would silently stay those of the old version; `_repack_heads`
fixes that. The matrices of experts it packs at the start only, and would then read the new ones as if they were packed;
`_repack_experts` fixes that.

For adapters on a loaded base, and for a version on top of the loaded one, only the layers that change are reloaded.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import torch

from areal.engine.server.adapters import AdaptedWeights, to_reload, unwrapped
from areal.engine.server.changes import WholeVersion
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_INCARNATION = os.environ.get("AREAL_SERVER_INCARNATION", "") or uuid.uuid4().hex[:12]
"""Identity of this start of the server; generated when the environment does not provide one."""
_RELOADING = "vllm.model_executor.model_loader.reload"


class WorkerExtension:
    """Mixed into vLLM's worker class: `model_runner`, `device` and `rank` are the worker's. Every name begins with
    `areal_` because a name the worker already has would be an error."""

    def areal_hello(self) -> dict[str, Any]:
        """Return this worker's incarnation of the server, its settings and the state of its weights."""
        worker: Any = self
        settings = worker.model_config
        outputs = getattr(worker.vllm_config, "aux_output_config", None)  # versions before 0.32 have none
        return {
            "incarnation": _INCARNATION,
            "rank": worker.rank,
            "version": getattr(self, "_areal_version", None),
            "adapters": True,
            "deltas": True,
            "routes": bool(getattr(outputs, "enable_return_routed_experts", False)),
            "base": self._areal_receiver().base,
            "logprobs_mode": str(getattr(settings.logprobs_mode, "value", settings.logprobs_mode)),
            "context": int(settings.max_model_len),
            "dtype": str(settings.dtype).removeprefix("torch."),
        }

    def areal_identity(self, owner: str) -> dict[str, Any]:
        """Return the server's incarnation and owner; the call also shows that the caller is alive."""
        lease = self._areal_receiver().lease
        lease.hear(owner)
        return {"incarnation": _INCARNATION, "owner": lease.owner}

    def areal_release(self, owner: str) -> dict[str, Any]:
        """Release the server to other trainers."""
        return self._areal_answer(lambda: self._areal_receiver().lease.release(owner))

    def areal_stage(self, request: str) -> dict[str, Any]:
        """Fetch and verify a version: {"manifest": ..., "source": ..., "owner": ...}. The old one stays in use."""
        asked = json.loads(request)
        receiver = self._areal_receiver()
        return self._areal_answer(
            lambda: receiver.stage(asked["manifest"], asked["source"], owner=asked.get("owner", ""))
        )

    def areal_switch(self, version: str) -> dict[str, Any]:
        """Put the staged version into the model. Call it while no step runs."""
        return self._areal_answer(lambda: self._areal_load(int(version)))

    def areal_discard(self) -> dict[str, Any]:
        """Forget the staged version."""
        return self._areal_answer(lambda: self._areal_receiver().discard())

    def _areal_load(self, version: int) -> None:
        worker: Any = self
        tensors = self._areal_receiver().take(version)
        model = worker.model_runner.get_model()
        names, quiet, identity = list(tensors), "", ""
        with unwrapped(model):
            if isinstance(tensors, AdaptedWeights | WholeVersion):
                identity = tensors.identity
                if tensors.since and tensors.since == getattr(self, "_areal_loaded", ""):
                    names, quiet = _changed_layers(model, tensors), _RELOADING
            # In case it fails half way: nothing can be left out next time.
            self._areal_loaded = ""
            if names:
                _repack_experts(model)
                with _without_warnings(quiet):
                    worker.model_runner.reload_weights(
                        weights_iterator=((name, tensors[name]) for name in names), is_checkpoint_format=True
                    )
                _repack_heads(model)
        self._areal_version, self._areal_loaded = version, identity

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


def _changed_layers(model: torch.nn.Module, tensors: AdaptedWeights | WholeVersion) -> list[str]:
    """Return the tensors to load when all others are loaded already."""
    return to_reload(list(tensors), tensors.changed, modules=_modules(model), fused=_fused(model))


def _modules(model: torch.nn.Module) -> set[str]:
    return {name for name, _ in model.named_modules()}


def _fused(model: torch.nn.Module) -> Mapping[str, list[str]]:
    return getattr(model, "packed_modules_mapping", None) or {}


@contextlib.contextmanager
def _without_warnings(name: str) -> Iterator[None]:
    """Suppress vLLM's warnings about layers that a reload intentionally skips. name: "" changes nothing."""
    if not name:
        yield
        return
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _repack_experts(model: torch.nn.Module) -> None:
    """Pack matrices of experts again with every later reload of their layer."""
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        experts = getattr(getattr(method, "moe_kernel", None), "fused_experts", None)
        weight = getattr(module, "w13_weight", None)
        if experts is None or weight is None or weight.device.type != "cpu" or hasattr(method, "areal_repacks"):
            continue

        def load(*, setup: Any = method._setup_kernel, experts: Any = experts, **parts: Any) -> None:
            setup(**parts)
            experts.process_weights_after_loading(parts["layer"])

        method._setup_kernel, method.areal_repacks = load, True


def _repack_heads(model: torch.nn.Module) -> None:
    """Repack heads that read a packed copy of an embedding's weight."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if hasattr(module, "cpu_linear") and hasattr(module, "num_embeddings") and method is not None:
            method.process_weights_after_loading(module)
