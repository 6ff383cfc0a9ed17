"""An inference engine whose answers follow a rule, for tests of what talks to engines: gateways, agents, workflows.

    engine = ScriptedEngine(lambda prompt: "42", tokenizer)
    response = await engine.agenerate(ModelRequest(input_ids=ids, gconfig=gconfig))

Its answers are texts, spelled with tokens that are drawn at random among all spellings of the text. Whoever decodes
and encodes what it said gets other tokens, so that doing so shows. `ambiguous_tokenizer` has many spellings of
everything.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.api import EngineError, FaultError, FaultKind, ModelResponse, StopReason
from areal.dataset.encoding import EOS_TOKEN, PAD_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from transformers import PreTrainedTokenizerFast

    from areal.api import ModelRequest, WeightUpdateMeta

_MERGES: Final = 'ab th the an and er in on 12 42 00 <t ca ll call oo ol too tool {" ": Ġt Ġa Ġth Ġthe'


def ambiguous_tokenizer(chat_template: str) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer with merges, in which most texts have several spellings, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in _MERGES.split():
        for end in range(2, len(word) + 1):
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append((word[: end - 1], word[end - 1]))
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD_TOKEN, EOS_TOKEN])
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, pad_token=PAD_TOKEN, eos_token=EOS_TOKEN
    )
    made.chat_template = chat_template
    return made


@dataclass(eq=False, slots=True)
class ScriptedEngine:
    """See the module. `answer` maps the text of a prompt, control tokens included, to the text that is said."""

    answer: Callable[[str], str]
    tokenizer: Any
    context_length: int = 100_000
    seconds: float = 0.0
    """Time each answer takes."""
    requests: list[ModelRequest] = field(default_factory=list)
    version: int = 0
    cancelled: int = 0
    """Requests whose caller went away."""
    fault: FaultError | None = None
    """Raised by every request while it is set."""
    _paused: bool = False
    _table: dict[bytes, int] = field(default_factory=dict)
    _generated: int = 0

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        """Say what the rule says, cut at stop strings and at the budget; the end token ends what is not cut."""
        if len(request.input_ids) >= self.context_length:
            raise FaultError(FaultKind.DATA_INVALID, f"a prompt of {len(request.input_ids)} tokens leaves no room")
        self.requests.append(request)
        try:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            while self._paused:
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fault is not None:
            raise self.fault
        said = self.answer(self.tokenizer.decode(request.input_ids, skip_special_tokens=False))
        generator = random.Random(f"{request.seed} {request.metadata.get('seed_key')} {len(request.input_ids)}")
        tokens = self.spelled(said, generator)
        tokens, reason = self._cut(request, [*tokens, self.tokenizer.eos_token_id])
        self._generated += len(tokens)
        half = len(tokens) // 2
        later = self.version
        return ModelResponse(
            input_tokens=list(request.input_ids),
            output_tokens=tokens,
            output_logprobs=[scripted_logprob(token, index) for index, token in enumerate(tokens)],
            output_versions=[max(0, later - 1)] * half + [later] * (len(tokens) - half),
            stop_reason=reason,
        )

    def spelled(self, text: str, generator: random.Random) -> list[int]:
        """Return one of the spellings of a text."""
        if not self._table:
            self._table = _bytes_of_tokens(self.tokenizer)
        longest = max(map(len, self._table))
        lengths = {token: len(spelling) for spelling, token in self._table.items()}
        data, position = text.encode(), 0
        found: list[int] = []
        while position < len(data):
            fitting = [
                token
                for end in range(1, longest + 1)
                if (token := self._table.get(data[position : position + end])) is not None
                and position + end <= len(data)
            ]
            found.append(generator.choice(fitting))
            position += lengths[found[-1]]
        return found

    def _cut(self, request: ModelRequest, tokens: list[int]) -> tuple[list[int], StopReason]:
        config = request.gconfig
        budget = min(config.max_new_tokens, self.context_length - len(request.input_ids))
        for count in range(1, min(budget, len(tokens)) + 1):
            text = self.tokenizer.decode(tokens[:count]) if config.stop else ""
            if any(stop in text for stop in config.stop):
                return tokens[:count], StopReason.STOP
        return (tokens, StopReason.STOP) if len(tokens) <= budget else (tokens[:budget], StopReason.LENGTH)

    def pause(self) -> None:
        """See `areal.api.InferenceEngine`."""
        self._paused = True

    def resume(self) -> None:
        """See `areal.api.InferenceEngine`."""
        self._paused = False

    def abort(self, request_ids: Sequence[str] | None = None) -> int:
        """Refuse: nothing is cut here."""
        raise EngineError(f"a scripted engine cannot abort {request_ids}")

    def update_weights(self, meta: WeightUpdateMeta) -> None:
        """Take the version; there are no weights."""
        self.version = meta.version

    def stats(self) -> Mapping[str, float]:
        """Return the number of tokens it said."""
        return {"generated_tokens": float(self._generated)}

    def close(self) -> None:
        """Do nothing: it has nothing to free."""


def scripted_logprob(token: int, index: int) -> float:
    """Return the log-probability that a scripted engine gives a token at a position of its output."""
    return -0.01 - (token % 7) / 10 - index / 1000


def _bytes_of_tokens(tokenizer: Any) -> dict[bytes, int]:
    """Return what each ordinary token of a byte-level tokenizer stands for."""
    from tokenizers import pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    shown = {ord(symbol): symbol for symbol in alphabet if ord(symbol) < 256}
    hidden = sorted(symbol for symbol in alphabet if ord(symbol) >= 256)
    symbols = dict(shown) | dict(zip((byte for byte in range(256) if byte not in shown), hidden, strict=True))
    byte_of = {symbol: byte for byte, symbol in symbols.items()}
    special = set(tokenizer.all_special_tokens)
    return {
        bytes(byte_of[symbol] for symbol in token): index
        for token, index in tokenizer.get_vocab().items()
        if token not in special
    }
