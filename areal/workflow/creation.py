"""Builds the workflow a configuration names.

create_workflow("multi_turn", reward=reward, gconfig=gconfig, tokenizer=tokenizer, options={"max_turns": 3})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from areal.api import ConfigError, RolloutWorkflow, load
from areal.dataset.loading import check_options
from areal.workflow.registry import WORKFLOWS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from areal.api import GenerationConfig
    from areal.workflow.assembly import AwaitableReward

_FRAMEWORK_PARAMETERS: Final = ("gconfig", "reward", "tokenizer")


def create_workflow(
    name: str, *, reward: AwaitableReward, gconfig: GenerationConfig, tokenizer: Any, options: Mapping[str, Any]
) -> RolloutWorkflow:
    """Build the workflow `name` (registry name or importable path) with the options of the configuration.

    Raises RegistryError for an unknown name, ConfigError for an option it does not take (with the nearest one) and
    when the target does not build a RolloutWorkflow.
    """
    factory = load("workflow", name, WORKFLOWS)
    if not callable(factory):
        raise ConfigError(
            f"workflow {name!r} is {type(factory).__name__}, expected a class or function that builds a workflow"
        )
    check_options(f"workflow {name!r}", factory, options, _FRAMEWORK_PARAMETERS)
    workflow = factory(reward=reward, gconfig=gconfig, tokenizer=tokenizer, **options)
    if not isinstance(workflow, RolloutWorkflow):
        raise ConfigError(f"workflow {name!r} built {type(workflow).__name__}, expected a RolloutWorkflow")
    return workflow
