"""Checks requests before they are sent and answers before they are used. Whatever passes here may be trained on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from areal.engine.server.errors import BadAnswerError, BrokenTokensError, ServerRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from areal.engine.config import ServerEngineConfig
    from areal.engine.server.adapter import Capabilities

LOGPROB_TOLERANCE: Final = 1e-4
"""How far above 0 rounding may push a log-probability; the same slack as in `areal.api.Trajectory`."""
MODELS_PATH: Final = "/v1/models"
LOWEST_LOGPROB: Final = -9000.0
"""Servers write about -9999 where they had NaN or -inf; no real token is that improbable."""


def check_settings(
    capabilities: Capabilities, config: ServerEngineConfig, *, context: int, records_routes: bool, where: str
) -> None:
    """Raise ServerRefusedError when a server was started with settings that give wrong answers.

    Servers started by the run always pass; those at given addresses may have been started in any way. records_routes:
    whether what routers choose is recorded.
    """
    settings, problems = capabilities.settings, []
    mode = settings.get("logprobs_mode", "processed_logprobs")
    if mode != "processed_logprobs":
        problems.append(
            f"--logprobs-mode is {mode}, expected processed_logprobs: other modes differ from the sampled distribution"
        )
    if settings.get("dtype", config.dtype) != config.dtype:
        problems.append(f"its dtype is {settings['dtype']}, expected that of servers.dtype, {config.dtype}")
    if int(settings.get("context", context)) < context:
        problems.append(f"its longest sequence is {settings['context']} tokens, expected at least {context}")
    if config.are_given and not capabilities.labels:
        problems.append("it does not label tokens with weight versions, which servers started elsewhere must do")
    if records_routes and not capabilities.routes:
        problems.append(
            "it does not report the experts that routers choose, which actor.router_replay needs: start it with "
            "--enable-return-routed-experts"
        )
    if problems:
        raise ServerRefusedError(f"{where} cannot be used: {'; '.join(problems)}. `areal serve` starts one that can")


def check_tokens(tokens: object, logprobs: object, *, where: str, vocab_size: int) -> None:
    """Raise BrokenTokensError unless there is one usable log-probability for each token of the vocabulary."""
    if not isinstance(tokens, list) or not isinstance(logprobs, list):
        raise BrokenTokensError(
            f"{where} sent {type(tokens).__name__} as tokens and {type(logprobs).__name__} as log-probabilities, "
            f"expected two lists"
        )
    if len(tokens) != len(logprobs):
        raise BrokenTokensError(f"{where} sent {len(tokens)} tokens with {len(logprobs)} log-probabilities")
    for index, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
            raise BrokenTokensError(f"{where} sent token {token!r}, expected an id below {vocab_size}")
        if isinstance(logprob, bool) or not isinstance(logprob, (int, float)) or not math.isfinite(logprob):
            raise BrokenTokensError(
                f"{where} sent log-probability {logprob!r} of token {index}, expected a number <= 0"
            )
        if not LOWEST_LOGPROB < logprob <= LOGPROB_TOLERANCE:
            raise BrokenTokensError(
                f"{where} sent log-probability {logprob!r} of token {index}, expected a number <= 0"
            )


def versions_of(spans: Sequence[tuple[int, int, int]], num_tokens: int, *, where: str) -> list[int]:
    """Return the version of each token. Raises BrokenTokensError unless the spans cover all tokens in order."""
    versions: list[int] = []
    for version, start, end in spans:
        if start != len(versions) or end < start or (versions and version < versions[-1]):
            raise BrokenTokensError(f"{where} sent version spans {list(spans)}, expected ascending ones without gaps")
        versions += [version] * (end - start)
    if len(versions) != num_tokens:
        raise BrokenTokensError(f"{where} labelled {len(versions)} tokens with versions, but sent {num_tokens}")
    return versions


def field_of(value: object, name: str, kind: type, *, where: str) -> Any:
    """Return `value[name]`. Raises BadAnswerError unless it is of `kind`."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind):
        raise BadAnswerError(f"{where} answered without a usable {name!r} (it is {found!r}, expected {kind.__name__})")
    return found


def adapters_among(models: object, *, where: str) -> list[str]:
    """Return the names of those models, as OpenAI's API lists them, that are adapters of another one."""
    listed = field_of(models, "data", list, where=where)
    children = [model for model in listed if isinstance(model, dict) and model.get("parent") is not None]
    return [field_of(model, "id", str, where=where) for model in children]
