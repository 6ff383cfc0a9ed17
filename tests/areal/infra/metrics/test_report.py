"""The HTML report: complete, self-contained, and harmless whatever the model wrote."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from itertools import pairwise
from urllib.parse import unquote

import pytest

from areal.api import Fault, FaultKind, PromptGroup, StopReason, Trajectory, UsageError
from areal.infra.metrics import names
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.jsonl import MAX_GROUPS, load_rollouts
from areal.infra.metrics.logger import MetricLogger
from areal.infra.metrics.report import (
    HEIGHT,
    WIDTH,
    embed_json,
    format_duration,
    format_number,
    line_chart,
    stacked_chart,
    thin,
    ticks,
    write_report,
)
from areal.infra.rollout.groups import RolloutBatch

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>&lt;\u2028{{ title }}"


class Page(HTMLParser):
    """Collects what a browser would act upon."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")
        if tag == "style":
            self.styles.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside == "style":
            self.styles[-1] += data
        else:
            self.text.append(data)

    @property
    def data(self):
        return json.loads(self.scripts[0])


def trajectory(index, versions, *, completion="72"):
    count = len(versions)
    return Trajectory(
        tokens=[1, 2, *range(10, 10 + count)], loss_mask=[0, 0] + [1] * count, logprobs=[0, 0] + [-0.5] * count,
        versions=[-1, -1, *versions], turn_ids=[-1, -1] + [0] * count, reward=float(index % 2),
        stop_reason=StopReason.STOP, sample_index=index, text={"prompt": EVIL, "completion": completion},
        reward_components={EVIL: 1.0},
    )  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "exp<b>" / "trial"
    with MetricLogger(folder, MetricsConfig(), decode=lambda ids: EVIL if 11 in ids else "x" * len(ids)) as metrics:
        for step in range(12):
            metrics.log(
                step,
                {
                    names.REWARD_MEAN: step / 10, names.REWARD_STD: 0.1, names.LENGTH_MEAN: 12.0, names.ENTROPY: 1.0,
                    names.KL: 0.01, names.CLIP_FRACTION: 0.1, names.STALENESS_MEAN: 0.5, names.STALENESS_MAX: 1.0,
                    names.MISMATCH_MEAN: 1e-4, names.TOKENS_PER_SECOND: 900.0, names.TIME_STEP: 2.0, "time/train": 1.0,
                    "time/rollout_wait": 0.5, names.GRAD_NORM: math.nan if step == 5 else 1.0, f"custom/{EVIL}": 1.0,
                    f"{names.FAULT_PREFIX}reward_timeout": float(step == 3),
                },
            )  # fmt: skip
        metrics.log(0, {"eval/test/avg@1": 0.1})
        metrics.log(11, {"eval/test/avg@1": 0.9})
        fault = Fault(kind=FaultKind.REWARD_RAISED, message=EVIL, attempt=0)
        metrics.log_rollouts(
            4,
            [
                PromptGroup(
                    ordinal=9,
                    admitted_version=3,
                    trajectories=(trajectory(0, [3, 3, 4]), trajectory(1, [4])),
                    faults=(fault,),
                )
            ],
        )
    (folder / "config.yaml").write_text(f"kind: rl\nnote: {EVIL}\n")
    return folder


@pytest.fixture
def page(run_dir, tmp_path):
    return Page(write_report(run_dir, tmp_path / "out" / "report.html").read_text(encoding="utf-8"))


def test_nothing_the_model_wrote_becomes_markup_or_script(page):
    assert len(page.scripts) == 2
    allowed = {
        "html", "head", "meta", "title", "style", "body", "header", "div", "p", "h1", "h2", "h3", "nav", "a", "button",
        "main", "section", "figure", "figcaption", "span", "i", "svg", "path", "line", "text", "circle", "g", "details",
        "summary", "pre", "noscript", "form", "label", "input", "select", "option", "footer", "script",
    }  # fmt: skip
    assert {tag for tag, _ in page.tags} <= allowed
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert "alert(1)" not in page.scripts[1]
    sample = page.data["groups"][0]["samples"][0]
    assert sample["text"]["prompt"] == EVIL
    assert page.data["groups"][0]["faults"][0]["message"] == EVIL
    assert any(
        EVIL.replace("\u2028", "\n").splitlines()[0] in text for text in page.text
    )  # shown, as text, in the config


