"""Runs inside each SGLang worker process: stages, verifies and switches weights, all or nothing.

SGLang calls `load` as a custom weight loader (`--custom-weight-loader`, `/update_weights_from_tensor`), from a small
copy of this package in SGLang's own environment (see `launch`). A loader gets the model and named tensors and returns
nothing: the request is the name of a tensor that is not looked at, and the answer is a file. An exception here would
bring down the whole server.

    {"action": "stage", "rank": 0, "answer": "/tmp/x/0.json", "manifest": ..., "source": ..., "owner": ""}
    {"action": "switch", "rank": 0, "answer": "/tmp/x/0.json", "version": 3}
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import torch

from areal.engine.server.adapters import AdaptedWeights, to_reload, unwrapped
from areal.engine.server.changes import WholeVersion
from areal.engine.server.receiver import RefusedWeightsError, WeightReceiver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Worker:
    """The state of one worker process."""

    def __init__(self, *, rank: int, device: torch.device) -> None:
        self._receiver = WeightReceiver(worker_index=rank, device=device)
        self._version: int | None = None
        self._loaded = ""
        """What the model has, as far as it is known: `identity` of the last version, if it has one."""

    def answer(self, model: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Do what is asked and say how it went."""
        started = time.perf_counter()
        try:
            if asked["action"] == "stage":
                self._receiver.stage(asked["manifest"], asked["source"], owner=asked.get("owner", ""))
            elif asked["action"] == "switch":
                self._switch(model, int(asked["version"]))
            else:
                return {"ok": False, "error": f"unknown action {asked['action']!r}"}
        except RefusedWeightsError as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - SGLang ends the server when a loader raises; the trainer decides
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "broken": True}
        return {"ok": True, "seconds": time.perf_counter() - started, "version": self._version}

    def _switch(self, model: Any, version: int) -> None:
        tensors = self._receiver.take(version)
        names, identity = list(tensors), ""
        with unwrapped(model):
            modules = {name for name, _ in model.named_modules()}
            fused: Mapping[str, list[str]] = getattr(model, "packed_modules_mapping", None) or {}
            if isinstance(tensors, AdaptedWeights | WholeVersion):
                identity = tensors.identity
                if tensors.since and tensors.since == self._loaded:
                    names = to_reload(names, tensors.changed, modules=modules, fused=fused)
            # In case it fails half way: nothing can be left out next time.
            self._loaded = ""
            if names:
                model.load_weights((name, tensors[name]) for name in names)
        self._version, self._loaded = version, identity


_workers: list[Worker] = []
"""At most one: a process has one model."""


def load(model: Any, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Do what the name of the only tensor asks; write the answer, whole or not at all."""
    asked = json.loads(named_tensors[0][0])
    if not _workers:
        device = next(iter(model.parameters())).device
        _workers.append(Worker(rank=int(asked["rank"]), device=device))
    with torch.no_grad():
        answer = _workers[0].answer(model, asked)
    temporary = f"{asked['answer']}.part"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(temporary, asked["answer"])
