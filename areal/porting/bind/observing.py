"""Looks at one config at a time: whether it builds, whether it computes anything else, and what, proven by parity."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from areal.api import ModelError
from areal.models.config_fields import TRAINING_NOISE
from areal.porting import reference
from areal.porting.bind.budget import AnalysisBudget
from areal.porting.bind.expressions import EvaluationError, same
from areal.porting.bind.slots import ABSENT, LayerValues, slots_of
from areal.porting.bind.variations import changed
from areal.porting.infer.infer import infer
from areal.porting.infer.layout import canonical, infer_layout
from areal.porting.probe.instance import build, export, logits, make_tokens
from areal.porting.probe.wide import wide_logits, without_rounding
from areal.porting.records import SubjectError, UnsupportedError
from areal.porting.spec import ArchitectureSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from areal.porting.family import LayoutEntry
    from areal.porting.probe.instance import Instance
    from areal.porting.probe.subject import Subject
    from areal.porting.records import Inference


TOLERANCE: Final = 5e-5
"""Of logits, times max(1, their standard deviation): float32 on a CPU."""

CLOSE: Final = 3.0
"""Of a difference that may be rounding alone: so many times what is allowed."""

ROWS, LENGTH = 2, 40
"""Of the batch that judges; more tokens than the windows of tiny configs."""

POSITION_LIMITS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")

Prediction = Callable[[dict[str, Any]], ArchitectureSpec]
"""The spec that is expected for a config.json."""

Kind = Literal["refused", "no_effect", "proven", "unsupported"]


@dataclass(frozen=True, kw_only=True)
class ConfigOutcome:
    """What became of one config."""

    changes: Mapping[str, Any]
    config: dict[str, Any]
    kind: Kind
    """refused: the config class or the model does not accept it, or no blocks take what is expected of many changes.
    no_effect: logits equal bit for bit those of the base config. proven: `values` were proven by parity.
    unsupported: no spec reproduces it."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Slots, for no_effect (those of the base config) and proven."""
    expected: Mapping[str, Any] | None = None
    """For no_effect: the slots of the expected spec where these are others, and as right as the base config's."""
    parity: float = 0.0
    tolerance: float = TOLERANCE
    detail: str = ""
    error: UnsupportedError | None = None
    loud: bool = False
    """Whether the expected spec, if there was one, could not even be built or given the weights: a family of the same
    expressions refuses such a checkpoint, so nothing about it can go wrong in silence."""
    inferred: bool = False
    """Whether the spec is another than was predicted, inferred afresh or found nearby."""


