"""`areal eval` on real engines: what it samples, keeps, continues, compares and refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import runs
import torch

from areal.api import BusyError, ConfigError, RolloutError, UsageError
from areal.cli.main import main
from areal.dataset.encoding import load_tokenizer
from areal.infra.checkpoint.run_control import RunLock
from areal.models.loading import from_config
from areal.trainer.configuration.source import dump_yaml
from areal.trainer.evaluation.report import add_comparison
from areal.trainer.evaluation.standalone import evaluate
from areal.trainer.evaluation.targets import resolve_target

ROWS = {"name": "jsonl", "path": str(runs.ROWS)}
SETS = {
    "greedy": {"dataset": ROWS, "rows": 4},
    "sampled": {"dataset": ROWS, "rows": 6, "samples": 4, "answer": "text"},
}


def checkpoint(folder, seed):
    model = from_config(runs.BASE["model.init"], seed=seed, dtype=torch.float32, device="cpu")
    model.save_pretrained(folder)
    load_tokenizer(runs.BASE["model.tokenizer_path"]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A configuration with sets, and two models."""
    folder = tmp_path_factory.mktemp("evaluated")
    config = runs.tiny(folder / "unused", eval_sets=SETS, reward="eval_rewards:parity")
    (folder / "sets.yaml").write_text(dump_yaml(config))
    checkpoint(folder / "first", 1)
    checkpoint(folder / "second", 2)
    return folder


@pytest.fixture(scope="module")
def first(place):
    """The evaluation of the first model."""
    return evaluate(plan_of(place, "first"))


def plan_of(place, name, *overrides, output=None, **options):
    return resolve_target(
        str(place / name),
        config_file=place / "sets.yaml",
        overrides=overrides,
        output=output or place / "eval" / name,
        **options,
    )


def samples_of(folder):
    lines = [json.loads(line) for line in (Path(folder) / "samples.jsonl").read_text().splitlines()]
    for use in (use for line in lines for use in line["uses"].values()):
        assert use.pop("seconds") > 0
    return {(line["set"], line["row"], line["sample"]): line for line in lines}


def test_every_sample_is_kept_and_the_numbers_are_those_of_the_samples(place, first):
    kept = samples_of(place / "eval" / "first")
    assert len(kept) == 4 + 6 * 4
    assert len({line["seed"] for line in kept.values()}) == len(kept), "sets, rows and samples have seeds of their own"
    rewards = [line["reward"] for (name, _, _), line in kept.items() if name == "sampled"]
    assert 0 < sum(rewards) < 24
    found = first["sets"]["sampled"]
    assert found["metrics"]["avg@4"]["mean"] == pytest.approx(sum(rewards) / 24)
    assert list(found["metrics"]) == ["avg@4", "pass@1", "pass@2", "pass@4", "maj@4"]
    passed = [any(kept["sampled", row, sample]["reward"] >= 1 for sample in range(4)) for row in range(6)]
    assert found["metrics"]["pass@4"]["mean"] == pytest.approx(sum(passed) / 6)
    assert found["metrics"]["avg@4"]["low"] < found["metrics"]["avg@4"]["mean"] < found["metrics"]["avg@4"]["high"]
    report = json.loads((place / "eval" / "first" / "report.json").read_text())
    assert report["sets"]["sampled"]["metrics"] == found["metrics"]
    page = (place / "eval" / "first" / "report.html").read_text()
    assert "<script" not in page
    assert f"{found['metrics']['pass@2']['mean']:.4g}" in page


