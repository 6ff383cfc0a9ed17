"""Whole analyses of a novel architecture with one thing changed in its code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from areal.porting.bind.analyse import analyse, as_json
from areal.porting.probe.subject import resolve

ASTER = Path(__file__).parent / "novel/aster"


def changed(folder: Path, *changes: tuple[str, str]) -> dict[str, Any]:
    """The report on Aster with texts of its code replaced."""
    shutil.copytree(ASTER, folder / "aster")
    texts = {path: path.read_text(encoding="utf-8") for path in (folder / "aster").glob("*.py")}
    for old, new in changes:
        (path,) = (path for path, text in texts.items() if old in text)
        path.write_text(texts[path].replace(old, new), encoding="utf-8")
        texts[path] = path.read_text(encoding="utf-8")
    return as_json(analyse(resolve(str(folder / "aster"), trust=True)))


@pytest.mark.exhaustive
def test_a_refusal_names_all_parts_that_cannot_be_said_each_once(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        ('nn.functional.gelu(gate, approximate="tanh") * up', "torch.sin(gate) * up.abs()"),
        (
            "query, key = turn(query, cos, sin), turn(key, cos, sin)",
            "query, key = turn(query, cos, sin).exp(), key.abs()",
        ),
    )
    assert found["status"] == "unsupported"
    features = [each["feature"] for each in found["missing"]]
    assert len(features) == len(set(features)) >= 2
    assert {each["where"].split(".")[3] for each in found["missing"]} == {"mixer", "ff"}
    assert all(each["detail"] for each in found["missing"])


@pytest.mark.exhaustive
def test_a_part_that_is_fine_is_not_blamed_for_another(tmp_path: Path) -> None:
    found = changed(tmp_path, ('nn.functional.gelu(gate, approximate="tanh") * up', "torch.sin(gate) * up.abs()"))
    assert [each["where"].split(".")[3] for each in found["missing"]] == ["ff"]


@pytest.mark.exhaustive
def test_dropout_that_acts_in_evaluation_is_not_ignored(tmp_path: Path) -> None:
    found = changed(
        tmp_path,
        ("        tie_word_embeddings=True,\n", "        tie_word_embeddings=True,\n        attention_dropout=0.0,\n"),
        (
            "        self.token_count = ",
            "        self.attention_dropout = attention_dropout\n        self.token_count = ",
        ),
        ("scaling=self.channels**-0.5", "scaling=self.channels**-0.5 * (1 - self.config.attention_dropout)"),
    )
    assert found["status"] == "proven"
    (use,) = (use for use in found["fields"] if use["name"] == "attention_dropout")
    assert use["status"] != "ignored"