def test_the_page_links_traces_and_profiles_by_relative_paths_that_exist(run_dir, tmp_path):
    for name in ("trace/step-000010.json", "trace/step-000010-2.json", "profile/steps-000005-000006.json.gz",
                 "profile/steps-000005-000006.txt", "profile/.steps-000007-000007.json.gz.tmp.json.gz",
                 "trace/notes.txt"):  # fmt: skip
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_bytes(b"{}")
    for output in (run_dir / "report.html", tmp_path / "out" / "report.html"):
        page = Page(write_report(run_dir, output).read_text(encoding="utf-8"))
        links = [attributes["href"] for tag, attributes in page.tags if tag == "a" and "download" in attributes]
        found = [(output.parent / unquote(link)).resolve().relative_to(run_dir.resolve()) for link in links]
        assert [str(file) for file in found] == [
            "trace/step-000010-2.json", "trace/step-000010.json", "profile/steps-000005-000006.json.gz",
            "profile/steps-000005-000006.txt",
        ]  # fmt: skip
        assert all((run_dir / file).is_file() for file in found)
    text = "".join(page.text)
    assert "ui.perfetto.dev" in text
    assert "from step 10" in text
    assert "steps 5 to 6" in text


def test_the_page_of_a_run_without_recordings_does_not_speak_of_them(page):
    assert "Traces" not in "".join(page.text)


def test_the_page_loads_nothing_and_its_policy_allows_only_its_own_script_and_style(page):
    links = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert links
    assert all(link.startswith("#") for link in links)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for content in (page.scripts[1], page.styles[0]):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.search(r"https?://|@import|url\(", page.styles[0])
    assert "innerHTML" not in page.scripts[1]


def test_every_curve_that_was_asked_for_is_drawn_and_hoverable(page):
    titles = [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]
    for title in ("Reward", "Length", "Entropy", "KL", "Clip fraction", "Staleness", "Engine mismatch", "Gradient norm",
                  "Throughput", "Time per step", "Faults", f"custom/{EVIL}"):  # fmt: skip
        assert title in titles
    assert [chart["title"] for chart in page.data["charts"]] == titles
    reward = page.data["charts"][0]["series"]
    assert [line["name"] for line in reward] == ["training", "evaluation of test"]
    assert reward[1]["points"] == [[0, 0.1], [11, 0.9]]
    split = next(chart for chart in page.data["charts"] if chart["title"] == "Time per step")
    assert {line["name"] for line in split["series"]} == {"train", "rollout_wait"}


def test_the_summary_goes_from_the_first_to_the_last_evaluation(page):
    text = " ".join(page.text)
    assert "0.100 → 0.900" in text
    assert "+0.8 over the run" in text


def test_a_run_without_rewards_is_summed_up_by_its_losses(tmp_path):
    with MetricLogger(tmp_path, MetricsConfig()) as metrics:
        for step in range(3):
            metrics.log(step, {names.LOSS: 3.0 - step, names.EVAL_LOSS: 2.5 - step})
    text = " ".join(Page(write_report(tmp_path, tmp_path / "r.html").read_text()).text)
    assert "Evaluation loss 2.500 → 0.500" in text
    assert "Training loss 3.000 → 1.000" in text
    assert "Faults" not in text


def test_rollouts_carry_versions_pieces_and_components(page):
    (group,) = page.data["groups"]
    sample = group["samples"][0]
    assert (group["step"], group["ordinal"], group["admitted"]) == (4, 9, 3)
    assert sample["versions"] == [[3, 2], [4, 1]]
    assert len(sample["pieces"]) == len(sample["logprobs"]) == len(sample["tokens"]) == 3
    assert sample["components"] == {EVIL: 1.0}


