"""Resolve what a configuration says under `reward` to components: which functions score, with which weight and options.

    reward: gsm8k                                          # a name of the registry, or an importable path
    reward: [gsm8k, my_rewards:short]                      # several, each with weight 1
    reward: {gsm8k: 1.0, my_rewards:short: 0.2}            # with weights
    reward:
      answer: {path: gsm8k, options: {strict: true}}       # a name of your own, and options of the function or class
      short: {path: my_rewards:short, weight: 0.2, normalize: group}

The score of a sample is the sum of weight times value over the components. Everything that takes rewards from a
configuration calls `resolve_components`; it imports nothing that it names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

from areal.api import ConfigError
from areal.reward.registry import REWARDS
from areal.utils.suggest import did_you_mean

Normalize = Literal["none", "group", "batch"]
"""Over which samples the values of a component are brought to mean 0 and deviation 1; see `areal.reward.combining`."""


class _CheckedByResolve:
    """Tells pydantic to accept anything: `resolve_components` has the better messages."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Be asked by pydantic for the schema of a field."""
        from pydantic_core import core_schema

        return core_schema.any_schema()


RewardChoice = Annotated[str | list[str] | dict[str, Any], _CheckedByResolve()]
"""What a configuration holds under `reward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardComponent:
    """One reward function of a run, and its part in the score."""

    name: str
    """Part of the names of its metrics, e.g. "reward/gsm8k/mean"; unique in its run."""
    reward: str | Callable[..., Any]
    """Registry name, importable path or, from Python, a callable."""
    weight: float = 1.0
    """Factor in the sum; negative for a penalty, 0 to measure without effect."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments: of the class, or of every call of the function."""
    normalize: Normalize = "none"
    """Over which samples the value is normalised before it is weighted."""

    @property
    def place(self) -> str:
        """Name and path for messages, e.g. "gsm8k (areal.reward.gsm8k:gsm8k_reward)"."""
        path = REWARDS.get(self.reward, self.reward) if isinstance(self.reward, str) else _callable_name(self.reward)
        return self.name if path == self.name else f"{self.name} ({path})"


def resolve_components(reward: Any) -> tuple[RewardComponent, ...]:
    """Return the components that `reward` describes: a name, a path, a callable, a list or a map of these.

    Whether names exist and options fit is not checked here, since that needs imports. Raises ConfigError for nothing at
    all, two components of one name, unknown keys and values of a wrong kind; the message names the key.
    """
    if isinstance(reward, RewardComponent):
        found = [reward]
    elif isinstance(reward, Mapping):
        found = [_from_entry(str(key), value) for key, value in reward.items()]
    elif isinstance(reward, Sequence) and not isinstance(reward, str):
        found = [_from_item(item) for item in reward]
    else:
        found = [_from_item(reward)]
    if not found:
        raise _required()
    seen: dict[str, RewardComponent] = {}
    for component in found:
        if component.name in seen:
            raise ConfigError(
                f"reward: {seen[component.name].reward!r} and {component.reward!r} are both called {component.name!r}",
                where="reward",
                fix=f"give one a name of its own: {{{component.name}_2: {{path: {component.reward}}}}}",
            )
        seen[component.name] = component
    return tuple(found)


def weighted_sum(components: Sequence[RewardComponent], values: Mapping[str, float]) -> float:
    """Return the score that the values of one sample add up to."""
    return math.fsum(component.weight * values[component.name] for component in components)


def describe_reward(reward: Any) -> str:
    """Return the components in one line for tables and reports, e.g. "gsm8k + 0.2 short"; "" when it describes none."""
    try:
        components = resolve_components(reward)
    except ConfigError:
        return ""
    if len(components) == 1 and isinstance(reward, str):
        return reward
    return " + ".join(c.name if c.weight == 1 else f"{c.weight:g} {c.name}" for c in components)


_KEYS: Final = ("path", "weight", "options", "normalize")
_WEIGHTS: Final = "expected a weight (a number) or a section with path, weight, options and normalize"


def _required() -> ConfigError:
    return ConfigError(
        "reward is required: a registry name or an importable path such as my_module:my_reward",
        where="reward",
        fix=f"set reward to one of {', '.join(sorted(REWARDS))}, or to my_module:my_reward",
    )


def _from_item(item: Any) -> RewardComponent:
    if isinstance(item, RewardComponent):
        return item
    if isinstance(item, str):
        if not item:
            raise _required()
        return RewardComponent(name=_short_name(item), reward=item)
    if callable(item):
        return RewardComponent(name=_short_name(_callable_name(item)), reward=item)
    raise ConfigError(
        f"reward: got {item!r:.80}, expected a name, a path, or a list or map of them",
        where="reward",
        fix="write weights and options as a map: {gsm8k: 1.0, short: {path: my_module:short, weight: 0.2}}",
    )


def _from_entry(key: str, value: Any) -> RewardComponent:
    """Return the component of one entry of a map."""
    where = f"reward.{key}"
    # A key beside a path is a name of the user's own; without one it is the path.
    name = _metric_name(key) if isinstance(value, Mapping) and "path" in value else _short_name(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return RewardComponent(name=name, reward=key, weight=_weight(value, where))
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {value!r:.80}, {_WEIGHTS}", where=where, fix=f"write {key}: 1.0")
    for unknown in value.keys() - set(_KEYS):
        hint = did_you_mean(str(unknown), _KEYS)
        message = f"{where}: unknown key {unknown!r}: {hint and hint + ' '}it takes {', '.join(_KEYS)}"
        raise ConfigError(message, where=where, fix=f"move options of the reward itself below {where}.options")
    path, options = value.get("path", key), value.get("options", {})
    if not (isinstance(path, str) and path) and not callable(path):
        message = f"{where}.path is {path!r:.80}, expected a registry name or an importable path"
        raise ConfigError(message, where=where, fix="write path: my_module:my_reward")
    if not isinstance(options, Mapping) or not all(isinstance(option, str) for option in options):
        message = f"{where}.options is {options!r:.80}, expected keyword arguments of the reward"
        raise ConfigError(message, where=where, fix="write options: {strict: true}")
    return RewardComponent(
        name=name,
        reward=path,
        weight=_weight(value.get("weight", 1.0), where),
        options=dict(options),
        normalize=_normalize(value.get("normalize", False), where),
    )


def _weight(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(f"{where}.weight is {value!r:.80}, expected a finite number", where=where, fix="set a number")
    return float(value)


def _normalize(value: Any, where: str) -> Normalize:
    if isinstance(value, bool):
        return "group" if value else "none"
    if value not in get_args(Normalize):
        message = f"{where}.normalize is {value!r:.80}, expected true (group), false (none), group, batch or none"
        raise ConfigError(message, where=where, fix="write normalize: group")
    found: Normalize = value
    return found


def _short_name(path: str) -> str:
    """`my_module:short` is "short"."""
    return _metric_name(path.rpartition(":")[2].rpartition(".")[2])


def _metric_name(name: str) -> str:
    """Return the name without what names of metrics cannot hold."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_") or "reward"


def _callable_name(function: Callable[..., Any]) -> str:
    """ "module:name" of a function or class, "module:class" of an instance."""
    named = function if hasattr(function, "__qualname__") else getattr(function, "func", type(function))
    return f"{getattr(named, '__module__', '?')}:{getattr(named, '__qualname__', type(function).__name__)}"
