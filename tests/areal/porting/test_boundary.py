"""Errors inside of an analysis: a fault of the model's code is a refusal, everything else is said to be a bug."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from areal.porting.__main__ import main
from areal.porting.bind import analyse as page
from areal.porting.probe.subject import resolve
from areal.porting.records import AnalysisError
from tests.areal.porting.unknown.design import Design
from tests.areal.porting.unknown.modeling import write

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {"depth": 2, "width": 48, "heads": 4, "head": 12, "inner": 56}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(Design(name="odd", values=VALUES), tmp_path / "odd")


def broken(*_: object) -> None:
    raise AttributeError("nobody thought of this")


def test_a_failure_of_ours_is_a_bug_with_its_phase(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "depth_field", broken)
    with pytest.raises(AnalysisError, match="AttributeError: nobody thought of this") as caught:
        page.analyse(resolve(str(folder), trust=True))
    assert caught.value.phase == "reading"
    assert caught.value.config["model_type"] == "odd"
    assert {"final_norm", "layer.attention.rotary"} <= {each["feature"] for each in caught.value.evidence}


def test_the_command_ends_with_a_code_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "complete", broken)
    assert main([str(folder), "--trust-source", "--json"]) == 14
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["bug"], answer["phase"]) == (False, True, "tiny")
    assert "in broken" in "".join(answer["traceback"])
    assert main([str(folder), "--trust-source"]) == 14
    assert "This is a bug of areal, not of the model" in capsys.readouterr().err


def test_a_failure_of_the_models_code_is_refused_with_its_line(folder: Path) -> None:
    file = folder / "modeling_odd.py"
    text = file.read_text(encoding="utf-8")
    start = "    def get_input_embeddings(self):\n        return self.model"
    assert start in text
    failing = f"    def named_modules(self, *a, **k):\n        raise KeyError('odd')\n\n{start}"
    file.write_text(text.replace(start, failing), encoding="utf-8")
    report = page.analyse(resolve(str(folder), trust=True))
    assert report.status == "unsupported"
    (missing,) = report.missing
    assert missing["feature"] == "modeling code that fails by itself"
    assert missing["where"].startswith("modeling_odd.py:")
    assert "KeyError: 'odd'" in missing["detail"]
