"""The training engine: owns a model and its optimizer, on one process or over many.

Implements `areal.api.TrainEngine`. It knows nothing about objectives, rewards or rollouts: a loss function comes in
with each batch. Results do not depend on how a batch is cut into micro-batches or divided over processes, and on the
CPU two equal runs are equal bit by bit.

A process that is alone is a group of one, in which nothing is sent. Of several processes, every rank makes an engine
around the same model and calls the same methods, either with the same whole batch, whose rows the engine divides, or
with its own part of one that rank 0 has divided (`divide`). What is returned is about all rows either way, and a loss
function's denominators are those of the whole step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from areal.algorithm.packing import units
from areal.api import ConfigError, EngineError, NumericsError, TrainStats
from areal.engine.hf.lora import Adapters
from areal.engine.precision import with_concrete_dtype
from areal.engine.train.optimizer import ModelOptimizer, learning_rate
from areal.engine.train.passes import Scoring
from areal.engine.train.runner import ModelRunner
from areal.engine.train.state import EngineState
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.algorithm.packing import Outlined
    from areal.api import LossFunction, PaddedBatch
    from areal.engine.config import ArchonConfig, TrainEngineConfig
    from areal.engine.train.divided import DividedBatch
    from areal.engine.train.loading import ShardSource
    from areal.engine.train.passes import BatchTotals
    from areal.engine.train.ranks import Ranks

_logger = getLogger(__name__)


class TrainingEngine:
    """One trained model, actor or critic.

    engine = TrainingEngine(from_pretrained(path), config=TrainEngineConfig(lr=1e-4), total_steps=200)
    stats = engine.train_batch(batch, loss_fn, temperature=1.0)

    with connected() as device:         # one of several processes, each of which does the same
        engine = TrainingEngine(model, config=TrainEngineConfig(lr=1e-4), archon=ArchonConfig(...))
        stats = engine.train_batch(batch, loss_fn)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        config: TrainEngineConfig,
        archon: ArchonConfig | None = None,
        total_steps: int | None = None,
        is_critic: bool = False,
        source: ShardSource | None = None,
    ) -> None:
        """Take over `model` (a CausalModel; with is_critic a ValueModel).

        archon: how it is split over the connected processes; it has the same parameters on every rank, and stays on its
        device. None: this process is alone, and moves it to the device of the configuration. total_steps: calls of
        `train_batch` in the whole run, i.e. training steps times minibatches; only decaying learning rates need it.
        source: fills a model without memory once it is split; see `areal.engine.train.loading`.

        Raises ConfigError when such a schedule gets None, or when the number of processes is not that of
        `archon.parallel`; EngineError when the model does not fit its role; ModelError when it does not divide.
        """
        config = with_concrete_dtype(config)
        learning_rate(config, config.warmup_steps, total_steps)
        dtype: torch.dtype = getattr(torch, config.dtype)
        if archon is None:
            model = model.to(_resolve_device(config.device))
        _freeze_vision(model, config)
        adapters = None if config.lora is None else Adapters.added_to(model, config.lora, dtype=dtype)
        runner = ModelRunner(
            model,
            config,
            archon,
            is_critic=is_critic,
            source=source,
            first_values=None if adapters is None else adapters.first_values,
        )
        passes = runner.passes
        optimizer = ModelOptimizer(
            runner.model, config, dtype=dtype, ranks=runner.ranks, partial_over_tp=passes.partial_over_tp,
            copies=passes.copies,
        )  # fmt: skip
        self._take_over(config, runner, optimizer, adapters=adapters, total_steps=total_steps, is_critic=is_critic)

    def _take_over(
        self,
        config: TrainEngineConfig,
        runner: ModelRunner,
        optimizer: ModelOptimizer,
        *,
        adapters: Adapters | None = None,
        total_steps: int | None,
        is_critic: bool,
    ) -> None:
        """Train with these parts from now on; for engines that make other ones."""
        self.config, self.is_critic = config, is_critic
        self._total_steps = total_steps
        self._runner, self.optimizer = runner, optimizer
        dtype: torch.dtype = getattr(torch, config.dtype)
        self.state = EngineState(runner.model, optimizer, runner.ranks, dtype=dtype, adapters=adapters)
        self._progress = Progress(max_skipped_steps=config.max_skipped_steps)

    @property
    def model(self) -> nn.Module:
        """The live model, or this rank's part of it."""
        return self._runner.model

    @property
    def ranks(self) -> Ranks:
        """The processes that share the model."""
        return self._runner.ranks

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.ranks.device

    @property
    def version(self) -> int:
        """Number of weight versions published so far."""
        return self._progress.version

    @property
    def num_steps(self) -> int:
        """Calls of `train_batch` so far, skipped steps included; the learning rate is a function of it."""
        return self._progress.num_steps

    @property
    def num_skipped_steps(self) -> int:
        """Steps skipped for non-finite gradients since the run began."""
        return self._progress.skipped_total

    @property
    def offending_rows(self) -> tuple[int, ...]:
        """Rows of the last skipped batch whose own gradient or loss was not finite; empty when no single row explains
        it."""
        return self._progress.offending_rows

    def set_version(self, version: int) -> None:
        """Record the version that the next published weights have. Raises EngineError when it would go back."""
        self._progress.set_version(version)

    def divide(self, batch: PaddedBatch) -> DividedBatch:
        """Divide the rows of a whole batch over the ranks, without communication."""
        return self._runner.divide(batch)

    def receive(self, batch: DividedBatch) -> DividedBatch:
        """Return what this rank was given of a batch, with all rows that it computes; every rank calls it. Each method
        does so by itself: this spares a second method from handing the rows on again."""
        return self._runner.receive(batch)

    def forward_logp(
        self, batch: PaddedBatch | DividedBatch, *, temperature: float = 1.0, only_masked: bool = False
    ) -> Tensor:
        """Log-probability of every token given its prefix, float32 [S, L], without gradient; 0 at t=0 and on padding.

        The result is on the device of `batch`, wherever the model is, so that it fits the batch's other tensors; on the
        CPU for a divided batch.
        only_masked: compute tokens with loss_mask 1 only and leave 0 elsewhere, which spares the vocabulary projection
        of prompts. The values are the same up to the rounding of matrix products of another shape.
        """
        return self._runner.forward_logp(batch, temperature=temperature, only_masked=only_masked)

    def forward_values(self, batch: PaddedBatch | DividedBatch) -> Tensor:
        """Critic value of every token, float32 [S, L], without gradient, on the device of `batch`.

        The value at token t is that of the state in which t was chosen, i.e. of tokens[:t]: the same convention as for
        log-probabilities, so it is 0 at t=0 and on padding. Raises EngineError without a value head.
        """
        return self._runner.forward_values(batch)

    def train_batch(
        self,
        batch: PaddedBatch | DividedBatch,
        loss_fn: LossFunction,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        smoothing: float = 0.0,
    ) -> TrainStats:
        """Forward, backward over all micro-batches, clip, step; a non-finite loss or gradient skips the step, on all
        ranks.

        loss_fn gets log-probabilities (values, for a critic) and, with_entropy, entropies of the full vocabulary; both
        are computed where loss_mask is 1 and are 0 elsewhere. Its denominators must be those of the whole batch. Its
        metrics are returned with "model_tokens_count", the tokens that went through the model: a prompt that several
        sequences of a micro-batch begin with counts once, however many ranks share it.
        smoothing: replaces log p(token) by (1 - smoothing) log p(token) + smoothing * mean_v log p(v), 0 <= smoothing
        < 1: with it a likelihood loss becomes the one with smoothed labels.

        Raises NumericsError when more than max_skipped_steps steps in a row were skipped, EngineError when memory does
        not suffice for the smallest micro-batches; see `areal.engine.train.runner`.
        """
        if not (0 <= smoothing < 1 and temperature > 0):
            raise EngineError(f"expected 0 <= smoothing < 1 and temperature > 0, got {smoothing} and {temperature}")
        if self.is_critic and (with_entropy or smoothing):
            raise EngineError("a critic has no distribution over tokens: with_entropy and smoothing must stay off")
        received = self._runner.receive(batch)
        scoring = Scoring(temperature=temperature, only_masked=True, with_entropy=with_entropy, smoothing=smoothing)
        totals = self._backward(received, loss_fn, scoring)
        gradient_norm = totals.gradient_norm
        rate = learning_rate(self.config, self.num_steps, self._total_steps)
        stepped = totals.is_finite
        metrics = dict(totals.metrics)
        if stepped:
            if totals.num_predicted:
                self.optimizer.step(rate, gradient_norm)
            self._progress.record_step()
        else:
            rows = self._find_offending_rows(received, loss_fn, scoring)
            metrics["nonfinite_sequences_count"] = float(len(rows))
            self._progress.record_skip(received, rows, loss=totals.loss, gradient_norm=gradient_norm)
        self.optimizer.zero_grad()
        return TrainStats(
            loss=totals.loss,
            grad_norm=gradient_norm,
            learning_rate=rate,
            stepped=stepped,
            num_micro_batches=totals.num_micro_batches,
            metrics=metrics,
        )

    def weights(self) -> Mapping[str, Tensor]:
        """Native parameter names to whole tensors, for `WeightUpdateMeta(kind="memory")`: on rank 0, and {} on others,
        which take part in gathering them.

        Of a process that is alone they are the live tensors, else copies in the engine's dtype. With lora: those of the
        adapters only, since nothing else changes.
        """
        return self.state.weights()

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-exact continuation needs, as copies in host memory, on every rank: later steps do not change
        it, and an engine with any arrangement of ranks can load it.

        With lora: the adapters, and a fingerprint of what they were trained on. Plain values and tensors only;
        `areal.infra.checkpoint` can hold it as it is. For models that one host cannot hold, see
        `areal.engine.train.checkpoint`.
        """
        return self.state.whole_state() | self.counters()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises EngineError, before anything is changed, when it belongs to another model."""
        self.state.load_whole_state(state)
        self.set_counters(state)

    def device_tensors(self) -> list[Tensor]:
        """Return what the engine has on its device between two steps: parameters, buffers, masters and moments."""
        return [*self.model.parameters(), *self.model.buffers(), *self.optimizer.tensors()]

    def counters(self) -> dict[str, int]:
        """Where the run is: the part of the state that is the same on every rank."""
        return self._progress.counters()

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Inverse of `counters`."""
        self._progress.set_counters(counters)

    def save_pretrained(self, path: Path) -> None:
        """Write a Hugging Face checkpoint folder (config.json and safetensors), replacing an existing one at once.
        Returns on every rank when it is there; rank 0 writes it.

        A critic is written as its backbone, plus value_head.safetensors with the head. Adapters are merged.
        """
        self.state.save_pretrained(path, is_critic=self.is_critic)

    def save_adapter(self, path: Path, *, base: str) -> None:
        """Write the adapters alone, as a folder that goes on top of the checkpoint `base`; EngineError without any."""
        self.state.save_adapter(path, base=base)

    def _backward(self, batch: DividedBatch, loss_fn: LossFunction, scoring: Scoring) -> BatchTotals:
        """Gradients of the rows of each data rank: totals and gradient norm of all ranks, which all have the same.

        A process that is alone reads from its device once, here, for the decision whether to step."""
        optimizer = self.optimizer

        def norm() -> Tensor:
            optimizer.sum_partial()
            return optimizer.gradient_norm()

        found = self._runner.backward(batch, loss_fn, scoring, zero_grad=optimizer.zero_grad, gradient_norm=norm)
        loss, gradient_norm = self.ranks.agree(found.loss, found.gradient_norm)
        return replace(found, loss=loss, gradient_norm=gradient_norm)

    def _find_offending_rows(self, batch: DividedBatch, loss_fn: LossFunction, scoring: Scoring) -> tuple[int, ...]:
        """Run each sequence, or pair of them, on its own; costs a pass per row, in a case that should be rare."""
        found: list[int] = []
        for unit in units(batch):
            if not self._backward(batch.limited_to(unit), loss_fn, scoring).is_finite:
                found += unit
        return tuple(found)


class Progress:
    """Counters of one engine."""

    def __init__(self, *, max_skipped_steps: int) -> None:
        self.version = 0
        self.num_steps = 0
        self.skipped_in_row = 0
        self.skipped_total = 0
        self.offending_rows: tuple[int, ...] = ()
        self._max_skipped_steps = max_skipped_steps

    def set_version(self, version: int) -> None:
        """Record the version of the next published weights. Raises EngineError when it would go back."""
        if version < self.version:
            raise EngineError(f"version {version} is older than the current {self.version}; versions only grow")
        self.version = version

    def record_step(self) -> None:
        """Count a step that was taken."""
        self.num_steps += 1
        self.skipped_in_row = 0

    def record_skip(self, batch: Outlined, rows: tuple[int, ...], *, loss: float, gradient_norm: float) -> None:
        """Count a step that was skipped because of `rows`; () when no single row explains it. Raises NumericsError for
        too many in a row."""
        self.num_steps += 1
        self.offending_rows = rows
        self.skipped_in_row += 1
        self.skipped_total += 1
        groups = [int(batch.groups[row]) for row in rows]
        culprits = f"rows {list(rows)} of prompt groups {groups}" if rows else "no single row"
        message = (
            f"optimizer step {self.num_steps - 1} skipped ({self.skipped_in_row} in a row): loss {loss}, "
            f"gradient norm {gradient_norm}; caused by {culprits}"
        )
        _logger.warning("%s", message)
        if self.skipped_in_row > self._max_skipped_steps:
            raise NumericsError(
                f"{message}. max_skipped_steps is {self._max_skipped_steps}: lower lr, check the data of "
                f"those rows, or use dtype float32"
            )

    def counters(self) -> dict[str, int]:
        """Return what a checkpoint has of it."""
        return {
            "version": self.version,
            "num_steps": self.num_steps,
            "skipped_in_row": self.skipped_in_row,
            "skipped_total": self.skipped_total,
        }

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Take over `counters`; other entries are ignored."""
        self.version = counters["version"]
        self.num_steps = counters["num_steps"]
        self.skipped_in_row = counters["skipped_in_row"]
        self.skipped_total = counters["skipped_total"]


def _freeze_vision(model: Any, config: TrainEngineConfig) -> None:
    """Leave the tower of an image-text model as it is, as far as it is not trained."""
    holder = getattr(model, "backbone", model)
    if getattr(holder, "vision", None) is None:
        return
    if config.lora is not None and config.vision.train != "none":
        raise ConfigError(
            f"actor.vision.train is {config.vision.train!r}, and adapters leave all else as it is; set it to none, and "
            f"list the parts that get adapters in actor.lora.scope"
        )
    # With adapters: what the tower has now is frozen when they are added, as all else is.
    holder.freeze_vision(config.vision.train if config.lora is None else "all")


def _resolve_device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")
