"""Prepare a trained model for inference servers: the content of its config.json, and its weights by the names of
a checkpoint, whole or as adapters on top of what stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from areal.api import ConfigError, EngineError, ModelError
from areal.hub.download import METADATA, local_folder
from areal.models.vision import is_image_model
from areal.trainer.configuration.validation import read_model_config
from areal.utils.logging import getLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from areal.api import PaddedBatch
    from areal.engine.config import LoraConfig
    from areal.engine.server.publishing import AdapterBase
    from areal.engine.server.routes import ServedRouters
    from areal.infra.weights.shards import StreamingRanks
    from areal.trainer.config import ModelConfig, PPOConfig

_logger = getLogger(__name__)


class ServedPolicy(Protocol):
    """A model as inference engines know it: `areal.trainer.learner.TrainedPolicy` while it is trained."""

    @property
    def model(self) -> nn.Module:
        """The model, or what tells its sizes and device."""
        ...

    def whole_model(self) -> nn.Module:
        """Return the model with all of its present weights."""
        ...

    def weights(self) -> Mapping[str, Tensor]:
        """Return what training changes, by our names."""
        ...

    def streams(self) -> StreamingRanks | None:
        """Return the ranks that stream weights from their shards; None where weights are handed out."""
        ...

    def forward_logp(self, batch: PaddedBatch) -> Tensor:
        """Return log-probabilities, to compare with those of a sampler."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServedWeights:
    """Arguments of a `ServerEngine`."""

    to_hf: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
    """Trained parameters to what travels with every version."""
    first: Mapping[str, Tensor]
    """The same of the present weights."""
    base: AdapterBase | None = None
    """What travels once; None when every version is whole."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """Model that a server is started with."""

    content: dict[str, Any]
    """Of config.json."""
    context: int
    """Longest sequence."""
    processor: Path | None = None
    """Folder with the settings of the image processor; None for a model that reads text only."""


def served_weights(config: PPOConfig, actor: ServedPolicy) -> ServedWeights:
    """Return what a `ServerEngine` is built with. Raises EngineError when adapters must travel alone (weights.adapters)
    and cannot.
    """
    from areal.engine.hf.on_disk import checkpoint_tensors

    if config.actor.lora is not None and getattr(actor.model, "vision", None) is not None:
        raise ConfigError(
            "adapters of an image-text model do not travel to servers; its layers have other names there",
            where="actor.lora",
            fix="set rollout.engine to embedded, or train without actor.lora",
        )
    if config.actor.lora is None:
        model = actor.model

        def to_hf(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
            return checkpoint_tensors(model, state)

        return ServedWeights(to_hf=to_hf, first=to_hf(actor.weights()))
    if config.adapters_travel_alone:
        try:
            return _adapters_alone(actor.whole_model(), actor.weights())
        except EngineError as error:
            if config.weights.adapters == "alone":
                raise
            _logger.warning("every weight update carries the whole model: %s", error)
    return _merged(actor.whole_model(), actor.weights(), config.actor.lora)


def served_routers(content: Mapping[str, Any]) -> ServedRouters:
    """Return the routers of a model as servers number them. content: of its config.json. Raises ConfigError where a
    server could not say which router chose what."""
    from areal.engine.server.routes import ServedRouters
    from areal.models.blocks.routing import routers_of
    from areal.models.loading import blank_model

    model: Any = blank_model(content)
    found = [routers_of(layer) for layer in model.layers]
    sizes = {(router.weight.shape[0], router.top_k) for routers in found for router in routers}
    if len(sizes) != 1 or max(map(len, found)) > 1:
        raise ConfigError(
            f"servers report the same number of experts for each layer, and this model has layers with "
            f"{sorted(set(map(len, found)))} routers that choose (of, how many) {sorted(sizes)}",
            where="actor.router_replay",
            fix="set it to false, or rollout.engine to embedded",
        )
    ((num_experts, top_k),) = sizes
    layers = tuple(number for number, routers in enumerate(found) if routers)
    return ServedRouters(num_layers=len(found), layers=layers, num_experts=num_experts, top_k=top_k)


def served_model(config: ModelConfig, *, dtype: str, max_seq_len: int) -> ServedModel:
    """From the configuration alone: nothing is built, no weights are read. Raises ModelError or ConfigError."""
    content = read_model_config(config)
    if config.implementation == "transformers":
        return _foreign(config, content, dtype=dtype, max_seq_len=max_seq_len)
    from areal.models.loading import resolve
    from areal.models.wrapping import whole_config

    args = resolve(content)[1]
    return ServedModel(
        content={**whole_config(args), "dtype": dtype}, context=min(max_seq_len, args.max_position_embeddings)
    )


def _adapters_alone(model: nn.Module, first: Mapping[str, Tensor]) -> ServedWeights:
    from areal.engine.hf.on_disk import AdaptersOnDisk, base_tensors
    from areal.engine.server.publishing import AdapterBase

    adapters = AdaptersOnDisk.of(model)
    return ServedWeights(
        to_hf=adapters.factors,
        first=adapters.factors(first),
        base=AdapterBase(tensors=base_tensors(model), changes=adapters.changes),
    )


def _merged(model: nn.Module, first: Mapping[str, Tensor], lora: LoraConfig) -> ServedWeights:
    from areal.engine.hf.on_disk import checkpoint_tensors, merged_tensors, transposed_layers

    transposed = transposed_layers(model)

    def to_hf(state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        # What is trained are the adapters; servers take the whole model with the adapters in it.
        everything = {**model.state_dict(), **state}
        return checkpoint_tensors(model, dict(merged_tensors(everything.items(), lora, transposed=transposed)))

    return ServedWeights(to_hf=to_hf, first=to_hf(first))


def _foreign(config: ModelConfig, content: Mapping[str, Any], *, dtype: str, max_seq_len: int) -> ServedModel:
    """As `transformers` would write it, with the class that servers look for."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    reads_images = is_image_model(str(content.get("model_type")))
    if reads_images and not config.path:
        raise ConfigError(
            "servers take the settings of an image processor from a checkpoint, and model.path is empty",
            fix="write a checkpoint with its processor first, and name it in model.path",
        )
    library: Any = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
    fields = dict(content)
    try:
        loaded: Any = (
            AutoConfig.from_pretrained(
                local_folder(config.path, METADATA), trust_remote_code=False, local_files_only=True
            )
            if config.path
            else AutoConfig.for_model(fields.pop("model_type", ""), **fields)
        )
        name = library._model_mapping[type(loaded)].__name__
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"transformers has no causal model of type {content.get('model_type')!r}: {error}") from error
    limit = getattr(loaded.get_text_config(), "max_position_embeddings", None)
    return ServedModel(
        content={**loaded.to_diff_dict(), "architectures": [name], "dtype": dtype},
        context=min(max_seq_len, limit) if limit else max_seq_len,
        processor=local_folder(config.path, METADATA) if reads_images else None,
    )
