"""Measure how well a run uses its accelerators: FLOPs per token of the trained model, and MFU.

    perf/flops_per_token = operations that learning needs / tokens
    perf/mfu             = operations that learning needs / seconds of the update / (processes x peak of the device)

`areal.models.flops` counts what is needed: products with the weights (of experts, the chosen ones) and attention over
the tokens that are visible, three times for forward and backward; what is recomputed, padded or scored beforehand
counts for nothing. With adapters the gradients of the frozen weights are not needed, which leaves two of the three.
There is no MFU on CPUs, on devices whose peak is not known (`areal.utils.accelerators`), and in another dtype than
bfloat16, for which the peaks hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from areal.api import ArealError
from areal.infra.metrics import names
from areal.models.flops import forward_flops
from areal.models.loading import blank_model
from areal.trainer.configuration.validation import read_model_config
from areal.utils.accelerators import peak_tflops
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.engine.train.ranks import Ranks
    from areal.trainer.config import RunConfig

_logger = getLogger(__name__)


class Utilisation:
    """Counts for the model of one run."""

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        """ranks: the processes that share the model; they have the same device."""
        device = ranks.device
        self._model = _shape(config)
        self._passes = 3 if config.actor.lora is None else 2
        peak = peak_tflops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        self._peak = None if peak is None or config.actor.dtype != "bfloat16" else peak * 1e12 * ranks.size

    def metrics(self, lengths: Sequence[int], seconds: float, *, num_predicted: int | None = None) -> dict[str, float]:
        """Return the metrics of learning from sequences of these lengths in so many seconds; empty for a model that
        cannot be counted.

        num_predicted: tokens whose probability is learnt from; None for all.
        """
        if self._model is None or not lengths:
            return {}
        needed = self._passes * forward_flops(self._model, lengths, num_predicted=num_predicted)
        found = {names.FLOPS_PER_TOKEN: needed / sum(lengths)}
        if self._peak is not None and seconds > 0:
            found[names.MFU] = needed / seconds / self._peak
        return found


def _shape(config: RunConfig) -> Any:
    """Return the model without memory; None, with a line in the log, for one whose operations cannot be counted."""
    try:
        content = read_model_config(config.model)
        model = blank_model(content)
        forward_flops(model, [1])
    except ArealError as error:
        _logger.info("no FLOPs are counted: %s", error)
        return None
    return model
