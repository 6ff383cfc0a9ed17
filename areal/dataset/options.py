"""Checks keyword options from a configuration against a callable's signature, before anything expensive happens.

Used for loaders (`DatasetConfig.options`) and workflows (`PPOConfig.workflow_options`), so both fail with the same
message.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from areal.api import ConfigError
from areal.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


def check_options(
    what: str, function: Callable[..., Any], options: Mapping[str, Any], reserved: Collection[str]
) -> None:
    """Raise ConfigError when `options` holds a name that `function` does not take as a keyword.

    what: for the message, e.g. "dataset 'gsm8k_rl'". reserved: parameters that the framework fills in itself.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some callables written in C have no signature: they check their arguments themselves
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        accepted = set(options)
    else:
        accepted = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    accepted -= set(reserved)
    for name in options:
        if name in reserved:
            raise ConfigError(f"{what}: option {name!r} is set by the framework; remove it from the options")
        if name not in accepted:
            known = ", ".join(sorted(accepted)) or "(none)"
            hint = did_you_mean(name, accepted)
            raise ConfigError(f"{what}: unknown option {name!r}: {hint and hint + ' '}it takes {known}")
