"""An inference engine whose output tokens are given, for tests of what a workflow makes of them."""

from __future__ import annotations

from areal.api import FaultError, FaultKind, ModelRequest, ModelResponse, StopReason


class ScriptedEngine:
    """Answers requests in order with given token lists; refuses requests that leave no room in `context`."""

    def __init__(self, *answers: list[int], stop_token: int, context: int = 10_000, **changes) -> None:
        self.answers = list(answers)
        self.stop_token = stop_token
        self.context = context
        self.changes = changes
        self.requests: list[ModelRequest] = []
        self.version = 4

    async def agenerate(self, request: ModelRequest) -> ModelResponse:
        if len(request.input_ids) >= self.context:
            raise FaultError(FaultKind.DATA_INVALID, f"prompt of {len(request.input_ids)} tokens fills the context")
        self.requests.append(request)
        output = self.answers[len(self.requests) - 1]
        ended = output[-1:] == [self.stop_token]
        fields = {
            "input_tokens": list(request.input_ids),
            "output_tokens": output,
            "output_logprobs": [-0.5 - index / 8 for index in range(len(output))],
            "output_versions": [self.version + index // 2 for index in range(len(output))],
            "stop_reason": StopReason.STOP if ended else StopReason.LENGTH,
        }
        return ModelResponse(**(fields | self.changes))


class Judge:
    """An awaitable reward that records its calls and scores by text."""

    def __init__(self, **scores: float) -> None:
        self.scores = scores
        self.calls: list[tuple] = []

    async def __call__(self, prompt, completions, prompt_ids, completion_ids, /, **data):
        self.calls.append((prompt, completions, prompt_ids, completion_ids, data))
        return self.scores.get(f"_{completions}", 0.0)
