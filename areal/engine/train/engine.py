"""The training engine on one process: owns a model and its optimizer, on the CPU or one accelerator.

Implements `areal.api.TrainEngine`. It knows nothing about objectives, rewards or rollouts: a loss function comes in
with each batch. Results do not depend on how a batch is cut into micro-batches, and on the CPU two equal runs are
equal bit by bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import EngineError, TrainStats
from areal.engine.train.checks import check_has_distribution, check_has_values, check_role, check_scoring
from areal.engine.train.forward import (
    forward_logp,
    place,
    run_in_micro_batches,
    to_device,
    token_scores,
    token_values,
)
from areal.engine.train.head import score_dtype
from areal.engine.train.optimizer import MasterOptimizer, check_names
from areal.engine.train.progress import Progress, ProgressReport
from areal.engine.train.schedule import learning_rate
from areal.engine.train.totals import Totals
from areal.utils.atomic import atomic_write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.api import LossOutput, PaddedBatch
    from areal.engine.train.config import TrainEngineConfig

    LossFunction = Callable[[Tensor, Tensor | None, PaddedBatch], LossOutput]

_STATE_SCHEMA: Final = 1


class TrainingEngine(ProgressReport):
    """One trained model, actor or critic.

    engine = TrainingEngine(from_pretrained(path), config=TrainEngineConfig(lr=1e-4), total_steps=200)
    stats = engine.train_batch(batch, loss_fn, temperature=1.0)
    """

    def __init__(
        self, model: nn.Module, *, config: TrainEngineConfig, total_steps: int | None = None, is_critic: bool = False
    ) -> None:
        """Take over `model` (a CausalModel; with is_critic a ValueModel) and move it to the device and dtype.

        total_steps: calls of `train_batch` in the whole run, i.e. training steps times minibatches; only decaying
        learning rates need it. Raises ConfigError when such a schedule gets None, EngineError when the model does not
        fit its role.
        """
        self.config = config
        self.device = _resolve_device(config.device)
        self.is_critic = is_critic
        check_role(model, is_critic=is_critic)
        self._total_steps = total_steps
        learning_rate(config, config.warmup_steps, total_steps)
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self._model = model.to(self.device)
        self._base: str | None = None
        if config.lora is not None:
            from areal.engine.hf.lora import BaseModel, add_lora

            add_lora(self._model, config.lora, dtype=self._dtype)
            self._base = BaseModel.of(self._model).fingerprint
        self._optimizer = MasterOptimizer(self._model, config, dtype=self._dtype)
        self._progress = Progress(max_skipped_steps=config.max_skipped_steps)
        if config.gradient_checkpointing:
            switch: Any = self._model.set_gradient_checkpointing
            switch(True)

    @property
    def model(self) -> nn.Module:
        """The live model."""
        return self._model

    @torch.no_grad()
    def forward_logp(self, batch: PaddedBatch, *, temperature: float = 1.0, only_masked: bool = False) -> Tensor:
        """Log-probability of every token given its prefix, float32 [S, L], without gradient; 0 at t=0 and on padding.

        The result is on the device of `batch`, wherever the model is, so that it fits the batch's other tensors.
        only_masked: compute tokens with loss_mask 1 only and leave 0 elsewhere, which spares the vocabulary projection
        of prompts. The values are the same up to the rounding of matrix products of another shape.
        """
        check_has_distribution(is_critic=self.is_critic)
        moved = to_device(batch, self.device)
        result = forward_logp(self._model, moved, self.config, temperature=temperature, only_masked=only_masked)
        return result.to(batch.tokens.device)

    @torch.no_grad()
    def forward_values(self, batch: PaddedBatch) -> Tensor:
        """Critic value of every token, float32 [S, L], without gradient, on the device of `batch`.

        The value at token t is that of the state in which t was chosen, i.e. of tokens[:t]: the same convention as for
        log-probabilities, so it is 0 at t=0 and on padding. Raises EngineError without a value head.
        """
        check_has_values(is_critic=self.is_critic)
        moved = to_device(batch, self.device)
        result_SL = torch.zeros(batch.tokens.shape, dtype=score_dtype(self._dtype), device=self.device)

        def work(part: PaddedBatch, rows: Tensor) -> None:
            found = token_values(self._model, part, only_masked=False)
            values_SL = place(found.values, found.predicted, dtype=result_SL.dtype)
            result_SL[rows, : values_SL.shape[1]] = values_SL

        run_in_micro_batches(moved, self.config.max_tokens_per_micro_batch, work, reset=lambda: None)
        return result_SL.to(batch.tokens.device)

    def train_batch(
        self,
        batch: PaddedBatch,
        loss_fn: LossFunction,
        *,
        temperature: float = 1.0,
        with_entropy: bool = False,
        smoothing: float = 0.0,
    ) -> TrainStats:
        """Forward, backward over all micro-batches, clip, step; a non-finite loss or gradient skips the step.

        loss_fn gets log-probabilities (values, for a critic) and, with_entropy, entropies of the full vocabulary; both
        are computed where loss_mask is 1 and are 0 elsewhere. Its denominators must be those of the whole batch. Its
        metrics are returned with "model_tokens_count", the tokens that went through the model: a prompt that several
        sequences of a micro-batch begin with counts once.
        smoothing: replaces log p(token) by (1 - smoothing) log p(token) + smoothing * mean_v log p(v), 0 <= smoothing
        < 1: with it a likelihood loss becomes the one with smoothed labels.

        Raises NumericsError when more than max_skipped_steps steps in a row were skipped, EngineError when memory does
        not suffice even for half-sized micro-batches.
        """
        check_scoring(is_critic=self.is_critic, temperature=temperature, with_entropy=with_entropy, smoothing=smoothing)
        batch = to_device(batch, self.device)
        totals = Totals()

        def backward(part: PaddedBatch) -> None:
            scores_SL, entropy_SL, num_model_tokens = self._scores(
                part, temperature, with_entropy=with_entropy, smoothing=smoothing
            )
            output = loss_fn(scores_SL, entropy_SL, part)
            output.loss.backward()
            totals.add(output, num_model_tokens)

        def reset() -> None:
            self._optimizer.zero_grad()
            totals.clear()

        reset()
        budget = self.config.max_tokens_per_micro_batch
        num_micro_batches = run_in_micro_batches(batch, budget, lambda part, _: backward(part), reset=reset)
        loss, metrics = totals.result()
        gradient_norm = self._optimizer.gradient_norm()
        rate = learning_rate(self.config, self.num_steps, self._total_steps)
        stepped = math.isfinite(loss) and math.isfinite(gradient_norm)
        if stepped:
            self._optimizer.step(rate, gradient_norm)
            self._progress.record_step()
        else:
            rows = self._find_offending_rows(batch, backward, totals)
            metrics["nonfinite_sequences_count"] = float(len(rows))
            self._progress.record_skip(batch, rows, loss=loss, gradient_norm=gradient_norm)
        return TrainStats(
            loss=loss,
            grad_norm=gradient_norm,
            learning_rate=rate,
            stepped=stepped,
            num_micro_batches=num_micro_batches,
            metrics=metrics,
        )

    def weights(self) -> Mapping[str, Tensor]:
        """Native parameter names to live tensors (not copies): what `WeightUpdateMeta(kind="memory")` carries.

        With lora: those of the adapters only, since nothing else changes.
        """
        if self._base is None:
            return self._model.state_dict()
        return {name: parameter.data for name, parameter in self._model.named_parameters() if parameter.requires_grad}

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-exact continuation needs, as copies in host memory: later steps do not change it.

        With lora: the adapters, and a fingerprint of what they were trained on. Plain values and tensors only;
        `areal.infra.checkpoint` can hold it as it is.
        """
        return {
            "schema": _STATE_SCHEMA,
            "parameters": {name: tensor.to("cpu", copy=True) for name, tensor in self.weights().items()},
            **({} if self._base is None else {"base": self._base}),
            "optimizer": self._optimizer.state_dict(),
            **self._progress.counters(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`. Raises EngineError, before anything is changed, when it belongs to another model."""
        if state.get("schema") != _STATE_SCHEMA:
            raise EngineError(
                f"engine state has schema {state.get('schema')!r}, this program reads {_STATE_SCHEMA}; use the "
                f"version of areal that wrote it"
            )
        if state.get("base") != self._base:
            raise EngineError(
                "the state was saved with other adapters or on top of another base model; use the same model.path and "
                "lora settings as when it was saved"
            )
        own = self.weights()
        check_names("parameters", state["parameters"], set(own))
        for name, tensor in state["parameters"].items():
            if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
                raise EngineError(
                    f"parameter {name} is {tensor.dtype} {tuple(tensor.shape)} in the state and {own[name].dtype} "
                    f"{tuple(own[name].shape)} in the model; use the configuration the state was saved with"
                )
        self._optimizer.check_state(state["optimizer"])
        for name, tensor in state["parameters"].items():
            own[name].copy_(tensor)
        self._optimizer.load_state_dict(state["optimizer"])
        self._progress.set_counters(state)

    def save_pretrained(self, path: Path) -> None:
        """Write a Hugging Face checkpoint folder (config.json and safetensors), replacing an existing one at once.

        A critic is written as its backbone, plus value_head.safetensors with the head. Adapters are merged into a copy
        of the model, which is what is written.
        """
        model: Any = self._model
        if self._base is not None:
            from areal.engine.hf.lora import merged_copy

            model = merged_copy(model)
        if not self.is_critic:
            model.save_pretrained(path)
            return
        from safetensors.torch import save

        model.backbone.save_pretrained(path)
        head = {name: tensor.cpu().contiguous() for name, tensor in model.head.state_dict().items()}
        atomic_write(path / "value_head.safetensors", save(head))

    def save_adapter(self, path: Path, *, base: str) -> None:
        """Write the adapters alone, as a folder that goes on top of the checkpoint `base`; EngineError without any."""
        if self.config.lora is None:
            raise EngineError("there is no adapter to save: the engine was configured without lora")
        from areal.engine.hf.lora import save_adapter

        save_adapter(self._model, self.config.lora, path, base=base)

    def _scores(
        self, part: PaddedBatch, temperature: float, *, with_entropy: bool, smoothing: float
    ) -> tuple[Tensor, Tensor | None, int]:
        """Scores and entropy, both [S, L], and how many tokens the model computed for them."""
        dtype = score_dtype(self._dtype)
        if self.is_critic:
            found = token_values(self._model, part, only_masked=True)
            return place(found.values, found.predicted, dtype=dtype), None, found.num_model_tokens
        scores, predicted_SL, num_model_tokens = token_scores(
            self._model,
            part,
            temperature=temperature,
            chunk=self.config.logprob_chunk_size,
            only_masked=True,
            with_distribution=with_entropy or smoothing > 0,
        )
        logp_N, entropy_N = (None, None) if scores is None else (scores.logp, scores.entropy)
        if scores is not None and scores.mean_logp is not None and smoothing > 0:
            logp_N = (1 - smoothing) * scores.logp + smoothing * scores.mean_logp
        logp_SL = place(logp_N, predicted_SL, dtype=dtype)
        entropy_SL = place(entropy_N, predicted_SL, dtype=dtype) if with_entropy else None
        return logp_SL, entropy_SL, num_model_tokens

    def _find_offending_rows(
        self, batch: PaddedBatch, backward: Callable[[PaddedBatch], None], totals: Totals
    ) -> tuple[int, ...]:
        """Run each sequence on its own; costs one more pass over the batch, in a case that should be rare."""
        rows: list[int] = []

        def reset() -> None:
            self._optimizer.zero_grad()
            totals.clear()

        def work(part: PaddedBatch, indices: Tensor) -> None:
            reset()
            backward(part)
            if not (math.isfinite(totals.result()[0]) and math.isfinite(self._optimizer.gradient_norm())):
                rows.extend(indices.tolist())

        # A budget of one token gives every sequence a micro-batch of its own.
        run_in_micro_batches(batch, 1, work, reset=lambda: None)
        reset()
        return tuple(sorted(rows))


def _resolve_device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")
