"""The report and the comparison in a real browser: values under the pointer and at the cursor of the keys."""

from __future__ import annotations

import re

import pytest
from browser import PROGRAM, Browser

from areal.infra.metrics import names
from areal.infra.metrics.comparison import compare_runs, write_comparison
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.logger import MetricLogger
from areal.infra.metrics.report import write_report

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(PROGRAM is None, reason="needs Chromium: apt-get install chromium"),
]
FIGURES = "[...document.querySelectorAll('figure')]"
TIP = "document.getElementById('tip')"
NAMES = ["low", "größer <b>", "第三"]


def run(folder, *, steps, every=1, add=0.0):
    with MetricLogger(folder, MetricsConfig()) as metrics:
        for step in range(every, steps + 1, every):
            metrics.log(step, {names.REWARD_MEAN: step / 100 + add, names.LOSS: 1.0})
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    runs = [run(folder / name, steps=40, every=1 + index, add=index / 10) for index, name in enumerate(NAMES)]
    write_comparison(compare_runs(runs), folder / "three.html")
    many = [run(folder / f"run-{index}", steps=5, add=index) for index in range(20)]
    write_comparison(compare_runs(many), folder / "twenty.html")
    write_report(run(folder / "single", steps=1), folder / "single.html")
    write_report(runs[0], folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started
    assert started.problems == []
    assert all(url.startswith("file:") or url == "about:blank" for url in started.requests)


def point_at(browser, title, share):
    """Point at a share of the width of a chart's plot."""
    browser.evaluate(
        f"chart = {FIGURES}.find(f => f.querySelector('h3').textContent == '{title}').querySelector('svg')"
    )
    browser.evaluate("chart.scrollIntoView({block: 'center', behavior: 'instant'})")
    left, top, width, height = browser.evaluate(
        "(box => [box.left, box.top, box.width, box.height])(chart.getBoundingClientRect())"
    )
    first = 52 if browser.evaluate("document.querySelector('.brand').textContent") == "areal report" else 64
    browser.point(left + (first + share * (480 - first - 14)) / 480 * width, top + height / 2)


def shown(browser):
    """Rows of the tip, without spaces."""
    rows = browser.evaluate(f"[...{TIP}.children].map(row => row.innerText)")
    return [re.sub(r"\s+", " ", row).strip() for row in rows]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_pointer_shows_step_and_value_of_each_run(browser, pages, width, dark):
    browser.open(pages / "three.html", width=width, dark=dark)
    point_at(browser, "reward/mean", 20 / 39)  # step 21, which the second run does not log
    assert shown(browser) == ["step 21", "low 0.21", "größer <b> 0.3 at 20", "第三 0.41"]
    box = browser.evaluate(f"(b => [b.left, b.top, b.right, b.bottom])({TIP}.getBoundingClientRect())")
    assert box[0] >= 0
    assert box[1] >= 0
    assert box[2] <= width
    assert box[3] <= 900
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_keys_reach_every_step_and_say_the_values(browser, pages):
    browser.open(pages / "report.html")
    browser.evaluate("document.getElementById('theme').focus()")
    browser.press("Tab")
    spoken = "document.activeElement.getAttribute('aria-valuetext')"
    assert browser.evaluate(spoken) == "step 40: training 0.4"
    for key, step in (("ArrowLeft", 39), ("Home", 1), ("ArrowLeft", 1), ("ArrowRight", 2), ("PageUp", 6), ("End", 40)):
        browser.press(key)
        assert browser.evaluate(spoken) == f"step {step}: training {step / 100:g}"
        assert shown(browser)[0].startswith(f"step {step}")
    browser.press("Escape")
    assert browser.evaluate(f"{TIP}.hidden")
    assert browser.evaluate("document.activeElement.getAttribute('role')") == "slider"


def test_smoothing_keeps_the_raw_value_and_names_hide_runs(browser, pages):
    browser.open(pages / "three.html")
    browser.evaluate("document.querySelectorAll('button.key')[1].click()")
    browser.evaluate("slider = document.getElementById('smoothing'); slider.value = 0.9")
    browser.evaluate("slider.dispatchEvent(new Event('input', {bubbles: true}))")
    point_at(browser, "reward/mean", 1.0)
    step, low, third = shown(browser)
    assert step == "step 40"
    smoothed, raw = map(float, re.fullmatch(r"low ([\d.]+) raw ([\d.]+)", low).groups())
    assert raw == 0.4
    assert 0.3 < smoothed < 0.4
    assert third.startswith("第三")
    assert "hide=1" in browser.evaluate("location.hash")
    assert browser.evaluate("document.querySelectorAll('button.key')[1].getAttribute('aria-pressed')") == "false"


def test_twenty_runs_are_told_apart_and_sorted_by_value(browser, pages):
    browser.open(pages / "twenty.html")
    point_at(browser, "reward/mean", 1.0)
    rows = shown(browser)
    assert rows[:2] == ["step 5", "run-19 19.05"]
    assert rows[-1] == "run-0 0.05"
    assert len(rows) == 21
    browser.evaluate("look = path => getComputedStyle(path).stroke + getComputedStyle(path).strokeDasharray")
    drawn = browser.evaluate("[...chart.querySelectorAll('path.line')].map(look)")
    assert len(set(drawn)) == 20
    assert browser.evaluate("document.querySelector('h1').textContent") == "20 runs"


def test_a_run_of_one_step_has_its_value_too(browser, pages):
    browser.open(pages / "single.html")
    point_at(browser, "Reward", 0.5)
    assert shown(browser)[0] == "step 1"
    assert browser.evaluate(f"{TIP}.textContent").endswith("0.01")
