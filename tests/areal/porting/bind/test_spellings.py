"""Changes that make up for each other: what parity cannot tell apart follows from what is known of the fields."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from areal.porting.bind.base_config import depth_field
from areal.porting.bind.binder import Binder
from areal.porting.bind.expressions import to_json
from areal.porting.bind.observing import Observer
from areal.porting.bind.reading import learn
from areal.porting.family import Constant, Field, WhenEqual
from areal.porting.probe.subject import installed
from areal.porting.probe.tiny import complete
from areal.porting.spec import MoeSpec

if TYPE_CHECKING:
    from areal.porting.spec import ArchitectureSpec

ROUTER = "layer.feed_forward.router."
GROUPED = {"topk_method": "group_limited_greedy", "topk_group": 2}
"""With two experts for each token, which are always in the best two groups: the groups make no difference."""


@pytest.fixture(scope="module")
def observer() -> Observer:
    subject = installed("deepseek_v2")
    # Two groups of the best experts hold the best two experts.
    return Observer(subject, complete(subject, {"num_experts_per_tok": 2, "n_group": 4, "topk_group": 1}))


def grouped(observer: Observer, groups: int, top_groups: int, *, experts: int = 8) -> ArchitectureSpec:
    spec = observer.inference.spec
    layers = []
    for layer in spec.layers:
        part = layer.feed_forward
        if isinstance(part, MoeSpec):
            groups_of = {"groups": groups, "top_groups": top_groups, "group_score": "max"}
            router = replace(part.router, num_experts=experts, **groups_of)
            part = replace(part, router=router)
        layers.append(replace(layer, feed_forward=part))
    return replace(spec, layers=tuple(layers))


@pytest.mark.exhaustive
def test_a_change_without_effect_keeps_what_was_expected_where_that_is_as_right(observer: Observer) -> None:
    outcome = observer.observe(GROUPED, lambda _: grouped(observer, 4, 2))
    assert outcome.kind == "no_effect"
    assert outcome.expected is not None
    assert set(outcome.expected[ROUTER + "top_groups"]) == {2}
    assert set(outcome.values[ROUTER + "top_groups"]) == {1}


@pytest.mark.exhaustive
def test_what_was_expected_and_is_wrong_does_not_count(observer: Observer) -> None:
    outcome = observer.observe(GROUPED, lambda _: grouped(observer, 4, 1))
    assert outcome.kind == "no_effect"
    assert outcome.expected is None


def test_what_is_expected_to_be_the_base_is_not_judged_again(observer: Observer) -> None:
    outcome = observer.observe({"n_group": 2}, lambda _: observer.inference.spec)
    assert outcome.kind == "no_effect"
    assert outcome.expected is None


@pytest.mark.exhaustive
def test_a_field_that_shows_only_where_it_makes_no_difference_is_found(observer: Observer) -> None:
    base = observer.base
    reader = learn(observer.subject, base, depth_field(observer.subject, base, len(observer.inference.spec.layers)), ())
    binder = Binder(observer, reader)
    binder.observe_base()
    grouping: dict[str, Any] = {
        "groups": WhenEqual("topk_method", "greedy", Constant(1), Field("n_group")),
        "top_groups": Constant(1),
        "group_score": Constant("max"),
    }
    binder.expressions |= {ROUTER + name: expression for name, expression in grouping.items()}
    assert binder.accept(observer.observe(GROUPED, binder.predict))
    assert set(binder.observations[-1].values[ROUTER + "top_groups"]) == {2}
    assert to_json(binder.expressions[ROUTER + "groups"]) == to_json(grouping["groups"])


def test_many_changes_of_which_no_blocks_do_what_is_expected_say_nothing(observer: Observer) -> None:
    # A token uses two experts, but may choose from one group, which holds one.
    changes = {"topk_method": "group_limited_greedy", "n_routed_experts": 4}
    outcome = observer.observe(changes, lambda _: grouped(observer, 4, 1, experts=4))
    assert (outcome.kind, outcome.detail) == ("refused", "no blocks do what is expected")