def test_a_finished_evaluation_samples_nothing_again(place, first, capsys):
    before = (place / "eval" / "first" / "samples.jsonl").read_bytes()
    arguments = [str(place / "first"), "--config", str(place / "sets.yaml"), "--output", str(place / "eval" / "first")]
    assert main(["eval", *arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["generated_tokens"] == 0
    assert answer["sets"] == json.loads(json.dumps(first["sets"]))
    assert (place / "eval" / "first" / "samples.jsonl").read_bytes() == before


def test_more_samples_keep_those_that_are_there(place, first, tmp_path):
    plan = plan_of(place, "first", output=tmp_path)
    (tmp_path / "evaluation.json").write_bytes((place / "eval" / "first" / "evaluation.json").read_bytes())
    (tmp_path / "samples.jsonl").write_bytes((place / "eval" / "first" / "samples.jsonl").read_bytes())
    more = plan_of(place, "first", "eval_sets.sampled.samples=5", "eval_sets.sampled.rows=7", output=tmp_path)
    found = evaluate(more)
    before, after = samples_of(place / "eval" / "first"), samples_of(tmp_path)
    assert len(after) == 4 + 7 * 5
    assert {key: after[key] for key in before} == before
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == len(after), "none was taken twice"
    assert found["sets"]["sampled"]["metrics"]["pass@5"]["rows"] == 7
    assert plan.config.eval_sets["sampled"].samples == 4


def test_an_evaluation_that_broke_off_goes_on_after_a_torn_line(place, first, tmp_path):
    (tmp_path / "evaluation.json").write_bytes((place / "eval" / "first" / "evaluation.json").read_bytes())
    lines = (place / "eval" / "first" / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "samples.jsonl").write_bytes(b"".join(lines[:9]) + lines[9][:40])
    evaluate(plan_of(place, "first", output=tmp_path))
    assert (tmp_path / "samples.jsonl").read_bytes().startswith(b"".join(lines[:9]))
    assert samples_of(tmp_path) == samples_of(place / "eval" / "first")


@pytest.mark.exhaustive
def test_a_killed_evaluation_goes_on_to_the_samples_of_one_that_was_left_alone(place, first, tmp_path, fork_server):
    config = place / "sets.yaml"
    target = tmp_path / "target.yaml"
    text = config.read_text().replace("path: ''", f"path: {place / 'first'}", 1)
    target.write_text(text)
    program = Path(__file__).with_name("kill_evaluation.py")
    job = fork_server.start(program, [str(target), str(tmp_path / "out"), "9"])
    assert job.wait(120) == 0, job.stderr
    *_, last = job.stdout.splitlines()
    assert json.loads(last) == {"killed": signal.SIGKILL, "lines": 10, "exit_code": 0}
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 28, "nothing is sampled twice, and the torn line is gone"
    assert samples_of(tmp_path / "out") == samples_of(place / "eval" / "first")


@pytest.mark.exhaustive
def test_two_models_are_compared_row_by_row(place, first):
    del first
    plan = plan_of(place, "second")
    report = add_comparison(plan.output, place / "eval" / "first", evaluate(plan))
    mine, theirs = samples_of(plan.output), samples_of(place / "eval" / "first")
    means = [
        [sum(kept["sampled", row, sample]["reward"] for sample in range(4)) / 4 for row in range(6)]
        for kept in (theirs, mine)
    ]
    found = report["comparison"]["sets"]["sampled"]["avg"]
    changes = [second - first for first, second in zip(*means, strict=True)]
    assert found["difference"] == pytest.approx(sum(changes) / 6)
    assert (found["better"], found["worse"]) == (sum(c > 0 for c in changes), sum(c < 0 for c in changes))
    assert found["low"] <= found["difference"] <= found["high"]
    assert 0 < found["p_permutation"] <= 1
    assert "Compared with" in (plan.output / "report.html").read_text()
    other = plan_of(
        place, "second", "eval_sets.sampled.reward=exact", output=place / "eval" / "other", sets=("sampled",)
    )
    with pytest.raises(ConfigError, match="set sampled differs in reward: 'eval_rewards:parity'"):
        add_comparison(other.output, place / "eval" / "first", evaluate(other))


def test_lost_samples_are_no_score_of_zero_and_can_be_tried_again(place, tmp_path):
    strict = "eval_sets.sampled.reward=eval_rewards:refuses_small_products"
    plan = plan_of(place, "first", strict, "rollout.max_retries=0", output=tmp_path, sets=("sampled",))
    report = evaluate(plan)
    found, kept = report["sets"]["sampled"], samples_of(tmp_path)
    assert found["lost"] > 0
    (use,) = found["component_uses"].values()
    assert (use["calls"], use["failures"]) == (24, found["lost"])
    assert use["seconds_per_call"] > 0
    assert "no opinion on 4" in found["first_fault"]
    assert found["metrics"]["avg@4"]["rows"] == 6 - found["lost"] / 4
    scored = [line["reward"] for line in kept.values() if "reward" in line]
    assert found["metrics"]["avg@4"]["mean"] == pytest.approx(sum(scored) / len(scored))
    evaluate(plan, retry_faults=True)
    lines = (tmp_path / "samples.jsonl").read_text().splitlines()
    assert len(lines) == 24 + found["lost"]


def test_nothing_scored_is_an_error_that_says_why(place, tmp_path):
    reward = "eval_sets.sampled.reward=eval_rewards:refuses_small_products"
    plan = plan_of(place, "first", reward, "eval_sets.sampled.rows=2", output=tmp_path, sets=("sampled",))
    with pytest.raises(RolloutError, match=r"nothing of evaluation set sampled .*no opinion on 4"):
        evaluate(plan)


@pytest.mark.exhaustive
def test_a_folder_belongs_to_one_evaluation_and_one_process(place, first):
    with pytest.raises(ConfigError, match=r"(?s)something else.*eval_sets.sampled.gconfig"):
        evaluate(plan_of(place, "first", "gconfig.temperature=0.5"))
    with pytest.raises(ConfigError, match="fingerprint"):
        evaluate(plan_of(place, "second", output=place / "eval" / "first"))
    with RunLock(place / "eval" / "first"), pytest.raises(BusyError):
        evaluate(plan_of(place, "first"))


@pytest.mark.exhaustive
def test_a_new_beginning_keeps_the_old_samples(place, tmp_path):
    once = plan_of(place, "first", output=tmp_path, sets=("greedy",))
    evaluate(once)
    before = (tmp_path / "samples.jsonl").read_bytes()
    other = plan_of(place, "first", "seed=9", output=tmp_path, sets=("greedy",))
    evaluate(other, restart=True)
    assert (tmp_path / "samples.jsonl.1").read_bytes() == before


def test_a_dry_run_says_what_would_be_sampled_and_writes_nothing(place, tmp_path, capsys):
    arguments = [str(place / "first"), "--config", str(place / "sets.yaml"), "--output", str(tmp_path / "new")]
    assert main(["eval", *arguments, "--dry-run", "--json", "eval_sets.sampled.samples=3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["sets"]["sampled"] | {"reward": ""} == {
        "rows": 6, "samples_per_row": 3, "samples": 18, "kept": 0, "reward": "", "greedy": False,
    }  # fmt: skip
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        ("nowhere", {}, "there is no such file or folder"),
        ("first", {"sets": ("sampeld",)}, "did you mean 'sampled'"),
        ("first", {"step": 4}, "--step is for runs"),
        ("first", {"overrides": ("eval_sets.sampled.reward=exakt",)}, "unknown reward 'exakt'"),
        ("first", {"overrides": ("eval_sets.sampled.gconfig.greedy=true",)}, "all samples of a row would be the same"),
        ("first", {"overrides": ("eval_sets.sampled.answer=boxd",)}, "did you mean 'boxed'"),
        ("first", {"overrides": ("eval_sets={}",)}, "has no eval_sets"),
        ("sets.yaml", {"config_file": None}, "expected a checkpoint folder"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_with_the_way_out(place, target, options, expected):
    with pytest.raises(UsageError, match=expected):
        resolve_target(str(place / target), **{"config_file": place / "sets.yaml", **options})
