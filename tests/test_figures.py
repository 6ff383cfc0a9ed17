"""Figures of the documents: each is drawn from the numbers beside it."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import draw_figures
import pytest

NAMES = sorted(path.stem for path in draw_figures.FIGURES.glob("*.json"))


def test_every_figure_is_what_its_numbers_say() -> None:
    assert NAMES
    assert draw_figures.main(["--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_whole_and_loads_nothing(name) -> None:
    text = (draw_figures.FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert "href" not in text
    assert "prefers-color-scheme:dark" in text


def test_numbers_come_from_a_run_and_another_curve_is_another_figure(tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    rows = [{"step": step, "reward/mean": step / 4, "reward/std": 0.1, "time/update": 0.5} for step in (1, 2, 3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"attempt": 1}, *rows]))
    monkeypatch.setattr(draw_figures, "FIGURES", tmp_path)
    assert draw_figures.main(["--from", str(run), "mine"]) == 0
    assert json.loads((tmp_path / "mine.json").read_text())["reward"] == [0.25, 0.5, 0.75]
    (tmp_path / "mine.json").write_text((tmp_path / "mine.json").read_text().replace("0.75", "0.1"))
    assert draw_figures.main(["--check"]) == 1
