"""Serve a model to agents without training it: the function behind `areal gateway`.

Each session's trajectories are appended to a file when it ends, as they would be trained: for looking at what an agent
does, and for tests of agents before a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from areal.api import GenerationConfig, UsageError
from areal.gateway.rendering import Renderer
from areal.gateway.server import Gateway
from areal.hub.download import METADATA, local_folder
from areal.hub.names import find_name
from areal.trainer.milestones import FINAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from areal.gateway.config import GatewayConfig
    from areal.gateway.sessions import Session
    from areal.infra.checkpoint.run_control import StopRequest

_LOOK_SECONDS: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class GatewayPlan:
    """What is served, and how."""

    model: str
    """Checkpoint folder, or a model of the hub."""
    config: GatewayConfig
    gconfig: GenerationConfig
    max_seq_len: int
    """Most tokens of a conversation."""
    max_batch_size: int
    dtype: str
    device: str
    seed: int
    output: Path | None = None
    """JSONL file that gets the trajectories of sessions that end."""
    ready_file: Path | None = None
    """Gets address and keys as JSON, readable by its owner alone, once requests are answered."""


@dataclass(slots=True)
class _Opened:
    """Sessions so far."""

    sessions: list[Session] = field(default_factory=list)
    written: set[str] = field(default_factory=set)


def find_model(target: str) -> str:
    """Return the model that `target` names: a checkpoint folder, a run (its final model), or org/name of the hub.

    Raises UsageError when it is none of them.
    """
    path = Path(target)
    if (path / "config.json").is_file():
        return str(path)
    if (path / FINAL / "config.json").is_file():
        return str(path / FINAL)
    if (path / "config.yaml").is_file():
        raise UsageError(
            f"{target} is a run without a final model", where=target, fix=f"export a step first: areal export {target}"
        )
    if find_name(target) is not None:
        return target
    raise UsageError(
        f"{target} is neither a checkpoint folder, a run, nor org/name of the hub",
        where=target,
        fix="give a folder with config.json, or a run directory with final/",
    )


def describe(plan: GatewayPlan) -> dict[str, Any]:
    """Return what would be served. Reads the tokenizer and probes its chat template; loads no weights."""
    from areal.dataset.encoding import load_tokenizer

    tokenizer = load_tokenizer(str(local_folder(plan.model, METADATA)))
    renderer = _renderer(plan, tokenizer)
    return {
        "model": plan.model,
        "history": plan.config.history,
        "max_seq_len": plan.max_seq_len,
        "template": renderer.shapes,
        "sampling": {key: value for key, value in asdict(plan.gconfig).items() if value not in ((), None)},
    }


def serve(plan: GatewayPlan, stop: StopRequest, announce: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Serve until asked to stop, and return what happened. announce: called with address and keys once it is up."""
    import torch

    from areal.dataset.encoding import check_tokenizer, load_tokenizer
    from areal.engine.config import EmbeddedEngineConfig
    from areal.engine.embedded.engine import EmbeddedEngine
    from areal.models import from_pretrained

    folder = str(local_folder(plan.model))
    tokenizer = load_tokenizer(folder)
    renderer = _renderer(plan, tokenizer)
    model = from_pretrained(folder, dtype=getattr(torch, plan.dtype), device=plan.device)
    check_tokenizer(tokenizer, model.args.vocab_size)
    engine = EmbeddedEngine(
        model,
        config=EmbeddedEngineConfig(max_seq_len=plan.max_seq_len, max_batch_size=plan.max_batch_size),
        eos_token_id=tokenizer.eos_token_id,
        tokenizer=tokenizer,
        share_weights=True,
    )
    with contextlib.closing(engine):
        return asyncio.run(_serve(plan, engine, renderer, stop, announce))


def _renderer(plan: GatewayPlan, tokenizer: Any) -> Renderer:
    return Renderer(tokenizer, enable_thinking=plan.config.enable_thinking, template_date=plan.config.template_date)


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, all at once."""
    part = path.with_name(f"{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    part.replace(path)


async def _serve(
    plan: GatewayPlan,
    engine: Any,
    renderer: Renderer,
    stop: StopRequest,
    announce: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    from areal.infra.rollout.episode import EpisodeEngine, EpisodeProgress

    opened = _Opened()

    def open_session() -> Session:
        number = len(opened.sessions)
        parts = ("gateway", plan.seed, number)
        own = EpisodeEngine(engine, seed_parts=parts, oldest_version=0, progress=EpisodeProgress())
        session = gateway.open(own, plan.gconfig, may_score=True)
        opened.sessions.append(session)
        return session

    admin_key = f"areal-admin-{secrets.token_urlsafe(32)}"
    gateway = Gateway(renderer, plan.config, admin_key=admin_key, on_open=open_session)
    async with gateway.running():
        first = open_session()
        facts = {
            "address": gateway.address,
            "openai_base_url": first.urls.openai,
            "anthropic_base_url": first.urls.anthropic,
            "key": first.key,
            "admin_key": admin_key,
        }
        if plan.ready_file is not None:
            _write_private(plan.ready_file, json.dumps(facts))
        announce(facts)
        try:
            while not stop.requested:
                await asyncio.sleep(_LOOK_SECONDS)
                _write_ended(plan, opened)
        finally:
            for session in opened.sessions:
                await gateway.close(session)
                session.end_scoring()
            _write_ended(plan, opened)
            if plan.ready_file is not None:
                plan.ready_file.unlink(missing_ok=True)
    return {
        "sessions": len(opened.sessions),
        "answers": sum(len(session.answers) for session in opened.sessions),
        "statistics": {session.name: session.statistics() for session in opened.sessions},
        "output": None if plan.output is None else str(plan.output),
    }


def _write_ended(plan: GatewayPlan, opened: _Opened) -> None:
    for session in opened.sessions:
        if session.state == "open" or session.awaits_reward or session.name in opened.written:
            continue
        opened.written.add(session.name)
        session.finish()
        # Whoever reads the file has to know that nobody gave a reward: it is null then, and never 0.
        scored = session.is_scored
        leaves = session.trajectories(session.reward if scored else 0.0)
        if plan.output is None or not leaves:
            continue
        plan.output.parent.mkdir(parents=True, exist_ok=True)
        with plan.output.open("a", encoding="utf-8") as file:
            for leaf in leaves:
                line = {
                    "session": session.name,
                    "tokens": leaf.tokens,
                    "loss_mask": leaf.loss_mask,
                    "logprobs": leaf.logprobs,
                    "versions": leaf.versions,
                    "turn_ids": leaf.turn_ids,
                    "reward": leaf.reward if scored else None,
                    "stop_reason": leaf.stop_reason.value,
                    "text": dict(leaf.text),
                }
                file.write(json.dumps(line) + "\n")
