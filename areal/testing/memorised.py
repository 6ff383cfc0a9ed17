"""A tiny model that says what a test needs it to say, behind the real engine.

    with memorised_engine([("8*9=", "71<eos>", "?", "72<eos>")]) as policy:
        trajectory = asyncio.run(workflow.arun_episode(policy.engine, {"messages": "8*9=", "answer": "72"}))

A dialogue alternates what the model is given and what it says. A randomly initialised Qwen2 is trained on the CPU until
it says those tokens with at least 80 % probability each (tenths of a second for a few hundred tokens); greedy decoding
then repeats them exactly. It knows nothing else: what it says to any other prompt is noise, though always the same.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from areal.api import NO_VERSION, StopReason, Trajectory, UsageError, WeightUpdateMeta
from areal.dataset.encoding import EOS_TOKEN, character_tokenizer, encode_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from areal.api import PaddedBatch
    from areal.engine.embedded.engine import EmbeddedEngine
    from areal.engine.train.engine import TrainingEngine

    Part = str | Sequence[int]

_PROBABILITY: Final = 0.8
_SMOOTHING: Final = 0.05
"""Of the labels: a model that is certain has log-probabilities of 0 under any weights, and a check of them no teeth."""
_STILL_MOST_PROBABLE: Final = 0.5
_MAX_STEPS: Final = 400
_CONTEXT: Final = 256
_ROOM: Final = 64
_NOISE: Final = 0.02


@dataclass(eq=False, repr=False, slots=True)
class MemorisedPolicy:
    """A memorised model and the engine that generates with it; close it, or use it in a `with` statement."""

    engine: EmbeddedEngine
    tokenizer: Any
    batch: PaddedBatch
    """The dialogues; `loss_mask` is 1 on what the model says."""
    models: dict[int, Any] = field(default_factory=dict)
    """Model of each version that was published, from 0: what `assert_trajectory_consistent` recomputes with."""

    def publish(self) -> int:
        """Give the engine slightly other weights, as a training step would, and return their version.

        They say the same tokens, with other probabilities. Between two tokens of whatever runs at the moment.
        """
        version = self.engine.version + 1
        model = _perturbed(self.models[0], seed=version)
        least = _least_probability(_trainer(model), self.batch)
        if least < _STILL_MOST_PROBABLE:
            raise UsageError(f"version {version} would say something else: a token fell to probability {least:.2f}")
        self.engine.update_weights(WeightUpdateMeta(kind="memory", version=version, state_dict=model.state_dict()))
        self.models[version] = model
        return version

    def close(self) -> None:
        """End the engine. Idempotent."""
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def memorised_engine(
    dialogues: Sequence[Sequence[Part]],
    *,
    tokenizer: Any = None,
    vocab_size: int | None = None,
    context: int | None = None,
    seed: int = 0,
) -> MemorisedPolicy:
    """Train a tiny model on `dialogues` and put the embedded engine around it.

    dialogues: each alternates given and said parts, beginning with a given one: texts, or token ids where there is no
        text (image tokens). Said texts are written as they are to be sampled, with "<eos>" or a stop string at the end.
    tokenizer: None takes one token per character that occurs. vocab_size: None takes the tokenizer's; larger for ids
        that have no text. context: most tokens of one request; None takes 256, or more for longer dialogues.

    Training happens once per process and arguments; each call gets an engine of its own, at version 0. Raises
    UsageError when the dialogues contradict each other or cannot be memorised.
    """
    from areal.engine.config import EmbeddedEngineConfig
    from areal.engine.embedded.engine import EmbeddedEngine

    if tokenizer is None:
        tokenizer = character_tokenizer(_characters(dialogues))
    sequences = tuple(_encoded(index, dialogue, tokenizer) for index, dialogue in enumerate(dialogues))
    _refuse_contradictions(sequences, tokenizer)
    longest = max((len(tokens) for tokens, _ in sequences), default=0)
    limit = context or max(_CONTEXT, longest + _ROOM)
    if not 2 <= longest <= limit:
        raise UsageError(f"the longest dialogue has {longest} tokens, expected 2 .. {limit} (the context)")
    model, batch = _memorised(
        sequences, vocab_size=vocab_size or len(tokenizer), context=limit, eos=tokenizer.eos_token_id, seed=seed
    )
    engine = EmbeddedEngine(
        model,
        config=EmbeddedEngineConfig(max_batch_size=32, max_seq_len=limit),
        eos_token_id=tokenizer.eos_token_id,
        tokenizer=tokenizer,
    )
    return MemorisedPolicy(engine=engine, tokenizer=tokenizer, batch=batch, models={0: model})


_Sequence = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids, and 1 where the model says them."""


