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


def test_a_trace_becomes_slices_flights_and_busy_times(tmp_path, monkeypatch) -> None:
    def piece(name, ts, dur):
        return {"ph": "X", "name": name, "ts": ts, "dur": dur}

    events = [
        piece("step 3", 1_000_000, 400_000),
        piece("rollout_wait", 1_000_000, 100_000),
        piece("update", 1_100_000, 300_000),
        piece("other", 1_100_000, 300_000),
        {"ph": "b", "name": "episode 0", "ts": 900_000},
        {"ph": "b", "name": "episode 1", "ts": 1_050_000},
        {"ph": "e", "name": "episode 0", "ts": 1_200_000},
        piece("value", 1_210_000, 500),
        piece("value", 1_210_900, 500),
        piece("value", 1_300_000, 500),
        {"ph": "M", "name": "process_name", "ts": 0},
    ]
    trace = tmp_path / "step-000003.json"
    trace.write_text(json.dumps(events))
    monkeypatch.setattr(draw_figures, "FIGURES", tmp_path / "figures")
    (tmp_path / "figures").mkdir()
    assert draw_figures.main(["--from", str(trace), "mine"]) == 0
    found = json.loads((tmp_path / "figures/mine.json").read_text())
    assert found["length"] == 400
    assert found["parts"] == [["rollout_wait", 0, 100], ["update", 100, 400]]
    assert found["flights"] == [[0, 1], [50, 2], [200, 1]]
    assert found["busy"] == [[210, 211.4], [300, 300.5]], "calls less than a millisecond apart are one"
    assert "episodes in flight, at most 2" in (tmp_path / "figures/mine.svg").read_text()
