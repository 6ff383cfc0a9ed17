"""Registries of the shapes that public projects have (fixtures/*.txt, written for these tests); where entries go."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from tooling.cli.errors import RegistryShapeError
from tooling.kit.edits import add_entry, has_entry, keys, line_to_paste, remove_entry
from tooling.kit.kind import RegistryEntry

FIXTURES = Path(__file__).parent / "fixtures"


def fixture(name: str) -> bytes:
    return (FIXTURES / name).read_bytes()


def difference(before: bytes, after: bytes) -> list[str]:
    """Changed lines, "+ line" and "- line"."""
    old, new = before.decode().splitlines(), after.decode().splitlines()
    return [f"{line[0]} {line[2:]}" for line in difflib.ndiff(old, new) if line[0] in "+-"]


def added_and_removed(before: bytes, entry: RegistryEntry) -> list[str]:
    """The difference that adding makes; removing must restore every byte."""
    edit = add_entry(before, entry)
    assert has_entry(edit.source, entry)
    assert add_entry(edit.source, entry).source == edit.source
    assert remove_entry(edit.source, entry).source == before
    return difference(before, edit.source)


@pytest.mark.parametrize(
    ("name", "shape", "table", "key", "value", "expected"),
    [
        ("torchtitan_models", "sequence", "_supported_experiments", "flux", "", ['+         "flux",']),
        (
            "torchtitan_models",
            "sequence",
            "_supported_models",
            "llama",
            "",
            ['-     ["dense_small", "experts", "vision"]', '+     ["dense_small", "experts", "llama", "vision"]'],
        ),
        (
            "transformers_auto",
            "mapping",
            "CONFIG_MAPPING_NAMES",
            "bloom",
            "BloomConfig",
            ['+         ("bloom", "BloomConfig"),'],
        ),
        (
            "transformers_auto",
            "mapping",
            "CONFIG_MAPPING_NAMES",
            "aimv2",
            "Aimv2Config",
            ['+         ("aimv2", "Aimv2Config"),'],
        ),
        (
            "transformers_auto",
            "mapping",
            "MODEL_NAMES_MAPPING",
            "blip",
            "BLIP",
            [
                '- MODEL_NAMES_MAPPING = OrderedDict({"albert": "ALBERT", "bert": "BERT"})',
                '+ MODEL_NAMES_MAPPING = OrderedDict({"albert": "ALBERT", "bert": "BERT", "blip": "BLIP"})',
            ],
        ),
        (
            "prime_rl_losses",
            "mapping",
            "PATHS",
            "multi_turn",
            "envs.multi:MultiTurn",
            ["+     'multi_turn': 'envs.multi:MultiTurn',"],
        ),
        (
            "prime_rl_losses",
            "mapping",
            "PATHS",
            "vision",
            "envs.vision:Vision",
            [
                "-     'tool': 'envs.tool:Tool'",
                "+     'tool': 'envs.tool:Tool',",
                "+     'vision': 'envs.vision:Vision'",
            ],
        ),
        (
            "areal_lazy",
            "lazy",
            "_LAZY_IMPORTS",
            "digits_reward",
            "pkg.reward.digits",
            ['+     "digits_reward",', '+     "digits_reward": "pkg.reward.digits",'],
        ),
        ("areal_lazy", "all", "__all__", "LIMIT", "", ['+     "LIMIT",']),
    ],
)
def test_an_entry_goes_in_with_the_smallest_difference_and_comes_out_again(name, shape, table, key, value, expected):
    entry = RegistryEntry("pkg/registry.py", shape, table, key, value)
    assert added_and_removed(fixture(f"{name}.txt"), entry) == expected


@pytest.mark.parametrize(
    ("name", "shape", "table", "line", "reason", "paste"),
    [
        ("transformers_auto", "mapping", "TOKENIZER_MAPPING_NAMES", 18, "not a string", '"new": "m:new",'),
        ("prime_rl_losses", "mapping", "LOSSES", 5, "'dapo' is not a string", '"new": "m:new",'),
        ("trl_import_structure", "lazy", "_import_structure", 1, "__all__ is not set", '"new",'),
        ("trl_import_structure", "mapping", "_import_structure", 4, "'trainer' is not a string", '"new": "m:new",'),
    ],
)
def test_shapes_that_hold_no_strings_are_refused_with_the_line_to_paste(name, shape, table, line, reason, paste):
    with pytest.raises(RegistryShapeError) as caught:
        add_entry(fixture(f"{name}.txt"), RegistryEntry("pkg/registry.py", shape, table, "new", "m:new"))
    assert caught.value.where == f"pkg/registry.py:{line}"
    assert reason in caught.value.message
    assert caught.value.fix == f"paste this line: {paste}"


def test_keys_are_read_even_where_the_values_are_no_strings():
    entry = RegistryEntry("pkg/registry.py", "mapping", "LOSSES", "x", "m:x")
    assert keys(fixture("prime_rl_losses.txt"), entry) == ["dapo", "grpo"]
    lazy = RegistryEntry("pkg/__init__.py", "lazy", "_LAZY_IMPORTS", "x", "m")
    assert keys(fixture("areal_lazy.txt"), lazy) == ["Scorer", "clevr_reward", "gsm8k_reward"]


def test_an_unsorted_table_grows_at_its_end_and_says_so():
    source = b'T = {\n    "z": "m:z",\n    "a": "m:a",\n    # end\n}\n'
    entry = RegistryEntry("r.py", "mapping", "T", "b", "m:b")
    edit = add_entry(source, entry)
    assert edit.source == b'T = {\n    "z": "m:z",\n    "a": "m:a",\n    "b": "m:b",\n    # end\n}\n'
    assert edit.note == "T is not sorted: added at its end"
    assert remove_entry(edit.source, entry).source == source


@pytest.mark.parametrize(
    ("present", "key", "expected"),
    [
        (["a", "B", "c"], "b2", ["a", "B", "b2", "c"]),
        (["B", "a", "c"], "b", ["B", "a", "b", "c"]),
        (["v1", "v9", "v10"], "v2", ["v1", "v2", "v9", "v10"]),
    ],
    ids=["letters", "code points", "numbers"],
)
def test_a_table_keeps_the_order_that_it_has(present, key, expected):
    entry = RegistryEntry("r.py", "sequence", "T", key)
    source = "T = [\n" + "".join(f'    "{name}",\n' for name in present) + "]\n"
    edit = add_entry(source.encode(), entry)
    assert keys(edit.source, entry) == expected
    assert edit.note == ""


def test_exports_are_where_the_linter_wants_them(tmp_path):
    names = ["LIMIT", "MAX_1", "MAX_11", "Z2", "Z11", "Alphabet", "__author__", "_hidden", "apply", "item2", "item11"]
    listed = "".join(f'    "{name}",\n' for name in names)
    before = f"__all__ = [\n{listed}]\n".encode()
    (tmp_path / "before.py").write_bytes(before)
    for key in ("ALPHA", "Alpha", "alpha", "Z9", "Z10", "item10", "item9b", "_private", "__version__", "X", "MAX_2"):
        entry = RegistryEntry("pkg/__init__.py", "all", "__all__", key)
        (tmp_path / f"with_{key}.py").write_bytes(add_entry(before, entry).source)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "RUF022", "--no-cache", tmp_path]
    assert subprocess.run(ruff, check=False, capture_output=True, text=True).stdout == "All checks passed!\n"


def test_a_first_entry_goes_above_its_successors_comment_but_below_one_about_the_table():
    source = b'T = [\n    # keep sorted\n    # about b\n    "b",\n]\n'
    expected = b'T = [\n    # keep sorted\n    "a",\n    # about b\n    "b",\n]\n'
    assert add_entry(source, RegistryEntry("r.py", "sequence", "T", "a")).source == expected


def test_a_first_entry_goes_below_a_note_that_a_blank_line_parts_from_it():
    source = b'T = [\n    # section\n\n    "b",\n]\n'
    expected = b'T = [\n    # section\n\n    "a",\n    "b",\n]\n'
    assert add_entry(source, RegistryEntry("r.py", "sequence", "T", "a")).source == expected


def test_what_is_spread_or_inlined_is_what_the_formatter_would_write(tmp_path):
    entry = RegistryEntry("r.py", "mapping", "T", "digits", "pkg.digits:digits")
    literals = ("{}", "OrderedDict([])", "types.MappingProxyType({})", '{"a": "m:a"}', "dict({})")
    for number, literal in enumerate(literals):
        (tmp_path / f"registry_{number}.py").write_bytes(add_entry(f"T = {literal}\n".encode(), entry).source)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--diff", "--no-cache", tmp_path]
    assert subprocess.run(command, check=False, capture_output=True, text=True).stdout == ""


def test_a_line_that_would_get_too_long_is_spread_to_one_entry_per_line():
    source = f'T = {{"a": "{"x" * 60}"}}  # why\n'.encode()
    edit = add_entry(source, RegistryEntry("r.py", "mapping", "T", "b", "pkg.b:b"))
    assert edit.source.decode() == f'T = {{\n    "a": "{"x" * 60}",\n    "b": "pkg.b:b",\n}}  # why\n'
    assert (edit.line, edit.note) == (3, "T was spread to one entry per line")


@pytest.mark.parametrize(
    ("source", "rest"),
    [
        ('T = ("aa", "bb")\n', 'T = ("aa",)\n'),
        ('T = ("bb", "cc")\n', 'T = ("cc",)\n'),
        ('T = (\n    "aa",\n    "bb"\n)\n', 'T = (\n    "aa",\n)\n'),
        ('T = ["bb"]\n', "T = []\n"),
        ('T = [\n    "bb",  # own\n]\n', "T = []\n"),
        ('T = [  # kept\n    "bb",  # own\n]\n', "T = [  # kept\n]\n"),
        ('T = ["aa",\n     "bb"]\n', None),
    ],
)
def test_removing_leaves_a_literal_of_the_same_kind(source, rest):
    entry = RegistryEntry("r.py", "sequence", "T", "bb")
    if rest is None:
        with pytest.raises(RegistryShapeError, match="shares its lines"):
            remove_entry(source.encode(), entry)
    else:
        assert remove_entry(source.encode(), entry).source.decode() == rest


def test_the_last_element_of_a_set_cannot_go_since_braces_alone_are_a_mapping():
    with pytest.raises(RegistryShapeError, match="would be a mapping") as caught:
        remove_entry(b'T = frozenset({"bb"})\n', RegistryEntry("r.py", "sequence", "T", "bb"))
    assert caught.value.fix == 'remove this line by hand: "bb",'


def test_an_export_list_computed_from_the_lazy_table_follows_by_itself():
    entry = RegistryEntry("p.py", "lazy", "_LAZY", "b", "pkg.b")
    source = b'_LAZY = {\n    "a": "pkg.a",\n}\n__all__ = sorted(_LAZY)\n'
    assert added_and_removed(source, entry) == ['+     "b": "pkg.b",']


@pytest.mark.parametrize(
    ("source", "line", "paste"),
    [
        (b'_LAZY = {\n    "b": "pkg.b",\n}\n__all__ = ["a"]\n', 2, '"b",'),
        (b'_LAZY = {\n    "a": "pkg.a",\n}\n__all__ = ["a", "b"]\n', 4, '"b": "pkg.b",'),
    ],
)
def test_a_name_in_one_of_both_lists_is_refused_with_the_line_for_the_other(source, line, paste):
    entry = RegistryEntry("p.py", "lazy", "_LAZY", "b", "pkg.b")
    for edit in (add_entry, remove_entry):
        with pytest.raises(RegistryShapeError) as caught:
            edit(source, entry)
        assert (caught.value.where, caught.value.fix) == (f"p.py:{line}", f"paste this line: {paste}")


def test_hostile_keys_and_values_stay_inside_their_literals():
    key, value = "a\"]; import os; ['", 'x\\\n"}\u2028'
    entry = RegistryEntry("r.py", "mapping", "T", key, value)
    source = b'T = {\n    "a": "m:a",\n}\n'
    edit = add_entry(source, entry)
    assert has_entry(edit.source, entry)
    assert len(edit.source.splitlines()) == 4
    assert remove_entry(edit.source, entry).source == source


def test_the_line_to_paste_is_the_line_that_would_be_added():
    entry = RegistryEntry("r.py", "mapping", "T", "b", "m:b")
    assert line_to_paste(entry) == '"b": "m:b",'
    assert f"    {line_to_paste(entry)}\n".encode() in add_entry(b"T = {}\n", entry).source
