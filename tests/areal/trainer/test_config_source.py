"""Loading run configurations: what is accepted, what is refused and how, and where each value came from."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal.api import ConfigError
from areal.trainer.config import PPOConfig, SFTConfig
from areal.trainer.configuration import source
from areal.trainer.configuration.source import config_from_mapping, dump_yaml, flatten, load_config, to_mapping

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def refusal(path: Path | None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_an_empty_file_and_no_file_both_give_the_defaults_of_rl(write):
    assert load_config(write("")).config == PPOConfig()
    assert load_config(None).config == PPOConfig()


def test_kind_selects_the_configuration_class(write):
    assert isinstance(load_config(write("kind: sft\nbatch_size: 4")).config, SFTConfig)


def test_every_leaf_says_whether_it_is_a_default_from_a_line_or_from_the_command_line(write):
    path = write("model:\n  path: there\nactor:\n  lr: 1e-4\n\n  beta1: 0.8\n")
    resolved = load_config(path, ["actor.beta1=0.7", "gconfig={top_k: 5}"])
    assert resolved.provenance["model.path"] == "run.yaml:2"
    assert resolved.provenance["actor.lr"] == "run.yaml:4"
    assert resolved.provenance["actor.beta1"] == "command line"
    assert resolved.provenance["gconfig.top_k"] == "command line"
    assert resolved.provenance["gconfig.top_p"] == "default"
    assert set(resolved.provenance) == set(flatten(to_mapping(resolved.config)))


def test_scalars_follow_yaml_1_2(write):
    text = "actor: {lr: 1e-4}\nexperiment_name: no\ntrial_name: 12:30:00\nseed: 010\ntotal_train_steps: ~\n"
    config = load_config(write(text)).config
    assert config.actor.lr == 1e-4
    assert (config.experiment_name, config.trial_name, config.seed) == ("no", "12:30:00", 10)
    assert config.total_train_steps is None


def test_overrides_reach_into_free_form_mappings_and_merge_with_the_file(write):
    path = write("model: {init: {model_type: qwen3, hidden_size: 32}}\n")
    config = load_config(path, ["model.init.hidden_size=64", "objective.surrogate.clip_high=0.28"]).config
    assert config.model.init == {"model_type": "qwen3", "hidden_size": 64}
    assert config.objective.surrogate == {"clip_high": 0.28}


def test_an_override_of_a_whole_mapping_replaces_it_and_null_removes_a_section(write):
    path = write("model: {init: {hidden_size: 32}}\ncritic: {lr: 1e-3}\n")
    config = load_config(path, ["model.init={vocab_size: 8}", "critic=null"]).config
    assert config.model.init == {"vocab_size": 8}
    assert config.critic is None


def test_an_override_creates_an_optional_section(write):
    resolved = load_config(None, ["critic.lr=2e-5"])
    assert resolved.config.critic.lr == 2e-5
    assert resolved.provenance["critic.beta1"] == "default"


def test_the_last_override_of_a_key_wins():
    assert load_config(None, ["seed=1", "seed=7"]).config.seed == 7


def test_lists_become_tuples_and_stay_lists_in_the_mapping():
    config = load_config(None, ["gconfig.stop_token_ids=[1, 2]"]).config
    assert config.gconfig.stop_token_ids == (1, 2)
    assert to_mapping(config)["gconfig"]["stop_token_ids"] == [1, 2]


@pytest.mark.fault(
    row=33,
    injected="keys of a file that do not exist",
    seen="one message with place, line and the nearest known key",
)
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("model: {pth: x}", "model.pth (run.yaml:1): unknown key; did you mean model.path?"),
        ("lr: 1e-4", "did you mean actor.lr or critic.lr?"),
        ("rollout: {max_new_tokens: 5}", "did you mean gconfig.max_new_tokens"),
        ("label_smoothing: 0.1", "it exists only with kind: sft"),
        ("rollout: {batch-size: 5}", "did you mean rollout.batch_size?"),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest_known_key(write, text, hint):
    path = write(text)
    assert hint in refusal(path).replace(f"{path}", "run.yaml")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollout.batch_size=true", "expected an integer, got true"),
        ('rollout.batch_size="64"', "expected an integer, got '64' (remove the quotes)"),
        ("rollout.batch_size=1.5", "expected an integer, got 1.5"),
        ("actor.lr=fast", "expected a number, got 'fast'"),
        ("actor.lr=false", "expected a number, got false"),
        ("actor.lr=.nan", "expected a finite number, got nan"),
        ("actor.max_grad_norm=.inf", "expected a finite number, got inf"),
        ("metrics.progress=1", "expected true or false, got 1"),
        ("experiment_name=3", "expected text, got 3"),
        ("actor.dtype=bf16", "did you mean 'bfloat16'?"),
        ("rollout=3", "expected a section of key: value lines, got 3"),
        ("train_dataset=null", "got null; remove the key to keep its defaults"),
        (
            "gconfig.stop_token_ids=[1, x]",
            "gconfig.stop_token_ids.1 (command line): expected a list of integers, got 'x'",
        ),
        ("kind=ppo", "kind (command line): expected one of rl, sft, dpo, reward_model, got 'ppo'"),
        ("rollout", "'rollout' is not an override: expected dotted.key=value"),
        ("--actor.lr=1", "write key=value without dashes"),
        ("model.init={a: 1", "not valid YAML"),
        ("actor..lr=1", "is not an override"),
    ],
)
def test_a_wrong_override_is_refused_with_what_was_expected(override, expected):
    assert expected in refusal(None, override)


def test_an_override_below_a_plain_value_is_refused(write):
    assert "actor.lr is 0.1, which has no keys of its own" in refusal(write("actor: {lr: 0.1}"), "actor.lr.x=1")


def test_all_problems_are_reported_at_once_contradictions_included(write):
    path = write("model: {pth: x}\nactor: {lr: fast}\ngconfig:\n  top_p: 0\n  stop: [1]\ncheckpoint: {keep: 0}\n")
    message = refusal(path, "rollout.batch_size=true", "nonsense")
    assert message.startswith("7 problems in the configuration:")
    for part in ("model.pth", "actor.lr", "top_p is 0.0", "gconfig.stop.0", "keep is 0, expected >= 1", "nonsense"):
        assert part in message
    assert "rollout.batch_size (command line): expected an integer" in message


def test_a_contradiction_between_fields_says_where_both_were_written(write):
    path = write("rollout:\n  batch_size: 2\n")
    message = refusal(path, "objective.num_minibatches=4")
    assert "objective.num_minibatches 4 exceeds rollout.batch_size 2" in message
    assert f"{path}:2" in message
    assert "command line" in message


def test_a_consequence_of_a_wrong_value_is_not_reported_as_a_problem_of_its_own(write):
    message = refusal(write("rollout: {batch_size: '2'}\nobjective: {num_minibatches: 100}\n"))
    assert "exceeds" not in message
    assert "remove the quotes" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\nactor: {}\nseed: 2\n", ":3:1: duplicate key 'seed', first given in line 1; keep one"),
        ("actor: {lr: 1, lr: 2}\n", "duplicate key 'lr'"),
        ("actor: [\n", "not valid YAML"),
        ("- 1\n", "expected a mapping of configuration keys"),
        ("1: x\n", "keys must be text, got '1'; put it in quotes"),
        ("model: !!python/object:os.system {}\n", "tag"),
        ("seed: !!int abc\n", "'abc' is not of type int"),
        ("model: &a {init: *a}\n", "contains itself"),
        ("seed: 1\n---\nseed: 2\n", "not valid YAML"),
        (
            "model:\n  init:\n    a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"    {to}: &{to} [{', '.join([f'*{of}'] * 10)}]\n" for of, to in pairwise("abcdefghi")),
            "more than 100000 values",
        ),
    ],
)
def test_a_file_that_is_not_a_plain_mapping_is_refused_with_its_line(write, text, expected):
    path = write(text)
    message = refusal(path)
    assert expected in message
    assert str(path) in message


def test_a_missing_file_names_the_files_beside_it(tmp_path):
    (tmp_path / "gsm8k.yaml").write_text("")
    assert "no such config file; that folder has gsm8k.yaml" in refusal(tmp_path / "gsm8.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal(tmp_path / "x.yaml")


def test_saved_yaml_loads_as_an_equal_configuration_even_with_treacherous_texts(tmp_path):
    config = load_config(
        None,
        [
            "experiment_name='1e-4'", "trial_name='no'", "output_dir='2020-01-01'", "actor.lr=1e-5", "critic={}",
            "model.init={a: '0x10', b: null, c: [1, 2.5, 'true'], d: {}}", "gconfig.stop=['\\n', '#']",
        ],
    ).config  # fmt: skip
    path = tmp_path / "saved.yaml"
    path.write_text(dump_yaml(config))
    assert load_config(path).config == config
    assert config_from_mapping(to_mapping(config)) == config


_scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.recursive(
            _scalars,
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        ),
        max_size=4,
    )
)
def test_dumped_yaml_reads_back_as_the_same_values(value):
    assert source.parse_value(source.dump(value), where="test") == value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=-1", "seed is -1, expected >= 0 and < 4294967296"),
        ("seed=4294967296", "expected >= 0 and < 4294967296"),
        ("rollout.group_size=99999999999999999999", "expected >= 1 and <= 65536"),
    ],
)
def test_numbers_that_nothing_can_work_with_are_refused(override, expected):
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override])
    assert expected in str(caught.value)


def test_infinite_values_are_read_as_such_by_the_yaml_layer():
    assert source.parse_value("-.inf", where="test") == -math.inf


def test_an_override_without_a_value_is_the_empty_text():
    assert load_config(None, ["model.path="]).config.model.path == ""
    assert load_config(None, ["total_train_steps=null"]).config.total_train_steps is None
