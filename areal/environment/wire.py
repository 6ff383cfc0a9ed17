"""The records of `areal.api.environment` as plain JSON values and back, for environments in other places.

What comes back is checked here once: roles, texts, tools, images, numbers. Files of images travel as base64.
"""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING, Any, Final

from areal.api import ActionCall, AssistantTurn, StepResult, TurnObservation

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOL: Final = 1
"""Version of what `areal.environment.server` and `areal.environment.http_host` say to each other."""
MIN_KEY_CHARACTERS: Final = 32
"""Of a key that lets others use environments."""
ROLES: Final = frozenset({"system", "user", "assistant", "tool"})


def checked_observation(observation: object) -> TurnObservation:
    """Return the observation. Raises TypeError or ValueError, saying what is wrong, unless a chat can show it."""
    if not isinstance(observation, TurnObservation):
        raise TypeError(f"returned {type(observation).__name__}, expected areal.api.TurnObservation")
    for index, message in enumerate(observation.messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES or not isinstance(content, str):
            raise ValueError(
                f"message {index} has role {role!r} and content of type {type(content).__name__}; expected a role of "
                f"{', '.join(sorted(ROLES))} and text"
            )
    for index, tool in enumerate(observation.tools):
        if not isinstance(tool.get("name"), str) or not isinstance(tool.get("parameters"), dict):
            raise ValueError(f"tool {index} needs a name and parameters (a JSON schema); it is {dict(tool)!r:.120}")
    for index, image in enumerate(observation.images):
        if not isinstance(image, (bytes, str)):
            raise ValueError(f"image {index} is {type(image).__name__}, expected a file as bytes or base64 text")
    return observation


def checked_result(result: object) -> StepResult:
    """Return the result of a step. Raises TypeError or ValueError as `checked_observation`."""
    if not isinstance(result, StepResult):
        raise TypeError(f"returned {type(result).__name__}, expected areal.api.StepResult")
    checked_observation(result.observation)
    for name, value in result.info.items():
        if not isinstance(name, str) or not isinstance(value, (bool, int, float)) or not math.isfinite(value):
            raise ValueError(f"info has {name!r:.60}: {value!r:.60}, expected names and finite numbers")
    return result


def observation_to_plain(observation: TurnObservation) -> dict[str, Any]:
    """Return what `observation_from_plain` reads."""
    plain: dict[str, Any] = {
        "messages": [dict(message) for message in observation.messages],
        "tools": [dict(tool) for tool in observation.tools],
    }
    return plain | {"images": [image_text(image) for image in observation.images]} if observation.images else plain


def image_text(image: Any) -> str:
    """Return the file of an image as base64 text."""
    return base64.b64encode(image).decode() if isinstance(image, bytes) else str(image)


def observation_from_plain(plain: Mapping[str, Any]) -> TurnObservation:
    """Inverse of `observation_to_plain`; checked."""
    return checked_observation(
        TurnObservation(
            messages=tuple(plain["messages"]), tools=tuple(plain["tools"]), images=tuple(plain.get("images", ()))
        )
    )


def result_to_plain(result: StepResult) -> dict[str, Any]:
    """Return what `result_from_plain` reads."""
    return {
        "observation": observation_to_plain(result.observation),
        "reward": float(result.reward),
        "terminated": bool(result.terminated),
        "truncated": bool(result.truncated),
        "info": {name: float(value) for name, value in result.info.items()},
    }


def result_from_plain(plain: Mapping[str, Any]) -> StepResult:
    """Inverse of `result_to_plain`; checked."""
    return StepResult(
        observation=observation_from_plain(plain["observation"]),
        reward=plain["reward"],
        terminated=_flag(plain, "terminated"),
        truncated=_flag(plain, "truncated"),
        info=dict(plain["info"]),
    )


def _flag(plain: Mapping[str, Any], name: str) -> bool:
    if not isinstance(plain[name], bool):
        raise TypeError(f"{name} is {plain[name]!r:.60}, expected true or false")
    return plain[name]


def read_json(text: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError for what is none, NaN and infinity included."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def is_loopback(host: str) -> bool:
    """Whether an address is that of this machine alone."""
    return host in {"127.0.0.1", "::1", "localhost"}


def turn_to_plain(turn: AssistantTurn) -> dict[str, Any]:
    """Return what `turn_from_plain` reads."""
    calls = [{"name": call.name, "arguments": dict(call.arguments), "id": call.id} for call in turn.calls]
    return {"text": turn.text, "reasoning": turn.reasoning, "calls": calls}


def turn_from_plain(plain: Mapping[str, Any]) -> AssistantTurn:
    """Inverse of `turn_to_plain`."""
    calls = tuple(ActionCall(name=c["name"], arguments=c["arguments"], id=c["id"]) for c in plain["calls"])
    return AssistantTurn(text=plain["text"], reasoning=plain["reasoning"], calls=calls)
