"""`load_dataset`: names, options, and the checks every loader's result goes through."""

from __future__ import annotations

import importlib
import sys
import types

import datasets
import pytest

from areal.api import REQUIRED_COLUMNS, ConfigError, DataError, RegistryError, load
from areal.dataset.config import DatasetConfig
from areal.dataset.loading import ShuffledRows, fingerprint_sources, load_dataset
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


def test_a_loader_with_other_parameters_is_told_which(monkeypatch):
    module = types.ModuleType("keyword_rows")
    module.load = lambda *, split, tokenizer: None
    monkeypatch.setitem(sys.modules, "keyword_rows", module)
    with pytest.raises(ConfigError, match="cannot be called: too many positional") as caught:
        load_dataset(DatasetConfig(name="keyword_rows:load"), None, kind="rl")
    assert "path, split, tokenizer, max_length" in caught.value.fix


def test_what_a_generator_of_rows_raises_is_the_error(monkeypatch, tmp_path):
    def rows():
        yield {"prompt": "1+1="}
        raise RuntimeError("the database went away")

    def generated(path, split, tokenizer, max_length=None):
        return datasets.Dataset.from_generator(rows, cache_dir=str(tmp_path))

    module = types.ModuleType("generated_rows")
    module.load = generated
    monkeypatch.setitem(sys.modules, "generated_rows", module)
    with pytest.raises(DataError, match="its generator raised RuntimeError: the database went away"):
        load_dataset(DatasetConfig(name="generated_rows:load"), None, kind="rl")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write modules of a user."""

    def write(**modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    return write


def test_what_a_loader_of_the_user_raises_names_its_line_and_the_row(files, tmp_path):
    files(
        their_rows="def load(path, split, tokenizer, max_length):\n"
        "    rows = [{'q': '1', 'a': '2'}, {'q': '3'}]\n"
        "    return [{'messages': row['q'], 'answer': row['a']} for row in rows]\n"
    )
    with pytest.raises(DataError) as caught:
        load_dataset(DatasetConfig(name="their_rows:load"), None, kind="rl")
    message = str(caught.value)
    assert "dataset 'their_rows:load': its loader raised KeyError: 'a' (at " in message
    assert message.endswith(" for row 1")
    assert caught.value.where == f"{tmp_path / 'their_rows.py'}:3"
    assert caught.value.fix == "mend the loader, or what it reads"


@pytest.mark.parametrize(
    ("module", "text", "problem"),
    [
        ("broken_rows", "def load(:\n", "SyntaxError: invalid syntax"),
        ("needy_rows", "import a_package_nobody_has\n", "No module named 'a_package_nobody_has'"),
        ("leaving_rows", "raise SystemExit(0)\n", "it ended the program"),
    ],
)
def test_a_loader_that_cannot_be_imported_is_a_registry_error(files, tmp_path, module, text, problem):
    files(**{module: text})
    with pytest.raises(RegistryError) as caught:
        load_dataset(DatasetConfig(name=f"{module}:load"), None, kind="rl")
    assert problem in str(caught.value)
    assert caught.value.where == f"{tmp_path / module}.py:1"


def test_an_error_of_ours_in_a_loader_passes_as_it_is(files):
    files(own_complaint="from areal.api import DataError\ndef load(*a):\n    raise DataError('line 7: no answer')\n")
    with pytest.raises(DataError, match=r"^line 7: no answer$"):
        load_dataset(DatasetConfig(name="own_complaint:load"), None, kind="rl")


def test_a_bug_in_a_loader_of_this_package_keeps_its_traceback(monkeypatch):
    def broken(path, split, tokenizer, max_length):
        return {}["nothing"]

    broken.__module__ = "areal.dataset.gsm8k"
    monkeypatch.setattr("areal.dataset.gsm8k.load_rl", broken, raising=False)
    monkeypatch.setitem(DATASETS, "broken_rl", "areal.dataset.gsm8k:load_rl")
    monkeypatch.setattr("areal.utils.user_code._is_theirs", lambda file: False)
    with pytest.raises(KeyError, match="nothing"):
        load_dataset(DatasetConfig(name="broken"), None, kind="rl")


def test_sources_are_told_apart_by_their_rows():
    def rows(*names):
        return ShuffledRows([{"messages": name} for name in names], seed=1)

    one = fingerprint_sources({"": rows("a", "b")})
    assert one == rows("a", "b").fingerprint()
    several = {"x": rows("a"), "y": rows("b")}
    assert fingerprint_sources(several) == fingerprint_sources(dict(reversed(several.items())))
    assert fingerprint_sources(several) != fingerprint_sources({"x": rows("b"), "y": rows("a")})
