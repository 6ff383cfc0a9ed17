"""What a configuration may say under `reward`, and what it resolves to."""

from __future__ import annotations

import functools

import pytest

from areal.api import ConfigError
from areal.reward.components import RewardComponent, describe_reward, resolve_components


def short(prompt, completions, prompt_ids, completion_ids, **data):
    return len(completions) < 20


class Judge:
    def __call__(self, *args, **data):
        return 1.0


def component(name, reward, **others):
    return RewardComponent(name=name, reward=reward, **others)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ("gsm8k", [component("gsm8k", "gsm8k")]),
        ("my.rewards:short", [component("short", "my.rewards:short")]),
        ("my.rewards.short", [component("short", "my.rewards.short")]),
        (["gsm8k", "my.rewards:short"], [component("gsm8k", "gsm8k"), component("short", "my.rewards:short")]),
        (
            {"gsm8k": 1, "my.rewards:short": -0.2},
            [component("gsm8k", "gsm8k"), component("short", "my.rewards:short", weight=-0.2)],
        ),
        (
            {"answer": {"path": "gsm8k", "options": {"strict": True}}, "exact": {"weight": 0, "normalize": True}},
            [
                component("answer", "gsm8k", options={"strict": True}),
                component("exact", "exact", weight=0.0, normalize="group"),
            ],
        ),
        ({"score v1.5": {"path": "exact"}}, [component("score_v1.5", "exact")]),
        ({"exact": {"normalize": "batch"}}, [component("exact", "exact", normalize="batch")]),
        ({"exact": {"normalize": False}}, [component("exact", "exact")]),
        (short, [component("short", short)]),
        (component("mine", short, weight=2.0), [component("mine", short, weight=2.0)]),
    ],
)
def test_a_name_a_list_or_a_map_becomes_components(reward, expected):
    assert resolve_components(reward) == tuple(expected)


def test_callables_have_names_that_metrics_can_hold():
    judge, partial, nameless = Judge(), functools.partial(short, limit=3), lambda *args, **data: 1.0
    found = resolve_components([judge, partial, nameless])
    assert [item.name for item in found] == ["Judge", "short", "lambda"]
    assert [item.reward for item in found] == [judge, partial, nameless]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("", "reward is required"),
        ([], "reward is required"),
        ({}, "reward is required"),
        (3, "reward: got 3, expected a name, a path, or a list or map"),
        (None, "reward: got None"),
        (["gsm8k", {"exact": 1}], "reward: got {'exact': 1}"),
        ({"gsm8k": True}, "reward.gsm8k is True, expected a weight"),
        ({"gsm8k": "1.0"}, "reward.gsm8k is '1.0', expected a weight"),
        ({"gsm8k": float("nan")}, "reward.gsm8k.weight is nan, expected a finite number"),
        ({"gsm8k": {"weight": "high"}}, "reward.gsm8k.weight is 'high'"),
        ({"gsm8k": {"wieght": 2}}, "reward.gsm8k: unknown key 'wieght': did you mean 'weight'? it takes path, weight"),
        ({"gsm8k": {"strict": True}}, "reward.gsm8k: unknown key 'strict'"),
        ({"gsm8k": {"options": ["strict"]}}, "reward.gsm8k.options is ['strict']"),
        ({"mine": {"path": 3}}, "reward.mine.path is 3"),
        ({"gsm8k": {"normalize": "std"}}, "reward.gsm8k.normalize is 'std', expected true (group)"),
        (["a:score", "b:score"], "'a:score' and 'b:score' are both called 'score'"),
    ],
)
def test_anything_else_is_refused_with_the_key_and_a_fix(reward, message):
    with pytest.raises(ConfigError) as caught:
        resolve_components(reward)
    assert message in str(caught.value)
    assert caught.value.where.startswith("reward")
    assert caught.value.fix


def test_messages_name_a_component_and_the_path_behind_it():
    assert resolve_components("exact")[0].place == "exact (areal.reward.exact:exact_reward)"
    assert resolve_components("my.rewards:short")[0].place == "short (my.rewards:short)"


@pytest.mark.parametrize(
    ("reward", "text"),
    [
        ("gsm8k", "gsm8k"),
        ("my.rewards:short", "my.rewards:short"),
        (["gsm8k", "exact"], "gsm8k + exact"),
        ({"gsm8k": 1.0, "short": {"path": "a:b", "weight": 0.2}}, "gsm8k + 0.2 short"),
        (3, ""),
    ],
)
def test_tables_show_the_components_in_one_line(reward, text):
    assert describe_reward(reward) == text