class Observer:
    """Builds and judges configs of one subject, relative to a base config that it infers first."""

    def __init__(self, subject: Subject, base: dict[str, Any], budget: AnalysisBudget | None = None) -> None:
        """Observe the base. Raises SubjectError or UnsupportedError when it cannot be used or explained."""
        self.subject = subject
        self.base = base
        self.budget = budget or AnalysisBudget()
        self.seconds: dict[str, float] = {}
        self.num_inferred = 0
        self.instance = build(subject, base, attention="eager")
        self._fused = build(subject, base)
        self.inference: Inference = infer(self.instance, fused=self._fused)
        self.values = slots_of(self.inference.spec)
        self._pairs: list[tuple[Instance, Inference]] = []
        self.layout: tuple[LayoutEntry, ...] = infer_layout(self.instance, self.inference)
        self._logits = logits(self._fused, self._tokens(self._fused))
        self._shapes = shapes(self._fused)
        self._stored = functools.cache(lambda: export(self._fused))

    def observe(  # noqa: PLR0911 - one for each kind of outcome
        self,
        changes: Mapping[str, Any],
        predict: Prediction | None = None,
        *,
        may_infer: bool = True,
        nearby: Iterable[Prediction] = (),
    ) -> ConfigOutcome:
        """Return what the base config with these changes computes. predict: the spec that is expected for a config; it
        is judged first and, where right, saves the inference. may_infer: whether to infer where it is wrong. nearby:
        what to judge before that.

        Raises UnsupportedError where nothing is left of the budget."""
        self.budget.count_config(changes)
        config = changed(self.base, changes)
        try:
            instance = build(self.subject, config)
            first = logits(instance, self._tokens(instance))
        except SubjectError as error:
            return ConfigOutcome(changes=changes, config=config, kind="refused", detail=str(error))
        if not bool(torch.isfinite(first).all()):
            return ConfigOutcome(changes=changes, config=config, kind="refused", detail="logits are not finite")
        if torch.equal(first, self._logits) and shapes(instance) == self._shapes:
            expected = None if predict is None else self._expected(instance, config, predict, first)
            return ConfigOutcome(
                changes=changes, config=config, kind="no_effect", values=self.values, expected=expected
            )
        tensors = functools.cache(lambda: self._export(instance, changes))
        found = None if predict is None else self._judge(instance, config, predict, first, tensors)
        near = None
        if may_infer and not isinstance(found, tuple):
            judged = (self._judge(instance, config, guess, first, tensors) for guess in nearby)
            near = next((each for each in judged if isinstance(each, tuple)), None)
        right = near or found
        if found == "rounded" and len(changes) > 1:
            # E.g. a width of 8 beside a small eps: parity can neither be shown nor denied, and nothing is to blame.
            return ConfigOutcome(changes=changes, config=config, kind="refused", detail="float32 rounds too much")
        if isinstance(right, tuple):
            spec, parity, tolerance = right
            if any(rotary.dim < 1 and not rotary.query_growth for rotary in spec.rotaries):
                # Heads so small that nothing is left to rotate say nothing of what is: families refuse them as well.
                return ConfigOutcome(
                    changes=changes, config=config, kind="refused", detail="a rotation of no dimension"
                )
            values = slots_of(spec)
            return ConfigOutcome(
                changes=changes,
                config=config,
                kind="proven",
                values=values,
                parity=parity,
                tolerance=tolerance,
                inferred=near is not None,
            )
        if not may_infer:
            return ConfigOutcome(changes=changes, config=config, kind="unsupported", detail="not as predicted")
        if found is False and len(changes) > 1 and predict is not None and not self._builds(predict, config):
            # E.g. more experts for each token than its groups hold: what such a config does is an accident that may
            # look like anything, and a family of these expressions refuses it.
            return ConfigOutcome(changes=changes, config=config, kind="refused", detail="no blocks do what is expected")
        return replace(self._infer(changes, instance, tensors()), loud=found is False)

    def _expected(
        self,
        instance: Instance,
        config: dict[str, Any],
        predict: Prediction,
        first: Tensor,
    ) -> Mapping[str, Any] | None:
        """Return the slots of the predicted spec, if it is not the base config's and does the same: the best two of two
        groups of experts are the best two of all."""
        try:
            values = slots_of(predict(config))
        except EvaluationError:
            return None
        if all(same_value(value, self.values.get(slot, ABSENT)) for slot, value in values.items()):
            return None
        return values if isinstance(self._judge(instance, config, predict, first, self._stored), tuple) else None

    def _export(self, instance: Instance, changes: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """Return what `save_pretrained` writes. The base's weights under the base's names are stored as the base's are,
        unless a number has changed by which rows may be ordered."""
        if any(_counts(value) for value in changes.values()) or not _alike(instance.model, self._fused.model):
            return export(instance)
        return self._stored()

    def _builds(self, predict: Prediction, config: dict[str, Any]) -> bool:
        """Return whether blocks take what is expected of a config; true where nothing is."""
        try:
            spec = predict(config)
        except EvaluationError:
            return True
        try:
            reference.outline(spec)
        except (ModelError, UnsupportedError):
            return False
        return True

    def _judge(
        self,
        instance: Instance,
        config: dict[str, Any],
        predict: Prediction,
        first: Tensor,
        tensors: Callable[[], Mapping[str, Tensor]],
    ) -> tuple[ArchitectureSpec, float, float] | Literal[False, "rounded"] | None:
        """Return the predicted spec, if its logits are the instance's; False where it does not take the weights at
        all; "rounded" where they are close to them, and in float64 closer than float32 logits have to be."""
        try:
            spec = predict(config)
            outline = reference.outline(spec)
            weights = canonical(self.layout, tensors(), spec, outline=outline)
            tokens = self._tokens(instance)
            tolerance = TOLERANCE * max(1.0, float(first.std()))
            double = functools.cache(
                lambda: reference.logits(spec, {name: each.double() for name, each in weights.items()}, tokens)
            )
            ours = reference.load(spec, weights, outlined_model=outline)
            difference = float((reference.logits_of(ours, tokens) - first).abs().max())
            difference = without_rounding(instance, tokens, double, difference=difference, allowed=tolerance)
            if tolerance < difference <= CLOSE * tolerance:
                expected = wide_logits(instance, tokens)
                if (
                    expected is not None
                    and float((double().reshape(expected.shape) - expected).abs().max()) <= tolerance
                ):
                    return "rounded"
        except (EvaluationError, ModelError, SubjectError, UnsupportedError, ValueError, RuntimeError):
            # A wrong prediction fails in any of these ways; the inference that follows decides.
            return False
        return (spec, difference, tolerance) if difference <= tolerance else None

    def _infer(self, changes: Mapping[str, Any], fused: Instance, tensors: Mapping[str, Tensor]) -> ConfigOutcome:
        self.num_inferred += 1
        config = fused.config
        try:
            instance = build(self.subject, config, attention="eager")
            inference = infer(instance, fused=fused)
            self._check_layout(instance, inference, tensors)
        except SubjectError as refusal:
            # It builds with fused attention only, where a missing scale has a default.
            return ConfigOutcome(changes=changes, config=config, kind="refused", detail=str(refusal))
        except UnsupportedError as error:
            return ConfigOutcome(changes=changes, config=config, kind="unsupported", detail=str(error), error=error)
        except (ModelError, RuntimeError, ValueError, IndexError, KeyError, TypeError) as failure:
            # Foreign models do what nobody thought of; where that makes an inference fail, nothing is proven.
            unknown = UnsupportedError("a computation that cannot be followed", where="model", detail=str(failure))
            return ConfigOutcome(changes=changes, config=config, kind="unsupported", detail=str(unknown), error=unknown)
        return ConfigOutcome(
            changes=changes,
            config=config,
            kind="proven",
            values=slots_of(inference.spec),
            parity=inference.parity,
            tolerance=inference.tolerance,
            inferred=True,
        )

    def _check_layout(self, instance: Instance, inference: Inference, tensors: Mapping[str, Tensor]) -> None:
        """Find the table of names again where the one so far does not hold for another config. Raises
        UnsupportedError."""
        if self._reads(self.layout, tensors, inference):
            return
        pairs = [*self._pairs, (instance, inference)]
        layout = infer_layout(self.instance, self.inference, others=pairs)
        if not self._reads(layout, tensors, inference):
            raise UnsupportedError(
                "names on disk that depend on the config", where="checkpoint", detail="no table holds for all configs"
            )
        self._pairs = pairs
        self.layout = layout

    def _reads(self, layout: tuple[LayoutEntry, ...], tensors: Mapping[str, Tensor], inference: Inference) -> bool:
        try:
            weights = canonical(layout, tensors, inference.spec)
        except ModelError:
            return False
        # Tables of exponentials are rounded otherwise when they are made again.
        return weights.keys() == inference.weights.keys() and all(
            torch.allclose(weight, inference.weights[name], rtol=1e-6, atol=1e-7) for name, weight in weights.items()
        )

    def _tokens(self, instance: Instance) -> Tensor:
        limits = [getattr(instance.hf_config, name, None) for name in POSITION_LIMITS]
        limit = min((value for value in limits if isinstance(value, int) and value > 0), default=LENGTH)
        return make_tokens(instance, batch=ROWS, length=min(LENGTH, limit), seed=2)


def _counts(value: Any) -> bool:
    """Return whether a value is a whole number, or holds one."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(map(_counts, value))
    return type(value) is int


def _alike(first: nn.Module, second: nn.Module) -> bool:
    """Return whether two models keep the same tensors, of which the same share memory."""
    kept, other = first.state_dict(), second.state_dict()
    if kept.keys() != other.keys():
        return False
    shared: dict[int, int] = {}
    for name, tensor in kept.items():
        if tensor.shape != other[name].shape or tensor.dtype != other[name].dtype:
            return False
        if shared.setdefault(tensor.data_ptr(), other[name].data_ptr()) != other[name].data_ptr():
            return False
    return len({*shared.values()}) == len(shared) and all(torch.equal(kept[name], other[name]) for name in kept)


def shapes(instance: Instance) -> dict[str, tuple[int, ...]]:
    """Return the shapes of everything that the model keeps."""
    return {name: tuple(tensor.shape) for name, tensor in instance.model.state_dict().items()}


# --------------------------------------------------------------------------------------------------------- observations

# What was seen of one config, and how two of these compare.


@dataclass(frozen=True)
class Observation:
    """The slots of one config. values: as `slots_of` gives them."""

    config: Mapping[str, Any]
    """Completed: defaults and rules filled in."""
    values: Mapping[str, Any]
    changes: Mapping[str, Any]

    @property
    def depth(self) -> int:
        """Number of layers."""
        return int(self.values["num_layers"])


@dataclass(frozen=True)
class SlotSample:
    """What a slot was for one config. value: `LayerValues` for slots of layers."""

    config: Mapping[str, Any]
    value: Any
    depth: int
    """Number of layers."""


def one_cause(observation: Observation) -> bool:
    """Return whether further changes are only lists that were resized, or left to the class to fill."""
    return sum(not isinstance(value, list | None) for value in observation.changes.values()) <= 1


def same_value(first: Any, second: Any) -> bool:
    """Return whether two values of a slot are the same in the layers that both configs have."""
    if isinstance(first, LayerValues) and isinstance(second, LayerValues):
        shorter = min(len(first), len(second))
        return all(
            a is b or (ABSENT not in (a, b) and same(a, b))
            for a, b in zip(first[:shorter], second[:shorter], strict=True)
        )
    if first is ABSENT or second is ABSENT:
        return first is second
    return same(first, second)


def readable(names: Iterable[str], observations: Sequence[Observation]) -> list[str]:
    """Return the fields that expressions may read. observations: the base config's first.

    Noise of training (dropout, jitter) counts only once it was seen to change something alone: among many changes at
    once it would explain anything, and models would go wrong with it.
    """
    base = observations[0]

    def acts_alone(name: str) -> bool:
        return any(
            not same_value(value, base.values.get(slot, ABSENT))
            for each in observations
            if each.changes.keys() == {name}
            for slot, value in each.values.items()
        )

    return [name for name in names if not TRAINING_NOISE.fullmatch(name) or acts_alone(name)]
