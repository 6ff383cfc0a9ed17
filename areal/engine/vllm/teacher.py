"""A teacher on a vLLM server: log-probabilities of sampled tokens, and of the likeliest ones in their place, from what
the server says about a prompt (`prompt_logprobs` of /v1/completions, temperature 1).

A server lists at most `--max-logprobs` tokens (20 unless it is started with more) and refuses more by HTTP 400.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import torch

from areal.api import EngineError, TeacherScores
from areal.engine.server.checks import field_of
from areal.engine.server.client import ServerClient
from areal.engine.server.errors import BadAnswerError, BadStatusError, ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.api import PaddedBatch

    Listed = tuple[list[float], list[list[int]], list[list[float]]]
    """Of the tokens of one sequence that count: log-probability, listed ids, their log-probabilities."""

COMPLETIONS: Final = "/v1/completions"
_MODELS: Final = "/v1/models"
_ATTEMPTS: Final = 3


class ServedTeacher:
    """Scores batches on a server. For threads without an event loop.

    teacher = ServedTeacher("http://127.0.0.1:8000", k=20)
    scores = teacher.score(batch, rows=[0, 3])
    """

    def __init__(
        self, url: str, *, k: int = 0, model: str = "", max_concurrent: int = 16, timeout_seconds: float = 120.0
    ) -> None:
        """k: tokens to list in place of each sampled one. Raises EngineError when the server serves no such model."""
        self._url, self._k, self._timeout = url.rstrip("/"), k, timeout_seconds
        self._max_concurrent = max_concurrent
        served = asyncio.run(self._served())
        if model and model not in served:
            raise EngineError(
                f"{self._url} serves {', '.join(served) or 'no model'}, not {model!r}",
                where=self._url,
                fix="set the teacher's model to one of them, or to nothing for the first",
            )
        self.model = model or served[0]

    def score(self, batch: PaddedBatch, rows: Sequence[int]) -> TeacherScores:
        """Score the tokens with loss_mask 1 of these rows; the result is of the whole batch, 0 elsewhere.

        Raises EngineError when the server cannot, after three attempts for each sequence.
        """
        shape = batch.tokens.shape
        logp = torch.zeros(shape)
        candidates = torch.zeros((*shape, self._k), dtype=torch.int64)
        listed = torch.zeros((*shape, self._k))
        try:
            found = asyncio.run(self._score_all(batch, rows))
        except ServerError as error:
            raise EngineError(
                f"the teacher could not score what was sampled: {error}",
                where=self._url,
                fix=self._fix(error),
            ) from error
        for row, (own, ids, values) in zip(rows, found, strict=True):
            places = batch.loss_mask[row].nonzero()[:, 0]
            logp[row, places] = torch.tensor(own)
            if self._k and len(places):
                candidates[row, places], listed[row, places] = torch.tensor(ids), torch.tensor(values)
        if not self._k:
            return TeacherScores(logp=logp)
        return TeacherScores(logp=logp, candidates=candidates, candidate_logp=listed)

    def _fix(self, error: ServerError) -> str:
        if self._k and isinstance(error, BadStatusError) and error.status == 400:
            return f"start the server with --max-logprobs {self._k} or more, or lower distillation.loss.k"
        return "look at the server's log"

    async def _served(self) -> list[str]:
        client = ServerClient()
        try:
            answer = await client.get(self._url, _MODELS, timeout=min(self._timeout, 30.0))
            models = field_of(answer, "data", list, where=f"{self._url}{_MODELS}")
            return [str(field_of(item, "id", str, where=f"{self._url}{_MODELS}")) for item in models]
        except ServerError as error:
            raise EngineError(
                f"the teacher's server does not answer: {error}",
                where=self._url,
                fix="start it (vllm serve MODEL --max-logprobs K), or correct the teacher's server",
            ) from error
        finally:
            await client.close()

    async def _score_all(self, batch: PaddedBatch, rows: Sequence[int]) -> list[Listed]:
        client, room = ServerClient(), asyncio.Semaphore(self._max_concurrent)

        async def one(row: int) -> Listed:
            length = int(batch.lengths[row])
            tokens = batch.tokens[row, :length].tolist()
            places = batch.loss_mask[row, :length].nonzero()[:, 0].tolist()
            async with room:
                return await self._attempt(client, tokens, places)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(row)) for row in rows]
            return [task.result() for task in tasks]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await client.close()

    async def _attempt(self, client: ServerClient, tokens: list[int], places: list[int]) -> Listed:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": tokens,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": self._k,
        }
        for attempt in range(_ATTEMPTS):
            try:
                answer = await client.post(self._url, COMPLETIONS, body, timeout=self._timeout)
                return self._read(answer, tokens, places)
            except ServerError as error:
                if attempt == _ATTEMPTS - 1 or (isinstance(error, BadStatusError) and error.our_fault):
                    raise
                await asyncio.sleep(0.2 * 4**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, answer: object, tokens: list[int], places: list[int]) -> Listed:
        where = f"{self._url}{COMPLETIONS}"
        choices = field_of(answer, "choices", list, where=where)
        entries = field_of(choices[0] if choices else None, "prompt_logprobs", list, where=where)
        if len(entries) != len(tokens):
            raise BadAnswerError(f"{where} scored {len(entries)} tokens, expected {len(tokens)}")
        own: list[float] = []
        ids: list[list[int]] = []
        values: list[list[float]] = []
        for place in places:
            entry = entries[place]
            if not isinstance(entry, dict) or str(tokens[place]) not in entry:
                raise BadAnswerError(f"{where} has no log-probability of token {tokens[place]} at place {place}")
            found = {
                int(token): float(field_of(value, "logprob", float, where=where)) for token, value in entry.items()
            }
            own.append(found[tokens[place]])
            # The sampled token comes on top of the list when it is not in it, and is then the least likely of all.
            best = sorted(found.items(), key=lambda item: (-item[1], item[0]))[: self._k]
            if len(best) < self._k:
                raise BadAnswerError(f"{where} lists {len(best)} tokens at place {place}, expected {self._k}")
            ids.append([token for token, _ in best])
            values.append([value for _, value in best])
        return own, ids, values
