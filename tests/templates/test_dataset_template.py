"""What a generated dataset holds: rows of the data as data, loaders for each kind of training, registry entries."""

from __future__ import annotations

import ast
import json

import dataset_units as units
import pytest

from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.rendering import check_files, complete_answers, template_context


def test_packaged_rows_are_rows_of_the_data(tmp_path):
    rows = units.ROWS["hashes"]
    files = units.generated("digits", from_=units.write_lines(tmp_path / "rows.jsonl", rows))
    packaged = {
        split: [json.loads(line) for line in files[f"areal/dataset/fixtures/digits/{split}.jsonl"].splitlines()]
        for split in ("train", "test")
    }
    assert [len(packaged[split]) for split in ("train", "test")] == [8, 4]
    assert all(row in rows for row in [*packaged["train"], *packaged["test"]])
    assert not any(row in packaged["train"] for row in packaged["test"])


def made(name, folder):
    return units.generated(f"from_{name}", from_=units.write_lines(folder / "rows.jsonl", units.ROWS[name]))


def test_text_of_the_data_is_never_code(tmp_path):
    files = made("hostile", tmp_path)
    module = ast.parse(files["areal/dataset/from_hostile.py"])
    assert type(module.body[0]).__name__ == "Expr"
    assert "{{ 7*7 }} {% raw %}" in ast.get_docstring(module)
    calls = {
        node.func.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert "abort" not in calls
    (line,) = files["areal/dataset/fixtures/from_hostile/train.jsonl"].splitlines()
    assert json.loads(line) == units.ROWS["hostile"][0]


def test_packaged_pictures_are_small(tmp_path):
    lines = made("albums", tmp_path)["areal/dataset/fixtures/from_albums/train.jsonl"].splitlines()
    assert len(lines) == 8
    assert max(map(len, lines)) < 1000


@pytest.mark.exhaustive
def test_the_same_data_give_the_same_unit_which_does_not_name_their_place(tmp_path):
    files = made("boxes", tmp_path)
    assert made("boxes", tmp_path) == files
    assert not any(str(tmp_path).encode() in content for content in files.values())


def test_a_project_of_another_name_gets_loaders_that_pass_its_gates():
    files = units.generated("digits", settings=ProjectSettings(package="shop", tests="checks"))
    assert sorted(files) == [
        "checks/shop/dataset/test_digits.py",
        "shop/dataset/digits.py",
        "shop/dataset/fixtures/digits/test.jsonl",
        "shop/dataset/fixtures/digits/train.jsonl",
    ]
    assert b"from shop.dataset.digits import PACKAGED_ROWS" in files["checks/shop/dataset/test_digits.py"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("both", ["digits_rl", "digits_sft"]),
        ("rl", ["digits_rl"]),
        ("sft", ["digits_sft"]),
        ("preference", ["digits_preference"]),
    ],
)
def test_each_loader_gets_its_registry_entry(kind, keys):
    names, settings = units.names_of("digits"), ProjectSettings()
    answers = complete_answers(units.TEMPLATE, units.prepared("digits", kind=kind).answers, names, settings)
    context = {**template_context(names, settings, "dataset"), **answers}
    manifest = resolve(load_manifest(units.TEMPLATE), context, tuple(units.generated("digits", kind=kind)))
    assert [entry.key for entry in manifest.registry] == keys
    source = units.generated("digits", kind=kind)["areal/dataset/digits.py"].decode()
    for entry in manifest.registry:
        assert f"def {entry.value.partition(':')[2]}(" in source


@pytest.mark.sample(1)
@pytest.mark.skipif(not units.SHARED.is_dir(), reason="the real datasets are not beside the repository")
@pytest.mark.parametrize(
    ("name", "form"), [("gsm8k", "text"), ("hh-rlhf/harmless-base-test.jsonl.gz", "pair_transcripts")]
)
def test_real_data_give_units_that_pass_the_gates(name, form):
    assert units.prepared("real", from_=units.SHARED / name).answers["form"] == form
    files = units.generated("real", from_=units.SHARED / name)
    assert all(result.ok for result in check_files(units.ROOT, files))
