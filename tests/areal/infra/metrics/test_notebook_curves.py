"""Curves of metrics in the output of a cell."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import areal
from areal.api.errors import UsageError

ROWS = [
    {"step": step, "reward/mean": step / 10, "reward/std": 0.1, "length/mean": 5.0 - step / 4, "stats/<b>": 1.0}
    | ({"eval/test/avg@1": step / 12} if step % 5 == 0 else {})
    for step in range(1, 11)
]


class Elements(HTMLParser):
    """Names of the elements of a page, in order; complains about one that is not closed."""

    def __init__(self, text):
        super().__init__()
        self.names, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.names.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_reward_and_evaluations_share_the_first_chart():
    curves = areal.MetricTable(ROWS).curves()
    assert [list(chart) for chart in curves.charts] == [["reward/mean", "eval/test/avg@1"], ["length/mean"]]
    html = curves._repr_html_()
    found = Elements(html).names
    assert found.count("svg") == 2
    assert found.count("path") == 4, "a band, the reward, the evaluation, and the length"
    assert "script" not in found
    assert "reward/mean: 0.1 to 1 in 10 steps\neval/test/avg@1: 0.4167 to 0.8333 in 2 steps" in repr(curves)


def test_values_decide_where_a_curve_goes():
    rising, falling = (
        re.findall(r'class="line c0" d="M([\d.]+) ([\d.]+).*?L([\d.]+) ([\d.]+)"', chart._repr_html_())[0]
        for chart in (areal.MetricTable(ROWS).curves("reward/mean"), areal.MetricTable(ROWS).curves("length/mean"))
    )
    assert float(rising[1]) > float(rising[3]), "the axis of a picture points down"
    assert float(falling[1]) < float(falling[3])
    assert float(rising[0]) < float(rising[2])


def test_names_of_metrics_are_text():
    html = areal.MetricTable(ROWS).curves("stats/<b>")._repr_html_()
    assert "stats/&lt;b&gt;" in html
    assert "stats/<b>" not in html


def test_a_metric_that_nobody_logged_is_named():
    with pytest.raises(UsageError, match="no step has the metric 'reward/men'"):
        areal.MetricTable(ROWS).curves(["reward/mean", "reward/men"])
    without = areal.MetricTable([{"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": float("nan")}])
    assert without.curves().charts == [["train/loss"]]
