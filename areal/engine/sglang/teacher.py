"""What SGLang says about a prompt: `input_token_logprobs` and `input_top_logprobs` of /generate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.engine.server.checks import field_of
from areal.engine.server.errors import BadAnswerError
from areal.engine.server.teacher import PlaceScores
from areal.engine.sglang.adapter import part_of, scored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.engine.server.client import ServerClient

ROUTE: Final = "/generate"


class SGLangScores:
    """Implements `PromptScores`."""

    owner = "sglang"
    path = ROUTE

    def body(self, tokens: Sequence[int], *, k: int, model: str) -> dict[str, Any]:
        """See `PromptScores`. A server has one model, so `model` is not sent."""
        return {
            "input_ids": list(tokens),
            # Of the one token that is sampled; prompts are scored at temperature 1 whatever it is.
            "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": k,
        }

    async def ask(self, client: ServerClient, url: str, body: dict[str, Any], *, timeout: float) -> object:
        """See `PromptScores`."""
        return await client.post(url, ROUTE, body, timeout=timeout)

    def read(self, answer: object, tokens: Sequence[int], places: Sequence[int], where: str) -> list[PlaceScores]:
        """See `PromptScores`."""
        meta = field_of(answer, "meta_info", dict, where=where)
        own = field_of(meta, "input_token_logprobs", list, where=where)
        top = meta.get("input_top_logprobs") or [None] * len(tokens)
        if not len(own) == len(top) == len(tokens):
            raise BadAnswerError(
                f"{where} scored {len(own)} tokens and listed others in {len(top)} places, expected {len(tokens)}"
            )
        return [
            PlaceScores(
                logp=scored(own[place], tokens[place], where),
                listed={int(part_of(entry, 1, where)): float(part_of(entry, 0, where)) for entry in top[place] or ()},
            )
            for place in places
        ]

    def fix(self, k: int) -> str:
        """See `PromptScores`."""
        return f"look at the server's log for why it does not list {k} tokens, or lower distillation.loss.k"
