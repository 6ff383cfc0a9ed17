"""What vLLM says about a prompt: `prompt_logprobs` of /v1/completions.

A server lists at most `--max-logprobs` tokens (20 unless it is started with more) and refuses more by HTTP 400.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.engine.server.checks import field_of
from areal.engine.server.errors import BadAnswerError
from areal.engine.server.teacher import PlaceScores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.engine.server.client import ServerClient

ROUTE: Final = "/v1/completions"


class VLLMScores:
    """Implements `PromptScores`."""

    owner = "vllm"
    path = ROUTE

    def body(self, tokens: Sequence[int], *, k: int, model: str) -> dict[str, Any]:
        """See `PromptScores`. 0 lists the token itself only."""
        return {
            "model": model,
            "prompt": list(tokens),
            "max_tokens": 1,
            # Of the one token that is sampled; prompts are scored at temperature 1 whatever it is.
            "temperature": 0.0,
            "prompt_logprobs": k,
        }

    async def ask(self, client: ServerClient, url: str, body: dict[str, Any], *, timeout: float) -> object:
        """See `PromptScores`."""
        return await client.post(url, ROUTE, body, timeout=timeout)

    def read(self, answer: object, tokens: Sequence[int], places: Sequence[int], where: str) -> list[PlaceScores]:
        """See `PromptScores`."""
        choices = field_of(answer, "choices", list, where=where)
        entries = field_of(choices[0] if choices else None, "prompt_logprobs", list, where=where)
        if len(entries) != len(tokens):
            raise BadAnswerError(f"{where} scored {len(entries)} tokens, expected {len(tokens)}")
        found = []
        for place in places:
            entry = entries[place]
            if not isinstance(entry, dict) or str(tokens[place]) not in entry:
                raise BadAnswerError(f"{where} has no log-probability of token {tokens[place]} at place {place}")
            listed = {
                int(token): float(field_of(value, "logprob", float, where=where)) for token, value in entry.items()
            }
            found.append(PlaceScores(logp=listed[tokens[place]], listed=listed))
        return found

    def fix(self, k: int) -> str:
        """See `PromptScores`."""
        return f"start the server with --max-logprobs {k} or more, or lower distillation.loss.k"
