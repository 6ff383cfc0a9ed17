"""The environment table: one line per environment, sorted, and how a name becomes a factory. User code needs no line
here: any importable path works as a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import ArealError, ConfigError, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import EnvironmentFactory

ENVIRONMENTS: Final[dict[str, str]] = {
    "gymnasium": "areal.environment.adapters.gymnasium:GymnasiumEnvironments",
    "mcp": "areal.environment.adapters.mcp:McpEnvironments",
    "openenv": "areal.environment.adapters.openenv:OpenEnvEnvironments",
    "textarena": "areal.environment.adapters.textarena:TextArenaEnvironments",
}


def create_factory(name: str, options: Mapping[str, Any]) -> EnvironmentFactory:
    """Build the factory `name` (registry name or importable path) with the options of the configuration.

    Raises RegistryError for an unknown name, ConfigError when the target raises or builds no factory.
    """
    target = load("environment", name, ENVIRONMENTS)
    if not callable(target):
        raise ConfigError(f"environment {name!r} is {type(target).__name__}, expected a class with a method create()")
    try:
        factory = target(**options)
    except ArealError:
        raise
    except Exception as error:
        raise ConfigError(
            f"environment {name!r} cannot be built with options {sorted(options)}: {type(error).__name__}: {error}",
            where="environment_options",
        ) from error
    if not callable(getattr(factory, "create", None)):
        raise ConfigError(f"environment {name!r} built {type(factory).__name__}, expected an object with create()")
    made: EnvironmentFactory = factory
    return made
