"""`load_dataset`: names, options, and the checks every loader's result goes through."""

from __future__ import annotations

import sys
import types

import datasets
import pytest

from areal.api import REQUIRED_COLUMNS, ConfigError, DataError, RegistryError, load
from areal.dataset.config import DatasetConfig
from areal.dataset.loading import load_dataset
from areal.dataset.registry import DATASETS


@pytest.fixture
def loader(monkeypatch):
    """Make `user_rows:load` return given rows; yields a function that loads them."""

    def run(kind, rows, **options):
        module = types.ModuleType("user_rows")
        module.load = lambda path, split, tokenizer, max_length=None, *, repeat=1: datasets.Dataset.from_list(
            rows * repeat
        )
        monkeypatch.setitem(sys.modules, "user_rows", module)
        return load_dataset(DatasetConfig(name="user_rows:load", options=options), None, kind=kind)

    return run


def test_the_table_is_sorted_resolves_and_ends_in_known_kinds():
    assert list(DATASETS) == sorted(DATASETS)
    for name in DATASETS:
        assert callable(load("dataset", name, DATASETS))
        assert name.rpartition("_")[2] in REQUIRED_COLUMNS


def test_loaders_of_users_work_by_path(loader):
    assert len(loader("rl", [{"messages": "a"}], repeat=3)) == 3


@pytest.mark.parametrize(
    ("kind", "row", "problem"),
    [
        ("rl", {"message": "a"}, "no column 'messages': did you mean 'message'"),
        ("rl", {"messages": ""}, "row 0: messages is an empty prompt"),
        ("rl", {"messages": []}, "row 0: messages is empty or not a list"),
        (
            "rl",
            {"messages": [{"role": "user"}]},
            r"row 0: messages\[0\] is .* expected a mapping with role and content",
        ),
        ("rl", {"messages": [{"role": "assistant", "content": "x"}]}, "end with an assistant turn"),
        ("sft", {"input_ids": [1, 2], "loss_mask": [1]}, "input_ids has 2 entries and loss_mask 1"),
        ("sft", {"input_ids": [1, 2], "loss_mask": [0, 0]}, "loss_mask is all 0"),
        ("sft", {"input_ids": [1, 2], "loss_mask": [0, 2]}, "values other than 0 and 1"),
        (
            "preference",
            {"chosen_ids": [1], "chosen_loss_mask": [1], "rejected_ids": [1, 2], "rejected_loss_mask": [0]},
            "rejected_ids has 2 entries",
        ),
    ],
)
def test_rows_that_contradict_the_schema_are_named(loader, kind, row, problem):
    with pytest.raises(DataError, match=problem):
        loader(kind, [row])


def test_zero_rows_are_refused(loader):
    with pytest.raises(DataError, match="0 rows"):
        loader("rl", [{"messages": "a"}], repeat=0)


def test_names_options_and_kinds_are_checked_before_loading():
    with pytest.raises(ConfigError, match="dataset name is empty"):
        load_dataset(DatasetConfig(), None, kind="rl")
    with pytest.raises(RegistryError, match="did you mean 'gsm8k_rl'"):
        load_dataset(DatasetConfig(name="gsm8_rl"), None, kind="rl")
    with pytest.raises(ConfigError, match="dataset 'gsm8k_sft' is not for rl"):
        load_dataset(DatasetConfig(name="gsm8k_sft"), None, kind="rl")
    with pytest.raises(ConfigError, match="unknown option 'instructions': did you mean 'instruction'"):
        load_dataset(DatasetConfig(name="gsm8k_rl", options={"instructions": ""}), None, kind="rl")
    with pytest.raises(ConfigError, match="option 'split' is set by the framework"):
        load_dataset(DatasetConfig(name="gsm8k_rl", options={"split": "x"}), None, kind="rl")


def test_a_loader_that_returns_something_else_is_refused(monkeypatch):
    module = types.ModuleType("bad_rows")
    module.load = lambda path, split, tokenizer, max_length=None: [{"messages": "a"}]
    monkeypatch.setitem(sys.modules, "bad_rows", module)
    with pytest.raises(ConfigError, match=r"returned list, expected datasets\.Dataset"):
        load_dataset(DatasetConfig(name="bad_rows:load"), None, kind="rl")
