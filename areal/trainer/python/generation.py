"""Generate texts with a trained model, outside any run."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from areal.api import ModelRequest
from areal.dataset.encoding import as_messages, encode_prompt
from areal.infra.rollout.episode import derive_seed
from areal.infra.rollout.loop_thread import LoopThread
from areal.trainer.assembly import tokenizer_of
from areal.trainer.configuration.computing import start_computing
from areal.trainer.configuration.source import config_from_mapping, to_mapping
from areal.trainer.evaluation.standalone import FrozenPolicy
from areal.trainer.inference import build_inference_engine
from areal.workflow.assembly import completion_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import GenerationConfig, InferenceEngine, ModelResponse
    from areal.trainer.config import PPOConfig


def generate_texts(config: PPOConfig, prompts: Sequence[Any], *, seed: int, sampling: Mapping[str, Any]) -> list[str]:
    """Return an answer to each prompt. sampling: fields of `gconfig` that differ from the configuration's.

    Raises ConfigError for fields that `gconfig` does not have, FaultError for a prompt that leaves no room for an
    answer.
    """
    values = to_mapping(config)
    values["gconfig"] |= dict(sampling)
    gconfig = config_from_mapping(values, source="generate(...)").gconfig  # type: ignore[union-attr]  # of kind rl
    start_computing(config)
    tokenizer = tokenizer_of(config.model)
    chats = [as_messages(prompt, tokenizer) if isinstance(prompt, str) else prompt for prompt in prompts]
    ids = [encode_prompt(chat, tokenizer) for chat in chats]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="areal-generate-")))
        policy = FrozenPolicy(config, tokenizer)
        engine = build_inference_engine(config, actor=policy, tokenizer=tokenizer, directory=folder, version=0)
        stack.callback(engine.close)
        # A loop of its own: a notebook runs one in the calling thread.
        loop = LoopThread("areal-generate", on_end=lambda: None)
        stack.callback(loop.close)
        loop.start()
        responses = loop.run(_answers(engine, ids, gconfig, seed))
    return [completion_text(response, gconfig, tokenizer) for response in responses]


async def _answers(
    engine: InferenceEngine, prompts: Sequence[list[int]], gconfig: GenerationConfig, seed: int
) -> list[ModelResponse]:
    requests = (
        ModelRequest(input_ids=ids, gconfig=gconfig, seed=derive_seed("generate", seed, number))
        for number, ids in enumerate(prompts)
    )
    return await asyncio.gather(*(engine.agenerate(request) for request in requests))