def test_a_run_without_steps_or_rollouts_still_gives_a_page(tmp_path):
    MetricLogger(tmp_path / "run", MetricsConfig()).close()
    page = Page(write_report(tmp_path / "run", tmp_path / "r.html").read_text())
    assert "No step has been logged yet." in page.text
    assert "hidden" in next(a for tag, a in page.tags if a.get("id") == "browser")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"holds no metrics\.jsonl"):
        write_report(tmp_path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_a_long_run_is_thinned_evenly_and_the_newest_prompt_is_kept(tmp_path):
    with MetricLogger(tmp_path, MetricsConfig(rollouts_per_step=1)) as metrics:
        for step in range(MAX_GROUPS + 50):
            metrics.log_rollouts(
                step, [PromptGroup(ordinal=step, admitted_version=0, trajectories=(trajectory(0, [1]),))]
            )
    rollouts = load_rollouts(tmp_path / "rollouts.jsonl")
    steps = [group["step"] for group in rollouts.groups]
    assert len(steps) <= MAX_GROUPS
    assert steps[-1] == MAX_GROUPS + 49
    assert {later - earlier for earlier, later in pairwise(steps)} == {2}
    assert f"{len(steps)} of {MAX_GROUPS + 50} prompts" in rollouts.note


def test_embedded_json_cannot_end_its_element_and_parses_to_the_same_value():
    text = embed_json({"a": EVIL, "b": math.nan})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": EVIL, "b": None}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to parse the script")
def test_the_script_is_valid_javascript(page, tmp_path):
    (tmp_path / "report.js").write_text(page.scripts[1])
    command = ["node", "--check", str(tmp_path / "report.js")]
    assert subprocess.run(command, check=False, timeout=30).returncode == 0


def test_curves_stay_inside_the_drawing_and_break_at_values_that_are_not_finite():
    chart = line_chart("x", {"a": [(0, 1.0), (1, math.nan), (2, 3.0), (3, math.inf), (4, -2.0)]})
    path = re.search(r'class="line c0" d="([^"]+)"', chart.svg).group(1)
    assert path.count("M") == 3
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    assert all(0 <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert chart.hover["series"][0]["points"] == [(0, 1.0), (2, 3.0), (4, -2.0)]
    assert line_chart("x", {"a": [(0, math.nan)]}) is None
    assert line_chart("x", {"a": [(3, 5.0)]}) is not None


def test_stacked_areas_add_up_and_a_missing_part_counts_as_nothing():
    chart = stacked_chart("t", {"a": [(0, 1.0), (1, 2.0)], "b": [(1, 3.0)]})
    assert chart.hover["domain"][3] >= 5.0
    assert chart.svg.count('class="area') == 2
    assert stacked_chart("t", {}) is None


def test_thinning_keeps_ends_and_extremes():
    points = [(step, math.sin(step / 500)) for step in range(10000)]
    points[4321] = (4321, 9.0)
    kept = thin(points)
    assert len(kept) <= 610
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (4321, 9.0) in kept
    assert kept == sorted(kept)


def test_ticks_are_round_and_cover_the_range():
    assert ticks(0, 1) == [0, 0.25, 0.5, 0.75, 1]
    assert ticks(0, 97) == [0, 25, 50, 75, 100]
    assert ticks(-0.3, 0.3)[0] <= -0.3


def test_numbers_and_durations_are_short():
    assert [format_number(x) for x in (0, 0.25, 12500, 2.5e6, 1e-5)] == ["0", "0.25", "12.5k", "2.5M", "1.0e-05"]
    assert [format_duration(x) for x in (45, 725, 12000)] == ["45 s", "12 min 5 s", "3 h 20 min"]


def test_the_faults_that_a_rollout_batch_reports_reach_the_page(tmp_path):
    """The names must agree: a page that says "0 failed" about a run full of failures is worse than none."""
    batch = RolloutBatch(
        groups=(PromptGroup(ordinal=0, admitted_version=0, trajectories=(trajectory(0, [0]),)),),
        version=0, wait_seconds=0.1, dropped={}, faults={"reward_timeout": 3}, interruptions=0,
    )  # fmt: skip
    with MetricLogger(tmp_path, MetricsConfig()) as metrics:
        metrics.log(1, {names.REWARD_MEAN: 0.5, **batch.metrics()})
        metrics.log(2, {names.REWARD_MEAN: 0.5, **batch.metrics()})
    page = Page(write_report(tmp_path, tmp_path / "r.html").read_text())
    assert "Faults 6 failed attempts at samples" in " ".join(page.text)
    assert [chart["series"][0]["name"] for chart in page.data["charts"] if chart["title"] == "Faults"] == [
        "reward_timeout"
    ]
