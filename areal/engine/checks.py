"""Checks what every engine that generates is given: requests, and the names and shapes of new weights."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, EngineError, FaultError, FaultKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import ModelRequest

_TOKENS_PER_CHARACTER: Final = 4
"""A character takes at most 4 byte-level tokens, so this many trailing tokens per character surely contain the stop
string."""
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What a request is checked against."""

    context: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    eos_token_id: int | None
    tokenizer: Any = None
    """Has `decode(list[int]) -> str`; needed for stop strings only."""
    reads_images: bool = False
    """Whether the model takes pixels."""
    has_adapters: bool = False
    """Whether adapters may be loaded beside the weights (servers.max_adapters)."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Tokens that no text may hold, and the config fields that say so (`areal.models.wrapping.refused_tokens`)."""

    def check(self, request: ModelRequest) -> None:
        """Raise FaultError(DATA_INVALID) for a request that can never run, ConfigError for one that needs a missing
        tokenizer."""
        ids, length = request.input_ids, len(request.input_ids)
        problem = ""
        if length == 0:
            problem = "the prompt is empty (0 tokens), expected at least 1"
        elif length >= self.context:
            problem = (
                f"a prompt of {length} tokens leaves no room in the context of {self.context} tokens (the smaller of "
                f"max_seq_len and the model's max_position_embeddings); shorten or drop the row"
            )
        elif min(ids) < 0 or max(ids) >= self.vocab_size:
            wrong = min(ids) if min(ids) < 0 else max(ids)
            problem = (
                f"token id {wrong} is outside the model's vocabulary of {self.vocab_size}; tokenizer and model do not "
                f"belong together"
            )
        elif self.refused and (wrong_tokens := self.refused.keys() & {*_outside_images(request)}):
            token = min(wrong_tokens)
            problem = (
                f"token {token} is {self.refused[token]} of the config and stands for something other than text; "
                "only text and images that the request holds are computed, so leave out other rows with images, films "
                "or sounds"
            )
        elif not 0 <= request.sampled_before <= length:
            problem = f"sampled_before is {request.sampled_before}, expected 0 .. {length} (the number of input_ids)"
        if problem:
            raise FaultError(FaultKind.DATA_INVALID, f"request {request.request_id}: {problem}")
        if request.adapter and not self.has_adapters:
            raise ConfigError(
                f"request {request.request_id} asks for adapter {request.adapter!r}, and this engine computes with its "
                f"weights alone; use servers with servers.max_adapters, or leave it out"
            )
        if request.gconfig.stop and self.tokenizer is None:
            raise ConfigError(
                f"gconfig.stop is {request.gconfig.stop!r}, but the engine was built without a tokenizer; "
                f"pass tokenizer= or use stop_token_ids"
            )

    def check_output(self, request: ModelRequest, tokens: Sequence[int]) -> None:
        """Raise FaultError(GENERATION_FAILED) for an output that is not text: it cannot be trained on."""
        wrong = self.refused.keys() & {*tokens}
        if wrong:
            raise sampled_placeholder(request, min(wrong), self.refused)

    def budget(self, request: ModelRequest) -> int:
        """Return how many tokens a request may produce."""
        return min(request.gconfig.max_new_tokens, self.context - len(request.input_ids))

    def stop_ids(self, request: ModelRequest) -> tuple[int, ...]:
        """Return the token ids that end the output."""
        eos = () if self.eos_token_id is None else (self.eos_token_id,)
        return tuple(dict.fromkeys((*eos, *request.gconfig.stop_token_ids)))

    def completes_stop_string(self, request: ModelRequest, output: Sequence[int]) -> bool:
        """Return whether the output ends in, or just completed, a stop string."""
        config = request.gconfig
        if not config.stop or len(output) < config.min_new_tokens:
            return False
        window = _TOKENS_PER_CHARACTER * max(map(len, config.stop)) + 8
        # What was sampled before this request may have begun the string.
        partial = request.input_ids[len(request.input_ids) - request.sampled_before :]
        text = self.tokenizer.decode([*partial, *output][-window:])
        return any(stop in text for stop in config.stop)


def _outside_images(request: ModelRequest) -> list[int]:
    """Tokens of the prompt that stand for no image that the request has."""
    ids, rest, end = request.input_ids, [], 0
    for ref in request.images:
        rest += ids[end : ref.start]
        end = ref.end
    return rest + ids[end:]


def sampled_placeholder(request: ModelRequest, token: int, refused: Mapping[int, str]) -> FaultError:
    """Return the fault of a request whose output is not text."""
    return FaultError(
        FaultKind.GENERATION_FAILED,
        f"request {request.request_id}: the model sampled token {token}, which is {refused[token]} of the config and "
        "stands for something other than text",
    )


def check_parameters(missing: Sequence[str], unknown: Sequence[str], misshapen: Sequence[str], *, version: int) -> None:
    """Raise EngineError that names the parameters of an update which do not fit the model, when there are any."""
    kinds = (("missing", missing), ("unknown", unknown), ("of the wrong shape", misshapen))
    problems = [
        f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for kind, names in kinds
        if names
    ]
    if problems:
        raise EngineError(
            f"weight update to version {version} refused, the engine keeps its weights: parameters "
            f"{'; '.join(problems)}. The update must carry all parameters of the model the engine was built from"
        )


class SeedStream:
    """Seeds of requests that bring none. The n-th of an engine has the same seed in every process."""

    def __init__(self) -> None:
        self._drawn = itertools.count(1)

    def seeded(self, request: ModelRequest) -> ModelRequest:
        """Return the request with a seed: its own, or the next of this stream."""
        if request.seed is not None:
            return request
        mixed = hashlib.blake2b(f"request without seed {next(self._drawn)}".encode(), digest_size=8).digest()
        return request.seeded(int.from_bytes(mixed, "little") % 2**63)
