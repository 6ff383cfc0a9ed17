"""The comparison of runs: tables, curves, the same prompts side by side, and a page that is as safe as the report."""

import base64
import hashlib
import json
import re

import pytest
import yaml

from areal.api import PromptGroup, StopReason, Trajectory, UsageError
from areal.cli.main import main
from areal.infra.metrics import names
from areal.infra.metrics.comparison import compare_runs, render_comparison, write_comparison
from areal.infra.metrics.config import MetricsConfig
from areal.infra.metrics.logger import MetricLogger

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>{{ title }}"


def group(ordinal, prompt, *completions):
    return PromptGroup(
        ordinal=ordinal,
        admitted_version=0,
        trajectories=tuple(
            Trajectory(
                tokens=[1, 2], loss_mask=[0, 1], logprobs=[0, -0.5], versions=[-1, 0], turn_ids=[-1, 0],
                reward=float(index), stop_reason=StopReason.STOP, sample_index=index,
                text={"prompt": prompt, "completion": completion}, reward_components={},
            )
            for index, completion in enumerate(completions)
        ),
        faults=(),
    )  # fmt: skip


def run(folder, *, lr, rewards, groups):
    with MetricLogger(folder, MetricsConfig()) as metrics:
        for step, reward in enumerate(rewards, 1):
            metrics.log(step, {names.REWARD_MEAN: reward, names.LOSS: 1 / step, f"custom/{EVIL}": 1.0})
            metrics.log_rollouts(step, groups)
        metrics.log(len(rewards), {"eval/test/avg@1": rewards[-1] / 2})
    settings = {"trial_name": folder.name, "actor": {"lr": lr, "betas": [0.9, 0.95]}, "note": EVIL}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture
def runs(tmp_path):
    low = run(tmp_path / "low", lr=1e-6, rewards=[0.1, 0.9, 0.5], groups=[group(1, EVIL, "a", "b"), group(2, "x", "c")])
    high = run(tmp_path / "high", lr=3e-6, rewards=[0.2, 0.3], groups=[group(7, EVIL, EVIL)])
    return [low, high]


def test_last_and_best_values_and_settings_that_differ(runs):
    content = compare_runs(runs)
    table = {one["metric"]: one for one in content["metrics"]}
    assert next(iter(table)) == "eval/test/avg@1"
    assert table[names.REWARD_MEAN]["last"] == [0.5, 0.3]
    assert table[names.REWARD_MEAN]["best"] == [0.9, 0.3]
    assert table[names.LOSS]["best"] == [pytest.approx(1 / 3), 0.5]
    assert content["differences"] == [{"key": "actor.lr", "values": [1e-6, 3e-6]}]
    assert [one["name"] for one in content["runs"]] == ["low", "high"]
    assert content["curves"][names.REWARD_MEAN] == [[(1, 0.1), (2, 0.9), (3, 0.5)], [(1, 0.2), (2, 0.3)]]


def test_prompts_that_all_runs_answered_stand_side_by_side_best_answer_first(runs):
    [one] = compare_runs(runs)["prompts"]
    assert one["prompt"] == EVIL
    assert [sample["text"] for sample in one["runs"][0]["samples"]] == ["b", "a"]
    assert [found["step"] for found in one["runs"]] == [3, 2]


def test_runs_of_one_name_are_told_apart(runs, tmp_path):
    other = run(tmp_path / "again" / "low", lr=1e-6, rewards=[0.1], groups=[])
    found = [one["name"] for one in compare_runs([runs[0], other])["runs"]]
    assert len(set(found)) == 2
    assert found[1] == "again/low"
    assert len({one["name"] for one in compare_runs([runs[0], runs[0]])["runs"]}) == 2


def test_the_text_has_the_same_numbers(runs):
    text = render_comparison(compare_runs(runs))
    assert re.search(r"reward/mean \(best\) +0\.9 +0\.3", text)
    assert re.search(r"actor\.lr +1e-06 +3e-06", text)


def test_the_page_loads_nothing_and_nothing_a_model_wrote_becomes_markup(runs, tmp_path):
    page = write_comparison(compare_runs(runs), tmp_path / "out" / "c.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    for tag in ("script", "style"):
        body = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        assert base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() in policy
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https:" not in page
    assert page.count("<script") == 2
    assert "<img" not in page
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["prompts"][0]["prompt"] == EVIL
    assert len(page) < 60_000
    assert "refresh" not in page.partition("<title>")[0]


def test_a_page_of_runs_that_go_on_loads_itself_again(runs, tmp_path):
    page = write_comparison(compare_runs(runs, [True, False]), tmp_path / "c.html", refresh_seconds=7).read_text()
    assert '<meta http-equiv="refresh" content="7">' in page


def test_the_command_compares_and_follows_until_the_runs_have_ended(runs, tmp_path, capsys):
    output = tmp_path / "c.html"
    arguments = ["report", *map(str, runs), "--json"]
    assert main([*arguments, "--output", str(output), "--follow", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["path"] == str(output)
    assert found["differences"][0]["key"] == "actor.lr"
    assert output.is_file()
    assert main([*arguments, "--text"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]
    assert main([*arguments, "--attempt", "1"]) == 2
    assert main(["report", str(runs[0]), "--follow", "1"]) == 2


def test_a_folder_without_metrics_is_named(runs, tmp_path):
    with pytest.raises(UsageError, match="nothing"):
        compare_runs([runs[0], tmp_path / "nothing"])
