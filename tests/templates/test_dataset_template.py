"""Datasets generated from every form of data: they pass the gates, and the tests generated with them pass too."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from tooling.kit.template.manifest import load_manifest, resolve
from tooling.kit.template.kinds import ProjectSettings
from tooling.kit.template.rendering import check_files, complete_answers, template_context


def _helper():
    spec = importlib.util.spec_from_file_location("dataset_units", Path(__file__).with_name("dataset_units.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


units = _helper()


def save(folder, form, rows):
    """Rows in one format; the path for --from."""
    made = datasets.Dataset.from_list(rows)
    if form == "csv":
        made.to_csv(str(folder / "train.csv"))
    elif form == "parquet":
        made.to_parquet(str(folder / "train.parquet"))
    elif form == "saved":
        datasets.DatasetDict(train=made, test=made).save_to_disk(str(folder))
    elif form == "json":
        (folder / "train.json").write_text(json.dumps(rows))
    else:
        units.write_lines(folder / "train.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Files of one unit for each form of data, kind and format, by unit name."""
    data = tmp_path_factory.mktemp("data")
    made = {f"scaffold_{kind}": units.generated(f"scaffold_{kind}", kind=kind) for kind in ("rl", "sft", "preference")}
    made["scaffold"] = units.generated("scaffold")
    given = {"answers": {"question_column": "prompt", "answer_column": "gold", "keep_columns": ["level"]}}
    for name, rows in units.ROWS.items():
        path = units.write_lines(data / f"{name}.jsonl", rows)
        made[f"from_{name}"] = units.generated(f"from_{name}", given.get(name), from_=path)
    for kind in ("rl", "sft"):
        for name in ("hashes", "chats", "solutions"):
            unit = f"only_{kind}_{name}"
            made[unit] = units.generated(unit, from_=data / f"{name}.jsonl", kind=kind)
    for form in ("csv", "parquet", "saved", "json"):
        for name in ("hashes", "transcripts") if form == "csv" else ("hashes", "chats", "pair_chats"):
            folder = data / form / name
            folder.mkdir(parents=True)
            made[f"{form}_{name}"] = units.generated(f"{form}_{name}", from_=save(folder, form, units.ROWS[name]))
    table = datasets.Dataset.from_list(
        [{"question": "?", "answer": "a", "image": {"bytes": units.picture(1), "path": None}}] * 3
    )
    table.to_parquet(str(data / "pictures.parquet"))
    made["table_pictures"] = units.generated("table_pictures", from_=data / "pictures.parquet")
    return made


@pytest.fixture(scope="module")
def copy(tmp_path_factory, everything):
    """A copy of the framework with all units in it."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(units.ROOT / "areal", folder / "areal", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(units.ROOT / "pyproject.toml", folder)
    shutil.copytree(units.ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("test_*", "__pycache__"))
    for files in everything.values():
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    return folder


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_every_unit_passes_the_gates_for_generated_code(everything):
    for unit, files in everything.items():
        assert [result.detail for result in check_files(units.ROOT, files) if not result.ok] == [], unit


def test_every_generated_test_passes(copy, everything):
    done = run(copy, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/areal/dataset")
    assert done.returncode == 0, done.stdout[-5000:]
    num_passed = int(done.stdout.rsplit(" passed", 1)[0].split()[-1])
    assert num_passed > 12 * len(everything)
    assert "skipped" not in done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_generated_module_is_well_typed(copy, everything):
    modules = sorted(
        path for files in everything.values() for path in files if path.startswith("areal/") and path.endswith(".py")
    )
    done = run(copy, "mypy", "--cache-dir", str(units.ROOT / ".mypy_cache" / "generated"), *modules)
    assert done.returncode == 0, done.stdout[-5000:]
    assert f"no issues found in {len(modules)} source files" in done.stdout


def mutations(source):
    """Ways to break a loader that its test has to notice."""
    for old, new in [
        ('"messages": user_prompt(row["question"]', '"messages": user_prompt(row["answer"]'),
        ("rpartition", "partition"),
        ("max_length)\n", "None)\n"),
        (', row["answer"]) for row', ', row["question"]) for row'),
        ('require_texts(raw, "question", "answer")', 'require_texts(raw, "question")'),
        ('"" if final_answer(row["answer"]) else', '"" if True else'),
    ]:
        if old in source:
            yield source.replace(old, new)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_generated_test_notices_a_broken_loader(copy):
    """No mutation of the loader survives the test that was generated with it."""
    module = copy / "areal/dataset/from_hashes.py"
    sound = module.read_text()
    broken = list(mutations(sound))
    assert len(broken) >= 5
    try:
        for source in broken:
            module.write_text(source)
            done = run(copy, "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/areal/dataset/test_from_hashes.py")
            assert done.returncode == 1, source
    finally:
        module.write_text(sound)


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


def test_text_of_the_data_is_never_code(everything):
    files = everything["from_hostile"]
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


def test_packaged_pictures_are_small(everything):
    lines = everything["from_albums"]["areal/dataset/fixtures/from_albums/train.jsonl"].splitlines()
    assert len(lines) == 8
    assert max(map(len, lines)) < 1000


def test_the_same_data_give_the_same_unit(tmp_path):
    path = units.write_lines(tmp_path / "rows.jsonl", units.ROWS["boxes"])
    assert units.generated("twice", from_=path) == units.generated("twice", from_=path)


def test_no_file_names_the_place_of_the_data(everything, tmp_path_factory):
    base = str(tmp_path_factory.getbasetemp()).encode()
    assert not any(base in content for files in everything.values() for content in files.values())


def test_a_project_of_another_name_gets_loaders_that_pass_its_gates():
    files = units.generated("digits", settings=ProjectSettings(package="shop", tests="checks"))
    assert sorted(files) == [
        "checks/shop/dataset/test_digits.py",
        "shop/dataset/digits.py",
        "shop/dataset/fixtures/digits/test.jsonl",
        "shop/dataset/fixtures/digits/train.jsonl",
    ]
    assert b"from shop.dataset.digits import PACKAGED_ROWS" in files["checks/shop/dataset/test_digits.py"]


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


@pytest.mark.skipif(not units.SHARED.is_dir(), reason="the real datasets are not beside the repository")
@pytest.mark.parametrize(
    ("name", "form"), [("gsm8k", "text"), ("hh-rlhf/harmless-base-test.jsonl.gz", "pair_transcripts")]
)
def test_real_data_give_units_that_pass_the_gates(name, form):
    assert units.prepared("real", from_=units.SHARED / name).answers["form"] == form
    files = units.generated("real", from_=units.SHARED / name)
    assert all(result.ok for result in check_files(units.ROOT, files))