def _characters(dialogues: Sequence[Sequence[Part]]) -> str:
    texts = [part.replace(EOS_TOKEN, "") for dialogue in dialogues for part in dialogue if isinstance(part, str)]
    return "".join(sorted(set("".join(texts))))


def _encoded(index: int, dialogue: Sequence[Part], tokenizer: Any) -> _Sequence:
    tokens: list[int] = []
    mask: list[int] = []
    if len(dialogue) < 2 or len(dialogue) % 2:
        raise UsageError(
            f"dialogue {index} has {len(dialogue)} parts, expected pairs of what is given and what is said"
        )
    for position, part in enumerate(dialogue):
        ids = encode_text(part, tokenizer) if isinstance(part, str) else list(part)
        if not ids:
            raise UsageError(f"dialogue {index}: part {position} is empty")
        tokens += ids
        mask += [position % 2] * len(ids)
    return tuple(tokens), tuple(mask)


def _refuse_contradictions(sequences: Sequence[_Sequence], tokenizer: Any) -> None:
    """After the same tokens, only one thing can be said."""
    said: dict[tuple[int, ...], tuple[int, int]] = {}
    for index, (tokens, mask) in enumerate(sequences):
        for position, token in enumerate(tokens):
            if not mask[position]:
                continue
            other, first = said.setdefault(tokens[:position], (token, index))
            if other != token:
                raise UsageError(
                    f"dialogues {first} and {index} contradict each other: after the same {position} tokens one says "
                    f"{tokenizer.decode([other])!r}, the other {tokenizer.decode([token])!r}"
                )


@functools.lru_cache(maxsize=16)
def _memorised(
    sequences: tuple[_Sequence, ...], *, vocab_size: int, context: int, eos: int, seed: int
) -> tuple[Any, PaddedBatch]:
    """Return the trained model and its lessons."""
    from areal.algorithm.packing import collate
    from areal.algorithm.supervised import sft_loss
    from areal.models import from_config

    batch = collate([_lesson(tokens, mask) for tokens, mask in sequences])
    trainer = _trainer(from_config(_architecture(vocab_size, context, eos), seed=seed))
    for _ in range(_MAX_STEPS):
        if _least_probability(trainer, batch) >= _PROBABILITY:
            return trainer.model.eval(), batch
        trainer.train_batch(batch, lambda logp, _, part: sft_loss(logp, mask=part.loss_mask), smoothing=_SMOOTHING)
    raise UsageError(
        f"the dialogues were not memorised in {_MAX_STEPS} steps: some token is still said with probability "
        f"{_least_probability(trainer, batch):.2f} only, expected {_PROBABILITY}; use fewer or shorter dialogues"
    )


def _trainer(model: Any) -> TrainingEngine:
    from areal.engine.config import TrainEngineConfig
    from areal.engine.train.engine import TrainingEngine

    return TrainingEngine(model, config=TrainEngineConfig(lr=5e-3, device="cpu"))


def _lesson(tokens: tuple[int, ...], mask: tuple[int, ...]) -> Trajectory:
    versions = [0 if said else NO_VERSION for said in mask]
    return Trajectory(
        tokens=list(tokens),
        loss_mask=list(mask),
        logprobs=[0.0] * len(tokens),
        versions=versions,
        turn_ids=versions,
        reward=0.0,
        stop_reason=StopReason.STOP,
    )


def _least_probability(trainer: TrainingEngine, batch: PaddedBatch) -> float:
    """Of all tokens that the model is to say."""
    logp = trainer.forward_logp(batch, only_masked=True)
    return float(logp[batch.loss_mask > 0].min().exp())


def _perturbed(model: Any, *, seed: int) -> Any:
    """Return a copy with a little noise on every weight."""
    import torch

    generator = torch.Generator("cpu").manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            scale = _NOISE * parameter.std(correction=0)
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return other


def _architecture(vocab_size: int, context: int, eos: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-6,
        "initializer_range": 0.1,  # about 1 / sqrt(hidden_size): the usual 0.02 would train far slower
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "eos_token_id": eos,
    }
