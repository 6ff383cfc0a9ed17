"""Builds the inference engine a run asks for (`rollout.engine`): in this process, or server processes with all they
need.

Engines know nothing of processes and carriers, those know nothing of engines: this is where they meet.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from areal.api import ImageRef, InferenceEngine, PaddedBatch, WeightUpdateMeta
from areal.infra.metrics import names
from areal.trainer.server_command import SERVER_KIND, SERVERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from areal.api import ServerPool
    from areal.engine.server.engine import ServerEngine
    from areal.engine.server.updates import ProbeReference
    from areal.infra.supervisor.supervisor import LocalSupervisor
    from areal.models.vision import VisionFormat
    from areal.trainer.config import PPOConfig
    from areal.trainer.device_sharing import SharedDevice
    from areal.trainer.server_weights import ServedModel, ServedPolicy

HEALTH_PATH: Final = "/health"
_PROBE_SIDE: Final = 56


def build_inference_engine(
    config: PPOConfig,
    *,
    actor: ServedPolicy,
    tokenizer: Any,
    directory: Path,
    version: int,
    device: SharedDevice | None = None,
    learns: bool = False,
) -> InferenceEngine:
    """Return the engine, at `version` of the actor's present weights. directory: of the run, for logs and files of
    servers. device: what servers and learner have in turn; servers have it from now on. learns: whether answers are
    learned from, with what actor.router_replay asks to be recorded.
    """
    if config.rollout.engine == "embedded":
        return _embedded(config, actor, tokenizer, version, record_routes=learns and config.actor.router_replay)
    engine = _with_servers(
        config,
        actor=actor,
        tokenizer=tokenizer,
        directory=directory,
        version=version,
        before_waking=(lambda: None) if device is None else device.to_servers,
        record_routes=learns and config.actor.router_replay,
    )
    if device is not None:
        device.sampling()
    return engine


def lend_devices(config: PPOConfig, engine: InferenceEngine, device: SharedDevice | None) -> None:
    """Free the devices of the engine's servers for the learner, if it is configured; the weight update wakes them.
    device: where the learner sleeps, too. An engine that samples with the learner's weights pauses.
    """
    if config.shares_weights:
        engine.pause()
    if config.servers_take_turns:
        from areal.engine.server.engine import ServerEngine

        assert isinstance(engine, ServerEngine), "every engine with servers is one"
        if device is None:
            engine.sleep()
        else:
            device.to_learner(engine)


def publish_weights(
    config: PPOConfig,
    engine: InferenceEngine,
    make: Callable[[int], Mapping[str, Any]],
    version: int,
    device: SharedDevice | None,
) -> None:
    """Give the engine a version, after `lend_devices`. make: returns its weights, which may be a whole copy where the
    model is split, and which nobody else may keep. device: goes back to servers.
    """
    handed = dict(make(version))
    if device is not None:
        device.publishing(handed)
    engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=handed))
    if device is not None:
        device.sampling()
    if config.shares_weights:
        engine.resume()


def transfer_metrics(engine: InferenceEngine) -> dict[str, float]:
    """Return what the last weight update sent; nothing for an engine in this process."""
    stats = engine.stats()
    found = {names.WEIGHTS_SENT: stats.get("sent_bytes"), names.WEIGHTS_SKIPPED: stats.get("skipped_bytes")}
    return {name: value for name, value in found.items() if value is not None}


def _embedded(
    config: PPOConfig, actor: ServedPolicy, tokenizer: Any, version: int, *, record_routes: bool
) -> InferenceEngine:
    from areal.engine.embedded.engine import EmbeddedEngine

    return EmbeddedEngine(
        actor.model,
        config=config.engine,
        eos_token_id=tokenizer.eos_token_id,
        tokenizer=tokenizer,
        version=version,
        share_weights=config.shares_weights,
        record_routes=record_routes,
    )


def _with_servers(
    config: PPOConfig,
    *,
    actor: ServedPolicy,
    tokenizer: Any,
    directory: Path,
    version: int,
    before_waking: Callable[[], None],
    record_routes: bool,
) -> ServerEngine:
    from areal.engine.checks import RequestLimits
    from areal.engine.server.engine import ServerEngine
    from areal.infra.weights.building import build_carrier
    from areal.models.wrapping import refused_tokens
    from areal.trainer.device_starts import note_owner
    from areal.trainer.server_command import adapter_of
    from areal.trainer.server_weights import served_model, served_routers, served_weights

    args: Any = actor.model.args
    vision: VisionFormat | None = getattr(actor.model, "vision", None)
    model = served_model(config.model, dtype=config.servers.dtype, max_seq_len=config.servers.max_seq_len)
    # Of this process, not of the run: one that is started again has to ask for its servers like everybody else.
    owner = secrets.token_hex(4) if config.servers.are_given else ""
    note_owner(config, owner)
    pool: ServerPool = (
        _given(config, owner)
        if config.servers.are_given
        else _supervisor(config, model, tokenizer, directory / SERVERS_FOLDER, records_routes=record_routes)
    )
    carrier = build_carrier(
        config.weights,
        run_directory=directory,
        device=str(next(actor.model.parameters()).device),
        model_config=model.content,
        elsewhere=not config.servers.all_local,
        addresses=_towards_servers(config),
        streams=actor.streams(),
    )
    weights = served_weights(config, actor)
    return ServerEngine(
        adapter_of(config, owner=owner),
        pool=pool,
        carrier=carrier,
        config=config.servers,
        limits=RequestLimits(
            context=model.context,
            vocab_size=args.vocab_size,
            eos_token_id=tokenizer.eos_token_id,
            tokenizer=tokenizer,
            reads_images=vision is not None,
            has_adapters=config.servers.max_adapters > 0,
            refused=refused_tokens(args) if vision is None else vision.refused,
        ),
        to_hf=weights.to_hf,
        weights=weights.first,
        base=weights.base,
        reference=_reference(actor, vision),
        routers=served_routers(model.content) if record_routes else None,
        version=version,
        before_waking=before_waking,
    )


def _supervisor(
    config: PPOConfig, model: ServedModel, tokenizer: Any, folder: Path, *, records_routes: bool
) -> LocalSupervisor:
    from areal.engine.server.client import is_healthy
    from areal.infra.supervisor.supervisor import LocalSupervisor
    from areal.trainer.device_starts import start_on_device
    from areal.trainer.server_command import commands_of

    return LocalSupervisor(
        [f"{config.rollout.engine}-{index}" for index in range(config.servers.num_servers)],
        commands_of(config, model, tokenizer=tokenizer, folder=folder, records_routes=records_routes),
        health=lambda url, timeout: is_healthy(url, timeout, HEALTH_PATH),
        config=config.supervisor,
        log_folder=folder,
        device=start_on_device(config, folder),
    )


def _given(config: PPOConfig, owner: str) -> ServerPool:
    from areal.engine.server.client import is_healthy
    from areal.engine.vllm.identity import identify, release

    calls: dict[str, Any] = {
        "identify": lambda url, timeout: identify(url, timeout, owner=owner),
        "health": lambda url, timeout: is_healthy(url, timeout, HEALTH_PATH),
        "release": lambda url, timeout: release(url, timeout, owner=owner),
        "config": config.supervisor,
    }
    if not config.servers.directory:
        from areal.infra.supervisor.addresses import AddressPool

        return AddressPool(config.servers.addresses, name=config.rollout.engine, **calls)
    from areal.infra.directory import open_directory, read_key
    from areal.infra.supervisor.discovery import DirectoryPool

    directory = open_directory(config.servers.directory, read_key(config.servers.directory_key))
    return DirectoryPool(lambda: directory.entries(SERVER_KIND), **calls)


def _towards_servers(config: PPOConfig) -> tuple[str, ...]:
    """URLs that are reached from this machine by the same way as servers elsewhere."""
    if config.servers.directory.startswith("tcp://"):
        return (config.servers.directory,)
    return () if config.servers.all_local else config.servers.addresses


def _reference(actor: ServedPolicy, vision: VisionFormat | None) -> ProbeReference:
    """Log-probabilities of the trained model, for the probe after weight updates; with an image where it reads them."""
    from areal.engine.server.updates import ProbeReference

    def score(tokens: Sequence[int], images: Sequence[ImageRef]) -> list[float]:
        import torch

        from areal.algorithm.images import collate_images

        shape = (1, len(tokens))
        none = torch.full(shape, -1)
        batch = PaddedBatch(
            tokens=torch.tensor([list(tokens)]),
            lengths=torch.tensor([len(tokens)]),
            loss_mask=torch.ones(shape),
            logp_behave=torch.zeros(shape),
            versions=none,
            turn_ids=none,
            rewards=torch.zeros(1),
            groups=torch.zeros(1, dtype=torch.int64),
            truncated=torch.zeros(1, dtype=torch.bool),
            images=collate_images([tuple(images)]),
        )
        scores: list[float] = actor.forward_logp(batch)[0, 1:].tolist()
        return scores

    if vision is None:
        return ProbeReference(score=score)
    start, images = probe_image(vision)
    return ProbeReference(score=score, start=start, images=images)


def probe_image(vision: VisionFormat) -> tuple[list[int], tuple[ImageRef, ...]]:
    """Return tokens with one image, the same in every run: every pixel differs from its neighbours."""
    import numpy as np

    from areal.dataset.pixels import image_of

    height, width = vision.final_size(_PROBE_SIDE, _PROBE_SIDE)
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    ids, ((start, length),) = vision.place([[0], []], [(height, width)])
    return ids, (ImageRef(image=image_of(pixels), start=start, length=length),)
