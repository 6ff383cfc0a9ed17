"""`create_workflow`: names, options, and what may come out."""

from __future__ import annotations

import pytest
from scripted import Judge

from areal.api import ConfigError, GenerationConfig, RegistryError, RolloutWorkflow, load
from areal.workflow.assembly import create_workflow
from areal.workflow.multi_turn import MultiTurnWorkflow
from areal.workflow.registry import WORKFLOWS
from areal.workflow.rlvr import RLVRWorkflow


def create(name, tokenizer, **options):
    return create_workflow(name, reward=Judge(), gconfig=GenerationConfig(), tokenizer=tokenizer, options=options)


def test_the_table_is_sorted_and_holds_workflows():
    assert list(WORKFLOWS) == sorted(WORKFLOWS)
    assert all(issubclass(load("workflow", name, WORKFLOWS), RolloutWorkflow) for name in WORKFLOWS)


def test_names_and_paths_build_with_options(digits):
    assert isinstance(create("rlvr", digits, enable_thinking=True), RLVRWorkflow)
    assert isinstance(create("areal.workflow.rlvr:RLVRWorkflow", digits), RLVRWorkflow)
    made = create("multi_turn", digits, max_turns=2, feedback="?")
    assert isinstance(made, MultiTurnWorkflow)
    assert made.max_turns == 2


def test_wrong_names_and_options_are_reported_with_the_nearest(digits):
    with pytest.raises(RegistryError, match="did you mean 'multi_turn'"):
        create("multiturn", digits)
    with pytest.raises(ConfigError, match="unknown option 'max_turn': did you mean 'max_turns'"):
        create("multi_turn", digits, max_turn=2)
    with pytest.raises(ConfigError, match="option 'reward' is set by the framework"):
        create_workflow(
            "rlvr", reward=Judge(), gconfig=GenerationConfig(), tokenizer=digits, options={"reward": "gsm8k"}
        )


def test_targets_that_build_no_workflow_are_refused(digits):
    with pytest.raises(ConfigError, match="is dict, expected a class or function"):
        create("areal.workflow.registry:WORKFLOWS", digits)
    with pytest.raises(ConfigError, match="built dict, expected a RolloutWorkflow"):
        create("builtins:dict", digits)


def test_what_a_constructor_raises_names_the_line_of_the_user(digits, tmp_path, monkeypatch):
    (tmp_path / "odd_flows.py").write_text(
        "class Flow:\n    def __init__(self, *, reward, gconfig, tokenizer, depth):\n        self.half = 4 // depth\n"
    )
    (tmp_path / "unfinished_flows.py").write_text("import a_package_nobody_has\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"'odd_flows:Flow' cannot be built: ZeroDivisionError: .*4 // depth"
    ) as caught:
        create("odd_flows:Flow", digits, depth=0)
    assert caught.value.where == f"{tmp_path / 'odd_flows.py'}:3"
    assert "workflow_options" in caught.value.fix
    with pytest.raises(RegistryError, match="cannot be loaded: ModuleNotFoundError") as caught:
        create("unfinished_flows:Flow", digits)
    assert caught.value.where == f"{tmp_path / 'unfinished_flows.py'}:1"
    assert caught.value.fix == "install a_package_nobody_has, or do not import it"
