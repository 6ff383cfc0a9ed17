"""`python -m areal.porting`: what it says and does about sources that cannot be analysed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from areal.porting.__main__ import main

NOVEL = Path(__file__).with_name("novel")
CONFIG = {
    "model_type": "qwen9",
    "architectures": ["Qwen9ForCausalLM"],
    "hidden_act": "silu",
    "rope_theta": 5000.0,
    "mlp_bias": True,
    "use_mystery": True,
}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What people are told; programs are told the same without the advice."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert not said.out
    assert main([*arguments, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert said.err.startswith(str(answer["error"]))
    return said.err


@pytest.fixture
def unknown(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(tmp_path)


def like(capsys: pytest.CaptureFixture[str], source: str) -> dict[str, Any]:
    assert main([source, "--like", "llama", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_each_refusal_names_options_of_this_command(capsys: pytest.CaptureFixture[str], unknown: str) -> None:
    assert "--trust-source; --static" in refused(capsys, str(NOVEL / "aster"))
    assert "--modeling, or take a family's computation over with --like" in refused(capsys, unknown)
    assert "Name the file with --modeling" in refused(capsys, unknown, "--modeling", "nowhere.py")
    assert "of --tiny is not readable" in refused(capsys, "llama", "--tiny", "nowhere.json")
    assert "of --tiny holds a list" in refused(capsys, "llama", "--tiny", _list(unknown))


def _list(folder: str) -> str:
    path = Path(folder) / "list.json"
    path.write_text("[]", encoding="utf-8")
    return str(path)


def test_a_family_stands_in_for_a_type_whose_code_nobody_has(capsys, unknown, analysed, monkeypatch) -> None:
    monkeypatch.setattr("areal.porting.bind.analyse.analyse", lambda subject: analysed(subject.model_type))
    found = like(capsys, unknown)
    assert (found["status"], found["model_type"], found["architecture"]) == ("unproven", "qwen9", "Qwen9ForCausalLM")
    assert found["tiny_config"]["model_type"] == "qwen9"
    assert [(near["model_type"], near["differences"]) for near in found["nearest"]] == [
        ("llama", [{"field": "use_mystery", "theirs": True, "ours": "not known"}])
    ]
    assert {line["value"] for line in found["evidence"]} == {"taken over from llama"}
    named = like(capsys, "qwen9")
    assert (named["model_type"], named["nearest"][0]["differences"]) == ("qwen9", [])


def test_nothing_is_guessed_where_there_is_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert "has modeling code, so there is nothing to guess" in refused(capsys, str(NOVEL / "aster"), "--like", "llama")
    assert "has the code of qwen2, so there is nothing" in refused(capsys, "qwen2", "--like", "llama")


def test_only_a_proven_family_stands_in(capsys, unknown, analysed, monkeypatch) -> None:
    monkeypatch.setattr("areal.porting.bind.analyse.analyse", lambda subject: analysed(subject.model_type))
    assert "rwkv itself cannot be expressed" in refused(capsys, unknown, "--like", "rwkv")
    assert "unknown model_type 'nosuch'" in refused(capsys, unknown, "--like", "nosuch")
    assert "is an encoder-decoder" in refused(capsys, unknown, "--like", "t5")


def test_what_foreign_code_prints_stays_out_of_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "loud"}', encoding="utf-8")
    (tmp_path / "modeling_loud.py").write_text("print('loud')\nraise SystemExit(0)\n", encoding="utf-8")
    assert main([str(tmp_path), "--trust-source", "--json"]) == 2
    said = capsys.readouterr()
    assert "cannot be imported: SystemExit: 0" in json.loads(said.out)["error"]
    assert "loud" in said.err


def test_a_syntax_error_is_no_crash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "broken"}', encoding="utf-8")
    (tmp_path / "modeling_broken.py").write_text("class (:\n", encoding="utf-8")
    assert "cannot be read as Python" in refused(capsys, str(tmp_path), "--static")
