"""A teacher on a server: log-probabilities of sampled tokens, and of the likeliest ones in their place, from what the
server says about a prompt at temperature 1.

What one server program is asked and answers is a `PromptScores`; everything else is shared.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch

from areal.api import EngineError, TeacherScores
from areal.engine.server.checks import field_of
from areal.engine.server.client import ServerClient
from areal.engine.server.errors import BadAnswerError, BadStatusError, ServerError
from areal.utils.coroutines import run_coroutine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from areal.api import PaddedBatch

    Listed = tuple[list[float], list[list[int]], list[list[float]]]
    """Of the tokens of one sequence that count: log-probability, listed ids, their log-probabilities."""

_MODELS: Final = "/v1/models"
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceScores:
    """What a server says about one token of a prompt."""

    logp: float
    """Of the token itself."""
    listed: Mapping[int, float]
    """Tokens that it lists in this place, with their log-probabilities; may include the token itself."""


class PromptScores(Protocol):
    """How one server program scores a prompt. Keeps no state."""

    owner: str
    """What its /v1/models says under "owned_by"."""
    path: str
    """That of the request."""

    def body(self, tokens: Sequence[int], *, k: int, model: str) -> dict[str, Any]:
        """Return the request: all tokens scored at temperature 1, k listed in each place."""
        ...

    async def ask(self, client: ServerClient, url: str, body: dict[str, Any], *, timeout: float) -> object:
        """Return the server's answer. Raises ServerError."""
        ...

    def read(self, answer: object, tokens: Sequence[int], places: Sequence[int], where: str) -> list[PlaceScores]:
        """Return the scores of the tokens at `places`. Raises BadAnswerError for an answer that is not of `tokens`."""
        ...

    def fix(self, k: int) -> str:
        """Say what to do when the server refuses to list k tokens."""
        ...


class ServedTeacher:
    """Scores batches on a server. For threads without an event loop.

    teacher = ServedTeacher("http://127.0.0.1:8000", programs=[VLLMScores(), SGLangScores()], k=20)
    scores = teacher.score(batch, rows=[0, 3])
    """

    def __init__(
        self,
        url: str,
        *,
        programs: Sequence[PromptScores],
        k: int = 0,
        model: str = "",
        max_concurrent: int = 16,
        timeout_seconds: float = 120.0,
    ) -> None:
        """programs: those that may answer at `url`; a server that names none of them is taken for the first. k: tokens
        to list in place of each sampled one. Raises EngineError when the server serves no such model.
        """
        self._url, self._k, self._timeout = url.rstrip("/"), k, timeout_seconds
        self._max_concurrent = max_concurrent
        served = run_coroutine(self._served())
        self._program = next((item for item in programs if item.owner in served.values()), programs[0])
        if model and model not in served:
            raise EngineError(
                f"{self._url} serves {', '.join(served)}, not {model!r}",
                where=self._url,
                fix="set the teacher's model to one of them, or to nothing for the first",
            )
        self.model = model or next(iter(served))

    def score(self, batch: PaddedBatch, rows: Sequence[int]) -> TeacherScores:
        """Score the tokens with loss_mask 1 of these rows; the result is of the whole batch, 0 elsewhere.

        Raises EngineError when the server cannot, after three attempts for each sequence.
        """
        shape = batch.tokens.shape
        logp = torch.zeros(shape)
        candidates = torch.zeros((*shape, self._k), dtype=torch.int64)
        listed = torch.zeros((*shape, self._k))
        try:
            found = run_coroutine(self._score_all(batch, rows))
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
            return self._program.fix(self._k)
        return "look at the server's log"

    async def _served(self) -> dict[str, str]:
        """Return the names of models, with the program that serves each."""
        client, where = ServerClient(), f"{self._url}{_MODELS}"
        try:
            answer = await client.get(self._url, _MODELS, timeout=min(self._timeout, 30.0))
            models = field_of(answer, "data", list, where=where)
            found = {str(field_of(item, "id", str, where=where)): str(item.get("owned_by", "")) for item in models}
            if not found:
                raise BadAnswerError(f"{where} lists no model")
            return found
        except ServerError as error:
            raise EngineError(
                f"the teacher's server does not answer: {error}",
                where=self._url,
                fix="start it (vllm serve MODEL --max-logprobs K, or python -m sglang.launch_server --model-path MODEL)"
                " or correct the teacher's server",
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
        program = self._program
        body = program.body(tokens, k=self._k, model=self.model)
        for attempt in range(_ATTEMPTS):
            try:
                answer = await program.ask(client, self._url, body, timeout=self._timeout)
                return self._chosen(program.read(answer, tokens, places, f"{self._url}{program.path}"), places)
            except ServerError as error:
                if attempt == _ATTEMPTS - 1 or (isinstance(error, BadStatusError) and error.our_fault):
                    raise
                await asyncio.sleep(0.2 * 4**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _chosen(self, scores: Sequence[PlaceScores], places: Sequence[int]) -> Listed:
        """Keep the k likeliest. A token that comes on top of the list because it is not in it is the least likely."""
        ids: list[list[int]] = []
        values: list[list[float]] = []
        for place, item in zip(places, scores, strict=True):
            best = sorted(item.listed.items(), key=lambda entry: (-entry[1], entry[0]))[: self._k]
            if len(best) < self._k:
                raise BadAnswerError(
                    f"{self._url}{self._program.path} lists {len(best)} tokens at place {place}, expected {self._k}"
                )
            ids.append([token for token, _ in best])
            values.append([value for _, value in best])
        return [item.logp for item in scores], ids, values
